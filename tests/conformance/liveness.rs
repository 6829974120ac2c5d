//! Liveness (contract 5, matrix 11.11, C7 to C11) over both executors: time is a clock of the test's own,
//! so that 450 s pass at once. What a child does stays real.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use delegate_runtime::config::{OnStale, Settings};
use delegate_runtime::{
    Event, Isolation, Limit, Listener, Liveness, ManualClock, Outcome, Sign, Status, Stopped,
    SubagentId, Task, blocking,
};

use crate::agents::{End, Op, answer, script};
use crate::support::{BOTH, Rig, Scratch, as_asked, command, wait_for};

const SECOND: Duration = Duration::from_secs(1);

/// Beats come fast (really), limits are long (on the test's clock).
fn settings() -> Settings {
    Settings { heartbeat_interval: Duration::from_millis(20), ..Settings::default() }
}

struct Bench {
    rig: Rig,
    clock: ManualClock,
}

fn bench(isolation: Isolation, settings: Settings) -> Bench {
    let state = Scratch::new();
    let clock = ManualClock::default();
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(as_asked(settings))
        .state_dir(state.path())
        .clock(clock.clone())
        .build()
        .unwrap();
    Bench { rig: Rig { delegator, state }, clock }
}

/// What a listener heard.
#[derive(Default)]
struct Heard {
    started: Vec<u32>,
    signs: Vec<Sign>,
    stopped: Vec<(u32, Status)>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Ear {
    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.0.lock().unwrap()
    }
}

impl Listener for Ear {
    fn subagent_start(&self, child: &delegate_runtime::Identity) {
        self.heard().started.push(child.task_index);
    }
    fn subagent_stop(&self, child: &Stopped) {
        self.heard().stopped.push((child.identity.task_index, child.end.status));
    }
    fn touch(&self, sign: &Sign) {
        self.heard().signs.push(sign.clone());
    }
}

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

fn tool(name: &str) -> Op {
    Op::Tool(name.to_owned())
}

/// A running batch of one task, driven step by step.
struct Driven {
    batch: blocking::Run,
    seen: Vec<Event>,
    child: SubagentId,
}

impl Bench {
    /// Starts one task and reads until it runs.
    fn start(&self, task: Task) -> Driven {
        self.start_with(task, None)
    }

    fn start_with(&self, task: Task, ear: Option<&Ear>) -> Driven {
        let mut batch = self.rig.delegator.batch([task]);
        if let Some(ear) = ear {
            batch = batch.listener(ear.clone());
        }
        let mut batch = batch.start().unwrap();
        let mut seen = Vec::new();
        loop {
            let event = batch.events().next().expect("it starts");
            let started = matches!(event, Event::Start { .. });
            let child = event.child();
            seen.push(event);
            if started {
                return Driven { batch, seen, child };
            }
        }
    }
}

impl Driven {
    fn until(&mut self, found: impl Fn(&Event) -> bool) {
        loop {
            let event = self.batch.events().next().expect("the event comes before the end");
            let last = found(&event);
            self.seen.push(event);
            if last {
                return;
            }
        }
    }

    fn until_text(&mut self, part: &str) {
        self.until(|event| matches!(event, Event::Text { text, .. } if text.contains(part)));
    }

    fn end(mut self) -> (Vec<Event>, Outcome) {
        self.seen.extend(self.batch.events());
        let report = self.batch.finish();
        let outcome = report.results().next().unwrap();
        (self.seen, outcome)
    }
}

fn warnings(events: &[Event]) -> Vec<Limit> {
    let about = |event: &Event| match event {
        Event::Warning { about, .. } => Some(*about),
        _ => None,
    };
    events.iter().filter_map(about).collect()
}

fn diagnostic(outcome: &Outcome) -> String {
    let path = outcome.diagnostic_path.as_ref().unwrap_or_else(|| panic!("none: {outcome:?}"));
    assert!(outcome.error.as_ref().unwrap().contains(path.to_str().unwrap()), "{outcome:?}");
    assert_eq!(path.parent(), outcome.logs.as_deref());
    fs::read_to_string(path).unwrap()
}

