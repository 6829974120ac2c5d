//! Runs that nobody waits for: places, completions, notices, and going on with what is stored. Contract
//! section 9.8; what needs the death of an owner is in the fault suite too.

use std::collections::BTreeSet;
use std::path::Path;

use delegate_runtime::background::State;
use delegate_runtime::config::{Overflow, Settings};
use delegate_runtime::store::Store;
use delegate_runtime::{
    Announced, Cause, Completion, Isolation, RunId, StartError, Status, Task, Value, Which,
    blocking,
};
use serde_json::json;

use crate::support::{BOTH, Rig, command, rig, rig_with, wait_for};

const SESSION: &str = "a conversation";

/// Waits for a file, then says something.
fn gated(gate: &Path, then: &str) -> Task {
    let script = r#"while [ ! -e "$0" ]; do sleep 0.02; done; eval "$1""#;
    command(then, ["sh", "-c", script, gate.to_str().unwrap(), then])
}

fn says(text: &str) -> Task {
    command(text, ["echo", text])
}

fn fails() -> Task {
    command("fails", ["sh", "-c", "exit 3"])
}

fn open(gate: &Path) {
    std::fs::write(gate, "").unwrap();
}

fn places(count: u32) -> Settings {
    Settings { max_concurrent_children: count, ..Settings::default() }
}

/// The next completion of this process; notices are left out.
fn next(rig: &Rig) -> Box<Completion> {
    let completions = rig.delegator.completions(None);
    loop {
        if let Announced::Ended(completion) = completions.next_blocking() {
            return completion;
        }
    }
}

/// Children that run at one moment: each run is asked by itself, so only those count that two looks have seen.
fn running(rig: &Rig) -> usize {
    let look = || -> BTreeSet<_> {
        let runs = rig.delegator.operator(None).list_blocking();
        runs.iter().flat_map(|run| run.list.children.iter().map(|child| child.child)).collect()
    };
    let mut before = look();
    loop {
        let now = look();
        if now == before {
            return now.len();
        }
        before = now;
    }
}

/// As if the process that began everything here had died.
fn kill_owners(rig: &Rig) {
    let path = rig.state.path().join("runs.sqlite");
    let database = rusqlite::Connection::open(path).unwrap();
    database.execute("UPDATE runs SET owner_start = owner_start + 1", []).unwrap();
}

#[test]
fn a_background_run_comes_back_at_once_and_hands_its_origin_and_results_on() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let gate = rig.state.path().join("gate");
        let tasks = [gated(&gate, "echo late"), says("early")];
        let batch = rig.delegator.batch(tasks).session(SESSION);
        let handle = batch.background(json!({"chat": 7})).unwrap();
        assert_eq!((handle.status, handle.mode, handle.count), ("dispatched", "background", 2));
        assert_eq!((handle.position, handle.subagent_ids.len()), (None, 2));
        assert!(rig.delegator.completions(None).try_next_blocking().is_none(), "it has not ended");
        let record = rig.delegator.store().find_run("latest").unwrap();
        assert!(record.background && record.id == handle.id() && record.status == "running");
        open(&gate);
        let completion = next(&rig);
        assert_eq!(completion.run_id(), handle.id());
        assert_eq!(completion.origin::<serde_json::Value>().unwrap(), json!({"chat": 7}));
        assert_eq!((completion.session(), completion.status()), (Some(SESSION), "completed"));
        assert_eq!((completion.attempt(), completion.restored()), (1, false));
        let said: Vec<_> = completion.results().map(|outcome| outcome.summary.clone()).collect();
        assert_eq!(said, [Some("late".to_owned()), Some("early".to_owned())]);
        let event = serde_json::to_value(&*completion).unwrap();
        assert_eq!(
            (&event["event"], &event["origin"]["chat"]),
            (&json!("async_delegation"), &json!(7))
        );
        completion.complete_blocking().unwrap();
        assert!(rig.delegator.completions(None).try_next_blocking().is_none(), "once");
        let report = rig.delegator.wait(&handle).unwrap();
        assert!(report.all_completed() && report.verified_empty() && report.is_durable());
        assert_eq!(report.results().count(), 2);
    }
}

