//! Kill matrix, target child: one outcome with the right status and cause, siblings unaffected,
//! nothing left.

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::owner_kill::stop_and_let_send;
use crate::program::{
    Bystanders, OwnerProgram, assert_one_complete_each, children_of, image, open_gate, raw, state,
    step, stop_before_exec, task, tree, wait_gone,
};
use crate::step::Step;
use crate::support::{Identity, helper, wait_for};

const KILLED: &str = "signal 9 (SIGKILL) ended it";

fn kill(process: Identity) {
    assert!(process.is_alive());
    kill_process(raw(process), Signal::KILL).unwrap();
}

fn pidfd(pid: u32) -> rustix::io::Result<std::os::fd::OwnedFd> {
    pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty())
}

/// The report of a batch whose task 1 is a healthy sibling that answers `fine`.
fn one_outcome_each(owner: &mut OwnerProgram) -> Value {
    let report = owner.report();
    let results = report["results"].as_array().unwrap();
    assert_one_complete_each(owner.seen(), u32::try_from(results.len()).unwrap());
    assert_eq!(report["verified_empty"], true, "{report}");
    assert_eq!(report["left_running"], json!([]));
    assert_eq!(results[1]["status"], "completed", "the sibling: {}", results[1]);
    assert_eq!(results[1]["summary"], "fine");
    results[0].clone()
}

fn assert_killed(outcome: &Value) {
    assert_eq!(outcome["status"], "error", "{outcome}");
    assert_eq!(outcome["exit_reason"], "error", "{outcome}");
    let cause = json!({"kind": "signaled", "signal": 9, "core_dumped": false});
    assert_eq!(outcome["cause"], cause, "{outcome}");
    assert!(outcome["error"].as_str().unwrap().contains(KILLED), "{outcome}");
}

fn fine() -> Value {
    step(&Step::Answer("fine".to_owned()))
}

/// Many children one after the other; one of them stands still between its birth and its program, and
/// is killed there.
#[test]
fn before_it_executes() {
    let bystanders = Bystanders::start();
    let mut tasks = vec![task("garbler", "hang", Value::Null)];
    tasks.extend(vec![task("garbler", "well", Value::Null); 400]);
    let settings = json!({
        "worker_command": [helper("garbler"), "goal"], "places": 2, "grace_seconds": 1,
    });
    let mut owner = OwnerProgram::start(&tasks, &settings);
    owner.started();
    let supervisor = owner.supervisor();
    let unborn = stop_before_exec(supervisor);
    assert_eq!(image(unborn.pid), image(supervisor.pid), "nothing was executed");
    kill(unborn);
    wait_gone(&[unborn]);
    // The supervisor slept until then. Now it is told, and serves the next ones.
    let task = owner.expect("the killed one", |line| {
        let end = line.get("end").filter(|end| end["status"] != "completed")?;
        assert!(end["error"].as_str().unwrap().contains(KILLED), "{line}");
        Some(crate::program::index(line))
    });
    owner.expect("one that ran after it", |line| {
        (line["event"] == "subagent.complete" && line["end"]["summary"] == "well").then_some(())
    });
    owner.tell("interrupt");
    let report = owner.report();
    let results = report["results"].as_array().unwrap();
    assert_killed(&results[task as usize]);
    assert_eq!(results[task as usize]["pid"], unborn.pid);
    assert_one_complete_each(owner.seen(), u32::try_from(results.len()).unwrap());
    let killed = |outcome: &&Value| outcome["cause"]["signal"] == 9;
    assert_eq!(results[1..].iter().filter(killed).count(), 1, "nobody else");
    assert_eq!(report["verified_empty"], true, "{}", report["warnings"]);
    bystanders.assert_untouched();
}

