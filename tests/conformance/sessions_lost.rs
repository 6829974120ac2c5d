//! Workers of sessions that are lost, over both executors: the turn that ran is over and is told with its cause, the
//! earlier ones are kept, another worker takes the place and knows them, and too many losses end the session.

use std::time::Duration;

use delegate_protocol::Cause;
use delegate_runtime::config::Settings;
use delegate_runtime::session::list;
use delegate_runtime::{Event, Isolation, ManualClock, Status, Task, Why, blocking};
use rustix::process::{Pid, Signal, kill_process};

use crate::sessions::{Talker, answer, ask, opened, task};
use crate::support::{BOTH, Identity, rig, rig_with, wait_for};

fn kill(pid: &str) {
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_panic_is_the_end_of_a_turn_and_another_worker_knows_what_was() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = opened(&rig, |session| session);
        assert_eq!(answer(&mut session, "say hello"), "hello");
        let first = session.control().run_id();
        let lost = ask(&mut session, "panic on purpose");
        assert_eq!((lost.status, lost.run_id), (Status::Error, first), "{isolation:?} {lost:?}");
        let error = lost.error.as_deref().unwrap();
        assert!(error.starts_with("its worker was lost: on purpose"), "{error}");
        assert_eq!(answer(&mut session, "count"), "1 turns here", "a new object");
        assert_eq!(answer(&mut session, "heard"), "say hello=hello,panic on purpose=");
        let control = session.control();
        assert_eq!(control.restarts(), 1);
        assert!(control.run_id() != first);
        let record = list::find(rig.state.path(), "latest").unwrap();
        assert_eq!((record.turns, record.completed, record.restarts), (4, 3, 1));
        let statuses: Vec<_> = list::turns(rig.state.path(), &record)
            .unwrap()
            .into_iter()
            .map(|turn| turn.status)
            .collect();
        assert_eq!(statuses, ["completed", "error", "completed", "completed"]);
        let end = session.close();
        assert_eq!((end.why, end.restarts, end.completed), (Why::Closed, 1, 3), "{isolation:?}");
    }
}

/// kill -9 in a turn, with a program that the turn had started, and between two turns.
#[test]
fn a_killed_worker_is_replaced_and_nothing_of_it_is_left() {
    let rig = rig(Isolation::Process);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper");
    let mut session = opened(&rig, |session| session);
    let pid = answer(&mut session, "pid");
    assert_eq!(answer(&mut session, &format!("helper {}", path.display())), "started");
    let program = std::fs::read_to_string(&path).unwrap().trim().parse().unwrap();
    let program = Identity::of(program).unwrap();
    let mut turn = session.prompt("wait").unwrap();
    assert!(turn.events().any(|event| matches!(event, Event::Text { .. })));
    assert!(program.is_alive(), "it lives from turn to turn");
    kill(&pid);
    let lost = turn.finish();
    assert_eq!((lost.status, lost.turn), (Status::Error, 3), "{lost:?}");
    assert_eq!(lost.cause, Some(Cause::Signaled { signal: 9, core_dumped: false }));
    assert!(!program.is_alive(), "it is gone before the loss is told");
    let second = answer(&mut session, "pid");
    assert!(second != pid);
    wait_for("an idle worker", || session.control().is_idle().then_some(()));
    kill(&second);
    // A prompt that is given to one that dies is lost with it.
    wait_for("another worker", || (session.control().restarts() == 2).then_some(()));
    assert!(answer(&mut session, "pid") != second);
    assert_eq!(session.control().restarts(), 2);
    drop(session.close());
}

/// The one that dies may have been given a prompt, which is over then; nothing is carried out twice.
#[test]
fn no_prompt_is_given_twice_however_often_workers_die() {
    let rig = rig(Isolation::Process);
    let mut session = opened(&rig, |session| session.max_restarts(100, Duration::from_secs(600)));
    let mut lost = 0;
    for number in 1..=12 {
        let outcome = ask(&mut session, "pid");
        match outcome.status {
            // At once: it asks for its next prompt meanwhile, or waits for it, or has it.
            Status::Completed => kill(&outcome.answer),
            Status::Error => lost += 1,
            other => panic!("{other:?}: {outcome:?}"),
        }
        assert_eq!(outcome.turn, number);
    }
    let history = session.history();
    assert_eq!(history.len(), 12);
    assert_eq!(history.iter().filter(|turn| turn.status == Status::Error).count(), lost);
    let end = session.stop();
    assert_eq!((end.turns, end.completed), (12, 12 - lost as u64));
}

#[test]
fn it_gives_up_when_workers_are_lost_too_often() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session =
            opened(&rig, |session| session.max_restarts(1, Duration::from_secs(3600)));
        assert_eq!(ask(&mut session, "panic 1").status, Status::Error);
        assert_eq!(answer(&mut session, "say still here"), "still here");
        drop(session.prompt("panic 2").unwrap());
        let waiting = session.prompt("say never");
        let waiting = waiting.map(|turn| turn.finish());
        if let Ok(waiting) = waiting {
            assert!(!waiting.was_begun(), "{waiting:?}");
            let error = waiting.error.as_deref().unwrap();
            assert!(error.contains("gave up: more than 1 workers"), "{error}");
        }
        let end = session.ended();
        assert_eq!((end.why, end.restarts, end.turns), (Why::GaveUp, 1, 3), "{isolation:?}");
        let record = list::find(rig.state.path(), "latest").unwrap();
        assert_eq!((record.status, record.why.as_deref()), ("ended", Some("gave_up")));
    }
}

