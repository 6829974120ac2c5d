//! Everything that crosses one child's line and pipes, until nothing more can be read.
//!
//! Decodes frames, hands events to the journal and the consumer (those of one read together), gathers what the child
//! said, and tells the loop the few facts that decide: `Hello`, a violation, `Finish`, a closed line.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use delegate_protocol::ask::QUESTIONS;
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::message::Verdict;
use delegate_protocol::outcome::Approval;
use delegate_protocol::{
    Answer, ChildEvent, ChildMessage, Event, Finish, FrameError, Hello, Note, ParentEnd,
    ParentMessage, Question, SubagentId, version,
};
use tokio::sync::mpsc;

use super::clock::Clock;
use super::control::ControlState;
use super::journal::Journal;
use super::line::{self, LineReader, LineWriter, Over};
use super::mentions::Mentions;
use super::outlet::Outlet;
use super::reply::{Answers, Replies, Reply};
use super::shared::{Shared, bounded};
use super::tails::{Ring, cut_to_tail, keep_tail};
use super::taking::Taking;
use super::tool_names::ToolNames;
use crate::collect::Said;
use crate::store::{Lines, Log, spill};
use crate::tree::{Account, Refusal};

/// Bytes of stderr that are kept; the entry of a crash shows the last 8 KiB of them.
const STDERR_RING: usize = 64 * 1024;

/// Bytes of streamed text that are kept for a child that never finishes.
const LAST_TEXT: usize = 64 * 1024;

/// Frames that wait to be written. The parent says three things to a child that must be said (begin,
/// interrupt, and once more for a thread that is ended); a large spec is
/// sent as fast as the child takes it. What need not be said leaves [`RESERVED`] of them free.
pub(super) const COMMANDS: usize = 8;

/// Room for what must be said.
pub(super) const RESERVED: usize = 4;

/// A fact for the loop. A bounded number of each kind per child, so the channel needs no bound.
#[derive(Debug)]
pub(super) enum Told {
    Hello,
    Violation(String),
    Finish(Verdict),
    /// It has reached a limit of what may be spent; told once.
    OverBudget(Refusal),
    /// A question; the bound of open ones is the bound of these.
    Asked(Question, Reply),
    LineClosed,
}

/// Something to say to a child.
pub(super) struct Command {
    /// Written down before it is said, so that nothing of the child's can stand before it.
    pub(super) event: Option<Event>,
    /// Encoded frames.
    pub(super) frames: Vec<u8>,
}

/// What one child's I/O needs.
pub(super) struct ChildIo {
    pub(super) child: SubagentId,
    /// That it was asked for.
    pub(super) requested: Event,
    pub(super) reader: LineReader,
    pub(super) writer: LineWriter,
    /// Standard output and error of a process.
    pub(super) output: Option<(OwnedFd, OwnedFd)>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) over: Over,
    /// Whether the child was given its task: before that it has nothing to say.
    pub(super) begun: Arc<AtomicBool>,
    pub(super) outlet: Outlet,
    pub(super) journal: Journal,
    pub(super) answer: spill::Answer,
    pub(super) clock: Clock,
    pub(super) shared: Rc<Shared>,
    pub(super) control: Arc<ControlState>,
    /// Where its spending is counted.
    pub(super) account: Option<Account>,
    pub(super) files: Mentions,
}

impl ChildIo {
    /// Runs to the end and gives what there was.
    pub(super) async fn run(self, tell: impl Fn(Told)) -> Box<Said> {
        self.journal.event(&self.requested, self.clock.now()).await;
        let (replies, answers) = Replies::new();
        let mut reader = self.reader;
        let mut line_over = self.over.clone();
        let mut intake = Intake {
            child: self.child,
            begun: self.begun,
            outlet: self.outlet,
            journal: self.journal.clone(),
            clock: self.clock.clone(),
            said: Said::default(),
            answer: Taking::new(self.answer),
            shared: Rc::clone(&self.shared),
            control: self.control,
            account: self.account,
            files: self.files,
            replies,
            tools: ToolNames::default(),
            greeted: false,
            broken: false,
            now: self.clock.now(),
            lines: Lines::default(),
            events: Vec::new(),
        };
        let read = async {
            let line = intake.read(&mut reader, &mut line_over, &tell);
            let pipes = read_pipes(self.output, &self.journal, self.over);
            tokio::join!(line, pipes).1
        };
        let say = (self.commands, answers, &*self.shared);
        let write = write_all(self.writer, say, &self.journal, self.clock.clone());
        let stderr = tokio::select! {
            stderr = read => stderr,
            never = write => match never {},
        };
        intake.flush_tools().await;
        if let Some(beat) = intake.shared.page.last_beat() {
            intake.said.spent.beat(&beat);
        }
        cut_to_tail(&mut intake.said.last_text, LAST_TEXT);
        intake.said.stderr = stderr.into_bytes();
        intake.said.lost = self.journal.lost.get();
        intake.answer.give_up().await;
        if let Some(fault) = intake.answer.take_fault() {
            intake.said.answer.fault.get_or_insert(fault);
        }
        Box::new(intake.said)
    }
}

