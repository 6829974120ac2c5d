//! Interrupts, steering, pauses and approvals (contract 6, 9.5; C5, C6, C20 to C22, matrix 135 to 137) over
//! both executors, through the library.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{
    Branch, Control, Event, Isolation, StartError, Status, SteerError, SubagentId, blocking,
};

use crate::agents::{End, Op, answer, script};
use crate::support::{BOTH, Rig, command, rig, rig_with, wait_for};

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

/// Reads until a child has said this.
fn until_text(run: &mut blocking::Run, part: &str) -> SubagentId {
    loop {
        match run.events().next().expect("it comes before the end") {
            Event::Text { child, text } if text.contains(part) => return child,
            _ => {}
        }
    }
}

fn file(rig: &Rig, name: &str) -> String {
    rig.state.path().join(name).to_str().unwrap().to_owned()
}

/// Everything that was streamed.
fn said(run: &mut blocking::Run) -> String {
    run.events()
        .filter_map(|event| match event {
            Event::Text { text, .. } => Some(text),
            _ => None,
        })
        .collect()
}

#[test]
fn c22_a_steer_is_consumed_by_the_agent_or_comes_back_as_missed() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let open = file(&rig, "open");
        let ops = [text("up"), Op::AwaitSteer, Op::AwaitFile(open.clone())];
        let mut run = rig.delegator.batch([script(ops, answer("done")).task("t")]).start().unwrap();
        let child = until_text(&mut run, "up");
        let control = run.control();
        control.steer(child, "turn left").unwrap();
        // The agent says it: it was taken.
        until_text(&mut run, "turn left");
        control.steer(child, "nobody reads this").unwrap();
        fs::write(&open, "").unwrap();
        assert!(run.events().count() > 0);
        assert_eq!(control.steer(child, "too late"), Err(SteerError::Ended), "{isolation:?}");
        let report = run.finish();
        let outcome = report.results().next().unwrap();
        assert_eq!(outcome.status, Status::Completed, "{isolation:?} {outcome:?}");
        assert_eq!(outcome.missed_steer.as_deref(), Some("nobody reads this"), "{isolation:?}");
        assert!(outcome.notes.iter().any(|note| note.contains("missed_steer")), "{outcome:?}");
    }
}

/// Accepting races with the end of the child: each accepted word is said or missed, once.
#[test]
fn c22_rb_64_no_word_is_lost_between_the_last_look_and_the_end() {
    for isolation in BOTH {
        for round in 0..4 {
            let rig = rig(isolation);
            let stop = file(&rig, "stop");
            let ops = [text("up"), Op::SteersUntil(stop.clone())];
            let task = script(ops, answer("done")).task("t");
            let mut run = rig.delegator.batch([task]).start().unwrap();
            let child = until_text(&mut run, "up");
            let control = run.control();
            let sender = std::thread::spawn(move || {
                let mut accepted = BTreeSet::new();
                for number in 0_u32.. {
                    match control.steer(child, format!("w{number}")) {
                        Ok(()) => drop(accepted.insert(format!("w{number}"))),
                        Err(SteerError::Full) => std::thread::yield_now(),
                        Err(SteerError::Ended) => break,
                        Err(error) => panic!("{error}"),
                    }
                    if number == 40 + 17 * round {
                        fs::write(&stop, "").unwrap();
                    }
                }
                accepted
            });
            let heard = said(&mut run);
            let accepted = sender.join().unwrap();
            let outcome = run.finish().results().next().unwrap();
            let taken: Vec<_> =
                heard.split(['<', '>']).filter(|word| word.starts_with('w')).collect();
            let missed = outcome.missed_steer.clone().unwrap_or_default();
            let known: Vec<_> =
                taken.into_iter().chain(missed.lines()).map(str::to_owned).collect();
            let set: BTreeSet<_> = known.iter().cloned().collect();
            assert_eq!(set.len(), known.len(), "{isolation:?}: twice: {known:?}");
            assert_eq!(set, accepted, "{isolation:?}");
        }
    }
}

/// RB-64: a word for a child that has not started is kept for it; one for a child that never starts comes
/// back.
#[test]
fn rb_64_a_word_to_a_child_that_waits_is_kept_or_comes_back() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let open = file(&rig, "open");
        let first = script([text("up"), Op::AwaitFile(open.clone())], answer("1")).task("first");
        let second = script([Op::ToolResult("tool".to_owned())], answer("2")).task("second");
        let third = script([text("never")], answer("3")).task("third");
        let mut run = rig.delegator.batch([first, second, third]).start().unwrap();
        let children: Vec<_> = run.events().take(3).map(|event| event.child()).collect();
        until_text(&mut run, "up");
        let control = run.control();
        control.steer(children[1], "early").unwrap();
        control.steer(children[2], "lost cause").unwrap();
        control.stop(children[2]);
        assert!(control.settle(Duration::from_secs(30)));
        fs::write(&open, "").unwrap();
        let heard = said(&mut run);
        let outcomes: Vec<_> = run.finish().results().collect();
        assert!(heard.contains("early") || outcomes[1].missed_steer.as_deref() == Some("early"));
        assert_eq!(outcomes[2].status, Status::Interrupted, "{isolation:?}");
        assert_eq!(outcomes[2].missed_steer.as_deref(), Some("lost cause"), "{isolation:?}");
        assert_eq!(outcomes[0].missed_steer, None, "{isolation:?}");
    }
}

