//! The order in which a call is checked (contract 9.4): parent, action, pause, depth, credentials, tasks, schemas,
//! images, then what is built. Each call here is wrong in two ways, and the earlier one is told. And the actions on
//! running children, which are carried out at once and start nothing.

use delegate_protocol::TaskSpec;
use delegate_runtime::config::Settings;
use delegate_runtime::plan::{Addition, ChildBuilder, Parent};
use delegate_runtime::{Event, Isolation, Status, Value, blocking};

use crate::agents::{End, Op, script};
use crate::support::{BOTH, as_asked};

/// What can be wrong, in the order in which it is told, with what the refusal says.
const FAULTS: [(Fault, &str); 9] = [
    (Fault::NoParent, "parent agent"),
    (Fault::Action, "there is no action `explode`"),
    (Fault::Paused, "paused"),
    (Fault::Depth, "max_spawn_depth"),
    (Fault::Credentials, "no-such-provider"),
    (Fault::Task, "it has no goal"),
    (Fault::Schema, "output_schema is malformed"),
    (Fault::Images, "an image must be text"),
    (Fault::Build, "its session cannot be opened"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    NoParent,
    Action,
    Paused,
    Depth,
    Credentials,
    Task,
    Schema,
    Images,
    Build,
}

#[derive(Debug)]
struct Broken;

impl ChildBuilder for Broken {
    fn build(&self, _child: &TaskSpec) -> Result<Addition, String> {
        Err("its session cannot be opened".to_owned())
    }

    fn undo(&self, _child: &TaskSpec) {}
}

/// A call of two tasks that is wrong in these ways: what it is refused with.
fn refused(isolation: Isolation, faults: &[Fault]) -> String {
    let has = |fault| faults.contains(&fault);
    let state = tempfile::tempdir().unwrap();
    let provider = has(Fault::Credentials).then(|| "no-such-provider".to_owned());
    let settings = Settings { provider, ..Settings::default() };
    let mut builder = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(settings)
        .state_dir(state.path());
    if has(Fault::Build) {
        builder = builder.child_builder(Broken);
    }
    let delegator = builder.build().unwrap();
    // What is told later stands in the first task, what is told earlier in the second.
    let mut first = serde_json::json!({"goal": "look at the first file"});
    let mut second = serde_json::json!({"goal": "look at the second file"});
    if has(Fault::Images) {
        first["images"] = serde_json::json!([5]);
    }
    if has(Fault::Schema) {
        let at = if has(Fault::Images) { &mut second } else { &mut first };
        at["output_schema"] = "no schema".into();
    }
    if has(Fault::Task) {
        second = serde_json::json!({"context": "no goal"});
    }
    let mut call = serde_json::json!({"tasks": [first, second]});
    if has(Fault::Action) {
        call["action"] = "explode".into();
    }
    let mut batch = delegator.call(serde_json::from_value(call).unwrap(), "scripted");
    if !has(Fault::NoParent) {
        let depth = if has(Fault::Depth) { 7 } else { 0 };
        batch = batch.parent(Parent { depth, ..Parent::default() });
    }
    if has(Fault::Paused) {
        delegator.pause();
    }
    let said = batch.start().unwrap_err().to_string();
    assert_eq!(delegator.store().runs(1).unwrap(), [], "nothing is on record");
    said
}

#[test]
fn a_call_that_is_wrong_in_two_ways_hears_of_the_earlier_one() {
    for isolation in BOTH {
        for (at, (earlier, told)) in FAULTS.iter().enumerate() {
            // Alone, so that the pairs below show the order and not a fault that is never told.
            let said = refused(isolation, &[*earlier]);
            assert!(said.contains(told), "{isolation:?} {earlier:?}: {said}");
            for (later, not_told) in &FAULTS[at + 1..] {
                let said = refused(isolation, &[*earlier, *later]);
                assert!(said.contains(told), "{isolation:?} {earlier:?} {later:?}: {said}");
                assert!(!said.contains(not_told), "{isolation:?} {earlier:?} {later:?}: {said}");
            }
        }
    }
}

/// A plan that is only looked at is no start.
#[test]
fn in_a_pause_a_call_can_be_looked_at() {
    let state = tempfile::tempdir().unwrap();
    let delegator = blocking::Delegator::builder().state_dir(state.path()).build().unwrap();
    delegator.pause();
    let call = serde_json::from_str(r#"{"goal": "look at the file"}"#).unwrap();
    let mut batch = delegator.call(call, "command").parent(Parent::default());
    assert!(batch.plan().is_ok());
    assert!(batch.start().unwrap_err().to_string().contains("paused"));
}

fn value(json: &serde_json::Value) -> Value {
    serde_json::from_value(json.clone()).unwrap()
}

#[test]
fn the_actions_of_a_call_list_steer_and_stop_also_in_a_pause() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let d = blocking::Delegator::builder()
            .isolation(isolation)
            .settings(as_asked(Settings::default()))
            .state_dir(state.path())
            .build()
            .unwrap();
        let act = |session: &str, call: serde_json::Value| {
            let done = d.act(&value(&call), session)?;
            Some(
                done.map(|answer| serde_json::to_value(answer).unwrap())
                    .map_err(|e| e.code().to_owned()),
            )
        };
        let ops = [Op::Text("up".to_owned()), Op::AwaitSteer, Op::AwaitInterrupt];
        let task = script(ops, End::Interrupted).task("t");
        let mut run = d.batch([task]).session("chat-1").start().unwrap();
        let child = run.events().find(|event| matches!(event, Event::Text { .. })).unwrap().child();
        d.pause();
        let list = || serde_json::json!({"action": "list"});
        let listed = act("chat-1", list()).unwrap().unwrap();
        assert_eq!(listed["subagents"][0]["child"], child.to_string(), "{isolation:?} {listed}");
        assert_eq!(listed["subagents"][0]["goal"], "t");
        // Another conversation sees nobody, and reaches nobody.
        let nobody = serde_json::json!({"subagents": [], "waiting": 0});
        assert_eq!(act("chat-2", list()).unwrap().unwrap(), nobody);
        let stop = |id: &str| serde_json::json!({"action": "stop", "subagent_id": id});
        for id in [child.to_string(), run.id().to_string(), "latest".to_owned(), "x".to_owned()] {
            let refused = act("chat-2", stop(&id)).unwrap().unwrap_err();
            assert_eq!(refused, "not_found", "{isolation:?} {id}");
        }
        // A whole run is not a model's to stop, its own neither.
        assert_eq!(act("chat-1", stop("latest")).unwrap().unwrap_err(), "not_found");
        let steer = |message: serde_json::Value| {
            let id = child.to_string();
            serde_json::json!({"action": "steer", "subagent_id": id, "message": message})
        };
        for blank in [serde_json::json!(" "), serde_json::Value::Null, serde_json::json!(5)] {
            assert_eq!(act("chat-1", steer(blank)).unwrap().unwrap_err(), "bad_request");
        }
        let without = serde_json::json!({"action": "stop"});
        assert_eq!(act("chat-1", without).unwrap().unwrap_err(), "bad_request");
        let accepted = act("chat-1", steer("turn left".into())).unwrap().unwrap();
        assert_eq!(accepted["status"], "accepted", "{isolation:?}");
        let heard = run.events().find(|event| matches!(event, Event::Text { .. }));
        assert!(matches!(heard, Some(Event::Text { text, .. }) if text == "turn left"));
        assert_eq!(act("chat-1", stop(&child.to_string())).unwrap().unwrap()["status"], "stopping");
        assert_eq!(run.finish().statuses(), [Status::Interrupted], "{isolation:?}");
        // What is no action on a child is not done here.
        for call in [serde_json::json!({"goal": "g"}), serde_json::json!({"action": "explode"})] {
            assert_eq!(act("chat-1", call), None);
        }
    }
}
