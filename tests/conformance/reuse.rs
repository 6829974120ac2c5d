//! A worker that carries several children: only where the agent says that it may, no more of them than `pool.max_uses`,
//! and none after one that has left its process changed (RB-48).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::time::Duration;

use delegate_runtime::config::{LauncherWish, Pool, Settings};
use delegate_runtime::{Agent, Failure, Isolation, Outcome, Session, Status, Task};
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::alone::alone_with;
use crate::support::{Identity, Rig, rig_with, run, wait_for};

/// What a child changes of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Nothing,
    Dir,
    Umask,
    Limit,
    Descriptor,
    Output,
    Thread,
    Process,
    /// It fails.
    Fails,
    /// It waits to be killed.
    Hangs,
}

/// All that a program can change without `unsafe`. The environment is compared too (`worker::state` has that).
const CHANGES: [Change; 7] = [
    Change::Dir,
    Change::Umask,
    Change::Limit,
    Change::Descriptor,
    Change::Output,
    Change::Thread,
    Change::Process,
];

/// What a child finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pid: u32,
    /// Children that its object has carried before.
    before: u32,
    dir: String,
    umask: String,
    limit: Option<u64>,
    descriptors: usize,
    interrupted: bool,
}

fn change(what: Change, session: &mut Session) -> Result<(), Failure> {
    match what {
        Change::Nothing => {}
        Change::Dir => std::env::set_current_dir("/proc").unwrap(),
        Change::Umask => drop(rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077))),
        Change::Limit => {
            let now = rustix::process::getrlimit(Resource::Nofile);
            let lower = Rlimit { current: Some(200), maximum: now.maximum };
            rustix::process::setrlimit(Resource::Nofile, lower).unwrap();
        }
        Change::Descriptor => std::mem::forget(fs::File::open("/dev/null").unwrap()),
        Change::Output => {
            let null = fs::File::options().write(true).open("/dev/null").unwrap();
            rustix::stdio::dup2_stdout(&null).unwrap();
        }
        Change::Thread => {
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(600)));
        }
        Change::Process => {
            // detached-spawn: ok — its worker's scope owns it, which is what is tested
            let child = std::process::Command::new("sleep").arg("600").spawn();
            drop(child.unwrap());
        }
        Change::Fails => return Err(Failure::new("on purpose")),
        Change::Hangs => loop {
            session.checkpoint()?;
            std::thread::sleep(Duration::from_millis(1));
        },
    }
    Ok(())
}

/// One that may be used again, and one that says nothing of it.
#[derive(Default)]
pub struct Reused(u32);

#[derive(Default)]
pub struct Single(u32);

impl Agent for Reused {
    const NAME: &'static str = "reused";
    const REUSABLE: bool = true;
    type Params = Change;
    type Answer = Found;

    fn run(&mut self, what: Change, session: &mut Session) -> Result<Found, Failure> {
        found_and_changed(&mut self.0, what, session)
    }
}

impl Agent for Single {
    const NAME: &'static str = "single";
    type Params = Change;
    type Answer = Found;

    fn run(&mut self, what: Change, session: &mut Session) -> Result<Found, Failure> {
        found_and_changed(&mut self.0, what, session)
    }
}

fn found_and_changed(
    before: &mut u32,
    what: Change,
    session: &mut Session,
) -> Result<Found, Failure> {
    let found = found(before, session);
    change(what, session)?;
    Ok(found)
}

fn found(before: &mut u32, session: &Session) -> Found {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "a line of {}", std::process::id()).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find(|line| line.starts_with("Umask:")).unwrap();
    *before += 1;
    Found {
        pid: std::process::id(),
        before: *before - 1,
        dir: std::env::current_dir().unwrap().display().to_string(),
        umask: umask.to_owned(),
        limit: rustix::process::getrlimit(Resource::Nofile).current,
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        interrupted: session.is_interrupted(),
    }
}

fn pool(max_uses: u32) -> Rig {
    let pool = Pool { max_idle: 1, max_uses, ..Pool::default() };
    let settings = Settings {
        launcher: LauncherWish::Pool,
        pool,
        terminate_grace: Duration::from_millis(200),
        interrupt_grace: Duration::from_millis(100),
        ..Settings::default()
    };
    let rig = rig_with(Isolation::Process, settings);
    // The first child finds neither template nor shelf.
    one(&rig, Change::Nothing);
    ready(&rig, Reused::NAME);
    rig
}

/// A worker waits: the next child takes that one.
fn ready(rig: &Rig, agent: &str) -> u32 {
    wait_for("a worker that waits", || rig.delegator.waiting_workers(agent).pop())
}

fn one(rig: &Rig, what: Change) -> Outcome {
    let (outcomes, report) = run(rig, [Task::of::<Reused>("a goal", what)]);
    assert!(report.verified_empty(), "{:?}", report.left_running());
    outcomes.into_iter().next().unwrap()
}

fn found_by(rig: &Rig, what: Change) -> Found {
    let outcome = one(rig, what);
    assert_eq!(outcome.status, Status::Completed, "{:?}", outcome.error);
    outcome.answer::<Reused>().unwrap()
}

