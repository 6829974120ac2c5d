//! What a child may use of the machine (RB-40, RB-41): each limit over the process executor and every way to start
//! one, told from any other end; and what becomes of them over threads.

use std::time::Duration;

use delegate_runtime::config::{LauncherWish, Settings};
use delegate_runtime::{Cause, ExitReason, Isolation, Outcome, StartError, Status, Task, blocking};
use ownership::ration::{Limit, Means, Offers};
use ownership::{Containment, Ration};

use crate::step::{Step, Stepper};
use crate::support::{Rig, command, rig_with, run};

const MIB: u64 = 1 << 20;
const LAUNCHERS: [LauncherWish; 3] = [LauncherWish::Exec, LauncherWish::Zygote, LauncherWish::Pool];

fn step(step: Step) -> Task {
    Task::of::<Stepper>("step", step)
}

fn rationed(launcher: LauncherWish, ration: Ration) -> Rig {
    rig_with(Isolation::Process, Settings { ration, launcher, ..Settings::default() })
}

/// Whether a cgroup holds this here. Skips loudly where none does.
fn is_held_together(limit: Limit) -> bool {
    let held = Offers::look(Containment::Auto).decide(limit);
    let together = matches!(held.means, Some(Means::CgroupV1 | Means::CgroupV2 | Means::Counted));
    if !together {
        eprintln!("SKIPPED: NO CGROUP HOLDS {} HERE: {:?}", limit.word(), held.not);
    }
    together
}

fn note(outcome: &Outcome) -> String {
    outcome.notes.join("; ")
}

/// RB-40: whoever needs too much is ended, and told so; those beside it and its guards live.
#[test]
fn rb_40_who_runs_out_of_memory_is_ended_alone_and_named() {
    if !is_held_together(Limit::Memory) {
        return;
    }
    for launcher in LAUNCHERS {
        let rig = rationed(launcher, Ration { memory: Some(96 * MIB), ..Ration::default() });
        let tasks = [
            step(Step::Answer("before".into())),
            step(Step::Fill(512 << 20)),
            step(Step::Fill(8 << 20)),
            step(Step::KillSelf),
        ];
        let (outcomes, report) = run(&rig, tasks);
        assert_eq!(outcomes[0].status, Status::Completed, "{launcher:?} {:?}", outcomes[0]);
        assert_eq!(outcomes[2].status, Status::Completed, "{launcher:?} {:?}", outcomes[2]);
        let hog = &outcomes[1];
        assert_eq!((hog.status, hog.exit_reason), (Status::Error, ExitReason::Error), "{hog:?}");
        assert_eq!(hog.cause, Some(Cause::OutOfMemory), "{launcher:?} {hog:?}");
        assert_eq!(hog.failure_reason.as_deref(), Some("out_of_memory"));
        let error = hog.error.clone().unwrap_or_default();
        assert!(error.contains("out of memory (max_memory 96MiB)"), "{error}");
        // A kill of anybody else is only that.
        let killed = Some(Cause::Signaled { signal: 9, core_dumped: false });
        assert_eq!(outcomes[3].cause, killed, "{:?}", outcomes[3]);
        assert_eq!(outcomes[3].failure_reason, None, "{:?}", outcomes[3]);
        assert!(report.verified_empty(), "{:?}", report.warnings());
    }
}

/// RB-40: the memory is that of all that the child started, and a child that copes with a helper that was
/// ended says so in its entry.
#[test]
fn rb_40_memory_is_that_of_all_that_a_child_starts() {
    if !is_held_together(Limit::Memory) {
        return;
    }
    let ration = Ration { memory: Some(96 * MIB), ..Ration::default() };
    let rig = rationed(LauncherWish::Exec, ration);
    let hog = "head -c 600M /dev/zero | tail > /dev/null; echo coped";
    let (outcomes, _) = run(&rig, [command("hog", ["sh", "-c", hog])]);
    let outcome = &outcomes[0];
    assert_eq!(outcome.status, Status::Failed, "{outcome:?}");
    assert!(note(outcome).contains("out of memory"), "{outcome:?}");
    // What it had to say is kept.
    assert!(outcome.summary.as_deref().unwrap_or_default().contains("coped"), "{outcome:?}");
    let free = rationed(LauncherWish::Exec, Ration::default());
    let (outcomes, _) = run(&free, [command("hog", ["sh", "-c", hog])]);
    assert_eq!(outcomes[0].status, Status::Completed, "{:?}", outcomes[0]);
}

/// RB-41: an agent that starts more than it may, and does not care, did not succeed.
#[test]
fn rb_41_a_child_that_met_its_limit_of_processes_has_not_completed() {
    if !is_held_together(Limit::Processes) {
        return;
    }
    for launcher in LAUNCHERS {
        let ration = Ration { processes: Some(16), ..Ration::default() };
        let rig = rationed(launcher, ration);
        let forks = "for n in $(seq 40); do sleep 600 & done 2>/dev/null; echo fine";
        let tasks = [
            step(Step::Start(40)),
            command("forks", ["sh", "-c", forks]),
            step(Step::Answer("beside".into())),
        ];
        let (outcomes, report) = run(&rig, tasks);
        for outcome in &outcomes[..2] {
            assert_eq!(outcome.status, Status::Failed, "{launcher:?} {outcome:?}");
            assert!(note(outcome).contains("max_processes 16"), "{outcome:?}");
        }
        // A shell that is refused a fork leaves with a code of its own: then the reason is the agent's.
        assert_eq!(outcomes[0].failure_reason.as_deref(), Some("max_processes"));
        assert_eq!(outcomes[2].status, Status::Completed, "{:?}", outcomes[2]);
        assert!(report.verified_empty(), "{:?}", report.warnings());
    }
    let free = rationed(LauncherWish::Exec, Ration { processes: Some(400), ..Ration::default() });
    let (outcomes, _) = run(&free, [step(Step::Start(40))]);
    assert_eq!(outcomes[0].status, Status::Completed, "{:?}", outcomes[0]);
}

