//! `steer`, `stop`, `pause`, `extend`, `wait`, `watch`: a run that is controlled from another process.

use std::fs;
use std::os::unix::fs::DirBuilderExt;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{Rig, Running, Said};
use crate::support::wait_for;
use crate::terminal::Terminal;

/// A home whose sockets are its own.
struct Home(Rig);

impl Home {
    fn new() -> Self {
        let rig = Rig::new();
        fs::DirBuilder::new().mode(0o700).create(rig.path("runtime")).unwrap();
        Self(rig)
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.0.command(args);
        command.env("XDG_RUNTIME_DIR", self.0.path("runtime"));
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// A run of these scripts, once each has made its file `upN`.
    fn start(&self, scripts: &[&str], more: &[&str], up: usize) -> Running {
        self.0.batch("tasks.json", scripts);
        let args: Vec<_> = ["run", "tasks.json", "--quiet"].iter().chain(more).copied().collect();
        let running = Running::apart(self.command(&args));
        for number in 0..up {
            let file = self.0.path(&format!("up{number}"));
            wait_for("a task to run", || file.exists().then_some(()));
        }
        running
    }

    fn sockets(&self) -> usize {
        let entries = fs::read_dir(self.0.path("runtime/delegate"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".control")).count()
    }
}

const HANG: &str = "touch up0; sleep 600";
const HANG_TOO: &str = "touch up1; sleep 600";
const ISOLATIONS: [&str; 2] = ["process", "thread"];

#[test]
fn a_child_is_stopped_the_rest_goes_on_and_wait_repeats_the_code() {
    for isolation in ISOLATIONS {
        let home = Home::new();
        let finish = "touch up1; while [ ! -e go ]; do sleep 0.02; done; echo fine";
        let running = home.start(&[HANG, finish], &["--isolation", isolation], 2);
        home.run(&["wait", "latest", "--timeout", "50ms"]).expect(124).says("not ended in time");
        home.run(&["steer", "latest/1", "hello"]).expect(0).says("accepted for sa-1-");
        home.run(&["steer", "latest", "1", "world", "--json"]).expect(0).says("delegate.steer/1");
        home.run(&["steer", "latest", "hello"]).expect(2).says("name one");
        home.run(&["steer", "latest/9", "hello"]).expect(4);
        home.run(&["extend", "latest", "0", "5m"]).expect(0).says("300 s more");
        home.run(&["extend", "latest", "soon"]).expect(2).says("90s");
        home.run(&["stop", "latest", "0", "--now"]).expect(0);
        let waiter = Running::of(home.command(&["wait", "latest", "--json"]));
        fs::write(home.0.path("go"), "").unwrap();
        running.end().expect(1);
        assert_eq!(waiter.end().expect(1).json()["runs"][0]["exit_code"], 1);
        // It has ended: the store knows.
        home.run(&["wait", "latest"]).expect(1);
        home.run(&["stop", "latest"]).expect(4);
        let shown = home.run(&["show", "latest", "--json"]).expect(0).json();
        let results = shown["results"].as_array().unwrap();
        assert_eq!(
            (&results[0]["status"], &results[1]["status"]),
            (&"interrupted".into(), &"completed".into())
        );
        // A program that is run has no ear, so it says what it was not told.
        assert_eq!(results[1]["missed_steer"], "hello\nworld");
        home.0.wait_for_nobody();
        assert_eq!(home.sockets(), 0);
    }
}

#[test]
fn what_waits_is_not_launched_while_its_run_is_paused() {
    let home = Home::new();
    let first = "touch up0; while [ ! -e go ]; do sleep 0.02; done; echo 1";
    let running = home.start(&[first, "touch second; echo 2"], &["-j", "1"], 1);
    home.run(&["pause", "latest"]).expect(0).says("is paused");
    let watcher = Running::of(home.command(&["watch", "latest"]));
    fs::write(home.0.path("go"), "").unwrap();
    wait_for("the first to end", || {
        let shown = home.run(&["show", "latest", "--json"]).json();
        (shown["results"].as_array()?.len() == 1).then_some(())
    });
    assert!(!home.0.path("second").exists());
    home.run(&["pause", "latest", "--off"]).expect(0).says("goes on");
    running.end().expect(0);
    let said = watcher.end();
    let lines: Vec<Value> =
        said.expect(0).out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[0]["schema"], "delegate.events/1");
    assert_eq!(lines.last().unwrap()["end"]["reason"], "ended", "{lines:?}");
}

