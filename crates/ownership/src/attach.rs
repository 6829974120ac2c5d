//! Starts the guards and makes sure that they are there.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::child::supervisor_error;
use crate::line::{self, Received};
use crate::program::{KEEPER_ROLE, Kind, Program, RoleNumbers, Stand};
use crate::protocol::{Reply, VERSION};
use crate::spawn::SpawnError;
use crate::sys::{signal, wait};
use crate::{hook, identity, launch, table};

/// A supervisor that has not said hello by then is none: a start takes a few milliseconds.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Largest reply: 32 processes with names, or less.
pub(crate) const REPLY_BYTES: usize = 8 * 1024;

/// Most pairs of guards that are started for one line: one that is killed while it sets itself up is followed by
/// another, but a program that always dies there is not started for ever.
const STARTS: u32 = 3;

/// A line whose guards have said hello.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) line: OwnedFd,
    /// The number of the guard that serves it, and handles of it and of its keeper, where we are told.
    pub(crate) generation: u32,
    pub(crate) guards: Vec<OwnedFd>,
}

/// Why nobody said hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// The line has ended: whoever was started is dead.
    Died,
    /// Nothing came in time; somebody may be there.
    Silent,
    /// Something else came.
    Strange,
    /// It is of another version.
    Version(u32),
}

impl Missing {
    /// Whether to start others, after so many. Only where nobody can be there any more.
    const fn again(self, started: u32) -> bool {
        matches!(self, Self::Died) && started < STARTS
    }

    fn error(self, started: u32) -> SpawnError {
        let detail = match self {
            Self::Died => format!(
                "{started} of them died before they said hello: something kills them, or the program is no supervisor"
            ),
            Self::Silent | Self::Strange => "it did not say hello".to_owned(),
            Self::Version(version) => format!(
                "it speaks version {version}, this program {VERSION}: install both together"
            ),
        };
        supervisor_error(&detail, None)
    }
}

/// Starts guards and waits for their hello; starts others where they die before it.
pub(crate) fn attach(
    start: impl Fn() -> Result<OwnedFd, SpawnError>,
) -> Result<Attached, SpawnError> {
    let mut started = 0;
    loop {
        let line = start()?;
        started += 1;
        match hello(&line) {
            Ok((generation, guards)) => return Ok(Attached { line, generation, guards }),
            Err(missing) if missing.again(started) && !hook::is_off("start-again") => {
                tracing::warn!(started, "guards died while they started; others are started");
            }
            Err(missing) => return Err(missing.error(started)),
        }
    }
}

/// A line that was handed to us: its guards have been there before.
pub(crate) fn attach_given(line: OwnedFd) -> Result<Attached, SpawnError> {
    let (generation, guards) = hello(&line).map_err(|missing| missing.error(1))?;
    Ok(Attached { line, generation, guards })
}

/// Starts a keeper, which starts the supervisor, and gives our end of their line. The stage that we start
/// leaves at once, so that this process has no child that its program did not start; near us there is no
/// stage. `journal` is where they write down what they do, `containment` what they hold
/// scopes together with ([`launch::CONTAINMENT`]).
pub(crate) fn start_guards(
    program: &Program,
    args: &[OsString],
    numbers: RoleNumbers,
    (journal, containment, keep): (Option<&Path>, &str, Option<&str>),
) -> Result<OwnedFd, SpawnError> {
    let failed = |detail: &str| {
        let detail = detail.to_owned();
        move |errno: rustix::io::Errno| supervisor_error(&detail, Some(errno.raw_os_error()))
    };
    if !identity::proc_is_ours() {
        return Err(supervisor_error("/proc is missing or of another pid namespace", None));
    }
    if let Some(why) = table::is_too_small() {
        return Err(supervisor_error(&why, Some(libc::EFBIG)));
    }
    let (ours, theirs) = line::pair().map_err(failed("no line"))?;
    let handle = identity::own_pidfd()
        .map_err(|error| supervisor_error("no pidfd of this process", error.raw_os_error()))?;
    let null =
        std::fs::File::options().read(true).write(true).open("/dev/null").map_err(|error| {
            supervisor_error("/dev/null cannot be opened", error.raw_os_error())
        })?;
    let mut argv = vec![b"warden".to_vec(), numbers.argument(KEEPER_ROLE).into_bytes()];
    argv.extend(args.iter().map(|arg| arg.as_bytes().to_vec()));
    let given = [theirs.as_fd(), handle.as_fd()];
    let kept = (journal, containment, keep, numbers.stand);
    let stage =
        launch::start_stage(program, &argv, given, kept, null.as_fd()).map_err(|failure| {
            SpawnError {
                path: match &program.kind {
                    Kind::Named(name) => Some(PathBuf::from(name)),
                    Kind::Open(_) => None,
                },
                ..supervisor_error(
                    &std::io::Error::from_raw_os_error(failure.errno).to_string(),
                    Some(failure.errno),
                )
            }
        })?;
    drop(theirs);
    if numbers.stand == Stand::Near {
        // It is the keeper, and reaped with its line.
        return Ok(ours);
    }
    // A program that is no supervisor may never leave; it is ended below for want of a hello.
    let left = wait_readable(stage.as_fd(), HELLO_LIMIT);
    if !left {
        let _ = signal::send(stage.as_fd(), libc::SIGKILL);
    }
    wait::reap_handle(&stage);
    if left { Ok(ours) } else { Err(supervisor_error("it is no supervisor", None)) }
}

/// The first record of every line: the number of the guard that serves it, and handles of it and, on a
/// line of its owner, of its keeper.
fn hello(line: &OwnedFd) -> Result<(u32, Vec<OwnedFd>), Missing> {
    if !wait_readable(line.as_fd(), HELLO_LIMIT) {
        return Err(Missing::Silent);
    }
    match line::receive(line.as_fd(), &mut vec![0; REPLY_BYTES], false) {
        Ok(Received::Record { bytes, fds }) => match Reply::decode(&bytes) {
            Some(Reply::Hello { version: VERSION, pid, generation }) => {
                tracing::debug!(pid, generation, "supervisor is there");
                Ok((generation, fds))
            }
            Some(Reply::Hello { version, .. }) => Err(Missing::Version(version)),
            _ => Err(Missing::Strange),
        },
        Ok(Received::End) => Err(Missing::Died),
        Ok(Received::Junk | Received::Bodiless { .. }) | Err(_) => Err(Missing::Strange),
    }
}

/// Whether it becomes readable in time.
fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let Ok(limit) = Timespec::try_from(limit) else { return false };
    loop {
        match poll(&mut asked, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reason after every number of starts.
    #[test]
    fn others_are_started_only_after_the_dead_and_not_for_ever() {
        for started in 1..STARTS + 2 {
            assert_eq!(Missing::Died.again(started), started < STARTS, "{started}");
            for other in [Missing::Silent, Missing::Strange, Missing::Version(1)] {
                assert!(!other.again(started), "{other:?} {started}");
            }
        }
    }

    #[test]
    fn guards_that_always_die_are_started_so_often_and_then_named() {
        let starts = std::cell::Cell::new(0);
        let dead = || {
            starts.set(starts.get() + 1);
            line::pair().map(|(ours, _theirs)| ours).map_err(|_| Missing::Strange.error(0))
        };
        let error = attach(dead).expect_err("all of them died");
        assert_eq!(starts.get(), STARTS);
        assert!(error.detail.contains("3 of them died"), "{error}");
    }
}
