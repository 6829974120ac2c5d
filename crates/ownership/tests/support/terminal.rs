//! A terminal with a shell in it, played step by step: what stands on the screen at the end is compared.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::support::{DEADLINE, Identity, undisturbed, wait_for};

/// What a person does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Types a line.
    Line(&'static str),
    /// Presses a key.
    Key(u8),
    /// Waits until the screen shows this, after what was waited for before.
    See(&'static str),
    /// Waits until something with this in its command line was executed, a front too.
    Exists(&'static str),
    /// Makes the terminal this large: lines and columns.
    Size(u16, u16),
    /// Waits until a process with this command line stands still, or does not.
    Stands(&'static str, bool),
}

pub(crate) const CTRL_C: u8 = 3;
pub(crate) const CTRL_D: u8 = 4;
pub(crate) const CTRL_Z: u8 = 26;
pub(crate) const CTRL_BACKSLASH: u8 = 28;

/// What a shell says when it waits for a line.
pub(crate) const PROMPT: &str = "you> ";

pub(crate) struct Terminal {
    master: OwnedFd,
    keyboard: File,
    program: Option<Child>,
    screen: Arc<Mutex<Vec<u8>>>,
    unplugged: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    /// How much of the screen was waited for.
    seen: usize,
}

impl Terminal {
    /// A terminal whose session the program leads.
    pub(crate) fn start(mut program: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).expect("grant");
        unlockpt(&master).expect("unlock");
        let name = ptsname(&master, Vec::new()).expect("name").into_string().expect("text");
        let slave = File::options().read(true).write(true).open(name).expect("open");
        let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("size");
        let copy = || slave.try_clone().expect("copy");
        program.stdin(copy()).stdout(copy()).stderr(copy());
        let program = program.spawn().expect("setsid");
        drop(slave);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let mut reader = File::from(master.try_clone().expect("copy"));
        let shown = Arc::clone(&screen);
        let unplugged = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&unplugged);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !over.load(Ordering::Relaxed) {
                let mut asked = [PollFd::new(&reader, PollFlags::IN)];
                let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if poll(&mut asked, Some(&moment)) == Ok(0) {
                    continue;
                }
                // EIO when nobody has it open any more.
                let Ok(read @ 1..) = reader.read(&mut bytes) else { return };
                shown.lock().expect("screen").extend(&bytes[..read]);
            }
        });
        let keyboard = File::from(master.try_clone().expect("copy"));
        Self {
            master,
            keyboard,
            program: Some(program),
            screen,
            unplugged,
            reader: Some(reader),
            seen: 0,
        }
    }

    /// A shell; `$W` stands before what it is to run.
    pub(crate) fn shell(wrap: &str, dir: &Path) -> Self {
        let mut command = undisturbed("setsid");
        command.args(["--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        command.current_dir(dir).env("PS1", PROMPT).env("W", wrap).env("TERM", "dumb");
        command.env("HISTFILE", "").env_remove("PROMPT_COMMAND").env("LC_ALL", "C.UTF-8");
        let mut terminal = Self::start(command);
        terminal.see(PROMPT);
        terminal.line("ulimit -c 0");
        terminal.see(PROMPT);
        terminal
    }

    /// Closes the window, and gives who led the session.
    pub(crate) fn close(mut self) -> Child {
        self.unplugged.store(true, Ordering::Relaxed);
        self.reader.take().expect("reader").join().expect("reader");
        self.program.take().expect("program")
    }

    pub(crate) fn program(&mut self) -> &mut Child {
        self.program.as_mut().expect("program")
    }

    pub(crate) fn line(&mut self, text: &str) {
        writeln!(self.keyboard, "{text}").expect("type");
    }

    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("screen")).replace('\r', "")
    }

    pub(crate) fn see(&mut self, text: &str) {
        let until = Instant::now() + DEADLINE;
        self.seen = loop {
            let screen = self.screen();
            let rest = screen.get(self.seen..).unwrap_or_default();
            if let Some(at) = rest.find(text) {
                break self.seen + at + text.len();
            }
            assert!(
                Instant::now() < until,
                "{text:?} does not come after {:?}; screen:\n{screen}",
                self.rest()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
    }

    fn rest(&self) -> String {
        let screen = self.screen();
        let seen = screen.get(..self.seen).unwrap_or_default();
        seen.lines().last().unwrap_or_default().to_owned()
    }

    pub(crate) fn play(&mut self, step: Step) {
        match step {
            Step::Line(text) => self.line(text),
            Step::Key(key) => self.keyboard.write_all(&[key]).expect("press"),
            Step::See(text) => self.see(text),
            Step::Exists(text) => {
                let session = self.program().id().cast_signed();
                wait_for(&format!("{text} is there"), || {
                    of_session(session, text, true).pop().map(drop)
                });
            }
            Step::Size(rows, columns) => {
                let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
                tcsetwinsize(self.master.as_fd(), size).expect("size");
            }
            Step::Stands(text, stands) => {
                let session = self.program().id().cast_signed();
                wait_for(&format!("{text} stands: {stands}"), || {
                    let all = of_session(session, text, false);
                    let wanted = |who: &Identity| (who.state().as_deref() == Some("T")) == stands;
                    (!all.is_empty() && all.iter().all(wanted)).then_some(())
                });
            }
        }
    }
}

/// Processes of a session, fronts apart unless these are wanted, with this text in their command line.
fn of_session(session: i32, text: &str, fronts: bool) -> Vec<Identity> {
    let matches = |who: &Identity| {
        let line = std::fs::read(format!("/proc/{}/cmdline", who.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(text)
            && (fronts || !line.contains("/own "))
            && session_of(*who) == Some(session)
    };
    super::support::process::everybody().filter(matches).collect()
}

fn session_of(who: Identity) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", who.pid)).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(3)?.parse().ok()
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.unplugged.store(true, Ordering::Relaxed);
        if let Some(program) = &mut self.program {
            program.kill().ok();
            program.wait().ok();
        }
    }
}
