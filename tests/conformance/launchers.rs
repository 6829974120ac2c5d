//! How worker processes are started: executed, as copies of a template, and from a stock of waiting ones. What
//! a child is must not depend on it, but for what its agent prepared.

use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use delegate_runtime::config::{LauncherWish, Pool, Settings};
use delegate_runtime::{Agent, Failure, Isolation, Session, Status, Task};
use serde::{Deserialize, Serialize};

use crate::alone::alone_with;
use crate::support::{Identity, Rig, rig_with, run, wait_for};

/// An agent that prepares something, and can say what its process is like.
#[derive(Default)]
pub struct Ready {
    /// What it holds for its children.
    held: Vec<u8>,
    /// The process in which it was prepared.
    by: u32,
}

/// What it does. Variables of the process say what it prepares: they are there before any task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Doing {
    /// A file to which it adds its number as it begins.
    note: String,
    /// Waits for this file.
    wait: String,
    /// Changes all that a process can change.
    spoil: bool,
    /// Answers never, and looks at nothing.
    mute: bool,
    /// Something large.
    ballast: String,
}

/// What a process is like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pid: u32,
    prepared_by: u32,
    held: usize,
    hash: u64,
    dir: String,
    umask: String,
    variable: Option<String>,
    session_leader: bool,
    descriptors: usize,
    blocked: String,
    ignored: String,
    oom_score: String,
    children: usize,
    own_kib: u64,
}

const MIB: &str = "DELEGATE_SUITE_PREPARES_MIB";
const LOG: &str = "DELEGATE_SUITE_PREPARES_LOG";

impl Agent for Ready {
    const NAME: &'static str = "ready";
    type Params = Doing;
    type Answer = Facts;

    fn prepare(&mut self) -> Result<(), Failure> {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
        self.held = vec![1; number(MIB).unwrap_or(0) << 20];
        self.by = std::process::id();
        // Every generator that is asked here begins with the same state in each copy.
        let _seeded = RandomState::new().hash_one(1);
        let log = std::env::var(LOG).unwrap_or_default();
        if log == "fail" {
            return Err(Failure::new("its model is not there"));
        }
        if log == "thread" {
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(600)));
        }
        if log.starts_with('/') {
            append(&log, &format!("{}\n", self.by));
        }
        Ok(())
    }

    fn run(&mut self, doing: Doing, session: &mut Session) -> Result<Facts, Failure> {
        if !doing.note.is_empty() {
            append(&doing.note, &format!("{}\n", std::process::id()));
        }
        let facts = self.facts();
        if doing.mute {
            std::thread::sleep(Duration::from_secs(600));
        }
        while !doing.wait.is_empty() && !Path::new(&doing.wait).exists() {
            session.checkpoint()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        if doing.spoil {
            std::env::set_current_dir("/").unwrap();
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
            std::mem::forget(fs::File::open("/dev/null").unwrap());
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(600)));
        }
        Ok(facts)
    }
}

impl Ready {
    fn facts(&self) -> Facts {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let rest: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let pid = std::process::id();
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let own = rollup.lines().filter(|line| line.starts_with("Private_Dirty:"));
        let own = own.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Facts {
            pid,
            prepared_by: self.by,
            held: self.held.len(),
            hash: RandomState::new().hash_one(1),
            dir: std::env::current_dir().unwrap().display().to_string(),
            umask: field("Umask:"),
            variable: std::env::var("DELEGATE_SUITE_VARIABLE").ok(),
            session_leader: rest[3] == pid.to_string(),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            blocked: field("SigBlk:"),
            ignored: field("SigIgn:"),
            oom_score: fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().to_owned(),
            children: fs::read_to_string(format!("/proc/self/task/{pid}/children"))
                .map_or(0, |list| list.split_whitespace().count()),
            own_kib: own.sum(),
        }
    }
}

