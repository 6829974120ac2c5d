//! The page that a worker process shares with its parent: an interrupt that is seen without a frame, heartbeats that nobody
//! sends, the same in frames where there is no page, and a child that scribbles over it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use delegate_protocol::{Beat, page};
use delegate_runtime::config::{LauncherWish, Settings};
use delegate_runtime::{
    Agent, Event, Failure, Isolation, ManualClock, Outcome, Session, Status, Task, blocking,
};
use serde::{Deserialize, Serialize};

use crate::alone::alone_with;
use crate::support::wait_for;

const LAUNCHERS: [LauncherWish; 3] = [LauncherWish::Exec, LauncherWish::Zygote, LauncherWish::Pool];

/// What the test agent does with its page. It says `up` first, and `heard` when it was asked to stop.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Doing {
    /// Looks whether it was asked to stop.
    Look,
    /// Waits to be asked to stop.
    Wait,
    /// Says that it gets on, until this file exists.
    Alive(String),
    /// Writes what it likes over its page, until this file exists.
    Scribble(String),
}

pub struct Paged;

impl Agent for Paged {
    const NAME: &'static str = "paged";
    type Params = Doing;
    type Answer = String;

    fn run(&mut self, doing: Doing, session: &mut Session) -> Result<String, Failure> {
        session.text("up");
        let exists = |path: &str| Path::new(path).exists();
        match doing {
            Doing::Look => {
                while !session.is_interrupted() {
                    std::hint::spin_loop();
                }
            }
            // Far beyond what a test waits: only being asked ends it.
            Doing::Wait => while session.wait(Duration::from_secs(3600)).is_ok() {},
            Doing::Alive(until) => {
                while !exists(&until) && !session.is_interrupted() {
                    session.alive();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Doing::Scribble(until) => {
                let (memory, at) = own_page();
                for round in 1.. {
                    memory.write_all_at(&scribble(round), at).unwrap();
                    session.alive();
                    if exists(&until) {
                        break;
                    }
                }
            }
        }
        if session.is_interrupted() {
            session.text(" heard");
            session.checkpoint()?;
        }
        Ok("done".to_owned())
    }
}

/// Where this process has its page.
fn own_page() -> (File, u64) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("delegate-page")).expect("there is a page");
    let start = line.split('-').next().unwrap();
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    (memory, u64::from_str_radix(start, 16).unwrap())
}

/// Noise, all ones, and records that are whole and absurd; never the word that interrupts.
fn scribble(round: u64) -> Vec<u8> {
    let mut noise = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_le_bytes()[..4].try_into().map(u32::from_le_bytes).unwrap()
    };
    let words: Vec<AtomicU32> = (0..1024)
        .map(|_| AtomicU32::new(if round.is_multiple_of(3) { u32::MAX } else { word() }))
        .collect();
    if round % 3 == 1 {
        let tool = Some("x".repeat(1000));
        let most = u64::MAX;
        let beat = Beat {
            sequence: most,
            api_calls: 3,
            current_tool: tool,
            quiet_ms: most,
            activity: most,
        };
        page::write(&words, &page::Record { beat, at_ms: most });
    }
    words[page::INTERRUPT].store(0, Ordering::Relaxed);
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
}

struct Bench {
    delegator: blocking::Delegator,
    clock: ManualClock,
    state: tempfile::TempDir,
}

