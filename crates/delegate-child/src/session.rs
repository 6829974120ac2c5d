//! What an agent works with: [`Session`]. It writes into the outbox and the account that `serve`
//! reads, and into nothing else. This is the one file of the child that reads the clock.

use std::fmt::Display;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use delegate_protocol::outcome::{
    Approval, NAME_BYTES, PATH_BYTES, PREVIEW_BYTES, REQUEST_BYTES, ToolEnd,
};
use delegate_protocol::page;
use delegate_protocol::{
    Answer, ChildEvent, Note, Question, Routing, TaskSpec, Tokens, Value, spelling, tool_text,
};

use crate::account::{Account, value_bytes};
use crate::agent::{AskError, Interrupted};
use crate::asks::{Until, Waited};
use crate::cancel::{Reason, Token};
use crate::files::Files;
use crate::helper;
use crate::hook;
use crate::jobs::Jobs;
use crate::kept::{Kept, Stream};
use crate::mail::Mailbox;
use crate::outbox::Outbox;
use crate::owner_source::OwnerSource;
use crate::queue::MERGED_TEXT;
use crate::schema;
use crate::tail::{clip, floor_char_boundary};

/// Bytes of a tool's preview that are shown.
const PREVIEW: usize = 4 * 1024;

/// Bytes of a tool's arguments that an event carries. Larger ones are left out, and the preview says
/// so: an event must never come near the frame cap.
const ARGS: usize = 1024 * 1024;

/// The time, for the two that wait: the agent's side here and the writer in `serve`.
#[expect(clippy::disallowed_methods, reason = "one of the files that wait; the rest is told")]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

/// The same as other processes of this machine read it, in milliseconds.
fn machine_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// Where a heartbeat record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// On the page: nobody has to be told.
    OnPage,
    /// There is no page: it is to be sent.
    Nowhere,
}

/// What the agent's thread and the writer share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) token: Arc<Token>,
    pub(crate) outbox: Outbox,
    pub(crate) mail: Arc<Mailbox>,
    account: Mutex<Account>,
}

impl Desk {
    /// A desk whose waiting sender is woken when `token` is raised.
    pub(crate) fn new(token: Arc<Token>, mail: Arc<Mailbox>) -> Arc<Self> {
        let account = Mutex::new(Account::new(clock()));
        let desk = Arc::new(Self { token, outbox: Outbox::default(), mail, account });
        // Weak: the desk holds the token, and the token's hook must not hold the desk.
        let woken = Arc::downgrade(&desk);
        desk.token.on_raise(move |_| {
            if let Some(desk) = woken.upgrade() {
                desk.outbox.wake();
                desk.mail.asks.wake();
            }
        });
        let poked = Arc::downgrade(&desk);
        desk.mail.on_dump(move || {
            if let Some(desk) = poked.upgrade() {
                desk.outbox.poke();
            }
        });
        desk
    }

    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The account as it stands; a fresh one takes its place.
    pub(crate) fn take_account(&self) -> Account {
        std::mem::replace(&mut *self.account(), Account::new(clock()))
    }

    /// Asks the parent, from any thread, and waits for the answer.
    pub(crate) fn ask(&self, question: Question, until: Until) -> Result<Answer, AskError> {
        let asks = &self.mail.asks;
        let number = asks.ask(question, &self.token, until).ok_or(AskError::Interrupted)?;
        self.outbox.poke();
        asks.wait(number, &self.token, until).ok_or(AskError::Interrupted)
    }

    /// Waits for the answer to this question, or until somebody calls.
    pub(crate) fn wait_or_call(&self, number: u64, until: Until) -> Waited {
        self.mail.asks.wait_or_call(number, &self.token, until)
    }

    /// Tells the parent something, from any thread.
    pub(crate) fn tell(&self, question: Question) {
        self.mail.asks.tell(question, &self.token);
        self.outbox.poke();
    }

    /// Writes the record of now where the parent looks by itself.
    pub(crate) fn show(&self, now: Instant) -> Shown {
        let Some(page) = self.token.page() else { return Shown::Nowhere };
        // Held while it is written: there are two that write.
        let mut account = self.account();
        let beat = account.next_beat(now);
        page::write(page.words(), &page::Record { beat, at_ms: machine_clock() });
        Shown::OnPage
    }

    pub(crate) fn parent_is_gone(&self) -> bool {
        self.token.raised() == Some(Reason::ParentGone)
    }
}