fn append(path: &str, text: &str) {
    let mut file = fs::File::options().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn over(launcher: LauncherWish) -> Rig {
    let pool = Pool { max_idle: 2, ..Pool::default() };
    let settings = Settings {
        launcher,
        pool,
        terminate_grace: Duration::from_millis(200),
        interrupt_grace: Duration::from_millis(100),
        ..Settings::default()
    };
    rig_with(Isolation::Process, settings)
}

const ALL: [LauncherWish; 3] = [LauncherWish::Exec, LauncherWish::Zygote, LauncherWish::Pool];
const COPIES: [LauncherWish; 2] = [LauncherWish::Zygote, LauncherWish::Pool];

fn task(goal: &str, doing: &Doing) -> Task {
    Task::of::<Ready>(goal, doing.clone())
}

/// Runs so many at once and gives what they say.
fn facts_of(rig: &Rig, count: usize) -> Vec<Facts> {
    let tasks = (0..count).map(|number| task(&format!("task {number}"), &Doing::default()));
    let (outcomes, report) = run(rig, tasks);
    assert!(report.verified_empty(), "{:?}", report.left_running());
    outcomes.iter().map(|outcome| outcome.answer::<Ready>().unwrap()).collect()
}

/// What may differ between two children, taken out.
fn essence(facts: &Facts) -> Facts {
    let Facts { dir, umask, variable, session_leader, descriptors, .. } = facts.clone();
    let Facts { blocked, ignored, oom_score, children, held, .. } = facts.clone();
    let own = |pid: u32| if pid == facts.pid { 1 } else { 0 };
    Facts {
        pid: 0,
        prepared_by: own(facts.pid),
        held,
        hash: 0,
        dir,
        umask,
        variable,
        session_leader,
        descriptors,
        blocked,
        ignored,
        oom_score,
        children,
        own_kib: 0,
    }
}

#[test]
fn a_child_is_the_same_process_however_it_was_started() {
    let executed = facts_of(&over(LauncherWish::Exec), 1).remove(0);
    for launcher in COPIES {
        let rig = over(launcher);
        let mut hashes = HashSet::new();
        for facts in facts_of(&rig, 6).into_iter().chain(facts_of(&rig, 2)) {
            assert_eq!(essence(&facts), essence(&executed), "{launcher:?}");
            assert_ne!(facts.prepared_by, facts.pid, "prepared before it was there");
            assert!(hashes.insert(facts.hash), "random state of its own");
        }
        let templates = rig.delegator.templates();
        let [template] = &templates[..] else { panic!("one template: {templates:?}") };
        assert_eq!((&*template.agent, template.started, &template.unfit), ("ready", 1, &None));
    }
    assert_eq!(executed.prepared_by, executed.pid);
}

#[test]
fn the_launcher_of_each_child_and_the_reason_are_in_the_report() {
    for (launcher, words) in ALL.into_iter().zip([&["exec"][..], &["zygote"], &["zygote", "pool"]])
    {
        let rig = over(launcher);
        let (outcomes, report) = run(&rig, [task("one", &Doing::default())]);
        let word = outcomes[0].launcher.clone().unwrap();
        assert!(words.contains(&&*word), "{launcher:?}: {word}");
        let said = format!("{}: the setting launcher is {}", launcher.word(), launcher.word());
        assert_eq!(report.launching(), [said]);
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["launching"][0], report.launching()[0].as_str());
    }
}

#[test]
fn a_dead_template_is_followed_by_another_and_no_task_is_run_twice() {
    for launcher in COPIES {
        let rig = over(launcher);
        let note = rig.state.path().join("note");
        let doing = Doing { note: note.display().to_string(), ..Doing::default() };
        for round in 0..4 {
            let (outcomes, report) = run(&rig, (0..3).map(|_| task("one", &doing)));
            assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed));
            assert!(report.verified_empty());
            assert_eq!(lines(&note).len(), 3 * (round + 1), "each ran once");
            let template = rig.delegator.templates().remove(0);
            let template = template.pid.and_then(Identity::of).expect("a template");
            kill(template);
            wait_for("it is gone", || (!template.is_alive()).then_some(()));
        }
        let template = rig.delegator.templates().remove(0);
        assert!(template.started >= 4 && template.unfit.is_none(), "{template:?}");
    }
}

