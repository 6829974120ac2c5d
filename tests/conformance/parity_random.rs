//! Parity over random scripts: whatever an agent says and however it ends, both executors show it the
//! same.

use delegate_runtime::Isolation;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::agents::{End, Op, Script};
use crate::parity::compare;
use crate::seen::watch;
use crate::support::rig;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        "[a-zé\\n]{0,12}".prop_map(Op::Text),
        "[a-z]{1,8}".prop_map(Op::Thinking),
        "[a-z]{1,8}".prop_map(Op::Tool),
        (0u64..1000, any::<bool>()).prop_map(|(bytes, ok)| Op::ToolDone(bytes, ok)),
        "[0-9]{1,4}".prop_map(Op::Progress),
        (0u64..1000, 0u64..1000).prop_map(|(input, output)| Op::ApiCall(input, output)),
        "[a-z]{1,8}".prop_map(Op::Model),
        Just(Op::AllowEmpty),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => "[ -~é\\n]{0,40}".prop_map(End::Answer),
        1 => ("[a-z ]{0,20}", prop::option::of("[a-z_]{1,10}"))
            .prop_map(|(message, reason)| End::Fail(message, reason)),
        1 => "[a-z ]{0,20}".prop_map(End::Panic),
        1 => "[a-z ]{0,20}".prop_map(End::MaxIterations),
        1 => Just(End::Interrupted),
    ]
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let one =
        (prop::collection::vec(op(), 0..25), end()).prop_map(|(ops, end)| Script { ops, end });
    prop::collection::vec(one, 8)
}

#[test]
fn random_scripts_are_the_same_in_both_executors() {
    let (thread, process) = (rig(Isolation::Thread), rig(Isolation::Process));
    let config =
        Config { cases: 8, max_shrink_iters: 100, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&scripts(), |scripts| {
        let tasks = || scripts.iter().enumerate().map(|(i, script)| script.task(format!("s {i}")));
        compare(&watch(&thread, tasks()), &watch(&process, tasks())).map_err(TestCaseError::fail)
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}
