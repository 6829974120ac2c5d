//! The `command` agent and processes that will not go: stubborn, stopped, grandchildren that keep the
//! pipe, families that try to get away.

use std::collections::BTreeMap;
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Isolation, Status};

use crate::seen::watch_with;
use crate::support::{BOTH, Identity, command, helper, rig, rig_with};

fn impatient() -> Settings {
    Settings {
        interrupt_grace: Duration::from_secs(8),
        terminate_grace: Duration::from_secs(1),
        ..Settings::default()
    }
}

#[test]
fn a_program_that_ignores_term_is_killed_and_one_that_stopped_itself_too() {
    for isolation in BOTH {
        for mode in ["run", "stop"] {
            let rig = rig_with(isolation, impatient());
            let mut stubborn = None;
            let task = command("g", [helper("stubborn"), mode.to_owned()]);
            let seen = watch_with(&rig, [task], |event, control| {
                if let Event::Text { text, .. } = event {
                    let pid = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
                    stubborn = Identity::of(pid);
                    control.interrupt();
                }
            });
            let shown = format!("{isolation:?} {mode} {:?}", *seen.outcomes[0]);
            assert_eq!(seen.outcomes[0].status, Status::Interrupted, "{shown}");
            assert!(seen.outcomes[0].summary.as_ref().unwrap().starts_with("ready"), "{shown}");
            assert!(!stubborn.unwrap().is_alive(), "{shown}");
            assert!(seen.report.verified_empty(), "{shown}");
        }
    }
}

#[test]
fn rb_20_a_limit_ends_the_program_and_not_only_the_wait() {
    for isolation in BOTH {
        let mut all = Vec::new();
        let task = command("g", [helper("forker"), "stay".to_owned()]);
        let task = task.timeout(Duration::from_secs(2));
        let seen = watch_with(&rig_with(isolation, impatient()), [task], |event, _| {
            all.extend(family(event));
        });
        assert_eq!(seen.outcomes[0].status, Status::Timeout, "{:?}", *seen.outcomes[0]);
        assert_eq!(all.len(), 4, "{isolation:?}");
        assert!(all.iter().all(|process| !process.is_alive()), "{isolation:?} {all:?}");
        assert!(seen.report.verified_empty());
    }
}

/// The processes that helper-forker names.
fn family(event: &Event) -> Vec<Identity> {
    let Event::Text { text, .. } = event else { return Vec::new() };
    let Ok(pids) = serde_json::from_str::<BTreeMap<String, u32>>(text) else { return Vec::new() };
    // Whoever reads this late finds a pid without a process; that is not alive either.
    pids.values()
        .map(|pid| Identity::of(*pid).unwrap_or(Identity { pid: *pid, start: 0 }))
        .collect()
}

#[test]
fn a_family_left_behind_by_its_program_is_gone_after_the_batch_and_named() {
    for isolation in BOTH {
        let mut all = Vec::new();
        let task = command("g", [helper("forker"), "leave".to_owned()]);
        let seen = watch_with(&rig(isolation), [task], |event, _| all.extend(family(event)));
        let outcome = &seen.outcomes[0];
        assert_eq!(outcome.status, Status::Completed, "{isolation:?} {:?}", **outcome);
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|process| !process.is_alive()), "{isolation:?} {all:?}");
        assert!(seen.report.verified_empty() && seen.report.left_running().is_empty());
    }
}

#[test]
fn a_grandchild_that_keeps_the_pipe_is_not_waited_for() {
    for isolation in BOTH {
        let mut holder = None;
        let task = command("g", [helper("pipe-holder")]);
        let seen = watch_with(&rig(isolation), [task], |event, _| {
            if let Event::Text { text, .. } = event
                && let Some(pid) = text.trim().strip_prefix("holder ")
            {
                holder = Identity::of(pid.parse().unwrap());
            }
        });
        let outcome = &seen.outcomes[0];
        assert_eq!(outcome.status, Status::Completed, "{isolation:?} {:?}", **outcome);
        assert!(outcome.summary.as_ref().unwrap().starts_with("holder "));
        assert!(holder.is_none_or(|process| !process.is_alive()), "{isolation:?}");
        assert!(seen.report.verified_empty());
    }
}

#[test]
fn rb_19_a_sibling_does_not_keep_a_program_from_seeing_its_end_of_input() {
    // `cat` ends at the end of its input only. If a sibling, started while its pipe was open, had
    // inherited the writing end, it would wait for the sleeper, which waits for `cat`.
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let done = folder.path().join("done").display().to_string();
        let mut tasks: Vec<_> =
            (0..8).map(|number| command(&number.to_string(), ["cat"])).collect();
        let wait = "until [ -e \"$0\" ]; do sleep 0.02; done; echo over";
        tasks.push(command("w", ["sh", "-c", wait, &done]));
        let mut left = 8;
        let seen = watch_with(&rig(isolation), tasks, |event, _| {
            if matches!(event, Event::Complete { .. }) {
                left -= 1;
                if left == 0 {
                    std::fs::write(&done, "").unwrap();
                }
            }
        });
        assert!(seen.report.all_completed(), "{isolation:?} {:?}", seen.report.counts());
    }
}

#[test]
fn rb_14_children_live_though_the_thread_that_started_them_is_gone() {
    let rig = rig(Isolation::Process);
    let delegator = rig.delegator.clone();
    let start = move || {
        let task = command("g", ["sh", "-c", "sleep 0.5; echo lived"]);
        delegator.batch([task]).start().unwrap()
    };
    let run = std::thread::spawn(start).join().unwrap();
    let report = run.finish();
    assert_eq!(report.results().next().unwrap().summary.as_deref(), Some("lived"));
}
