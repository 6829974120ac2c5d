//! `serve`: carries one task over one link. Both executors run this very function.
//!
//! The calling thread greets, waits for the task, and is then the writer of the line; `greeting`
//! decides what the parent's messages mean, `finish` what the last frame says.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use delegate_protocol::frame::PART;
use delegate_protocol::message::{DUMP_BYTES, Verdict};
use delegate_protocol::version::PROTOCOL_VERSION;
use delegate_protocol::{Answer, ChildMessage, Finish, Hello, TaskSpec};

use crate::account::Account;
use crate::agent::Failure;
use crate::answer::LongText;
use crate::beat::Beats;
use crate::cancel::{Reason, Token};
use crate::dump;
use crate::finish::{End, INLINE_ANSWER, conclude, failed};
use crate::greeting::{Greeting, Step};
use crate::guard;
use crate::kept::Kept;
use crate::link::{Incoming, Link, LinkError, Outgoing};
use crate::mail::Mailbox;
use crate::outbox::{Taken, Wait};
use crate::owner_source::OwnerSource;
use crate::pace::Pace;
use crate::registry::Registry;
use crate::session::{Desk, Session, Shown, clock};
use crate::tail::clip;

/// Stack of an agent, in bytes: what a main thread has, whichever thread really carries it.
const AGENT_STACK: usize = 8 * 1024 * 1024;

/// What surrounds a child: how it starts programs, and what it says of itself.
#[derive(Debug)]
pub struct Host {
    /// Who starts programs in this child's scope.
    pub owner: OwnerSource,
    /// Where the output of programs that it runs is kept.
    pub output: Kept,
    /// Pid for the first frame; 0 in a thread.
    pub pid: u32,
    /// Version of the program.
    pub program_version: String,
}

/// Serves one child: `Hello`, `Begin`, events and beats, result, `Finish`. Returns after the last
/// byte was taken and the agent's thread has ended.
///
/// # Errors
/// When the parent is gone or breaks the protocol. There is nobody left to tell then.
pub fn serve(link: Link, registry: &Registry, host: Host) -> Result<(), LinkError> {
    serve_until(link, registry, host, &Arc::default()).map(|_verdict| ())
}

/// As [`serve`], for a child of this very process, whose programs the parent can end by itself.
///
/// # Errors
/// Those of [`serve`].
pub fn serve_beside(
    link: Link,
    registry: &Registry,
    host: Host,
    ending: &Ending,
) -> Result<(), LinkError> {
    serve_until(link, registry, host, &ending.0).map(|_verdict| ())
}

/// Says to a child of this process that it is being ended, ahead of the interrupt on its line: an agent whose program
/// the parent ends must not take that for a failure of the program.
#[derive(Debug, Clone, Default)]
pub struct Ending(Arc<Token>);

impl Ending {
    /// The child counts as interrupted from now on. Never blocks; who waits in the child is woken by the
    /// interrupt on the line.
    pub fn announce(&self) {
        self.0.announce(Reason::Interrupt);
    }
}

/// As [`serve`], with a token that the caller may watch. Gives what the last frame said.
pub(crate) fn serve_until(
    link: Link,
    registry: &Registry,
    host: Host,
    token: &Arc<Token>,
) -> Result<Verdict, LinkError> {
    let Link { incoming, mut outgoing } = link;
    outgoing.send(&ChildMessage::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        program_version: host.program_version,
        pid: host.pid,
        agents: registry.names(),
    }))?;
    let mail = Arc::<Mailbox>::default();
    let heard = listen(incoming, Arc::clone(token), Arc::clone(&mail))?;
    match heard.start.recv() {
        Ok(Start::Begin(spec)) if !token.is_raised() => {
            let (spec, desk) = (Arc::<TaskSpec>::from(spec), Desk::new(Arc::clone(token), mail));
            let (end, account) = carry(
                &mut *outgoing,
                registry,
                (host.owner, host.output),
                (&spec, host.pid),
                &desk,
            )
            .map_err(|error| heard.violation.try_recv().unwrap_or(error))?;
            deliver(&mut *outgoing, conclude(end, account, spec.max_result_bytes))
        }
        Ok(Start::Begin(_) | Start::Stop) if token.raised() == Some(Reason::Interrupt) => {
            deliver(&mut *outgoing, conclude(End::NotRun, Account::new(clock()), 0))
        }
        Ok(_) | Err(_) => Err(heard.violation.recv().unwrap_or(LinkError::Closed)),
    }
}

/// The parent's first word that matters.
enum Start {
    Begin(Box<TaskSpec>),
    Stop,
}