#[test]
fn c07_a_stale_verdict_ends_the_wait_and_names_its_threshold() {
    for isolation in BOTH {
        for (first, after, limit) in [
            (vec![text("up")], 450, "stale_idle_seconds"),
            (vec![tool("grep"), text("up")], 1200, "stale_in_tool_seconds"),
        ] {
            let bench = bench(isolation, settings());
            let ops = first.into_iter().chain([Op::AwaitInterrupt]);
            let mut run = bench.start(script(ops, End::Interrupted).task("hangs"));
            run.until_text("up");
            bench.clock.advance(Duration::from_secs(after));
            let (events, outcome) = run.end();
            let shown = format!("{isolation:?} {outcome:?}");
            assert_eq!(outcome.status, Status::Timeout, "{shown}");
            let error = outcome.error.as_deref().unwrap();
            assert!(error.contains(limit) && error.contains(&after.to_string()), "{shown}");
            assert_eq!(outcome.timeout_seconds, Some(after as f64), "{shown}");
            assert_eq!(outcome.summary.as_deref(), Some("up"), "{shown}");
            assert_eq!(warnings(&events), [], "{shown}");
        }
    }
}

/// The negative control of the verdict, and the setting that only warns.
#[test]
fn c07_before_the_threshold_and_with_warn_nothing_is_ended() {
    for isolation in BOTH {
        for on_stale in [OnStale::Interrupt, OnStale::Warn] {
            let bench = bench(isolation, Settings { on_stale, ..settings() });
            let open = bench.rig.state.path().join("open").to_str().unwrap().to_owned();
            let ops = [text("up"), Op::AwaitFile(open.clone())];
            let mut run = bench.start(script(ops, answer("done")).task("slow"));
            run.until_text("up");
            let seconds = if on_stale == OnStale::Warn { 5000 } else { 449 };
            bench.clock.advance(Duration::from_secs(seconds));
            if on_stale == OnStale::Warn {
                run.until(|event| matches!(event, Event::Warning { .. }));
            }
            fs::write(&open, "").unwrap();
            let (events, outcome) = run.end();
            assert_eq!(outcome.status, Status::Completed, "{isolation:?} {on_stale:?} {outcome:?}");
            let expected: &[Limit] =
                if on_stale == OnStale::Warn { &[Limit::StaleIdle] } else { &[] };
            assert_eq!(warnings(&events), expected, "{isolation:?}");
        }
    }
}

#[test]
fn c07_kill_gives_a_stale_child_no_grace() {
    let bench = bench(Isolation::Process, Settings { on_stale: OnStale::Kill, ..settings() });
    let ops = [Op::ApiCall(1, 1), text("up"), Op::Sleep(600_000)];
    let mut run = bench.start(script(ops, answer("never")).task("deaf"));
    run.until_text("up");
    bench.clock.advance(Duration::from_secs(450));
    let (_, outcome) = run.end();
    assert_eq!(outcome.status, Status::Timeout, "{outcome:?}");
    assert_eq!((outcome.api_calls, outcome.cost_usd), (1, Some(0.25)), "{outcome:?}");
}

/// An agent's word that it gets on comes with a beat only, and counts; beats alone do not (RB-24: the
/// heartbeat of a hung child hides nothing).
#[test]
fn c08_rb_24_an_activity_tick_alone_is_progress_and_a_beat_is_none() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let path = bench.rig.state.path().to_owned();
        let at = |name: &str| path.join(name).to_str().unwrap().to_owned();
        let ear = Ear::default();
        let ops = [text("up"), Op::AwaitFile(at("tick")), Op::Alive, Op::AwaitInterrupt];
        let mut run = bench.start_with(script(ops, End::Interrupted).task("t"), Some(&ear));
        run.until_text("up");
        bench.clock.advance(Duration::from_secs(440));
        fs::write(at("tick"), "").unwrap();
        // The tick has arrived when a sign of life says so.
        wait_for("a sign that it reports", || {
            bench.clock.advance(Duration::from_millis(20));
            ear.heard().signs.last().filter(|sign| sign.quiet_for < SECOND).map(|_| ())
        });
        bench.clock.advance(Duration::from_secs(440));
        let before = ear.heard().signs.len();
        wait_for("it lives on", || {
            bench.clock.advance(Duration::from_millis(20));
            (ear.heard().signs.len() > before).then_some(())
        });
        // Now it only beats.
        bench.clock.advance(Duration::from_secs(20));
        let (_, outcome) = run.end();
        assert_eq!((outcome.status, outcome.timeout_seconds), (Status::Timeout, Some(450.0)));
    }
}

