//! Deadlines: whom they end, when they begin, and what is kept.

use std::fs;
use std::path::Path;
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Event, Isolation, Status, Task};

use crate::program::{TREE, TREE_SIZE, pause, wait_gone};
use crate::step::{Step, Stepper};
use crate::support::{BOTH, Identity, command, helper, rig, rig_with, run, wait_for};

const SECOND: Duration = Duration::from_secs(1);

fn hasty() -> Settings {
    let grace = Duration::from_millis(300);
    Settings { interrupt_grace: grace, terminate_grace: grace, ..Settings::default() }
}

/// Identities that a tree told so far.
fn told(text: &str) -> Vec<Identity> {
    let pid = |line: &str| line.strip_prefix("tree ")?.split(' ').nth(1)?.parse().ok();
    text.lines().filter_map(pid).filter_map(Identity::of).collect()
}

#[test]
fn rb_17_a_kill_in_the_middle_of_heavy_output_ends_at_once() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let program = helper("chatty");
        let noisy = command("noise", [program.as_str(), "bytes", "100000000000"]);
        let mut batch = rig.delegator.batch([noisy]).start().unwrap();
        let control = batch.control();
        for event in batch.events() {
            if matches!(event, Event::Text { .. }) {
                control.kill();
            }
        }
        let report = batch.finish();
        let outcome = report.results().next().unwrap();
        assert_eq!(outcome.status, Status::Interrupted, "{isolation:?} {outcome:?}");
        // A thread that is slow to return on a busy machine may be called abandoned meanwhile.
        if isolation == Isolation::Process {
            assert!(report.verified_empty(), "{:?}", report.warnings());
        }
    }
}

/// The worker's own standard output is full, not a program's.
#[test]
fn rb_17_a_worker_that_is_killed_while_it_writes_100_mb_to_stdout() {
    let rig = rig(Isolation::Process);
    let tasks = [Task::of::<Stepper>("noise", Step::Noise(2 << 30))];
    let mut batch = rig.delegator.batch(tasks).start().unwrap();
    let control = batch.control();
    let logs = wait_for("the first noise", || {
        let folder = rig.state.path().join("runs").join(batch.id().to_string());
        let file = find(&folder, "stdout")?;
        (fs::metadata(&file).ok()?.len() > 1 << 20).then_some(file)
    });
    control.kill();
    assert_eq!(batch.events().filter(|e| matches!(e, Event::Complete { .. })).count(), 1);
    let report = batch.finish();
    assert_eq!(report.statuses(), [Status::Interrupted], "{logs:?}");
    assert!(report.verified_empty());
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|own| own == name) {
            return Some(path);
        }
        if let Some(found) = find(&path, name) {
            return Some(found);
        }
    }
    None
}

#[test]
fn rb_20_a_timeout_ends_the_whole_tree() {
    for isolation in BOTH {
        let rig = rig_with(isolation, hasty());
        let deep = r#"sh -c 'sh -c "sh -c \"\$DEEP\"; :"; :'; :"#;
        let task = Task::new("command", "tree").timeout(2 * SECOND).params(
            delegate_runtime::Value::from_typed(&serde_json::json!({
                "argv": ["sh", "-c", deep],
                "env": {"DEEP": TREE},
            }))
            .unwrap(),
        );
        let mut batch = rig.delegator.batch([task]).start().unwrap();
        let mut text = String::new();
        let mut members = Vec::new();
        for event in batch.events() {
            if let Event::Text { text: more, .. } = event {
                text.push_str(&more);
                members = told(&text);
            }
        }
        assert_eq!(members.len(), TREE_SIZE, "the whole tree was up: {text}");
        let report = batch.finish();
        assert_eq!(report.statuses(), [Status::Timeout], "{isolation:?}");
        assert!(report.verified_empty(), "{isolation:?} {:?}", report.warnings());
        // The report waited for it: no grace here.
        let alive: Vec<_> = members.iter().filter(|member| member.is_alive()).collect();
        assert!(alive.is_empty(), "{isolation:?} {alive:?}");
    }
}

#[test]
fn rb_21_each_of_ten_children_has_its_whole_limit_in_one_place() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let task = || Task::of::<Stepper>("sleep", Step::Sleep(400)).timeout(3 * SECOND);
        let (outcomes, report) = run(&rig, (0..10).map(|_| task()));
        assert!(report.total_duration() > 3 * SECOND, "longer than one limit");
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed));
    }
}

#[test]
fn rb_23_after_its_verdict_a_process_counts_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let counter = folder.path().join("counter");
    let rig = rig_with(Isolation::Process, hasty());
    let task = Task::of::<Stepper>("count", Step::Count(counter.clone())).timeout(SECOND);
    let (outcomes, report) = run(&rig, [task]);
    let verdict = fs::read_to_string(&counter).unwrap();
    assert_eq!(outcomes[0].status, Status::Timeout);
    assert!(matches!(outcomes[0].cause, Some(Cause::Signaled { .. })), "{:?}", outcomes[0].cause);
    assert!(report.verified_empty());
    // Not a wait for a fact: the time in which it would have counted on.
    pause(Duration::from_millis(300));
    assert_eq!(fs::read_to_string(&counter).unwrap(), verdict);
}

