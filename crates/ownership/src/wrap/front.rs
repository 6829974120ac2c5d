//! The front itself: the one file of this module that waits and acts. What follows from what is in `machine`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::Signal;

use super::machine::{Effect, Event, Machine};
use super::passed::Passed;
use super::report::{EndedReport, could_keep, printable};
use super::terminal;
use super::{FAILED, NOT_EXECUTABLE, NOT_FOUND, Wrap};
use crate::containment::Containment;
use crate::exit::{ChildEvent, Emptied, ExitStatus};
use crate::hook;
use crate::identity::{self, Stat};
use crate::launch;
use crate::owner::{Owned, Owner};
use crate::program::Program;
use crate::spawn::{Phase, Spawn, SpawnError};
use crate::sys::{Pid, front, signal, wait};

/// Signals that are for the program. The rest does to the front what it does to anybody, and the program ends with it.
const HEARD: [i32; 13] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    // Of the kernel it is a write of our own that failed.
    libc::SIGXFSZ,
];

/// What guards call themselves.
const GUARDS: [&str; 2] = ["warden", "minder"];

/// Real-time signals that the C library leaves to programs: 34 to 64.
const REAL_TIME: u64 = u64::MAX << 33;

/// A reader of standard error that does not read for this long is told nothing.
const LAST_WORD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Why nothing runs.
struct Refused {
    code: u8,
    detail: String,
}

impl Refused {
    fn failed(what: &str, error: &dyn std::fmt::Display) -> Self {
        Self { code: FAILED, detail: format!("{what}: {error}") }
    }
}

/// How it ended.
enum End {
    Code(u8),
    Signal(i32),
}

pub(super) fn run(wrap: &Wrap) -> ExitCode {
    let end = wrapped(wrap).unwrap_or_else(|refused| {
        let few = few_files().filter(|_| refused.code == FAILED).unwrap_or_default();
        say(&format!("{}: {}{few}", wrap.name, refused.detail));
        End::Code(refused.code)
    });
    match end {
        End::Code(code) => code.into(),
        End::Signal(number) => {
            front::die_of(number);
            // As a shell says it, of one that is not died of.
            u8::try_from(128 + number).unwrap_or(FAILED).into()
        }
    }
}

/// Descriptors that must be allowed to be open, beside those that it inherits: those are held twice for a while.
const FILES: u64 = 40;

/// With fewer than this, whatever has failed is likely to have failed of that.
const FEW_FILES: u64 = 256;

/// What is to be said where few descriptors may be open.
fn few_files() -> Option<String> {
    use rustix::process::{Resource, getrlimit};
    let allowed = getrlimit(Resource::Nofile).current.filter(|allowed| *allowed < FEW_FILES)?;
    Some(format!(
        "; only {allowed} descriptors may be open here, and {FILES} are needed, with two for each that is \
         inherited: raise `ulimit -n`"
    ))
}