/// Counted by the parent's clock, and what was given meanwhile is in it.
#[test]
fn an_agent_can_ask_how_much_time_is_left() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let path = bench.rig.state.path().to_owned();
        let at = |name: &str| Op::AwaitFile(path.join(name).to_str().unwrap().to_owned());
        let ops =
            [text("up"), at("late"), Op::TimeLeft, at("more"), Op::TimeLeft, Op::AwaitInterrupt];
        let ops = ops.into_iter().chain([Op::TimeLeft]);
        let task = script(ops, End::Interrupted).task("t").timeout(60 * SECOND);
        let mut run = bench.start(task);
        run.until_text("up");
        bench.clock.advance(45 * SECOND);
        fs::write(path.join("late"), "").unwrap();
        run.until_text("15000");
        let (child, control) = (run.child, run.batch.control());
        control.extend(child, 30 * SECOND);
        assert!(control.settle(60 * SECOND));
        fs::write(path.join("more"), "").unwrap();
        run.until_text("45000");
        control.stop(child);
        // One that unwinds is answered, too.
        let (events, outcome) = run.end();
        assert!(format!("{events:?}").contains("any"), "{events:?}");
        assert_eq!(outcome.status, Status::Interrupted, "{outcome:?}");
        // Without a limit.
        let bench = self::bench(isolation, settings());
        let (events, _) = bench.start(script([Op::TimeLeft], answer("done")).task("t")).end();
        assert!(format!("{events:?}").contains("any"), "{events:?}");
    }
}

#[test]
fn rb_58_blank_deltas_hide_no_hang() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let mut run = bench.start(script([text("up"), Op::Blank], End::Interrupted).task("blank"));
        run.until_text("up");
        run.until(|event| matches!(event, Event::Text { text, .. } if text.trim().is_empty()));
        bench.clock.advance(Duration::from_secs(450));
        let (_, outcome) = run.end();
        assert_eq!((outcome.status, outcome.timeout_seconds), (Status::Timeout, Some(450.0)));
    }
}

#[test]
fn c09_the_window_restarts_and_the_child_is_warned_once_per_window() {
    for isolation in BOTH {
        let window = Some(Duration::from_secs(100));
        let bench = bench(isolation, Settings { child_inactivity: window, ..settings() });
        let path = bench.rig.state.path().to_owned();
        let at = |name: &str| path.join(name).to_str().unwrap().to_owned();
        // It goes on when it is warned, and says what it was told.
        let ops = [text("up"), Op::AwaitNotice, text("again"), Op::AwaitNotice, text("third")]
            .into_iter()
            .chain([Op::AwaitFile(at("end"))]);
        let mut run = bench.start(script(ops, answer("done")).task("window"));
        run.until_text("up");
        for next in ["again", "third"] {
            bench.clock.advance(Duration::from_secs(79));
            bench.clock.advance(SECOND);
            run.until(|event| matches!(event, Event::Warning { .. }));
            run.until_text(next);
        }
        bench.clock.advance(Duration::from_secs(79));
        fs::write(at("end"), "").unwrap();
        let (events, outcome) = run.end();
        assert_eq!(outcome.status, Status::Completed, "{isolation:?} {outcome:?}");
        assert_eq!(warnings(&events), [Limit::Inactivity; 2], "{isolation:?}");
        let told = |event: &&Event| matches!(event, Event::Text { text, .. } if text.contains("child_inactivity_seconds"));
        assert_eq!(events.iter().filter(told).count(), 2, "{events:?}");
    }
}

#[test]
fn c09_a_window_without_progress_is_a_timeout_that_names_it() {
    for isolation in BOTH {
        let window = Some(Duration::from_secs(100));
        let bench = bench(isolation, Settings { child_inactivity: window, ..settings() });
        let mut run =
            bench.start(script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("w"));
        run.until_text("up");
        bench.clock.advance(Duration::from_secs(100));
        let (_, outcome) = run.end();
        assert_eq!((outcome.status, outcome.timeout_seconds), (Status::Timeout, Some(100.0)));
        assert!(
            outcome.error.as_ref().unwrap().contains("child_inactivity_seconds"),
            "{outcome:?}"
        );
    }
}

