//! The process of one helper: its pipes as lines, its end as a fact. Started through [`ownership`], so that it ends
//! with its owner however that ends. Used by `hub`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ownership::{ChildEvent, ExitStatus, Owned, Owner, Spawn};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Bytes of one line, of either side.
pub(super) const LINE: usize = 16 * 1024 * 1024;

/// Bytes that wait for a server that does not read; then it is taken for stuck.
const UNREAD: usize = 64 * 1024 * 1024;

/// How long the end of the process is waited for behind the end of its output, and the other way round.
const LAST: Duration = Duration::from_millis(500);

/// Bytes of its stderr that the reason of its end shows.
const STDERR: usize = 1024;

/// What a server does.
pub(super) enum Fact {
    Line(Vec<u8>),
    /// It has ended, and why.
    Ended(String),
}

/// A server that runs, or is being started. Dropping it ends it, and everything that it started.
pub(super) struct Server {
    lines: mpsc::UnboundedSender<Vec<u8>>,
    unread: Rc<Cell<usize>>,
    /// Ends its tasks.
    _alive: mpsc::Sender<()>,
}

impl Server {
    /// Starts one, without the variables of `hidden`; what it does is told, and its end at last, once.
    pub(super) fn start(
        name: &str,
        (command, hidden): (&[String], &[String]),
        owner: &Owner,
        tell: impl Fn(Fact) + 'static,
    ) -> Self {
        let (lines, to_write) = mpsc::unbounded_channel();
        let (alive, ended) = mpsc::channel(1);
        let unread = Rc::<Cell<usize>>::default();
        let work = run(
            (format!("helper {name}"), command.to_vec(), hidden.to_vec(), owner.clone()),
            (to_write, Rc::clone(&unread)),
            ended,
            tell,
        );
        tokio::task::spawn_local(work);
        Self { lines, unread, _alive: alive }
    }

    /// A line for it. `false` when it does not read.
    pub(super) fn send(&self, line: Vec<u8>) -> bool {
        let unread = self.unread.get() + line.len();
        self.unread.set(unread);
        // One that has ended tells that itself.
        drop(self.lines.send(line));
        unread <= UNREAD
    }
}

type ToWrite = (mpsc::UnboundedReceiver<Vec<u8>>, Rc<Cell<usize>>);

async fn run(
    (purpose, command, hidden, owner): (String, Vec<String>, Vec<String>, Owner),
    to_write: ToWrite,
    mut dropped: mpsc::Receiver<()>,
    tell: impl Fn(Fact) + 'static,
) {
    let (sender, mut ended) = mpsc::unbounded_channel();
    // The supervisor may have to be started first.
    let start = move || spawn(purpose, (&command, &hidden), &owner, sender);
    let started = match tokio::task::spawn_blocking(start).await {
        Ok(started) => started,
        Err(panic) => Err(panic.to_string()),
    };
    let (owned, pipes) = match started {
        Ok(started) => started,
        Err(fault) => return tell(Fact::Ended(format!("it cannot be started: {fault}"))),
    };
    let tail = Rc::<RefCell<VecDeque<u8>>>::default();
    let mut errors = tokio::task::spawn_local(keep_tail(pipes.stderr, Rc::clone(&tail)));
    let ending = {
        let mut read = pin!(read_lines(pipes.stdout, &tell));
        tokio::select! {
            fault = &mut read => match (fault, timeout(LAST, ended.recv()).await) {
                (Some(fault), _) => fault,
                (None, Ok(Some(word))) => word,
                (None, _) => "it has closed its output".to_owned(),
            },
            Some(word) = ended.recv() => {
                // What it said before is told before, unless somebody else holds its pipes.
                drop(timeout(LAST, read).await);
                word
            }
            never = write_lines(pipes.stdin, to_write) => match never {},
            _ = dropped.recv() => return errors.abort(),
        }
    };
    if timeout(LAST, &mut errors).await.is_err() {
        errors.abort();
    }
    drop(owned);
    let tail = tail.take().into_iter().collect::<Vec<u8>>();
    let tail = String::from_utf8_lossy(&tail);
    tell(Fact::Ended(match tail.trim() {
        "" => ending,
        tail => format!("{ending}; it said: {tail}"),
    }));
}

