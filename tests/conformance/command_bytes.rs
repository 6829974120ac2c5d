//! The `command` agent and bytes: invalid UTF-8, floods on stdout and stderr, lines without end,
//! output over the limit. Memory is bounded whatever comes.

use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Isolation, Status};

use crate::alone::{alone_with, kib, peak};
use crate::seen::watch_with;
use crate::support::{BOTH, command, helper, rig, rig_with, run, wait_for};

const MIB: u64 = 1 << 20;

fn chatty(mode: &str, count: u64, stream: &str) -> delegate_runtime::Task {
    command("g", [&helper("chatty"), mode, &count.to_string(), stream].map(str::to_owned))
}

#[test]
fn invalid_utf_8_is_replaced_and_the_run_completes() {
    for isolation in BOTH {
        let (outcomes, _) = run(&rig(isolation), [chatty("invalid", 3, "stdout")]);
        assert_eq!(outcomes[0].status, Status::Completed);
        let line = "good \u{fffd}\u{fffd} bad \u{fffd}( half \u{fffd} nul \0 end";
        assert_eq!(outcomes[0].summary, Some([line; 3].join("\n")), "{isolation:?}");
    }
}

#[test]
fn every_line_of_both_streams_arrives() {
    for isolation in BOTH {
        let seen = watch_with(&rig(isolation), [chatty("both", 20_000, "")], |_, _| {});
        let lines: Vec<_> = (0..20_000).step_by(2).map(|number| format!("line {number}")).collect();
        assert_eq!(seen.outcomes[0].summary, Some(lines.join("\n")), "{isolation:?}");
    }
}

#[test]
fn output_over_the_limit_fails_and_names_it() {
    for isolation in BOTH {
        for (bytes, status) in [(MIB, Status::Completed), (MIB + 1, Status::Failed)] {
            let settings = Settings { max_result_bytes: MIB, ..Settings::default() };
            let rig = rig_with(isolation, settings);
            let (outcomes, report) = run(&rig, [chatty("endless-line", bytes, "stdout")]);
            // chatty puts `x` at each place of its line, so there is no newline to cut.
            assert_eq!(
                outcomes[0].status, status,
                "{isolation:?} {bytes}: {:?}",
                outcomes[0].error
            );
            if status == Status::Failed {
                let error = outcomes[0].error.as_ref().unwrap();
                assert!(error.contains("1048576") && error.contains("max_result_bytes"), "{error}");
            }
            assert!(report.verified_empty());
        }
    }
}

#[test]
fn an_endless_line_is_ended_at_the_limit_long_before_it_is_all_there() {
    for isolation in BOTH {
        let settings = Settings { max_result_bytes: MIB, ..Settings::default() };
        // 100 GB: the run would not end in time if it was read.
        let task = chatty("endless-line", 100_000_000_000, "stdout");
        let (outcomes, report) = run(&rig_with(isolation, settings), [task]);
        assert_eq!(outcomes[0].status, Status::Failed, "{isolation:?}");
        assert!(report.verified_empty());
    }
}

#[test]
fn a_gigabyte_without_a_newline_needs_little_memory() {
    // What is held counts, and not what the C library keeps of what was given back: that is twice the largest block.
    alone_with("command_bytes::inner_line_without_end", &[("MALLOC_MMAP_THRESHOLD_", "131072")]);
}

#[test]
#[ignore = "run by a_gigabyte_without_a_newline_needs_little_memory, in a process of its own"]
fn inner_line_without_end() {
    let rig = rig(Isolation::Process);
    let (worker_small, parent_small) = line_without_end(&rig, 32_000_000);
    // More than twice as much beyond the head that is in memory; 1 GB differs in time alone.
    let (worker, parent) = line_without_end(&rig, 96_000_000);
    assert!(worker < worker_small + 16 * 1024, "worker: {worker_small}, then {worker} KiB");
    assert!(worker < 96 * 1024, "worker: {worker} KiB");
    assert!(parent < parent_small + 32 * 1024, "parent: {parent_small}, then {parent} KiB");
}

