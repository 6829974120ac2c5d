//! Files that the agents of one tree share (contract 8, C15 to C19, RB-47), over both executors: what a sibling
//! wrote is seen while both run, a parent hears of what it read, and a lock ends with its holder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_runtime::{
    Agent, Event, Failure, FileError, FileLock, Isolation, Outcome, Session, Status, Task,
};
use serde::{Deserialize, Serialize};

use crate::seen::watch;
use crate::support::{BOTH, Rig, rig, wait_for};

/// One step of an agent that works on files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Do {
    Read(PathBuf),
    ReadPart(PathBuf),
    Write(PathBuf, String),
    Delete(PathBuf),
    Rename(PathBuf, PathBuf),
    /// Says what speaks against writing it.
    Check(PathBuf),
    /// Locks a path until the end of the script, or until [`Do::Unlock`]; says who has it instead.
    Lock(PathBuf, u64),
    Unlock,
    /// Adds 1 to the number in a file, so often.
    Count(PathBuf, u32),
    /// Only mentions a write, as a loop does that relays its tools.
    Mention(PathBuf),
    /// Makes a file that says how far it is.
    Reach(PathBuf),
    /// Waits for such a file.
    Await(PathBuf),
    AwaitInterrupt,
    Panic,
}

/// Plays steps.
pub struct Filer;

impl Agent for Filer {
    const NAME: &'static str = "filer";
    type Params = Vec<Do>;
    type Answer = String;

    fn run(&mut self, steps: Vec<Do>, session: &mut Session) -> Result<String, Failure> {
        let mut locks: Vec<FileLock> = Vec::new();
        for step in steps {
            play(step, session, &mut locks)?;
        }
        Ok("done".to_owned())
    }
}