fn kill(who: Identity) {
    let pid = rustix::process::Pid::from_raw(who.pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// What a killed worker held is told, once, and the others go on; a killed one that waited costs nobody a task.
#[test]
fn rb_03_a_pool_worker_that_is_killed_while_busy_has_one_outcome() {
    let rig = over(LauncherWish::Pool);
    for round in 0..10 {
        let (note, go) = (rig.state.path().join(format!("n{round}")), format!("g{round}"));
        let go = rig.state.path().join(go);
        let doing = Doing {
            note: note.display().to_string(),
            wait: go.display().to_string(),
            ..Doing::default()
        };
        let mut batch = rig.delegator.batch((0..3).map(|_| task("one", &doing))).start().unwrap();
        let pids = wait_for("all run", || Some(lines(&note)).filter(|lines| lines.len() == 3));
        let victim = Identity::of(pids[round % 3].parse().unwrap()).unwrap();
        kill(victim);
        if let Some(waiting) = rig.delegator.waiting_workers("ready").pop().and_then(Identity::of) {
            kill(waiting);
            // A signal takes its time, and the next child would be given to one that is dying.
            wait_for("it is dead", || (!waiting.is_alive()).then_some(()));
        }
        fs::write(&go, "").unwrap();
        batch.events().for_each(drop);
        let report = batch.finish();
        let outcomes: Vec<_> = report.results().collect();
        let ended: Vec<_> = outcomes.iter().map(|outcome| outcome.status).collect();
        let completed = ended.iter().filter(|status| **status == Status::Completed).count();
        assert_eq!((ended.len(), completed), (3, 2), "{ended:?}");
        let failed = outcomes.iter().find(|outcome| outcome.status != Status::Completed).unwrap();
        assert_eq!(failed.pid, Some(victim.pid));
        assert_eq!(lines(&note).len(), 3, "nothing is run again");
    }
}

#[test]
fn rb_12_what_a_template_has_ready_is_reported_and_a_failure_is_an_error() {
    let rig = over(LauncherWish::Zygote);
    facts_of(&rig, 1);
    let prepared = rig.delegator.templates().remove(0).prepared.expect("a report");
    assert_eq!(prepared.agent, "ready");
    assert!(prepared.agents.contains(&"scripted".to_owned()));
    assert!(prepared.fork_us > 0, "a copy was measured: {prepared:?}");
}

#[test]
fn rb_12_what_cannot_be_prepared_fails_the_child_in_the_same_words() {
    alone_with("launchers::inner_preparing_fails", &[(LOG, "fail")]);
}

#[test]
#[ignore = "run by rb_12_what_cannot_be_prepared_fails_the_child_in_the_same_words, in a process of its own"]
fn inner_preparing_fails() {
    let errors = ALL.map(|launcher| {
        let (outcomes, report) = run(&over(launcher), [task("one", &Doing::default())]);
        assert_eq!(outcomes[0].status, Status::Failed);
        if launcher != LauncherWish::Exec {
            let said = report.launching().join("\n");
            let why =
                "workers of ready were executed: it could not be prepared: its model is not there";
            assert!(said.contains(why), "{said}");
        }
        outcomes[0].error.clone().unwrap()
    });
    assert_eq!(errors[0], "its model is not there");
    assert_eq!((&errors[1], &errors[2]), (&errors[0], &errors[0]));
}

#[test]
fn a_template_with_another_thread_is_not_used() {
    alone_with("launchers::inner_threads", &[(LOG, "thread")]);
}

/// Each copy would lack it.
#[test]
#[ignore = "run by a_template_with_another_thread_is_not_used, in a process of its own"]
fn inner_threads() {
    let (outcomes, report) = run(&over(LauncherWish::Zygote), [task("one", &Doing::default())]);
    assert_eq!(outcomes[0].status, Status::Completed, "{:?}", outcomes[0].error);
    assert_eq!(outcomes[0].launcher.as_deref(), Some("exec"));
    assert!(report.launching()[1].contains("a copy has only one"), "{:?}", report.launching());
}

#[test]
fn an_agent_is_prepared_once_for_all_copies() {
    let state = tempfile::tempdir().unwrap();
    let log = state.path().join("log");
    alone_with("launchers::inner_prepared_once", &[(LOG, log.to_str().unwrap())]);
}

#[test]
#[ignore = "run by an_agent_is_prepared_once_for_all_copies, in a process of its own"]
fn inner_prepared_once() {
    let log = std::env::var(LOG).unwrap();
    let log = Path::new(&log);
    facts_of(&over(LauncherWish::Zygote), 3);
    assert_eq!(lines(log).len(), 1, "prepared once for three");
    facts_of(&over(LauncherWish::Exec), 3);
    assert_eq!(lines(log).len(), 4, "and by each that was executed");
}

/// Of what was prepared a child has nothing of its own.
#[test]
fn rb_13_a_warm_child_shares_what_was_prepared() {
    alone_with("launchers::inner_memory_is_shared", &[(MIB, "64")]);
}

#[test]
#[ignore = "run by rb_13_a_warm_child_shares_what_was_prepared, in a process of its own"]
fn inner_memory_is_shared() {
    let executed = facts_of(&over(LauncherWish::Exec), 1).remove(0);
    assert!(executed.own_kib > 64 * 1024, "{executed:?}");
    for launcher in COPIES {
        let rig = over(launcher);
        for facts in facts_of(&rig, 4) {
            assert_eq!(facts.held, 64 << 20);
            assert!(facts.own_kib < 8 * 1024, "{launcher:?}: {facts:?}");
        }
        let prepared = rig.delegator.templates().remove(0).prepared.expect("a report");
        assert!(prepared.anonymous_kib > 64 * 1024, "{prepared:?}");
        // Whether huge pages can be had is the kernel's matter; where they were asked for both are measured.
        let has_huge_pages = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(prepared.fork_us_small_pages > 0, has_huge_pages, "{prepared:?}");
    }
}

/// One child per worker: what one never answers is nobody else's matter, and nothing is put in line again.
#[test]
fn rb_39_a_child_that_never_answers_is_ended_and_not_run_again() {
    for launcher in COPIES {
        let rig = over(launcher);
        let note = rig.state.path().join("note");
        let doing = Doing { note: note.display().to_string(), ..Doing::default() };
        let tasks = (0..6).map(|number| {
            let doing = Doing { mute: number % 3 == 0, ..doing.clone() };
            task("one", &doing).timeout(Duration::from_secs(1))
        });
        let (outcomes, report) = run(&rig, tasks);
        let statuses: Vec<_> = outcomes.iter().map(|outcome| outcome.status).collect();
        let (done, late) = (Status::Completed, Status::Timeout);
        assert_eq!(statuses, [late, done, done, late, done, done]);
        assert!(report.verified_empty());
        let pids: HashSet<_> = lines(&note).into_iter().collect();
        assert_eq!((lines(&note).len(), pids.len()), (6, 6), "each ran once, in its own process");
    }
}

/// Guards lower their own score; a child has that of its owner, and whoever is killed for want of memory is not
/// the guard.
#[test]
fn rb_40_copies_are_as_ready_to_be_killed_for_memory_as_their_owner() {
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    for launcher in ALL {
        for facts in facts_of(&over(launcher), 2) {
            assert_eq!(facts.oom_score, own.trim(), "{launcher:?}");
        }
    }
}

#[test]
fn rb_48_nothing_of_one_child_is_visible_to_the_next() {
    for launcher in ALL {
        let rig = over(launcher);
        let before = facts_of(&rig, 1).remove(0);
        let spoil = Doing { spoil: true, ..Doing::default() };
        let (outcomes, _) = run(&rig, (0..3).map(|_| task("spoil", &spoil)));
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed));
        let mut pids = HashSet::new();
        for facts in facts_of(&rig, 4) {
            assert_eq!(essence(&facts), essence(&before), "{launcher:?}");
            assert!(pids.insert(facts.pid), "a process of its own");
        }
    }
}