/// Keeps what a process prints, until nothing more can be read. Gives the end of its stderr.
async fn read_pipes(output: Option<(OwnedFd, OwnedFd)>, journal: &Journal, over: Over) -> Ring {
    let mut ring = Ring::new(STDERR_RING);
    let Some((stdout, stderr)) = output else { return ring };
    let out = line::drain(stdout, over.clone(), |bytes| journal.output(Log::Stdout, bytes));
    let err = line::drain(stderr, over, |bytes| {
        ring.push(bytes);
        journal.output(Log::Stderr, bytes);
    });
    tokio::join!(out, err);
    ring
}

/// Says what the loop has to say, and between it answers and what steers the agent; the task is before all of that.
/// Never ends by itself: the readers decide when it is over.
async fn write_all(
    mut writer: LineWriter,
    (mut commands, mut answers, shared): (mpsc::Receiver<Command>, Answers, &Shared),
    journal: &Journal,
    clock: Clock,
) -> Infallible {
    loop {
        let mut frames = Vec::new();
        tokio::select! {
            biased;
            Some(command) = commands.recv() => {
                if let Some(event) = command.event {
                    journal.event(&event, clock.now()).await;
                }
                frames = command.frames;
            }
            Some(answer) = answers.next() => {
                push_frame(&answer, &mut frames);
                writer.write(frames).await;
                answers.written();
                continue;
            }
            steer = shared.next_steer() => push_frame(&steer, &mut frames),
        }
        writer.write(frames).await;
    }
}

fn push_frame(message: &ParentMessage, frames: &mut Vec<u8>) {
    let encoder = Encoder::<ParentEnd>::default();
    let Err(error) = encoder.frame(message, frames) else { return };
    tracing::error!(target: "delegate::run", %error, "a word to a child has no frame");
    if let ParentMessage::Answer { number, .. } = message {
        let answer = Answer::refused(error.to_string());
        // A refusal is small.
        drop(encoder.frame(&ParentMessage::Answer { number: *number, answer }, frames));
    }
}

struct Intake {
    child: SubagentId,
    begun: Arc<AtomicBool>,
    outlet: Outlet,
    journal: Journal,
    clock: Clock,
    said: Said,
    answer: Taking,
    shared: Rc<Shared>,
    control: Arc<ControlState>,
    account: Option<Account>,
    files: Mentions,
    replies: Replies,
    tools: ToolNames,
    greeted: bool,
    /// It broke the protocol: the rest is read and dropped.
    broken: bool,
    /// When what is taken in now was read.
    now: Duration,
    /// Events that are to be handed on: as they are written, and as they are delivered.
    lines: Lines,
    events: Vec<Event>,
}

