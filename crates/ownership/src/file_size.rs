//! The limit of file sizes (`ulimit -f`): a write beyond it is to be an error of that write. By default the kernel ends
//! the process with SIGXFSZ: an owner, with everything that it holds, for want of a line in a log.

/// The limit of this process, in bytes; `None` for no limit.
#[cfg(target_os = "linux")]
pub(crate) fn limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// From now on such a write is an error (`EFBIG`, [`std::io::ErrorKind::FileTooLarge`]) in this thread and in those that
/// it starts. What is started as a process is as it would be without.
pub fn limit_is_an_error() {
    #[cfg(target_os = "linux")]
    if !crate::hook::is_off("file-size") {
        // The signal is for the thread that wrote, and waits where it is blocked.
        crate::sys::signal::block(1 << (libc::SIGXFSZ - 1));
    }
}
