//! The command on a terminal of its own: live lines, colour, keys.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::rig::{DELEGATE, Rig, Running, Said};
use crate::support::{Identity, wait_for};

/// A command on a pseudoterminal, which is its controlling terminal.
pub(crate) struct Terminal {
    running: Running,
    keyboard: File,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// What it left on the screen.
pub(crate) struct Left {
    pub(crate) code: Option<i32>,
    pub(crate) screen: String,
}

impl Terminal {
    pub(crate) fn start(rig: &Rig, args: &[&str]) -> Self {
        Self::with(rig, args, &[])
    }

    /// Some program instead of the command.
    pub(crate) fn of(rig: &Rig, program: &str, args: &[&str]) -> Self {
        Self::on(rig, program, args, &[])
    }

    pub(crate) fn with(rig: &Rig, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::on(rig, DELEGATE, args, env)
    }

    fn on(rig: &Rig, program: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        let (ours, theirs) = pair();
        // It begins a session, and so gets the terminal whose keys make signals.
        let mut command = rig.program("setsid");
        command.arg("--ctty").arg(program).args(args).env("TERM", "xterm-256color");
        command.envs(env.iter().copied());
        command.stdin(Stdio::from(theirs.try_clone().unwrap()));
        command.stdout(Stdio::from(theirs.try_clone().unwrap())).stderr(Stdio::from(theirs));
        let running = Running::of(command);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, kept) = (File::from(ours.try_clone().unwrap()), Arc::clone(&seen));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // EIO: the last of the other side is closed (man 4 pts).
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { running, keyboard: File::from(ours), seen, reader }
    }

    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        wait_for(text, || self.screen().contains(text).then_some(()));
    }

    pub(crate) fn press(&mut self, key: u8) {
        self.keyboard.write_all(&[key]).unwrap();
    }

    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    pub(crate) fn end(self) -> Left {
        let Self { running, keyboard, seen, reader } = self;
        let Said { code, .. } = running.end();
        reader.join().unwrap();
        drop(keyboard);
        let screen = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
        Left { code, screen }
    }
}

/// Both ends of a terminal of 100 columns and 30 lines.
fn pair() -> (OwnedFd, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = open(name.as_c_str(), flags, Mode::empty()).unwrap();
    let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    (ours, theirs)
}

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

/// Says something, and waits for a file named `go`.
const UNTIL_GO: &str = "echo $WORD-first; touch begun; until test -e go; do sleep 0.02; done";

/// A batch of it and one more task; what is said is in no goal, so that it is surely the child's.
fn batch(rig: &Rig) {
    let params =
        |script| serde_json::json!({"argv": ["sh", "-c", script], "env": {"WORD": "said"}});
    let tasks = [("slow one", UNTIL_GO), ("quick one", "echo quick; echo more")];
    let tasks =
        tasks.map(|(goal, script)| serde_json::json!({"goal": goal, "params": params(script)}));
    rig.file("b.yaml", serde_json::json!({ "tasks": tasks }).to_string());
}

#[test]
fn one_live_line_per_child_and_a_table_at_the_end() {
    let rig = Rig::new();
    batch(&rig);
    let terminal = Terminal::start(&rig, &["run", "b.yaml", "-j", "1"]);
    // State, elapsed time, pid and the last text, redrawn in place.
    terminal.wait_for("said-first");
    let live = terminal.screen();
    for part in ["running", "0:0", "waiting", "Ctrl-C interrupts, twice kills", "\x1b["] {
        assert!(live.contains(part), "{part}: {live:?}");
    }
    let pids = rig.processes();
    assert!(pids.iter().any(|process| live.contains(&process.pid.to_string())), "{live:?}");
    rig.file("go", "");
    let Left { code, screen } = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    let end = screen.rsplit("completed in").next().unwrap();
    assert!(end.contains("0 processes left"), "{screen}");
    assert!(screen.contains("\"… more\""), "{screen}");
}

#[test]
fn no_color_takes_the_colours_and_leaves_the_view() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo fine", "exit 1"]);
    let colours =
        |screen: &str| screen.matches("\x1b[3").count() + screen.matches("\x1b[1m").count();
    let painted = Terminal::start(&rig, &["run", "b.yaml"]).end().screen;
    assert!(colours(&painted) > 0, "{painted:?}");
    let plain = Terminal::with(&rig, &["run", "b.yaml"], &[("NO_COLOR", "1")]).end().screen;
    assert_eq!(colours(&plain), 0, "{plain:?}");
    let dumb = Terminal::with(&rig, &["run", "b.yaml"], &[("TERM", "dumb")]).end().screen;
    assert!(!dumb.contains("\x1b["), "a dumb terminal is not redrawn: {dumb:?}");
    let json = Terminal::start(&rig, &["run", "b.yaml", "--json", "--quiet"]).end().screen;
    assert!(serde_json::from_str::<serde_json::Value>(json.trim()).is_ok(), "{json:?}");
}

#[test]
fn ctrl_c_interrupts_once_and_the_ending_is_printed() {
    let rig = Rig::new();
    batch(&rig);
    let mut terminal = Terminal::start(&rig, &["run", "b.yaml"]);
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    terminal.wait_for("said-first");
    wait_for("the other to end", || {
        let run = rig.runs().into_iter().next()?;
        (run["counts"]["completed"] == 1).then_some(())
    });
    terminal.press(CTRL_C);
    let Left { code, screen } = terminal.end();
    assert_eq!(code, Some(130), "{screen}");
    for part in ["\"… more\"", "interrupted", "0 processes left", "said-first"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    rig.wait_for_nobody();
}

#[test]
fn ctrl_c_twice_kills_what_takes_no_notice() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["trap '' INT TERM; touch begun; while :; do sleep 0.1; done"]);
    let mut terminal = Terminal::start(&rig, &["run", "b.yaml", "--set", "interrupt_grace=1h"]);
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    terminal.press(CTRL_C);
    terminal.wait_for("Ctrl-C again kills them");
    terminal.press(CTRL_C);
    terminal.wait_for("killing the children");
    let Left { code, screen } = terminal.end();
    assert_eq!(code, Some(130), "{screen}");
    assert!(screen.contains("0 processes left"), "{screen}");
    rig.wait_for_nobody();
}

#[test]
fn ctrl_z_stops_the_run_and_fg_goes_on_with_it() {
    let rig = Rig::new();
    batch(&rig);
    let mut terminal = Terminal::start(&rig, &["run", "b.yaml"]);
    terminal.wait_for("said-first");
    terminal.press(CTRL_Z);
    let command: Identity = terminal.running().identity();
    wait_for("the command to stop", || (command.state() == Some('T')).then_some(()));
    rig.file("go", "");
    terminal.running().signal(rustix::process::Signal::CONT);
    let Left { code, screen } = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("0 processes left"), "{screen}");
}

/// It looks again by itself, draws over what it drew, and ends by Ctrl-C.
#[test]
fn ps_looks_again_until_ctrl_c() {
    let rig = Rig::new();
    let mut terminal = Terminal::start(&rig, &["ps", "--watch"]);
    terminal.wait_for("nothing that is owned lives here");
    let own = rig.start(["own", "--", "sleep", "600"]);
    terminal.wait_for("sleep 600");
    let screen = terminal.screen();
    assert!(screen.matches("\u{1b}[H").count() >= 2 && screen.contains("\u{1b}[J"), "{screen:?}");
    terminal.press(3);
    let left = terminal.end();
    assert_ne!(left.code, Some(0), "{:?}", left.screen);
    own.signal(rustix::process::Signal::TERM);
    own.end();
}