#[test]
fn a_run_is_stopped_whole() {
    let home = Home::new();
    let running = home.start(&[HANG, HANG_TOO, "echo never"], &["-j", "2"], 2);
    home.run(&["stop", "latest"]).expect(0).says("asked to stop");
    running.end().expect(1);
    home.0.wait_for_nobody();
    home.run(&["stop", "nosuchrun"]).expect(4);
    home.run(&["wait", "nosuchrun"]).expect(4);
    home.run(&["watch", "nosuchrun"]).expect(4);
}

/// One that stands still cannot answer: that is said, with the way on, and nobody waits longer than was asked for.
#[test]
fn a_run_whose_owner_is_stopped_is_not_called_unknown() {
    let home = Home::new();
    let running = home.start(&[HANG], &[], 1);
    let id = home.0.runs()[0]["run_id"].as_str().unwrap().to_owned();
    let pid = running.identity().pid;
    running.signal(Signal::STOP);
    wait_for("it to stand still", || (running.identity().state() == Some('T')).then_some(()));
    let way_on = format!("process {pid} is stopped; `kill -CONT {pid}` lets it go on");
    home.run(&["stop", &id]).expect(1).says(&way_on);
    let object: Value =
        serde_json::from_str(home.run(&["stop", &id, "--json"]).expect(1).err.trim())
            .unwrap_or_else(|_| home.run(&["stop", &id, "--json"]).json());
    assert_eq!(object["error"]["code"], "silent", "{object}");
    let asked = std::time::Instant::now();
    home.run(&["wait", &id, "--timeout", "300ms"]).expect(124);
    assert!(asked.elapsed() < std::time::Duration::from_secs(4), "{:?}", asked.elapsed());
    // Another run is found all the same.
    fs::remove_file(home.0.path("up0")).unwrap();
    let other = home.start(&[HANG], &[], 1);
    home.run(&["stop", "latest"]).expect(0).says("asked to stop");
    other.end().expect(1);
    running.signal(Signal::CONT);
    wait_for("it to answer", || (home.run(&["stop", &id]).code == Some(0)).then_some(()));
    running.end().expect(1);
    home.0.wait_for_nobody();
}

/// A delegator that was killed leaves its socket; the next one that looks removes it.
#[test]
fn a_socket_of_a_dead_run_is_swept_and_one_of_a_living_run_is_not() {
    let home = Home::new();
    let living = home.start(&[HANG], &[], 1);
    fs::remove_file(home.0.path("up0")).unwrap();
    let mut dead = home.start(&[HANG], &[], 1);
    assert_eq!(home.sockets(), 2);
    // `env` has become the command: its number is that of the delegator.
    let pid = Pid::from_raw(i32::try_from(dead.child().id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    drop(dead);
    assert_eq!(home.sockets(), 2, "nobody could remove it");
    home.run(&["steer", "nosuchrun", "x"]).expect(4);
    assert_eq!(home.sockets(), 1);
    drop(living);
    home.0.wait_for_nobody();
}

/// A child has no way to a terminal, although its parent sits on one.
#[test]
fn a_child_on_a_terminal_cannot_open_it_or_read_from_it() {
    for isolation in ISOLATIONS {
        let rig = Rig::new();
        let look = "if (: < /dev/tty) 2>/dev/null; then echo has-a-terminal; else echo has-none; fi; \
                    read line || echo nothing-to-read";
        rig.batch("tasks.json", &[look]);
        let args = ["run", "tasks.json", "--isolation", isolation, "--json"];
        let left = Terminal::start(&rig, &args).end();
        assert_eq!(left.code, Some(0), "{}", left.screen);
        assert!(left.screen.contains("has-none"), "{isolation}: {}", left.screen);
        assert!(left.screen.contains("nothing-to-read"), "{isolation}: {}", left.screen);
    }
    // The negative control: the same words on such a terminal without the command.
    let rig = Rig::new();
    let look = "if (: < /dev/tty) 2>/dev/null; then echo has-a-terminal; fi";
    let left = Terminal::of(&rig, "sh", &["-c", look]).end();
    assert!(left.screen.contains("has-a-terminal"), "{}", left.screen);
}
