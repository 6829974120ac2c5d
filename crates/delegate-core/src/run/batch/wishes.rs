//! What the loop does about the wishes of whoever holds the run ([`crate::run::control`]).

use delegate_protocol::SubagentId;

use super::Loop;
use crate::launch::Handle;
use crate::monitor;

impl Loop {
    pub(super) fn obey(&mut self) {
        let wanted = self.batch.control.take();
        if wanted.suspended != self.paused {
            self.paused = wanted.suspended;
            // What was done before the pause is not taken for something in it.
            for index in self.monitor.active().collect::<Vec<_>>() {
                self.look_at(index);
            }
            let handles = self.active.values().filter(|active| !active.stopped);
            let handles = handles.filter_map(|active| active.handle.as_ref());
            if self.paused {
                handles.for_each(Handle::pause);
                self.step(monitor::Event::Pause);
            } else {
                handles.for_each(Handle::resume);
                self.step(monitor::Event::Resume);
            }
            self.share_pause();
        }
        if let Some(reason) = wanted.all {
            self.step(monitor::Event::CancelAll(reason));
        }
        for (child, by) in wanted.extensions {
            if let Some(index) = self.index_of(child) {
                self.look_at(index);
                self.step(monitor::Event::Extend(index, by));
            }
        }
        let held = wanted.launches_held || wanted.in_line;
        if held != self.launches_held {
            self.launches_held = held;
            self.step(monitor::Event::Launches(!held));
            self.share_pause();
        }
        for index in self.batch.control.unsent() {
            self.steer(index);
        }
        self.stop_turns(wanted.stopped_turn);
        for (child, held) in wanted.holds {
            if let Some(index) = self.index_of(child) {
                self.hold(index, held);
            }
        }
        for (child, reason) in wanted.stops {
            if let Some(index) = self.index_of(child) {
                self.step(monitor::Event::Cancel(index, reason));
            }
        }
        for question in self.batch.control.questions() {
            // Who asked may be gone.
            drop(question.send(self.list()));
        }
        self.batch.control.applied();
    }

    pub(super) fn index_of(&self, child: SubagentId) -> Option<u32> {
        let (index, plan) = (child.task_index(), &self.batch.plan);
        let known = (index as usize) < plan.tasks.len();
        (known && plan.subagent_id(index as usize) == child).then_some(index)
    }

    /// What children have delegated stands still with them, or goes on.
    pub(super) fn share_pause(&self) {
        for active in self.active.values() {
            active.delegations.pause(self.paused || active.stopped, self.launches_held);
        }
    }
}
