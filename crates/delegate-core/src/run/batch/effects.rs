//! What the loop does: carries out the [`crate::monitor`]'s effects on launchers, lines and the store.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use delegate_protocol::codec;
use delegate_protocol::envelope::Identity;
use delegate_protocol::frame::{Encoder, PART};
use delegate_protocol::value::Bytes;
use delegate_protocol::{Event, FrameError, Isolation, ParentEnd, ParentMessage, TaskSpec};
use tokio::sync::{Notify, mpsc, watch};
use tracing::Instrument;

use super::owed::{Owed, send};
use super::{Active, Incoming, Loop};
use crate::collect::{self, Said, Subject, budget};
use crate::file_state::registry::Who;
use crate::launch::{Launch, Launched, StartFailure, limits};
use crate::lease;
use crate::monitor::{CancelReason, Facts, Input};
use crate::report::LeftRunning;
use crate::run::child_io::{COMMANDS, ChildIo, Command};
use crate::run::crash::{self, Place};
use crate::run::finalise::{Finalise, Left, OwnTree};
use crate::run::hooks::Stopped;
use crate::run::journal::Journal;
use crate::run::mentions::Mentions;
use crate::run::{line, manifest};
use crate::store::{Log, spill};
use crate::tree;
use crate::worktree::NoWorktree;

impl Loop {
    pub(super) fn launch(&mut self, index: u32) {
        self.tell_requested(index);
        let place = self.places.pop();
        let refused = if place.is_none() { self.refused() } else { None };
        let task = &self.batch.plan.tasks[index as usize];
        let wake = Arc::new(Notify::new());
        let sender = self.sender.clone();
        let waked = Arc::clone(&wake);
        let child = self.batch.plan.subagent_id(index as usize);
        let admission = self.batch.keys.admission(child, self.batch.kin.branch());
        let lease = lease::batch::slot();
        let slot = Arc::downgrade(&lease);
        let launch = Launch {
            agent: task.agent().to_owned(),
            purpose: task.goal().chars().take(60).collect(),
            terminate_grace: self.batch.plan.settings.terminate_grace,
            containment: self.batch.plan.settings.containment,
            ration: self.batch.plan.settings.ration,
            sink: Arc::new(move |event| send(&sender, Incoming::System(index, event))),
            waker: Arc::new(move || waked.notify_waiters()),
            again: None,
        };
        self.active.insert(
            index,
            Active {
                child,
                lease,
                begun: Arc::default(),
                over: watch::Sender::new(false),
                wake,
                commands: None,
                handle: None,
                how: None,
                start_failure: refused.clone(),
                said: None,
                settling: false,
                shared: Rc::default(),
                stopped: false,
                diagnostic: None,
                place,
                over_budget: None,
                reached: ownership::Reached::default(),
                delegations: super::nested::Delegations::default(),
            },
        );
        if refused.is_some() {
            return self.child_step(index, Input::LaunchFailed);
        }
        let transcript = self.live_transcript(index);
        self.note_in_manifest(index, "running", transcript.as_deref());
        let who = self.who(index);
        self.batch.common.files.enter(who, self.batch.common.caller.clone());
        let (launcher, trees) = (self.batch.launcher.clone(), self.batch.common.trees.clone());
        let failure = StartFailure {
            phase: "launch".to_owned(),
            errno: None,
            path: None,
            detail: "its launcher panicked".to_owned(),
        };
        let owed = Owed::or_else(&self.sender, Incoming::Launched(index, Err(failure)));
        // A start may block (a hung file system below the program): not on the thread that watches
        // deadlines.
        tokio::task::spawn_blocking(move || {
            let place = trees.map_or(Ok(()), |trees| trees.make(index));
            let launched = match place {
                Ok(()) => {
                    if let Some((keys, admission)) = admission {
                        lease::batch::keep(keys.admit(admission), &slot);
                    }
                    launcher.launch(launch)
                }
                Err(why) => Err(no_worktree(why)),
            };
            owed.pay(Incoming::Launched(index, launched));
        });
    }

