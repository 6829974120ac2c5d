//! [`Hub`]: the socket that children come to for a shared helper, on a thread of its own. One actor per helper owns
//! its `mux` and its `server`; everything that a client or a server makes us hold is bounded.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use delegate_child::helper::{FIRST_LINE, Granted, Wish};
use ownership::Owner;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::mux::{Client, Input, Mux, Output};
use super::server::{Fact, Server, read_line};
use crate::control::place::{Kind, Name, Place, directory, own_user};

/// Clients at once, of all helpers together.
const CLIENTS: usize = 1024;

/// Facts that wait for an actor; whoever has more to say waits.
const FACTS: usize = 64;

/// How long a client may take to say which helper it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that wait for a client that does not read; then it is cut off.
const UNREAD: usize = 32 * 1024 * 1024;

/// Between two tries where the system has no descriptor left.
const BREATH: Duration = Duration::from_millis(100);

/// A socket that listens, and helpers that run, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hub {
    place: Arc<Place>,
    name: Name,
    address: PathBuf,
    stop: Arc<Notify>,
    /// A copy made by fork takes the socket of its parent with it otherwise.
    pid: u32,
}

impl Drop for Hub {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            self.place.remove(&self.name);
            self.stop.notify_one();
        }
    }
}

impl Hub {
    /// Listens. No helper is started before somebody wants it; none gets the variables of `hidden`, which hold keys.
    pub(crate) fn start(
        helpers: BTreeMap<String, Vec<String>>,
        owner: Option<Owner>,
        hidden: Vec<String>,
        dir: Option<&Path>,
    ) -> io::Result<Self> {
        let dir = dir.map_or_else(|| directory(|name| std::env::var_os(name)), Path::to_owned);
        let place = Arc::new(Place::make(&dir)?);
        let (listener, name) = place.listen(Kind::Helpers)?;
        let address = std::path::absolute(dir)?.join(name.text());
        let stop = Arc::<Notify>::default();
        let hub = Self { place, name, address, stop: Arc::clone(&stop), pid: std::process::id() };
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("delegate-helpers".to_owned()).spawn(move || {
            let desk = Desk { helpers, owner, hidden: hidden.into(), actors: HashMap::new() };
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = stop.notified() => {}
                    result = accept(listener, desk) => if let Err(error) = result {
                        tracing::warn!(target: "delegate::helper", %error, "it listens no more");
                    },
                }
            });
        })?;
        Ok(hub)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Path {
        &self.address
    }
}

/// What can be had here.
struct Desk {
    helpers: BTreeMap<String, Vec<String>>,
    owner: Option<Owner>,
    hidden: Rc<[String]>,
    actors: HashMap<String, mpsc::Sender<Event>>,
}

impl Desk {
    /// The actor of a helper.
    fn actor(&mut self, name: &str) -> Result<mpsc::Sender<Event>, String> {
        let Some(command) = self.helpers.get(name) else {
            let known: Vec<&str> = self.helpers.keys().map(String::as_str).collect();
            let name: String = name.chars().take(64).collect();
            let known = known.join(", ");
            return Err(format!("there is no shared helper `{name}`; there are: {known}"));
        };
        let Some(owner) = &self.owner else {
            return Err("no program can be started here: there is no supervisor".to_owned());
        };
        let make = || {
            let (sender, events) = mpsc::channel(FACTS);
            let actor = Actor {
                name: name.to_owned(),
                command: command.clone(),
                owner: owner.clone(),
                hidden: Rc::clone(&self.hidden),
                mux: Mux::new(name),
                clients: HashMap::new(),
                server: None,
                generation: 0,
                served: mpsc::unbounded_channel(),
            };
            tokio::task::spawn_local(actor.run(events));
            sender
        };
        Ok(self.actors.entry(name.to_owned()).or_insert_with(make).clone())
    }
}

async fn accept(listener: StdListener, mut desk: Desk) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    let (wishes, mut wished) = mpsc::channel::<(Wish, BufReader<OwnedReadHalf>, Guest)>(FACTS);
    let mut last: Client = 0;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(target: "delegate::helper", %error, "a client was lost");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            },
            Some((wish, reader, mut guest)) = wished.recv() => {
                match desk.actor(&wish.helper) {
                    Ok(actor) => {
                        last += 1;
                        tokio::task::spawn_local(serve(last, reader, guest, actor));
                    }
                    Err(error) => {
                        tokio::task::spawn_local(async move { guest.answer(Some(error)).await });
                    }
                }
                continue;
            }
        };
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own_user()) {
            continue;
        }
        // One more than there is room for is closed; its end says that nobody listens.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            tokio::task::spawn_local(welcome(stream, place, wishes.clone()));
        }
    }
}

/// A client that may write to.
struct Guest {
    writer: OwnedWriteHalf,
    /// Its place among the clients.
    _place: tokio::sync::OwnedSemaphorePermit,
}

impl Guest {
    async fn answer(&mut self, error: Option<String>) -> bool {
        let granted = serde_json::to_string(&Granted { error }).unwrap_or_default() + "\n";
        matches!(timeout(PATIENCE, self.writer.write_all(granted.as_bytes())).await, Ok(Ok(())))
    }
}

