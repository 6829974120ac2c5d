//! The exec launcher: the supervisor executes a worker program, whose descriptor 3 is the line to us
//! and 4 a line to the same supervisor. One of ours gets a page that it shares with us as descriptor 6; one of another
//! make does everything in frames.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use delegate_child::worker::{LINE_FD, OWNER_FD, PAGE_FD, WORKER_ROLE};
use ownership::page::Page;
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
    Ok(ours.launched(Arc::new(owned), "exec"))
}

/// What every worker process is started with, and what of it is ours.
pub(super) fn spawn(worker: &WorkerProgram, pipes: Pipes, launch: &Launch) -> (Spawn, Ours) {
    let Pipes { line, stdout, stderr, page } = pipes;
    let mut spawn = Spawn::program(worker.program.clone())
        .args(&worker.args)
        .fd(1, stdout.1)
        .fd(2, stderr.1)
        .fd(LINE_FD, line.1.into())
        .line(OWNER_FD)
        .grace(launch.terminate_grace)
        .containment(launch.containment)
        .ration(launch.ration)
        .purpose(launch.purpose.clone());
    let mut shared = None;
    if let Some((page, memfd)) = page.filter(|_| worker.is_ours()) {
        spawn = spawn.fd(PAGE_FD, memfd);
        shared = Some(page);
    }
    #[cfg(target_os = "linux")]
    if let Some(Ok(again)) = launch.again.as_ref().map(|again| again.try_clone()) {
        spawn = spawn.fd(delegate_child::worker::again::AGAIN_FD, again);
    }
    (worker.without_keys(spawn), Ours { line: line.0, output: (stdout.0, stderr.0), page: shared })
}

impl WorkerProgram {
    /// Whether it is a program of ours, and not one of another make (`worker.command`).
    fn is_ours(&self) -> bool {
        self.args.iter().any(|arg| arg == WORKER_ROLE)
    }

    /// Without the variables that hold keys.
    pub(super) fn without_keys(&self, spawn: Spawn) -> Spawn {
        self.hidden_variables.iter().fold(spawn, |spawn, name| spawn.env_remove(name))
    }
}

/// Our ends of what a worker was given.
pub(super) struct Ours {
    line: UnixStream,
    output: (OwnedFd, OwnedFd),
    page: Option<Page>,
}

impl Ours {
    pub(super) fn launched(self, owned: Arc<Owned>, how: &'static str) -> Launched {
        Launched {
            pid: Some(owned.pid()),
            how,
            handle: Handle::Process(owned),
            line: Line::Socket(self.line),
            output: Some(self.output),
            page: self.page,
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
    /// With the descriptor for the child. Where there is none all is said in frames.
    page: Option<(Page, OwnedFd)>,
}

impl Pipes {
    /// For a worker that is there already: what it gets (line, stdout, stderr, page), and what is ours.
    #[cfg(target_os = "linux")]
    pub(super) fn split(self) -> (Vec<OwnedFd>, Ours) {
        let Self { line, stdout, stderr, page } = self;
        let mut theirs = vec![line.1.into(), stdout.1, stderr.1];
        let page = page.map(|(page, memfd)| {
            theirs.push(memfd);
            page
        });
        (theirs, Ours { line: line.0, output: (stdout.0, stderr.0), page })
    }

    pub(super) fn open() -> io::Result<Self> {
        let pipe = || io::pipe().map(|(read, write)| (read.into(), write.into()));
        let page = Page::create();
        if let Err(error) = &page {
            tracing::debug!(target: "delegate::launch", %error, "no page");
        }
        Ok(Self { line: UnixStream::pair()?, stdout: pipe()?, stderr: pipe()?, page: page.ok() })
    }
}
