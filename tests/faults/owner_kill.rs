//! Kill matrix, target owner: in whatever state its children are and however it ends, nothing of
//! theirs is left, nobody else is touched, and what was announced before can be read.

use delegate_protocol::Outcome;
use delegate_runtime::store::{Reader, RunRecord, Store};
use delegate_runtime::{RunId, Status};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::program::{
    Bystanders, OwnerProgram, assert_alive, image, open_gate, raw, state, step, stop_before_exec,
    task, tree, wait_gone,
};
use crate::step::Step;
use crate::support::{Identity, helper, wait_for};

#[test]
fn c52_however_the_owner_ends_its_trees_are_gone_and_nobody_else() {
    let bystanders = Bystanders::start();
    let ways = ["exit", "abort", "segv", "TERM", "KILL"];
    let owners: Vec<_> = ways.map(|way| (way, OwnerProgram::with_trees(1))).into();
    let mut ended = Vec::new();
    for (way, (mut owner, members)) in owners {
        assert_alive(&members);
        match way {
            "TERM" => owner.signal(Signal::TERM),
            "KILL" => owner.signal(Signal::KILL),
            word => owner.tell(word),
        }
        owner.wait();
        ended.push((way, owner, members));
    }
    for (way, _owner, members) in &ended {
        println!("{way}");
        wait_gone(members);
    }
    bystanders.assert_untouched();
}

#[test]
fn killed_with_some_children_launched_and_others_in_line() {
    let bystanders = Bystanders::start();
    let mut tasks = vec![tree(); 2];
    tasks.extend(vec![step(&Step::Wait); 50]);
    let mut owner = OwnerProgram::start(&tasks, &json!({"places": 2, "grace_seconds": 1}));
    let run = owner.run_id();
    let members = owner.tree(2);
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&members);
    assert_eq!(record(&owner, &run).status, "unknown");
    bystanders.assert_untouched();
}

/// Before `Hello`, the worker is known by its file only.
#[test]
fn killed_while_a_child_has_not_greeted() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"echo $$ > "$0.new"; mv "$0.new" "$0"; exec sleep 600"#;
    let command = json!(["sh", "-c", script, pid]);
    let mut owner = OwnerProgram::start(&[step(&Step::Wait)], &json!({"worker_command": command}));
    let run = owner.run_id();
    let worker = wait_for("the worker", || {
        Identity::of(std::fs::read_to_string(&pid).ok()?.trim().parse().ok()?)
    });
    let supervisor = parent(worker);
    assert_ne!(image(worker.pid), image(supervisor.pid), "it has executed");
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    assert_eq!(record(&owner, &run).status, "unknown");
    assert!(!owner.has_seen(&["subagent.start"]) && outcome(&owner, &run, 0).is_none());
    bystanders.assert_untouched();
}

/// Many children one after the other; one of them stands still between its birth and its program.
#[test]
fn killed_while_a_child_has_not_executed() {
    let bystanders = Bystanders::start();
    let mut tasks = vec![task("garbler", "hang", Value::Null)];
    tasks.extend(vec![task("garbler", "well", Value::Null); 400]);
    let settings = json!({"worker_command": [helper("garbler"), "goal"], "places": 2});
    let mut owner = OwnerProgram::start(&tasks, &settings);
    let run = owner.run_id();
    let (_, first) = owner.started();
    let supervisor = owner.supervisor();
    let unborn = stop_before_exec(supervisor);
    owner.signal(Signal::KILL);
    owner.wait();
    assert_eq!((unborn.state(), image(unborn.pid)), (Some('T'), image(supervisor.pid)));
    kill_process(raw(unborn), Signal::CONT).unwrap();
    wait_gone(&[unborn, first, supervisor]);
    assert_eq!(record(&owner, &run).status, "unknown");
    bystanders.assert_untouched();
}

fn parent(process: Identity) -> Identity {
    let fields = crate::program::stat(process.pid).unwrap();
    Identity::of(fields[1].parse().unwrap()).unwrap()
}

#[test]
fn killed_while_a_child_computes() {
    let bystanders = Bystanders::start();
    let mut owner = OwnerProgram::start(&[step(&Step::Wait)], &json!({}));
    let (_, worker) = owner.started();
    owner.text("waiting");
    let supervisor = owner.supervisor();
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    bystanders.assert_untouched();
}

/// The owner is stopped first, so that the child blocks in its write; then it is killed.
#[test]
fn killed_while_a_child_sends_64_mib() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let wait = Step::Gate { open: gate.clone(), bytes: 64 << 20 };
    let mut owner = OwnerProgram::start(&[step(&wait)], &json!({}));
    let (_, worker) = owner.started();
    owner.text("gate");
    let supervisor = owner.supervisor();
    stop_and_let_send(&owner, worker, &gate);
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    bystanders.assert_untouched();
}

/// Stops the owner, opens the gate, and waits until the agent has handed its answer over: the rest is
/// sending, and nobody takes it.
pub(crate) fn stop_and_let_send(owner: &OwnerProgram, worker: Identity, gate: &std::path::Path) {
    owner.signal(Signal::STOP);
    wait_for("the owner stands still", || (state(owner.pid())? == 'T').then_some(()));
    assert!(has_agent_thread(worker), "the agent waits for the gate");
    open_gate(gate);
    wait_for("the agent is done", || (!has_agent_thread(worker)).then_some(()));
    assert!(worker.is_alive(), "64 MiB fit into no socket");
}

fn has_agent_thread(worker: Identity) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", worker.pid)).unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    threads.flatten().filter_map(|thread| name(thread).ok()).any(|name| name.trim() == "agent")
}

