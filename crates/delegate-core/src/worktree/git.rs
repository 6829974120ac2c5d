//! Runs `git` as a process that is owned like any other, with a time limit and a bounded output. What it
//! says is data for [`super::inspect`]; nothing here decides.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, PipeReader, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use ownership::{ChildEvent, ExitStatus, Owner, Phase, Spawn};

use crate::config::shorten;

/// Longest time of one call: a checkout of a large repository takes seconds, a hook may hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that a call may print; a list of two million paths fits.
const OUTPUT: u64 = 64 * 1024 * 1024;

/// No such file (errno 2 on Linux).
const ENOENT: i32 = 2;

/// Bytes of an error text that are shown.
const SHOWN: usize = 400;

/// Longest time between the end of a call and the end of its output.
const DRAIN: Duration = Duration::from_secs(5);

/// What a caller's own git has set, and what would lead this one astray (`git rev-parse --local-env-vars`).
const LOCAL: [&str; 15] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_COMMON_DIR",
];

/// Why a call of git says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such program.
    NoGit,
    /// It could not be started, or not be read.
    System(String),
    /// It took too long and was ended.
    TooLong(&'static str),
    /// It failed: the command, and what it said.
    Failed(&'static str, String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGit => f.write_str("there is no program `git` in PATH"),
            Self::System(why) => write!(f, "git could not be run: {why}"),
            Self::TooLong(what) => {
                write!(f, "`git {what}` did not end within {} s", LIMIT.as_secs())
            }
            Self::Failed(what, said) => write!(f, "`git {what}` failed: {said}"),
        }
    }
}

/// Runs git.
#[derive(Debug, Clone)]
pub(super) struct Git {
    owner: Owner,
}

impl Git {
    pub(super) const fn of(owner: Owner) -> Self {
        Self { owner }
    }

    /// Runs one command in `dir`; `what` names it in messages. Gives what it printed.
    pub(super) fn run<S: AsRef<OsStr>>(
        &self,
        dir: &Path,
        what: &'static str,
        args: &[S],
    ) -> Result<Vec<u8>, Trouble> {
        self.run_with(dir, what, args, None)
    }

    /// The same, with another index than that of the worktree.
    pub(super) fn run_with<S: AsRef<OsStr>>(
        &self,
        dir: &Path,
        what: &'static str,
        args: &[S],
        index: Option<&Path>,
    ) -> Result<Vec<u8>, Trouble> {
        let system = |error: io::Error| Trouble::System(error.to_string());
        let (out, stdout) = io::pipe().map_err(system)?;
        let (err, stderr) = io::pipe().map_err(system)?;
        let mut spawn = Spawn::new("git")
            // What a repository's own settings would run when it is only looked at.
            .args(["-c", "core.fsmonitor=false", "-c", "core.quotePath=false"])
            .args(args)
            .dir(dir)
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .fd(1, stdout.into())
            .fd(2, stderr.into())
            .purpose(format!("git {what}"));
        for name in LOCAL {
            spawn = spawn.env_remove(name);
        }
        if let Some(index) = index {
            spawn = spawn.env("GIT_INDEX_FILE", index);
        }
        let (ended, end) = channel();
        let owned = self.owner.spawn(spawn, move |event| {
            let status = match event {
                ChildEvent::Exited(exit) => Some(exit.status),
                ChildEvent::Lost => None,
                ChildEvent::Stopped(_) | ChildEvent::Emptied(_) | _ => return,
            };
            // Who waited may have given up.
            _ = ended.send(status);
        });
        let owned = owned.map_err(|error| {
            let missing = error.phase == Phase::Exec && error.errno == Some(ENOENT);
            if missing { Trouble::NoGit } else { Trouble::System(error.to_string()) }
        })?;
        let (out, err) = (read(out).map_err(system)?, read(err).map_err(system)?);
        let status = match end.recv_timeout(LIMIT) {
            Ok(status) => status,
            Err(RecvTimeoutError::Timeout) => {
                owned.kill();
                return Err(Trouble::TooLong(what));
            }
            Err(RecvTimeoutError::Disconnected) => None,
        };
        let (out, err) = (taken(&out)?, taken(&err)?);
        if status == Some(ExitStatus::Code(0)) {
            return if out.len() as u64 > OUTPUT {
                Err(Trouble::Failed(what, format!("it printed more than {OUTPUT} bytes")))
            } else {
                Ok(out)
            };
        }
        let said = String::from_utf8_lossy(&err).trim().replace('\n', " ");
        let end =
            || status.map_or_else(|| "its end is not known".to_owned(), |end| format!("{end:?}"));
        let said = if said.is_empty() { end() } else { shorten(&said, SHOWN) };
        Err(Trouble::Failed(what, said))
    }

    /// The same for one line of text.
    pub(super) fn line<S: AsRef<OsStr>>(
        &self,
        dir: &Path,
        what: &'static str,
        args: &[S],
    ) -> Result<String, Trouble> {
        let out = self.run(dir, what, args)?;
        let text = String::from_utf8(out)
            .map_err(|_| Trouble::Failed(what, "what it printed is not UTF-8".to_owned()))?;
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }
}

/// Reads to the end on a thread of its own, and keeps one byte more than may be.
fn read(mut pipe: PipeReader) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    let work = move || {
        let mut kept = Vec::new();
        let read = pipe.by_ref().take(OUTPUT + 1).read_to_end(&mut kept);
        let read = read.and_then(|_| io::copy(&mut pipe, &mut io::sink()));
        drop(sender.send(read.map(|_| kept)));
    };
    thread::Builder::new().name("delegate-git".to_owned()).spawn(work)?;
    Ok(receiver)
}

fn taken(output: &Receiver<io::Result<Vec<u8>>>) -> Result<Vec<u8>, Trouble> {
    match output.recv_timeout(DRAIN) {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(Trouble::System(error.to_string())),
        Err(_) => Err(Trouble::System("its output does not end".to_owned())),
    }
}