/// One child's connection to its parent.
///
/// Everything that is said here is queued, and goes out in order. When the parent is slow, texts
/// are joined, progress lines replaced by newer ones, and in the end the agent waits, until there
/// is room or it is asked to stop.
#[derive(Debug)]
pub struct Session {
    spec: Arc<TaskSpec>,
    /// With the key that is used now; see [`crate::keys`].
    pub(crate) route: Routing,
    owner: OwnerSource,
    output: Kept,
    pub(crate) desk: Arc<Desk>,
    #[cfg(test)]
    heard: Option<std::thread::JoinHandle<Vec<ChildEvent>>>,
}

impl Session {
    pub(crate) fn new(
        spec: Arc<TaskSpec>,
        owner: OwnerSource,
        output: Kept,
        desk: Arc<Desk>,
    ) -> Self {
        Self {
            route: spec.routing.clone(),
            spec,
            owner,
            output,
            desk,
            #[cfg(test)]
            heard: None,
        }
    }

    /// The task, to be kept beside a borrowed session.
    pub(crate) fn shared_spec(&self) -> Arc<TaskSpec> {
        Arc::clone(&self.spec)
    }

    /// The task.
    #[must_use]
    pub fn spec(&self) -> &TaskSpec {
        &self.spec
    }

    /// An atomic load or two.
    ///
    /// # Errors
    /// [`Interrupted`] once the child was asked to stop, or its parent is gone.
    pub fn checkpoint(&self) -> Result<(), Interrupted> {
        if self.is_interrupted() { Err(Interrupted) } else { Ok(()) }
    }

