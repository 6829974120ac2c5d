//! The `command` agent with programs that misbehave in one way each: how they start and end.

use delegate_runtime::{Cause, Status, Value};

use crate::support::{BOTH, command, helper, rig, run};

#[test]
fn a_program_that_cannot_start_fails_with_step_path_and_words() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("not-executable");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let plain = plain.to_str().unwrap();
    for isolation in BOTH {
        let huge = "x".repeat(256 * 1024);
        let tasks = [
            command("g", ["/nowhere/program"]),
            command("g", ["no-such-program-anywhere"]),
            command("g", [plain]),
            command("g", ["/tmp"]),
            command("g", ["true"]).cwd("/nowhere/at/all"),
            command("g", ["true", &huge]),
        ];
        let (outcomes, _) = run(&rig(isolation), tasks);
        let words = [
            ["/nowhere/program", "No such file"],
            ["no-such-program-anywhere", "No such file"],
            [plain, "Permission denied"],
            ["/tmp", "Permission denied"],
            ["/nowhere/at/all", "No such file"],
            ["true", "Argument list too long"],
        ];
        for (outcome, words) in outcomes.iter().zip(words) {
            let shown = format!("{isolation:?} {:?}", **outcome);
            assert_eq!(outcome.status, Status::Failed, "{shown}");
            assert_eq!(outcome.failure_reason.as_deref(), Some("start_failed"), "{shown}");
            let error = outcome.error.as_ref().unwrap();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {shown}");
            // The worker is fine: it is the program that could not start.
            assert_eq!(outcome.cause, Some(Cause::Exited { code: 0 }), "{shown}");
        }
    }
}

#[test]
fn rb_52_every_end_of_a_program_is_told_with_its_last_words() {
    let ends = [("1", "exit code 1"), ("77", "exit code 77"), ("255", "exit code 255")];
    let signals =
        [("segv", "SIGSEGV"), ("kill", "SIGKILL"), ("abrt", "SIGABRT"), ("term", "SIGTERM")];
    for isolation in BOTH {
        let all = || ends.into_iter().chain(signals).chain([("panic", "exit code 101")]);
        let tasks = all().map(|(how, _)| {
            command("g", [helper("crasher"), how.to_owned(), format!("said before {how}")])
        });
        let (outcomes, report) = run(&rig(isolation), tasks);
        for ((how, words), outcome) in all().zip(&outcomes) {
            let shown = format!("{isolation:?} {:?}", **outcome);
            assert_eq!(outcome.status, Status::Failed, "{shown}");
            let error = outcome.error.as_ref().unwrap();
            assert!(error.contains(words), "{shown}");
            assert!(error.contains(&format!("said before {how}")), "{shown}");
        }
        assert!(report.verified_empty());
    }
}

#[test]
fn rb_59_a_program_that_prints_error_and_exits_0_completed() {
    for isolation in BOTH {
        let script = "echo 'Error: timeout'; echo 'Traceback' >&2";
        let (outcomes, _) = run(&rig(isolation), [command("g", ["sh", "-c", script])]);
        assert_eq!(outcomes[0].status, Status::Completed);
        assert_eq!(outcomes[0].summary.as_deref(), Some("Error: timeout"));
    }
}

#[test]
fn rb_60_a_program_that_exits_0_without_output_completed_on_purpose() {
    for isolation in BOTH {
        let tasks =
            [vec!["exit"], vec!["close-then-exit"], vec!["close-then-exit", "4"]].map(|args| {
                let args = args.into_iter().map(str::to_owned);
                command("g", std::iter::once(helper("mute")).chain(args))
            });
        let (outcomes, _) = run(&rig(isolation), tasks);
        for outcome in &outcomes[..2] {
            assert_eq!(outcome.status, Status::Completed, "{isolation:?} {:?}", **outcome);
            assert_eq!((outcome.summary.as_deref(), &outcome.error), (Some(""), &None));
        }
        assert_eq!(outcomes[2].status, Status::Failed);
    }
}

#[test]
fn a_program_that_closes_its_output_and_runs_on_is_waited_for() {
    for isolation in BOTH {
        // The end of the pipe is not the end of the program: it makes a file afterwards.
        let folder = tempfile::tempdir().unwrap();
        let after = folder.path().join("after");
        let script = "echo said; exec >&- 2>&-; sleep 0.5; : > \"$0\"; exit 5";
        let argv = ["sh", "-c", script, after.to_str().unwrap()];
        let (outcomes, _) = run(&rig(isolation), [command("g", argv)]);
        assert!(after.exists(), "{isolation:?}");
        assert_eq!(outcomes[0].status, Status::Failed);
        assert!(outcomes[0].error.as_ref().unwrap().contains("exit code 5"));
        let limited = command("g", [helper("mute"), "close".to_owned()])
            .timeout(std::time::Duration::from_secs(1));
        let (outcomes, report) = run(&rig(isolation), [limited]);
        assert_eq!(outcomes[0].status, Status::Timeout, "{:?}", *outcomes[0]);
        assert!(report.verified_empty());
    }
}

#[test]
fn the_goal_comes_over_stdin_and_in_a_variable() {
    for isolation in BOTH {
        let goal = "line one\nline é two";
        let script = "cat; printf '|%s' \"$DELEGATE_GOAL\"";
        let (outcomes, _) = run(&rig(isolation), [command(goal, ["sh", "-c", script])]);
        assert_eq!(outcomes[0].summary, Some(format!("{goal}|{goal}")));
        // A goal that a variable cannot hold goes over stdin alone.
        let script = "wc -c; printf '%s' \"${DELEGATE_GOAL-unset}\"";
        let (outcomes, _) = run(&rig(isolation), [command("a\0b", ["sh", "-c", script])]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("3\nunset"));
    }
}

#[test]
fn a_program_that_never_reads_its_large_goal_is_not_waited_for() {
    for isolation in BOTH {
        let goal = "g".repeat(4 << 20);
        let (outcomes, _) = run(&rig(isolation), [command(&goal, ["echo", "no thanks"])]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("no thanks"), "{:?}", outcomes[0].error);
    }
}

#[test]
fn directory_and_variables_are_those_of_the_task() {
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let argv = ["sh", "-c", "pwd; printf %s \"$COLOUR\""].map(|text| Value::Text(text.into()));
        let params = Value::Map(
            [
                ("argv".to_owned(), Value::List(argv.to_vec())),
                ("cwd".to_owned(), Value::Text("sub".to_owned())),
                (
                    "env".to_owned(),
                    Value::Map([("COLOUR".to_owned(), Value::Text("blue".to_owned()))].into()),
                ),
            ]
            .into(),
        );
        let task = command("g", ["x"]).params(params).cwd(folder.path());
        let (outcomes, _) = run(&rig(isolation), [task]);
        let real = folder.path().canonicalize().unwrap().join("sub");
        assert_eq!(outcomes[0].summary, Some(format!("{}\nblue", real.display())));
    }
}
