//! What the table of keys takes: as JSON Schema, for editors and for checks without this program, and in words.

use serde_json::{Map, Value, json};

use super::PoolStrategy;
use super::duration;
use super::keys::{EFFORTS, FALLBACK_FIELDS, KEYS, KeyInfo, LOOPS_OWN, MEMORY, MOST_MONEY, Type};
use super::pools::LIMIT_FIELDS;

/// A duration text; that it is not too short is left to the program.
const DURATION: &str = "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

/// An amount of bytes; how much it is is left to the program.
const BYTES: &str = "^\\s*[0-9]+(\\.[0-9]+)?\\s*(?i:[kmgt]i?b|b)\\s*$";

/// What a configuration file may hold, as JSON Schema (draft 2020-12) in JSON text. What the program
/// accepts is valid here. Three things the schema cannot say and the program refuses all the same: the
/// length of a duration text, how much an amount of bytes is, and what is wrong with YAML itself.
#[must_use]
pub fn schema() -> String {
    let mut properties = Map::new();
    let mut exclusive = Vec::new();
    for key in &KEYS {
        let (section, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        let mut property = of(key);
        describe(&mut property, key, key.about);
        let level = level(&mut properties, section);
        level.insert(name.to_owned(), property);
        if let Some(twin) = key.twin() {
            let mut property = duration_text(key);
            describe(&mut property, key, &format!("{} As a duration: 90s, 5m.", key.about));
            level.insert(twin.to_owned(), property);
            exclusive.push(json!({
                "not": { "type": "object", "required": [key.name, twin] },
            }));
        }
    }
    for name in LOOPS_OWN {
        let about = "The agent loop's own key: accepted and ignored.";
        properties.insert(name.to_owned(), json!({ "description": about }));
    }
    let delegation = json!({
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": properties,
        "allOf": exclusive,
    });
    let root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of delegate",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": { "delegation": delegation },
    });
    format!("{root:#}")
}

/// The properties of a section, made when it is not there.
fn level<'a>(root: &'a mut Map<String, Value>, section: &str) -> &'a mut Map<String, Value> {
    if section.is_empty() {
        return root;
    }
    let open = json!({
        "type": ["object", "null"], "additionalProperties": false, "properties": {},
    });
    let held = root.entry(section).or_insert(open);
    match held.get_mut("properties") {
        Some(Value::Object(properties)) => properties,
        _ => unreachable!("a section was just made with properties"),
    }
}

fn describe(property: &mut Value, key: &KeyInfo, about: &str) {
    property["description"] = json!(about);
    // A default is YAML that is JSON as well, or a word.
    property["default"] =
        serde_json::from_str(key.default).unwrap_or_else(|_| Value::from(key.default));
}

fn duration_text(key: &KeyInfo) -> Value {
    let text = json!({ "type": "string", "pattern": DURATION, "minLength": 1 });
    if matches!(key.kind, Type::Seconds { optional: true, .. }) {
        json!({ "anyOf": [text, { "type": "null" }] })
    } else {
        text
    }
}

fn of(key: &KeyInfo) -> Value {
    let with_null = |kind: &str, optional: bool| {
        if optional { json!([kind, "null"]) } else { json!(kind) }
    };
    match key.kind {
        Type::Isolation => json!({ "enum": [true, false, "auto", null] }),
        Type::Flag => json!({ "type": "boolean" }),
        Type::OnStale => json!({ "enum": ["warn", "interrupt", "kill"] }),
        Type::AtStart => json!({ "enum": ["end", "report", "ignore"] }),
        Type::Overflow => json!({ "enum": ["wait", "refuse"] }),
        Type::Containment => {
            json!({ "enum": ["auto", "subreaper", "cgroup", "pid-namespace", "pid_namespace"] })
        }
        Type::Launcher => json!({ "enum": ["auto", "exec", "zygote", "pool"] }),
        Type::Count { min, max, optional } => json!({
            "type": with_null("integer", optional), "minimum": min, "maximum": max,
        }),
        Type::Money => json!({
            "type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MOST_MONEY,
        }),
        Type::Bytes => json!({ "anyOf": [
            { "type": "integer", "minimum": MEMORY.0, "maximum": MEMORY.1 },
            { "type": "string", "pattern": BYTES },
            { "type": "null" },
        ]}),
        Type::Seconds { min, optional } => json!({
            "type": with_null("number", optional),
            "minimum": min.as_secs_f64(),
            "maximum": duration::LONGEST.as_secs(),
        }),
        Type::Command => json!({
            "type": ["array", "null"], "items": { "type": "string" }, "minItems": 1,
        }),
        Type::Text | Type::Word | Type::Secret => json!({ "type": ["string", "null"] }),
        Type::Url => address(),
        Type::Effort => {
            let words = EFFORTS.join("|");
            json!({ "anyOf": [
                { "type": "string", "pattern": format!("^\\s*(?i:{words})?\\s*$") },
                { "enum": [false, null] },
            ]})
        }
        Type::Path => json!({ "anyOf": [
            { "type": "string", "pattern": "^\\s*(~?/.*)?$" },
            { "type": "null" },
        ]}),
        Type::Strategies => {
            let words = PoolStrategy::ALL.map(PoolStrategy::word).join("|");
            json!({
                "type": ["object", "null"],
                "propertyNames": { "pattern": "\\S" },
                "additionalProperties": {
                    "type": "string", "pattern": format!("^\\s*({words})\\s*$"),
                },
            })
        }
        Type::Limits => {
            let count = json!({ "type": ["integer", "null"], "minimum": 1, "maximum": u32::MAX });
            let fields: Map<String, Value> =
                LIMIT_FIELDS.iter().map(|name| ((*name).to_owned(), count.clone())).collect();
            json!({
                "type": ["object", "null"],
                "propertyNames": { "pattern": "\\S" },
                "additionalProperties": {
                    "type": "object", "additionalProperties": false, "properties": fields,
                },
            })
        }
        Type::Overrides => json!({ "type": ["object", "null"] }),
        Type::Helpers => json!({
            "type": ["object", "null"],
            "propertyNames": { "pattern": "^[A-Za-z0-9_-]{1,64}$" },
            "additionalProperties": {
                "type": "array", "items": { "type": "string" }, "minItems": 1,
            },
        }),
        Type::Fallbacks => {
            let field = |name: &&str| {
                let schema = match *name {
                    "provider" | "model" => json!({ "type": "string", "pattern": "\\S" }),
                    "base_url" => address(),
                    _ => json!({ "type": ["string", "null"] }),
                };
                ((*name).to_owned(), schema)
            };
            let fields: Map<String, Value> = FALLBACK_FIELDS.iter().map(field).collect();
            json!({ "type": ["array", "null"], "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["provider", "model"],
                "properties": fields,
            }})
        }
    }
}