    /// Whether [`Session::checkpoint`] would fail.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.desk.token.is_raised()
    }

    /// Waits, and returns at once when the child is asked to stop, or its parent is gone.
    ///
    /// # Errors
    /// [`Interrupted`], when it was.
    pub fn wait(&self, time: Duration) -> Result<(), Interrupted> {
        let until = clock().checked_add(time);
        loop {
            self.checkpoint()?;
            let left =
                until.map_or(Duration::MAX, |until| until.saturating_duration_since(clock()));
            if left.is_zero() {
                return Ok(());
            }
            self.desk.token.wait(left);
        }
    }

    /// Calls `hook` when the child is asked to stop (at once if it was already), for agents that
    /// wait for something else than this session. It may be called more than once, on another
    /// thread, and must not block.
    pub fn on_interrupt(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.desk.token.on_raise(move |_| hook());
    }

    /// Streams text. The last 64 KiB are the answer of a child that is interrupted or fails. Blank text
    /// is passed on, and is no sign of progress.
    pub fn text(&mut self, delta: &str) {
        self.streamed(delta);
        for text in pieces(delta) {
            self.put(ChildEvent::Text { text: text.to_owned() });
        }
    }

    /// Shows a thought.
    pub fn thinking(&mut self, line: &str) {
        if !line.trim().is_empty() {
            self.content("thinking");
        }
        if self.spec.relay_events {
            for text in pieces(line) {
                self.put(ChildEvent::Thinking { text: text.to_owned() });
            }
        } else if !line.trim().is_empty() {
            self.desk.account().untold();
        }
    }

    /// Says how far the work has come. Content, so it counts as life (a blank line does not).
    pub fn progress(&mut self, summary: impl Display) {
        let summary = clip(&summary.to_string(), MERGED_TEXT).to_owned();
        if !summary.trim().is_empty() {
            self.content("progress");
        }
        self.put(ChildEvent::Progress { summary, merged: 0 });
    }

    /// Says that a tool starts; it is the current tool until the next call or [`Session::tool_done`].
    pub fn tool(&mut self, name: &str, preview: Option<&str>, args: Value) {
        self.start_tool(None, name, preview, args);
    }

    /// The same for one of several calls that run at once. Its end is told by [`Session::tool_result`]
    /// with the same id.
    pub fn tool_call(&mut self, id: &str, name: &str, preview: Option<&str>, args: Value) {
        self.start_tool(Some(clip(id, NAME_BYTES)), name, preview, args);
    }

    fn start_tool(&mut self, id: Option<&str>, name: &str, preview: Option<&str>, args: Value) {
        let name = clip(name, NAME_BYTES);
        let bytes = value_bytes(&args);
        let summary = tool_text::input_summary(&args);
        let mut account = self.desk.account();
        account.content(clock(), name);
        account.trace.start(id, name, bytes as u64, summary);
        if !self.spec.relay_events {
            account.untold();
        }
        drop(account);
        if !self.spec.relay_events {
            return;
        }
        let mut preview = preview.map(|text| clip(text, PREVIEW).to_owned());
        let mut args = args;
        if bytes > ARGS {
            args = Value::Null;
            let note = format!("[{bytes} bytes of arguments are not shown]");
            preview = Some(preview.map_or(note.clone(), |text| format!("{text} {note}")));
        }
        let (name, id) = (name.to_owned(), id.map(str::to_owned));
        self.put(ChildEvent::Tool { name, preview, args, id, args_bytes: bytes as u64 });
    }

    /// Says how the current tool ended, for the trace.
    pub fn tool_done(&mut self, result_bytes: u64, ok: bool) {
        self.tool_gave(None, result_bytes, ok, None);
    }

    /// The same with the head of its result, for the output tail of the entry.
    pub fn tool_output(&mut self, output: &str, ok: bool) {
        self.tool_gave(None, output.len() as u64, ok, Some(output));
    }

    /// Says what the call of this id gave (without one, or one that nobody knows: the latest that runs),
    /// in any shape that agent loops have; whether it went well is read from it
    /// ([`tool_text::result`]).
    pub fn tool_result(&mut self, id: Option<&str>, result: &Value) {
        let tool_text::ToolText { text, is_error } = tool_text::result(result);
        let id = id.map(|id| clip(id, NAME_BYTES));
        self.tool_gave(id, text.len() as u64, !is_error, Some(&text));
    }

    fn tool_gave(&mut self, id: Option<&str>, result_bytes: u64, ok: bool, output: Option<&str>) {
        let mut account = self.desk.account();
        account.content(clock(), "a tool ended");
        let tool = account.trace.done(id, result_bytes, ok);
        drop(account);
        let preview = output.map(|output| clip(output, PREVIEW_BYTES).to_owned());
        let id = id.map(str::to_owned);
        self.put(ChildEvent::Note(Note::ToolDone(ToolEnd { id, tool, result_bytes, ok, preview })));
    }

    /// Counts a model call.
    pub fn api_call(&mut self, tokens: Tokens, cost_usd: Option<f64>) {
        self.api_call_with_reasoning(tokens, 0, cost_usd);
    }

    /// Counts a model call of which so many tokens were spent on reasoning.
    pub fn api_call_with_reasoning(
        &mut self,
        tokens: Tokens,
        reasoning_tokens: u64,
        cost_usd: Option<f64>,
    ) {
        let mut account = self.desk.account();
        account.content(clock(), "a model answered");
        account.api_call(tokens, cost_usd);
        drop(account);
        self.put(ChildEvent::Note(Note::Call { tokens, reasoning_tokens, cost_usd }));
    }

    /// Says that a file was read; the entry lists it.
    pub fn read_file(&mut self, path: impl AsRef<Path>) {
        self.file(path.as_ref(), false);
    }

    /// Says that a file was written; the entry lists it, also of a child that is killed afterwards.
    pub fn wrote_file(&mut self, path: impl AsRef<Path>) {
        self.file(path.as_ref(), true);
    }

    fn file(&mut self, path: &Path, written: bool) {
        self.content(if written { "a file was written" } else { "a file was read" });
        let path = clip(&path.to_string_lossy(), PATH_BYTES).to_owned();
        self.put(ChildEvent::Note(Note::File { path, written }));
    }

    /// Passes on what an agent loop's callback was given: event name in any spelling, tool name, preview,
    /// arguments. Names that nobody knows are ignored.
    pub fn relay(&mut self, name: &str, tool: Option<&str>, preview: Option<&str>, args: Value) {
        match spelling::relayed(name, tool, preview, args) {
            Some(ChildEvent::Text { text }) => self.text(&text),
            Some(ChildEvent::Thinking { text }) => self.thinking(&text),
            Some(ChildEvent::Tool { name, preview, args, id: _, args_bytes: _ }) => {
                self.tool(&name, preview.as_deref(), args);
            }
            Some(ChildEvent::Progress { summary, .. }) => self.progress(summary),
            Some(ChildEvent::Note(_)) | None => {}
        }
        if spelling::Formal::parse(name) == Some(spelling::Formal::ToolCompleted) {
            self.tool_done(0, true);
        }
    }

    /// Words of the parent that interrupt nothing, oldest first; takes them. Most are warnings that a
    /// limit is near.
    #[must_use]
    pub fn take_notices(&mut self) -> Vec<String> {
        self.desk.mail.take_notices()
    }

    /// The next word of whoever steers this child (`delegate steer`), oldest first: an instruction that
    /// interrupts nothing. Taking it tells the parent that it was delivered; what is left at the end comes
    /// back in the entry as missed.
    #[must_use]
    pub fn steer(&mut self) -> Option<String> {
        let (number, text) = self.desk.mail.take_steer()?;
        self.content("it was steered");
        if !hook::is_off("acknowledge") {
            self.put(ChildEvent::Note(Note::Steered { number }));
        }
        Some(text)
    }

    /// The result of a tool as the model should read it: what there is to say to it stands below.
    #[must_use]
    pub fn with_steers(&mut self, result: impl Into<String>) -> String {
        let mut result = result.into();
        while let Some(text) = self.steer() {
            result.push_str("\n\n[the user says: ");
            result.push_str(&text);
            result.push(']');
        }
        result
    }

    /// Whether something dangerous may be done. Nobody is asked, so nothing can wait for an answer: the
    /// setting `subagent_auto_approve` allows it (for this once) or denies it. The entry lists both.
    #[must_use]
    pub fn approve(&mut self, request: impl Display) -> bool {
        let request = clip(&request.to_string(), REQUEST_BYTES).to_owned();
        let approved = self.spec.auto_approve;
        tracing::info!(approved, request, "an approval was answered");
        self.content("an approval was answered");
        self.put(ChildEvent::Note(Note::Approval(Approval { request, approved })));
        approved
    }

    /// From now on silence says nothing about this child (`false`), or it does again (`true`, as at the
    /// start). An agent that waits for somebody else's program says so: it is never called stale then.
    pub fn reports(&mut self, reports: bool) {
        self.put(ChildEvent::Note(Note::Channel { reports }));
    }

    /// What the task's `output_schema` asks of the answer, in words for the end of a prompt; `None` when
    /// it asks nothing.
    #[must_use]
    pub fn answer_contract(&self) -> Option<String> {
        self.spec.output_schema.as_ref().map(schema::told)
    }

    /// Says what kind of number the money is that was told, such as `exact`.
    pub fn cost_status(&mut self, word: &str) {
        self.desk.account().cost_status = Some(clip(word, NAME_BYTES).to_owned());
    }

    /// Says which model really answers.
    pub fn model(&mut self, name: &str) {
        self.desk.account().model = Some(clip(name, NAME_BYTES).to_owned());
    }

    /// Something happened that is worth no event, but is a sign of progress.
    pub fn alive(&mut self) {
        self.content("alive");
        self.desk.account().untold();
        // No event tells it, and on a page it costs nothing to tell it now.
        self.desk.show(clock());
    }

    /// The empty answer that follows is meant to be empty.
    pub fn allow_empty_answer(&mut self) {
        self.desk.account().empty_on_purpose = true;
    }

    /// Keeps output of a program as it came, for the logs.
    pub(crate) fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        self.output.write(stream, bytes);
    }

    /// Connects to a helper that all children share (`shared_helpers`): a JSON-RPC message per line, each way. The
    /// first one starts it; it belongs to the program that delegates, and outlives this child.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub fn helper(&self, name: &str) -> io::Result<UnixStream> {
        match &self.spec.helpers {
            Some(address) => helper::connect(address, name),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no shared helper `{name}`: `shared_helpers` is not set"),
            )),
        }
    }

    /// Starts programs that belong to this child and end with it.
    #[must_use]
    pub fn owner(&self) -> Option<&ownership::Owner> {
        self.owner.get()
    }

    /// How long this child may run yet, by its parent's clock (a pause does not count, and more can be given
    /// later); `None` when it has no limit, or is being ended.
    ///
    /// # Errors
    /// [`AskError`], when it was not told.
    pub fn time_left(&self) -> Result<Option<Duration>, AskError> {
        // One that unwinds may want to know, too.
        let until = if self.is_interrupted() { Until::ParentGone } else { Until::Interrupt };
        let answer = self.ask(Question::TimeLeft, until)?;
        if let Answer::TimeLeft { ms } = answer {
            Ok(ms.map(Duration::from_millis))
        } else {
            Err(AskError::of(answer))
        }
    }

    /// What it shares with the writer of its line.
    pub(crate) const fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Files that other agents of this tree work on, too: who changed what, and whose turn it is.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(Arc::clone(&self.desk), self.spec.cwd.as_deref())
    }

    /// Background programs of this child: held by its parent, ended with this child unless they were handed over.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        Jobs::new(Arc::clone(&self.desk))
    }

    /// Asks the parent, and waits for the answer.
    pub(crate) fn ask(&self, question: Question, until: Until) -> Result<Answer, AskError> {
        self.desk.ask(question, until)
    }

    pub(crate) fn content(&self, what: &str) {
        self.desk.account().content(clock(), what);
    }

    fn streamed(&self, text: &str) {
        let mut account = self.desk.account();
        if !text.trim().is_empty() {
            account.content(clock(), "text");
        }
        account.last_text.push(text.as_bytes());
    }

    pub(crate) fn put(&self, event: ChildEvent) {
        self.desk.outbox.put(event, &self.desk.token);
    }
}

