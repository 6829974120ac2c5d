//! Helper: tells what it was born with.
//!
//! `lister` prints one fact per line and exits 0. What it must not have got is in there too:
//!
//! ```text
//! fd 0 /dev/null            each open descriptor and what it is
//! env PATH                  each variable's name; values may be secrets
//! cwd /tmp
//! pid 10                    then ppid, pgid, sid
//! SigBlk 0000000000000000   mask, and what is ignored or caught, as in /proc/PID/status
//! arg 1 …                   each argument
//! stdin …                   length of standard input in bytes
//! ```
//!
//! Rust's own runtime ignores SIGPIPE and catches SEGV and BUS before `main`; every other bit was
//! inherited.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use rustix::process::{getpgid, getpid, getppid, getsid};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    descriptors(&mut out)?;
    for (name, _) in std::env::vars_os() {
        writeln!(out, "env {}", name.to_string_lossy())?;
    }
    writeln!(out, "cwd {}", std::env::current_dir()?.display())?;
    writeln!(out, "pid {}", getpid().as_raw_nonzero())?;
    writeln!(out, "ppid {}", getppid().map_or(0, |pid| pid.as_raw_nonzero().get()))?;
    writeln!(out, "pgid {}", getpgid(None)?.as_raw_nonzero())?;
    writeln!(out, "sid {}", getsid(None)?.as_raw_nonzero())?;
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if let Some((name, value)) =
            line.split_once(':').filter(|(name, _)| ["SigBlk", "SigIgn", "SigCgt"].contains(name))
        {
            writeln!(out, "{name} {}", value.trim())?;
        }
    }
    for (index, arg) in std::env::args_os().enumerate() {
        writeln!(out, "arg {index} {}", arg.to_string_lossy())?;
    }
    let bytes = io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    writeln!(out, "stdin {bytes}")
}

/// Open descriptors, the one that reads the list apart.
fn descriptors(out: &mut dyn Write) -> io::Result<()> {
    let paths = fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    for path in paths {
        // The list's own descriptor is closed by now and has no target.
        if let Ok(target) = fs::read_link(&path) {
            let number = path.file_name().unwrap_or_default();
            writeln!(out, "fd {} {}", number.display(), target.display())?;
        }
    }
    Ok(())
}
