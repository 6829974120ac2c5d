//! `--background`: a process of ours that outlives this command and owns the batch, and what the two say to
//! each other. What is asked, with every secret in it, goes over a socket in this user's own directory, never
//! by argument, environment or disk; the answer is the id of the run, or why nothing was started.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{fs, io, thread};

use clap::{Args, Parser as _};
use delegate_core::config::Diagnostic;
use delegate_core::control;
use delegate_protocol::RunId;
use ownership::exempt::Status;
use ownership::{ExemptJob, Exemption, Program, Spawn, list_exempt, spawn_exempt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::args::{Cli, Verb};
use crate::cli::commands::{batch, rerun, resume, run};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json as objects;
use crate::cli::{Context, write_out};

/// Why such a process may outlive whoever starts it.
const REASON: &str = "delegate --background: it owns a run that its caller does not wait for, ends what \
                      it starts with itself, and leaves when the run has ended";

/// How long it may take to read, check and start a batch.
const PATIENCE: Duration = Duration::from_secs(120);

/// Records and logs of such processes that stay after their end, for whoever looks.
const LOGS: usize = 16;

/// Between two looks whether it has called.
const AGAIN: Duration = Duration::from_millis(5);

/// Bytes of what is asked, and of an answer: a batch file as text, and room for its escapes.
const LONGEST: u64 = 256 << 20;

/// `delegate host`, which people do not type.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Where what is asked waits
    socket: PathBuf,
}

/// What is asked: this command line again.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: String,
    args: Vec<String>,
    stdin: Option<String>,
}

/// What comes back.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    run_id: Option<RunId>,
    short: String,
    title: String,
    tasks: usize,
    /// A text for people and an object for programs.
    error: Option<(String, Value)>,
    exit: u8,
}

/// Where the records and logs of such processes are.
pub(crate) fn directory(context: &Context) -> PathBuf {
    context.state_dir.join("background")
}

/// Starts such a process for this command line, and prints the id of its run.
///
/// # Errors
/// Nothing was started, and why.
pub(crate) fn start(context: &Context, stdin: bool, as_json: bool) -> Result<Exit, Fault> {
    let failed = |error| Fault::System("no process for the background can be started", error);
    let text = |arg: std::ffi::OsString| arg.into_string();
    let args: Result<Vec<_>, _> = std::env::args_os().map(text).collect();
    let args = args.map_err(|_| Diagnostic {
        code: "usage",
        message: "arguments of --background must be UTF-8 text".to_owned(),
        ..Diagnostic::default()
    })?;
    let stdin = stdin.then(|| batch::read_bounded(io::stdin())).transpose();
    let stdin = stdin.map_err(|error| batch::unreadable("-", &error))?;
    let request = Request { version: env!("CARGO_PKG_VERSION").to_owned(), args, stdin };
    let place = control::directory(|name| crate::cli::value_of(&context.env, name).map(Into::into));
    control::make_directory(&place).map_err(failed)?;
    let socket = Socket::listen(&place).map_err(failed)?;
    let dir = directory(context);
    make_private(&context.state_dir).map_err(failed)?;
    forget_ended(context, LOGS);
    let program = Program::current().map_err(failed)?.shown_as("delegate");
    let spawn =
        Spawn::program(program).arg("host").arg(&socket.path).purpose("delegate --background");
    let job = spawn_exempt(spawn, Exemption::new(REASON), &dir)
        .map_err(|error| failed(io::Error::other(error.to_string())))?;
    let answer = socket.serve(&job, &request).map_err(failed)?;
    if let Some((told, object)) = answer.error {
        // It has read and checked as this process would have.
        if as_json {
            write_out(|to| objects::line(to, &object))?;
        } else {
            drop(io::stderr().lock().write_all(told.as_bytes()));
        }
        return Ok(Exit::of_code(answer.exit));
    }
    let (short, log) = (&answer.short, job.log().display().to_string());
    write_out(|to| {
        if as_json {
            let object = json!({
                "schema": "delegate.dispatched/1", "status": "dispatched", "mode": "background",
                "run_id": answer.run_id, "title": answer.title, "tasks": answer.tasks,
                "pid": job.pid(), "log": log,
            });
            return objects::line(to, &object);
        }
        writeln!(to, "{}", answer.run_id.map(|run| run.to_string()).unwrap_or_default())
    })?;
    if !as_json {
        let line =
            format!("in the background: delegate wait {short}, watch {short}, stop {short}\n");
        drop(io::stderr().lock().write_all(line.as_bytes()));
    }
    Ok(Exit::Done)
}

fn make_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// A socket that goes with its handle.
struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may be gone already.
        drop(fs::remove_file(&self.path));
    }
}

impl Socket {
    fn listen(place: &Path) -> io::Result<Self> {
        let path = place.join(format!("{}.start", RunId::random()));
        let listener = UnixListener::bind(&path).map_err(|error| refused(&path, &error))?;
        listener.set_nonblocking(true)?;
        Ok(Self { path, listener })
    }

