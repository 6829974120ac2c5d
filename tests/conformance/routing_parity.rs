//! A route arrives byte by byte the same in both executors, every field of it, and its keys are nowhere
//! else: not in arguments, environment, files or log lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use delegate_protocol::codec;
use delegate_runtime::config::Settings;
use delegate_runtime::plan::Parent;
use delegate_runtime::{Agent, ApiKey, Failure, Routing, Session, Task, Value, blocking};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

use crate::matrix_routing::parent;
use crate::support::{BOTH, as_asked, rig};

/// Answers with what it was given as hashes, and whether a key shows in its process.
pub struct Probe;

/// A hash per field of the route, as it is serialized; the whole; where a key was found.
type Found = (BTreeMap<String, String>, String, Vec<String>);

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn fields(routing: &Routing) -> BTreeMap<String, Json> {
    match serde_json::to_value(routing).unwrap() {
        Json::Object(fields) => fields.into_iter().collect(),
        other => panic!("a route is {other}"),
    }
}

fn has(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

impl Agent for Probe {
    const NAME: &'static str = "probe";
    /// Something that its process does show, to prove that the look would find a key.
    type Params = ();
    type Answer = Found;

    fn run(&mut self, (): (), session: &mut Session) -> Result<Found, Failure> {
        let routing = &session.spec().routing;
        let hashes = fields(routing)
            .into_iter()
            .map(|(name, value)| (name, hash(value.to_string().as_bytes())))
            .collect();
        let mut shown = Vec::new();
        for key in keys(routing) {
            for place in ["/proc/self/cmdline", "/proc/self/environ"] {
                if has(&fs::read(place)?, key.reveal()) {
                    shown.push(place.to_owned());
                }
            }
        }
        Ok((hashes, hash(&codec::to_bytes(routing).unwrap()), shown))
    }
}

/// Every key that a route holds.
fn keys(routing: &Routing) -> Vec<ApiKey> {
    let chain = routing.fallback_model.iter().filter_map(|entry| entry.api_key.clone());
    routing.api_key.iter().cloned().chain(chain).collect()
}

#[test]
fn every_field_of_a_route_is_set_in_this_test() {
    // Who adds a field sets it in `parent`, and so has it compared below.
    let (set, empty) = (fields(&parent().routing), fields(&Routing::default()));
    assert_eq!(set.len(), 22);
    for (name, value) in &set {
        assert_ne!(value, &empty[name], "{name} is not set by matrix_routing::parent");
    }
}

fn probe(parent: &Parent) -> [Found; 2] {
    BOTH.map(|isolation| {
        let rig = rig(isolation);
        let task = Task::of::<Probe>("a goal", ());
        let report = rig.delegator.batch([task]).parent(parent.clone()).run().unwrap();
        report.results().next().unwrap().answer::<Probe>().unwrap()
    })
}

#[test]
fn both_executors_hand_over_the_same_bytes_field_by_field() {
    let [thread, process] = probe(&parent());
    let expected = fields(&parent().routing);
    assert_eq!(thread.0.len(), expected.len());
    for (name, value) in expected {
        let expected = hash(value.to_string().as_bytes());
        assert_eq!(thread.0[&name], expected, "{name} in a thread");
        assert_eq!(process.0[&name], expected, "{name} in a process");
    }
    let whole = hash(&codec::to_bytes(&parent().routing).unwrap());
    assert_eq!((&thread.1, &process.1), (&whole, &whole));
    // What is compared tells two routes apart.
    let mut other = parent();
    other.routing.provider_require_parameters = false;
    let [changed, _] = probe(&other);
    let differ: Vec<&String> = thread
        .0
        .iter()
        .filter(|(name, hash)| changed.0[*name] != **hash)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(differ, ["provider_require_parameters"]);
}

/// Files below a directory that hold a text.
fn files_with(dir: &Path, needle: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with(&path, needle, found);
        } else if fs::read(&path).is_ok_and(|bytes| has(&bytes, needle)) {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn a_key_is_in_no_argument_no_environment_and_no_file() {
    const CANARY: &str = "sk-canary-of-this-test";
    const GOAL: &str = "a goal that is written down";
    let mut from = parent();
    from.routing.api_key = Some(ApiKey::new(CANARY.to_owned()));
    from.routing.fallback_model[0].api_key = Some(ApiKey::new(format!("{CANARY}-2")));
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let delegator = blocking::Delegator::builder()
            .isolation(isolation)
            .settings(as_asked(Settings::default()))
            .state_dir(state.path())
            .build()
            .unwrap();
        let mut batch = delegator.batch([Task::of::<Probe>(GOAL, ())]).parent(from.clone());
        let plan = batch.plan().unwrap();
        for shown in [format!("{plan:?}"), format!("{:?}", plan.explain())] {
            assert!(!shown.contains(CANARY));
        }
        assert!(plan.spec(0).routing.api_key.is_some_and(|key| key.reveal() == CANARY));
        let report = batch.run().unwrap();
        let (_, _, shown) = report.results().next().unwrap().answer::<Probe>().unwrap();
        assert_eq!(shown, [""; 0], "{isolation:?}");
        drop((report, delegator));
        let in_files = |needle| {
            let mut found = Vec::new();
            files_with(state.path(), needle, &mut found);
            found
        };
        assert_eq!(in_files(CANARY), [""; 0], "{isolation:?}");
        assert!(!in_files(GOAL).is_empty(), "the look finds what is written down");
    }
}

#[test]
fn a_look_at_a_process_would_find_a_key() {
    // The same look as the agent's, at something that this process does show.
    let program = std::env::args().next().unwrap();
    assert!(has(&fs::read("/proc/self/cmdline").unwrap(), &program));
    let path = std::env::var("PATH").unwrap();
    assert!(has(&fs::read("/proc/self/environ").unwrap(), &path));
}

#[test]
fn a_spec_that_is_stored_has_no_key_and_the_rest() {
    let [seen, _] = crate::matrix_routing::specs(
        &Settings::default(),
        &parent(),
        &crate::matrix_routing::nobody(),
        &[Task::of::<crate::agents::Spec>("a goal", Value::Null)],
    );
    let stored = serde_json::to_string(&seen[0].without_secrets()).unwrap();
    for secret in ["key-a", "key-f", "blue"] {
        assert!(!stored.contains(secret), "{secret}");
    }
    assert!(stored.contains("model-a") && stored.contains("https://f.example"));
}