fn wrapped(wrap: &Wrap) -> Result<End, Refused> {
    if wrap.containment == Containment::PidNamespace && !wrap.keep.is_empty() {
        let what = "nothing can be kept of a pid namespace, which ends as a whole";
        return Err(Refused::failed(what, &"leave out --keep, or ask for another containment"));
    }
    let passed = Passed::find().map_err(|error| Refused::failed("/proc cannot be read", &error))?;
    let report = match &wrap.report {
        None => None,
        Some(path) => Some(passed.report(path).map_err(|error| {
            Refused::failed(&format!("{} cannot be written", path.display()), &error)
        })?),
    };
    // Before any thread exists: each has these blocked then.
    let ours = if is_init() && !hook::is_off("init") { 1 << (libc::SIGCHLD - 1) } else { 0 };
    let heard = HEARD.iter().fold(REAL_TIME | ours, |set, number| set | 1 << (number - 1));
    let signals =
        front::hear(heard).map_err(|error| Refused::failed("signals cannot be heard", &error))?;
    if !hook::is_off("wake") {
        front::wake_with_parents_death();
    }
    let program = Program::current()
        .map_err(|error| Refused::failed("this program cannot be executed again", &error))?;
    let (owner, write_down) = owner(wrap, program);
    let owner = owner.with_containment(wrap.containment).with_kept(&wrap.keep);
    let (tell, told) = channel();
    let wake = Arc::new(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Refused::failed("no event counter", &error))?,
    );
    let waker = Arc::clone(&wake);
    let on_event = move |event| {
        // Fails only when nobody waits any more.
        drop(tell.send(event));
        let _ = rustix::io::write(&waker, &1_u64.to_ne_bytes());
    };
    let owned = start(wrap, &owner, &passed, on_event)?;
    let had_terminal = has_terminal() && !passed.ignores(libc::SIGHUP);
    if !hook::is_off("let-go") {
        passed
            .let_go(!wrap.quiet)
            .map_err(|error| Refused::failed("/dev/null cannot be opened", &error))?;
    }
    let start = Stat::read(owned.pid().cast_signed()).map_or(0, |stat| stat.start);
    let mut front = Front {
        machine: Machine::default(),
        grace: wrap.grace,
        owned,
        start,
        signals,
        wake,
        told,
        had_terminal,
    };
    // Of what came before it was there the program has nothing.
    front.drain_signals(true);
    front.wait_for_the_end();
    let end = front.end(wrap, report);
    write_down();
    Ok(end)
}

/// The owner, and what to do before this process leaves.
#[cfg(feature = "ledger")]
fn owner(wrap: &Wrap, program: Program) -> (Owner, impl FnOnce()) {
    use crate::ledger::{Ledger, PATIENCE};
    let ledger = wrap.ledger.as_ref().map(|path| Arc::new(Ledger::begin(path)));
    let owner = Owner::near(program);
    let owner = match &ledger {
        Some(ledger) => owner.with_ledger(Arc::clone(ledger)),
        None => owner,
    };
    // What cannot be written by then is in the guards' journal.
    let write_down = move || {
        if let Some(ledger) = ledger {
            let _written = ledger.flush(PATIENCE);
        }
    };
    (owner, write_down)
}

#[cfg(not(feature = "ledger"))]
fn owner(_wrap: &Wrap, program: Program) -> (Owner, impl FnOnce()) {
    (Owner::near(program), || {})
}

/// Starts the program; a text without `#!` as a script, as a shell and `execvp` do.
fn start(
    wrap: &Wrap,
    owner: &Owner,
    passed: &Passed,
    on_event: impl FnMut(ChildEvent) + Send + Clone + 'static,
) -> Result<Owned, Refused> {
    let ask = |spawn: Spawn| {
        let copies = passed
            .copies()
            .map_err(|error| Refused::failed("a descriptor cannot be copied", &error))?;
        let spawn = copies.into_iter().fold(spawn, |spawn, (number, fd)| spawn.fd(number, fd));
        let spawn = spawn.grace(wrap.grace).joins(passed.joins).purpose("own");
        Ok(owner.spawn(spawn, on_event.clone()))
    };
    let first = ask(Spawn::new(&wrap.program).args(&wrap.args))?;
    let error = match first {
        Ok(owned) => return Ok(owned),
        Err(error) => error,
    };
    let is_text = error.phase == Phase::Exec && error.errno == Some(libc::ENOEXEC);
    if let Some(path) = found(&wrap.program).filter(|_| is_text) {
        let shell = Spawn::new("/bin/sh").arg(path).args(&wrap.args);
        return ask(shell)?.map_err(|error| refused(wrap, &error));
    }
    Err(refused(wrap, &error))
}

/// The file that is executed for this name.
fn found(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = launch::candidates(name.as_bytes(), path.as_bytes());
    let may_be_executed =
        |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    candidates.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).find(may_be_executed)
}

