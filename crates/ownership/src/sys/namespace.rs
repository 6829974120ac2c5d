//! Pid namespaces: the process that is number 1 in a new one, and a child that is born in there while its parent, and
//! whoever waits for it, stays outside. For [`super::start`], and for [`crate::containment`] that tries it.
//!
//! ```text
//! supervisor ──► number 1          clone(NEWPID [, NEWUSER])
//!     │
//!     ├──► stage                   clone; setns to the namespace of number 1
//!     └──► the child               clone(PARENT, NEWNS) by the stage: ours, and inside; mounts /proc
//! ```
//!
//! The stage is there because entering counts for children that are made later, and entering a user namespace has no
//! way back. `CLONE_PARENT` makes its child ours, so that we have its number, its handle and its end as of any other.
#![expect(unsafe_code, reason = "clone, setns and mount, and what runs between clone and exec")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::start::{self, Failed, STACK_BYTES, Stack};
use super::{Pid, errno, into_cgroup, signal, wait};
use crate::containment::{NamespaceStep, NoNamespace};
use crate::spawn::{Joins, Phase};

/// How a start has to do with pid namespaces.
#[derive(Debug)]
pub(crate) enum Namespace<'a> {
    /// Is number 1 of a new one; with these maps of user and group where that stands in a new user namespace.
    First(Option<Maps>),
    /// Is born in the one of this process, which stands in a user namespace of its own or not.
    Inside { first: BorrowedFd<'a>, user: bool },
}

/// Our own user and group, as a user namespace is told them.
#[derive(Debug)]
pub(crate) struct Maps {
    user: CString,
    group: CString,
}

impl Maps {
    /// Everybody is who they are outside.
    pub(crate) fn own() -> Self {
        let map = |number: u32| CString::new(format!("{number} {number} 1")).unwrap_or_default();
        let user = map(rustix::process::geteuid().as_raw());
        Self { user, group: map(rustix::process::getegid().as_raw()) }
    }
}

/// What the clone of number 1 has beside the other flags.
pub(super) fn flags_of_first(maps: Option<&Maps>) -> i32 {
    libc::CLONE_NEWPID | if maps.is_some() { libc::CLONE_NEWUSER } else { 0 }
}

/// In number 1, first of all: who we are. Async-signal-safe.
pub(super) fn map(maps: &Maps) -> Result<(), i32> {
    // Without it, a group cannot be had by who has no right over groups outside.
    write(c"/proc/self/setgroups", c"deny").or_else(|errno| match errno {
        // Before Linux 3.19.
        libc::ENOENT => Ok(()),
        errno => Err(errno),
    })?;
    write(c"/proc/self/uid_map", &maps.user)?;
    write(c"/proc/self/gid_map", &maps.group)
}

/// Async-signal-safe.
fn write(path: &CStr, text: &CStr) -> Result<(), i32> {
    // SAFETY: a terminated path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(errno());
    }
    let text = text.to_bytes();
    // SAFETY: as many bytes as there are, to a descriptor that was just opened.
    let written = unsafe { libc::write(file, text.as_ptr().cast(), text.len()) };
    let failed = errno();
    // SAFETY: ours.
    unsafe { libc::close(file) };
    if written < 0 { Err(failed) } else { Ok(()) }
}

/// In a child inside, first of all: a `/proc` of its own numbers, which nobody outside sees. What is mounted outside
/// later comes in. Async-signal-safe.
pub(super) fn mount_proc() -> Result<(), i32> {
    let none = ptr::null::<libc::c_char>();
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: terminated strings; changes mounts of this process's own namespace.
    if unsafe { libc::mount(none, c"/".as_ptr(), none, flags, ptr::null()) } != 0 {
        return Err(errno());
    }
    let (name, flags) = (c"proc".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC);
    // SAFETY: as above.
    if unsafe { libc::mount(name, c"/proc".as_ptr(), name, flags, ptr::null()) } != 0 {
        return Err(errno());
    }
    Ok(())
}

