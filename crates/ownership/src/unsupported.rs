//! Systems without ownership: everything compiles, and asking is a clear error. Stands where
//! `client.rs` stands on Linux.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::containment::Containment;
use crate::exit::{ChildEvent, Emptied, Exit};
use crate::group::GroupError;
use crate::program::{Program, Stand};
use crate::spawn::{Phase, Spawn, SpawnError};

pub(crate) type OnEvent = Box<dyn FnMut(ChildEvent) + Send>;

#[derive(Debug)]
pub(crate) struct Client {}

/// There is none here.
#[derive(Debug)]
pub(crate) enum Child {}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pid: i32,
    pub(crate) fd: Arc<OwnedFd>,
}

fn unsupported() -> SpawnError {
    SpawnError {
        phase: Phase::Supervisor,
        errno: None,
        path: None,
        detail: "owned processes are not supported on this system".into(),
    }
}

impl Client {
    pub(crate) fn start(_program: Program, _args: Vec<OsString>, _stand: Stand) -> Arc<Self> {
        Arc::new(Self {})
    }

    pub(crate) fn given(_line: OwnedFd) -> Arc<Self> {
        Arc::new(Self {})
    }

    pub(crate) fn contain(&self, _containment: Containment) {}

    pub(crate) fn leave_stale(&self) {}

    #[expect(clippy::unused_self, reason = "as where there are guards")]
    pub(crate) fn no_scope(&self) -> Option<String> {
        None
    }

    pub(crate) fn spawn(
        self: &Arc<Self>,
        _id: u64,
        _spawn: Spawn,
        _on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        Err(unsupported())
    }

    pub(crate) fn prepare(self: &Arc<Self>) {}

    pub(crate) fn open(
        self: &Arc<Self>,
        _grace: Duration,
        _on_event: OnEvent,
    ) -> Result<(Arc<Child>, Answer), SpawnError> {
        Err(unsupported())
    }

    pub(crate) fn own_groups(self: &Arc<Self>, leaders: &[i32]) -> Result<(), GroupError> {
        match leaders.first() {
            Some(leader) => Err(GroupError { leader: *leader, detail: unsupported().detail }),
            None => Ok(()),
        }
    }

    pub(crate) fn release_groups(&self, _leaders: &[i32]) {}

    pub(crate) fn release_group_once_empty(&self, _leader: i32) {}

    pub(crate) fn mark(&self) -> (String, String) {
        ("OWNERSHIP_TAG".into(), String::new())
    }

    pub(crate) fn end(&self, child: &Child, _grace: Duration) {
        match *child {}
    }

    pub(crate) fn pause(&self, child: &Child) {
        match *child {}
    }

    pub(crate) fn resume(&self, child: &Child) {
        match *child {}
    }
}

impl Child {
    pub(crate) fn has_ended(&self) -> bool {
        match *self {}
    }

    pub(crate) fn wait_exit(&self) -> Option<Exit> {
        match *self {}
    }

    pub(crate) fn wait_empty(&self) -> Option<Emptied> {
        match *self {}
    }
}

pub(crate) fn run_keeper() -> ExitCode {
    ExitCode::from(2)
}

pub(crate) fn run_supervisor() -> ExitCode {
    ExitCode::from(2)
}

pub(crate) fn run_first() -> ExitCode {
    ExitCode::from(2)
}
