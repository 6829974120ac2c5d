//! The owner is killed while its children have background programs: whether they were handed over or not, nobody is
//! there to hold them any more.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::program::{Bystanders, OwnerProgram, assert_alive, step, wait_gone};
use crate::step::Step;
use crate::support::Identity;

/// A process and those below it.
fn family(pid: u32) -> Vec<Identity> {
    let mut members: Vec<Identity> = Identity::of(pid).into_iter().collect();
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for child in pids {
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if rest.split(' ').nth(1) == Some(&*pid.to_string()) {
            members.extend(family(child));
        }
    }
    members
}

#[test]
fn a_job_ends_with_a_killed_owner_also_when_it_was_handed_over() {
    let bystanders = Bystanders::start();
    for hand_off in [false, true] {
        let task = step(&Step::Job { hand_off });
        let mut owner = OwnerProgram::start(&[task], &json!({"grace_seconds": 1}));
        let (_, worker) = owner.started();
        let pid = owner.expect("the job", |line| {
            line["text"].as_str()?.strip_prefix("job ")?.trim().parse::<u32>().ok()
        });
        // A job that was handed over is not in the child's list any more.
        let members = if hand_off {
            assert_eq!(pid, 0);
            let below = family(owner.supervisor().pid);
            below.into_iter().filter(|member| *member != worker).collect()
        } else {
            family(pid)
        };
        assert!(members.len() >= 2, "the job and its helper: {members:?}");
        assert_alive(&members);
        owner.signal(Signal::KILL);
        owner.wait();
        wait_gone(&members);
    }
    bystanders.assert_untouched();
}
