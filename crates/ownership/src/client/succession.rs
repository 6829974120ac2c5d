//! What the asking side does when a guard is replaced, or both are.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::{Client, Wanted, lock};
use crate::child::{Child, Packed, Terms};
use crate::connection::Connection;
use crate::exit::ChildEvent;
use crate::hook;
use crate::protocol::Request;

/// How often guards are started anew before their children are given up: who kills them may go on for a
/// while.
const STARTS: usize = 10;

/// For tests only: milliseconds before others are told of whom they take over.
const TEST_SLOW: &str = "OWNERSHIP_TEST_SLOW_HAND_OVER";

/// A question to a new guard, while it is not answered.
pub(super) struct Resync {
    number: u64,
    /// What was unanswered when it was asked.
    unanswered: Vec<Arc<Child>>,
    /// Where those go that still are when the answer comes.
    tell: Sender<Vec<Arc<Packed>>>,
}

impl Client {
    /// Another guard serves the line. What was asked before is asked again if it was lost, by a thread of
    /// its own: the reader must not wait for room on the line.
    pub(super) fn replaced(
        self: &Arc<Self>,
        line: &Arc<Connection>,
        generation: u32,
        guards: Vec<OwnedFd>,
    ) {
        tracing::warn!(generation, "a guard was replaced; its children live on");
        line.served_by(guards);
        if hook::is_off("resync") {
            return;
        }
        let (tell, told) = channel();
        let number = u64::from(generation);
        {
            let mut state = lock(&self.state);
            state.generation = state.generation.max(generation);
            // Whoever waits for an earlier answer stops waiting.
            state.resync = Some(Resync { number, unanswered: Vec::new(), tell });
        }
        let (client, line) = (Arc::clone(self), Arc::clone(line));
        let resync = move || {
            line.resync(number, || client.note_unanswered(number));
            client.say_what_is_wanted(&line);
            for request in told.recv().unwrap_or_default() {
                line.settle_start();
                line.start(&request);
            }
        };
        let thread = std::thread::Builder::new().name("ownership-resync".into());
        if let Err(error) = thread.spawn(resync) {
            tracing::error!(%error, "no thread to ask again with: unanswered starts wait");
        }
    }

    /// Whatever was sent before the question and is unanswered was lost. From here on it counts as not sent:
    /// the next question, to the next guard, is not about it.
    pub(super) fn resynced(&self, number: u64) {
        let resync = lock(&self.state).resync.take_if(|resync| resync.number == number);
        let Some(Resync { unanswered, tell, .. }) = resync else { return };
        let lost: Vec<_> = unanswered.iter().filter_map(|child| child.pending()).collect();
        for request in &lost {
            request.mark_unsent();
        }
        // Fails when another guard has said hello meanwhile: the next question covers it.
        drop(tell.send(lost));
    }

    /// Children whose request was sent and not answered, in the order of their numbers.
    fn note_unanswered(&self, number: u64) {
        let mut state = lock(&self.state);
        let sent = |child: &Arc<Child>| child.pending().is_some_and(|request| request.was_sent());
        let mut children: Vec<_> =
            state.children.values().filter(|child| sent(child)).cloned().collect();
        children.sort_by_key(|child| child.id);
        if let Some(resync) = state.resync.as_mut().filter(|resync| resync.number == number) {
            resync.unanswered = children;
        }
    }

    /// What was said to a guard that died may not have been done. Saying it twice changes nothing.
    fn say_what_is_wanted(&self, line: &Connection) {
        let children: Vec<_> = lock(&self.state).children.values().cloned().collect();
        for child in children {
            say_wishes(line, &child);
        }
    }

    /// Both guards died. Others are started, and what they had started is handed to them: roots by their
    /// handles, the rest by what stands below and by its mark.
    pub(super) fn hand_over(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.forget_line();
        if state.children.is_empty() {
            return;
        }
        tracing::warn!(children = state.children.len(), "both guards died; others take over");
        let line = (0..STARTS).find_map(|_| self.line(&mut state).ok());
        let mut children: Vec<_> = state.children.values().cloned().collect();
        state.handing_over = line.is_some();
        drop(state);
        let Some(line) = line else { return self.lose_all() };
        if let Some(time) = hook::setting(TEST_SLOW).and_then(|text| text.parse().ok()) {
            std::thread::park_timeout(Duration::from_millis(time));
        }
        children.sort_by_key(|child| child.id);
        for child in &children {
            self.hand_child_over(&line, child);
        }
        lock(&self.state).handing_over = false;
        self.handed_over.notify_all();
        // A start that was not answered may have been done: whatever it led to is ended before it is
        // asked for again.
        line.tell(&Request::EndStrays, Vec::new());
        self.say_what_is_wanted(&line);
        for request in children.iter().filter_map(|child| child.pending()) {
            line.start(&request);
        }
    }

    fn hand_child_over(&self, line: &Connection, child: &Arc<Child>) {
        if child.pending().is_some() {
            return;
        }
        let Terms { grace, leftovers, release, group, containment: _, ration: _ } = &child.terms;
        let (id, grace, leftovers) = (child.id, *grace, *leftovers);
        let command =
            release.as_ref().and_then(|(fd, deadline)| Some((fd.try_clone().ok()?, *deadline)));
        let (command, release) = command.unzip();
        let foster =
            |scope, pid, kept| Request::Foster { id, scope, pid, grace, leftovers, release, kept };
        if let Some((pid, scope)) = child.kept() {
            return line.tell(&foster(scope, pid, true), command.into_iter().collect());
        }
        let held = child.running().and_then(|running| {
            let handle = running.handle.try_clone().ok()?;
            Some(match *group {
                Some(group) => (Request::Adopt { id, group, grace }, handle),
                None => (foster(running.scope, running.pid, false), handle),
            })
        });
        match held {
            Some((request, handle)) => {
                line.tell(&request, [handle].into_iter().chain(command).collect());
            }
            // A scope without a process was nothing but its line.
            None => {
                lock(&self.state).children.remove(&child.id);
                child.tell(ChildEvent::Lost);
            }
        }
    }
}

/// Says what is wanted of a child at the moment at which it is said. An end comes last: what is to end must
/// not be stopped after that.
pub(super) fn say_wishes(line: &Connection, child: &Child) {
    let id = child.id;
    line.tell_each(|| {
        let Wanted { end, paused, disown } = child.want(|_| ());
        let disown = disown.map(|once_empty| Request::Disown { id, once_empty });
        let paused = paused.map(|paused| match paused {
            true => Request::Pause { id },
            false => Request::Resume { id },
        });
        let end = end.map(|grace| Request::End { id, grace });
        disown.into_iter().chain(paused).chain(end).collect()
    });
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
