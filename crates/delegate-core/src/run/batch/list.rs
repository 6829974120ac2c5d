//! What the loop tells of its children, and hands on to them, on request.

use super::Loop;
use crate::monitor::Phase;
use crate::run::live::{List, LiveChild};

impl Loop {
    /// Sends on what steers a child. One that has no task yet gets it behind the task.
    pub(super) fn steer(&self, index: u32) {
        let Some(active) = self.active.get(&index) else { return };
        if !active.begun.load(std::sync::atomic::Ordering::Acquire) {
            return;
        }
        active.shared.steers.borrow_mut().extend(self.batch.control.send(index));
        active.shared.steered.notify_one();
    }

    /// Has the child of a session end its turns up to this one; it says so once to one worker.
    pub(super) fn stop_turns(&self, up_to: u64) {
        if let Some(active) = self.active.get(&0)
            && active.shared.stopped_turn.replace(up_to) < up_to
        {
            active.shared.steered.notify_one();
        }
    }

    pub(super) fn list(&mut self) -> List {
        let mut active: Vec<u32> = self.monitor.active().collect();
        active.sort_unstable();
        for index in &active {
            self.look_at(*index);
        }
        let children: Vec<_> = active.iter().filter_map(|index| self.describe(*index)).collect();
        let waiting = self.monitor.waiting();
        List {
            ended: self.batch.plan.tasks.len() - waiting - children.len(),
            children,
            waiting,
            line: self.line(),
            launches_paused: self.launches_held,
        }
    }

    fn describe(&self, index: u32) -> Option<LiveChild> {
        let facts = self.monitor.facts(index)?;
        let phase = self.monitor.phase(index)?;
        let active = self.active.get(&index);
        let spec = self.batch.plan.spec(index as usize);
        let now = self.clock.now();
        let held = self.paused || active.is_some_and(|active| active.stopped);
        let state = match phase {
            Phase::Launching | Phase::Greeting => "starting",
            Phase::Running if held => "paused",
            Phase::Running if active.is_some_and(|active| active.waits()) => "waiting",
            Phase::Running => "running",
            Phase::Diagnosing | Phase::Interrupting | Phase::Terminating => "stopping",
            Phase::Draining | Phase::Settling | Phase::Ended => "ending",
        };
        let (accepts_steer, steers_waiting) = self.batch.control.steering(index);
        let pulse = active.map(|active| active.shared.pulse.borrow());
        let seconds = |time: std::time::Duration| time.as_secs_f64();
        Some(LiveChild {
            child: spec.subagent_id,
            task_index: index,
            goal: spec.goal,
            agent: spec.agent,
            state: state.to_owned(),
            session_id: spec.session_id,
            parent_id: spec.parent_subagent_id,
            depth: spec.child_depth,
            delegation_id: spec.delegation_id,
            model: spec.routing.model,
            pid: facts.pid,
            running_seconds: facts.started_at.map(|at| seconds(now.saturating_sub(at))),
            quiet_seconds: self.monitor.watch(index).map(|watch| seconds(watch.quiet_for(now))),
            api_calls: pulse.as_ref().map_or(0, |pulse| pulse.activity().api_calls),
            tool: pulse.as_ref().and_then(|pulse| pulse.tool().map(str::to_owned)),
            tool_count: pulse.as_ref().map_or(0, |pulse| pulse.tools().0),
            last_tool: pulse.as_ref().and_then(|pulse| pulse.tools().1.map(str::to_owned)),
            accepts_steer,
            steers_waiting,
        })
    }
}