/// Cuts a text between characters into pieces that one event may carry.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at(floor_char_boundary(text, MERGED_TEXT));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{Taken, Wait};
    use delegate_protocol::spec::sample;
    use std::collections::VecDeque;
    use std::thread;

    impl Session {
        /// A session that somebody listens to; see [`Session::said_for_tests`].
        pub(crate) fn for_tests(change: impl FnOnce(&mut TaskSpec)) -> Self {
            let mut spec = sample(0, "a", "goal");
            change(&mut spec);
            let mut session = Self::new(
                Arc::new(spec),
                OwnerSource::of(None),
                Kept::default(),
                Desk::new(Arc::default(), Arc::default()),
            );
            let desk = Arc::clone(&session.desk);
            session.heard = Some(thread::spawn(move || drain(&desk)));
            session
        }

        /// As if the parent had asked it to stop.
        pub(crate) fn interrupt_for_tests(&self) {
            self.desk.token.raise(Reason::Interrupt);
        }

        /// Every text that was streamed.
        pub(crate) fn said_for_tests(self) -> Vec<String> {
            self.desk.outbox.close();
            let events = self.heard.unwrap().join().unwrap().into_iter();
            let text = |event| match event {
                ChildEvent::Text { text } => Some(text),
                ChildEvent::Thinking { .. }
                | ChildEvent::Tool { .. }
                | ChildEvent::Progress { .. }
                | ChildEvent::Note(_) => None,
            };
            events.filter_map(text).collect()
        }
    }

    fn drain(desk: &Desk) -> Vec<ChildEvent> {
        let (mut events, mut taken) = (Vec::new(), VecDeque::new());
        while desk.outbox.take(Wait::ForOne(None), &mut taken) == Taken::Events {
            events.extend(taken.drain(..));
        }
        events
    }

    fn session(relay_events: bool) -> Session {
        let mut spec = sample(0, "a", "goal");
        spec.relay_events = relay_events;
        Session::new(
            Arc::new(spec),
            OwnerSource::of(None),
            Kept::default(),
            Desk::new(Arc::default(), Arc::default()),
        )
    }

    fn said(session: &Session) -> Vec<ChildEvent> {
        session.desk.outbox.close();
        drain(&session.desk)
    }

    #[test]
    fn a_large_text_is_cut_between_characters() {
        let text = "é".repeat(MERGED_TEXT);
        let cut: Vec<_> = pieces(&text).collect();
        assert_eq!((cut.len(), cut.concat()), (2, text));
        assert_eq!(pieces("").count(), 0);
    }

    #[test]
    fn arguments_that_are_too_large_are_left_out_and_counted() {
        let mut session = session(true);
        session.tool("write", Some("notes.txt"), Value::Text("x".repeat(2 * ARGS)));
        let expected = format!("notes.txt [{} bytes of arguments are not shown]", 2 * ARGS + 5);
        let events = said(&session);
        let [ChildEvent::Tool { preview, args, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((preview.as_deref(), args), (Some(expected.as_str()), &Value::Null));
    }

    #[test]
    fn words_that_are_too_long_are_cut() {
        let mut session = session(true);
        let long = |bound: usize| "w".repeat(bound + 1);
        session.tool(&long(NAME_BYTES), Some(&long(PREVIEW)), Value::Null);
        session.progress(long(MERGED_TEXT));
        session.model(&long(NAME_BYTES));
        let events = said(&session);
        let [ChildEvent::Tool { name, preview, .. }, ChildEvent::Progress { summary, .. }] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((name.len(), preview.as_ref().unwrap().len()), (NAME_BYTES, PREVIEW));
        assert_eq!(summary.len(), MERGED_TEXT);
        let model = session.desk.account().model.take();
        assert_eq!(model.unwrap().len(), NAME_BYTES);
    }

    #[test]
    fn nobody_listens_so_only_content_goes_out() {
        let mut session = session(false);
        session.thinking("hm");
        session.tool("grep", None, Value::Null);
        session.text("t");
        session.progress(1);
        let events = said(&session);
        assert!(matches!(events[..], [ChildEvent::Text { .. }, ChildEvent::Progress { .. }]));
    }
}