/// Every child of the supervisor is killed as soon as it can be seen, in whatever state that is.
#[test]
fn as_soon_as_it_exists() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    // The first one holds the others back until its supervisor is known.
    let mut tasks = vec![step(&Step::Gate { open: gate.clone(), bytes: 1 })];
    tasks.extend(vec![step(&Step::Sleep(50)); 39]);
    let settings = json!({"places": 1, "start_timeout_seconds": 20});
    let mut owner = OwnerProgram::start(&tasks, &settings);
    owner.started();
    let supervisor = owner.supervisor();
    open_gate(&gate);
    let report = loop {
        for pid in children_of(supervisor.pid) {
            if let Ok(handle) = pidfd(pid) {
                pidfd_send_signal(handle, Signal::KILL).ok();
            }
        }
        if let Some(report) = owner.pending().iter().find_map(|line| line.get("report").cloned()) {
            break report;
        }
    };
    assert_one_complete_each(owner.seen(), 40);
    assert_eq!(report["verified_empty"], true, "{report}");
    let mut killed = 0;
    for outcome in report["results"].as_array().unwrap() {
        let cause = outcome["cause"]["kind"].as_str().unwrap();
        match outcome["status"].as_str().unwrap() {
            "error" => {
                assert!(cause == "signaled" || cause == "start_failed", "{outcome}");
                killed += 1;
            }
            // Killed between its result and its exit.
            "completed" if cause == "signaled" => {
                let notes = outcome["notes"].to_string();
                assert!(notes.contains("after its result signal 9"), "{outcome}");
            }
            status => assert_eq!((status, cause), ("completed", "exited"), "{outcome}"),
        }
    }
    assert!(killed > 0, "none was met alive");
    bystanders.assert_untouched();
}

/// The first worker never greets; its file tells its pid. The next one is a right one.
#[test]
fn before_it_greets() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let script = r#"mkdir "$0" 2>/dev/null || exec "$1" well
        echo $$ > "$0/new"; mv "$0/new" "$0/pid"; exec sleep 600"#;
    let command = json!(["sh", "-c", script, first, helper("garbler")]);
    // One place, so that task 0 is the one that does not greet.
    let settings = json!({"worker_command": command, "places": 1});
    let mut owner = OwnerProgram::start(&[fine(), fine()], &settings);
    let worker = wait_for("the silent worker", || {
        let pid = std::fs::read_to_string(first.join("pid")).ok()?;
        Identity::of(pid.trim().parse().ok()?)
    });
    wait_for("it has executed its second program", || {
        image(worker.pid)?.ends_with("sleep").then_some(())
    });
    assert!(
        !owner.has_seen(&["its process"])
            && owner.pending().iter().all(|line| { line["event"] != "subagent.start" })
    );
    kill(worker);
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 2);
    assert_killed(&report["results"][0]);
    assert_eq!(report["results"][1]["summary"], "well", "the sibling");
    assert_eq!(report["verified_empty"], true);
    bystanders.assert_untouched();
}

#[test]
fn while_it_computes() {
    let bystanders = Bystanders::start();
    let mut owner = OwnerProgram::start(&[step(&Step::Wait), fine()], &json!({}));
    let worker = worker_of(&mut owner, 0);
    owner.text("waiting");
    kill(worker);
    assert_killed(&one_outcome_each(&mut owner));
    bystanders.assert_untouched();
}

/// The program tree of its tool goes with it.
#[test]
fn while_its_tool_runs() {
    let bystanders = Bystanders::start();
    let settings = json!({"grace_seconds": 1, "places": 1});
    let mut owner = OwnerProgram::start(&[tree(), fine()], &settings);
    let members = owner.tree(1);
    let worker = members.iter().find(|member| {
        let parent = crate::program::stat(member.pid).unwrap()[1].clone();
        let name = std::fs::read_to_string(format!("/proc/{}/cmdline", member.pid)).unwrap();
        parent == members.last().unwrap().pid.to_string() && name.contains("delegate-worker")
    });
    kill(*worker.expect("the worker"));
    let outcome = one_outcome_each(&mut owner);
    assert_killed(&outcome);
    // The report has verified it: no grace here.
    let left: Vec<_> = members.iter().filter(|member| member.is_alive()).collect();
    assert_eq!(left, [members.last().unwrap()], "the supervisor alone");
    bystanders.assert_untouched();
}

/// Half of the answer is in the pipe when it is killed: no half answer, and the signal is the cause.
#[test]
fn while_it_sends_64_mib() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let wait = Step::Gate { open: gate.clone(), bytes: 64 << 20 };
    let mut owner = OwnerProgram::start(&[step(&wait), fine()], &json!({}));
    let worker = worker_of(&mut owner, 0);
    owner.text("gate");
    stop_and_let_send(&owner, worker, &gate);
    kill(worker);
    wait_gone(&[worker]);
    owner.signal(Signal::CONT);
    let outcome = one_outcome_each(&mut owner);
    assert_killed(&outcome);
    assert_eq!(outcome["summary"], Value::Null, "{outcome}");
    bystanders.assert_untouched();
}

