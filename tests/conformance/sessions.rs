//! Sessions: one worker that takes several prompts, over both executors. What was asked is answered in order, each
//! turn has one outcome that is stored before it is told, and what the object of the agent holds lives from turn to
//! turn.

use std::time::Duration;

use delegate_runtime::blocking::{NewSession, SessionHandle};
use delegate_runtime::config::Settings;
use delegate_runtime::session::{self, list};
use delegate_runtime::{
    Agent, Event, Failure, Isolation, ManualClock, PromptError, Session, StartError, Status, Task,
    TurnOutcome, Why, blocking,
};

use crate::seen::segments;
use crate::support::{BOTH, Identity, Rig, rig, rig_with, wait_for};

/// Does what a prompt says.
#[derive(Default)]
pub struct Talker {
    turns: usize,
    heard: Vec<String>,
    /// When it is called between two turns it says so in this folder, and leaves when it is told so there.
    leaves: Option<std::path::PathBuf>,
}

impl Agent for Talker {
    const NAME: &'static str = "talker";
    const TAKES_TURNS: bool = true;
    type Params = Option<String>;
    type Answer = String;

    fn run(&mut self, _: Option<String>, _: &mut Session) -> Result<String, Failure> {
        Ok("it has one goal".to_owned())
    }

    fn open(&mut self, params: Option<String>, session: &mut Session) -> Result<(), Failure> {
        match params.as_deref() {
            Some("fail") => return Err(Failure::new("it cannot be opened")),
            Some(word) => self.heard.push(word.to_owned()),
            None => {}
        }
        let past = session.history()?;
        self.heard.extend(past.into_iter().map(|turn| format!("{}={}", turn.prompt, turn.answer)));
        Ok(())
    }

