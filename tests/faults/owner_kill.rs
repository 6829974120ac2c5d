//! Kill matrix, target owner: in whatever state its children are and however it ends, nothing of
//! theirs is left, nobody else is touched, and what was announced before can be read.

use delegate_runtime::store::{Reader, RunRecord, Store};
use delegate_runtime::{RunId, Status};
use rustix::process::Signal;
use serde_json::json;

use crate::program::{
    OwnerProgram, Stranger, assert_alive, open_gate, state, step, tree, wait_gone,
};
use crate::step::Step;
use crate::support::{Identity, helper, wait_for};

/// A control owner with a tree of its own, and a stranger, that must outlive whatever is done.
struct Bystanders {
    control: OwnerProgram,
    members: Vec<Identity>,
    stranger: Stranger,
}

impl Bystanders {
    fn start() -> Self {
        let (control, members) = OwnerProgram::with_trees(1);
        Self { control, members, stranger: Stranger::start() }
    }

    fn assert_untouched(mut self) {
        assert_alive(&self.members);
        assert_alive(&[self.stranger.1]);
        self.control.signal(Signal::KILL);
        self.control.wait();
        wait_gone(&self.members);
        assert_alive(&[self.stranger.1]);
    }
}

#[test]
fn however_the_owner_ends_its_trees_are_gone_and_nobody_else() {
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
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    assert_eq!(record(&owner, &run).status, "unknown");
}

fn parent(process: Identity) -> Identity {
    let fields = crate::program::stat(process.pid).unwrap();
    Identity::of(fields[1].parse().unwrap()).unwrap()
}

#[test]
fn killed_while_a_child_computes() {
    let mut owner = OwnerProgram::start(&[step(&Step::Wait)], &json!({}));
    let (_, worker) = owner.started();
    owner.text("waiting");
    let supervisor = owner.supervisor();
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
}

/// The owner is stopped first, so that the child blocks in its write; then it is killed.
#[test]
fn killed_while_a_child_sends_64_mib() {
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

#[test]
fn killed_after_the_terminal_frame_of_a_child_that_stays() {
    let command = json!([helper("garbler"), "result-then-stay"]);
    let tasks = [step(&Step::Wait)];
    let mut owner = OwnerProgram::start(&tasks, &json!({"worker_command": command}));
    let (_, worker) = owner.started();
    let supervisor = owner.supervisor();
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
}

/// Children 0 to 2 have ended and were announced; child 3 runs. Exactly the announced ones are
/// readable, each once, and the run is unknown.
#[test]
fn what_was_announced_before_the_kill_is_readable_once_and_the_run_is_unknown() {
    let answers = ["zero", "one", "two"].map(|text| step(&Step::Answer(text.to_owned())));
    let mut tasks = answers.to_vec();
    tasks.push(step(&Step::Wait));
    let mut owner = OwnerProgram::start(&tasks, &json!({}));
    let run = owner.run_id();
    let mut announced = 0;
    owner.expect("three outcomes", |line| {
        announced += u32::from(line["event"] == "subagent.complete");
        (announced == 3).then_some(())
    });
    let supervisor = owner.supervisor();
    let reader = Store::open_existing(owner.state.path());
    let id: RunId = run.parse().unwrap();
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
}

fn record(owner: &OwnerProgram, run: &str) -> RunRecord {
    let reader: Reader = Store::open_existing(owner.state.path());
    reader.find_run(run).unwrap()
}
