//! Tests that measure their own process run in one of their own: the suite beside them would be
//! measured, too.

use std::fs;
use std::process::{Command, Stdio};

/// Runs an ignored test of this binary in a process of its own, by its path without the crate.
pub fn alone(test: &str) {
    alone_with(test, &[]);
}

/// The same with variables.
pub fn alone_with(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
}

/// A line of /proc/PID/status in KiB (man 5 proc_pid_status).
pub fn kib(pid: &str, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The most memory that this process ever had, in KiB.
pub fn peak() -> u64 {
    kib("self", "VmHWM").unwrap()
}

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    // The one that reads the list is in it.
    fs::read_dir("/proc/self/fd").unwrap().count() - 1
}
