//! The size matrix of results, the border between entry and file, and children that leave at once.

use std::io::Read;
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Isolation, Outcome, Status, Task};
use sha2::{Digest, Sha256};

use crate::agents::{Sized, Swallow, pieces};
use crate::support::{BOTH, Rig, rig, rig_with, run};
use crate::wire::{garblers, impatient};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What an entry holds; one byte more goes to a file.
const BORDER: u64 = 16 * MIB;

fn hex(hash: impl AsRef<[u8]>) -> String {
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asserts that the whole answer of `bytes` bytes, made of `expected`, is in the outcome.
fn check(outcome: &Outcome, bytes: u64, expected: impl Iterator<Item = String>) {
    let shown = format!("{bytes} bytes: {:?} {:?}", outcome.status, outcome.error);
    assert_eq!(outcome.status, Status::Completed, "{shown}");
    let mut hash = Sha256::new();
    expected.for_each(|piece| hash.update(piece));
    let expected = hex(hash.finalize());
    let summary = outcome.summary.as_ref().unwrap();
    if bytes <= BORDER {
        assert_eq!(summary.len() as u64, bytes, "{shown}");
        assert_eq!(hex(Sha256::digest(summary)), expected, "{shown}");
        assert_eq!((&outcome.result_path, outcome.result_bytes), (&None, None), "{shown}");
        return;
    }
    assert_eq!(outcome.result_bytes, Some(bytes), "{shown}");
    assert_eq!(outcome.result_sha256.as_ref(), Some(&expected), "{shown}");
    let mut file = std::fs::File::open(outcome.result_path.as_ref().unwrap()).unwrap();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut head = Vec::new();
    loop {
        let count = file.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        let room = summary.len().saturating_sub(head.len());
        head.extend_from_slice(&buffer[..count.min(room)]);
    }
    assert_eq!(hex(hash.finalize()), expected, "{shown}: the file");
    assert_eq!(summary.len() as u64, BORDER, "{shown}");
    assert!(head == summary.as_bytes(), "{shown}: the summary is the head of the file");
}

fn sizes(rig: &Rig, sizes: &[u64]) {
    let tasks = sizes.iter().map(|bytes| Task::of::<Sized>("sized", *bytes));
    let (outcomes, _) = run(rig, tasks);
    for (bytes, outcome) in sizes.iter().zip(&outcomes) {
        check(outcome, *bytes, pieces(*bytes));
    }
}

#[test]
fn rb_01_small_and_middle_results_arrive_with_a_waiter_on_the_end_only() {
    for isolation in BOTH {
        let all = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 208 * KIB, 219_262, 256 * KIB, MIB];
        sizes(&rig(isolation), &all);
        sizes(&rig(isolation), &[256 * KIB + 1, MIB - 1, MIB + 1, 4 * MIB]);
    }
}

#[test]
fn rb_01_results_around_the_border_of_the_entry_arrive() {
    for isolation in BOTH {
        sizes(&rig(isolation), &[BORDER - 1, BORDER, BORDER + 1]);
    }
}

#[test]
fn rb_01_64_mib_arrive() {
    for isolation in BOTH {
        sizes(&rig(isolation), &[64 * MIB]);
    }
}

#[test]
fn rb_01_512_mib_arrive() {
    sizes(&rig(Isolation::Process), &[512 * MIB]);
}

#[test]
fn rb_02_nothing_is_lost_of_children_that_leave_right_after_their_last_byte() {
    let sizes = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 208 * KIB, 219_262, MIB, 4 * MIB];
    let settings = Settings { max_concurrent_children: 4, ..impatient() };
    let goals: Vec<u64> = sizes.iter().copied().cycle().take(60).chain([64 * MIB]).collect();
    let tasks = goals.iter().map(|bytes| Task::new("garbler", format!("result {bytes}")));
    let rig = garblers("goal", settings);
    let (outcomes, report) = run(&rig, tasks);
    for (bytes, outcome) in goals.iter().zip(&outcomes) {
        let piece = "r".repeat(usize::try_from(*bytes).unwrap());
        check(outcome, *bytes, std::iter::once(piece));
        assert_eq!(outcome.notes, Vec::<String>::new(), "{bytes}");
    }
    assert!(report.verified_empty());
}

