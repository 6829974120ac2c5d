//! What parents and children share: a database, an environment, no memory. Rows of kind I.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use delegate_runtime::store::Store;
use delegate_runtime::{Isolation, Status, Task, Value, blocking};
use rustix::process::Signal;
use serde_json::json;

use crate::program::{OwnerProgram, step, wait_gone};
use crate::step::{Step, Stepper};
use crate::support::{command, rig, run};

/// Sixteen parents in one state directory, each with the outcomes of its children.
#[test]
fn rb_42_sixteen_parents_on_one_state_directory_lose_nothing() {
    const PARENTS: usize = 16;
    const TASKS: usize = 100;
    let state = tempfile::tempdir().unwrap();
    let runs: Vec<_> = std::thread::scope(|scope| {
        let parent = |number: usize| {
            let state = state.path();
            scope.spawn(move || {
                let delegator = blocking::Delegator::builder()
                    .isolation(Isolation::Thread)
                    .state_dir(state)
                    .build()
                    .unwrap();
                let session = format!("conversation {number}");
                let answer = |task| Step::Answer(format!("{number}.{task}"));
                let tasks = (0..TASKS).map(|task| Task::of::<Stepper>("answer", answer(task)));
                // Half of them in the background: claims and outcomes go through one file.
                if number.is_multiple_of(2) {
                    let report = delegator.batch(tasks).run().unwrap();
                    assert!(
                        report.all_completed() && report.is_durable(),
                        "{:?}",
                        report.warnings()
                    );
                    return (number, report.run_id());
                }
                let handle = delegator.batch(tasks).session(&session).background(number).unwrap();
                let told = delegator.completions(Some(&session)).next_blocking();
                let delegate_runtime::Announced::Ended(completion) = told else {
                    panic!("{told:?}")
                };
                assert_eq!(completion.run_id(), handle.id(), "nobody gets that of another parent");
                completion.complete_blocking().unwrap();
                assert!(delegator.wait(&handle).unwrap().is_durable());
                (number, handle.id())
            })
        };
        let threads: Vec<_> = (0..PARENTS).map(parent).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let reader = Store::open_existing(state.path());
    for (number, run) in runs {
        for task in 0..TASKS {
            let outcome = reader.outcome(run, u32::try_from(task).unwrap()).unwrap();
            assert_eq!(outcome.summary, Some(format!("{number}.{task}")));
        }
    }
}

/// Mappings that more than one process may write, by file.
fn shared_mappings(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    assert!(!maps.is_empty(), "{pid} can be looked at");
    let shared = maps.lines().filter(|line| line.split(' ').nth(1) == Some("rw-s"));
    shared.map(|line| line.split_whitespace().nth(5).unwrap_or("anonymous").to_owned()).collect()
}

/// A lock in shared memory whose holder dies would hold everybody up: there is none, but SQLite's own index,
/// whose locks the kernel releases.
#[test]
fn rb_47_no_lock_lives_in_memory_that_a_child_shares() {
    let mut owner = OwnerProgram::start(&[step(&Step::Wait)], &json!({}));
    let (_, worker) = owner.started();
    owner.text("waiting");
    // Words that one writes and the other reads; nobody holds anything in there.
    let page = BTreeSet::from(["/memfd:delegate-page".to_owned()]);
    assert!(shared_mappings(worker.pid).is_subset(&page));
    // What the two guards see is anonymous memory of theirs alone.
    let table = BTreeSet::from(["/memfd:table".to_owned()]);
    assert!(shared_mappings(owner.supervisor().pid).is_subset(&table));
    let of_owner = shared_mappings(owner.pid());
    let known = |file: &String| file.ends_with(".sqlite-shm") || page.contains(file);
    assert!(of_owner.iter().all(known), "{of_owner:?}");
}

#[test]
fn rb_46_a_kill_leaves_nothing_in_shared_memory() {
    let named = || -> BTreeSet<_> {
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let ours = |name: &String| name.contains("delegate") || name.contains("ownership");
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(ours).collect()
    };
    let before = named();
    let mut owner = OwnerProgram::start(&[step(&Step::Wait), step(&Step::Wait)], &json!({}));
    let (_, worker) = owner.started();
    owner.text("waiting");
    let supervisor = owner.supervisor();
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&[worker, supervisor]);
    assert_eq!(named(), before);
}

#[test]
fn rb_49_children_in_threads_leave_the_environment_of_their_parent_alone() {
    let environment = || std::env::vars_os().collect::<BTreeMap<_, _>>();
    let before = environment();
    let rig = rig(Isolation::Thread);
    let task = |value: usize| {
        let argv = ["sh", "-c", "sleep 0.05; echo $RB_49"].map(|text| Value::Text(text.to_owned()));
        let env = Value::Map([("RB_49".to_owned(), Value::Text(value.to_string()))].into());
        let params = [("argv".to_owned(), Value::List(argv.to_vec())), ("env".to_owned(), env)];
        Task::new("command", "sets one variable").params(Value::Map(params.into()))
    };
    let mut tasks: Vec<Task> = (0..8).map(task).collect();
    tasks.push(command("sees none", ["sh", "-c", "echo ${RB_49-unset}"]));
    let (outcomes, report) = run(&rig, tasks);
    assert!(report.statuses().iter().all(|status| *status == Status::Completed));
    let said: Vec<_> = outcomes.iter().map(|outcome| outcome.summary.clone().unwrap()).collect();
    assert_eq!(said, ["0", "1", "2", "3", "4", "5", "6", "7", "unset"]);
    assert_eq!(environment(), before);
}