    fn turn(&mut self, prompt: &str, session: &mut Session) -> Result<String, Failure> {
        self.turns += 1;
        let (word, rest) = prompt.split_once(' ').unwrap_or((prompt, ""));
        match word {
            "say" => Ok(rest.to_owned()),
            "text" => {
                session.text(rest);
                session.tool("grep", None, delegate_runtime::Value::Null);
                session.tool_done(3, true);
                session.api_call(delegate_protocol::Tokens { input: 2, output: 3 }, Some(0.25));
                Ok(format!("said {rest}"))
            }
            "count" => Ok(format!("{} turns here", self.turns)),
            "heard" => Ok(self.heard.join(",")),
            "history" => {
                let past = session.history()?;
                Ok(past.iter().map(|turn| turn.prompt.as_str()).collect::<Vec<_>>().join(","))
            }
            "number" => Ok(format!("{:?}", session.turn())),
            "pid" => Ok(std::process::id().to_string()),
            "wait" => {
                session.text("up");
                loop {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // It hears nothing.
            "deaf" => {
                session.text("up");
                std::thread::sleep(Duration::from_secs(600));
                Ok(String::new())
            }
            "steered" => loop {
                session.checkpoint()?;
                if let Some(word) = session.steer() {
                    return Ok(word);
                }
                std::thread::sleep(Duration::from_millis(1));
            },
            "leave" => {
                let (bell, folder) = (session.bell(), std::path::PathBuf::from(rest));
                self.leaves = Some(folder.clone());
                std::thread::spawn(move || {
                    // No longer than whoever waits for what comes of it.
                    for _ in 0..60_000 {
                        if folder.join("ring").exists() {
                            return bell.ring();
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                Ok("will leave".to_owned())
            }
            "fail" => Err(Failure::new(rest)),
            "panic" => panic!("{rest}"),
            "long" => Ok("x".repeat(rest.parse().unwrap())),
            "empty" => Ok(String::new()),
            "helper" => {
                let script = "echo $$ > $0.new; mv $0.new $0; exec sleep 600";
                let owner = session.owner().expect("programs can be started");
                let spawn = ownership::Spawn::new("/bin/sh").args(["-c", script, rest]);
                let held =
                    owner.spawn(spawn, |_| {}).map_err(|error| Failure::new(error.to_string()))?;
                std::mem::forget(held);
                while !std::path::Path::new(rest).exists() {
                    session.checkpoint()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok("started".to_owned())
            }
            other => Err(Failure::new(format!("what is {other}?"))),
        }
    }

    fn between_turns(&mut self, session: &mut Session) -> Result<(), Failure> {
        let Some(folder) = &self.leaves else { return Ok(()) };
        std::fs::write(folder.join("called"), "")?;
        while !folder.join("leave").exists() {
            session.checkpoint()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Failure::new("it is of no use any more"))
    }
}

pub(crate) fn task() -> Task {
    Task::of::<Talker>("talk", None)
}

pub(crate) fn opened(rig: &Rig, change: impl FnOnce(NewSession) -> NewSession) -> SessionHandle {
    change(rig.delegator.session(task())).start().unwrap()
}

fn open(rig: &Rig) -> SessionHandle {
    opened(rig, |session| session)
}

pub(crate) fn ask(session: &mut SessionHandle, prompt: &str) -> TurnOutcome {
    session.prompt(prompt).unwrap().finish()
}

pub(crate) fn answer(session: &mut SessionHandle, prompt: &str) -> String {
    let outcome = ask(session, prompt);
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    outcome.answer
}

/// Waits until its worker waits.
fn idle(session: &SessionHandle) {
    let control = session.control();
    wait_for("an idle worker", || control.is_idle().then_some(()));
}

/// Prompts, and reads until it says that it is up; then `act`.
fn while_up(
    session: &mut SessionHandle,
    prompt: &str,
    act: impl FnOnce(&blocking::Turn<'_>),
) -> TurnOutcome {
    let mut turn = session.prompt(prompt).unwrap();
    assert!(turn.events().any(|event| matches!(event, Event::Text { .. })));
    act(&turn);
    turn.finish()
}

#[test]
fn one_worker_takes_several_prompts_and_keeps_what_it_holds() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let pid = answer(&mut session, "pid");
        assert_eq!(answer(&mut session, "say hello"), "hello", "{isolation:?}");
        assert_eq!(answer(&mut session, "count"), "3 turns here");
        assert_eq!(answer(&mut session, "number"), "Some(4)");
        assert_eq!(answer(&mut session, "pid"), pid, "one worker for all");
        assert_eq!(pid == std::process::id().to_string(), isolation == Isolation::Thread);
        assert_eq!(answer(&mut session, "history"), "pid,say hello,count,number,pid");
        let worker = Identity::of(pid.parse().unwrap()).unwrap();
        let (id, restarts) = (session.id(), session.control().restarts());
        let end = session.close();
        assert_eq!((end.id, end.why, end.turns, end.completed), (id, Why::Closed, 6, 6));
        assert!(end.durable && end.verified_empty && restarts == 0, "{end:?}");
        if isolation == Isolation::Process {
            assert!(!worker.is_alive());
        }
    }
}

/// What a consumer sees of a turn.
#[test]
fn the_events_of_a_turn_are_its_own_and_the_same_in_both_executors() {
    let seen = BOTH.map(|isolation| {
        let rig = rig(isolation);
        let mut session = open(&rig);
        // Its events are read by nobody, and by none of the next turn.
        drop(session.prompt("text first").unwrap());
        let mut turn = session.prompt("text second").unwrap();
        // Those of its worker's start may be the first.
        let begins = |event: &Event| !matches!(event, Event::Turn { .. });
        let events: Vec<Event> = turn.events().skip_while(begins).collect();
        let outcome = turn.finish();
        let (first, last) = (&events[0], &events[events.len() - 1]);
        assert!(matches!(first, Event::Turn { turn: 2, end: None, .. }), "{first:?}");
        let Event::Turn { turn: 2, end: Some(end), .. } = last else { panic!("{last:?}") };
        assert_eq!((end.status, end.preview.as_str()), (Status::Completed, "said second"));
        // Spent in this turn, not in both.
        assert_eq!((outcome.api_calls, outcome.tokens.input, outcome.cost_usd), (1, 2, Some(0.25)));
        let events: Vec<&Event> = events.iter().collect();
        let essence = segments(&events);
        assert!(essence.iter().any(|part| part[0] == "second"), "{essence:?}");
        drop(session);
        essence
    });
    assert_eq!(seen[0], seen[1]);
}

/// Failure, no answer, too long an answer: the turn's end, and the next one begins as if nothing had been.
#[test]
fn a_turn_that_fails_is_over_and_the_session_is_not() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let failed = ask(&mut session, "fail no luck");
        assert_eq!((failed.status, failed.error.as_deref()), (Status::Failed, Some("no luck")));
        assert_eq!(ask(&mut session, "empty").error.as_deref(), Some("it gave no answer"));
        let long = ask(&mut session, "long 8388609");
        assert!(long.error.as_deref().unwrap().contains("8388609 bytes"), "{:?}", long.error);
        assert_eq!(answer(&mut session, "long 8388608").len(), 8_388_608);
        assert_eq!(answer(&mut session, "count"), "5 turns here");
        assert_eq!(session.control().restarts(), 0);
        assert_eq!(session.history().len(), 5);
        assert_eq!(session.close().completed, 2);
    }
}

#[test]
fn what_cannot_be_asked_is_refused_with_its_reason() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let refused = |session: &mut SessionHandle, text: String| session.prompt(text).err();
        assert_eq!(refused(&mut session, " \n".to_owned()), Some(PromptError::Blank));
        let long = "x".repeat(4 * 1024 * 1024 + 1);
        assert_eq!(refused(&mut session, long), Some(PromptError::TooLong));
        let mut turn = session.prompt("wait").unwrap();
        assert!(turn.events().any(|event| matches!(event, Event::Text { .. })));
        drop(turn);
        for _ in 0..session::WAITING {
            drop(session.prompt("say more").unwrap());
        }
        assert_eq!(refused(&mut session, "say more".to_owned()), Some(PromptError::Full));
        session.control().stop();
        wait_for("the end", || {
            (refused(&mut session, "x".to_owned()) == Some(PromptError::Over)).then_some(())
        });
        let end = session.ended();
        assert_eq!((end.why, end.turns, end.completed), (Why::Stopped, 1, 0));
    }
}

/// An agent that does not declare it, one that is not there, and bad parameters: nothing is started, or it is over at
/// once and says why.
#[test]
fn an_agent_without_turns_has_no_session() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let error = rig.delegator.session(Task::new("scripted", "talk")).start().unwrap_err();
        assert!(matches!(&error, StartError::TakesNoTurns { agent } if agent == "scripted"));
        assert!(error.to_string().ends_with("nothing was started"), "{error}");
        let error = rig.delegator.session(Task::new("nobody", "talk")).start().unwrap_err();
        assert!(matches!(error, StartError::UnknownAgent { .. }), "{error}");
        assert_eq!(list::sessions(rig.state.path()).unwrap(), []);
    }
}