#[test]
fn rb_61_an_exit_that_is_seen_before_the_line_is_drained_is_a_success() {
    // The child has gone with 64 MiB in flight through a buffer of a few hundred KiB: its exit comes
    // while parts of the answer are still to be read, and a second child keeps the loop busy.
    for _ in 0..3 {
        let tasks = [
            Task::new("garbler", "result 16777217"),
            Task::new("garbler", "flood 20000"),
            Task::new("garbler", "result 200000"),
        ];
        let (outcomes, _) = run(&garblers("goal", impatient()), tasks);
        for outcome in outcomes {
            assert_eq!(outcome.status, Status::Completed, "{:?}", *outcome);
        }
    }
}

#[test]
fn an_answer_over_max_result_bytes_fails_and_names_both_numbers() {
    for isolation in BOTH {
        let settings = Settings { max_result_bytes: MIB, ..Settings::default() };
        let tasks = [MIB, MIB + 1].map(|bytes| Task::of::<Sized>("sized", bytes));
        let (outcomes, _) = run(&rig_with(isolation, settings), tasks);
        check(&outcomes[0], MIB, pieces(MIB));
        let shown = format!("{isolation:?} {:?}", *outcomes[1]);
        assert_eq!(outcomes[1].status, Status::Failed, "{shown}");
        let error = outcomes[1].error.as_ref().unwrap();
        assert!(error.contains("1048577") && error.contains("1048576"), "{shown}");
        assert_eq!(outcomes[1].result_path, None, "{shown}");
    }
}

#[test]
fn a_worker_that_sends_more_than_max_result_bytes_fails_and_leaves_no_file() {
    // A worker of ours stops itself; one of another make does not.
    let settings = Settings { max_result_bytes: 20 * MIB, ..impatient() };
    let rig = garblers("goal", settings);
    let (outcomes, _) = run(&rig, [Task::new("garbler", format!("result {}", 24 * MIB))]);
    assert_eq!(outcomes[0].status, Status::Failed, "{:?}", outcomes[0].error);
    assert!(outcomes[0].error.as_ref().unwrap().contains("max_result_bytes"));
    assert_eq!(outcomes[0].result_path, None);
    assert!(!outcomes[0].logs.as_ref().unwrap().join("result").exists());
}

#[test]
fn rb_07_64_mib_go_down_while_64_mib_come_up() {
    // A worker gets its spec whole before it answers, so full duplex is between children: large
    // specs go down on some lines while large answers come up on others, on one loop.
    for isolation in BOTH {
        let large = |letter: char| letter.to_string().repeat(64 << 20);
        let down = Task::of::<Swallow>("swallow", large('d'));
        let tasks = [down.clone(), Task::of::<Sized>("sized", 64 * MIB), down];
        let rig = rig(isolation);
        let (outcomes, _) = run(&rig, tasks.map(|t| t.timeout(Duration::from_secs(100))));
        check(&outcomes[0], 64 * MIB, std::iter::once(large('d')));
        check(&outcomes[1], 64 * MIB, pieces(64 * MIB));
        check(&outcomes[2], 64 * MIB, std::iter::once(large('d')));
    }
}

#[test]
fn rb_07_a_program_echoes_a_large_goal_while_it_is_still_being_written() {
    for isolation in BOTH {
        let goal = format!("{}.", "g".repeat(8 << 20));
        let rig = rig(isolation);
        let (outcomes, _) = run(&rig, [crate::support::command(&goal, ["cat"])]);
        check(&outcomes[0], goal.len() as u64, std::iter::once(goal));
    }
}