/// What the stage reads and writes; its memory is its parent's.
struct Stage<'a> {
    /// Whose [`start::run_child`] it starts.
    child: *mut libc::c_void,
    stack: &'a Stack,
    word: *mut Pid,
    cgroup: Option<BorrowedFd<'a>>,
    first: BorrowedFd<'a>,
    user: bool,
    joins: Option<Joins>,
    failed: Option<i32>,
}

/// Starts [`start::run_child`] with `child` inside of the namespace of `first`, and gives its number. `word` is where the
/// kernel writes that before it runs. The calling thread sleeps until it runs or has failed.
pub(super) fn clone_inside(
    (first, user): (BorrowedFd<'_>, bool),
    stack: &Stack,
    child: *mut libc::c_void,
    word: *mut Pid,
    cgroup: Option<BorrowedFd<'_>>,
    joins: Option<Joins>,
) -> Result<Pid, Failed> {
    let of = |phase| move |errno| Failed { phase, errno };
    let failed = |error: io::Error| error.raw_os_error().unwrap_or(libc::ENOMEM);
    let below = Stack::map().map_err(failed).map_err(of(Phase::Clone))?;
    let mut stage =
        Stage { child, stack, word, cgroup, first, user, joins, failed: Some(libc::ECANCELED) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let pointer = ptr::from_mut(&mut stage).cast();
    // SAFETY: the stack is mapped, writable and ours until the stage has left it (CLONE_VFORK); `stage` outlives the
    // call for the same reason.
    let pid = unsafe { libc::clone(run_stage, below.top(), flags, pointer) };
    if pid < 0 {
        return Err(Failed { phase: Phase::Clone, errno: errno() });
    }
    wait::reap_blocking(pid);
    // SAFETY: `stage` is alive and the process that wrote it is gone.
    match unsafe { ptr::read_volatile(&raw const stage.failed) } {
        Some(errno) => Err(Failed { phase: Phase::Contain, errno }),
        // SAFETY: `word` is where CLONE_PARENT_SETTID has written.
        None => Ok(unsafe { ptr::read_volatile(word) }),
    }
}

/// Entry of the stage. Never returns.
extern "C" fn run_stage(stage: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone_inside` passes its own `Stage` and sleeps while we use it.
    let stage = unsafe { &mut *stage.cast::<Stage<'_>>() };
    let done =
        enter(stage.first, stage.user).and_then(|()| stand(stage)).and_then(|()| go_on(stage));
    // SAFETY: a field of a live value; through a pointer so that it is in memory before we leave.
    unsafe { ptr::write_volatile(&raw mut stage.failed, done.err()) };
    // SAFETY: leaves without running anything of the parent whose memory this is.
    unsafe { libc::_exit(0) }
}

/// What we start from here on is born there.
fn enter(first: BorrowedFd<'_>, user: bool) -> Result<(), i32> {
    let kinds = libc::CLONE_NEWPID | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: a process's handle (Linux 5.8); changes this process alone, which shares no other thing but memory.
    if unsafe { libc::setns(first.as_raw_fd(), kinds) } != 0 { Err(errno()) } else { Ok(()) }
}

/// The group of somebody outside has no number inside: it is joined here, and inherited.
fn stand(stage: &Stage<'_>) -> Result<(), i32> {
    let Some(joins) = stage.joins else { return Ok(()) };
    start::default_dispositions();
    signal::ignore_each(joins.ignored);
    // SAFETY: plain system call.
    if unsafe { libc::setpgid(0, joins.group) } != 0 { Err(errno()) } else { Ok(()) }
}

/// A child of our parent's.
fn go_on(stage: &mut Stage<'_>) -> Result<(), i32> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::CLONE_NEWNS;
    let flags = flags | libc::CLONE_PARENT_SETTID;
    if let Some(cgroup) = stage.cgroup {
        let stack = (stage.stack.usable(), STACK_BYTES);
        let started = into_cgroup::clone(flags, stack, stage.child, stage.word, cgroup);
        return started.map(drop).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
    }
    let (top, word) = (stage.stack.top(), stage.word);
    // SAFETY: the stack is mapped, writable and nobody else's; `child` outlives the call, since our parent sleeps until
    // we have left; `word` is where CLONE_PARENT_SETTID writes.
    let pid = unsafe { libc::clone(start::run_child, top, flags, stage.child, word) };
    if pid < 0 { Err(errno()) } else { Ok(()) }
}

/// Takes the steps of a start in a namespace with processes that execute nothing and end at once: whoever may do these may
/// enter what it has made, too.
pub(crate) fn probe(user: bool) -> Result<(), NoNamespace> {
    use NamespaceStep::{Clone, Mounts};
    let failed = |step, errno| NoNamespace { step, errno };
    let of = |error: io::Error| failed(Clone, error.raw_os_error().unwrap_or(libc::ENOMEM));
    let (stack, inner) = (Stack::map().map_err(of)?, Stack::map().map_err(of)?);
    let maps = user.then(Maps::own);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | flags_of_first(maps.as_ref());
    let mut probe = Probe { maps, inner, failed: Some(failed(Mounts, libc::ECANCELED)) };
    let pointer = ptr::from_mut(&mut probe).cast();
    // No handler of ours may run in what shares our memory.
    let blocked = signal::Blocked::all();
    // SAFETY: the stack is mapped, writable and ours until the child has left it (CLONE_VFORK); `probe` outlives the
    // call for the same reason.
    let pid = unsafe { libc::clone(probe_first, stack.top(), flags, pointer) };
    let refused = (pid < 0).then(errno);
    drop(blocked);
    if let Some(errno) = refused {
        return Err(failed(Clone, errno));
    }
    wait::reap_blocking(pid);
    // SAFETY: `probe` is alive and the processes that wrote it are gone.
    unsafe { ptr::read_volatile(&raw const probe.failed) }.map_or(Ok(()), Err)
}

/// What the processes of a probe read and write; its memory is ours.
struct Probe {
    maps: Option<Maps>,
    inner: Stack,
    failed: Option<NoNamespace>,
}

/// Number 1 of a probe. Never returns.
extern "C" fn probe_first(probe: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `probe` passes its own `Probe` and sleeps while we use it.
    let own = unsafe { &mut *probe.cast::<Probe>() };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_NEWNS | libc::SIGCHLD;
    let failed = match own.maps.as_ref().map_or(Ok(()), map) {
        Err(errno) => Some(NoNamespace { step: NamespaceStep::Map, errno }),
        // SAFETY: as in `probe`.
        Ok(()) => match unsafe { libc::clone(probe_inside, own.inner.top(), flags, probe) } {
            pid if pid < 0 => Some(NoNamespace { step: NamespaceStep::Mounts, errno: errno() }),
            // It has written what became of it. Who is left in here ends with us.
            _ => own.failed,
        },
    };
    // SAFETY: a field of a live value; through a pointer so that it is in memory before we leave.
    unsafe { ptr::write_volatile(&raw mut own.failed, failed) };
    // SAFETY: leaves without running anything of the process whose memory this is.
    unsafe { libc::_exit(0) }
}

/// A process inside of a probe. Never returns.
extern "C" fn probe_inside(probe: *mut libc::c_void) -> libc::c_int {
    let failed = mount_proc().err().map(|errno| NoNamespace { step: NamespaceStep::Proc, errno });
    // SAFETY: number 1 of the probe passes what it was given and sleeps while we use it.
    let own = unsafe { &mut *probe.cast::<Probe>() };
    // SAFETY: a field of a live value.
    unsafe { ptr::write_volatile(&raw mut own.failed, failed) };
    // SAFETY: as in `probe_first`.
    unsafe { libc::_exit(0) }
}
