//! Runs a scope's release command: read from the memfd in which the owner sealed it, and started as any
//! child is, with a row of its own.

use std::os::fd::AsFd;
use std::time::Duration;

use super::Loop;
use crate::containment::Containment;
use crate::exit::Released;
use crate::line;
use crate::protocol::{Command, Failure, Image, Order};
use crate::registry::ScopeId;
use crate::spawn::{Leftovers, Phase};
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::table::{Flag, Stage};

/// Variable in a release command's environment: the number of the child that it releases.
const CHILD: &str = "OWNERSHIP_PID";

impl Loop {
    pub(super) fn release(&mut self, scope: ScopeId, of: ScopeId) -> Event {
        self.die_at("releasing");
        let failed =
            |errno| Event::Failed { scope, failure: Failure { phase: Phase::Setup, errno } };
        let pid = self.row(of).map_or(0, |slot| self.table.pid(slot));
        let sealed = self.commands.get(&of).and_then(|memfd| line::read_sealed(memfd.as_fd()));
        let Some(command) = sealed.and_then(|bytes| Command::decode(&bytes)) else {
            return failed(libc::ENODATA);
        };
        let Some(slot) = self.claim(scope) else { return failed(libc::EAGAIN) };
        self.table.flag(slot, Flag::Releases, true);
        let started = self.launch(scope, slot, &order(command, pid), &[], None);
        self.die_at("released");
        started
    }

    /// Noted where it survives us, and before its process is reaped: it is not run again.
    pub(super) fn released(&mut self, scope: ScopeId, by: Option<ScopeId>, released: Released) {
        if let Some(slot) = self.row(scope) {
            self.table.set_released(slot, released);
        }
        if let Some(slot) = by.and_then(|by| self.row(by)) {
            self.table.advance(slot, Stage::Dead);
        }
        self.die_at("after-release");
    }
}

fn order(command: Command, child: Pid) -> Order {
    let Command { argv, mut env } = command;
    env.retain(|entry| !entry.starts_with(format!("{CHILD}=").as_bytes()));
    env.push(format!("{CHILD}={child}").into_bytes());
    Order {
        id: 0,
        image: Image::Named(argv.first().cloned().unwrap_or_default()),
        argv,
        env,
        dir: None,
        fds: Vec::new(),
        line: None,
        template: None,
        grace: Duration::ZERO,
        leftovers: Leftovers::Kill,
        release: None,
        containment: Containment::Auto,
        joins: None,
        ration: crate::ration::Ration::default(),
    }
}
