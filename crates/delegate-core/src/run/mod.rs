//! A running batch: the handle of its caller ([`Run`], [`Control`]) and, behind it, the loop that
//! waits and acts.
//!
//! | module | does |
//! |---|---|
//! | `batch` | the loop: facts in, effects out |
//! | `child_io` | one child's frames and pipes |
//! | `line` | bytes of a socket, a channel or a pipe |
//! | `delivery` | events to the consumer, two classes |
//! | `journal` | events and output to the store |
//! | `manifest` | begins and ends of a run's children, in a file |
//! | `clock` | time since the batch began |
//! | `control` | wishes of the caller |
//! | `steers` | words to a child: accepted, sent, taken or missed |
//! | `dispatch` | what a background run owes, and where it is waited for |
//! | `crash` | where the process of a batch dies in tests |
//! | `branch` | stops that stick to a part of the tree |
//! | `live`, `sessions` | what runs now, for whoever asks |
//! | `feed` | events for whoever watches from outside |
//! | `hooks` | callbacks of the caller |
//! | `diagnostic` | what a child was doing when its time was over |
//! | `finalise` | the last look at an answer: schema and length |
//! | `sets` | numbers of batches in their conversations |
//! | `reply` | answers to a child's questions |
//! | `nest`, `outlet` | batches of children: how they are started, and whom their events reach |
//! | `common` | what a batch shares with its tree |
//! | `mentions` | files that a child only mentions |
//! | `tails` | ends of what a child prints |
//! | `taking` | the answer, as its parts come |
//! | `turns` | questions of a child that takes several prompts |
//! | `tool_names` | tools, five a line |

pub(crate) mod batch;
pub mod branch;
mod child_io;
pub(crate) mod clock;
pub(crate) mod common;
pub(crate) mod control;
pub(crate) mod crash;
pub(crate) mod delivery;
mod diagnostic;
pub(crate) mod dispatch;
pub(crate) mod feed;
mod finalise;
pub(crate) mod hooks;
mod journal;
mod line;
pub(crate) mod live;
mod manifest;
mod mentions;
pub(crate) mod nest;
pub(crate) mod outlet;
mod reply;
pub(crate) mod sessions;
mod sets;
mod shared;
mod steers;
mod tails;
mod taking;
mod tool_names;
pub(crate) mod turns;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use delegate_protocol::envelope::{Identity, Relayed};
use delegate_protocol::{Event, RunId, SubagentId};

pub use self::branch::Branch;
pub use self::clock::ManualClock;
pub use self::control::Ended;
pub use self::dispatch::Notice;
pub use self::hooks::{Listener, Sign, Stopped};
#[doc(hidden)]
pub use self::journal::counted_lines;
pub use self::live::{List, LiveChild, WaitingTask};
pub use self::sessions::LiveSession;
pub use self::steers::SteerError;
use tokio::sync::oneshot;

use self::control::ControlState;
use self::delivery::Delivery;
use crate::monitor::CancelReason;
use crate::plan::Plan;
use crate::report::{Outcome, Report};
use crate::store::Store;

/// A running batch.
///
/// # Caveats
/// Dropping it ends its children: they are interrupted, and after the grace times ended. The
/// delegator's thread and the supervisor do that, the drop itself does not wait. To get the outcomes
/// of a batch whose events do not matter, call [`Run::finish`] at once. A consumer that neither reads
/// events nor calls `finish` slows its own batch down, and no other.
#[must_use = "dropping a Run ends its children"]
pub struct Run {
    id: RunId,
    plan: Arc<Plan>,
    /// Tasks whose `SpawnRequested` was handed out. Those events are made when they are asked for, so
    /// that a long batch does not queue them.
    requested: usize,
    /// Who runs, and the tools that each has started; for [`Run::next_relayed`].
    relaying: HashMap<SubagentId, (Identity, u64)>,
    /// Children of children, as far as they were announced here and are not long over.
    descendants: Descendants,
    /// The number of the batch in its conversation.
    set: u64,
    delivery: Arc<Delivery>,
    control: Arc<ControlState>,
    store: Store,
    /// `None` once it was taken.
    report: Option<oneshot::Receiver<Report>>,
}

impl Run {
    pub(crate) fn new(
        id: RunId,
        set: u64,
        plan: Arc<Plan>,
        delivery: Arc<Delivery>,
        control: Arc<ControlState>,
        store: Store,
        report: oneshot::Receiver<Report>,
    ) -> Self {
        Self {
            id,
            set,
            plan,
            requested: 0,
            relaying: HashMap::new(),
            descendants: Descendants::default(),
            delivery,
            control,
            store,
            report: Some(report),
        }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> RunId {
        self.id
    }

    /// What lists show for it.
    #[must_use]
    pub fn title(&self) -> String {
        let record = self.store.find_run(&self.id.to_string());
        record.map(|record| record.title).unwrap_or_default()
    }

    /// Tasks in the batch.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.plan.tasks.len()
    }