#[test]
fn c10_zero_call_timeout_writes_a_diagnostic() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let ops = [tool("grep"), text("up"), Op::AwaitInterrupt];
        let task = script(ops, End::Interrupted).task("wedged").timeout(60 * SECOND);
        let mut run = bench.start(task);
        run.until_text("up");
        bench.clock.advance(60 * SECOND);
        let (_, outcome) = run.end();
        assert_eq!(outcome.timeout_phase.as_deref(), Some("before_first_llm_call"), "{outcome:?}");
        let text = diagnostic(&outcome);
        for part in
            ["child_timeout_seconds, 60 s", "goal: wedged", "running grep", "current tool: grep"]
        {
            assert!(text.contains(part), "{isolation:?}: {part} is missing in {text}");
        }
        // The stack: each thread with its state and call; of a process also from outside.
        assert!(text.contains("== thread ") && text.contains("system call: "), "{text}");
        let outside = text.split("from outside").nth(1).unwrap();
        assert_eq!(outside.contains("name: agent"), isolation == Isolation::Process, "{text}");
    }
}

#[test]
fn c10_after_a_call_the_phase_is_another_and_there_is_no_file() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let ops =
            [Op::ApiCall(3, 4), Op::Wrote("out.txt".to_owned()), text("up"), Op::AwaitInterrupt];
        let task = script(ops, End::Interrupted).task("late").timeout(60 * SECOND);
        let mut run = bench.start(task);
        run.until_text("up");
        bench.clock.advance(60 * SECOND);
        let (_, outcome) = run.end();
        assert_eq!(outcome.timeout_phase.as_deref(), Some("after_llm_calls"), "{outcome:?}");
        assert_eq!(outcome.diagnostic_path, None);
        let logs = outcome.logs.clone().unwrap();
        assert!(!Path::new(&logs).join("timeout-diagnostic.txt").exists());
        // RB-68, and C15: what it did is not thrown away.
        assert_eq!((outcome.summary.as_deref(), outcome.cost_usd), (Some("up"), Some(0.25)));
        assert_eq!(
            (outcome.files_written.as_slice(), outcome.tokens.output),
            (&["out.txt".to_owned()][..], 4)
        );
    }
}

/// RB-27: also with no grace at all, the file is whole before the child is gone; and a worker that is
/// stopped and answers nothing is looked at from outside.
#[test]
fn rb_27_a_worker_that_cannot_answer_is_looked_at_from_outside() {
    let none =
        Settings { interrupt_grace: Duration::ZERO, terminate_grace: Duration::ZERO, ..settings() };
    let bench = bench(Isolation::Process, none);
    let ops = [text("up"), Op::Sleep(600_000)];
    let mut run = bench.start(script(ops, answer("never")).task("stopped").timeout(60 * SECOND));
    run.until_text("up");
    let pid = run.seen.iter().find_map(|event| match event {
        Event::Start { pid, .. } => *pid,
        _ => None,
    });
    let pid = rustix::process::Pid::from_raw(pid.unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    wait_for("every thread stands still", || {
        let mut tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok()?;
        let stands = |task: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            Some(stat.rsplit_once(')')?.1.trim_start().starts_with('T'))
        };
        tasks.all(|task| stands(task) == Some(true)).then_some(())
    });
    bench.clock.advance(60 * SECOND);
    let driven = std::thread::spawn(move || run.end());
    // The graces are 0, and this clock stands still between two steps.
    wait_for("its end", || {
        bench.clock.advance(Duration::from_millis(1));
        driven.is_finished().then_some(())
    });
    let (_, outcome) = driven.join().unwrap();
    assert_eq!(outcome.status, Status::Timeout, "{outcome:?}");
    let text = diagnostic(&outcome);
    assert!(text.contains("(it did not answer)"), "{text}");
    assert!(text.contains("name: agent") && text.contains("state: T"), "{text}");
}

#[test]
fn c11_without_a_timeout_all_of_its_fields_are_null() {
    for isolation in BOTH {
        let bench = bench(isolation, settings());
        let run = bench.start(script([text("x")], End::Panic("boom".to_owned())).task("error"));
        let (_, outcome) = run.end();
        assert_eq!((outcome.status, outcome.timeout_seconds), (Status::Error, None));
        assert_eq!((outcome.timed_out_after_seconds, outcome.last_event_age), (None, None));
        assert_eq!((&outcome.timeout_phase, &outcome.diagnostic_path), (&None, &None));
    }
}

