//! Starts that fail (RB-62), isolation that cannot be had (RB-51), and secrets (RB-50).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Isolation, Outcome, StartError, Status, Task, Value, blocking};
use rustix::io::Errno;

use crate::step::{Step, Stepper};
use crate::support::{BOTH, helper, rig, rig_with, run};

/// A worker command that cannot be started.
fn worker(path: &Path) -> Outcome {
    let command = Some(vec![path.to_str().unwrap().to_owned()]);
    let settings = Settings { worker_command: command, ..Settings::default() };
    let (mut outcomes, report) =
        run(&rig_with(Isolation::Process, settings), [Task::new("any", "goal")]);
    assert!(report.verified_empty() && report.left_running().is_empty());
    outcomes.remove(0)
}

#[test]
fn rb_62_a_worker_that_cannot_be_executed_has_phase_errno_and_path() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("not-executable");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let alien = folder.path().join("no-format");
    fs::write(&alien, [0_u8; 64]).unwrap();
    fs::set_permissions(&alien, fs::Permissions::from_mode(0o755)).unwrap();
    let gone = folder.path().join("gone");
    for (path, errno) in [(&gone, Errno::NOENT), (&plain, Errno::ACCESS), (&alien, Errno::NOEXEC)] {
        let outcome = worker(path);
        assert_eq!((outcome.status, outcome.pid), (Status::Error, None), "{outcome:?}");
        let cause = Cause::StartFailed {
            phase: "exec".to_owned(),
            errno: Some(errno.raw_os_error()),
            path: Some(path.to_str().unwrap().to_owned()),
        };
        assert_eq!(outcome.cause, Some(cause), "{outcome:?}");
        assert!(outcome.error.as_ref().unwrap().contains("exec"), "{outcome:?}");
    }
}

fn program(params: &serde_json::Value) -> Task {
    Task::new("command", "start").params(Value::from_typed(params).unwrap())
}

/// The same for programs: step, path and the system's words stand in the failure.
#[test]
fn rb_62_a_program_that_cannot_be_executed_is_told_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("not-executable");
    fs::write(&plain, "").unwrap();
    // The kernel takes 128 KiB per string (man 2 execve).
    let long = "x".repeat(200_000);
    let rows = [
        (serde_json::json!({"argv": ["/no/such/program"]}), "exec", "No such file or directory"),
        (serde_json::json!({"argv": [plain]}), "exec", "Permission denied"),
        (serde_json::json!({"argv": ["true", long]}), "exec", "Argument list too long"),
        (
            serde_json::json!({"argv": ["true"], "cwd": "/no/such/folder"}),
            "chdir",
            "No such file or directory",
        ),
        (serde_json::json!({"argv": ["true"], "cwd": plain}), "chdir", "Not a directory"),
    ];
    for isolation in BOTH {
        let (outcomes, _report) = run(&rig(isolation), rows.iter().map(|row| program(&row.0)));
        for ((params, phase, words), outcome) in rows.iter().zip(&outcomes) {
            let error = outcome.error.as_deref().unwrap();
            assert_eq!(outcome.status, Status::Failed, "{error}");
            assert_eq!(outcome.failure_reason.as_deref(), Some("start_failed"), "{error}");
            assert!(error.contains(phase) && error.contains(words), "{isolation:?} {error}");
            let place = params["cwd"].as_str().or(params["argv"][0].as_str()).unwrap();
            assert!(error.contains(place), "{isolation:?} {error} names {place}");
        }
    }
}

/// Everything that a killed program had said on stderr is in the log, and the end of it in the entry.
#[test]
fn rb_62_stderr_is_read_to_its_end_after_a_kill() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i >&2; i=$((i+1)); done; \
                  echo the last line >&2; kill -9 $$";
    for isolation in BOTH {
        let task = program(&serde_json::json!({"argv": ["sh", "-c", script]}));
        let (outcomes, _report) = run(&rig(isolation), [task]);
        let error = outcomes[0].error.as_deref().unwrap();
        assert!(error.contains("SIGKILL"), "{isolation:?} {error}");
        assert!(error.ends_with("line 19999\nthe last line"), "{isolation:?} {error}");
    }
    // A worker's own, from outside of its agent.
    let script = r#"i=0; while [ $i -lt 5000 ]; do echo line $i >&2; i=$((i+1)); done; kill -9 $$"#;
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let settings = Settings { worker_command: Some(command), ..Settings::default() };
    let rig = rig_with(Isolation::Process, settings);
    let (outcomes, _report) = run(&rig, [Task::new("any", "goal")]);
    let outcome = &outcomes[0];
    assert!(outcome.stderr_tail.as_ref().unwrap().ends_with("line 4999\n"), "{outcome:?}");
    assert!(matches!(outcome.cause, Some(Cause::Signaled { signal: 9, .. })), "{outcome:?}");
    let log = fs::read_to_string(outcome.logs.as_ref().unwrap().join("stderr")).unwrap();
    assert_eq!(log.lines().count(), 5000, "all of it is in the log");
}