    pub(super) fn launched(&mut self, index: u32, launched: Launched) {
        if !self.monitor.awaits_launch(index) {
            // It was given up; dropping it ends it.
            if let Some(trees) = self.batch.common.trees.clone() {
                tokio::task::spawn_blocking(move || drop(trees.end(index, None)));
            }
            return;
        }
        let (journal, requested) = (self.journal(index), self.requested(index));
        let files = self.mentions(index);
        let Some(active) = self.active.get_mut(&index) else { return };
        let Launched { pid, how, handle, line, output, page } = launched;
        if self.paused || active.stopped {
            handle.pause();
        }
        active.handle = Some(handle);
        active.how = Some(how);
        active.shared.page.set(page);
        let result_file = self.batch.store.result_file(self.batch.run, index);
        let limit = self.batch.plan.settings.max_result_bytes;
        match line::split(line, &active.wake) {
            Ok((reader, writer)) => {
                let (commands, receiver) = mpsc::channel(COMMANDS);
                active.commands = Some(commands);
                let io = ChildIo {
                    child: active.child,
                    requested,
                    reader,
                    writer,
                    output,
                    commands: receiver,
                    over: active.over.subscribe(),
                    begun: Arc::clone(&active.begun),
                    outlet: self.batch.outlet.clone(),
                    account: active.place.as_ref().map(tree::Place::account),
                    journal,
                    answer: spill::Answer::new(result_file, limit),
                    clock: self.clock.clone(),
                    shared: Rc::clone(&active.shared),
                    control: Arc::clone(&self.batch.control),
                    files,
                };
                let sender = self.sender.clone();
                let span =
                    tracing::info_span!(target: "delegate::run", "child", id = %active.child, pid);
                let panicked =
                    Said { cut: Some("its reader panicked".to_owned()), ..Said::default() };
                let owed = Owed::or_else(&sender, Incoming::Over(index, Box::new(panicked)));
                let io = async move {
                    let said = io.run(|told| send(&sender, Incoming::Told(index, told))).await;
                    owed.pay(Incoming::Over(index, said));
                };
                tokio::task::spawn_local(io.instrument(span));
                self.child_step(index, Input::Launched { pid });
            }
            Err(error) => {
                self.child_step(index, Input::Launched { pid });
                self.child_step(index, Input::Violation(format!("its line: {error}")));
                self.io_ended(index, Box::default());
            }
        }
    }

    pub(super) fn begin(&mut self, index: u32) {
        let mut spec = self.batch.plan.spec(index as usize);
        let Some(active) = self.active.get_mut(&index) else { return };
        self.batch.keys.put_into(&mut spec.routing, active.lease.get());
        let pid = self.monitor.facts(index).and_then(|facts| facts.pid);
        let start = Event::Start { child: active.child, goal: spec.goal.clone(), pid };
        self.batch.outlet.push(start.clone());
        active.begun.store(true, Ordering::Release);
        match begin_frames(spec) {
            Ok(frames) => {
                active.command(Command { event: Some(start), frames });
                self.steer(index);
            }
            // The plan has checked it; then the child waits in vain and its limit ends it.
            Err(error) => {
                tracing::error!(target: "delegate::run", %error, "a spec is not sendable")
            }
        }
    }

    pub(super) fn interrupt(&mut self, index: u32) {
        if let Some(active) = self.active.get_mut(&index) {
            active.shared.page.interrupt();
            let mut frames = Vec::new();
            match Encoder::<ParentEnd>::default().frame(&ParentMessage::Interrupt, &mut frames) {
                Ok(()) => active.command(Command { event: None, frames }),
                Err(error) => {
                    tracing::error!(target: "delegate::run", %error, "no interrupt frame")
                }
            }
        }
        // Itself first: else it may hear how those below it ended, and go on.
        self.stop_below(index, CancelReason::Interrupt);
    }

    pub(super) fn terminate(&mut self, index: u32, grace: Duration) {
        let reason = if grace.is_zero() { CancelReason::Kill } else { CancelReason::Interrupt };
        self.stop_below(index, reason);
        if let Some(handle) = self.active.get(&index).and_then(|active| active.handle.as_ref()) {
            handle.end(grace);
        }
    }

