//! An answer that does not meet the task's schema gets one more turn of its agent. `registry` brings the
//! answer and the turn; what comes out is the answer that counts, and the word about it.

use delegate_protocol::Value;
use delegate_protocol::outcome::{ERROR_BYTES, SchemaWord};

use crate::agent::Failure;
use crate::answer::LongText;
use crate::guard;
use crate::schema::{MAX_CHECKED_BYTES, Schema};
use crate::session::Session;
use crate::tail::clip;

/// The answer that a model gives up with.
const GIVE_UP: &str = "(empty)";

/// An answer in the form that crosses the line.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: LongText,
    pub(crate) is_json: bool,
}

/// What one more turn gave; `None`: the agent has none.
pub(crate) type Turn = Option<Result<Answer, Failure>>;

/// The answer that counts, and how it meets `schema`. A second turn that gives nothing better than
/// nothing leaves the first answer.
pub(crate) fn meet(
    schema: &Value,
    first: Answer,
    session: &mut Session,
    again: impl FnOnce(&[String], &mut Session) -> Turn,
) -> (Answer, SchemaWord) {
    let schema = match Schema::compile(schema) {
        Ok(schema) => schema,
        // The parent has compiled it before it sent it; another make of it need not have.
        Err(error) => return (first, unmet(Vec::new(), 0, Some(error.to_string()))),
    };
    let (first, errors) = match checked(&schema, first) {
        (first, Ok(())) => return (first, SchemaWord { valid: true, ..SchemaWord::default() }),
        (first, Err(errors)) => (first, errors),
    };
    if let Some(why) = settled(&first, session) {
        return (first, unmet(errors, 0, Some(format!("it was not asked again: {why}"))));
    }
    let most = session.spec().max_result_bytes;
    let second = match guard::run(|| again(&errors, session)) {
        Ok(None) => return (first, unmet(errors, 0, None)),
        Ok(Some(Ok(answer))) => answer,
        Ok(Some(Err(Failure::MaxIterations { partial }))) => {
            Answer { text: partial.into(), is_json: false }
        }
        Ok(Some(Err(Failure::Interrupted))) => {
            return (first, unmet(errors, 1, Some("its second turn was interrupted".to_owned())));
        }
        Ok(Some(Err(Failure::Failed { message, .. } | Failure::Broken { message }))) => {
            return (first, unmet(errors, 1, Some(format!("its second turn failed: {message}"))));
        }
        Err(panic) => {
            return (first, unmet(errors, 1, Some(format!("its second turn panicked: {panic}"))));
        }
    };
    if second.text.len() > most {
        let note = "its second answer is over max_result_bytes".to_owned();
        return (first, unmet(errors, 1, Some(note)));
    }
    match checked(&schema, second) {
        (second, Ok(())) => {
            (second, SchemaWord { valid: true, retries: 1, ..SchemaWord::default() })
        }
        (second, Err(_)) if is_empty(&second) => {
            (first, unmet(errors, 1, Some("its second answer is empty".to_owned())))
        }
        (second, Err(errors)) => (second, unmet(errors, 1, None)),
    }
}

fn unmet(errors: Vec<String>, retries: u32, note: Option<String>) -> SchemaWord {
    let note = note.map(|note| clip(&note, ERROR_BYTES).to_owned());
    SchemaWord { valid: false, retries, errors, note }
}

/// Why this answer gets no second turn.
fn settled(answer: &Answer, session: &Session) -> Option<&'static str> {
    if session.is_interrupted() {
        Some("it was asked to stop")
    } else if is_empty(answer) {
        Some("the answer is empty")
    } else if answer.text.len() > MAX_CHECKED_BYTES {
        Some("the answer is too large")
    } else {
        None
    }
}

fn is_empty(answer: &Answer) -> bool {
    answer.text.head().is_some_and(|text| matches!(text.trim(), "" | GIVE_UP))
}

