//! The exec launcher: the supervisor executes a worker program, whose descriptor 3 is the line to us
//! and 4 a line to the same supervisor.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use delegate_child::worker::{LINE_FD, OWNER_FD};
use ownership::{Owned, Owner, Program, Spawn, SpawnError};

use super::{Handle, Launch, Launched, Line, StartFailure, failure};

/// A program that speaks the child's side of the protocol, and the owner that starts it.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    /// What to execute.
    pub program: Program,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What it is, for `--explain`.
    pub description: String,
    /// Who starts it.
    pub owner: Owner,
    /// Variables of this process that workers do not get: they hold keys.
    pub hidden_variables: Vec<String>,
}

/// Starts one worker process.
pub(super) fn launch(worker: &WorkerProgram, launch: Launch) -> Result<Launched, StartFailure> {
    let pipes = Pipes::open().map_err(|error| failure("pipes", &error))?;
    let (spawn, ours) = spawn(worker, pipes, &launch);
    let sink = launch.sink;
    let owned = worker.owner.spawn(spawn, move |event| sink(event)).map_err(start_failure)?;
    Ok(ours.launched(owned, "exec"))
}

/// What every worker process is started with, and what of it is ours.
pub(super) fn spawn(worker: &WorkerProgram, pipes: Pipes, launch: &Launch) -> (Spawn, Ours) {
    let Pipes { line, stdout, stderr } = pipes;
    let spawn = Spawn::program(worker.program.clone())
        .args(&worker.args)
        .fd(1, stdout.1)
        .fd(2, stderr.1)
        .fd(LINE_FD, line.1.into())
        .line(OWNER_FD)
        .grace(launch.terminate_grace)
        .containment(launch.containment)
        .ration(launch.ration)
        .purpose(launch.purpose.clone());
    (worker.without_keys(spawn), Ours { line: line.0, output: (stdout.0, stderr.0) })
}

impl WorkerProgram {
    /// Without the variables that hold keys.
    pub(super) fn without_keys(&self, spawn: Spawn) -> Spawn {
        self.hidden_variables.iter().fold(spawn, |spawn, name| spawn.env_remove(name))
    }
}

/// Our ends of what a worker was given.
pub(super) struct Ours {
    line: UnixStream,
    output: (OwnedFd, OwnedFd),
}

impl Ours {
    pub(super) fn launched(self, owned: Owned, how: &'static str) -> Launched {
        Launched {
            pid: Some(owned.pid()),
            how,
            handle: Handle::Process(owned),
            line: Line::Socket(self.line),
            output: Some(self.output),
        }
    }
}

fn start_failure(error: SpawnError) -> StartFailure {
    StartFailure {
        phase: error.phase.word().to_owned(),
        errno: error.errno,
        path: error.path.map(|path| path.display().to_string()),
        detail: error.detail,
    }
}

/// Our ends first; all close-on-exec (std makes them so).
pub(super) struct Pipes {
    line: (UnixStream, UnixStream),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
}

impl Pipes {
    pub(super) fn open() -> io::Result<Self> {
        let pipe = || io::pipe().map(|(read, write)| (read.into(), write.into()));
        Ok(Self { line: UnixStream::pair()?, stdout: pipe()?, stderr: pipe()? })
    }
}