    /// The whole outcome of a child, once its `Complete` was seen: outcomes as they come, instead of
    /// [`Report::results`] at the end. `None` before that. Also of a child of a child, of those the latest
    /// 1,024 that were seen to end.
    #[must_use]
    pub fn outcome(&self, child: SubagentId) -> Option<Outcome> {
        let run = self.descendants.run_of(child).unwrap_or(self.id);
        self.store.outcome(run, child.task_index()).ok().map(Outcome::from)
    }

    /// A handle for another thread, a signal handler or a UI.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { state: Arc::clone(&self.control), plan: Arc::clone(&self.plan) }
    }

    /// Who a child of a child is, from its `SpawnRequested` to its `Complete`, that one included.
    #[must_use]
    pub fn identity(&self, child: SubagentId) -> Option<&Identity> {
        self.descendants.identity(child)
    }

    /// The next event; `None` after the last child's `Complete`. Children of children are among them; each is
    /// introduced by the `identity` of its `SpawnRequested`.
    pub async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.next_requested() {
            return Some(event);
        }
        let event = self.delivery.next().await?;
        self.descendants.see(&event);
        Some(event)
    }

    /// As [`Run::next`], with who it is about, the number of the batch in its conversation, and how many tools
    /// that child has started (those that came through here).
    pub async fn next_relayed(&mut self) -> Option<Relayed> {
        let event = self.next().await?;
        let child = event.child();
        if let Some(identity) = self.identity(child) {
            // Counted in the same place as the others; who it is was told.
            let identity = identity.clone();
            self.relaying.entry(child).or_insert((identity, 0));
        }
        let (identity, tool_count) = self
            .relaying
            .entry(child)
            .or_insert_with(|| (Identity::of(&self.plan.spec(child.task_index() as usize)), 0));
        *tool_count += u64::from(matches!(event, Event::Tool { .. }));
        let (identity, tool_count) = (identity.clone(), *tool_count);
        if matches!(event, Event::Complete { .. }) {
            self.relaying.remove(&child);
        }
        Some(Relayed { identity, set: self.set, tool_count, event })
    }

    /// Blocking twin of [`Run::next_relayed`].
    pub fn next_relayed_blocking(&mut self) -> Option<Relayed> {
        block_on(self.next_relayed())
    }

    /// Blocking twin of [`Run::next`], for code without a runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        block_on(self.next())
    }

    fn next_requested(&mut self) -> Option<Event> {
        while u32::try_from(self.requested).is_ok_and(|task| self.plan.ended.contains_key(&task)) {
            self.requested += 1;
        }
        let task = self.plan.tasks.get(self.requested)?;
        let child = self.plan.subagent_id(self.requested);
        self.requested += 1;
        Some(Event::SpawnRequested { child, goal: task.goal().to_owned(), identity: None })
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }

    /// Nobody follows it any more, and it goes on.
    pub(crate) fn leave(mut self) {
        self.delivery.close();
        self.report = None;
    }

    /// Ends the delivery of events and waits for every outcome.
    ///
    /// # Panics
    /// When the loop of the delegator has panicked: a bug of ours.
    pub async fn finish(mut self) -> Report {
        self.delivery.close();
        let report = self.report.take();
        match report {
            Some(report) => report.await.expect("the delegator's loop hands a report over"),
            None => unreachable!("finish takes the run"),
        }
    }

    /// Blocking twin of [`Run::finish`].
    pub fn finish_blocking(self) -> Report {
        block_on(self.finish())
    }
}

/// Ended children of children whose outcomes can still be asked for.
const ENDED: usize = 1024;

/// Children of children that a consumer has heard of.
#[derive(Default)]
struct Descendants {
    running: HashMap<SubagentId, Box<Identity>>,
    /// The one whose end was told last.
    last: Option<(SubagentId, Box<Identity>)>,
    ended: VecDeque<(SubagentId, RunId)>,
}

impl Descendants {
    fn see(&mut self, event: &Event) {
        match event {
            Event::SpawnRequested { child, identity: Some(identity), .. } => {
                self.running.insert(*child, identity.clone());
            }
            Event::Complete { child, .. } => {
                let Some(identity) = self.running.remove(child) else { return };
                if self.ended.len() == ENDED {
                    self.ended.pop_front();
                }
                self.ended.extend(identity.run_id.map(|run| (*child, run)));
                self.last = Some((*child, identity));
            }
            Event::SpawnRequested { .. }
            | Event::Waiting { .. }
            | Event::Start { .. }
            | Event::Thinking { .. }
            | Event::Tool { .. }
            | Event::Progress { .. }
            | Event::Text { .. }
            | Event::Warning { .. }
            | Event::Turn { .. } => {}
        }
    }

    fn identity(&self, child: SubagentId) -> Option<&Identity> {
        let last = self.last.as_ref().filter(|(known, _)| *known == child);
        let identity = self.running.get(&child).or(last.map(|(_, identity)| identity));
        identity.map(|identity| &**identity)
    }