fn bench(launcher: LauncherWish) -> Bench {
    let (state, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    let settings = Settings {
        launcher,
        child_inactivity: Some(Duration::from_secs(300)),
        heartbeat_interval: Duration::from_millis(100),
        ..Settings::default()
    };
    let builder = blocking::Delegator::builder().isolation(Isolation::Process).settings(settings);
    let delegator = builder.state_dir(state.path()).clock(clock.clone()).build().unwrap();
    Bench { delegator, clock, state }
}

impl Bench {
    fn start(&self, doing: impl IntoIterator<Item = Doing>) -> blocking::Run {
        let doing: Vec<_> = doing.into_iter().collect();
        let count = doing.len();
        let tasks = doing.into_iter().map(|doing| Task::of::<Paged>("a goal", doing));
        let mut run = self.delegator.batch(tasks).start().unwrap();
        let is_up =
            |event: &Event| matches!(event, Event::Text { text, .. } if text.contains("up"));
        assert_eq!(run.events().filter(is_up).take(count).count(), count, "all are up");
        run
    }

    /// The graces of a child that hears nothing are on the batch's own clock: it goes on until the batch is over.
    fn give_up(&self, run: &blocking::Run) {
        wait_for("it is over", || {
            self.clock.advance(Duration::from_secs(20));
            run.control().list_blocking().is_none_or(|list| list.children.is_empty()).then_some(())
        });
    }

    fn file(&self, name: &str) -> String {
        self.state.path().join(name).display().to_string()
    }
}

fn end(mut run: blocking::Run) -> Vec<Outcome> {
    run.events().for_each(drop);
    run.finish().results().collect()
}

/// Each in a process of its own, since what is off is a variable: whether it is heard, how an agent that only says that
/// it gets on ends.
#[test]
fn the_page_and_the_frames_tell_the_same_and_without_both_nothing_is_told() {
    for off in ["", "frames", "page", "frames,page"] {
        alone_with("page::inner_told", &[("DELEGATE_TEST_OFF", off)]);
    }
}

#[test]
#[ignore = "run by the_page_and_the_frames_tell_the_same_..., in a process of its own"]
fn inner_told() {
    let off = std::env::var("DELEGATE_TEST_OFF").unwrap();
    let is_told = off != "frames,page";
    for launcher in LAUNCHERS {
        let bench = bench(launcher);
        let run = bench.start([Doing::Look, Doing::Wait]);
        run.control().interrupt();
        if !is_told {
            bench.give_up(&run);
        }
        for outcome in end(run) {
            assert_eq!(outcome.status, Status::Interrupted, "{launcher:?} {off}");
            let heard = outcome.summary.as_deref().unwrap_or_default().contains("heard");
            assert_eq!(heard, is_told, "{launcher:?} {off}: {outcome:?}");
        }

        let open = bench.file("open");
        let run = bench.start([Doing::Alive(open.clone())]);
        // Each beat that is seen moves the limit on; the last one is seen at most 200 s before it.
        for _ in 0..8 {
            let seen = || {
                {
                    let children = run.control().list_blocking()?.children;
                    children.is_empty()
                        || children[0].quiet_seconds.is_some_and(|quiet| quiet < 99.0)
                }
                .then_some(())
            };
            if is_told {
                wait_for("a sign of life", seen);
            }
            bench.clock.advance(Duration::from_secs(100));
        }
        if is_told {
            fs::write(&open, "").unwrap();
        } else {
            bench.give_up(&run);
        }
        let outcome = end(run).remove(0);
        let expected = if is_told { Status::Completed } else { Status::Timeout };
        assert_eq!(outcome.status, expected, "{launcher:?} {off}: {outcome:?}");
    }
}

/// The parent reads it at each list and at each look, and nothing comes of it. Another child beside is what it was.
#[test]
fn a_child_that_scribbles_over_its_page_harms_nobody() {
    for launcher in LAUNCHERS {
        let bench = bench(launcher);
        let open = bench.file("open");
        let run = bench.start([Doing::Scribble(open.clone()), Doing::Alive(open.clone())]);
        for _ in 0..200 {
            let list = run.control().list_blocking().expect("the batch is there");
            assert_eq!(list.children.len(), 2);
            for child in list.children {
                assert!(child.api_calls <= 3, "{child:?}");
                assert!(child.tool.is_none_or(|tool| tool.len() <= 256));
            }
            bench.clock.advance(Duration::from_secs(1));
        }
        fs::write(&open, "").unwrap();
        let outcomes = end(run);
        for outcome in outcomes {
            assert_eq!(outcome.status, Status::Completed, "{launcher:?}: {outcome:?}");
            assert_eq!(outcome.summary.as_deref(), Some("done"));
        }
    }
}