/// The caller hands over and goes on; the size is the loop's matter. And nobody stays a zombie.
#[test]
fn rb_56_a_large_argument_does_not_hold_up_its_caller_and_no_zombie_stays() {
    let rig = over(LauncherWish::Pool);
    let go = rig.state.path().join("go");
    let doing = Doing { wait: go.display().to_string(), ..Doing::default() };
    let busy = rig.delegator.batch((0..4).map(|_| task("busy", &doing))).start().unwrap();
    let ballast = Doing { ballast: "x".repeat(8 << 20), ..Doing::default() };
    // That it returned while all workers are busy is the assertion: they go on only after it.
    let large = rig.delegator.batch([task("large", &ballast)]).start().unwrap();
    fs::write(&go, "").unwrap();
    let end = |batch: delegate_runtime::blocking::Run| {
        let report = batch.finish();
        assert!(report.all_completed(), "{:?}", report.statuses());
    };
    end(large);
    end(busy);
    for _ in 0..3 {
        facts_of(&rig, 20);
    }
    let template = rig.delegator.templates().remove(0).pid.expect("a template");
    let supervisor = parent_of(template);
    let zombies = || {
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        let children = children.unwrap_or_default();
        let of = |pid: &str| pid.parse().ok().and_then(Identity::of);
        children.split_whitespace().filter_map(of).filter(|who| !who.is_alive()).count()
    };
    wait_for("no zombie", || (zombies() == 0).then_some(()));
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Workers that wait are there ahead, are used, and leave.
#[test]
fn a_pool_is_filled_ahead_and_emptied_when_it_is_not_used() {
    let idle = Duration::from_secs(2);
    let pool = Pool { min_idle: 1, max_idle: 3, idle, max_uses: 1 };
    let settings = Settings { launcher: LauncherWish::Pool, pool, ..Settings::default() };
    let rig = rig_with(Isolation::Process, settings);
    facts_of(&rig, 1);
    let waiting = || rig.delegator.waiting_workers("ready");
    wait_for("it is filled", || (waiting().len() == 3).then_some(()));
    wait_for("one is kept", || (waiting().len() == 1).then_some(()));
    let kept = waiting()[0];
    let facts = facts_of(&rig, 1).remove(0);
    assert_eq!(facts.pid, kept, "whoever waited was used");
    let all: Vec<_> = wait_for("others are there", || {
        Some(waiting()).filter(|waiting| !waiting.is_empty() && !waiting.contains(&kept))
    });
    let all: Vec<_> = all.into_iter().filter_map(Identity::of).collect();
    drop(rig);
    wait_for("they leave with their owner", || all.iter().all(|who| !who.is_alive()).then_some(()));
}