/// A worker of another make says by itself that its agent takes no prompts; it is not started again and again.
#[test]
fn a_foreign_worker_refuses_and_the_session_is_over() {
    // This program, as if it were another's.
    let own = std::env::current_exe().unwrap().display().to_string();
    let role = delegate_child::worker::WORKER_ROLE;
    let one = [role, "delegate_roles", "--exact", "--nocapture", "--test-threads=1"];
    let command = std::iter::once(own).chain(one.map(str::to_owned)).collect();
    let settings = Settings { worker_command: Some(command), ..Settings::default() };
    let rig = rig_with(Isolation::Process, settings);
    let mut session = rig.delegator.session(Task::new("scripted", "talk")).start().unwrap();
    let outcome = session.prompt("say x").map(|turn| turn.finish());
    if let Ok(outcome) = outcome {
        assert!(!outcome.was_begun(), "{outcome:?}");
    }
    let end = session.ended();
    assert_eq!((end.why, end.restarts, end.turns), (Why::TakesNoTurns, 0, 0));
}

/// Stored before it is told, readable by any process while it runs and behind its end.
#[test]
fn every_turn_is_in_the_database_when_it_is_told() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let id = session.id();
        let record = || list::find(rig.state.path(), &id.to_string()).unwrap();
        for number in 1..=3_u64 {
            let outcome = ask(&mut session, &format!("say {number}"));
            let turns = list::turns(rig.state.path(), &record()).unwrap();
            let stored = turns.last().unwrap();
            assert_eq!((stored.number, stored.status.as_str()), (number, "completed"));
            assert_eq!(stored.outcome.as_ref(), Some(&outcome), "{isolation:?}");
            assert!(outcome.durable);
        }
        let running = record();
        assert_eq!((running.status, running.turns, running.completed), ("running", 3, 3));
        assert_eq!(running.run_id, session.control().run_id());
        drop(session.close());
        let ended = record();
        assert_eq!((ended.status, ended.why.as_deref()), ("ended", Some("closed")));
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(rig.state.path().join("sessions").join(id.to_string()))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(
            list::prune(rig.state.path(), Duration::ZERO, ended.ended_at.unwrap() + 1.0, false)
                .unwrap(),
            [id]
        );
        assert_eq!(list::sessions(rig.state.path()).unwrap(), []);
    }
}

/// Where nothing can be kept on disk, it is kept in memory and said.
#[test]
fn a_state_directory_that_cannot_be_used_is_said_and_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let builder = blocking::Delegator::builder().isolation(Isolation::Thread);
    let delegator = builder.state_dir(file.join("state")).build().unwrap();
    let mut session = delegator.session(task()).start().unwrap();
    let outcome = session.prompt("say x").unwrap().finish();
    assert_eq!((outcome.answer.as_str(), outcome.durable), ("x", false));
    assert_eq!(answer(&mut session, "history"), "say x");
    let end = session.close();
    assert!(!end.durable && end.warnings[0].contains("in memory only"), "{end:?}");
}