/// Hears which helper a client wants.
async fn welcome(
    stream: UnixStream,
    place: tokio::sync::OwnedSemaphorePermit,
    wishes: mpsc::Sender<(Wish, BufReader<OwnedReadHalf>, Guest)>,
) {
    let (reader, writer) = stream.into_split();
    let (mut reader, mut guest) = (BufReader::new(reader), Guest { writer, _place: place });
    let mut line = String::new();
    let first = async { (&mut reader).take(FIRST_LINE).read_line(&mut line).await };
    if !matches!(timeout(PATIENCE, first).await, Ok(Ok(1..))) {
        return;
    }
    match serde_json::from_str(&line) {
        Ok(wish) => drop(wishes.send((wish, reader, guest)).await),
        Err(error) => {
            guest
                .answer(Some(format!("the first line must be {{\"helper\": NAME}}: {error}")))
                .await;
        }
    }
}

/// Carries a client's lines until it is gone.
async fn serve(
    client: Client,
    mut reader: BufReader<OwnedReadHalf>,
    mut guest: Guest,
    actor: mpsc::Sender<Event>,
) {
    if !guest.answer(None).await {
        return;
    }
    let (sender, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
    let (unread, cut) = (Rc::<Cell<usize>>::default(), Rc::<Notify>::default());
    let outgoing = Outgoing { sender, unread: Rc::clone(&unread), cut: Rc::clone(&cut) };
    if actor.send(Event::Joined(client, outgoing)).await.is_err() {
        return;
    }
    let read = async {
        while let Ok(Some(line)) = read_line(&mut reader).await {
            if actor.send(Event::Said(client, line)).await.is_err() {
                break;
            }
        }
    };
    let write = async {
        while let Some(line) = lines.recv().await {
            if guest.writer.write_all(&line).await.is_err() {
                break;
            }
            unread.set(unread.get().saturating_sub(line.len()));
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
        () = cut.notified() => {
            tracing::warn!(target: "delegate::helper", client, "it does not read: cut off");
        }
    }
    drop(actor.send(Event::Left(client)).await);
}

/// Facts for an actor.
enum Event {
    Joined(Client, Outgoing),
    Said(Client, Vec<u8>),
    Left(Client),
}

/// The way to a client.
struct Outgoing {
    sender: mpsc::UnboundedSender<Vec<u8>>,
    unread: Rc<Cell<usize>>,
    cut: Rc<Notify>,
}

/// A fact of the server of that generation.
type Served = (u64, Fact);

/// One helper: its clients, and its server while one runs.
struct Actor {
    name: String,
    command: Vec<String>,
    owner: Owner,
    hidden: Rc<[String]>,
    mux: Mux,
    clients: HashMap<Client, Outgoing>,
    server: Option<Server>,
    /// Counts servers: what an earlier one still said is not the present one's.
    generation: u64,
    /// What servers say. Their pipes and the bound of requests limit it.
    served: (mpsc::UnboundedSender<Served>, mpsc::UnboundedReceiver<Served>),
}

impl Actor {
    #[expect(clippy::disallowed_methods, reason = "this file waits")]
    async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let start = Instant::now();
        loop {
            let outputs = tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Joined(client, outgoing)) => {
                        self.clients.insert(client, outgoing);
                        self.mux.step(Input::Joined(client), start.elapsed())
                    }
                    Some(Event::Said(client, line)) => {
                        self.mux.step(Input::Said(client, &line), start.elapsed())
                    }
                    Some(Event::Left(client)) => {
                        self.clients.remove(&client);
                        self.mux.step(Input::Left(client), start.elapsed())
                    }
                    None => return,
                },
                Some((generation, fact)) = self.served.1.recv() => {
                    if generation != self.generation {
                        continue;
                    }
                    match fact {
                        Fact::Line(line) => self.mux.step(Input::Served(&line), start.elapsed()),
                        Fact::Ended(why) => self.ended(&why, start.elapsed()),
                    }
                }
            };
            if !outputs.into_iter().all(|output| self.put(output)) {
                // Answers for those that waited: none of them is for a server.
                for output in self.ended("it does not read", start.elapsed()) {
                    self.put(output);
                }
            }
        }
    }

    fn ended(&mut self, why: &str, now: Duration) -> Vec<Output> {
        tracing::warn!(target: "delegate::helper", name = self.name, why, "a shared helper has ended");
        self.server = None;
        self.generation += 1;
        self.mux.step(Input::Ended(why), now)
    }

    /// `false` when the server does not read.
    fn put(&mut self, output: Output) -> bool {
        match output {
            Output::Start => {
                self.generation += 1;
                let (generation, sender) = (self.generation, self.served.0.clone());
                // The actor is gone with the hub, and its server with it.
                let tell = move |fact| drop(sender.send((generation, fact)));
                tracing::info!(target: "delegate::helper", name = self.name, "a shared helper starts");
                self.server = Some(Server::start(
                    &self.name,
                    (&self.command, &self.hidden),
                    &self.owner,
                    tell,
                ));
            }
            Output::Serve(line) => {
                return self.server.as_ref().is_none_or(|server| server.send(line));
            }
            Output::Tell(client, line) => {
                let Some(outgoing) = self.clients.get(&client) else { return true };
                let unread = outgoing.unread.get() + line.len();
                outgoing.unread.set(unread);
                if unread > UNREAD {
                    outgoing.cut.notify_one();
                } else {
                    // Its end is on its way to us.
                    drop(outgoing.sender.send(line));
                }
            }
        }
        true
    }
}