#[test]
fn a_word_that_cannot_be_said_is_refused_with_its_reason() {
    let rig = rig(Isolation::Thread);
    let ops = [text("up"), Op::AwaitInterrupt];
    let mut run = rig.delegator.batch([script(ops, End::Interrupted).task("t")]).start().unwrap();
    let child = until_text(&mut run, "up");
    let control = run.control();
    assert_eq!(control.steer(child, " \n"), Err(SteerError::Blank));
    assert_eq!(control.steer(child, "x".repeat(64 * 1024 + 1)), Err(SteerError::TooLong));
    assert_eq!(control.steer(SubagentId::random(0), "x"), Err(SteerError::NoSuchChild));
    let full = (0..).find_map(|_| control.steer(child, "x").err());
    assert_eq!(full, Some(SteerError::Full));
}

#[test]
fn c05_rb_29_a_batch_that_is_attached_later_finds_the_stop() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let root = Branch::new();
        let (agent, other) = (root.branch(), root.branch());
        let hang = || script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("hangs");
        let mut early = rig.delegator.batch([hang()]).branch(&agent).start().unwrap();
        until_text(&mut early, "up");
        agent.interrupt();
        // Its grandchildren's place is made after the stop.
        let late = rig.delegator.batch([hang(), hang()]).branch(&agent.branch()).start().unwrap();
        for run in [early, late] {
            let statuses: Vec<_> = run.finish().statuses().to_vec();
            assert!(
                statuses.iter().all(|s| *s == Status::Interrupted),
                "{isolation:?} {statuses:?}"
            );
        }
        // What hangs beside, and what comes when the stop is lifted, is not stopped.
        agent.clear();
        for branch in [&other, &agent] {
            let task = script([text("fine")], answer("done")).task("fine");
            let report = rig.delegator.batch([task]).branch(branch).run().unwrap();
            assert_eq!(report.statuses(), [Status::Completed], "{isolation:?}");
        }
    }
}

#[test]
fn c06_an_interrupt_returns_although_a_child_is_wedged() {
    let settings = Settings {
        interrupt_grace: Duration::from_millis(50),
        terminate_grace: Duration::from_millis(50),
        ..Settings::default()
    };
    let rig = rig_with(Isolation::Process, settings);
    let wedged = script([text("up"), Op::Sleep(600_000)], answer("never")).task("wedged");
    let mut run = rig.delegator.batch([wedged]).start().unwrap();
    until_text(&mut run, "up");
    run.control().interrupt();
    let outcome = run.finish().results().next().unwrap();
    assert_eq!(outcome.status, Status::Interrupted, "{outcome:?}");
    assert_eq!(outcome.summary.as_deref(), Some("up"), "{outcome:?}");
}

/// RB-28: one end, and never a hang, whenever the stop comes.
#[test]
fn rb_28_a_stop_at_any_moment_gives_one_end() {
    for isolation in BOTH {
        let rig = rig(isolation);
        for delay in 0..24_u64 {
            let task = script([text("a"), text("b")], answer("done")).task("short");
            let run = rig.delegator.batch([task]).start().unwrap();
            let control = run.control();
            let stopper = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(delay * delay * 100));
                control.interrupt();
            });
            let outcome = run.finish().results().next().unwrap();
            stopper.join().unwrap();
            let fine = matches!(outcome.status, Status::Completed | Status::Interrupted);
            assert!(fine, "{isolation:?} {delay} {outcome:?}");
        }
    }
}

#[test]
fn c20_a_pause_blocks_new_spawns_and_nothing_else() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let d = &rig.delegator;
        let first = script([text("up"), Op::AwaitSteer, Op::AwaitInterrupt], End::Interrupted);
        let second = script([text("second")], answer("2")).task("second");
        let mut run = d.batch([first.task("first"), second]).start().unwrap();
        let child = until_text(&mut run, "up");
        d.pause();
        let refused = d.batch([script([], answer("x")).task("new")]).start().unwrap_err();
        assert!(matches!(refused, StartError::Paused), "{refused}");
        assert!(refused.to_string().contains("resume"), "{refused}");

        let operator = d.operator(None);
        let id = format!("{}/0", run.id());
        let listed = operator.list_blocking();
        assert_eq!((listed[0].list.waiting, listed[0].list.launches_paused), (1, true));
        assert_eq!(
            (&*listed[0].list.children[0].state, listed[0].list.children[0].child),
            ("running", child)
        );
        assert_eq!(operator.steer(&id, "go on").unwrap(), child);
        until_text(&mut run, "go on");
        operator.stop(&id, false).unwrap();
        // The place is free, and nobody takes it.
        wait_for("the first to end", || {
            let list = operator.list_blocking();
            (list[0].list.ended == 1).then_some(())
        });
        let list = &operator.list_blocking()[0].list;
        assert_eq!((list.waiting, list.children.len()), (1, 0), "{isolation:?}");
        d.resume();
        let statuses = run.finish().statuses().to_vec();
        assert_eq!(statuses, [Status::Interrupted, Status::Completed], "{isolation:?}");
    }
}