fn refused(wrap: &Wrap, error: &SpawnError) -> Refused {
    let name = wrap.program.to_string_lossy();
    let (code, detail) = match (error.phase, error.errno) {
        (Phase::Exec, Some(libc::ENOENT)) if !name.contains('/') => {
            (NOT_FOUND, format!("`{name}` is in no directory of PATH"))
        }
        (Phase::Exec, Some(libc::ENOENT)) => (NOT_FOUND, format!("{name}: {}", error.detail)),
        (Phase::Exec, _) => {
            (NOT_EXECUTABLE, format!("{name} cannot be executed: {}", error.detail))
        }
        _ => return Refused { code: FAILED, detail: error.to_string() },
    };
    Refused { code, detail: format!("{detail}; nothing was started") }
}

/// Whether this session has a terminal.
fn has_terminal() -> bool {
    terminal::of_session().is_some()
}

struct Front {
    machine: Machine,
    grace: Duration,
    owned: Owned,
    /// Start time of the program: who it is.
    start: u64,
    signals: OwnedFd,
    wake: Arc<OwnedFd>,
    told: Receiver<ChildEvent>,
    /// There was one whose end would end us.
    had_terminal: bool,
}

impl Front {
    fn wait_for_the_end(&mut self) {
        loop {
            let mut asked = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&*self.wake, PollFlags::IN),
            ];
            // Interrupted: looked at all the same.
            let _ = poll(&mut asked, None);
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            self.drain_signals(false);
            while let Ok(event) = self.told.try_recv() {
                if self.take(event) {
                    return;
                }
            }
        }
    }

    /// `early`: what the kernel sends to all of the group may have come before the program was in it.
    fn drain_signals(&mut self, early: bool) {
        while let Some(came) = front::next(&self.signals) {
            if came.number == libc::SIGCHLD {
                bury_orphans();
                continue;
            }
            let hung_up = came.number == libc::SIGHUP && self.had_terminal && !has_terminal();
            let (number, by_process) = (came.number, came.by_process || early);
            let stands = self.stands();
            self.feed(Event::Signal { number, by_process, hung_up, stands });
        }
    }

    /// Whether that was the last.
    fn take(&mut self, event: ChildEvent) -> bool {
        let event = match event {
            ChildEvent::Stopped(signal) => {
                // One that is not read by now would stop us twice.
                self.drain_signals(false);
                let (stands, orphaned) = (self.stands(), is_orphaned());
                Event::Stopped { signal, stands, orphaned }
            }
            ChildEvent::Exited(exit) => Event::Exited(exit.status),
            ChildEvent::Emptied(emptied) => Event::Emptied(emptied),
            ChildEvent::Lost => Event::Lost,
        };
        self.feed(event)
    }

    fn feed(&mut self, event: Event) -> bool {
        let effects = self.machine.step(event);
        effects.into_iter().any(|effect| self.act(effect))
    }

    fn act(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Leave => return true,
            Effect::Forward(number) => {
                // Fails only when it is dead.
                let _ = signal::send(self.owned.pidfd(), number);
            }
            Effect::Stop(_) | Effect::HandTerminal | Effect::ContinueGroup
                if hook::is_off("job") => {}
            Effect::Stop(number) => {
                front::stop_by(number);
                let (stands, apart) = (self.stands(), self.group_to_show().is_some());
                let orphaned = is_orphaned();
                return self.feed(Event::Woke { stands, apart, orphaned });
            }
            Effect::ContinueGroup => {
                // This process is in it, so there is one.
                let _ = rustix::process::kill_current_process_group(Signal::CONT);
            }
            Effect::HangUpGroup => {
                // As above.
                let _ = rustix::process::kill_current_process_group(Signal::HUP);
                let _ = rustix::process::kill_current_process_group(Signal::CONT);
            }
            Effect::HandTerminal => {
                if let (Some(group), Some(tty)) = (self.group_to_show(), terminal::of_session()) {
                    // Its group may be gone by now.
                    let _ = rustix::termios::tcsetpgrp(tty, group);
                }
            }
            Effect::End => self.owned.end(self.grace),
            Effect::Hurry => self.owned.kill(),
        }
        false
    }

    /// The group that the program leads, where the terminal is shown to ours. Without us the shell would have shown
    /// it to that one.
    fn group_to_show(&self) -> Option<rustix::process::Pid> {
        let pid = self.owned.pid().cast_signed();
        let stat = Stat::read(pid).filter(|stat| stat.start == self.start && stat.group == pid)?;
        let own = identity::own_group();
        let shown = rustix::termios::tcgetpgrp(terminal::of_session()?).ok()?;
        if shown.as_raw_nonzero().get() == own {
            rustix::process::Pid::from_raw(stat.group)
        } else {
            None
        }
    }

    /// Whether the program is stopped.
    fn stands(&self) -> bool {
        let stat = Stat::read(self.owned.pid().cast_signed());
        stat.is_some_and(|stat| stat.start == self.start && stat.state == b'T')
    }

    fn end(self, wrap: &Wrap, report: Option<File>) -> End {
        let Machine { status, emptied, hung_up, .. } = self.machine;
        let status = status.unwrap_or(ExitStatus::Unknown);
        let Emptied { leftovers, leftover_count, left, spared, .. } = emptied.unwrap_or_default();
        let could_keep = could_keep(&leftovers, &wrap.could_keep);
        let ended = EndedReport {
            program: wrap.program.to_string_lossy().into_owned(),
            status,
            hung_up,
            ended: leftovers,
            ended_count: leftover_count,
            left,
            kept: spared,
            could_keep,
        };
        if let Some(mut report) = report {
            // Whoever asked for it sees that it is short.
            drop(writeln!(report, "{}", ended.json()));
        }
        if let Some(line) = ended.line(wrap.name).filter(|_| !wrap.quiet) {
            say(&line);
        }
        match status {
            ExitStatus::Code(code) => End::Code(u8::try_from(code & 0xff).unwrap_or(FAILED)),
            ExitStatus::Signal { signal, .. } => End::Signal(signal),
            ExitStatus::Unknown => {
                say(&format!("{}: how {} ended is not known", wrap.name, ended.program));
                End::Code(FAILED)
            }
        }
    }
}