#[test]
fn c24_concurrent_dispatches_never_run_more_than_the_cap() {
    for isolation in BOTH {
        let rig = rig_with(isolation, places(2));
        let gate = rig.state.path().join("gate");
        let handles: Vec<_> = std::thread::scope(|scope| {
            let dispatch = |_| {
                scope.spawn(|| {
                    rig.delegator.batch([gated(&gate, "echo done")]).background(()).unwrap()
                })
            };
            let threads: Vec<_> = (0..6).map(dispatch).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut positions: Vec<_> = handles.iter().filter_map(|handle| handle.position).collect();
        positions.sort_unstable();
        assert_eq!(positions, [1, 2, 3, 4]);
        let mut seen = 0;
        let two = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("two children", || {
                seen = running(&rig);
                (seen == 2).then_some(())
            });
        }));
        assert!(two.is_ok(), "{seen} children");
        let most = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                open(&gate);
                for _ in 0..6 {
                    next(&rig).complete_blocking().unwrap();
                }
            });
            while !ends.is_finished() {
                most.fetch_max(running(&rig), std::sync::atomic::Ordering::Relaxed);
            }
        });
        assert!(most.into_inner() <= 2);
    }
}

#[test]
fn c25_full_is_told_in_the_handle_or_refused() {
    for isolation in BOTH {
        let rig = rig_with(isolation, places(1));
        let gate = rig.state.path().join("gate");
        rig.delegator.batch([gated(&gate, "echo one")]).background(()).unwrap();
        let second = rig.delegator.batch([says("two")]).background(()).unwrap();
        assert_eq!(second.position, Some(1));
        let note = second.note.clone().unwrap();
        assert!(note.contains("max_concurrent_children") && note.contains("number 1"), "{note}");
        open(&gate);
        let order: Vec<_> = (0..2).map(|_| next(&rig).title().to_owned()).collect();
        assert_eq!(order, ["echo one", "two"], "in line until there is a place");

        let refuses = Settings { background_overflow: Overflow::Refuse, ..places(1) };
        let rig = rig_with(isolation, refuses);
        let gate = rig.state.path().join("gate");
        rig.delegator.batch([gated(&gate, "echo one")]).background(()).unwrap();
        let refused = rig.delegator.batch([says("two")]).background(()).unwrap_err();
        assert!(
            matches!(refused, StartError::BackgroundFull { running: 1, limit: 1 }),
            "{refused}"
        );
        assert_eq!(rig.delegator.store().runs(9).unwrap().len(), 1, "nothing was started");
        // One in the foreground needs no such place.
        assert!(rig.delegator.batch([says("front")]).run().unwrap().all_completed());
        open(&gate);
        next(&rig).complete_blocking().unwrap();
    }
}

#[test]
fn a_run_in_line_can_be_stopped_and_gives_its_place_up() {
    let rig = rig_with(Isolation::Thread, places(1));
    let gate = rig.state.path().join("gate");
    rig.delegator.batch([gated(&gate, "echo one")]).background(()).unwrap();
    let second = rig.delegator.batch([says("two")]).background(()).unwrap();
    let third = rig.delegator.batch([says("three")]).background(()).unwrap();
    assert_eq!((second.position, third.position), (Some(1), Some(2)));
    let id = second.id().to_string();
    rig.delegator.operator(None).stop(&id, false).unwrap();
    assert_eq!(rig.delegator.wait(&second).unwrap().statuses(), [Status::Interrupted]);
    open(&gate);
    assert!(rig.delegator.wait(&third).unwrap().all_completed());
}