fn play(step: Do, session: &mut Session, locks: &mut Vec<FileLock>) -> Result<(), Failure> {
    let files = session.files();
    match step {
        Do::Read(path) => drop(files.read(path)?),
        Do::ReadPart(path) => files.note_read(path, true)?,
        Do::Write(path, text) => files.write(path, text)?,
        Do::Delete(path) => files.delete(path)?,
        Do::Rename(from, to) => files.rename(from, to)?,
        Do::Check(path) => {
            let told = files.check(path)?;
            session.text(&told.map_or("fine".to_owned(), |told| told.to_string()));
            session.text(";");
        }
        Do::Lock(path, ms) => match files.lock_within(path, Duration::from_millis(ms)) {
            Ok(lock) => {
                locks.push(lock);
                session.text("locked;");
            }
            Err(FileError::Busy(busy)) => session.text(&format!("{busy};")),
            Err(other) => return Err(other.into()),
        },
        Do::Unlock => locks.clear(),
        Do::Count(path, times) => {
            for _ in 0..times {
                files.edit::<Failure>(&path, |before| {
                    let before = String::from_utf8(before.unwrap_or_default()).unwrap();
                    let number: u32 = before.parse().unwrap_or(0);
                    Ok((number + 1).to_string().into_bytes())
                })?;
            }
        }
        Do::Mention(path) => session.wrote_file(path),
        Do::Reach(path) => fs::write(path, "")?,
        Do::Await(path) => {
            while !path.exists() {
                session.checkpoint()?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Do::AwaitInterrupt => {
            while !session.is_interrupted() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Do::Panic => panic!("as told"),
    }
    Ok(())
}

fn task(steps: impl IntoIterator<Item = Do>) -> Task {
    Task::of::<Filer>("work on files", steps.into_iter().collect())
}

/// A folder, a rig over it, and a path in it.
struct Place {
    rig: Rig,
    folder: tempfile::TempDir,
}

fn place(isolation: Isolation) -> Place {
    Place { rig: rig(isolation), folder: tempfile::tempdir().unwrap() }
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn run(&self, tasks: impl IntoIterator<Item = Task>) -> (Vec<String>, Vec<Outcome>) {
        let seen = watch(&self.rig, tasks);
        let count = u32::try_from(seen.outcomes.len()).unwrap();
        let texts = (0..count).map(|index| said(&seen.of(index))).collect();
        (texts, seen.outcomes)
    }
}

/// Everything that a child streamed.
fn said(events: &[&Event]) -> String {
    let text = |event: &&Event| match event {
        Event::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

fn write(path: &Path, text: &str) -> Do {
    Do::Write(path.to_owned(), text.to_owned())
}

#[test]
fn c15_what_is_told_of_files_is_in_the_entry() {
    for isolation in BOTH {
        let place = place(isolation);
        let (read, made, moved) = (place.file("read", "r"), place.at("made"), place.at("moved"));
        let steps = [
            Do::Read(read.clone()),
            write(&made, "m"),
            Do::Rename(made.clone(), moved.clone()),
            Do::Mention("by a tool".into()),
        ];
        let (_, outcomes) = place.run([task(steps)]);
        assert_eq!(outcomes[0].files_read, [read.to_str().unwrap()]);
        let written = [made.to_str().unwrap(), moved.to_str().unwrap(), "by a tool"];
        let mut told = outcomes[0].files_written.clone();
        told.sort();
        let mut written = written.map(str::to_owned);
        written.sort();
        assert_eq!(told, written);
    }
}

#[test]
fn c16_the_parent_is_reminded_of_what_it_read_and_this_child_changed() {
    for isolation in BOTH {
        let place = place(isolation);
        let files = place.rig.delegator.files(None);
        let names: Vec<PathBuf> = (0..9).map(|n| place.file(&format!("f{n}"), "before")).collect();
        for path in &names {
            files.read(path).unwrap();
        }
        let unread = place.file("unread", "");
        let (go, end) = (place.at("go"), place.at("end"));
        let nine = names.iter().map(|path| write(path, "after"));
        let tasks = [
            task(nine.chain([write(&unread, "x"), Do::Reach(go.clone())])),
            // It ran the whole time, and wrote nothing that the parent knows.
            task([Do::Await(go.clone()), write(&unread, "y"), Do::Reach(end.clone())]),
            // It has no summary that could say so.
            task([Do::Await(end), write(&names[3], "z"), Do::Panic]),
        ];
        let (_, outcomes) = place.run(tasks);
        let summary = outcomes[0].summary.as_deref().unwrap();
        assert!(summary.starts_with("done\n\n["), "{summary}");
        assert!(summary.contains("f7, and 1 more]"), "{summary}");
        assert!(!summary.contains("f8") && !summary.contains("unread"), "{summary}");
        assert!(outcomes[0].stale_paths.is_empty());
        assert_eq!(
            outcomes[1].summary.as_deref(),
            Some("done"),
            "a sibling's writes are not its own"
        );
        assert_eq!(outcomes[2].summary, None);
        assert_eq!(outcomes[2].stale_paths, [names[3].to_str().unwrap()]);
        // Who reads again is not reminded again.
        for path in &names {
            files.read(path).unwrap();
        }
        let (_, outcomes) = place.run([task([write(&unread, "w")])]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("done"));
    }
}

/// Two that run at once, one step of each at a time.
#[test]
fn c17_the_stale_guard_knows_its_cases_across_running_siblings() {
    for isolation in BOTH {
        let place = place(isolation);
        let path = |name: &str| place.file(name, "0");
        let [after, unread, part, own, outside] =
            ["after", "unread", "part", "own", "outside"].map(path);
        let [deleted, renamed, new, gone] =
            [path("deleted"), path("renamed"), place.at("new"), place.at("gone")];
        let (read, wrote) = (place.at("has-read"), place.at("has-written"));
        let checks = [&after, &unread, &part, &own, &outside, &deleted, &renamed, &new, &gone];
        let first = [
            Do::Read(after.clone()),
            Do::ReadPart(part.clone()),
            Do::Read(own.clone()),
            Do::Read(outside.clone()),
            Do::Read(deleted.clone()),
            Do::Read(renamed.clone()),
            Do::Reach(read.clone()),
            Do::Await(wrote.clone()),
        ];
        let second = [
            Do::Await(read.clone()),
            write(&after, "1"),
            write(&unread, "1"),
            Do::Delete(deleted.clone()),
            Do::Rename(renamed.clone(), place.at("elsewhere")),
            // Nobody is told of this one: the same length, and the same time.
            Do::Reach(place.at("ask-outside")),
            Do::Await(place.at("outside-done")),
            Do::Reach(wrote),
        ];
        let checks = checks.into_iter().map(|path| Do::Check(path.clone()));
        let (asked, done) = (place.at("ask-outside"), place.at("outside-done"));
        let (texts, outcomes) = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for("the turn of the outsider", || asked.exists().then_some(()));
                let time = fs::metadata(&outside).unwrap().modified().unwrap();
                fs::write(&outside, "1").unwrap();
                let file = fs::File::options().write(true).open(&outside).unwrap();
                file.set_modified(time).unwrap();
                fs::write(&done, "").unwrap();
            });
            place.run([task(first.into_iter().chain(checks)), task(second)])
        });
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed), "{outcomes:?}");
        let told: Vec<&str> = texts[0].trim_end_matches(';').split(';').collect();
        let [after, unread, part, own, outside, deleted, renamed, new, gone] = told[..] else {
            panic!("{texts:?}")
        };
        assert!(after.starts_with("sa-1-") && after.contains(" wrote it at "), "{after}");
        assert!(after.contains("after you read it"), "{after}");
        assert!(unread.starts_with("sa-1-") && unread.ends_with("you never read it"), "{unread}");
        assert_eq!(part, "you read only a part of it");
        assert!(outside.contains("something outside changed it"), "{outside}");
        assert!(deleted.contains("deleted it at"), "{deleted}");
        assert!(renamed.contains("elsewhere at"), "{renamed}");
        assert_eq!((own, new, gone), ("fine", "fine", "fine"));
    }
}