#[test]
fn rb_23_a_thread_that_does_not_return_is_called_abandoned_and_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    let counter = folder.path().join("counter");
    let rig = rig_with(Isolation::Thread, hasty());
    let task = Task::of::<Stepper>("count", Step::Count(counter.clone())).timeout(SECOND);
    let (outcomes, report) = run(&rig, [task]);
    let verdict: u64 = fs::read_to_string(&counter).unwrap().parse().unwrap_or(0);
    let outcome = &outcomes[0];
    assert_eq!((outcome.status, &outcome.cause), (Status::Timeout, &Some(Cause::Abandoned)));
    assert!(outcome.error.as_ref().unwrap().contains("abandoned"), "{outcome:?}");
    assert!(!report.verified_empty());
    assert_eq!(report.left_running().len(), 1, "{:?}", report.left_running());
    wait_for("it counts on, as was said", || {
        let now: u64 = fs::read_to_string(&counter).ok()?.parse().ok()?;
        (now > verdict).then_some(())
    });
    fs::write(counter.with_extension("stop"), "").unwrap();
}

#[test]
fn rb_26_a_worker_that_never_greets_has_a_limit_and_a_cause_of_its_own() {
    let script = "echo this is why it hangs >&2; exec sleep 600";
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let settings = Settings { worker_command: Some(command), start_timeout: SECOND, ..hasty() };
    let rig = rig_with(Isolation::Process, settings);
    let (outcomes, report) = run(&rig, [Task::new("any", "goal").timeout(60 * SECOND)]);
    let outcome = &outcomes[0];
    assert_eq!((outcome.status, &outcome.cause), (Status::Error, &Some(Cause::StartTimeout)));
    let stderr = outcome.stderr_tail.as_deref();
    assert_eq!(stderr, Some("this is why it hangs\n"), "{outcome:?}");
    assert!(outcome.error.as_ref().unwrap().contains("start limit of 1 s"), "{outcome:?}");
    assert!(report.verified_empty());
}

#[test]
fn rb_68_a_timeout_keeps_the_last_text_and_the_results_of_siblings() {
    for isolation in BOTH {
        let rig = rig_with(isolation, hasty());
        let tasks = [
            Task::of::<Stepper>("first", Step::Answer("first".to_owned())),
            Task::of::<Stepper>("hangs", Step::Wait).timeout(SECOND),
            Task::of::<Stepper>("third", Step::Answer("third".to_owned())),
        ];
        let (outcomes, report) = run(&rig, tasks);
        let summaries: Vec<_> = outcomes.iter().map(|o| o.summary.as_deref()).collect();
        assert_eq!(summaries, [Some("first"), Some("waiting"), Some("third")], "{isolation:?}");
        let statuses = [Status::Completed, Status::Timeout, Status::Completed];
        assert_eq!(report.statuses(), statuses);
        let hung = &outcomes[1];
        assert_eq!(hung.timeout_seconds, Some(1.0));
        assert!(hung.timed_out_after_seconds.unwrap() >= 1.0, "{hung:?}");
        assert!(hung.last_event_age.is_some() && hung.timeout_phase.is_some(), "{hung:?}");
    }
}

/// The tree of a killed worker is not left to chance: the members are gone when the report is there.
#[test]
fn rb_20_a_stop_of_one_child_ends_its_tree_and_no_other() {
    let rig = rig_with(Isolation::Process, hasty());
    let trees = (0..2).map(|_| command("tree", ["sh", "-c", TREE]));
    let mut batch = rig.delegator.batch(trees.collect::<Vec<_>>()).start().unwrap();
    let control = batch.control();
    let mut texts = [String::new(), String::new()];
    let (mut first, mut stopped) = (Vec::new(), None);
    for event in batch.events() {
        match event {
            Event::Start { child, .. } if child.task_index() == 0 => stopped = Some(child),
            Event::Text { child, text } => texts[child.task_index() as usize].push_str(&text),
            Event::Complete { child, .. } if child.task_index() == 0 => {
                assert!(first.iter().all(|member: &Identity| !member.is_alive()));
                let second = told(&texts[1]);
                assert!(second.iter().all(|member| member.is_alive()), "the other lives on");
                control.interrupt();
            }
            _ => {}
        }
        let up = |text: &String| told(text).len() == TREE_SIZE;
        if first.is_empty() && texts.iter().all(up) {
            first = told(&texts[0]);
            control.stop(stopped.expect("it has started"));
        }
    }
    let second = told(&texts[1]);
    let _report = batch.finish();
    wait_gone(&second);
}