#[test]
fn a_worker_of_a_reusable_agent_carries_several_children_and_its_object_is_made_once() {
    let rig = pool(3);
    let mut pids = Vec::new();
    for turn in 0..6 {
        ready(&rig, Reused::NAME);
        let outcome = one(&rig, Change::Nothing);
        let found = outcome.answer::<Reused>().unwrap();
        // One it had before.
        assert_eq!(found.before, (turn + 1) % 3, "turn {turn}: {pids:?}");
        assert_eq!((outcome.pid, outcome.launcher.as_deref()), (Some(found.pid), Some("pool")));
        // What it printed is in the folder of this child and of no other.
        let stdout = outcome.logs.as_ref().unwrap().join("stdout");
        let printed = fs::read_to_string(stdout).ok();
        assert_eq!(printed.unwrap_or_default().lines().count(), 1, "turn {turn}");
        pids.push(found.pid);
    }
    let different: BTreeSet<_> = pids.iter().collect();
    assert_eq!(different.len(), 3, "three children each: {pids:?}");
    assert_eq!(rig.delegator.templates().len(), 1);
}

#[test]
fn an_agent_that_says_nothing_and_a_pool_that_asks_for_nothing_use_no_worker_again() {
    let rig = pool(10);
    let mut pids = BTreeSet::new();
    for _ in 0..4 {
        let (outcomes, _) = run(&rig, [Task::of::<Single>("a goal", Change::Nothing)]);
        let found = outcomes[0].answer::<Single>().unwrap();
        assert!(found.before == 0 && pids.insert(found.pid));
        ready(&rig, Single::NAME);
    }
    let rig = pool(1);
    for _ in 0..3 {
        ready(&rig, Reused::NAME);
        let found = found_by(&rig, Change::Nothing);
        assert!(found.before == 0 && pids.insert(found.pid));
    }
}

#[test]
fn rb_48_nothing_of_one_child_is_there_for_the_next() {
    alone_with("reuse::inner_state", &[]);
}

/// The control: without the look at the state the next child has what the last one left.
#[test]
fn rb_48_without_the_look_at_the_state_it_is() {
    alone_with("reuse::inner_state", &[("DELEGATE_TEST_OFF", "state")]);
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn inner_state() {
    let looks = std::env::var("DELEGATE_TEST_OFF").is_err();
    let mut seen = 0;
    for what in CHANGES {
        let rig = pool(10);
        let clean = found_by(&rig, Change::Nothing);
        ready(&rig, Reused::NAME);
        let changing = found_by(&rig, what);
        assert_eq!(
            changing.pid, clean.pid,
            "{what:?}: it was used again, since nothing was changed"
        );
        ready(&rig, Reused::NAME);
        let after = found_by(&rig, Change::Nothing);
        if looks {
            assert_ne!(after.pid, clean.pid, "{what:?}: it is retired");
            let Found { pid, before, .. } = clean;
            assert_eq!(Found { pid, before, ..after }, clean, "{what:?}");
        } else if after.pid == clean.pid {
            seen += 1;
        }
    }
    assert_eq!(seen > 3, !looks, "{seen}");
}

#[test]
fn a_worker_whose_child_failed_was_killed_or_was_stopped_carries_no_other() {
    let rig = pool(10);
    let first = found_by(&rig, Change::Nothing);
    ready(&rig, Reused::NAME);
    assert_eq!(one(&rig, Change::Fails).status, Status::Failed);
    ready(&rig, Reused::NAME);
    let second = found_by(&rig, Change::Nothing);
    assert_ne!(first.pid, second.pid);

    ready(&rig, Reused::NAME);
    let mut batch =
        rig.delegator.batch([Task::of::<Reused>("a goal", Change::Hangs)]).start().unwrap();
    let pid = wait_for("it runs", || batch.control().list_blocking()?.children.first()?.pid);
    assert_eq!(pid, second.pid);
    let victim = Identity::of(pid).unwrap();
    let number = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    batch.events().for_each(drop);
    let report = batch.finish();
    assert!(report.verified_empty() && !report.all_completed());
    assert!(!victim.is_alive());

    ready(&rig, Reused::NAME);
    let third = found_by(&rig, Change::Nothing);
    ready(&rig, Reused::NAME);
    let mut batch =
        rig.delegator.batch([Task::of::<Reused>("a goal", Change::Hangs)]).start().unwrap();
    wait_for("it runs", || {
        let list = batch.control().list_blocking()?;
        list.children.first().filter(|child| child.state == "running").map(drop)
    });
    batch.control().interrupt();
    batch.events().for_each(drop);
    assert_eq!(batch.finish().statuses(), [Status::Interrupted]);
    ready(&rig, Reused::NAME);
    let fourth = found_by(&rig, Change::Nothing);
    assert!(fourth.pid != third.pid && !fourth.interrupted, "a page of its own");
}

/// Nothing of a worker that waits for its next child outlives the delegator.
#[test]
fn a_worker_that_waits_to_be_used_again_ends_with_its_delegator() {
    let rig = pool(10);
    let used = found_by(&rig, Change::Nothing);
    let waits = Identity::of(used.pid).expect("it lives on");
    ready(&rig, Reused::NAME);
    drop(rig);
    wait_for("it is gone", || (!waits.is_alive()).then_some(()));
}