/// Whether everybody whose parent dies becomes ours: the first process of a pid namespace.
fn is_init() -> bool {
    identity::own_pid() == 1
}

/// Reaps what others left to the first process of a pid namespace, such as a check that was sent into a container. Guards
/// are left to the owner, which holds them.
fn bury_orphans() {
    let own = Stat::read(identity::own_pid()).map(|stat| stat.name);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok());
    for (pid, stat) in numbers.filter_map(|pid| Some((pid, Stat::read(pid)?))) {
        // A guard-to-be has our name.
        let is_guard = GUARDS.contains(&&*stat.name) || own.as_ref() == Some(&stat.name);
        if stat.is_dead() && stat.parent == identity::own_pid() && !is_guard {
            wait::reap(pid);
        }
    }
}

/// Whether this group would be an orphaned one if the guards did not stand above the program: nobody above it in the
/// session, but out of the group, could let it go on.
fn is_orphaned() -> bool {
    let Some(own) = Stat::read(identity::own_pid()) else { return false };
    let mut above: Pid = own.parent;
    loop {
        match Stat::read(above) {
            Some(stat) if stat.session != own.session => return true,
            Some(stat) if stat.group != own.group => return false,
            Some(stat) => above = stat.parent,
            None => return true,
        }
    }
}

/// One line to standard error, unless nobody reads there.
fn say(line: &str) {
    let stderr = io::stderr();
    let mut asked = [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)];
    if poll(&mut asked, Some(&LAST_WORD)).is_ok_and(|ready| ready > 0) {
        drop(stderr.lock().write_all(format!("{}\n", printable(line)).as_bytes()));
    }
}