    /// Hands the request over and waits for the answer; not longer than that process lives.
    fn serve(&self, job: &ExemptJob, request: &Request) -> io::Result<Answer> {
        let mut stream = self.accept(job)?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        serde_json::to_writer(&mut stream, request)?;
        stream.write_all(b"\n")?;
        match read_line(&stream) {
            Ok(line) => serde_json::from_slice(&line).map_err(io::Error::from),
            Err(error) => Err(io::Error::new(error.kind(), gone(job, &error.to_string()))),
        }
    }

    fn accept(&self, job: &ExemptJob) -> io::Result<UnixStream> {
        let most = PATIENCE.as_millis() / AGAIN.as_millis();
        for _ in 0..most {
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if !matches!(job.status(), Status::Running) {
                return Err(io::Error::other(gone(job, "it has ended")));
            }
            thread::park_timeout(AGAIN);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Bytes of a path at which a socket can listen (man 7 unix).
const LONGEST_PATH: usize = 107;

/// Why nobody can listen there, and what to do where it is known.
fn refused(path: &Path, error: &io::Error) -> io::Error {
    let (shown, length) = (path.display(), path.as_os_str().len());
    if length <= LONGEST_PATH {
        return io::Error::new(error.kind(), format!("no socket {shown}: {error}"));
    }
    let text = format!(
        "the path of its socket has {length} bytes, and there is room for {LONGEST_PATH}: {shown}; \
         set XDG_RUNTIME_DIR to a directory with a shorter path"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn gone(job: &ExemptJob, why: &str) -> String {
    let tail = job.tail(2000).unwrap_or_default();
    let tail = String::from_utf8_lossy(&tail).trim().to_owned();
    format!("it did not answer ({why}); its log {}: {tail}", job.log().display())
}

fn read_line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream).take(LONGEST).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Where a process in the background says, once, what became of its start.
#[derive(Debug, Clone)]
pub(crate) struct Reply(Rc<RefCell<Option<UnixStream>>>);

impl Reply {
    fn send(&self, answer: &Answer) -> io::Result<()> {
        let Some(mut stream) = self.0.borrow_mut().take() else { return Ok(()) };
        serde_json::to_writer(&mut stream, answer)?;
        stream.write_all(b"\n")
    }

    /// The run is started and on record. `Err`: nobody knows of it.
    ///
    /// # Errors
    /// Whoever asked is gone.
    pub(crate) fn started(
        &self,
        run: RunId,
        short: &str,
        title: &str,
        tasks: usize,
    ) -> io::Result<()> {
        let (short, title) = (short.to_owned(), title.to_owned());
        self.send(&Answer { run_id: Some(run), short, title, tasks, ..Answer::default() })
    }
}

/// Does what is asked over the socket, in front of nobody.
///
/// # Errors
/// Nothing was asked that can be understood.
pub(crate) fn host(args: &HostArgs, context: &Context) -> Result<Exit, Fault> {
    let failed = |error| Fault::System("what is to be done cannot be read", error);
    let stream = UnixStream::connect(&args.socket).map_err(failed)?;
    let line = read_line(&stream).map_err(failed)?;
    let request: Request =
        serde_json::from_slice(&line).map_err(|error| failed(io::Error::from(error)))?;
    if request.version != env!("CARGO_PKG_VERSION") {
        return Err(failed(io::Error::other("another version of this program asks")));
    }
    let cli = Cli::try_parse_from(&request.args)
        .map_err(|error| failed(io::Error::other(error.to_string())))?;
    let reply = Reply(Rc::new(RefCell::new(Some(stream))));
    let own = Context::new(&cli.global, true);
    let given = Given { stdin: request.stdin, reply: Some(reply.clone()) };
    let done = if let Verb::Run(args) = &cli.verb {
        run::in_front(args, &own, given)
    } else if let Verb::Resume(args) = &cli.verb {
        resume::in_front(args, &own, given)
    } else if let Verb::Rerun(args) = &cli.verb {
        rerun::in_front(args, &own, given)
    } else {
        Err(failed(io::Error::other("this verb has no background")))
    };
    done.or_else(|fault| {
        let exit = fault.exit();
        let fault = fault.into_diagnostic();
        let mut told = fault.render(context.err.color);
        if exit == Exit::BadInput {
            told.push_str("nothing was started\n");
        }
        let object = serde_json::from_str(&fault.to_json()).unwrap_or_default();
        let error = Some((told, object));
        // Who asked is told, and nobody else needs to be.
        drop(reply.send(&Answer { error, exit: exit.code(), ..Answer::default() }));
        Ok(exit)
    })
}

/// What a process in the background has instead of a terminal.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// What the caller's standard input held.
    pub(crate) stdin: Option<String>,
    /// Where the start is answered; `None` in front of somebody.
    pub(crate) reply: Option<Reply>,
}

/// Forgets records and logs of such processes that have ended in any way, but for the newest.
pub(crate) fn forget_ended(context: &Context, newest: usize) {
    let jobs = list_exempt(&directory(context)).unwrap_or_default();
    let ours = jobs.into_iter().flatten().filter(|job| job.reason() == REASON);
    let ended: Vec<_> = ours.filter(|job| !matches!(job.status(), Status::Running)).collect();
    let most = ended.len().saturating_sub(newest);
    for job in ended.into_iter().take(most) {
        // One that may still run refuses; another shows again, and goes the next time.
        drop(job.forget());
    }
}