/// The answer, and what is wrong with it.
fn checked(schema: &Schema, answer: Answer) -> (Answer, Result<(), Vec<String>>) {
    let Answer { text, is_json } = answer;
    if text.len() > MAX_CHECKED_BYTES {
        let error = format!("an answer of more than {MAX_CHECKED_BYTES} bytes is not checked");
        return (Answer { text, is_json }, Err(vec![error]));
    }
    match text.into_text() {
        Ok(text) => {
            let met = schema.check(&text);
            (Answer { text: text.into(), is_json }, met)
        }
        Err(error) => {
            let text = LongText::default();
            (Answer { text, is_json }, Err(vec![format!("it could not be read back: {error}")]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        serde_json::from_str(r#"{"type":"integer"}"#).unwrap()
    }

    fn answer(text: &str) -> Answer {
        Answer { text: text.to_owned().into(), is_json: false }
    }

    /// What `meet` gives for a first answer and a second turn: text, valid, retries, turns taken, note.
    fn met(first: &str, second: Turn) -> (String, bool, u32, usize, String) {
        let (mut turns, mut session) = (0, Session::for_tests(|_| {}));
        let (last, word) = meet(&schema(), answer(first), &mut session, |errors, _| {
            assert!(!errors.is_empty());
            turns += 1;
            second
        });
        assert_eq!(word.valid, word.errors.is_empty(), "{word:?}");
        let text = last.text.into_text().unwrap();
        (text, word.valid, word.retries, turns, word.note.unwrap_or_default())
    }

    #[test]
    fn c47_an_answer_is_asked_for_again_exactly_once_and_only_when_it_is_wrong() {
        assert_eq!(met("1", Some(Ok(answer("2")))), ("1".into(), true, 0, 0, String::new()));
        assert_eq!(met("x", Some(Ok(answer("2")))), ("2".into(), true, 1, 1, String::new()));
        assert_eq!(met("x", Some(Ok(answer("y")))), ("y".into(), false, 1, 1, String::new()));
        assert_eq!(met("x", None), ("x".into(), false, 0, 1, String::new()));
    }

    #[test]
    fn c47_a_second_turn_that_comes_to_nothing_leaves_the_first_answer() {
        for (second, why) in [
            (Some(Ok(answer(""))), "empty"),
            (Some(Ok(answer(" (empty)\n"))), "empty"),
            (Some(Err(Failure::Interrupted)), "interrupted"),
            (Some(Err(Failure::new("HTTP 500"))), "HTTP 500"),
        ] {
            let (text, valid, retries, turns, note) = met("x", second);
            assert_eq!((text.as_str(), valid, retries, turns), ("x", false, 1, 1), "{note}");
            assert!(note.contains(why), "{note}");
        }
        let partial = Some(Err(Failure::MaxIterations { partial: "7".to_owned() }));
        assert_eq!(met("x", partial), ("7".into(), true, 1, 1, String::new()));
        let mut session = Session::for_tests(|_| {});
        let (last, word) = meet(&schema(), answer("x"), &mut session, |_, _| panic!("a bug"));
        assert_eq!(last.text.into_text().unwrap(), "x");
        assert!(word.note.unwrap().contains("a bug"));
    }

    #[test]
    fn c47_an_empty_answer_and_a_child_that_is_to_stop_get_no_second_turn() {
        for empty in ["", " \n", "(empty)"] {
            let (_, valid, retries, turns, note) = met(empty, Some(Ok(answer("2"))));
            assert_eq!((valid, retries, turns), (false, 0, 0), "{empty:?}");
            assert!(note.contains("the answer is empty"), "{note}");
        }
        let mut session = Session::for_tests(|_| {});
        session.interrupt_for_tests();
        let (_, word) = meet(&schema(), answer("x"), &mut session, |_, _| panic!("it was asked"));
        assert!(word.note.unwrap().contains("asked to stop"));
    }
}
