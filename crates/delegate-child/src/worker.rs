//! The worker role of a program: descriptor 3 is the line to the parent, 4 the line to the
//! supervisor.

use std::process::ExitCode;

use crate::registry::Registry;

/// The argument that makes a program a worker.
pub const WORKER_ROLE: &str = "@delegate-worker";

/// The line to the parent.
pub const LINE_FD: i32 = 3;

/// The line to the supervisor.
pub const OWNER_FD: i32 = 4;

/// When this process was started as a worker, serves its one task to the end. Call it first in
/// `main`, after [`ownership::owner::run_if_asked`].
#[must_use]
pub fn run_if_asked(_registry: &Registry) -> Option<ExitCode> {
    None
}
