//! What the loop does for a child whose time is running out: signs of life to the parent, warnings, a look
//! at what it does, pauses. When, the [`crate::monitor`] decides.

use std::time::Duration;

use delegate_protocol::frame::Encoder;
use delegate_protocol::{Event, Limit, ParentEnd, ParentMessage};

use super::owed::Owed;
use super::{Incoming, Loop};
use crate::monitor::{self, Expired, Liveness};
use crate::run::child_io::{Command, RESERVED};
use crate::run::diagnostic::Diagnostic;
use crate::run::hooks::Sign;

/// How long a child may take to say what it is doing. Its writer answers in milliseconds, or its process
/// does not run.
const OWN_WORD: Duration = Duration::from_secs(1);

impl Loop {
    pub(super) fn touch(&mut self, index: u32) {
        let (Some(hooks), Some(active)) = (&self.hooks, self.active.get(&index)) else { return };
        let Some(watch) = self.monitor.watch(index) else { return };
        let now = self.clock.now();
        active.shared.look(now);
        let pulse = active.shared.pulse.borrow();
        hooks.touch(Sign {
            child: active.child,
            description: pulse.describe(self.batch.plan.settings.max_iterations),
            liveness: watch.liveness(now),
            quiet_for: watch.quiet_for(now),
            api_calls: pulse.activity().api_calls,
        });
    }

    /// Tells the consumer, the file of the child, and the child.
    pub(super) fn warn(&mut self, index: u32, limit: Expired) {
        let Some(active) = self.active.get(&index) else { return };
        let quiet = self.monitor.watch(index).map(|watch| watch.quiet_for(self.clock.now()));
        let (quiet, after) = (quiet.unwrap_or_default().as_secs_f64(), limit.after.as_secs_f64());
        let key = limit.limit.key();
        let text = match limit.limit {
            Limit::Run | Limit::Inactivity => format!(
                "no progress for {quiet:.1} s; after {after} s without any it is ended ({key})"
            ),
            Limit::StaleIdle | Limit::StaleInTool => {
                format!("stale: no progress for {quiet:.1} s ({key}: {after} s)")
            }
        };
        tracing::warn!(target: "delegate::run", task = index, "{text}");
        let event = Event::Warning { child: active.child, about: limit.limit, text: text.clone() };
        self.batch.outlet.push(event.clone());
        self.say(index, &ParentMessage::Notice { text }, Some(event));
    }

    /// Says what need not be said, where there is room for it.
    fn say(&self, index: u32, message: &ParentMessage, event: Option<Event>) {
        let Some(active) = self.active.get(&index) else { return };
        let Some(commands) = active.commands.as_ref().filter(|all| all.capacity() > RESERVED)
        else {
            return;
        };
        let mut frames = Vec::new();
        match Encoder::<ParentEnd>::default().frame(message, &mut frames) {
            Ok(()) => drop(commands.try_send(Command { event, frames })),
            Err(error) => tracing::error!(target: "delegate::run", %error, "no frame"),
        }
    }

    /// Asks it what it is doing, looks at it from outside, writes both down.
    pub(super) fn diagnose(&mut self, index: u32) {
        let owed = Owed::or_else(&self.sender, Incoming::Diagnosed(index, None));
        self.say(index, &ParentMessage::Dump, None);
        let (Some(active), Some(facts)) = (self.active.get(&index), self.monitor.facts(index))
        else {
            return;
        };
        let Some(expired) = facts.expired else { return };
        let Some(folder) = self.batch.store.child_dir(self.batch.run, index) else { return };
        let began = facts.started_at.unwrap_or_default();
        let pulse = active.shared.pulse.borrow();
        let quiet_for = facts.quiet_for.unwrap_or_default();
        let heartbeat = self.batch.plan.settings.heartbeat_interval;
        let mut diagnostic = Diagnostic {
            spec: self.batch.plan.spec(index as usize),
            isolation: self.batch.launcher.isolation().word(),
            pid: facts.pid,
            expired,
            ran: self.clock.now().saturating_sub(began),
            quiet_for,
            liveness: Liveness::of(pulse.activity().reports, quiet_for, heartbeat).word(),
            activity: pulse.describe(self.batch.plan.settings.max_iterations),
            own_word: None,
        };
        drop(pulse);
        let shared = std::rc::Rc::clone(&active.shared);
        tokio::task::spawn_local(async move {
            // A worker that does not answer is looked at from outside all the same.
            let answer = tokio::time::timeout(OWN_WORD, shared.answered.notified()).await;
            if answer.is_ok() {
                diagnostic.own_word = shared.own_word.take();
            }
            let work = tokio::task::spawn_blocking(move || diagnostic.write(&folder));
            let path = match work.await {
                Ok(Ok(path)) => Some(path),
                Ok(Err(error)) => {
                    tracing::warn!(target: "delegate::run", %error, "no diagnostic was written");
                    None
                }
                Err(error) => {
                    tracing::error!(target: "delegate::run", %error, "the diagnostic panicked");
                    None
                }
            };
            owed.pay(Incoming::Diagnosed(index, path));
        });
    }

    /// Pauses one child, or lets it go on.
    pub(super) fn hold(&mut self, index: u32, held: bool) {
        self.look_at(index);
        self.step(monitor::Event::Hold(index, held));
    }

    /// Its processes stand still, or go on; while the whole batch is paused they stand still either way.
    pub(super) fn stand_still(&mut self, index: u32, still: bool) {
        let Some(active) = self.active.get_mut(&index) else { return };
        active.stopped = still;
        match (active.handle.as_ref().filter(|_| !self.paused), still) {
            (Some(handle), true) => handle.pause(),
            (Some(handle), false) => handle.resume(),
            (None, _) => {}
        }
        active.delegations.pause(self.paused || still, self.launches_held);
    }
}
