//! Process groups that something else started in the owner, for [`crate::Owner::own_process_groups`].

use std::fmt;

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub(crate) use linux::Group;

/// A process group was not adopted, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct GroupError {
    /// The number that was given.
    pub leader: i32,
    /// What is wrong with it, for people.
    pub detail: String,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process group {} was not adopted: {}", self.leader, self.detail)
    }
}

impl std::error::Error for GroupError {}
