//! A process that forks children for its supervisor: the program is loaded and prepared once, and each
//! child is a copy of it. A child is the *supervisor's* (`CLONE_PARENT`), in a session and a scope of its
//! own, exactly as one that executed the program; the template is its sibling and knows nothing more of it.
//!
//! Talks to `sys` and, over one line, to the supervisor that started it
//! ([`Spawn::template`](crate::Spawn::template)).
//! A child does nothing before it is registered: it waits until its own line says hello, which the guard
//! that has it says once its number is in the table, and leaves when that line ends first.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;

use crate::launch::{TAG, entries};
use crate::line::{self, Received};
use crate::protocol::{Failure, Fork, Forked, MAX_INLINE};
use crate::spawn::Phase;
use crate::sys::copy::{self, Habits, Shown, Side, ThreadWord};
use crate::{hook, identity};

const TAG_AT: &CStr = c"OWNERSHIP_TAG=";

/// From here on descriptors are moved while others take their numbers.
const OUT_OF_THE_WAY: RawFd = 64;

/// Exit code of a copy that was never registered, or could not be set up. Nobody asked for it.
const NOBODYS: i32 = 0;

/// For tests only: what goes wrong at the first fork. `template-dies` behind it, `copy-dies` and `copy-hangs`
/// before it has said where it stands.
const TEST_FORK: &str = "OWNERSHIP_TEST_FORK";

/// For tests only: how many threads a template has at its start. The roles of a test program run on a thread
/// of libtest, whose first one does nothing meanwhile.
pub const TEST_THREADS: &str = "OWNERSHIP_TEST_THREADS";

/// A template, before it serves.
pub struct Template {
    control: OwnedFd,
    word: ThreadWord,
    shown: Option<Shown>,
    /// What it had at its start; a request with another environment changes the copy's.
    env: Vec<Vec<u8>>,
    habits: Habits,
    cwd: OwnedFd,
    /// Its threads: one, but in a test program.
    threads: u64,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

/// How a template's service ended.
#[derive(Debug)]
pub enum Served {
    /// This process is a copy, and a child of the supervisor's own: its descriptors by the numbers under
    /// which they were given (1 and 2 are in place already).
    Child(Vec<(RawFd, OwnedFd)>),
    /// This process is the template, and nobody will ask any more: it is to leave.
    Over(ExitCode),
}

impl Template {
    /// Takes up the service on this line. Call it before anything else: what the process does with signals,
    /// its umask, directory and environment are noted as what every child shall have.
    ///
    /// # Errors
    /// When this system has no such fork; the child must be executed then.
    pub fn on(control: OwnedFd) -> io::Result<Self> {
        let word = ThreadWord::find().ok_or(io::ErrorKind::Unsupported)?;
        let threads = threads_at_start()?;
        rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::CLOEXEC)?;
        let is_tag = |entry: &Vec<u8>| entry.starts_with(TAG_AT.to_bytes());
        let mut env = entries(std::env::vars_os());
        env.retain(|entry| !is_tag(entry));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let cwd = rustix::fs::open(".", flags, Mode::empty())?;
        let cwd = rustix::io::fcntl_dupfd_cloexec(&cwd, OUT_OF_THE_WAY)?;
        let (shown, habits) = (Shown::find(TAG_AT), Habits::of_process());
        Ok(Self { control, word, shown, env, habits, cwd, threads })
    }

    /// Puts back what preparing has changed of the process (signals, umask, directory).
    ///
    /// # Errors
    /// When it has more than one thread now: a copy would lack the others, with whatever they hold.
    pub fn settle(&self) -> io::Result<()> {
        self.habits.restore();
        rustix::process::fchdir(&self.cwd)?;
        match identity::own_threads() {
            Some(count) if count == self.threads => Ok(()),
            count => Err(io::Error::other(format!(
                "it has {} threads, and a copy has only one",
                count.map_or_else(|| "an unknown number of".to_owned(), |count| count.to_string())
            ))),
        }
    }