/// What the reader passes on; the rest goes into the token.
struct Heard {
    /// The first word. One place: whatever comes later is in the token.
    start: Receiver<Start>,
    /// How the parent broke the protocol; disconnected when the reader is done.
    violation: Receiver<LinkError>,
}

/// Starts the reader. It ends when the stream ends, which dropping the outgoing half brings about.
fn listen(
    mut incoming: Box<dyn Incoming>,
    token: Arc<Token>,
    mail: Arc<Mailbox>,
) -> io::Result<Heard> {
    let (start, started) = bounded(1);
    let (violation, violated) = bounded(1);
    let reader = move || {
        let error = hear(&mut *incoming, &token, &mail, &start);
        // First the error, then the token: who is freed by the token finds the error.
        error.map(|error| violation.try_send(error));
        token.raise(Reason::ParentGone);
    };
    thread::Builder::new().name("line".to_owned()).spawn(reader)?;
    Ok(Heard { start: started, violation: violated })
}

/// Reads to the end of the stream; gives what was wrong with it.
fn hear(
    incoming: &mut dyn Incoming,
    token: &Token,
    mail: &Mailbox,
    start: &Sender<Start>,
) -> Option<LinkError> {
    let mut greeting = Greeting::default();
    loop {
        let step = match incoming.receive() {
            Ok(Some(message)) => greeting.take(message),
            Ok(None) => return None,
            Err(error) => Err(error),
        };
        let first = match step {
            Ok(Step::Wait) => continue,
            Ok(Step::Notice(text)) => {
                mail.notice(text);
                continue;
            }
            Ok(Step::Steer(number, text)) => {
                mail.steer(number, text);
                continue;
            }
            Ok(Step::StopTurn(turn)) => {
                token.stop_turn(turn);
                continue;
            }
            Ok(Step::Dump) => {
                mail.ask_for_dump();
                continue;
            }
            Ok(Step::Answer(number, answer)) => {
                mail.asks.answer(number, answer);
                continue;
            }
            Ok(Step::Begin(spec)) => Start::Begin(spec),
            Ok(Step::Interrupt) => {
                token.raise(Reason::Interrupt);
                Start::Stop
            }
            Err(error) => return Some(error),
        };
        if start.try_send(first).is_err() {
            tracing::trace!("the task had begun, or was stopped, before");
        }
    }
}

/// Runs the agent on a thread of its own and writes what it says, until it has ended and all is said.
fn carry(
    outgoing: &mut dyn Outgoing,
    registry: &Registry,
    (owner, output): (OwnerSource, Kept),
    (spec, pid): (&Arc<TaskSpec>, u32),
    desk: &Arc<Desk>,
) -> Result<(End, Account), LinkError> {
    let session = Session::new(Arc::clone(spec), owner, output, Arc::clone(desk));
    let registry = registry.clone();
    let (span, done) = (tracing::Span::current(), CloseOnDrop(Arc::clone(desk)));
    let at_work = Arc::clone(desk);
    let agent = move || {
        let _done = done;
        at_work.mail.set_agent_thread(dump::this_thread());
        let _entered = span.enter();
        run(&registry, session)
    };
    let thread = match thread::Builder::new()
        .name("agent".to_owned())
        .stack_size(AGENT_STACK)
        .spawn(agent)
    {
        Ok(thread) => thread,
        Err(error) => {
            let failure = Failure::new(format!("no thread could be started: {error}"));
            return Ok((End::Returned(Err(failure)), desk.take_account()));
        }
    };
    let heartbeat = Duration::from_millis(spec.heartbeat_interval_ms);
    let written = write(outgoing, desk, heartbeat, pid);
    if written.is_err() {
        desk.token.raise(Reason::ParentGone);
    }
    let end = thread.join().unwrap_or_else(|_| End::Panicked("the agent's thread panicked".into()));
    written?;
    if desk.parent_is_gone() {
        return Err(LinkError::Closed);
    }
    if desk.outbox.skipped() > 0 {
        tracing::debug!(events = desk.outbox.skipped(), "content after the interrupt was skipped");
    }
    Ok((end, desk.take_account()))
}

/// Closes the outbox however the agent's thread ends: the writer waits for that.
struct CloseOnDrop(Arc<Desk>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.mail.asks.close();
        self.0.outbox.close();
    }
}

fn run(registry: &Registry, mut session: Session) -> End {
    match guard::run(move || registry.run(&mut session)) {
        Ok(result) => End::Returned(result),
        Err(message) => End::Panicked(message),
    }
}

