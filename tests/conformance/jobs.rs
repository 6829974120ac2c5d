//! Background programs of a child (contract 10.6, C51), over both executors: they are its own and end with it, those
//! that it hands over live on with the parent, and the entry tells of all three kinds.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use delegate_runtime::{Agent, Event, Failure, Isolation, Session, Status, Task};
use serde::{Deserialize, Serialize};

use crate::seen::{Seen, watch};
use crate::support::{BOTH, Identity, Rig, rig, wait_for};

/// One step of an agent that has jobs. Jobs are counted from 0.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Act {
    /// Starts a shell script.
    Start(String),
    /// Hands one over; says why it is refused.
    HandOff(usize, String),
    /// Says how it stands after so many milliseconds at most.
    Wait(usize, u64),
    End(usize),
    /// Ends a job that is somebody else's; says why not.
    EndId(u64),
    Await(PathBuf),
    AwaitInterrupt,
    Panic,
}

/// Plays them.
pub struct Jobber;

impl Agent for Jobber {
    const NAME: &'static str = "jobber";
    type Params = Vec<Act>;
    type Answer = String;

    fn run(&mut self, acts: Vec<Act>, session: &mut Session) -> Result<String, Failure> {
        let (jobs, mut ids) = (session.jobs(), Vec::new());
        for act in acts {
            match act {
                Act::Start(script) => {
                    ids.push(jobs.command(["sh", "-c", &*script]).env("JOB", "own").start()?.id);
                }
                Act::HandOff(job, purpose) => match jobs.hand_off(ids[job], purpose) {
                    Ok(_) => session.text("handed;"),
                    Err(error) => session.text(&format!("{error};")),
                },
                Act::Wait(job, ms) => {
                    let job = jobs.wait(ids[job], Duration::from_millis(ms))?;
                    let end = (job.ended, job.exit_code, job.signal);
                    session.text(&format!("{end:?} {};", job.tail.trim()));
                }
                Act::End(job) => drop(jobs.end(ids[job])?),
                Act::EndId(job) => {
                    let error = jobs.end(job).expect_err("it is not its own");
                    session.text(&format!("{error};"));
                }
                Act::Await(path) => {
                    while !path.exists() {
                        session.checkpoint()?;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Act::AwaitInterrupt => {
                    while !session.is_interrupted() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Act::Panic => panic!("as told"),
            }
        }
        Ok(format!("{} jobs", jobs.list()?.len()))
    }
}

fn task(acts: impl IntoIterator<Item = Act>) -> Task {
    Task::of::<Jobber>("work with jobs", acts.into_iter().collect())
}

struct Place {
    rig: Rig,
    folder: tempfile::TempDir,
}

fn place(isolation: Isolation) -> Place {
    Place { rig: rig(isolation), folder: tempfile::tempdir().unwrap() }
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A script that writes its pid, and that of a helper in a session of its own, into a file; runs on.
    fn long(&self, name: &str) -> Act {
        let path = self.at(name);
        let path = path.display();
        Act::Start(format!(
            "setsid sh -c 'echo $$ > {path}.helper; mv {path}.helper {path}-helper; exec sleep 600' & \
             until test -e {path}-helper; do sleep 0.01; done; \
             echo $$ > {path}.new; mv {path}.new {path}; exec sleep 600"
        ))
    }

    fn up(&self, name: &str) -> Act {
        Act::Await(self.at(name))
    }

    /// The two processes of such a script.
    fn pair(&self, name: &str) -> [Identity; 2] {
        [name.to_owned(), format!("{name}-helper")].map(|name| {
            wait_for("the job", || {
                let text = fs::read_to_string(self.at(&name)).ok()?;
                Identity::of(text.trim().parse().ok()?)
            })
        })
    }
}

fn said(seen: &Seen, index: u32) -> String {
    let text = |event: &&Event| match event {
        Event::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    seen.of(index).iter().filter_map(text).collect()
}

fn gone(pair: [Identity; 2]) {
    wait_for("the job to be gone", || (!pair.iter().any(|one| one.is_alive())).then_some(()));
}

#[test]
fn c51_a_handed_off_job_survives_its_child_and_the_fourth_is_refused() {
    for isolation in BOTH {
        let place = place(isolation);
        let names = ["a", "b", "c", "d"];
        let mut acts = Vec::new();
        for name in names {
            acts.extend([place.long(name), place.up(name)]);
        }
        acts.push(Act::HandOff(0, "   ".to_owned()));
        acts.extend((0..4).map(|job| Act::HandOff(job, "It serves the page.".to_owned())));
        // Before its end: `d` is still there to be looked at.
        let ready = place.at("ready");
        acts.push(Act::Await(ready.clone()));
        let mut run = place.rig.delegator.batch([task(acts)]).start().unwrap();
        let mut events = Vec::new();
        let mut pairs = None;
        while let Some(event) = run.events().next() {
            if matches!(&event, Event::Start { .. }) {
                pairs = Some(names.map(|name| place.pair(name)));
                fs::write(&ready, "").unwrap();
            }
            events.push(event);
        }
        let report = run.finish();
        let outcome = report.results().next().unwrap();
        assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
        assert_eq!(outcome.summary.as_deref(), Some("1 jobs"));
        let texts: String = events
            .iter()
            .filter_map(|event| match event {
                Event::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let told: Vec<&str> = texts.split(';').collect();
        assert!(told[0].contains("one sentence"), "{told:?}");
        assert_eq!(told[1..4], ["handed"; 3]);
        assert!(told[4].contains("3 jobs were handed over"), "{told:?}");

        let [a, b, c, d] = pairs.unwrap();
        // Gone when the outcome is there, not some time later.
        assert!(!d.iter().any(|one| one.is_alive()), "the fourth ended with its child");
        assert_eq!(outcome.orphaned_processes.len(), 1);
        assert_eq!(outcome.orphaned_processes[0].pid, Some(d[0].pid));
        let handed: Vec<_> = outcome.handed_off_processes.iter().map(|job| job.pid).collect();
        assert_eq!(handed, [a, b, c].map(|pair| Some(pair[0].pid)));
        let purpose = outcome.handed_off_processes[0].purpose.as_deref();
        assert_eq!(purpose, Some("It serves the page."));
        assert!(outcome.handed_off_processes[0].command.starts_with("sh -c setsid"));
        assert!(outcome.unread_completions.is_empty());

        let jobs = place.rig.delegator.jobs(None);
        assert_eq!(jobs.list().len(), 3);
        assert!([a, b, c].iter().flatten().all(|one| one.is_alive()));
        drop(jobs.end(jobs.list()[0].id, Duration::from_secs(3)).unwrap());
        gone(a);
        wait_for("its end to be told", || jobs.list()[0].ended.then_some(()));
        assert!([b, c].iter().flatten().all(|one| one.is_alive()), "the others are left alone");
        // Whoever holds them last ends them.
        drop((jobs, place.rig));
        gone(b);
        gone(c);
    }
}

#[test]
fn a_job_ends_with_its_child_however_that_ends_and_a_siblings_does_not() {
    for isolation in BOTH {
        for way in ["kill", "panic", "answer"] {
            let place = place(isolation);
            let last = match way {
                "kill" => Act::AwaitInterrupt,
                "panic" => Act::Panic,
                _ => Act::Await(place.at("own")),
            };
            let go = place.at("go");
            let own = [place.long("own"), place.up("own"), Act::Await(place.at("both")), last];
            let sibling = [place.long("sibling"), Act::Await(go.clone()), Act::End(0)];
            let sibling = sibling.into_iter().chain([Act::Wait(0, 60_000)]);
            let mut run = place.rig.delegator.batch([task(own), task(sibling)]).start().unwrap();
            let control = run.control();
            let (mut first, mut pairs) = (None, None);
            let (mut texts, mut started) = (String::new(), 0);
            while let Some(event) = run.events().next() {
                match &event {
                    Event::Start { child, pid, .. } => {
                        if child.task_index() == 0 {
                            first = Some((*child, *pid));
                        }
                        started += 1;
                        if started == 2 {
                            pairs = Some([place.pair("own"), place.pair("sibling")]);
                            fs::write(place.at("both"), "").unwrap();
                            match (way, first.unwrap()) {
                                ("kill", (_, Some(pid))) => kill(pid),
                                ("kill", (child, None)) => control.stop(child),
                                _ => {}
                            }
                        }
                    }
                    Event::Complete { child, .. } if child.task_index() == 0 => {
                        let [own, sibling] = pairs.unwrap();
                        assert!(!own.iter().any(|one| one.is_alive()), "{way}: it lives on");
                        assert!(sibling.iter().all(|one| one.is_alive()), "{way}: the sibling's");
                        fs::write(&go, "").unwrap();
                    }
                    Event::Text { child, text } if child.task_index() == 1 => texts.push_str(text),
                    _ => {}
                }
            }
            let outcome = run.finish().results().next().unwrap();
            let orphaned = &outcome.orphaned_processes;
            assert_eq!(orphaned.len(), 1, "{way}: {orphaned:?}");
            assert!(!orphaned[0].ended);
            assert!(texts.starts_with("(true, None, Some(15))"), "{way}: {texts}");
            let [_, sibling] = pairs.unwrap();
            gone(sibling);
        }
    }
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn an_end_that_the_child_never_heard_is_in_the_entry() {
    for isolation in BOTH {
        let place = place(isolation);
        let done = place.at("done");
        let acts = [
            Act::Start("echo $JOB; exit 3".to_owned()),
            Act::Wait(0, 60_000),
            Act::Start(format!("echo unheard; touch {}; exit 4", done.display())),
            Act::Await(done),
            // Its end is known when this has come back; that of the other is not asked for.
            Act::Start("true".to_owned()),
            Act::Wait(2, 60_000),
            Act::EndId(4_000),
        ];
        let seen = watch(&place.rig, [task(acts)]);
        let texts = said(&seen, 0);
        assert!(texts.starts_with("(true, Some(3), None) own;"), "{texts}");
        assert!(texts.ends_with("job 4000 is not yours;"), "{texts}");
        let outcome = &seen.outcomes[0];
        let all = [&outcome.unread_completions, &outcome.orphaned_processes];
        let left: Vec<_> = all.into_iter().flatten().collect();
        // It exits right after the file is there, so it may be seen on its way out.
        assert_eq!(left.len(), 1, "{outcome:?}");
        assert_eq!(left[0].tail.trim(), "unheard");
        if left[0].ended {
            assert_eq!(left[0].exit_code, Some(4));
        }
    }
}

/// Threads share one environment and one working directory with their host: nothing of a child's goes there.
#[test]
fn rb_49_children_in_threads_leave_the_hosts_environment_and_folder_alone() {
    let place = place(Isolation::Thread);
    let before = (std::env::vars_os().collect::<Vec<_>>(), std::env::current_dir().unwrap());
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let tasks = folders.iter().map(|folder| {
        let acts = [Act::Start("echo $JOB; pwd".to_owned()), Act::Wait(0, 60_000)];
        task(acts).cwd(fs::canonicalize(folder.path()).unwrap())
    });
    let seen = watch(&place.rig, tasks.collect::<Vec<_>>());
    for (index, folder) in (0..).zip(&folders) {
        let place = fs::canonicalize(folder.path()).unwrap();
        let text = said(&seen, index);
        assert!(text.contains("own\n") && text.contains(place.to_str().unwrap()), "{text}");
    }
    let after = (std::env::vars_os().collect::<Vec<_>>(), std::env::current_dir().unwrap());
    assert_eq!(before, after);
}