    /// Folds what is known into the outcome and stores it; waits for the I/O of a child that was
    /// given up.
    pub(super) fn settle(&mut self, index: u32) {
        let Some(facts) = self.monitor.facts(index).cloned() else { return };
        let launched = facts.launched_at.is_some();
        let active = self.active.get_mut(&index);
        let said = match active {
            Some(active) if launched => {
                let Some(said) = active.said.take() else {
                    active.settling = true;
                    active.over.send_replace(true);
                    return;
                };
                said
            }
            _ => Box::default(),
        };
        self.note_what_is_left(index, &facts);
        let subject = self.subject(index, launched);
        // A task that was stopped before its turn leaves no folder: a long line may be stopped at once.
        let kept = launched || subject.start_failure.is_some();
        let below = subject
            .subtree
            .as_ref()
            .map(|below| (collect::cost::Spending::below(below), below.children));
        let own = collect::own_spending(&said);
        let outcome = collect::outcome(subject, &facts, *said);
        self.count(own, below);
        let account = self.active.get(&index).and_then(|active| active.place.as_ref());
        if let Some(account) = account.map(tree::Place::account) {
            account.settle(own.tokens, own.cost_usd);
        }
        self.statuses[index as usize] = outcome.status;
        let trace = if self.hooks.is_some() { outcome.tool_trace.clone() } else { Vec::new() };
        let transcript = outcome.live_transcript.as_deref();
        self.note_in_manifest(index, outcome.status.word(), transcript);
        let complete = collect::complete(&outcome);
        let child = self.batch.plan.subagent_id(index as usize);
        let requested = (!launched).then(|| self.requested(index));
        let event = Event::Complete { child, end: complete.clone() };
        self.completes.insert(index, (complete, trace));
        let (journal, run) = (self.journal(index), self.batch.run);
        let owed = Owed::or_else(&self.sender, Incoming::Recorded(index, false));
        let (now, finalise) = (self.clock.now(), self.finalise(index, &facts));
        tokio::task::spawn_local(async move {
            crash::reach(Place::Settle);
            for event in requested.iter().chain([&event]) {
                if kept {
                    journal.event(event, now).await;
                } else {
                    journal.show(event, now);
                }
            }
            let stored = move |durable| {
                crash::reach(Place::Stored);
                owed.pay(Incoming::Recorded(index, durable));
            };
            crash::reach(Place::Outcome);
            if let Some(outcome) = finalise.carry_out(outcome).await {
                journal.store.put_outcome(run, outcome, stored);
            }
        });
    }

    /// What can be followed of a child: the file that whoever built it has named, else its events.
    fn live_transcript(&self, index: u32) -> Option<PathBuf> {
        let events = || {
            let folder = self.batch.store.child_dir(self.batch.run, index)?;
            Some(folder.join(Log::Events.file_name()))
        };
        self.batch.plan.live_transcript(index as usize).or_else(events)
    }

    fn note_in_manifest(&self, index: u32, status: &str, live_transcript: Option<&Path>) {
        let subagent_id = self.batch.plan.subagent_id(index as usize);
        let line =
            manifest::Line::Child { task_index: index, subagent_id, status, live_transcript };
        manifest::write(&self.batch.store, self.batch.run, self.clock.now(), &line);
    }

    fn finalise(&self, index: u32, facts: &Facts) -> Finalise {
        let (who, jobs) = (self.who(index), &self.batch.common.jobs);
        let jobs = jobs.knows(&who).then(|| Left {
            jobs: jobs.clone(),
            files: self.batch.common.files.clone(),
            who: who.clone(),
        });
        // With jobs it may still write until those are gone.
        let stale = match &jobs {
            Some(_) => Vec::new(),
            None => self.batch.common.files.leave(&who, SystemTime::now()),
        };
        let alive = may_be_alive(facts);
        let worktree = self.batch.common.trees.clone().map(|trees| OwnTree { trees, index, alive });
        let (plan, store) = (&self.batch.plan, &self.batch.store);
        let cap = budget::cap(plan.summary_ceiling(), plan.headroom(), plan.tasks.len() as u64);
        Finalise {
            schema: plan.output_schema(index as usize),
            cap,
            folder: store.child_dir(self.batch.run, index),
            stale,
            jobs,
            worktree,
        }
    }

    fn subject(&mut self, index: u32, launched: bool) -> Subject {
        let mut active = self.active.get_mut(&index);
        let subtree = active.as_mut().and_then(|active| active.delegations.take_spent());
        let reached = active.as_ref().map(|active| active.reached).unwrap_or_default();
        let over_budget = active.as_mut().and_then(|active| active.over_budget.take());
        let (start_failure, diagnostic, how) = active
            .map_or((None, None, None), |a| (a.start_failure.take(), a.diagnostic.take(), a.how));
        let kept = launched || start_failure.is_some();
        let live_transcript = self.live_transcript(index).filter(|_| kept);
        let (plan, store) = (&self.batch.plan, &self.batch.store);
        let task = &plan.tasks[index as usize];
        let logs = kept.then(|| store.child_dir(self.batch.run, index)).flatten();
        Subject {
            missed: self.batch.control.missed(index),
            subtree,
            over_budget,
            reached,
            ration: self.batch.plan.settings.ration,
            task_index: index,
            isolation: self.batch.launcher.isolation(),
            launcher: how.filter(|_| launched),
            limit: plan.timeout(index as usize),
            limit_place: task.timeout_origin().map(ToString::to_string),
            start_limit: plan.settings.start_timeout,
            logs,
            start_failure,
            diagnostic,
            live_transcript,
        }
    }