struct Pipes {
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

fn spawn(
    purpose: String,
    (command, hidden): (&[String], &[String]),
    owner: &Owner,
    ended: mpsc::UnboundedSender<String>,
) -> Result<(Owned, Pipes), String> {
    let Some((program, args)) = command.split_first() else {
        return Err("no program is named".to_owned());
    };
    let pipe = || io::pipe().map_err(|error| format!("no pipe: {error}"));
    let ((stdin, to_it), (from_it, stdout), (errors, stderr)) = (pipe()?, pipe()?, pipe()?);
    let spawn = Spawn::new(program)
        .args(args)
        .fd(0, stdin.into())
        .fd(1, stdout.into())
        .fd(2, stderr.into())
        .purpose(purpose);
    let spawn = hidden.iter().fold(spawn, |spawn, name| spawn.env_remove(name));
    let sink = move |event| {
        let word = match event {
            ChildEvent::Exited(exit) => ended_by(exit.status),
            ChildEvent::Lost => "its supervisor is gone".to_owned(),
            ChildEvent::Stopped(_) | ChildEvent::Emptied(_) | _ => return,
        };
        // Whoever waited has ended it.
        drop(ended.send(word));
    };
    let owned = owner.spawn(spawn, sink).map_err(|error| error.to_string())?;
    let fault = |error: io::Error| format!("its pipes: {error}");
    let pipes = Pipes {
        stdin: pipe::Sender::from_owned_fd(nonblocking(to_it.into())?).map_err(fault)?,
        stdout: pipe::Receiver::from_owned_fd(nonblocking(from_it.into())?).map_err(fault)?,
        stderr: pipe::Receiver::from_owned_fd(nonblocking(errors.into())?).map_err(fault)?,
    };
    Ok((owned, pipes))
}

fn ended_by(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal { signal, .. } => format!("signal {signal}"),
        ExitStatus::Unknown => "nobody saw how".to_owned(),
    }
}

fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, String> {
    rustix::io::ioctl_fionbio(&fd, true).map_err(|error| format!("its pipes: {error}"))?;
    Ok(fd)
}

/// Tells every line; gives why there are no more of them.
async fn read_lines(stdout: pipe::Receiver, tell: &impl Fn(Fact)) -> Option<String> {
    let mut stdout = BufReader::new(stdout);
    loop {
        match read_line(&mut stdout).await {
            Ok(Some(line)) => tell(Fact::Line(line)),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

/// One line without its newline; `None` at the end.
///
/// # Errors
/// Also when it is longer than [`LINE`].
pub(super) async fn read_line<R>(reader: &mut BufReader<R>) -> io::Result<Option<Vec<u8>>>
where
    R: tokio::io::AsyncRead + Unpin,
{
    let mut line = Vec::new();
    let most = LINE as u64 + 1;
    let read = AsyncReadExt::take(&mut *reader, most).read_until(b'\n', &mut line).await?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(line));
    }
    if read > LINE {
        let text = format!("a line is longer than {LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok((!line.is_empty()).then_some(line))
}

async fn write_lines(mut stdin: pipe::Sender, (mut lines, unread): ToWrite) -> Infallible {
    while let Some(line) = lines.recv().await {
        // One that reads no more may still answer; its end is told by its exit.
        if stdin.write_all(&line).await.is_err() {
            break;
        }
        unread.set(unread.get().saturating_sub(line.len()));
    }
    std::future::pending().await
}

async fn keep_tail(mut stderr: pipe::Receiver, tail: Rc<RefCell<VecDeque<u8>>>) {
    let mut block = vec![0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut block).await {
        let mut tail = tail.borrow_mut();
        tail.extend(&block[..count]);
        let over = tail.len().saturating_sub(STDERR);
        tail.drain(..over);
    }
}