#[test]
fn c18_a_write_clears_the_writers_own_staleness() {
    for isolation in BOTH {
        let place = place(isolation);
        let path = place.file("a", "0");
        let steps = [
            Do::ReadPart(path.clone()),
            Do::Check(path.clone()),
            write(&path, "1"),
            Do::Check(path.clone()),
        ];
        let (texts, _) = place.run([task(steps)]);
        assert_eq!(texts[0], "you read only a part of it;fine;");
    }
}

/// Without the lock of `edit` counts are lost: two read the same number.
#[test]
fn c19_writers_of_one_path_take_turns_and_others_do_not_wait() {
    for isolation in BOTH {
        let place = place(isolation);
        let path = place.at("count");
        let (texts, outcomes) =
            place.run((0..4).map(|_| task([Do::Count(path.clone(), 25)])).collect::<Vec<_>>());
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Completed), "{texts:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "100");

        let (held, free) = (place.at("held"), place.at("free"));
        let (has, tried, back) = (place.at("has"), place.at("tried"), place.at("back"));
        let holder = [
            Do::Lock(held.clone(), 0),
            Do::Reach(has.clone()),
            Do::Await(tried.clone()),
            Do::Unlock,
            Do::Reach(back.clone()),
        ];
        let other = [
            Do::Await(has),
            Do::Lock(held.clone(), 1),
            Do::Lock(free, 0),
            Do::Reach(tried),
            Do::Await(back),
            Do::Lock(held, 60_000),
        ];
        let (texts, _) = place.run([task(holder), task(other)]);
        let [busy, free, held, ""] = texts[1].split(';').collect::<Vec<_>>()[..] else {
            panic!("{texts:?}")
        };
        assert!(busy.contains("is locked by sa-0-"), "{busy}");
        assert_eq!((free, held), ("locked", "locked"));
    }
}

#[test]
fn rb_47_a_lock_ends_with_its_holder_however_that_ends() {
    for isolation in BOTH {
        for way in ["kill", "panic", "answer"] {
            let place = place(isolation);
            let (path, has) = (place.at("a"), place.at("has"));
            let last = match way {
                "kill" => Do::AwaitInterrupt,
                "panic" => Do::Panic,
                _ => Do::Reach(place.at("end")),
            };
            let waiting = place.at("waiting");
            let holder = [
                Do::Lock(path.clone(), 0),
                Do::Reach(has.clone()),
                Do::Await(waiting.clone()),
                last,
            ];
            // It never waits for less than the holder's end: 60 s bound a failing test.
            let next = [Do::Await(has), Do::Reach(waiting.clone()), Do::Lock(path, 60_000)];
            let mut run = place.rig.delegator.batch([task(holder), task(next)]).start().unwrap();
            let control = run.control();
            let mut events = Vec::new();
            while let Some(event) = run.events().next() {
                if let Event::Start { child, pid, .. } = &event
                    && child.task_index() == 0
                    && way == "kill"
                {
                    wait_for("the other to wait", || waiting.exists().then_some(()));
                    match pid {
                        Some(pid) => kill(*pid),
                        None => control.stop(*child),
                    }
                }
                events.push(event);
            }
            let report = run.finish();
            let outcomes: Vec<_> = report.results().collect();
            let of_next: Vec<&Event> =
                events.iter().filter(|event| event.child().task_index() == 1).collect();
            assert_eq!(said(&of_next), "locked;", "{way}: {outcomes:?}");
            assert_eq!(outcomes[1].status, Status::Completed, "{way}: {outcomes:?}");
        }
    }
}

/// The worker itself, without a word to it.
fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn the_parent_and_its_children_are_in_one_registry() {
    for isolation in BOTH {
        let place = place(isolation);
        let (path, locked) = (place.file("a", "0"), place.at("locked"));
        let files = place.rig.delegator.files(None);
        files.write(&path, "by the parent").unwrap();
        let lock = files.lock(&locked, Duration::ZERO).unwrap();
        let steps = [Do::Check(path.clone()), Do::Lock(locked.clone(), 1), write(&path, "1")];
        let (texts, _) = place.run([task(steps)]);
        assert!(texts[0].starts_with("the parent agent wrote it at "), "{texts:?}");
        assert!(texts[0].contains("is locked by the parent agent for "), "{texts:?}");
        drop(lock);
        let told = files.check(&path).expect("a child wrote it").to_string();
        assert!(told.starts_with("sa-0-"), "{told}");
        // Another conversation has read nothing, so it is told so.
        let other = place.rig.delegator.files(Some("other")).check(&path).unwrap().to_string();
        assert!(other.ends_with("you never read it"), "{other}");
    }
}