/// An agent that cannot be opened: each worker is a loss, none of them has a turn.
#[test]
fn one_that_cannot_be_opened_is_given_up() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let task = Task::of::<Talker>("talk", Some("fail".to_owned()));
        let new = rig.delegator.session(task).max_restarts(2, Duration::from_secs(3600));
        let end = new.start().unwrap().ended();
        assert_eq!((end.why, end.restarts, end.turns), (Why::GaveUp, 2, 0), "{isolation:?}");
        assert!(end.verified_empty);
    }
}

/// One that does not unwind when the limit of its turn is over is ended with its worker.
#[test]
fn a_turn_that_does_not_unwind_loses_its_worker() {
    for isolation in BOTH {
        let (clock, state) = (ManualClock::default(), tempfile::tempdir().unwrap());
        let grace = Duration::from_secs(1);
        let settings = Settings {
            interrupt_grace: grace,
            terminate_grace: Duration::ZERO,
            ..Settings::default()
        };
        let builder = blocking::Delegator::builder().isolation(isolation).clock(clock.clone());
        let delegator = builder.settings(settings).state_dir(state.path()).build().unwrap();
        let new = delegator.session(task()).turn_timeout(Duration::from_secs(60));
        let mut session = new.start().unwrap();
        assert_eq!(answer(&mut session, "say hello"), "hello");
        let mut turn = session.prompt("deaf").unwrap();
        assert!(turn.events().any(|event| matches!(event, Event::Text { .. })));
        let outcome = std::thread::scope(|scope| {
            let outcome = scope.spawn(|| turn.finish());
            // Its limit, the grace of the turn, that of the worker: each is met in time or behind it.
            wait_for("the end of the turn", || {
                clock.advance(Duration::from_secs(10));
                outcome.is_finished().then_some(())
            });
            outcome.join().unwrap()
        });
        assert_eq!(outcome.status, Status::Timeout, "{isolation:?} {outcome:?}");
        let error = outcome.error.as_deref().unwrap();
        assert!(error.starts_with("its limit of 60 s ran out; it did not unwind"), "{error}");
        let end = session.stop();
        assert_eq!(end.completed, 1);
    }
}

/// Dropped, closed, stopped or killed in a turn: its worker is gone.
#[test]
fn the_end_of_a_session_is_the_end_of_its_worker() {
    for way in ["drop", "stop", "kill"] {
        let rig = rig_with(Isolation::Process, Settings::default());
        let mut session = opened(&rig, |session| session);
        let worker = Identity::of(answer(&mut session, "pid").parse().unwrap()).unwrap();
        let mut turn = session.prompt("wait").unwrap();
        assert!(turn.events().any(|event| matches!(event, Event::Text { .. })));
        drop(turn);
        let control = session.control();
        match way {
            "drop" => drop(session),
            "stop" => {
                let end = session.stop();
                assert_eq!((end.why, end.restarts), (Why::Stopped, 0));
            }
            _ => {
                control.kill();
                assert_eq!(session.ended().why, Why::Stopped);
            }
        }
        wait_for(way, || (!worker.is_alive()).then_some(()));
        wait_for("its record", || {
            let record = list::find(rig.state.path(), "latest").unwrap();
            (record.why.as_deref() == Some("stopped")).then_some(())
        });
        let record = list::find(rig.state.path(), "latest").unwrap();
        let turns = list::turns(rig.state.path(), &record).unwrap();
        assert_eq!(turns[1].status, "interrupted", "{way}: {turns:?}");
    }
}

/// A worker that leaves between two turns, by its own word, costs no prompt, also not one that was on its way to it: that
/// goes to the next, which is the first to see it.
#[test]
fn a_worker_that_leaves_between_two_turns_costs_no_prompt() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let mut session = opened(&rig, |session| session);
        let control = session.control();
        let leave = format!("leave {}", folder.path().display());
        assert_eq!(answer(&mut session, &leave), "will leave");
        wait_for("an idle worker", || control.is_idle().then_some(()));
        std::fs::write(file("ring"), "").unwrap();
        // It is called, and stands until the next prompt is on its way.
        wait_for("the call", || file("called").exists().then_some(()));
        let turn = session.prompt("count").unwrap();
        wait_for("the prompt to be on its way", || (control.turn() == Some(2)).then_some(()));
        std::fs::write(file("leave"), "").unwrap();
        let outcome = turn.finish();
        assert_eq!((outcome.status, &*outcome.answer), (Status::Completed, "1 turns here"));
        let runs: Vec<_> =
            list::turns(rig.state.path(), &list::find(rig.state.path(), "-").unwrap())
                .unwrap()
                .iter()
                .map(|turn| turn.run_id)
                .collect();
        assert!(runs[0] != runs[1] && runs.iter().all(Option::is_some), "{isolation:?} {runs:?}");
        let end = session.close();
        assert_eq!((end.turns, end.completed, end.restarts), (2, 2, 1), "{isolation:?} {end:?}");
    }
}

/// Over threads limits have no effect, and that is said.
#[test]
fn limits_of_a_session_in_a_thread_are_warned_of() {
    for isolation in BOTH {
        let ration = delegate_runtime::Ration { open_files: Some(512), ..Default::default() };
        let rig = rig_with(isolation, Settings { ration, ..Settings::default() });
        let mut session = opened(&rig, |session| session);
        assert_eq!(answer(&mut session, "say hello"), "hello");
        let end = session.close();
        let told = end.warnings.iter().filter(|text| text.contains("max_open_files")).count();
        assert_eq!(told, usize::from(isolation == Isolation::Thread), "{:?}", end.warnings);
        assert_eq!(end.limits_met, 0);
    }
}