/// The result counts; how the process ended is the other fact.
#[test]
fn after_its_terminal_frame_and_before_its_exit() {
    let bystanders = Bystanders::start();
    let command = json!([helper("garbler"), "goal"]);
    let settings = json!({"worker_command": command});
    let stays = task("garbler", "result-then-stay", Value::Null);
    let sibling = task("garbler", "hang", Value::Null);
    let mut owner = OwnerProgram::start(&[stays, sibling], &settings);
    let worker = worker_of(&mut owner, 0);
    owner.wait_seen(&["said its result", "task=0"]);
    assert!(!owner.has_seen(&["its process"]), "none has ended");
    kill(worker);
    let told = owner.completed(0);
    assert_eq!(
        (&told["status"], &told["summary"]),
        (&json!("completed"), &json!("and still here"))
    );
    owner.tell("kill");
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 2);
    assert_finished_then_killed(&report["results"][0]);
    assert_eq!(report["results"][1]["status"], "interrupted", "it ran on until it was killed");
    assert_eq!(report["verified_empty"], true);
    bystanders.assert_untouched();
}

fn assert_finished_then_killed(outcome: &Value) {
    assert_eq!(outcome["status"], "completed", "{outcome}");
    assert_eq!(outcome["summary"], "and still here", "{outcome}");
    let cause = json!({"kind": "signaled", "signal": 9, "core_dumped": false});
    assert_eq!(outcome["cause"], cause, "{outcome}");
    let notes = outcome["notes"].to_string();
    assert!(notes.contains("after its result signal 9 (SIGKILL) ended it"), "{outcome}");
    assert!(!notes.contains("it stayed"), "not we have ended it: {outcome}");
}

/// The owner stands still meanwhile: it meets the end of the process together with the unread result.
#[test]
fn after_its_terminal_frame_which_nobody_has_read() {
    let bystanders = Bystanders::start();
    let settings = json!({"worker_command": [helper("garbler"), "goal"]});
    let stays = task("garbler", "stop-result-stay", Value::Null);
    let mut owner = OwnerProgram::start(&[stays], &settings);
    let worker = worker_of(&mut owner, 0);
    wait_for("it has its task", || (worker.state()? == 'T').then_some(()));
    owner.signal(Signal::STOP);
    wait_for("the owner stands still", || (state(owner.pid())? == 'T').then_some(()));
    kill_process(raw(worker), Signal::CONT).unwrap();
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", worker.pid)).unwrap();
    wait_for("its result is out", || (name().trim() == "stays").then_some(()));
    assert!(!owner.has_seen(&["said its result"]));
    kill(worker);
    wait_gone(&[worker]);
    owner.signal(Signal::CONT);
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 1);
    assert_finished_then_killed(&report["results"][0]);
    assert_eq!(report["verified_empty"], true);
    bystanders.assert_untouched();
}

/// A crash of its own after its result.
#[test]
fn after_its_terminal_frame_by_a_crash_of_its_own() {
    let bystanders = Bystanders::start();
    let command = json!([helper("garbler"), "goal"]);
    let settings = json!({"worker_command": command});
    let crash = task("garbler", "result-then-crash", Value::Null);
    let well = task("garbler", "well", Value::Null);
    let mut owner = OwnerProgram::start(&[crash, well], &settings);
    let report = owner.report();
    assert_one_complete_each(owner.seen(), 2);
    let outcome = &report["results"][0];
    assert_eq!(outcome["status"], "completed", "{outcome}");
    assert_eq!(outcome["summary"], "right before the crash");
    assert_eq!(outcome["cause"]["kind"], "signaled", "{outcome}");
    assert!(outcome["notes"].to_string().contains("after its result signal 11"), "{outcome}");
    assert_eq!(report["results"][1]["summary"], "well");
    assert_eq!(report["verified_empty"], true);
    bystanders.assert_untouched();
}

#[test]
fn after_its_exit_there_is_nothing_to_kill() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let wait = Step::Gate { open: gate.clone(), bytes: 4 };
    let mut owner = OwnerProgram::start(&[step(&wait), fine()], &json!({}));
    let worker = worker_of(&mut owner, 0);
    let handle = pidfd(worker.pid).unwrap();
    open_gate(&gate);
    assert_eq!(owner.completed(0)["status"], "completed");
    let refused = pidfd_send_signal(handle, Signal::KILL);
    assert_eq!(refused, Err(rustix::io::Errno::SRCH), "it was reaped before its outcome");
    assert_eq!(one_outcome_each(&mut owner)["summary"], "rrrr");
    bystanders.assert_untouched();
}

/// The worker of one task.
fn worker_of(owner: &mut OwnerProgram, task: u32) -> Identity {
    loop {
        let (index, worker) = owner.started();
        if index == task {
            return worker;
        }
    }
}
