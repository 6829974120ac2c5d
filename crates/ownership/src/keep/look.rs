//! Reads from `/proc` what a rule asks about a process. Signals nobody; what cannot be read is no fact.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::Facts;
use crate::identity::Stat;
use crate::sys::Pid;

/// What the kernel shows of a socket that listens: `__SO_ACCEPTCON` (`net/unix/af_unix.c`).
const LISTENS: u32 = 1 << 16;

/// Descriptors that are looked at: what a child opens must not keep a guard busy.
const MAX_FILES: usize = 4096;

/// The facts about a process that was met as `stat`; `left`: its parent is dead.
pub(crate) fn facts(pid: Pid, stat: &Stat, left: bool) -> Facts {
    let program = program(pid);
    let sockets = if program.is_some() { listening(pid) } else { Vec::new() };
    Facts { program, session: stat.session == pid, left, sockets }
}

/// The name of its executable file.
pub(crate) fn program(pid: Pid) -> Option<String> {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = exe.file_name()?.to_str()?;
    // The kernel's word for a file that was replaced.
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Paths of the unix sockets that a process listens on.
fn listening(pid: Pid) -> Vec<String> {
    let held = sockets(pid);
    if held.is_empty() {
        return Vec::new();
    }
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    table
        .lines()
        .filter_map(line)
        .filter(|(inode, _)| held.contains(inode))
        .map(|(_, path)| path.to_owned())
        .collect()
}

/// Inode and path of one that listens: `Num RefCount Protocol Flags Type St Inode Path` (man 5 proc_pid_net).
fn line(line: &str) -> Option<(u64, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let path = fields.next()?;
    // One without a file cannot be told from any other.
    (flags & LISTENS != 0 && path.starts_with('/')).then_some((inode, path))
}

fn sockets(pid: Pid) -> HashSet<u64> {
    let entries = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"));
    let targets = entries.into_iter().flatten().flatten().take(MAX_FILES);
    let targets = targets.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode = |target: std::path::PathBuf| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    targets.filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let listens = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 /tmp/a/s";
        assert_eq!(line(listens), Some((12345, "/tmp/a/s")));
        for other in [
            "0000000000000000: 00000003 00000000 00000000 0001 03 12346 /tmp/a/s",
            "0000000000000000: 00000002 00000000 00010000 0001 01 12347 @abstract",
            "0000000000000000: 00000002 00000000 00010000 0001 01 12348",
            "Num       RefCount Protocol Flags    Type St Inode Path",
            "",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }

    #[test]
    fn a_socket_is_a_fact_while_it_is_there() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("sock");
        let own = crate::identity::own_pid();
        let stat = Stat::read(own).expect("stat");
        let seen =
            || facts(own, &stat, false).sockets.contains(&path.to_str().expect("text").to_owned());
        assert!(!seen());
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bind");
        assert!(seen());
        // Who is connected to it does not listen.
        let client = std::os::unix::net::UnixStream::connect(&path).expect("connect");
        drop(listener);
        assert!(!seen());
        drop(client);
    }
}
