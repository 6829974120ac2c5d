//! Listens on the control socket, on a thread of its own: what a client does, or does not do, costs no
//! run anything but the lock of its wishes. Everything that a client makes us hold is bounded, everything
//! that we wait for has a deadline.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::operator::{Meant, Operator};
use super::place::{Kind, Name, Place, directory, own_user};
use super::protocol::{self, Ask, ControlError, LINE, Request};
use crate::run::feed::{End, Seen};
use crate::run::live::Live;

/// Clients at once. One more is told to come again.
const CLIENTS: usize = 32;

/// How long a client may take for its next line.
const IDLE: Duration = Duration::from_secs(60);

/// How long a client may take to read what it asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries where the system has no descriptor left.
const BREATH: Duration = Duration::from_millis(100);

/// A socket that listens until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    place: Arc<Place>,
    name: Name,
    stop: Arc<Notify>,
    /// A copy made by fork takes the socket of its parent with it otherwise.
    pid: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            self.place.remove(&self.name);
            self.stop.notify_one();
        }
    }
}

impl Server {
    /// Where it cannot listen, runs go on without.
    pub(crate) fn start(live: &Arc<Live>, dir: Option<&Path>) -> Option<Self> {
        let dir = dir.map_or_else(|| directory(|name| std::env::var_os(name)), Path::to_owned);
        Self::listen(live, &dir)
            .inspect_err(|error| {
                let dir = dir.display();
                tracing::warn!(target: "delegate::control", %error, %dir, "no control socket");
            })
            .ok()
    }

    fn listen(live: &Arc<Live>, dir: &Path) -> io::Result<Self> {
        let place = Arc::new(Place::make(dir)?);
        let (listener, name) = place.listen(Kind::Control)?;
        let stop = Arc::<Notify>::default();
        let server = Self { place, name, stop: Arc::clone(&stop), pid: std::process::id() };
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let live = Arc::clone(live);
        thread::Builder::new().name("delegate-control".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = stop.notified() => {}
                    result = accept(listener, live) => if let Err(error) = result {
                        tracing::warn!(target: "delegate::control", %error, "it listens no more");
                    },
                }
            });
        })?;
        Ok(server)
    }
}

async fn accept(listener: StdListener, live: Arc<Live>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(target: "delegate::control", %error, "a client was lost");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own_user()) {
            continue;
        }
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let live = Arc::clone(&live);
                tokio::spawn(async move {
                    serve(stream, live).await;
                    drop(place);
                });
            }
            Err(_) => {
                // What does not fit into its buffer it is not told.
                drop(stream.try_write(&protocol::refusal(0, &ControlError::Busy)));
            }
        }
    }
}

/// One client, one request after the other.
async fn serve(stream: UnixStream, live: Arc<Live>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let line = match timeout(IDLE, next_line(&mut read)).await {
            Ok(Ok(Some(line))) => line,
            Ok(Err(error)) => {
                let told = ControlError::BadRequest(error.to_string());
                say(&mut write, &protocol::refusal(0, &told)).await;
                return;
            }
            Ok(Ok(None)) | Err(_) => return,
        };
        let goes_on = match protocol::request(&line) {
            Ok(request) => answer(request, &live, &mut read, &mut write).await,
            Err((id, error)) => say(&mut write, &protocol::refusal(id, &error)).await,
        };
        if !goes_on {
            return;
        }
    }
}