#[test]
fn m104_m107_the_parent_is_touched_while_the_child_runs() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let path = bench.rig.state.path().to_owned();
        let at = |name: &str| path.join(name).to_str().unwrap().to_owned();
        let ear = Ear::default();
        let ops = [Op::ApiCall(1, 1), text("up"), Op::AwaitFile(at("tool")), tool("web_search")]
            .into_iter()
            .chain([text("in tool"), Op::AwaitFile(at("end"))]);
        let mut run = bench.start_with(script(ops, answer("done")).task("touch"), Some(&ear));
        run.until_text("up");
        bench.clock.advance(30 * SECOND);
        let last = |count: usize| {
            wait_for("a touch", || {
                let heard = ear.heard();
                (heard.signs.len() == count).then(|| heard.signs[count - 1].clone())
            })
        };
        let idle = last(1);
        assert_eq!(idle.description, "a subagent is writing (iteration 1/50)", "{isolation:?}");
        fs::write(at("tool"), "").unwrap();
        run.until_text("in tool");
        bench.clock.advance(30 * SECOND);
        let busy = last(2);
        assert!(busy.description.contains("running web_search (iteration 1/50)"), "{busy:?}");
        assert_eq!((busy.liveness, busy.api_calls), (Liveness::Quiet, 1));
        fs::write(at("end"), "").unwrap();
        let (_, outcome) = run.end();
        assert_eq!(outcome.status, Status::Completed);
    }
}

#[test]
fn m105_m106_after_an_answer_and_after_an_error_nobody_is_touched() {
    for isolation in BOTH {
        for end in [answer("done"), End::Fail("no".to_owned(), None), End::Panic("x".to_owned())] {
            let bench = bench(isolation, Settings::default());
            let ear = Ear::default();
            let run = bench.start_with(script([], end.clone()).task("over"), Some(&ear));
            // `finish` waits for the last callback, so what is heard now is all.
            let (_, _) = run.end();
            bench.clock.advance(3000 * SECOND);
            assert_eq!(ear.heard().signs, [], "{isolation:?} {end:?}");
            assert_eq!(ear.heard().stopped.len(), 1);
        }
    }
}

#[test]
fn m108_a_child_inside_a_tool_is_touched_beyond_the_idle_limit() {
    for isolation in BOTH {
        let short = Settings { stale_idle: 60 * SECOND, ..Settings::default() };
        let bench = bench(isolation, short);
        let end = bench.rig.state.path().join("end").to_str().unwrap().to_owned();
        let ear = Ear::default();
        let ops = [tool("build"), text("up"), Op::AwaitFile(end.clone())];
        let mut run = bench.start_with(script(ops, answer("done")).task("tool"), Some(&ear));
        run.until_text("up");
        for count in 1..=39 {
            bench.clock.advance(30 * SECOND);
            wait_for("a touch", || (ear.heard().signs.len() >= count).then_some(()));
        }
        fs::write(&end, "").unwrap();
        assert_eq!(run.end().1.status, Status::Completed, "{isolation:?}");
    }
}

/// A program that prints nothing has no channel: it is neither quiet nor stale.
#[test]
fn a_program_has_no_channel_and_is_never_stale() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let folder = bench.rig.state.path().to_owned();
        let end = folder.join("end");
        let wait = format!("echo up; until [ -e {} ]; do sleep 0.01; done", end.display());
        let ear = Ear::default();
        let mut run = bench.start_with(command("program", ["sh", "-c", &wait]), Some(&ear));
        run.until_text("up");
        bench.clock.advance(Duration::from_secs(100_000));
        let sign = wait_for("a touch", || ear.heard().signs.first().cloned());
        assert_eq!(sign.liveness, Liveness::NoChannel, "{isolation:?}");
        fs::write(&end, "").unwrap();
        let (events, outcome) = run.end();
        assert_eq!(
            (outcome.status, warnings(&events)),
            (Status::Completed, vec![]),
            "{isolation:?}"
        );
    }
}

#[test]
fn a_deadline_can_be_extended_while_the_child_runs() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let ops = [Op::ApiCall(1, 1), text("up"), Op::AwaitInterrupt];
        let task = script(ops, End::Interrupted).task("longer").timeout(60 * SECOND);
        let mut run = bench.start(task);
        run.until_text("up");
        let control = run.batch.control();
        control.extend(run.child, 30 * SECOND);
        assert!(control.settle(crate::support::LIMIT));
        bench.clock.advance(89 * SECOND);
        // It is still there: pausing it is carried out, and would not be after its verdict.
        control.pause(run.child);
        assert!(control.settle(crate::support::LIMIT));
        bench.clock.advance(1000 * SECOND);
        control.unpause(run.child);
        assert!(control.settle(crate::support::LIMIT));
        bench.clock.advance(SECOND);
        let (_, outcome) = run.end();
        let shown = format!("{isolation:?} {outcome:?}");
        assert_eq!(
            (outcome.status, outcome.timeout_seconds),
            (Status::Timeout, Some(90.0)),
            "{shown}"
        );
        assert_eq!(outcome.timed_out_after_seconds, Some(1090.0), "{shown}");
    }
}