#[test]
fn limits_of_turns_and_idle_time_end_a_session() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = opened(&rig, |session| session.max_turns(2));
        assert_eq!(answer(&mut session, "say 1"), "1");
        assert_eq!(answer(&mut session, "say 2"), "2");
        let third = session.prompt("say 3").map(|turn| turn.finish());
        // Its end may have been quicker.
        match third {
            Ok(outcome) => assert!(!outcome.was_begun(), "{outcome:?}"),
            Err(error) => assert_eq!(error, PromptError::Over),
        }
        assert_eq!(session.ended().why, Why::MaxTurns);

        let (clock, state) = (ManualClock::default(), tempfile::tempdir().unwrap());
        let builder = blocking::Delegator::builder().isolation(isolation).clock(clock.clone());
        let delegator = builder.state_dir(state.path()).build().unwrap();
        let new = delegator.session(task()).idle_timeout(Duration::from_secs(3600));
        let mut session = new.start().unwrap();
        assert_eq!(answer(&mut session, "say 1"), "1");
        idle(&session);
        clock.advance(Duration::from_secs(3600));
        let end = session.ended();
        assert_eq!((end.why, end.restarts), (Why::Idle, 0));
    }
}

/// A stop holds for its turn: what it had said is its answer, the next turn begins in the same worker.
#[test]
fn a_turn_is_stopped_and_the_next_one_begins_in_the_same_worker() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let pid = answer(&mut session, "pid");
        let by_turn = while_up(&mut session, "wait", |turn| turn.stop());
        let by_control = while_up(&mut session, "wait", |turn| turn.control().stop_turn());
        for outcome in [by_turn, by_control] {
            assert_eq!((outcome.status, outcome.answer.as_str()), (Status::Interrupted, "up"));
            assert_eq!(outcome.error.as_deref(), Some("it was stopped"), "{isolation:?}");
        }
        // Between two turns it stops nothing.
        session.control().stop_turn();
        assert_eq!(answer(&mut session, "count"), "4 turns here");
        assert_eq!(answer(&mut session, "pid"), pid);
        assert_eq!(session.control().restarts(), 0);
        drop(session.close());
    }
}

/// One that waits in line is never begun when it is stopped; the one before it goes on.
#[test]
fn a_prompt_that_waits_is_stopped_before_its_turn() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        let control = session.control();
        let mut first = session.prompt("steered").unwrap();
        assert!(first.events().any(|event| matches!(event, Event::Turn { .. })));
        drop(first);
        let second = session.prompt("say never").unwrap();
        second.stop();
        let second = second.finish();
        assert!(!second.was_begun() && second.status == Status::Interrupted, "{second:?}");
        control.steer("go on").unwrap();
        assert_eq!(answer(&mut session, "history"), "steered", "{isolation:?}");
        assert_eq!(session.history()[0].answer, "go on");
        drop(session.close());
    }
}

/// A word is taken in the turn that runs; one that is said between two waits for the next.
#[test]
fn it_is_steered_in_a_turn_and_between_two() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let mut session = open(&rig);
        assert_eq!(answer(&mut session, "say hello"), "hello");
        session.control().steer("between").unwrap();
        assert_eq!(answer(&mut session, "steered"), "between", "{isolation:?}");
        let mut turn = session.prompt("steered").unwrap();
        assert!(turn.events().any(|event| matches!(event, Event::Turn { end: None, .. })));
        turn.control().steer("within").unwrap();
        assert_eq!(turn.finish().answer, "within");
        drop(session.close());
    }
}

/// Each turn has its own clock, that begins with it; idle time between two counts for none.
#[test]
fn a_turn_has_a_limit_of_its_own() {
    for isolation in BOTH {
        let (clock, state) = (ManualClock::default(), tempfile::tempdir().unwrap());
        let builder = blocking::Delegator::builder().isolation(isolation).clock(clock.clone());
        let delegator = builder.state_dir(state.path()).build().unwrap();
        let new = delegator.session(task().timeout(Duration::from_secs(60)));
        let mut session = new.start().unwrap();
        assert_eq!(answer(&mut session, "say 1"), "1");
        idle(&session);
        clock.advance(Duration::from_secs(3600));
        let outcome = while_up(&mut session, "wait", |_| clock.advance(Duration::from_secs(60)));
        assert_eq!((outcome.status, outcome.answer.as_str()), (Status::Timeout, "up"));
        assert_eq!(outcome.error.as_deref(), Some("its limit of 60 s ran out"));
        assert_eq!(answer(&mut session, "count"), "3 turns here", "{isolation:?}");
        assert_eq!(session.control().restarts(), 0);
        drop(session.close());
    }
}
