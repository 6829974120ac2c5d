//! `serve`: carries one task over one link. Both executors run this very function.

use crate::link::{Link, LinkError};
use crate::registry::Registry;

/// What surrounds a child: how it starts programs, and what it says of itself.
#[derive(Debug, Clone)]
pub struct Host {
    /// Starts programs in this child's scope; `None` where ownership is not available.
    pub owner: Option<ownership::Owner>,
    /// Pid for the first frame; 0 in a thread.
    pub pid: u32,
    /// Version of the program.
    pub program_version: String,
}

/// Serves one child: `Hello`, `Begin`, events and beats, result, `Finish`. Returns after the last
/// byte was taken.
///
/// # Errors
/// When the parent is gone or breaks the protocol. There is nobody left to tell then.
pub fn serve(_link: Link, _registry: &Registry, _host: Host) -> Result<(), LinkError> {
    Err(LinkError::Closed)
}
