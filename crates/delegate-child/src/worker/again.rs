//! A worker of a pool that carries more than one task, one after the other: only with an agent that says that it is
//! reusable, and only as long as each task leaves the process as it found it (`state`).
//!
//! Between two tasks it stands still: it says on descriptor 7 how the last one left it, and gets there what the next
//! one needs: its line, two pipes, and its page.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::Duration;

use delegate_protocol::message::Verdict;
use ownership::handover::{self, Handed};
use ownership::page::Page;

use super::state::State;
use super::{carry_one, say};
use crate::hook;
use crate::link;
use crate::registry::Registry;

/// Where a worker hears of its next task.
pub const AGAIN_FD: i32 = 7;

/// What it says when the process is as it was. Anything else says what is not.
pub const SAME: &[u8] = b"=";

/// Threads of the line that have done their work take a moment to be gone. Looks, and time between them.
const LOOKS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(5);

/// Carries tasks until there are no more, or one has left something behind.
pub(super) fn carry(
    mut line: OwnedFd,
    owner: Option<OwnedFd>,
    mut page: io::Result<Page>,
    again: &OwnedFd,
    registry: &Registry,
) -> ExitCode {
    let owner = owner.map(ownership::Owner::inherited);
    loop {
        let number = line.as_raw_fd();
        let before = State::now(number);
        let ended = carry_one(link::socket(line), owner.clone(), page, registry);
        let word = match ended {
            Ok(Verdict::Completed) => left(number, &before),
            Ok(_) => "it did not complete".to_owned(),
            Err(error) => {
                say(&error.to_string());
                return ExitCode::FAILURE;
            }
        };
        let same = word.as_bytes() == SAME;
        let quiet = quiet();
        let word = &word.as_bytes()[..word.len().min(handover::RECORD)];
        // Who asked may be gone.
        let said = handover::send(again, word, &[]);
        if !same || quiet.is_err() || said.is_err() {
            return ExitCode::SUCCESS;
        }
        (line, page) = match handover::receive(again).map(|handed| handed.and_then(next)) {
            Ok(Some(next)) => next,
            Ok(None) | Err(_) => return ExitCode::SUCCESS,
        };
    }
}

/// How it was left, in a word.
fn left(line: RawFd, before: &State) -> String {
    let same = || String::from_utf8_lossy(SAME).into_owned();
    if hook::is_off("state") {
        return same();
    }
    for look in 1.. {
        let changed = State::now(line).changed_since(before);
        if changed.is_empty() {
            return same();
        }
        if look == LOOKS || !changed.iter().all(|what| matches!(*what, "threads" | "descriptors")) {
            return format!("changed: {}", changed.join(", "));
        }
        pause();
    }
    String::new()
}

fn pause() {
    let time = rustix::event::Timespec::try_from(BETWEEN).ok();
    // Nothing is waited for but the time.
    let _ready = rustix::event::poll(&mut [], time.as_ref());
}

/// What is printed goes nowhere until the next task, whose parent is told of it.
fn quiet() -> io::Result<()> {
    io::stdout().flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// The line and the page of the next task; its pipes are in place.
fn next(handed: Handed) -> Option<(OwnedFd, io::Result<Page>)> {
    let mut fds = handed.fds.into_iter();
    let (line, stdout, stderr) = (fds.next()?, fds.next()?, fds.next()?);
    rustix::stdio::dup2_stdout(stdout.as_fd()).ok()?;
    rustix::stdio::dup2_stderr(stderr.as_fd()).ok()?;
    let page = fds.next().map_or_else(|| Err(io::ErrorKind::NotFound.into()), Page::open);
    Some((line, page))
}