#[test]
fn a_child_that_uses_up_its_processor_time_is_named() {
    for launcher in LAUNCHERS {
        let ration = Ration { cpu: Some(Duration::from_secs(1)), ..Ration::default() };
        let rig = rationed(launcher, ration);
        let tasks = [step(Step::Burn), step(Step::Answer("beside".into()))];
        let (outcomes, _) = run(&rig, tasks);
        let burnt = &outcomes[0];
        assert_eq!(burnt.cause, Some(Cause::CpuTimeUsedUp), "{launcher:?} {burnt:?}");
        assert_eq!(burnt.status, Status::Error);
        assert_eq!(burnt.failure_reason.as_deref(), Some("max_cpu_seconds"));
        assert!(burnt.error.as_deref().unwrap_or_default().contains("max_cpu 1s"), "{burnt:?}");
        assert_eq!(outcomes[1].status, Status::Completed, "{:?}", outcomes[1]);
    }
}

#[test]
fn open_files_and_nice_values_are_those_of_the_child_and_of_what_it_starts() {
    let own = rustix::process::getpriority_process(None).unwrap();
    for launcher in LAUNCHERS {
        let ration = Ration { open_files: Some(64), nice: Some(4), ..Ration::default() };
        let rig = rationed(launcher, ration);
        let files = ["sh", "-c", "ulimit -n"];
        let (outcomes, report) =
            run(&rig, [step(Step::Open), step(Step::Nice), command("files", files)]);
        let answer = |at: usize| outcomes[at].summary.clone().unwrap_or_default();
        let opened: u32 = answer(0).trim_matches('"').parse().unwrap();
        assert!(opened < 64, "{launcher:?} {opened}");
        let nice = (own + 4).min(19);
        assert!(answer(1).contains(&format!("{nice} {nice}")), "{launcher:?} {}", answer(1));
        assert_eq!(answer(2).trim(), "64", "{launcher:?}");
        let launching = report.launching().join("; ");
        assert!(launching.contains("child_nice: nice value"), "{launching}");
        assert!(launching.contains("max_open_files: rlimit"), "{launching}");
    }
}

/// A thread cannot be held to anything: said, and nothing else changes.
#[test]
fn over_threads_a_ration_has_no_effect_and_that_is_said() {
    let ration = Ration { memory: Some(MIB), nice: Some(4), ..Ration::default() };
    let settings = Settings { ration, ..Settings::default() };
    let rig = rig_with(Isolation::Thread, settings);
    let (outcomes, report) = run(&rig, [step(Step::Fill(8 << 20))]);
    assert_eq!(outcomes[0].status, Status::Completed, "{:?}", outcomes[0]);
    let warned = report.warnings().join("; ");
    assert!(warned.contains("max_memory 1MiB, child_nice 4: without effect"), "{warned}");
}

/// Where nothing can hold it, it is refused before anything starts, as the place and the remedy say.
#[test]
fn a_limit_that_nothing_holds_is_refused() {
    let held = Offers::look(Containment::Auto).decide(Limit::Processes);
    let ration = Ration { processes: Some(16), ..Ration::default() };
    let settings = Settings { ration, ..Settings::default() };
    let state = tempfile::tempdir().unwrap();
    let built = blocking::Delegator::builder()
        .isolation(Isolation::Process)
        .settings(settings)
        .state_dir(state.path())
        .build();
    match (built, held.means) {
        (Ok(_), Some(_)) => {}
        (Err(StartError::NoLimit { key: "max_processes", why }), None) => {
            assert!(why.contains("RLIMIT_NPROC"), "{why}");
        }
        (built, means) => panic!("{built:?} where it is {means:?}"),
    }
}

/// A session says what its workers met, whether they were lost by it or coped: a turn by its error, its end by a warning.
#[test]
fn a_session_tells_which_limit_its_worker_met() {
    if !is_held_together(Limit::Memory) {
        return;
    }
    let program = "while read -r line; do case $line in \
        *cope*) head -c 600M /dev/zero | tail > /dev/null;; \
        *die*) exec tail /dev/zero;; \
        esac; echo '{\"answer\":\"fine\"}'; done";
    for (prompt, word) in [("cope", Status::Completed), ("die", Status::Failed)] {
        let rig =
            rationed(LauncherWish::Exec, Ration { memory: Some(96 * MIB), ..Ration::default() });
        let session = rig.delegator.session(command("talk", ["sh", "-c", program]));
        let mut session = session.max_restarts(0, Duration::from_secs(60)).start().unwrap();
        let before = session.prompt("before").unwrap().finish();
        assert_eq!(before.status, Status::Completed, "{before:?}");
        let outcome = session.prompt(prompt).unwrap().finish();
        assert_eq!(outcome.status, word, "{outcome:?}");
        if word == Status::Failed {
            let error = outcome.error.as_deref().unwrap_or_default();
            assert!(error.contains("out of memory (max_memory 96MiB)"), "{error}");
            assert_eq!(outcome.failure_reason.as_deref(), Some("out_of_memory"));
        }
        let end = session.close();
        let told = end.warnings.iter().any(|text| text.contains("max_memory 96MiB"));
        assert!(told && end.limits_met == 1, "{end:?}");
    }
}