    /// Forks a copy that leaves at once: for the caller to measure.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn trial(&self) -> io::Result<()> {
        copy::fork_and_leave()
    }

    /// Asks the kernel to keep what was written so far in huge pages, and gives how many bytes that is
    /// about. A copy costs one entry for each page.
    pub fn use_huge_pages(&self) -> u64 {
        copy::collapse_heap()
    }

    /// Serves until nobody can ask any more. In each child it returns too.
    #[must_use]
    pub fn serve(self) -> Served {
        let mut buffer = vec![0; MAX_INLINE];
        loop {
            let (bytes, fds) = match line::receive(self.control.as_fd(), &mut buffer, true) {
                Ok(Received::Record { bytes, fds }) => (bytes, fds),
                Ok(Received::Bodiless { .. } | Received::Junk) => {
                    self.say(refused(libc::EPROTO));
                    continue;
                }
                Ok(Received::End) | Err(_) => return Served::Over(ExitCode::SUCCESS),
            };
            let Some(fork) = Fork::decode(&bytes) else {
                self.say(refused(libc::EPROTO));
                continue;
            };
            if identity::own_threads() != Some(self.threads) {
                // Something was started meanwhile, by a handler or a library.
                self.say(failed(Phase::Clone, libc::EBUSY));
                return Served::Over(ExitCode::FAILURE);
            }
            let cgroup = fds.last().filter(|_| fork.in_cgroup).map(AsFd::as_fd);
            match copy::fork_sibling(self.word, cgroup) {
                Ok(Side::Before(_)) => go_wrong("template-dies"),
                Err(error) => {
                    self.say(failed(Phase::Clone, error.raw_os_error().unwrap_or(libc::EIO)));
                }
                Ok(Side::After) => return self.become_child(&fork, fds),
            }
        }
    }

    fn say(&self, forked: Forked) {
        // A supervisor that is gone is seen at the next read.
        let _ = line::send(self.control.as_fd(), &forked.encode(), &[], true);
    }

    fn become_child(self, fork: &Fork, fds: Vec<OwnedFd>) -> Served {
        go_wrong("copy-dies");
        if is_wrong("copy-hangs") {
            // Its template is killed, and it with what that has left.
            let _ = rustix::event::poll(&mut [], None);
        }
        match self.set_up(fork, fds) {
            Ok(given) => {
                self.say(Forked::Ready { pid: identity::own_pid() });
                drop(self);
                if !was_registered(&given, fork.line) {
                    copy::leave(NOBODYS);
                }
                Served::Child(given)
            }
            Err((phase, error)) => {
                self.say(failed(phase, error.raw_os_error().unwrap_or(libc::EINVAL)));
                copy::leave(NOBODYS)
            }
        }
    }

    fn set_up(
        &self,
        fork: &Fork,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<(RawFd, OwnedFd)>, (Phase, io::Error)> {
        let setup = |error| (Phase::Setup, error);
        let in_dir = |error: rustix::io::Errno| (Phase::Chdir, error.into());
        copy::stand_alone(fork.subreaper).map_err(setup)?;
        let mut fds = fds.into_iter();
        if let Some(cwd) = fds.next() {
            rustix::process::fchdir(cwd).map_err(in_dir)?;
        }
        if let Some(dir) = &fork.dir {
            rustix::process::chdir(OsStr::from_bytes(dir)).map_err(in_dir)?;
        }
        let numbers = fork.fds.iter().chain([&fork.line]);
        // Out of the way first: one of them may have the number of another.
        let above = |(number, fd): (RawFd, OwnedFd)| {
            rustix::io::fcntl_dupfd_cloexec(&fd, OUT_OF_THE_WAY).map(|fd| (number, fd))
        };
        let all: Result<Vec<_>, _> = numbers.copied().zip(fds).map(above).collect();
        let mut given = Vec::new();
        for (number, fd) in all.map_err(|errno| setup(errno.into()))? {
            if (0..3).contains(&number) {
                copy::put_stream(fd.as_fd(), number).map_err(setup)?;
            } else {
                // At its number, unless something that was prepared has that: then at the next free one.
                let placed = rustix::io::fcntl_dupfd_cloexec(&fd, number);
                given.push((number, placed.map_err(|errno| setup(errno.into()))?));
            }
        }
        self.set_environment(fork);
        Ok(given)
    }

    fn set_environment(&self, fork: &Fork) {
        if let Some(shown) = self.shown {
            shown.write(&fork.tag);
        }
        if fork.env != self.env {
            let name = |entry: &[u8]| entry.iter().position(|byte| *byte == b'=').unwrap_or(0);
            let wanted = |key: &[u8]| {
                fork.env.iter().any(|entry| name(entry) == key.len() && entry.starts_with(key))
            };
            for entry in &self.env {
                let key = &entry[..name(entry)];
                if !key.is_empty() && !wanted(key) {
                    copy::set_variable(OsStr::from_bytes(key), None);
                }
            }
            for entry in fork.env.iter().filter(|entry| !self.env.contains(entry)) {
                let (key, value) = entry.split_at(name(entry));
                if !key.is_empty() {
                    let value = OsStr::from_bytes(value.get(1..).unwrap_or_default());
                    copy::set_variable(OsStr::from_bytes(key), Some(value));
                }
            }
        }
        copy::set_variable(OsStr::new(TAG), Some(OsStr::from_bytes(&fork.tag)));
    }
}

/// A template has one thread.
fn threads_at_start() -> io::Result<u64> {
    let count = identity::own_threads().unwrap_or(0);
    let tested = hook::setting(TEST_THREADS).and_then(|text| text.parse().ok());
    if count == tested.unwrap_or(1) {
        return Ok(count);
    }
    Err(io::Error::other(format!("it has {count} threads at its start")))
}

fn is_wrong(what: &str) -> bool {
    hook::setting(TEST_FORK).is_some_and(|wrong| wrong == what)
}

fn go_wrong(what: &str) {
    if is_wrong(what) {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}

/// Waits for the first word on its line, without taking it. `false` when the line ended before: the
/// guard that asked for this child died, and whoever goes on does not know of it.
fn was_registered(given: &[(RawFd, OwnedFd)], number: RawFd) -> bool {
    if hook::is_off("fork-hello") {
        return true;
    }
    let Some((_, line)) = given.iter().find(|(at, _)| *at == number) else { return false };
    peek(line.as_fd())
}

fn peek(line: BorrowedFd<'_>) -> bool {
    loop {
        match rustix::net::recv(line, &mut [0_u8; 1][..], RecvFlags::PEEK) {
            Ok((_, length)) => return length > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn refused(errno: i32) -> Forked {
    failed(Phase::Request, errno)
}

fn failed(phase: Phase, errno: i32) -> Forked {
    Forked::Failed(Failure { phase, errno })
}