/// The owner has read the result, and has not seen the end: no outcome yet, and so none later.
#[test]
fn killed_between_the_terminal_frame_and_the_exit_of_a_child() {
    let bystanders = Bystanders::start();
    let command = json!([helper("garbler"), "result-then-stay"]);
    let tasks = [step(&Step::Wait)];
    let mut owner = OwnerProgram::start(&tasks, &json!({"worker_command": command}));
    let run = owner.run_id();
    let (_, worker) = owner.started();
    let supervisor = owner.supervisor();
    owner.wait_seen(&["said its result", "task=0"]);
    owner.signal(Signal::STOP);
    wait_for("the owner stands still", || (state(owner.pid())? == 'T').then_some(()));
    assert!(worker.is_alive() && !owner.has_seen(&["its process"]), "it has not seen the exit");
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    assert_eq!(record(&owner, &run).status, "unknown");
    assert!(outcome(&owner, &run, 0).is_none());
    bystanders.assert_untouched();
}

/// The child has ended well; what it left takes no TERM, so its scope is not empty and its outcome not
/// stored.
#[test]
fn killed_between_the_exit_of_a_child_and_its_outcome() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"(trap "" TERM; exec sleep 600) >/dev/null 2>&1 3>&- 4>&- &
        echo $! > "$0.new"; mv "$0.new" "$0"; exec "$1" well"#;
    let command = json!(["sh", "-c", script, pid, helper("garbler")]);
    let settings = json!({"worker_command": command, "grace_seconds": 5});
    let mut owner = OwnerProgram::start(&[step(&Step::Wait)], &settings);
    let run = owner.run_id();
    owner.wait_seen(&["its process", "task=0", "Exited(Code(0))"]);
    owner.signal(Signal::STOP);
    wait_for("the owner stands still", || (state(owner.pid())? == 'T').then_some(()));
    let left = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let left = Identity::of(left).unwrap();
    assert!(left.is_alive() && owner.has_seen(&["said its result"]));
    assert!(!owner.has_seen(&["Emptied"]) && !owner.has_seen(&["recorded"]));
    let supervisor = parent(left);
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[left, supervisor]);
    assert_eq!(record(&owner, &run).status, "unknown");
    assert!(outcome(&owner, &run, 0).is_none());
    bystanders.assert_untouched();
}

/// Everything is over and stored, and the owner lives on: its supervisor is all that there is to end.
#[test]
fn killed_after_the_end_of_its_batch() {
    let bystanders = Bystanders::start();
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let wait = Step::Gate { open: gate.clone(), bytes: 3 };
    let mut owner = OwnerProgram::start(&[step(&wait)], &json!({}));
    let run = owner.run_id();
    let (_, worker) = owner.started();
    let supervisor = owner.supervisor();
    open_gate(&gate);
    let report = owner.report();
    assert_eq!(report["verified_empty"], true);
    assert!(!worker.is_alive() && supervisor.is_alive() && owner.has_seen(&["recorded"]));
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[supervisor]);
    assert_eq!(record(&owner, &run).status, "completed");
    let stored = outcome(&owner, &run, 0).unwrap();
    assert_eq!((stored.status, stored.summary.as_deref()), (Status::Completed, Some("rrr")));
    bystanders.assert_untouched();
}

/// Children 0 to 2 have ended and were announced; child 3 runs. Exactly the announced ones are
/// readable, each once, and the run is unknown.
#[test]
fn what_was_announced_before_the_kill_is_readable_once_and_the_run_is_unknown() {
    let bystanders = Bystanders::start();
    let answers = ["zero", "one", "two"].map(|text| step(&Step::Answer(text.to_owned())));
    let mut tasks = answers.to_vec();
    tasks.push(step(&Step::Wait));
    let mut owner = OwnerProgram::start(&tasks, &json!({}));
    let run = owner.run_id();
    let (mut announced, mut waiting) = (0, false);
    owner.expect("three outcomes, and one that runs", |line| {
        announced += u32::from(line["event"] == "subagent.complete");
        waiting |= line["text"] == "waiting";
        (announced == 3 && waiting).then_some(())
    });
    let supervisor = owner.supervisor();
    let reader = Store::open_existing(owner.state.path());
    let id: RunId = run.parse().unwrap();
    for task in 0..3 {
        assert!(owner.has_seen(&["Exited(Code(0))", &format!("task={task}")]), "{task} has ended");
        assert!(reader.outcome(id, task).is_ok(), "and is stored");
    }
    assert_eq!(reader.find_run(&run).unwrap().status, "running", "while its owner lives");
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[supervisor]);
    for (index, text) in (0..).zip(["zero", "one", "two"]) {
        let outcome = reader.outcome(id, index).unwrap();
        assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some(text)));
    }
    assert!(reader.outcome(id, 3).is_err(), "child 3 had no outcome");
    let record = reader.find_run(&run).unwrap();
    assert_eq!((record.status.as_str(), record.duration_seconds), ("unknown", None));
    let completed = record.counts.iter().find(|(word, _)| word == "completed").unwrap();
    assert_eq!(completed.1, 3, "once each: {:?}", record.counts);
    bystanders.assert_untouched();
}

fn record(owner: &OwnerProgram, run: &str) -> RunRecord {
    let reader: Reader = Store::open_existing(owner.state.path());
    reader.find_run(run).unwrap()
}

fn outcome(owner: &OwnerProgram, run: &str, task: u32) -> Option<Outcome> {
    let reader: Reader = Store::open_existing(owner.state.path());
    reader.outcome(run.parse().unwrap(), task).ok()
}