#[test]
fn c26_units_of_one_call_share_one_place_and_each_is_told_when_it_has_ended() {
    for isolation in BOTH {
        let settings = Settings { independent_completions: true, ..places(5) };
        let rig = rig_with(isolation, settings);
        let gates: Vec<_> = (0..3).map(|n| rig.state.path().join(format!("gate{n}"))).collect();
        let tasks = [
            gated(&gates[0], "echo a").group("g"),
            gated(&gates[1], "echo b"),
            gated(&gates[0], "echo c").group("g"),
            gated(&gates[2], "exit 3"),
        ];
        let handle = rig.delegator.batch(tasks).background(7).unwrap();
        let id = handle.id();
        let units: Vec<_> = handle.units.iter().map(|unit| unit.task_indexes.clone()).collect();
        assert_eq!(units, [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(handle.units[0].group.as_deref(), Some("g"));
        wait_for("all of them", || (running(&rig) == 4).then_some(()));
        open(&gates[1]);
        let second = next(&rig);
        assert_eq!(second.delegation_id(), format!("{id}-2"));
        assert_eq!(second.results().map(|it| it.task_index).collect::<Vec<_>>(), [1]);
        second.complete_blocking().unwrap();
        open(&gates[2]);
        let third = next(&rig);
        assert_eq!((third.delegation_id(), third.status()), (format!("{id}-3"), "error"));
        third.complete_blocking().unwrap();
        open(&gates[0]);
        let first = next(&rig);
        assert_eq!(first.results().map(|it| it.task_index).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((first.delegation_id(), first.origin()), (format!("{id}-1"), Ok(7)));
        first.complete_blocking().unwrap();
    }
}

#[test]
fn c27_who_is_told_finds_every_outcome_on_disk() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let handle = rig.delegator.batch([says("a"), fails()]).background(()).unwrap();
        let completion = next(&rig);
        let reader = Store::open_existing(rig.state.path());
        let statuses: Vec<_> = reader.statuses(handle.id()).unwrap().into_values().collect();
        assert_eq!(statuses, [Status::Completed, Status::Failed]);
        let rows = reader.deliveries(handle.id()).unwrap();
        assert_eq!((rows[0].state, rows[0].attempts), (State::Claimed, 1));
        assert_eq!(completion.status(), "completed", "one of them did");
        completion.complete_blocking().unwrap();
        assert_eq!(reader.deliveries(handle.id()).unwrap()[0].state, State::Delivered);
    }
}

#[test]
fn c35_a_failure_is_told_at_once_and_settles_nothing() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let gate = rig.state.path().join("gate");
        let tasks = [gated(&gate, "echo fine"), fails()];
        let handle = rig.delegator.batch(tasks).session(SESSION).background(()).unwrap();
        let other = rig.delegator.completions(Some("other"));
        let notice = match rig.delegator.completions(Some(SESSION)).next_blocking() {
            Announced::Failed(notice) => notice,
            Announced::Ended(it) => panic!("{it:?}"),
        };
        assert_eq!((notice.run_id, notice.task_index), (handle.id(), 1));
        assert_eq!(notice.status, Status::Failed);
        let outcome = rig.delegator.store().outcome(notice.run_id, notice.task_index).unwrap();
        assert_eq!(outcome.status, Status::Failed, "it is stored");
        let rows = other.standing(handle.id()).unwrap();
        assert_eq!((rows[0].state, rows[0].attempts), (State::Running, 0));
        open(&gate);
        let completion = next(&rig);
        assert_eq!(completion.results().count(), 2);
        assert!(other.try_next_blocking().is_none());
        // A failure alone is no interim.
        rig.delegator.batch([fails()]).background(()).unwrap();
        let told = rig.delegator.completions(None).next_blocking();
        assert!(matches!(told, Announced::Ended(_)), "{told:?}");
    }
}

