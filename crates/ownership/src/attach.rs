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
use crate::{identity, launch};

/// A supervisor that has not said hello by then is none: a start takes a few milliseconds.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Largest reply: 32 processes with names, or less.
pub(crate) const REPLY_BYTES: usize = 8 * 1024;

/// Starts a keeper, which starts the supervisor, and gives our end of their line. The stage that we start
/// leaves at once, so that this process has no child that its program did not start; near us there is no
/// stage. `journal` is where they write down what they do.
pub(crate) fn start_guards(
    program: &Program,
    args: &[OsString],
    numbers: RoleNumbers,
    journal: Option<&Path>,
) -> Result<OwnedFd, SpawnError> {
    let failed = |detail: &str| {
        let detail = detail.to_owned();
        move |errno: rustix::io::Errno| supervisor_error(&detail, Some(errno.raw_os_error()))
    };
    if !identity::proc_is_ours() {
        return Err(supervisor_error("/proc is missing or of another pid namespace", None));
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
    let stage = launch::start_stage(program, &argv, given, (journal, numbers.stand), null.as_fd())
        .map_err(|failure| SpawnError {
            path: match &program.kind {
                Kind::Named(name) => Some(PathBuf::from(name)),
                Kind::Open(_) => None,
            },
            ..supervisor_error(
                &std::io::Error::from_raw_os_error(failure.errno).to_string(),
                Some(failure.errno),
            )
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
pub(crate) fn expect_hello(line: &OwnedFd) -> Result<(u32, Vec<OwnedFd>), SpawnError> {
    let none = || supervisor_error("it did not say hello", None);
    if !wait_readable(line.as_fd(), HELLO_LIMIT) {
        return Err(none());
    }
    let Ok(Received::Record { bytes, fds }) =
        line::receive(line.as_fd(), &mut vec![0; REPLY_BYTES], false)
    else {
        return Err(none());
    };
    match Reply::decode(&bytes) {
        Some(Reply::Hello { version: VERSION, pid, generation }) => {
            tracing::debug!(pid, generation, "supervisor is there");
            Ok((generation, fds))
        }
        Some(Reply::Hello { version, .. }) => Err(supervisor_error(
            &format!("it speaks version {version}, this program {VERSION}: install both together"),
            None,
        )),
        _ => Err(none()),
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
