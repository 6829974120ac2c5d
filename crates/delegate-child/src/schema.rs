//! `output_schema`: the JSON Schema that an answer must meet, told to an agent in words and checked. The
//! child checks to be able to ask its agent again; the parent checks again, since it believes no child.
//!
//! Nothing is fetched: a `$ref` that leads out of the schema makes it a malformed one. Patterns are
//! matched in linear time.

use std::fmt;

use delegate_protocol::Value;
use delegate_protocol::outcome::{MAX_SCHEMA_ERRORS, SCHEMA_ERROR_BYTES};

use crate::tail::clip;

/// Bytes of a schema as JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1024;

/// Bytes of an answer that is checked; a larger one is taken as it is, and the entry says so.
pub const MAX_CHECKED_BYTES: u64 = 16 * 1024 * 1024;

/// A schema that can be checked against.
pub struct Schema {
    validator: jsonschema::Validator,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").finish_non_exhaustive()
    }
}

/// A schema that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("output_schema is malformed: {0}")]
pub struct SchemaError(String);

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// It is no map, too large, no JSON Schema, or refers to something outside of it.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        if !matches!(schema, Value::Map(_)) {
            return Err(SchemaError("it must be an object".to_owned()));
        }
        let text = text(schema)?;
        if text.len() > MAX_SCHEMA_BYTES {
            let (size, most) = (text.len(), MAX_SCHEMA_BYTES);
            return Err(SchemaError(format!("it has {size} bytes, at most {most} are taken")));
        }
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| refused(&e))?;
        let validator = jsonschema::options()
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(&json)
            .map_err(|error| refused(&error))?;
        Ok(Self { validator })
    }

    /// Checks an answer: JSON, alone or in one fenced block.
    ///
    /// # Errors
    /// What is wrong, with places; at least one line, at most [`MAX_SCHEMA_ERRORS`].
    pub fn check(&self, answer: &str) -> Result<(), Vec<String>> {
        let json: serde_json::Value = serde_json::from_str(unfenced(answer))
            .map_err(|error| vec![line(&format!("the answer is not JSON: {error}"))])?;
        let mut errors = self.validator.iter_errors(&json);
        let found: Vec<String> = errors
            .by_ref()
            .take(MAX_SCHEMA_ERRORS)
            .map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { "the answer" } else { &place };
                line(&format!("{place}: {error}"))
            })
            .collect();
        if found.is_empty() { Ok(()) } else { Err(found) }
    }
}

fn refused(error: &dyn fmt::Display) -> SchemaError {
    SchemaError(line(&error.to_string()))
}

fn line(text: &str) -> String {
    clip(text, SCHEMA_ERROR_BYTES).to_owned()
}

fn text(schema: &Value) -> Result<String, SchemaError> {
    serde_json::to_string(schema).map_err(|error| refused(&error))
}

/// The inside of one fenced block, if the text is nothing else.
fn unfenced(answer: &str) -> &str {
    let answer = answer.trim();
    let inside = answer.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match inside.and_then(|inside| inside.split_once('\n')) {
        Some((language, inside)) if matches!(language.trim(), "" | "json" | "JSON") => {
            inside.trim()
        }
        _ => answer,
    }
}

/// What an agent is told of the schema, for the end of its prompt.
#[must_use]
pub fn told(schema: &Value) -> String {
    let schema = text(schema).unwrap_or_default();
    format!(
        "Your final answer must be JSON that meets this JSON Schema, and nothing else: no text around \
         it.\n{schema}"
    )
}

/// What an agent is told in its one more turn.
#[must_use]
pub fn told_again(errors: &[String]) -> String {
    let mut text = "Your answer does not meet the JSON Schema that was asked for:\n".to_owned();
    for error in errors {
        text.push_str(&format!("- {error}\n"));
    }
    text.push_str("Answer again with the corrected JSON only.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    const SCHEMA: &str = r#"{"type":"object","required":["n"],"additionalProperties":false,
        "properties":{"n":{"type":"integer","minimum":0}}}"#;

    #[test]
    fn an_answer_is_json_alone_or_in_one_fenced_block() {
        let schema = Schema::compile(&value(SCHEMA)).unwrap();
        for good in [r#"{"n":1}"#, " {\"n\": 1}\n", "```json\n{\"n\":1}\n```", "```\n{\"n\":1}```"]
        {
            assert_eq!(schema.check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", "not JSON"),
            ("the answer is {\"n\":1}", "not JSON"),
            ("```json\n{\"n\":1}\n``` done", "not JSON"),
            (r#"{"n":-1}"#, "/n: -1"),
            (r#"{"n":1,"m":2}"#, "'m'"),
            ("{}", "\"n\" is a required property"),
            ("[]", "the answer: "),
        ] {
            let errors = schema.check(bad).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(why)), "{bad}: {errors:?}");
        }
    }

    #[test]
    fn errors_are_bounded_in_number_and_in_size() {
        let schema = Schema::compile(&value(r#"{"items":{"type":"null"}}"#)).unwrap();
        let many = format!("[{}1]", "1,".repeat(10 * MAX_SCHEMA_ERRORS));
        assert_eq!(schema.check(&many).unwrap_err().len(), MAX_SCHEMA_ERRORS);
        let long = format!("[\"{}\"]", "é".repeat(SCHEMA_ERROR_BYTES));
        let errors = schema.check(&long).unwrap_err();
        assert!(errors[0].len() <= SCHEMA_ERROR_BYTES, "{}", errors[0].len());
        // A deep answer ends in an error of the parser, not in a stack that is used up.
        assert!(schema.check(&"[".repeat(1_000_000)).is_err());
    }

    #[test]
    fn c47_a_malformed_schema_is_refused_with_the_reason() {
        for (schema, why) in [
            ("[]", "must be an object"),
            ("true", "must be an object"),
            (r#"{"type":"nothing"}"#, "nothing"),
            (r#"{"required":"n"}"#, "n"),
            (r#"{"pattern":"("}"#, "("),
            // A pattern that cannot be matched in linear time.
            (r#"{"pattern":"(a)\\1"}"#, "1"),
            (r#"{"$ref":"http://127.0.0.1:1/schema.json"}"#, "127.0.0.1"),
            (r#"{"$ref":"file:///etc/passwd"}"#, "passwd"),
        ] {
            let error = Schema::compile(&value(schema)).unwrap_err().to_string();
            assert!(error.starts_with("output_schema is malformed: "), "{error}");
            assert!(error.contains(why), "{schema}: {error}");
        }
        let large =
            Value::Map([("description".to_owned(), "x".repeat(MAX_SCHEMA_BYTES).into())].into());
        assert!(Schema::compile(&large).unwrap_err().to_string().contains("bytes"));
        assert!(
            Schema::compile(&value(r##"{"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}}"##))
                .is_ok()
        );
    }

    #[test]
    fn what_an_agent_is_told_holds_the_schema_and_later_every_error() {
        assert!(told(&value(SCHEMA)).contains("\"minimum\":0"));
        let again = told_again(&["/n: a".to_owned(), "/m: b".to_owned()]);
        assert!(again.contains("- /n: a\n- /m: b\n"), "{again}");
    }
}