/// A program without `workers()` cannot isolate; it is told so before anything runs. The library's
/// quick start is such a program only if it forgets the first line of `main`: `helper-unprepared`.
#[test]
fn rb_51_isolation_that_is_required_and_cannot_be_had_is_an_error() {
    let state = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(helper("unprepared"));
    let output = command.arg(state.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("process: refused"), "{text}");
    assert!(text.contains("not its own worker"), "{text}");
    assert!(text.contains("thread: failed in thread"), "{text}");
}

#[test]
fn rb_51_every_outcome_names_the_mode_that_it_really_had() {
    for (isolation, launcher) in BOTH.into_iter().zip(["thread", "exec"]) {
        let tasks = [
            Task::of::<Stepper>("answer", Step::Answer("x".to_owned())),
            Task::of::<Stepper>("panic", Step::Panic("x".to_owned())),
        ];
        let (outcomes, _report) = run(&rig(isolation), tasks);
        for outcome in outcomes {
            assert_eq!(outcome.isolation.word() == "process", launcher == "exec");
            assert_eq!(outcome.launcher.as_deref(), Some(launcher));
            assert_eq!(outcome.pid.is_some(), launcher == "exec");
            assert_ne!(outcome.pid, Some(std::process::id()));
        }
    }
}

#[test]
fn rb_51_a_start_error_starts_nothing() {
    let rig = rig(Isolation::Process);
    let refused = rig.delegator.batch([Task::new("no-such-agent", "goal")]).start();
    assert!(matches!(refused, Err(StartError::UnknownAgent { task: 0, .. })), "{refused:?}");
    let refused = rig.delegator.batch(Vec::new()).start();
    assert!(matches!(refused, Err(StartError::EmptyBatch)), "{refused:?}");
    let _same: &blocking::Delegator = &rig.delegator;
}

/// No public way sets a key yet. What carries one hides it from `Debug` and from what is stored.
#[test]
fn rb_50_a_key_shows_itself_nowhere() {
    const CANARY: &str = "sk-canary-0123456789";
    let mut spec = plan().spec(0);
    spec.routing.api_key = Some(delegate_protocol::routing::ApiKey::new(CANARY.to_owned()));
    assert!(!format!("{spec:?}").contains(CANARY));
    let stored = serde_json::to_string(&spec.without_secrets()).unwrap();
    assert!(!stored.contains(CANARY), "{stored}");
    assert!(serde_json::to_string(&spec).unwrap().contains(CANARY), "the line does carry it");
}

fn plan() -> delegate_runtime::Plan {
    let task = Task::of::<Stepper>("answer", Step::Answer("x".to_owned()));
    let means =
        delegate_runtime::plan::Means { agents: None, has_worker: false, ..Default::default() };
    let settings = Settings::default();
    delegate_runtime::plan::plan(&mut vec![task], &settings, Some(Isolation::Thread), means)
        .unwrap()
}

/// Parameters and context travel on the line: neither argv nor environment of a worker, nor anything
/// in the state directory, holds them.
#[test]
fn rb_50_parameters_reach_a_worker_by_its_line_only() {
    const CANARY: &str = "canary-of-the-parameters-98765";
    let gate = tempfile::tempdir().unwrap();
    let open = gate.path().join(CANARY);
    let rig = rig(Isolation::Process);
    let task = Task::of::<Stepper>("gate", Step::Gate { open: open.clone(), bytes: 1 });
    let mut batch = rig.delegator.batch([task.context(CANARY)]).start().unwrap();
    let mut pid = None;
    for event in batch.events() {
        match event {
            delegate_runtime::Event::Start { pid: own, .. } => pid = own,
            delegate_runtime::Event::Text { .. } => {
                let pid = pid.unwrap();
                for file in ["cmdline", "environ"] {
                    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap();
                    assert!(!holds(&bytes, CANARY), "{file}");
                }
                fs::write(&open, "").unwrap();
            }
            _ => {}
        }
    }
    assert!(batch.finish().all_completed());
    let mut scanned = 0;
    scan(rig.state.path(), &mut |path, bytes| {
        scanned += 1;
        assert!(!holds(bytes, CANARY), "{}", path.display());
    });
    assert!(scanned > 0);
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn scan(folder: &Path, look: &mut impl FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, look);
        } else {
            look(&path, &fs::read(&path).unwrap());
        }
    }
}