impl Intake {
    async fn read(&mut self, reader: &mut LineReader, over: &mut Over, tell: &impl Fn(Told)) {
        let mut decoder = Decoder::<ParentEnd>::default();
        loop {
            match reader.read(over, |bytes| decoder.push(bytes)).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.said.cut.get_or_insert_with(|| format!("the line failed: {error}"));
                    break;
                }
            }
            self.now = self.clock.now();
            while let Some(next) = decoder.next_message() {
                match next {
                    Ok(message) => self.message(message, tell).await,
                    Err(error) => self.frame_error(&error, tell),
                }
            }
            self.hand_on().await;
        }
        if self.said.finish.is_none() && !*over.borrow() {
            tell(Told::LineClosed);
        }
        if let Err(error) = decoder.finish() {
            self.said.cut.get_or_insert_with(|| error.to_string());
        }
    }

    fn frame_error(&mut self, error: &FrameError, tell: &impl Fn(Told)) {
        if let FrameError::Oversized { len } = error {
            let (count, largest) = self.said.oversized.unwrap_or_default();
            self.said.oversized = Some((count + 1, largest.max(*len)));
        } else {
            self.violation(error.to_string(), tell);
        }
    }

    fn violation(&mut self, detail: String, tell: &impl Fn(Told)) {
        if !self.broken {
            self.broken = true;
            tell(Told::Violation(detail));
        }
    }

    async fn message(&mut self, message: ChildMessage, tell: &impl Fn(Told)) {
        if self.broken {
            return;
        }
        if self.said.finish.is_some() {
            self.said.late += 1;
            return;
        }
        if !matches!(message, ChildMessage::Event(_)) {
            // Nobody hears of what comes next before what came before it.
            self.hand_on().await;
        }
        match message {
            ChildMessage::Hello(hello) => self.hello(&hello, tell),
            _ if !self.greeted => {
                self.violation("its first frame is not Hello".to_owned(), tell);
            }
            ChildMessage::Event(_) if !self.begun.load(Ordering::Acquire) => {
                self.violation("it sent an event before it had its task".to_owned(), tell);
            }
            ChildMessage::Event(event) => {
                self.spend(&event, tell);
                self.event(event);
            }
            ChildMessage::Beat(beat) => {
                self.said.spent.beat(&beat);
                self.shared.pulse.borrow_mut().beat(bounded(beat), self.now);
            }
            ChildMessage::Dump { text } => {
                self.shared.own_word.replace(Some(text));
                self.shared.answered.notify_one();
            }
            ChildMessage::Ask { .. } if !self.begun.load(Ordering::Acquire) => {
                self.violation("it asked before it had its task".to_owned(), tell);
            }
            ChildMessage::Ask { number, question } => match self.taken_up(number, &question) {
                Some(reply) => tell(Told::Asked(question, reply)),
                None => self.violation(format!("more than {QUESTIONS} questions at once"), tell),
            },
            ChildMessage::ResultPart(bytes) => self.answer.part(bytes.0).await,
            ChildMessage::Finish(finish) => self.finish(*finish, tell).await,
        }
    }

    fn taken_up(&mut self, number: u64, question: &Question) -> Option<Reply> {
        let reply = self.replies.take_up(number)?;
        if let Question::File(question) = question {
            self.said.spent.file(question);
        }
        Some(reply)
    }

    fn hello(&mut self, hello: &Hello, tell: &impl Fn(Told)) {
        if self.greeted {
            return self.violation("it said Hello twice".to_owned(), tell);
        }
        self.greeted = true;
        match version::check(hello) {
            Ok(()) => tell(Told::Hello),
            Err(mismatch) => self.violation(mismatch.to_string(), tell),
        }
    }

    /// Counts what a call cost, before it is told to anybody.
    fn spend(&mut self, event: &ChildEvent, tell: &impl Fn(Told)) {
        if let ChildEvent::Note(Note::Call { tokens, cost_usd, .. }) = event
            && let Some(account) = &self.account
            && let Some(refusal) = account.spend(*tokens, *cost_usd)
        {
            tell(Told::OverBudget(refusal));
            // Told once, and counted on.
            self.account = self.account.take().map(Account::quiet);
        }
    }

    fn event(&mut self, event: ChildEvent) {
        if event.is_content() {
            self.said.last_content_at = Some(self.now);
        }
        if let ChildEvent::Note(Note::Steered { number }) = &event {
            self.control.steered(self.child.task_index(), *number);
        }
        if let ChildEvent::Note(Note::Approval(Approval { request, approved })) = &event {
            let word = if *approved { "approved once" } else { "denied" };
            tracing::warn!(target: "delegate::run", request, "subagent_auto_approve: {word}");
            let summary = format!("{word} (subagent_auto_approve): {request}");
            self.pass_on(Event::Progress { child: self.child, summary, merged: 0 });
        }
        if let ChildEvent::Note(Note::File { path, written }) = &event {
            self.files.mention(path, *written);
        }
        if let ChildEvent::Note(note) = &event {
            self.said.spent.note(note.clone(), self.shared.pulse.borrow().tool());
        }
        self.shared.pulse.borrow_mut().event(&event, self.now);
        if let ChildEvent::Note(Note::Turn { .. }) = &event {
            // What it said in earlier turns is no part of this one.
            self.said.last_text.clear();
        }
        if let ChildEvent::Text { text } = &event {
            keep_tail(&mut self.said.last_text, text, LAST_TEXT);
        }
        if let ChildEvent::Tool { name, args, id, args_bytes, .. } = &event {
            self.said.spent.tool(name, args, id.as_deref(), *args_bytes);
        }
        let Some(event) = event.of(self.child) else { return };
        let line = if let Event::Tool { name, .. } = &event { self.tools.push(name) } else { None };
        self.pass_on(event);
        if let Some(summary) = line {
            self.pass_on(Event::Progress { child: self.child, summary, merged: 0 });
        }
    }

    fn pass_on(&mut self, event: Event) {
        self.journal.add(&event, self.now, &mut self.lines);
        self.events.push(event);
    }

    /// Hands on what was gathered: first it is written down, then the consumer has it. Either may have to be waited
    /// for, and nothing more is taken in meanwhile.
    async fn hand_on(&mut self) {
        if self.events.is_empty() {
            return;
        }
        self.journal.hand_on(&mut self.lines).await;
        self.outlet.send(std::mem::take(&mut self.events)).await;
        self.outlet.tell();
        self.now = self.clock.now();
    }

    /// Whatever ended it: the tools that were not told in a line yet.
    async fn flush_tools(&mut self) {
        self.now = self.clock.now();
        if let Some(summary) = self.tools.flush() {
            self.pass_on(Event::Progress { child: self.child, summary, merged: 0 });
        }
        self.hand_on().await;
    }

    async fn finish(&mut self, mut finish: Finish, tell: &impl Fn(Told)) {
        if let Some(text) = finish.answer.take() {
            self.answer.part(text.into_bytes()).await;
        }
        self.said.answer = self.answer.finish().await;
        let verdict = finish.verdict;
        self.said.finish = Some(finish);
        tell(Told::Finish(verdict));
    }
}