/// The writer: events as they come, those that wait in one piece, and beats as they are due.
fn write(
    outgoing: &mut dyn Outgoing,
    desk: &Desk,
    heartbeat: Duration,
    pid: u32,
) -> Result<(), LinkError> {
    let mut beats = Beats::new(heartbeat, clock());
    let (mut pace, mut events) = (Pace::default(), VecDeque::new());
    loop {
        let now = clock();
        if let Some(message) = other_word(desk, &mut beats, now, pid) {
            put(outgoing, desk, &message)?;
            pace.urgent();
            continue;
        }
        let mut taken = Taken::Events;
        if !desk.outbox.try_take(&mut events) {
            if pace.is_due(now) {
                outgoing.flush()?;
                pace.sent(now);
            }
            let until_beat = beats.wait(now);
            let wait = pace.gather(now).map_or(Wait::ForOne(until_beat), |gather| {
                Wait::ForMore(until_beat.map_or(gather, |beat| beat.min(gather)))
            });
            taken = desk.outbox.take(wait, &mut events);
        }
        for event in events.drain(..) {
            put(outgoing, desk, &ChildMessage::Event(event))?;
            pace.event();
        }
        if taken == Taken::Done {
            return outgoing.flush();
        }
    }
}

/// What is to be said besides events.
fn other_word(desk: &Desk, beats: &mut Beats, now: Instant, pid: u32) -> Option<ChildMessage> {
    if let Some(sequence) = beats.due(now)
        && desk.show(now) == Shown::Nowhere
    {
        return Some(ChildMessage::Beat(desk.account().beat(sequence, now)));
    }
    if desk.mail.take_dump_request() {
        return Some(ChildMessage::Dump { text: dump_of(desk, pid) });
    }
    let (number, question) = desk.mail.asks.take_unsent()?;
    Some(ChildMessage::Ask { number, question })
}

fn put(outgoing: &mut dyn Outgoing, desk: &Desk, message: &ChildMessage) -> Result<(), LinkError> {
    match outgoing.put(message) {
        // An event that cannot be encoded is not worth the run; the session keeps them small.
        Err(LinkError::Frame(error)) => {
            tracing::warn!(%error, "an event was not sent");
            if let ChildMessage::Ask { number, .. } = message {
                desk.mail.asks.answer(*number, Answer::refused(error.to_string()));
            }
            Ok(())
        }
        put => put,
    }
}

/// What this child is doing: its account, and its threads as the kernel sees them. In a thread of the
/// parent only the agent's own is told; the others are the parent's.
fn dump_of(desk: &Desk, pid: u32) -> String {
    let mut text = String::from("== account ==\n");
    text.push_str(&desk.account().describe(clock()));
    let stop = desk.token.raised().map_or("no", |_| "yes");
    let waiting = desk.outbox.waiting();
    text.push_str(&format!("asked to stop: {stop}\nevents that wait to be sent: {waiting}\n"));
    let agent = desk.mail.agent_thread();
    text.push_str(&match (pid, agent) {
        (0, Some((process, thread))) => dump::one_thread(process, thread),
        (0, None) => String::new(),
        (pid, agent) => dump::threads(pid, agent.map(|(_, thread)| thread)),
    });
    clip(&text, DUMP_BYTES).to_owned()
}

/// Sends the answer and the last frame.
fn deliver(
    outgoing: &mut dyn Outgoing,
    (mut finish, answer): (Finish, LongText),
) -> Result<Verdict, LinkError> {
    if answer.len() > INLINE_ANSWER {
        finish = in_parts(outgoing, finish, &answer)?;
    } else {
        match answer.into_text() {
            Ok(text) => finish.answer = Some(text),
            Err(error) => finish = failed(finish, unreadable(&error), 0),
        }
    }
    let verdict = finish.verdict;
    outgoing.send(&ChildMessage::Finish(Box::new(finish))).map(|()| verdict)
}

fn in_parts(
    outgoing: &mut dyn Outgoing,
    finish: Finish,
    answer: &LongText,
) -> Result<Finish, LinkError> {
    if let Some(text) = answer.head() {
        text.as_bytes().chunks(PART).try_for_each(|part| outgoing.part(part))?;
        return Ok(finish);
    }
    let (mut reader, mut part, mut sent) = (answer.reader(), Vec::with_capacity(PART), 0);
    loop {
        part.clear();
        match reader.by_ref().take(PART as u64).read_to_end(&mut part) {
            Ok(0) => return Ok(finish),
            Ok(count) => sent += count as u64,
            Err(error) => return Ok(failed(finish, unreadable(&error), sent)),
        }
        outgoing.part(&part)?;
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("the answer could not be read back: {error}")
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
