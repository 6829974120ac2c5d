//! The operating system fence: every `unsafe` block of the workspace is in this folder, each with its
//! reason. What leaves it are safe functions over owned descriptors and plain numbers. Callers are
//! [`crate::launch`], [`crate::template`], [`crate::membership`], [`crate::door`], [`crate::supervisor_loop`] and [`crate::client`].
//!
//! Linux only; elsewhere [`crate::client`] is replaced as a whole and nothing of this is compiled.

pub(crate) mod burden;
pub(crate) mod copy;
pub(crate) mod front;
pub(crate) mod into_cgroup;
pub(crate) mod namespace;
pub(crate) mod process;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod start;
pub(crate) mod wait;

/// A process number as the kernel's calls take it. An address, not an identity.
pub(crate) type Pid = i32;

/// The calling thread's last error number.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
