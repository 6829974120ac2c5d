//! What a guard is to do, in order: the output of [`super::Supervisor::step`].

use std::os::fd::OwnedFd;

use crate::exit::Released;
use crate::protocol::{Adopted, Order, Reply, Request};
use crate::registry::ScopeId;
use crate::sys::Pid;

/// What to do.
#[derive(Debug)]
pub(crate) enum Effect {
    Spawn {
        scope: ScopeId,
        order: Box<Order>,
        fds: Vec<OwnedFd>,
    },
    /// Run the release command of one scope as another one, inside it.
    Release {
        scope: ScopeId,
        of: ScopeId,
    },
    /// Note what became of it, and that the scope in which it was run is dead.
    Released {
        scope: ScopeId,
        by: Option<ScopeId>,
        released: Released,
    },
    /// Make a line for a scope without a process, and keep our end.
    OpenLine {
        scope: ScopeId,
    },
    /// Say it on this line. `about` is the scope that it tells of, and whose pidfd or line it carries.
    Reply {
        line: ScopeId,
        reply: Reply,
        about: Option<ScopeId>,
    },
    /// TERM and CONT to the group of the root.
    Terminate {
        scope: ScopeId,
    },
    /// TERM and CONT to members that had none yet; comes back as [`super::Event::Found`].
    Walk {
        scope: ScopeId,
    },
    /// Stop, then KILL, all members of these.
    Kill {
        scopes: Vec<ScopeId>,
    },
    /// See who stands in it and in what is inside; comes back as [`super::Event::Left`].
    Survey {
        scope: ScopeId,
    },
    Pause {
        scopes: Vec<ScopeId>,
    },
    Resume {
        scope: ScopeId,
    },
    /// The child may be reaped: everything that it left is recorded.
    Reap {
        pid: Pid,
    },
    /// Nothing more comes from this scope: close its line.
    Forget {
        scope: ScopeId,
    },
    /// What the owner hands over is no child of ours: note it, and watch its root by this handle.
    Watch {
        scope: ScopeId,
        handle: Option<OwnedFd>,
        /// Its release command.
        command: Option<OwnedFd>,
    },
    /// Hold a group that something else started by the handle of its leader.
    Adopt {
        scope: ScopeId,
        group: Adopted,
        handle: OwnedFd,
    },
    /// Note that it is let go once nobody in it lives, and see who does; comes back as [`super::Event::Left`] or
    /// [`super::Event::Vanished`].
    LetGoOnceEmpty {
        scope: ScopeId,
    },
    /// Look for processes whose mark names a scope that nobody knows; comes back as [`super::Event::Strays`].
    FindStrays,
    /// It is about a scope that must be the other guard's.
    Relay {
        request: Request,
    },
    /// Tell the owner's next program what lives.
    Recount {
        number: u64,
    },
    /// Stop listening to the owner, tell it, and go.
    Leave,
    /// Go: the owner is gone and nothing is left.
    Exit,
}