/// A stop goes through a pause: what waits is settled, and the run ends.
#[test]
fn c20_a_paused_run_can_be_stopped_whole() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let hang = || script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("hangs");
        let mut run = rig.delegator.batch([hang(), hang()]).start().unwrap();
        until_text(&mut run, "up");
        let control: Control = run.control();
        control.pause_launches();
        control.interrupt();
        assert_eq!(run.finish().statuses(), [Status::Interrupted; 2], "{isolation:?}");
    }
}

#[test]
fn c21_a_foreign_conversation_sees_no_child_of_ours() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let d = &rig.delegator;
        let ops = [text("up"), Op::AwaitInterrupt];
        let batch = d.batch([script(ops, End::Interrupted).task("t")]).session("chat-1");
        let mut run = batch.start().unwrap();
        let child = until_text(&mut run, "up");
        let id = run.id().to_string();
        let foreign = d.operator(Some("chat-2"));
        assert_eq!(foreign.list_blocking(), []);
        for id in [id.clone(), format!("{id}/0"), child.to_string(), "latest".to_owned()] {
            let refused = [
                foreign.steer(&id, "x").map(drop),
                foreign.stop(&id, true).map(drop),
                foreign.pause(&id, true).map(drop),
                foreign.extend(&id, Duration::from_secs(1)).map(drop),
                foreign.wait_blocking(&id).map(drop),
            ];
            for refused in refused {
                assert_eq!(refused.unwrap_err().code(), "not_found", "{id}");
            }
        }
        // The owner, made anew under the same key, may; and so may who asks for no conversation.
        assert_eq!(d.operator(Some("chat-1")).list_blocking().len(), 1);
        assert_eq!(d.operator(None).steer(&child.to_string(), "x").unwrap(), child);
        d.operator(Some("chat-1")).stop(&id, false).unwrap();
        assert_eq!(run.finish().statuses(), [Status::Interrupted], "{isolation:?}");
    }
}

#[test]
fn m135_the_answerer_denies_or_approves_once_and_both_are_on_record() {
    for isolation in BOTH {
        for (auto, word) in [(false, "denied"), (true, "approved")] {
            let settings = Settings { subagent_auto_approve: auto, ..Settings::default() };
            let rig = rig_with(isolation, settings);
            let ops = [Op::Approve("rm -r build".to_owned()), Op::Approve("rm -r /".to_owned())];
            let mut run =
                rig.delegator.batch([script(ops, answer("x")).task("t")]).start().unwrap();
            let heard = said(&mut run);
            let outcome = run.finish().results().next().unwrap();
            assert_eq!(heard, word.repeat(2), "{isolation:?}");
            let record: Vec<_> =
                outcome.approvals.iter().map(|a| (&*a.request, a.approved)).collect();
            assert_eq!(record, [("rm -r build", auto), ("rm -r /", auto)], "{isolation:?}");
            let log =
                fs::read_to_string(outcome.logs.as_ref().unwrap().join("events.jsonl")).unwrap();
            assert!(log.contains("subagent_auto_approve") && log.contains("rm -r build"), "{log}");
        }
    }
}

/// The default denies. A word that is no boolean is a configuration error (contract 0), see the tests of the
/// configuration.
#[test]
fn m136_without_a_setting_the_answer_is_no() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let ops = [Op::Approve("anything".to_owned())];
        let mut run = rig.delegator.batch([script(ops, answer("x")).task("t")]).start().unwrap();
        assert_eq!(said(&mut run), "denied", "{isolation:?}");
    }
}

/// Two delegators of one process answer differently at the same time: nothing of the answerer is the
/// process's.
#[test]
fn m137_the_answerer_is_the_childs_own() {
    for isolation in BOTH {
        let rigs = [true, false].map(|auto| {
            rig_with(isolation, Settings { subagent_auto_approve: auto, ..Settings::default() })
        });
        let open = file(&rigs[0], "open");
        let ops = || [text("up"), Op::AwaitFile(open.clone()), Op::Approve("x".to_owned())];
        let start = |rig: &Rig| {
            let task = script(ops(), answer("done")).task("t");
            let mut run = rig.delegator.batch([task]).start().unwrap();
            until_text(&mut run, "up");
            run
        };
        let runs = [start(&rigs[0]), start(&rigs[1])];
        fs::write(&open, "").unwrap();
        assert_eq!(runs.map(|mut run| said(&mut run)), ["approved", "denied"], "{isolation:?}");
    }
}

/// What a child starts reads nothing from our standard input either.
#[test]
fn m137_a_childs_program_has_an_empty_standard_input() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let read = command("read", ["sh", "-c", "read answer || echo nobody asks"]);
        let outcome = rig.delegator.batch([read]).run().unwrap().results().next().unwrap();
        assert_eq!(outcome.summary.as_deref().map(str::trim), Some("nobody asks"), "{outcome:?}");
    }
}