#[test]
fn a_paused_child_that_is_stopped_ends() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let ops = [text("up"), Op::AwaitInterrupt];
        let mut run = bench.start(script(ops, End::Interrupted).task("paused"));
        run.until_text("up");
        let control = run.batch.control();
        control.pause(run.child);
        assert!(control.settle(crate::support::LIMIT));
        control.stop(run.child);
        let (_, outcome) = run.end();
        assert_eq!(outcome.status, Status::Interrupted, "{isolation:?} {outcome:?}");
    }
}

/// The hard cap is enforced outside the caller's loop: nobody reads an event or waits for the report.
#[test]
fn rb_22_the_limit_holds_while_the_callers_loop_stands_still() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let task = script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("cap");
        let mut run = bench.start(task.timeout(60 * SECOND));
        run.until_text("up");
        bench.clock.advance(60 * SECOND);
        let (child, batch) = (run.child, &run.batch);
        let outcome = wait_for("its outcome", || batch.outcome(child));
        assert_eq!(outcome.status, Status::Timeout, "{isolation:?}");
    }
}

#[test]
fn hooks_are_called_once_per_child_in_both_directions_also_for_one_that_never_ran() {
    for isolation in BOTH {
        let places = Settings { max_concurrent_children: 1, ..Settings::default() };
        let bench = bench(isolation, places);
        let ear = Ear::default();
        let tasks = [
            script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("runs"),
            script([], answer("never")).task("waits"),
        ];
        let mut batch = bench.rig.delegator.batch(tasks).listener(ear.clone()).start().unwrap();
        let control = batch.control();
        for event in batch.events() {
            if matches!(event, Event::Text { .. }) {
                control.interrupt();
            }
        }
        let _report = batch.finish();
        let heard = ear.heard();
        let mut stopped = heard.stopped.clone();
        stopped.sort();
        assert_eq!(heard.started, [0, 1], "{isolation:?}");
        assert_eq!(stopped, [(0, Status::Interrupted), (1, Status::Interrupted)]);
    }
}

/// A callback that panics, and one that blocks for a while, harm nothing.
#[test]
fn a_listener_that_misbehaves_holds_up_no_deadline() {
    struct Bad(Mutex<std::sync::mpsc::Receiver<()>>);
    impl Listener for Bad {
        fn subagent_start(&self, _: &delegate_runtime::Identity) {
            panic!("bad");
        }
        fn touch(&self, _: &Sign) {
            assert!(self.0.lock().unwrap().recv().is_err());
        }
    }
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let (free, blocked) = std::sync::mpsc::channel::<()>();
        let task = script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("t");
        let batch = bench
            .rig
            .delegator
            .batch([task.timeout(60 * SECOND)])
            .listener(Bad(Mutex::new(blocked)));
        let mut batch = batch.start().unwrap();
        let events: Vec<_> = batch
            .events()
            .inspect(|event| {
                if matches!(event, Event::Text { .. }) {
                    bench.clock.advance(30 * SECOND);
                    bench.clock.advance(30 * SECOND);
                }
            })
            .collect();
        drop(free);
        assert!(matches!(events.last(), Some(Event::Complete { .. })));
        assert_eq!(batch.finish().statuses(), [Status::Timeout], "{isolation:?}");
    }
}

#[test]
fn relayed_events_carry_who_they_are_about() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let ops = [tool("a"), tool("b"), text("x")];
        let task = script(ops, answer("done")).task("goal of it");
        let mut batch = bench.rig.delegator.batch([task]).start().unwrap();
        let relayed: Vec<_> = batch.relayed().collect();
        let counts: Vec<_> = relayed
            .iter()
            .filter(|relayed| matches!(relayed.event, Event::Tool { .. } | Event::Complete { .. }))
            .map(|relayed| relayed.tool_count)
            .collect();
        assert_eq!(counts, [1, 2, 2], "{isolation:?}");
        for relayed in &relayed {
            let json = serde_json::to_value(relayed).unwrap();
            assert_eq!((&json["goal"], &json["task_count"]), (&"goal of it".into(), &1.into()));
            assert_eq!(json["subagent_id"], json["child"]);
            assert_eq!(json["depth"], 1);
            assert!(json["child_session_id"].is_string() && json["tool_count"].is_u64());
        }
        let _report = batch.finish();
    }
}