    /// How its processes were started, and where it came otherwise than decided.
    pub(super) fn launching(&self) -> Vec<String> {
        let plan = &self.batch.plan;
        let decided = plan.launching.as_ref();
        let decided = decided.map(|(launching, why)| format!("{}: {why}", launching.word()));
        let agents: std::collections::BTreeSet<&str> =
            plan.tasks.iter().map(crate::plan::Task::agent).collect();
        let remarks = self.batch.launcher.remarks(agents);
        let held = match self.batch.launcher.isolation() {
            Isolation::Process => {
                limits::sentences(plan.settings.ration, plan.settings.containment)
            }
            Isolation::Thread => Vec::new(),
        };
        decided.into_iter().chain(remarks).chain(held).collect()
    }

    fn note_what_is_left(&mut self, index: u32, facts: &Facts) {
        if facts.abandoned {
            self.left_running.push(LeftRunning {
                task_index: index,
                pid: None,
                name: "thread".to_owned(),
                why: "a thread cannot be ended, and this one did not return".to_owned(),
            });
        }
        if facts.start_timeout && facts.launched_at.is_none() {
            self.unverified.push(format!("task {index}: its launch did not return"));
        }
        if facts.lost {
            self.unverified.push(format!("task {index}: its supervisor is gone"));
        }
        for process in facts.emptied.iter().flat_map(|emptied| &emptied.left) {
            self.left_running.push(LeftRunning {
                task_index: index,
                pid: Some(process.pid),
                name: process.name.clone(),
                why: "it waits in the kernel and takes no signal yet".to_owned(),
            });
        }
    }

    pub(super) fn announce(&mut self, index: u32) {
        self.tell_requested(index);
        // Its handle goes with it: nothing of the child is left to end.
        drop(self.active.remove(&index));
        if let Some((end, tool_trace)) = self.completes.remove(&index) {
            let child = self.batch.plan.subagent_id(index as usize);
            self.batch.outlet.push(Event::Complete { child, end: end.clone() });
            if let Some(hooks) = &self.hooks {
                let identity = Identity::of(&self.batch.plan.spec(index as usize));
                hooks.stop(child, Stopped { identity, end, tool_trace });
            }
        }
    }

    pub(super) fn who(&self, index: u32) -> Who {
        Who::Child(self.batch.plan.subagent_id(index as usize))
    }

    fn mentions(&self, index: u32) -> Mentions {
        let cwd = self.batch.plan.spec(index as usize).cwd;
        let base = cwd.or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| "/".into());
        Mentions { state: self.batch.common.files.clone(), who: self.who(index), base }
    }

    pub(super) fn journal(&self, task_index: u32) -> Journal {
        let (store, run) = (self.batch.store.clone(), self.batch.run);
        let feed = Arc::clone(&self.batch.control.feed);
        Journal { store, run, task_index, feed, lost: Rc::default() }
    }
}

impl Active {
    /// Whether it waits for children of its own.
    pub(super) fn waits(&self) -> bool {
        self.delegations.waits()
    }

    fn command(&self, command: Command) {
        let Some(commands) = &self.commands else { return };
        if let Err(error) = commands.try_send(command) {
            tracing::debug!(target: "delegate::run", %error, "a child that is over is told nothing");
        }
    }
}

fn no_worktree(why: NoWorktree) -> StartFailure {
    StartFailure { phase: "worktree".to_owned(), errno: None, path: None, detail: why.why }
}

/// Why a child that has its outcome may still do something, if it may.
fn may_be_alive(facts: &Facts) -> Option<&'static str> {
    if facts.abandoned {
        return Some("its thread did not return, and may still work in it");
    }
    if facts.lost {
        return Some("its supervisor is gone, so it is not known what still works in it");
    }
    let left = facts.emptied.as_ref().is_some_and(|emptied| !emptied.left.is_empty());
    left.then_some("a process of it could not be ended yet")
}

/// `Begin` in one frame, or in parts when it is over the cap.
fn begin_frames(spec: TaskSpec) -> Result<Vec<u8>, FrameError> {
    let encoder = Encoder::<ParentEnd>::default();
    let mut frames = Vec::new();
    let begin = ParentMessage::Begin(Box::new(spec));
    match (encoder.frame(&begin, &mut frames), begin) {
        (Err(FrameError::Oversized { .. }), ParentMessage::Begin(spec)) => {
            for part in codec::to_bytes(&*spec)?.chunks(PART) {
                let part = ParentMessage::SpecPart(Bytes(part.to_vec()));
                encoder.frame(&part, &mut frames)?;
            }
            encoder.frame(&ParentMessage::BeginFromParts, &mut frames)?;
            Ok(frames)
        }
        (written, _) => written.map(|()| frames),
    }
}
