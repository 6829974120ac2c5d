//! [`Mux`]: many clients, one server. Pure: lines in, lines out. `hub` reads, writes and starts the server.
//!
//! Every request gets an id of ours on its way to the server and its own back. The handshake of the protocol
//! (<https://modelcontextprotocol.io/specification>) happens once: later clients are given the first one's answer.
//! When the server ends, whoever waits for it is told, and the next request starts another one, which is greeted
//! as the first one was.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;

use super::rpc::{self, Kind, Message, Named};

/// Requests of one client that the server has not answered.
const OPEN: usize = 256;

/// Starts within [`WINDOW`] after which a server that keeps ending is given up.
const STARTS: usize = 4;
const WINDOW: Duration = Duration::from_secs(60);

/// Lines that wait for a server that has not answered its greeting.
const WAITING: usize = 4096;

const INITIALIZE: &str = "initialize";
const INITIALIZED: &str = "notifications/initialized";
const CANCELLED: &str = "notifications/cancelled";
const PROGRESS: &str = "notifications/progress";
const PING: &str = "ping";

/// A connection.
pub(super) type Client = u64;

/// What happened.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// Somebody has connected.
    Joined(Client),
    /// It said a line.
    Said(Client, &'a [u8]),
    /// It is gone.
    Left(Client),
    /// The server said a line.
    Served(&'a [u8]),
    /// The server has ended, or could not be started; why, for people.
    Ended(&'a str),
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Start a server. Lines for it follow.
    Start,
    /// A line for the server.
    Serve(Vec<u8>),
    /// A line for a client.
    Tell(Client, Vec<u8>),
}

/// A request on its way.
#[derive(Debug)]
struct Open {
    client: Client,
    id: Box<RawValue>,
    progress: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// None runs.
    Absent,
    /// It runs, and has refused the only greeting so far.
    Running,
    /// It was greeted, and has not answered.
    Greeted,
    Ready,
}

/// The state of one shared helper.
#[derive(Debug)]
pub(super) struct Mux {
    name: String,
    server: Server,
    starts: VecDeque<Duration>,
    last_id: u64,
    open: BTreeMap<u64, Open>,
    /// Who has connected, and whether it has greeted.
    clients: BTreeMap<Client, bool>,
    /// The first client's greeting, and its answer.
    greeting: Option<Message>,
    welcome: Option<Message>,
    /// Whose greeting has no answer yet.
    greeters: Vec<(Client, Box<RawValue>)>,
    greeting_id: u64,
    /// What waits until the greeting was answered.
    waiting: VecDeque<(Client, Message)>,
    /// Requests of the server to a client: by the client and the id.
    asked: Vec<(Client, Box<RawValue>)>,
    /// Why the last server ended.
    end: String,
}

impl Mux {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            server: Server::Absent,
            starts: VecDeque::new(),
            last_id: 0,
            open: BTreeMap::new(),
            clients: BTreeMap::new(),
            greeting: None,
            welcome: None,
            greeters: Vec::new(),
            greeting_id: 0,
            waiting: VecDeque::new(),
            asked: Vec::new(),
            end: String::new(),
        }
    }

    /// Takes what happened at `now` (since any fixed moment).
    pub(super) fn step(&mut self, input: Input<'_>, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Joined(client) => drop(self.clients.insert(client, false)),
            Input::Said(client, line) => self.said(client, line, now, &mut out),
            Input::Left(client) => self.left(client, &mut out),
            Input::Served(line) => self.served(line, &mut out),
            Input::Ended(why) => self.ended(why, &mut out),
        }
        out
    }

    // --- what clients say ---

    fn said(&mut self, client: Client, line: &[u8], now: Duration, out: &mut Vec<Output>) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let message = match Message::parse(line) {
            Ok(message) => message,
            Err(fault) => {
                return out.push(Output::Tell(client, rpc::error(None, rpc::PARSE, fault)));
            }
        };
        let method = message.method();
        match (message.kind(), method.as_deref()) {
            (Kind::Request, Some(INITIALIZE)) => self.greet(client, message, now, out),
            (Kind::Request, Some(_)) if !self.has_greeted(client) => {
                let text = "the first request is initialize";
                out.push(Output::Tell(client, rpc::error(message.id(), rpc::INVALID, text)));
            }
            // The server was told by us.
            (Kind::Notification, Some(INITIALIZED)) => {}
            (Kind::Notification, Some(CANCELLED)) => self.cancel(client, message, out),
            (Kind::Request, Some(_)) => self.request(client, message, now, out),
            (Kind::Notification, Some(_)) => {
                if self.server == Server::Ready {
                    out.push(Output::Serve(message.line()));
                }
            }
            (Kind::Response, _) => self.answered(client, &message, out),
            (Kind::Request | Kind::Notification, None) => {
                let text = "method is no text";
                out.push(Output::Tell(client, rpc::error(message.id(), rpc::INVALID, text)));
            }
        }
    }

    fn has_greeted(&self, client: Client) -> bool {
        self.clients.get(&client).copied().unwrap_or(false)
    }

    fn greet(&mut self, client: Client, message: Message, now: Duration, out: &mut Vec<Output>) {
        let Some(id) = message.id().map(ToOwned::to_owned) else { return };
        if self.clients.insert(client, true).is_none() {
            // It has left meanwhile.
            self.clients.remove(&client);
            return;
        }
        if let (Some(welcome), Server::Ready) = (&self.welcome, self.server) {
            return out.push(Output::Tell(client, welcome.clone().with_id(&id).line()));
        }
        self.greeting.get_or_insert(message);
        self.greeters.push((client, id));
        self.ensure_server(now, out);
    }

    /// Starts a server and greets it, unless there is one.
    fn ensure_server(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(greeting) = self.greeting.clone() else { return };
        match self.server {
            Server::Greeted | Server::Ready => return,
            Server::Running => {}
            Server::Absent => {
                while self.starts.front().is_some_and(|at| now.saturating_sub(*at) >= WINDOW) {
                    self.starts.pop_front();
                }
                if let (STARTS.., Some(first)) = (self.starts.len(), self.starts.front()) {
                    let wait = WINDOW.saturating_sub(now.saturating_sub(*first));
                    return self.refuse_all(Some(wait), out);
                }
                self.starts.push_back(now);
                out.push(Output::Start);
            }
        }
        self.server = Server::Greeted;
        self.greeting_id = self.next_id();
        let greeting = greeting.with_id(&rpc::number(self.greeting_id));
        out.push(Output::Serve(greeting.line()));
    }

    fn request(&mut self, client: Client, message: Message, now: Duration, out: &mut Vec<Output>) {
        let open = self.open.values().filter(|open| open.client == client).count()
            + self.waiting.iter().filter(|(waiting, _)| *waiting == client).count();
        if open >= OPEN || self.waiting.len() >= WAITING {
            let text = format!("{open} requests wait for `{}` already", self.name);
            return out.push(Output::Tell(client, rpc::error(message.id(), rpc::HELPER, &text)));
        }
        if self.server == Server::Ready {
            self.forward(client, message, out);
        } else {
            self.waiting.push_back((client, message));
            self.ensure_server(now, out);
        }
    }

    fn forward(&mut self, client: Client, message: Message, out: &mut Vec<Output>) {
        let Some(id) = message.id().map(ToOwned::to_owned) else { return };
        let number = self.next_id();
        let ours = rpc::number(number);
        let progress = message.named(Named::Meta);
        let message = match &progress {
            Some(_) => message.renamed(Named::Meta, &ours),
            None => message,
        };
        self.open.insert(number, Open { client, id, progress });
        out.push(Output::Serve(message.with_id(&ours).line()));
    }

    fn cancel(&mut self, client: Client, message: Message, out: &mut Vec<Output>) {
        let Some(id) = message.named(Named::Request) else { return };
        let is_it = |open: &Open| open.client == client && open.id.get() == id.get();
        let number = self.open.iter().find(|(_, open)| is_it(open)).map(|(number, _)| *number);
        if let Some(number) = number {
            out.push(Output::Serve(message.renamed(Named::Request, &rpc::number(number)).line()));
        }
        let is_it = |(waiting, message): &(Client, Message)| {
            *waiting == client && message.id().is_some_and(|found| found.get() == id.get())
        };
        self.waiting.retain(|waiting| !is_it(waiting));
    }

    /// A client's answer to what the server has asked it.
    fn answered(&mut self, client: Client, message: &Message, out: &mut Vec<Output>) {
        let Some(id) = message.id() else { return };
        let is_it =
            |(asked, found): &(Client, Box<RawValue>)| *asked == client && found.get() == id.get();
        if let Some(place) = self.asked.iter().position(is_it) {
            self.asked.swap_remove(place);
            out.push(Output::Serve(message.line()));
        }
    }

    fn left(&mut self, client: Client, out: &mut Vec<Output>) {
        self.clients.remove(&client);
        self.greeters.retain(|(greeter, _)| *greeter != client);
        self.waiting.retain(|(waiting, _)| *waiting != client);
        let numbers: Vec<u64> = self.numbers_of(client);
        for number in numbers {
            self.open.remove(&number);
            let params = json!({"requestId": number, "reason": "its client is gone"});
            out.push(Output::Serve(rpc::notification(CANCELLED, params)));
        }
        let gone = std::mem::take(&mut self.asked);
        for (asked, id) in gone {
            if asked == client {
                let text = "the client that was asked is gone";
                out.push(Output::Serve(rpc::error(Some(&id), rpc::HELPER, text)));
            } else {
                self.asked.push((asked, id));
            }
        }
    }

    fn numbers_of(&self, client: Client) -> Vec<u64> {
        let of = self.open.iter().filter(|(_, open)| open.client == client);
        of.map(|(number, _)| *number).collect()
    }

    // --- what the server says ---

    fn served(&mut self, line: &[u8], out: &mut Vec<Output>) {
        let Ok(message) = Message::parse(line) else {
            if !line.iter().all(u8::is_ascii_whitespace) {
                tracing::debug!(target: "delegate::helper", name = self.name, "a line is no message");
            }
            return;
        };
        match message.kind() {
            Kind::Response => self.response(message, out),
            Kind::Request => self.ask_client(&message, out),
            Kind::Notification => self.notify(message, out),
        }
    }

    fn response(&mut self, message: Message, out: &mut Vec<Output>) {
        let Some(number) = message.id().and_then(rpc::numbered) else { return };
        if number == self.greeting_id && self.server == Server::Greeted {
            return self.welcomed(message, out);
        }
        // Otherwise its client is gone.
        if let Some(open) = self.open.remove(&number) {
            out.push(Output::Tell(open.client, message.with_id(&open.id).line()));
        }
    }

    fn welcomed(&mut self, message: Message, out: &mut Vec<Output>) {
        for (client, id) in std::mem::take(&mut self.greeters) {
            out.push(Output::Tell(client, message.clone().with_id(&id).line()));
        }
        if message.is_error() {
            // The next greeting may be a better one.
            self.server = Server::Running;
            self.greeting = None;
            self.welcome = None;
            let refused = std::mem::take(&mut self.waiting);
            for (client, waiting) in refused {
                let text = format!("`{}` has refused the greeting", self.name);
                out.push(Output::Tell(client, rpc::error(waiting.id(), rpc::HELPER, &text)));
            }
            return;
        }
        self.server = Server::Ready;
        self.welcome = Some(message);
        out.push(Output::Serve(rpc::notification(INITIALIZED, json!({}))));
        for (client, message) in std::mem::take(&mut self.waiting) {
            self.forward(client, message, out);
        }
    }

    /// The server asks: the one client that waits for it, since nobody else can be meant.
    fn ask_client(&mut self, message: &Message, out: &mut Vec<Output>) {
        let Some(id) = message.id() else { return };
        if message.method().as_deref() == Some(PING) {
            return out.push(Output::Serve(rpc::done(id)));
        }
        let mut waiting: Vec<Client> = self.open.values().map(|open| open.client).collect();
        waiting.sort_unstable();
        waiting.dedup();
        match waiting[..] {
            [client] if self.asked.len() < OPEN => {
                self.asked.push((client, id.to_owned()));
                out.push(Output::Tell(client, message.line()));
            }
            _ => {
                let text = format!(
                    "this server is shared; {} clients wait for it, so none of them can be asked",
                    waiting.len()
                );
                out.push(Output::Serve(rpc::error(Some(id), rpc::NO_METHOD, &text)));
            }
        }
    }

    fn notify(&mut self, message: Message, out: &mut Vec<Output>) {
        if message.method().as_deref() == Some(PROGRESS) {
            let number = message.named(Named::Progress).as_deref().and_then(rpc::numbered);
            let open = number.and_then(|number| self.open.get(&number));
            let Some((client, token)) = open.and_then(|o| Some((o.client, o.progress.clone()?)))
            else {
                return;
            };
            return out.push(Output::Tell(client, message.renamed(Named::Progress, &token).line()));
        }
        let line = message.line();
        let greeted = self.clients.iter().filter(|(_, greeted)| **greeted);
        out.extend(greeted.map(|(client, _)| Output::Tell(*client, line.clone())));
    }

    fn ended(&mut self, why: &str, out: &mut Vec<Output>) {
        why.clone_into(&mut self.end);
        self.server = Server::Absent;
        self.asked.clear();
        self.refuse_all(None, out);
    }

    /// Answers everything that waits: what the server was doing is not known, so nothing is sent twice. `wait`
    /// says that it ends too often, and when it is started again.
    fn refuse_all(&mut self, wait: Option<Duration>, out: &mut Vec<Output>) {
        let next = match wait {
            Some(wait) => format!(
                "{STARTS} times within {} s: it is not started before {} s are over",
                WINDOW.as_secs(),
                wait.as_secs() + 1
            ),
            None => "the next request starts it again".to_owned(),
        };
        let text = format!("the shared helper `{}` has ended ({}); {next}", self.name, self.end);
        for (_, open) in std::mem::take(&mut self.open) {
            out.push(Output::Tell(open.client, rpc::error(Some(&open.id), rpc::HELPER, &text)));
        }
        for (client, id) in std::mem::take(&mut self.greeters) {
            self.clients.entry(client).and_modify(|greeted| *greeted = false);
            out.push(Output::Tell(client, rpc::error(Some(&id), rpc::HELPER, &text)));
        }
        for (client, message) in std::mem::take(&mut self.waiting) {
            out.push(Output::Tell(client, rpc::error(message.id(), rpc::HELPER, &text)));
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

#[cfg(test)]
#[path = "mux_tests.rs"]
mod tests;
