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

/// One that was started to live on does so, behind its child and behind its owner, however that ends: with its reason and
/// its log, to be found and ended by whoever comes later. What was not, does not.
#[test]
fn a_job_that_persists_lives_on_when_its_child_and_its_owner_have_ended() {
    let bystanders = Bystanders::start();
    for (threads, way) in [(false, "KILL"), (false, "end"), (true, "KILL"), (true, "end")] {
        let folder = tempfile::tempdir().unwrap();
        let until = folder.path().join("until");
        let task = step(&Step::Persist(until.clone()));
        let settings = json!({"grace_seconds": 1, "threads": threads});
        let mut owner = OwnerProgram::start(&[task], &settings);
        let (pid, id) = owner.expect("the job", |line| {
            let (pid, id) = line["text"].as_str()?.strip_prefix("job ")?.split_once(' ')?;
            Some((pid.parse::<u32>().ok()?, id.trim().to_owned()))
        });
        let members = family(pid);
        assert!(members.len() >= 2, "the job and its helper: {members:?}");
        if way == "end" {
            fs::write(&until, "").unwrap();
            let report = owner.report();
            let entry = &report["results"][0];
            let handed = &entry["handed_off_processes"];
            assert_eq!(handed.as_array().unwrap().len(), 1, "{entry}");
            assert_eq!(handed[0]["purpose"], "It serves on for this test.");
            assert_eq!(
                (&handed[0]["pid"], &handed[0]["persists"]["id"]),
                (&json!(pid), &json!(id))
            );
            assert_eq!(entry["orphaned_processes"].as_array().unwrap().len(), 1, "{entry}");
            assert_alive(&members);
        }
        owner.signal(Signal::KILL);
        owner.wait();
        let jobs = delegate_runtime::jobs::persist::all(owner.state.path()).unwrap();
        let job = jobs.iter().find(|job| job.id() == id).unwrap();
        let reason = delegate_runtime::jobs::persist::reason(job);
        assert_eq!((reason, jobs.len()), ("It serves on for this test.", 1));
        assert!(String::from_utf8(job.tail(600).unwrap()).unwrap().starts_with("printed\nup"));
        assert_alive(&members);
        assert!(matches!(job.status(), ownership::exempt::Status::Running));
        assert!(job.stop(std::time::Duration::from_secs(3)).unwrap().verified);
        wait_gone(&members);
    }
    bystanders.assert_untouched();
}
