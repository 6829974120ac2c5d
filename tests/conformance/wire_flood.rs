//! Floods: a consumer that reads nothing gets the result, and the parent's memory stays flat.

use delegate_runtime::config::Settings;
use delegate_runtime::{Isolation, Status, Task};

use crate::agents::Noisy;
use crate::alone::{alone, peak};
use crate::support::{rig, run};
use crate::wire::garblers;

#[test]
fn rb_35_a_flood_nobody_reads_delivers_its_result_and_memory_stays_flat() {
    alone("wire_flood::inner_flood");
}

#[test]
#[ignore = "run by rb_35_a_flood_nobody_reads_..., in a process of its own"]
fn inner_flood() {
    let rig = garblers("goal", Settings::default());
    // Warm: one small run, so that what is there anyway does not count.
    assert!(rig.delegator.batch([Task::new("garbler", "well")]).run().unwrap().all_completed());
    let before = peak();
    let run = rig.delegator.batch([Task::new("garbler", "flood 150000")]).start().unwrap();
    let outcome = run.finish().results().next().unwrap();
    assert_eq!(outcome.status, Status::Completed, "{:?}", *outcome);
    assert_eq!(outcome.summary.as_deref(), Some("after the flood"));
    // The queue to the disk (16 MiB of lines) is the largest thing that may fill.
    let grown = peak() - before;
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn rb_35_a_consumer_that_stands_still_is_not_overrun() {
    alone("wire_flood::inner_standstill");
}

#[test]
#[ignore = "run by rb_35_a_consumer_that_stands_still_..., in a process of its own"]
fn inner_standstill() {
    let rig = garblers("goal", Settings::default());
    assert!(rig.delegator.batch([Task::new("garbler", "well")]).run().unwrap().all_completed());
    let before = peak();
    let mut run = rig.delegator.batch([Task::new("garbler", "flood 100000")]).start().unwrap();
    // It reads one event, and then nothing until the child has ended by itself (its file says so).
    let child = run.events().next().unwrap().child();
    let folder = rig.state.path().join("runs").join(run.id().to_string()).join("0");
    crate::support::wait_for("the end of the flood", || {
        let text = std::fs::read_to_string(folder.join("events.jsonl")).ok()?;
        text.contains("subagent.complete").then_some(())
    });
    let grown = peak() - before;
    let texts: u64 = run.events().filter(|event| event.name() == "subagent.text").count() as u64;
    assert!(texts > 0, "{child} said nothing");
    // This test reads the whole file over and over, which is in the number.
    assert!(grown < 160 * 1024, "{grown} KiB");
    assert_eq!(run.finish().statuses(), [Status::Completed]);
}

#[test]
fn rb_38_noise_on_descriptors_1_and_2_is_kept_apart_and_does_no_harm() {
    const BYTES: usize = 20 << 20;
    let rig = rig(Isolation::Process);
    let (outcomes, _) = run(&rig, [Task::of::<Noisy>("noise", BYTES)]);
    let outcome = &outcomes[0];
    assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some("quiet")));
    assert_eq!(outcome.notes, Vec::<String>::new());
    for log in ["stdout", "stderr"] {
        let kept = std::fs::metadata(outcome.logs.as_ref().unwrap().join(log)).unwrap().len();
        assert!(kept > 0, "{log} is empty");
    }
}