    fn run_of(&self, child: SubagentId) -> Option<RunId> {
        let ended = self.ended.iter().rev().find(|(known, _)| *known == child);
        ended.map(|(_, run)| *run)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.report.is_some() {
            let control = self.control();
            // A stopped worker hears nothing, and stopped clocks would never end it.
            control.resume();
            control.interrupt();
            self.delivery.close();
        }
    }
}

/// Steers a running batch, from any thread. Every call is idempotent, and after the end a no-op.
#[derive(Debug, Clone)]
pub struct Control {
    state: Arc<ControlState>,
    plan: Arc<Plan>,
}

impl Control {
    pub(crate) const fn new(state: Arc<ControlState>, plan: Arc<Plan>) -> Self {
        Self { state, plan }
    }

    /// Says something to one child, running or waiting, that interrupts nothing: its agent reads it when
    /// it likes ([`delegate_child::Session::steer`]). `Ok` means accepted; what the agent has not taken at
    /// its end comes back in `missed_steer` of the entry.
    ///
    /// # Errors
    /// It was not accepted, and why.
    pub fn steer(&self, child: SubagentId, text: impl Into<String>) -> Result<(), SteerError> {
        let index = child.task_index();
        let known = (index as usize) < self.plan.tasks.len();
        if !known || self.plan.subagent_id(index as usize) != child {
            return Err(SteerError::NoSuchChild);
        }
        self.state.steer(index, text.into())
    }

    /// Has the agent of the one child unwind from this turn.
    pub(crate) fn stop_turn(&self, turn: u64) {
        self.state.want(|wanted| wanted.stopped_turn = wanted.stopped_turn.max(turn));
    }

    /// Launches no waiting task. What runs goes on, and can be listed, steered and stopped.
    pub fn pause_launches(&self) {
        self.state.want(|wanted| wanted.launches_held = true);
    }

    /// Launches them again.
    pub fn resume_launches(&self) {
        self.state.want(|wanted| wanted.launches_held = false);
    }

    /// What runs and what waits now; `None` once the run has ended.
    pub async fn list(&self) -> Option<List> {
        self.state.list().await
    }

    /// Blocking twin of [`Control::list`].
    #[must_use]
    pub fn list_blocking(&self) -> Option<List> {
        block_on(self.list())
    }

    /// Waits for the end of the run. `None` when a bug of ours ended it.
    pub async fn ended(&self) -> Option<Ended> {
        self.state.ended().await
    }

    /// Asks every child to unwind; after the grace they are ended. Waiting tasks are not launched.
    pub fn interrupt(&self) {
        self.cancel_all(CancelReason::Interrupt);
    }

    /// The same for one child.
    pub fn stop(&self, child: SubagentId) {
        self.state.want(|wanted| {
            wanted.stops.entry(child).or_insert(CancelReason::Interrupt);
        });
    }

    /// Ends one child at once.
    pub fn kill_child(&self, child: SubagentId) {
        self.state.want(|wanted| {
            wanted.stops.insert(child, CancelReason::Kill);
        });
    }

    /// Gives one child more time, running or waiting: its wall clock ends so much later, and so does its
    /// present window without progress. Said twice it is twice as much. A limit that is not set stays so.
    pub fn extend(&self, child: SubagentId, by: Duration) {
        self.state.want(|wanted| {
            let more = wanted.extensions.entry(child).or_default();
            *more = more.saturating_add(by);
        });
    }

    /// Stops (SIGSTOP) the processes of one running child and pauses its clocks. In a thread only what it
    /// started stands still. Asking it to stop ends the pause. No-op for one that waits.
    pub fn pause(&self, child: SubagentId) {
        self.state.want(|wanted| {
            wanted.holds.insert(child, true);
        });
    }

    /// Lets it go on.
    pub fn unpause(&self, child: SubagentId) {
        self.state.want(|wanted| {
            wanted.holds.insert(child, false);
        });
    }

    /// Ends every child at once.
    pub fn kill(&self) {
        self.cancel_all(CancelReason::Kill);
    }

    fn cancel_all(&self, reason: CancelReason) {
        self.state.cancel_all(reason);
    }

    /// Stops (SIGSTOP) the workers and pauses their clocks; nothing is launched meanwhile.
    pub fn suspend(&self) {
        self.state.want(|wanted| wanted.suspended = true);
    }

    /// Continues the workers and their clocks.
    pub fn resume(&self) {
        self.state.want(|wanted| wanted.suspended = false);
    }

    /// Waits (blocking, at most this long) until what was asked for so far took effect; `false` when
    /// it did not in time.
    pub fn settle(&self, at_most: Duration) -> bool {
        self.state.settle(at_most)
    }
}

/// Runs a future to its end on this thread. The futures here need no runtime of the caller.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    // Mostly there is nothing to wait for, as with one of many events.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