#[test]
fn c28_and_c30_a_claimed_completion_is_nobody_elses_and_a_deferred_one_comes_again() {
    let rig = rig(Isolation::Thread);
    rig.delegator.batch([says("a")]).background(()).unwrap();
    let first = next(&rig);
    let other = rig.delegator.completions(None);
    assert!(other.try_next_blocking().is_none());
    first.defer_blocking().unwrap();
    let again = next(&rig);
    assert_eq!(again.attempt(), 1, "the attempt was given back");
    again.release_blocking().unwrap();
    let again = next(&rig);
    assert_eq!(again.attempt(), 2);
    again.give_up_blocking("nobody is there").unwrap();
    assert!(other.try_next_blocking().is_none());
}

#[test]
fn c31_a_dead_owner_gives_unknown_with_what_is_recorded_and_a_resume_runs_only_the_rest() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let count = rig.state.path().join("count");
        let note = |name: &str| {
            let script = r#"echo "$1" >> "$0"; echo "$1""#;
            command(name, ["sh", "-c", script, count.to_str().unwrap(), name])
        };
        let tasks = [note("zero"), note("one"), note("two")];
        let handle = rig.delegator.batch(tasks).session(SESSION).background("o").unwrap();
        let id = handle.id();
        next(&rig).release_blocking().unwrap();
        assert!(rig.delegator.wait(id).unwrap().all_completed());
        // As if it had died with the second task on its way.
        let path = rig.state.path().join("runs.sqlite");
        let database = rusqlite::Connection::open(path).unwrap();
        database
            .execute_batch(
                "DELETE FROM results WHERE task_index = 1; UPDATE runs SET status = 'running';
                 UPDATE deliveries SET state = 'running', attempts = 0",
            )
            .unwrap();
        kill_owners(&rig);
        let completion = match rig.delegator.completions(Some(SESSION)).next_blocking() {
            Announced::Ended(completion) => completion,
            Announced::Failed(notice) => panic!("{notice:?}"),
        };
        assert!(completion.restored() && completion.status() == "unknown");
        let results: Vec<_> = completion.results().collect();
        assert_eq!(results[0].summary.as_deref(), Some("zero"));
        assert_eq!((results[1].status, &results[1].cause), (Status::Unknown, &Some(Cause::Lost)));
        assert_eq!(results[1].isolation.word(), results[0].isolation.word());
        assert_eq!(results[2].summary.as_deref(), Some("two"));
        completion.complete_blocking().unwrap();
        assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 3, "never by itself");

        let before = handle.subagent_ids.clone();
        let mut run = rig.delegator.resume_run(id).unwrap().start().unwrap();
        assert_eq!(run.id(), id, "the same run");
        let children: BTreeSet<_> = run.events().map(|event| event.child()).collect();
        assert_eq!(children, BTreeSet::from([before[1]]), "the same child, and no other");
        let report = run.finish();
        assert!(report.all_completed());
        let said: Vec<_> = report.results().map(|it| it.summary.clone().unwrap()).collect();
        assert_eq!(said, ["zero", "one", "two"]);
        assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 4);
        let record = rig.delegator.store().find_run(&id.to_string()).unwrap();
        assert_eq!((record.status.as_str(), record.resumed), ("completed", 1));
        let again = rig.delegator.resume_run(id).unwrap_err();
        assert!(matches!(again, StartError::NothingLeft { .. }), "{again}");
    }
}

#[test]
fn a_rerun_is_a_new_run_of_the_tasks_that_are_meant() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let tasks = || [says("a"), fails(), says("c")];
        let unkept = rig.delegator.batch(tasks()).run().unwrap().run_id();
        let refused = rig.delegator.rerun(unkept, &Which::All).unwrap_err();
        assert!(matches!(refused, StartError::NotKept { .. }), "{refused}");
        let first = rig.delegator.batch(tasks()).resumable().run().unwrap().run_id();
        let goals = |which: &Which| {
            let report = rig.delegator.rerun(first, which).unwrap().run().unwrap();
            (report.run_id(), report.statuses().to_vec())
        };
        let (again, statuses) = goals(&Which::Failed);
        assert_eq!(statuses, [Status::Failed]);
        let record = rig.delegator.store().find_run(&again.to_string()).unwrap();
        assert_eq!((record.rerun_of, record.tasks), (Some(first), 1));
        assert_eq!(record.isolation, isolation_word(isolation));
        assert_eq!(goals(&Which::Tasks(vec![2, 0])).1, [Status::Completed; 2]);
        assert_eq!(goals(&Which::All).1.len(), 3);
        let wrong = rig.delegator.rerun(first, &Which::Tasks(vec![3])).unwrap_err();
        assert!(matches!(wrong, StartError::NothingLeft { .. }), "{wrong}");
    }
}