/// Runs a program that writes so many bytes without a newline; gives the peaks of worker and parent.
fn line_without_end(rig: &crate::support::Rig, bytes: u64) -> (u64, u64) {
    let (mut worker, mut most) = (None, 0);
    let task = chatty("endless-line", bytes, "stdout");
    let mut run = rig.delegator.batch([task]).start().unwrap();
    // Not kept: the events hold the whole text.
    for event in run.events() {
        match event {
            Event::Start { pid: Some(pid), .. } => worker = Some(pid.to_string()),
            _ => most = most.max(worker.as_deref().and_then(|pid| kib(pid, "VmHWM")).unwrap_or(0)),
        }
    }
    let outcome = run.finish().results().next().unwrap();
    assert_eq!(outcome.status, Status::Completed, "{:?}", outcome.error);
    assert_eq!(outcome.result_bytes, Some(bytes));
    assert_eq!(outcome.summary.as_ref().unwrap().len(), 16 << 20);
    let file = outcome.result_path.as_ref().unwrap();
    assert_eq!(std::fs::metadata(file).unwrap().len(), bytes);
    assert!(most > 0, "the worker was never looked at");
    (most, peak())
}

#[test]
fn rb_17_noise_on_stderr_is_read_and_only_its_tail_kept() {
    for isolation in BOTH {
        let script = "\"$0\" bytes 30000000 stderr; echo ok; echo the end >&2; exit 3";
        let argv = ["sh".to_owned(), "-c".to_owned(), script.to_owned(), helper("chatty")];
        let (outcomes, _) = run(&rig(isolation), [command("g", argv)]);
        let error = outcomes[0].error.as_ref().unwrap();
        assert_eq!(outcomes[0].status, Status::Failed);
        assert!(error.ends_with("the end") && error.len() < 10_000, "{}", error.len());
    }
}

/// The log is a pipe that nobody reads while the child writes: a disk that stands still.
#[test]
fn output_that_the_disk_does_not_take_in_time_is_left_out_and_the_outcome_says_so() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let gate = rig.state.path().join("gate");
        let done = gate.with_extension("done");
        let script = r#"until test -e "$0"; do sleep 0.01; done
            "$1" bytes 60000000 stderr; touch "$2"; echo ok"#;
        let [go, over] = [&gate, &done].map(|path| path.to_str().unwrap().to_owned());
        let argv = ["sh".into(), "-c".into(), script.into(), go, helper("chatty"), over];
        let mut batch = rig.delegator.batch([command("g", argv)]).start().unwrap();
        batch.events().find(|event| matches!(event, Event::Start { .. })).unwrap();
        let folder = rig.state.path().join("runs").join(batch.id().to_string()).join("0");
        // Made with the first event that is written down.
        wait_for("its folder", || folder.exists().then_some(()));
        let log = folder.join("stderr");
        let made = std::process::Command::new("mkfifo").arg(&log).status().unwrap();
        assert!(made.success());
        std::fs::write(&gate, "").unwrap();
        wait_for("the program has written all", || done.exists().then_some(()));
        // The disk goes on.
        let disk = std::fs::File::options().read(true).write(true).open(&log).unwrap();
        let reader = disk.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut { reader }, &mut std::io::sink()));
        let outcome = batch.finish().results().next().unwrap();
        assert_eq!(outcome.summary.as_deref(), Some("ok"), "{isolation:?} {outcome:?}");
        let note = outcome.notes.iter().find(|note| note.contains("are not in its logs"));
        let bytes = note.and_then(|note| note.split(' ').next()).map(|bytes| bytes.parse::<u64>());
        // Of 60 MB the queue of the store holds 16 MiB.
        let left_out =
            bytes.unwrap_or_else(|| panic!("{isolation:?} {:?}", outcome.notes)).unwrap();
        assert!((30_000_000..60_000_000).contains(&left_out), "{left_out}");
    }
}

#[test]
fn a_hundred_megabytes_on_stderr_do_no_harm() {
    for isolation in BOTH {
        let task = chatty("bytes", 100_000_000, "stderr");
        let (outcomes, _) = run(&rig(isolation), [task]);
        assert_eq!(outcomes[0].status, Status::Completed, "{:?}", outcomes[0].error);
        assert_eq!(outcomes[0].summary.as_deref(), Some(""));
    }
}
