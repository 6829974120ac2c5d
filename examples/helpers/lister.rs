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

use std::fs;
use std::io::{self, Read, Write};

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
            line.split_once(':').filter(|(name, _)| name.starts_with("Sig"))
        {
            writeln!(out, "{name} {}", value.trim())?;
        }
    }
    for (index, arg) in std::env::args_os().enumerate() {
        writeln!(out, "arg {index} {}", arg.to_string_lossy())?;
    }
    let bytes = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink())?;
    writeln!(out, "stdin {bytes}")
}

/// Open descriptors, the one that reads the list apart.
fn descriptors(out: &mut dyn Write) -> io::Result<()> {
    let listing = fs::read_dir("/proc/self/fd")?.collect::<io::Result<Vec<_>>>()?;
    for entry in listing {
        // The list's own descriptor is closed by now and has no target.
        if let Ok(target) = fs::read_link(entry.path()) {
            let number = entry.file_name().to_string_lossy().into_owned();
            writeln!(out, "fd {number} {}", target.display())?;
        }
    }
    Ok(())
}