const fn isolation_word(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Thread => "thread",
        _ => "process",
    }
}

#[test]
fn a_stored_task_holds_no_secret_and_asks_for_it_again() {
    const CANARY: &str = "canary-of-background-1";
    // A name that no environment has.
    const NAME: &str = "BACKGROUND_TEST_UNSET";
    for isolation in BOTH {
        let settings = Settings {
            base_url: Some("http://127.0.0.1:9/v1".to_owned()),
            api_key: Some(delegate_runtime::ApiKey::new(format!("key-{CANARY}"))),
            ..Settings::default()
        };
        let rig = rig_with(isolation, settings);
        let env = Value::Map([(NAME.to_owned(), Value::Text(CANARY.to_owned()))].into());
        let argv = ["sh", "-c", "test -n \"$BACKGROUND_TEST_UNSET\" && exit 3"];
        let argv = argv.map(|text| Value::Text(text.to_owned())).to_vec();
        let params =
            Value::Map([("argv".to_owned(), Value::List(argv)), ("env".to_owned(), env)].into());
        let task = Task::new("command", "needs it").params(params);
        let handle = rig.delegator.batch([task]).background(()).unwrap();
        assert_eq!(rig.delegator.wait(&handle).unwrap().statuses(), [Status::Failed]);
        assert_eq!(holding(rig.state.path(), CANARY), Vec::<String>::new());
        let refused = rig.delegator.rerun(handle.id(), &Which::Failed).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("params.env.{NAME}")), "{text}");
        assert!(text.contains(&format!("set the variable {NAME}")), "{text}");

        // The same for the key of the children.
        let (id, state) = keyed_run(&rig);
        let keyless =
            blocking::Delegator::builder().isolation(isolation).state_dir(&state).build().unwrap();
        let refused = keyless.rerun(id, &Which::All).unwrap().start().unwrap_err();
        assert!(matches!(refused, StartError::KeyNotGiven { .. }), "{refused}");
        assert!(rig.delegator.rerun(id, &Which::All).unwrap().run().unwrap().all_completed());
    }
}

fn keyed_run(rig: &Rig) -> (RunId, std::path::PathBuf) {
    let report = rig.delegator.batch([says("a")]).resumable().run().unwrap();
    (report.run_id(), rig.state.path().to_owned())
}

/// Files below a folder that hold a text.
fn holding(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if let Ok(bytes) = std::fs::read(&path)
            && bytes.windows(text.len()).any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_completion_of_an_older_process_is_for_who_proves_to_be_meant() {
    let rig = rig(Isolation::Thread);
    let handle = rig.delegator.batch([says("a")]).session(SESSION).background(()).unwrap();
    assert!(rig.delegator.wait(&handle).unwrap().all_completed());
    let rows = || rig.delegator.completions(None).standing(handle.id()).unwrap();
    wait_for("it waits", || (rows()[0].state == State::Pending).then_some(()));
    kill_owners(&rig);
    let claim = |session| rig.delegator.completions(session).try_next_blocking().is_some();
    assert!(!claim(None) && !claim(Some("other")));
    // It was quiet for less than a minute.
    assert!(!claim(Some(SESSION)));
    let database = rusqlite::Connection::open(rig.state.path().join("runs.sqlite")).unwrap();
    database.execute("UPDATE deliveries SET changed_at = changed_at - 61", []).unwrap();
    assert!(!claim(Some("other")) && claim(Some(SESSION)));
}