/// A line without its end; `None` at the end of the stream.
async fn next_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let there = read.fill_buf().await?;
        if there.is_empty() {
            return Ok(None);
        }
        let end = there.iter().position(|byte| *byte == b'\n');
        let part = &there[..end.unwrap_or(there.len())];
        if line.len() + part.len() > LINE {
            let text = format!("a line is {LINE} bytes at most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        line.extend_from_slice(part);
        let used = part.len() + usize::from(end.is_some());
        read.consume(used);
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// Ends when the client is gone. What it says meanwhile waits in its own buffer.
async fn gone(read: &mut BufReader<OwnedReadHalf>) {
    match read.fill_buf().await {
        Ok(there) if !there.is_empty() => std::future::pending().await,
        Ok(_) | Err(_) => {}
    }
}

/// Whether it was taken in time.
async fn say(write: &mut OwnedWriteHalf, line: &[u8]) -> bool {
    matches!(timeout(PATIENCE, write.write_all(line)).await, Ok(Ok(())))
}

async fn answer(
    request: Request,
    live: &Arc<Live>,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> bool {
    let Request { id, session, ask, .. } = request;
    let operator = Operator::new(Arc::clone(live), session);
    if let Ask::Watch { id: run } = &ask {
        return tokio::select! {
            goes_on = watch(id, run, &operator, write) => goes_on,
            () = gone(read) => false,
        };
    }
    let done = tokio::select! {
        done = perform(ask, &operator) => done,
        () = gone(read) => return false,
    };
    match done {
        Ok(value) => say(write, &protocol::answer(id, "ok", &value)).await,
        Err(error) => say(write, &protocol::refusal(id, &error)).await,
    }
}

async fn perform(ask: Ask, operator: &Operator) -> Result<Value, ControlError> {
    let of_run = |run: delegate_protocol::RunId| json!({ "run_id": run });
    match ask {
        Ask::List => {
            let sessions = operator.sessions();
            let runs = operator.list().await;
            Ok(json!({ "pid": std::process::id(), "runs": runs, "sessions": sessions }))
        }
        Ask::Steer { id, text } => {
            let child = operator.steer(&id, &text)?;
            Ok(json!({ "child": child, "accepted": true }))
        }
        Ask::Stop { id, now } => match operator.stop(&id, now)? {
            Meant { run_id: Some(run), session_id: None } => {
                operator.settled(run).await.map(of_run)
            }
            // It hears what it is told in the order in which it is told.
            meant => Ok(json!(meant)),
        },
        Ask::Pause { id } => operator.settled(operator.pause(&id, true)?).await.map(of_run),
        Ask::Resume { id } => operator.settled(operator.pause(&id, false)?).await.map(of_run),
        Ask::Extend { id, seconds } => {
            let run = operator.extend(&id, protocol::duration(seconds)?)?;
            operator.settled(run).await.map(of_run)
        }
        Ask::Wait { id, seconds } => {
            let Meant { run_id, session_id } = operator.meant(&id)?;
            let ended = match seconds {
                None => operator.wait(&id).await?,
                Some(seconds) => timeout(protocol::duration(seconds)?, operator.wait(&id))
                    .await
                    .map_err(|_| ControlError::Elapsed)??,
            };
            Ok(match session_id {
                None => json!({ "run_id": run_id, "end": ended }),
                Some(session) => json!({ "session_id": session, "end": ended }),
            })
        }
        Ask::Watch { .. } => Err(ControlError::BadRequest("it is answered elsewhere".to_owned())),
    }
}

/// Events until the end of the run, or until the client is too slow.
async fn watch(id: u64, run: &str, operator: &Operator, write: &mut OwnedWriteHalf) -> bool {
    let target = match operator.find(run) {
        Ok(target) if target.child.is_some() => Err(ControlError::NeedsRun(run.to_owned())),
        found => found,
    };
    let target = match target {
        Ok(target) => target,
        Err(error) => return say(write, &protocol::refusal(id, &error)).await,
    };
    let watcher = target.run.control.feed.watch();
    let mut over = false;
    let hello = json!({ "run_id": target.run.id });
    let mut line = protocol::answer(id, "ok", &hello);
    loop {
        if !say(write, &line).await {
            return false;
        }
        let seen = loop {
            tokio::select! {
                biased;
                seen = watcher.next() => break seen,
                _ended = target.run.control.ended(), if !over => {
                    over = true;
                    watcher.end(End::Ended);
                }
            }
        };
        line = match seen {
            Seen::Line(event) => protocol::event(id, &event),
            Seen::Lost(count) => protocol::answer(id, "lost", &json!(count)),
            Seen::End(why) => {
                let end = match why {
                    End::Ended => {
                        json!({ "reason": "ended", "run": target.run.control.ended().await })
                    }
                    End::TooSlow => json!({ "reason": "too_slow" }),
                };
                return say(write, &protocol::answer(id, "end", &end)).await;
            }
        };
    }
}
