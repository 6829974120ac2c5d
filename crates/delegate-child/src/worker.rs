//! The worker role of a program: descriptor 3 is the line to the parent, 4 the line to the
//! supervisor, 6 the page that is shared with the parent, if there is one. A [`template`] comes to the same by another way.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use delegate_protocol::message::Verdict;
use ownership::page::Page;
use rustix::process::{Signal, getpid, kill_process};

use crate::cancel::{Reason, Token};
use crate::hook;
use crate::kept::Kept;
use crate::link::{self, Link, LinkError};
use crate::owner_source::OwnerSource;
use crate::registry::Registry;
use crate::serve::{Host, serve_until};

#[cfg(target_os = "linux")]
pub mod again;
#[cfg(target_os = "linux")]
mod state;
#[cfg(target_os = "linux")]
pub mod template;

/// The argument that makes a program a worker.
pub const WORKER_ROLE: &str = "@delegate-worker";

/// The line to the parent.
pub const LINE_FD: i32 = 3;

/// The line to the supervisor.
pub const OWNER_FD: i32 = 4;

/// The page that is shared with the parent. A worker that gets none does everything in frames.
pub const PAGE_FD: i32 = 6;

/// Time that an agent has to unwind once the parent is gone. Then the process ends itself: an agent
/// that never looks at its session must not outlive the one who asked for it, even where no
/// supervisor stands above the worker.
pub const UNWIND: Duration = Duration::from_secs(3);

/// When this process was started as a worker, serves its one task to the end. Call it first in
/// `main`, after [`ownership::owner::run_if_asked`].
///
/// The exit code is 0 after the last frame was taken, 1 when the parent is gone or broke the
/// protocol, 2 when descriptor 3 is not a socket. A parent that is gone and an agent that does not
/// unwind within [`UNWIND`] end the process by SIGKILL.
#[must_use]
pub fn run_if_asked(registry: &Registry) -> Option<ExitCode> {
    let role = std::env::args_os().nth(1)?;
    #[cfg(target_os = "linux")]
    if let Some(agent) = role.to_str().and_then(template::agent_of) {
        return Some(template::run(registry, agent));
    }
    if role != WORKER_ROLE {
        return None;
    }
    // All before anything else opens a descriptor: a free number would be somebody else's soon.
    let (line, owner) = (ownership::inherit::take(LINE_FD), ownership::inherit::take(OWNER_FD));
    let page = Page::inherited(PAGE_FD);
    let line = match line.map(link::socket) {
        Ok(line) => line,
        Err(error) => {
            say(&format!("descriptor {LINE_FD} is not the line to a parent: {error}"));
            return Some(ExitCode::from(2));
        }
    };
    Some(carry(line, owner.ok(), page, registry))
}

/// Carries one task over this line.
fn carry(
    line: Link,
    owner: Option<OwnedFd>,
    page: io::Result<Page>,
    registry: &Registry,
) -> ExitCode {
    match carry_one(line, owner.map(ownership::Owner::inherited), page, registry) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, LinkError::Closed) {
                say(&error.to_string());
            }
            ExitCode::FAILURE
        }
    }
}

fn carry_one(
    line: Link,
    owner: Option<ownership::Owner>,
    page: io::Result<Page>,
    registry: &Registry,
) -> Result<Verdict, LinkError> {
    let page = match page {
        Ok(page) if !hook::is_off("page") => Some(Arc::new(page)),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "no page");
            None
        }
    };
    let host = Host {
        owner: OwnerSource::of(owner),
        output: Kept::of_process(),
        pid: std::process::id(),
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let token = Arc::new(Token::on(page));
    // Dropped when the task is carried: then nobody has to be ended.
    let (_carried, watched) = bounded(0);
    leave_when_orphaned(&token, watched);
    serve_until(line, registry, host, &token)
}

/// Ends this process when its parent is gone and the agent does not unwind.
fn leave_when_orphaned(token: &Token, carried: Receiver<std::convert::Infallible>) {
    token.on_raise(move |reason| {
        if reason != Reason::ParentGone {
            return;
        }
        let carried = carried.clone();
        let watch = move || {
            if carried.recv_timeout(UNWIND) == Err(RecvTimeoutError::Timeout) {
                end_this_process();
            }
        };
        if thread::Builder::new().name("unwind".to_owned()).spawn(watch).is_err() {
            // Without a thread nobody can wait; what is certain is worth more than 3 s.
            end_this_process();
        }
    });
}

/// Not `exit`: that runs handlers, which the agent that does not end may keep from ending.
fn end_this_process() {
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "a process cannot end itself");
    }
}

/// A worker's stderr is kept by its parent; without a parent nobody reads it, and that is no error.
fn say(text: &str) {
    if let Err(error) = writeln!(io::stderr(), "{WORKER_ROLE}: {text}") {
        tracing::debug!(%error, "stderr is closed");
    }
}
