//! What a provider allows, across parents: two real processes on one state directory and a real HTTP server.
//! Part of `keys`, whose agent and provider it uses.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use delegate_runtime::config::Settings;
use delegate_runtime::credentials::CallLimits;
use delegate_runtime::{Isolation, Status, blocking};
use serde::{Deserialize, Serialize};

use crate::keys::{Do, Ear, FINE, Provider, on, pool_at, task};
use crate::support::{BOTH, wait_for};

/// The variable that tells a parent what to do.
const PARENT: &str = "DELEGATE_TEST_PARENT";

/// A parent in a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    state: String,
    url: String,
    name: String,
    in_threads: bool,
    children: Vec<Vec<Do>>,
    most: Option<u32>,
    per_minute: Option<u32>,
}

/// One that was started. Ended when it is dropped.
struct Parent(Child);

impl Drop for Parent {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Parent {
    fn start(job: &Job) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["keys_shared::a_parent", "--exact", "--ignored", "--nocapture"])
            .env(PARENT, serde_json::to_string(job).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn ends_well(&mut self) {
        let status = wait_for("a parent", || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

#[test]
#[ignore = "run by the other tests of this file, in processes of its own"]
fn a_parent() {
    let job: Job = serde_json::from_str(&std::env::var(PARENT).unwrap()).unwrap();
    let limits = CallLimits { max_concurrent_calls: job.most, requests_per_minute: job.per_minute };
    let settings = Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
    let isolation = if job.in_threads { Isolation::Thread } else { Isolation::Process };
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(settings)
        .credential_pool("p", pool_at(&job.url, &["k0"]))
        .state_dir(Path::new(&job.state))
        .build()
        .unwrap();
    let ear = Ear::default();
    let run = delegator.batch(job.children.into_iter().map(task)).listener(ear.clone()).start();
    let file = Path::new(&job.state).join(&job.name);
    let over = std::sync::atomic::AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&file, ear.waiting().to_string()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let report = run.unwrap().finish();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        report
    });
    for outcome in report.results() {
        assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    }
}

/// Children of a parent that have waited for a second at least.
fn waiting(job: &Job) -> usize {
    let text = fs::read_to_string(Path::new(&job.state).join(&job.name)).unwrap_or_default();
    text.parse().unwrap_or(0)
}

fn two(
    isolation: Isolation,
    state: &Path,
    provider: &Provider,
    children: Vec<Vec<Do>>,
) -> [Job; 2] {
    ["one", "two"].map(|name| Job {
        state: state.to_str().unwrap().to_owned(),
        url: provider.url(),
        name: name.to_owned(),
        in_threads: isolation == Isolation::Thread,
        children: children.clone(),
        most: None,
        per_minute: None,
    })
}

/// Apart (the control) they have twice as many; together no more than one of them alone.
#[test]
fn calls_at_once_of_two_parents_stay_below_one_limit() {
    for isolation in BOTH {
        for together in [true, false] {
            let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let provider = Provider::start([("k0", FINE)], Duration::from_millis(40));
            let mut jobs = two(isolation, states[0].path(), &provider, vec![vec![Do::Call(6)]; 5]);
            for job in &mut jobs {
                job.most = Some(3);
            }
            if !together {
                states[1].path().to_str().unwrap().clone_into(&mut jobs[1].state);
            }
            let mut parents = jobs.each_ref().map(Parent::start);
            parents.iter_mut().for_each(Parent::ends_well);
            assert_eq!(provider.calls("k0", 200), 60, "{isolation:?}");
            let most = provider.most_at_once();
            assert_eq!(most <= 3, together, "{isolation:?} {together}: {most}");
        }
    }
}

/// The one that came first has a line of twenty calls; the other, with one, is not behind all of them.
#[test]
fn a_parent_with_a_long_line_leaves_the_other_its_turn() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let provider = Provider::start([("k0", FINE)], Duration::from_millis(50));
        let [mut many, mut few] = two(isolation, state.path(), &provider, vec![]);
        many.children = vec![vec![Do::Call(100_000)]; 4];
        few.children = vec![vec![Do::Call(3)]];
        (many.most, few.most) = (Some(1), Some(1));
        let _busy = Parent::start(&many);
        wait_for("the first to be busy", || (provider.calls("k0", 200) >= 4).then_some(()));
        Parent::start(&few).ends_well();
        assert_eq!(provider.most_at_once(), 1, "{isolation:?}");
    }
}

#[test]
fn calls_of_a_minute_of_two_parents_stay_below_one_limit() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let provider = Provider::start([("k0", FINE)], Duration::ZERO);
        let mut jobs = two(isolation, state.path(), &provider, vec![vec![Do::Call(1)]; 4]);
        for job in &mut jobs {
            job.per_minute = Some(5);
        }
        let _parents = jobs.each_ref().map(Parent::start);
        wait_for("five calls, and three who wait", || {
            let waiting: usize = jobs.iter().map(waiting).sum();
            (provider.all_calls() >= 5 && waiting == 3).then_some(())
        });
        assert_eq!(provider.all_calls(), 5, "{isolation:?}");
    }
}

/// What one parent was told by the provider, the other keeps to.
#[test]
fn a_refusal_that_one_parent_met_holds_for_the_other() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let provider = Provider::start([("k0", (503, Some("4"), ""))], Duration::ZERO);
        let jobs = two(isolation, state.path(), &provider, vec![vec![Do::CallPolitely]]);
        let mut first = Parent::start(&jobs[0]);
        wait_for("the refusal", || (provider.calls("k0", 503) == 1).then_some(()));
        let refused = Instant::now();
        let known = state.path().join("keys/calls.json");
        wait_for("it to be known", || {
            let text = fs::read_to_string(&known).ok()?;
            text.contains("\"until\"").then_some(())
        });
        provider.set("k0", FINE);
        let mut second = Parent::start(&jobs[1]);
        second.ends_well();
        assert!(refused.elapsed() >= Duration::from_secs(3), "{isolation:?}: it called at once");
        first.ends_well();
        assert_eq!([provider.calls("k0", 503), provider.calls("k0", 200)], [1, 2], "{isolation:?}");
    }
}

#[test]
fn the_calls_of_a_parent_that_was_killed_do_not_keep_the_other_waiting() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let provider = Provider::start([("k0", FINE)], Duration::ZERO);
        let [mut holds, mut waits] = two(isolation, state.path(), &provider, vec![]);
        holds.children = vec![vec![Do::Call(1), Do::Hold, Do::Interrupted]];
        waits.children = vec![vec![Do::Call(1)]];
        (holds.most, waits.most) = (Some(1), Some(1));
        let holder = Parent::start(&holds);
        let held = || {
            let folder = fs::read_dir(state.path().join("keys")).ok()?;
            let mut texts = folder.map(|entry| fs::read_to_string(entry.unwrap().path()));
            let one = |text: &String| text.contains("\"calls\":1");
            (provider.all_calls() == 1 && texts.any(|text| text.is_ok_and(|text| one(&text))))
                .then_some(())
        };
        wait_for("the permit to be held", held);
        let mut waiter = Parent::start(&waits);
        wait_for("the other to wait", || (waiting(&waits) == 1).then_some(()));
        assert_eq!(provider.all_calls(), 1, "{isolation:?}");
        drop(holder);
        waiter.ends_well();
        assert_eq!(provider.all_calls(), 2, "{isolation:?}");
    }
}