fn address() -> Value {
    json!({ "anyOf": [
        { "type": "string", "pattern": "^\\s*(?i:https?)://[^\\s/?#@]+([/?#]\\S*)?\\s*$" },
        { "type": "string", "pattern": "^\\s*$" },
        { "type": "null" },
    ]})
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::yaml::{self, Source};
    use super::super::{layer, tests::any_config};
    use super::*;
    use proptest::prelude::*;

    fn validator() -> jsonschema::Validator {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        jsonschema::meta::validate(&schema).unwrap();
        jsonschema::validator_for(&schema).unwrap()
    }

    /// What a YAML text is as JSON; `None` where it is no YAML.
    fn json_of(text: &str) -> Option<Value> {
        let node = yaml::parse(Source { file: None, text }).ok()?;
        serde_json::to_value(node.into_value()).ok()
    }

    fn is_taken(text: &str) -> bool {
        layer::from_file(Source { file: Some(Path::new("f")), text }).is_ok()
    }

    #[test]
    fn the_example_is_valid_and_so_is_an_empty_file() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config.example.yaml");
        let text = std::fs::read_to_string(example).unwrap();
        for text in [text.as_str(), "", "delegation:\n", "delegation: {worker: ~}\n"] {
            let json = json_of(text).unwrap();
            let faults: Vec<String> =
                validator().iter_errors(&json).map(|fault| fault.to_string()).collect();
            assert_eq!(faults, [""; 0]);
        }
    }

    #[test]
    fn what_the_program_refuses_the_schema_refuses() {
        let validator = validator();
        for below in [
            "max_concurent_children: 4",
            "max_concurrent_children: 0",
            "max_concurrent_children: 1.5",
            "max_concurrent_children: many",
            "max_iterations: null",
            "max_result_bytes: 1099511627777",
            "isolate_single_task: yes",
            "process_isolation: on",
            "child_timeout_seconds: 0.5",
            "child_timeout_seconds: 90s",
            "child_timeout: 90",
            "child_timeout: 1m2h",
            "child_timeout: ''",
            "{child_timeout: 90s, child_timeout_seconds: 90}",
            "worker: {comand: [a]}",
            "worker.command: [a]",
            "worker: {command: []}",
            "worker: {command: [1]}",
            "worker: 5",
            "model: 5",
            "api_key: [a]",
            "base_url: example.org",
            "base_url: https://",
            "base_url: https://user:word@example.org",
            "reasoning_effort: much",
            "reasoning_effort: true",
            "request_overrides: [a]",
            "fallback_providers: {}",
            "fallback_providers: [{provider: a}]",
            "fallback_providers: [{provider: a, model: ' '}]",
            "fallback_providers: [{provider: a, model: b, modle: c}]",
            "fallback_providers: [{provider: a, model: b, base_url: x}]",
            "max_summary_chars: -1",
            "on_stale: sometimes",
            "janitor_at_start: kill",
            "containment: strong",
            "containment: null",
            "max_memory: 5",
            "max_memory: lots",
            "max_memory: 512",
            "max_memory: [1]",
            "max_processes: 1",
            "child_nice: 20",
            "child_nice: -1",
            "child_cpu_weight: 0",
            "max_cpu_seconds: 0.5",
            "credential_pools: keys.yaml",
            "credential_pools: [/a]",
            "credential_pool_strategies: {a: best}",
            "credential_pool_strategies: {a: 1}",
            "credential_pool_strategies: random",
            "provider_limits: {a: 4}",
            "provider_limits: {a: {max_concurrent_calls: 0}}",
            "provider_limits: {a: {requests_per_second: 1}}",
            "provider_limits: {' ': {requests_per_minute: 1}}",
        ] {
            let text = if below.starts_with('{') {
                format!("delegation: {below}\n")
            } else {
                format!("delegation:\n  {below}\n")
            };
            assert!(!is_taken(&text), "the program takes {below}");
            assert!(!validator.is_valid(&json_of(&text).unwrap()), "the schema takes {below}");
        }
        for text in ["delegation: 5\n", "other: 5\n", "[a]\n"] {
            assert!(!is_taken(text) && !validator.is_valid(&json_of(text).unwrap()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_the_program_takes_the_schema_takes(text in any_config()) {
            if is_taken(&text) {
                prop_assert!(validator().is_valid(&json_of(&text).unwrap()), "{}", text);
            }
        }
    }
}
