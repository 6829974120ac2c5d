//! Starts a program without ever copying the caller: `clone` with shared memory, the caller asleep
//! until the child has executed or failed (as `vfork`), on a stack of its own.
//!
//! Between clone and exec the child runs only async-signal-safe system calls on memory that was
//! prepared before, because it shares the memory of a process that may have other threads.
#![expect(unsafe_code, reason = "clone, and what runs between clone and exec")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::burden::Burden;
use super::namespace::{self, Namespace};
use super::{Pid, errno, into_cgroup, signal, wait};
use crate::spawn::{Joins, Phase};

/// What to execute.
#[derive(Debug)]
pub(crate) enum Image<'a> {
    /// Tried in turn, with `execvp`'s rules.
    Paths(&'a [CString]),
    /// Executed by descriptor (`execveat` with `AT_EMPTY_PATH`).
    Open(BorrowedFd<'a>),
}

/// A start, fully prepared.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) argv: &'a [CString],
    pub(crate) env: &'a [CString],
    /// Directory to start from, by descriptor.
    pub(crate) cwd: Option<BorrowedFd<'a>>,
    /// Directory to change to after that.
    pub(crate) dir: Option<&'a CStr>,
    /// Number in the child, and what it is given there. Numbers are distinct and not negative; 0, 1
    /// and 2 are among them.
    pub(crate) fds: Vec<(RawFd, BorrowedFd<'a>)>,
    /// Whether it leads a session of its own, or only a group.
    pub(crate) session: bool,
    /// The group of this session that it joins instead, and what it does with signals.
    pub(crate) joins: Option<Joins>,
    /// Whether its orphans stay below it.
    pub(crate) subreaper: bool,
    /// Soft and hard limit of open descriptors, where the caller changed its own.
    pub(crate) open_files: Option<(u64, u64)>,
    /// How readily it is killed for want of memory, where the caller is less so.
    pub(crate) oom_score: Option<&'a CStr>,
    /// Where the kernel writes its number before it runs, in memory that lives on.
    pub(crate) pid_word: Option<*mut Pid>,
    /// Where it says why it failed, in memory that others see: the caller may be killed meanwhile.
    pub(crate) failed_word: Option<&'a AtomicU64>,
    /// The directory of the cgroup that it is born in.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// What it has to do with a pid namespace other than ours.
    pub(crate) namespace: Option<Namespace<'a>>,
    /// What it has of its scope's ration.
    pub(crate) burden: Option<&'a Burden>,
}

impl<'a> Plan<'a> {
    /// In a session of its own, with nothing changed but what is named.
    pub(crate) fn new(
        image: Image<'a>,
        argv: &'a [CString],
        env: &'a [CString],
        fds: Vec<(RawFd, BorrowedFd<'a>)>,
    ) -> Self {
        Self {
            image,
            argv,
            env,
            cwd: None,
            dir: None,
            fds,
            session: true,
            joins: None,
            subreaper: false,
            open_files: None,
            oom_score: None,
            pid_word: None,
            failed_word: None,
            cgroup: None,
            namespace: None,
            burden: None,
        }
    }
}

/// A start that failed; nothing is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) phase: Phase,
    pub(crate) errno: i32,
}

impl Failed {
    /// As a word of shared memory; never 0.
    pub(crate) fn word(self) -> u64 {
        1 << 40 | (self.phase as u64) << 32 | u64::from(self.errno.cast_unsigned())
    }
}

/// Bytes of stack for the child. Its deepest call is a dozen frames of plain system calls; a debug
/// build stays under 4 KiB.
pub(super) const STACK_BYTES: usize = 64 * 1024;

/// The highest signal of the kernel (man 7 signal).
const LAST_SIGNAL: i32 = 64;

/// Starts `plan`. The calling thread sleeps until the program runs or the start has failed.
pub(crate) fn start(plan: &Plan<'_>) -> Result<(Pid, OwnedFd), Failed> {
    let at_clone = |error: io::Error| Failed {
        phase: Phase::Clone,
        errno: error.raw_os_error().unwrap_or(libc::ENOMEM),
    };
    let stack = Stack::map().map_err(at_clone)?;
    let mut child = Child::prepare(plan);
    // No handler of the caller may run in the child, which shares its memory.
    let blocked = signal::Blocked::all();
    let cloned = clone(&stack, &mut child, plan);
    drop(blocked);
    let (pid, pidfd) = cloned?;
    // The child wrote it before it left, and the kernel woke us after that.
    // SAFETY: `child` is alive and the child process is gone or has other memory by now.
    let failed = unsafe { ptr::read_volatile(&raw const child.failed) };
    match failed {
        None => Ok((pid, pidfd)),
        Some(failed) => {
            wait::reap_handle(&pidfd);
            Err(failed)
        }
    }
}

/// The kernel writes the child's number into `pid_word` before the child runs, so that whoever sees that
/// memory knows of it, whatever becomes of us. The handle is opened after that: our unreaped child's
/// number is its own (man 2 clone has one place for both).
fn clone(stack: &Stack, child: &mut Child<'_>, plan: &Plan<'_>) -> Result<(Pid, OwnedFd), Failed> {
    let failed = |error: io::Error| Failed {
        // Where there are to be namespaces, whoever refuses refuses these.
        phase: if plan.namespace.is_some() { Phase::Contain } else { Phase::Clone },
        errno: error.raw_os_error().unwrap_or(libc::ENOMEM),
    };
    let mut own_word: Pid = 0;
    let word = plan.pid_word.unwrap_or(&raw mut own_word);
    let pointer = ptr::from_mut(child).cast();
    let mut flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID;
    if let Some(Namespace::First(maps)) = &plan.namespace {
        flags |= namespace::flags_of_first(maps.as_ref());
    }
    let pid = match (&plan.namespace, plan.cgroup) {
        (Some(Namespace::Inside { first, user }), cgroup) => {
            let at = (*first, *user);
            namespace::clone_inside(at, stack, pointer, word, cgroup, plan.joins)?
        }
        (_, Some(cgroup)) => {
            let stack = (stack.usable(), STACK_BYTES);
            into_cgroup::clone(flags, stack, pointer, word, cgroup).map_err(failed)?
        }
        (_, None) => {
            let flags = flags | libc::SIGCHLD;
            // SAFETY: the stack is mapped, writable and ours until the child has left it (CLONE_VFORK);
            // `child` outlives the call for the same reason; `word` is where CLONE_PARENT_SETTID writes.
            let pid = unsafe { libc::clone(run_child, stack.top(), flags, pointer, word) };
            if pid < 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            pid
        }
    };
    match wait::open_child(pid) {
        Ok(handle) => Ok((pid, handle)),
        Err(errno) => {
            // What cannot be held is not kept.
            signal::kill_child(pid);
            wait::reap_blocking(pid);
            Err(Failed { phase: Phase::Clone, errno: errno.raw_os_error() })
        }
    }
}

/// The child's stack, with a page without access below it.
pub(super) struct Stack {
    base: *mut libc::c_void,
}

/// Room for the guard page; no architecture that we know has larger pages.
const GUARD_BYTES: usize = 64 * 1024;

impl Stack {
    pub(super) fn map() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), GUARD_BYTES + STACK_BYTES, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        let usable = stack.usable();
        // SAFETY: the range lies in our own mapping.
        let done =
            unsafe { libc::mprotect(usable, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        if done == 0 { Ok(stack) } else { Err(io::Error::last_os_error()) }
    }

    /// What lies above the page without access.
    pub(super) fn usable(&self) -> *mut libc::c_void {
        // SAFETY: within our own mapping.
        unsafe { self.base.byte_add(GUARD_BYTES) }
    }

    /// The end of the mapping; stacks grow down. Page-aligned, so 16-aligned.
    pub(super) fn top(&self) -> *mut libc::c_void {
        // SAFETY: one past the end of our mapping.
        unsafe { self.base.byte_add(GUARD_BYTES + STACK_BYTES) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the child has left it.
        unsafe { libc::munmap(self.base, GUARD_BYTES + STACK_BYTES) };
    }
}

/// What the child reads and writes. All of its memory was allocated before the clone.
struct Child<'a> {
    plan: &'a Plan<'a>,
    paths: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// As [`Plan::fds`]; the sources change when they are moved out of the way.
    fds: Vec<(RawFd, RawFd)>,
    /// The program, when it is executed by descriptor; moved out of the way too.
    image: Option<RawFd>,
    /// First number above all targets.
    above: RawFd,
    /// Ranges between the targets, marked close-on-exec as a net.
    gaps: Vec<(u32, u32)>,
    failed: Option<Failed>,
}

impl<'a> Child<'a> {
    fn prepare(plan: &'a Plan<'a>) -> Self {
        let terminated = |list: &[CString]| {
            list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
        };
        let fds: Vec<_> =
            plan.fds.iter().map(|(target, source)| (*target, source.as_raw_fd())).collect();
        let mut targets: Vec<_> = fds.iter().map(|(target, _)| *target).collect();
        targets.sort_unstable();
        Self {
            plan,
            paths: match plan.image {
                Image::Paths(paths) => paths.iter().map(|path| path.as_ptr()).collect(),
                Image::Open(_) => Vec::new(),
            },
            argv: terminated(plan.argv),
            env: terminated(plan.env),
            above: targets.last().map_or(0, |last| last.saturating_add(1)),
            gaps: gaps(&targets),
            fds,
            image: match plan.image {
                Image::Paths(_) => None,
                Image::Open(program) => Some(program.as_raw_fd()),
            },
            failed: None,
        }
    }
}

/// The ranges of numbers that are not in `targets` (sorted, not negative).
fn gaps(targets: &[RawFd]) -> Vec<(u32, u32)> {
    let mut gaps = Vec::with_capacity(targets.len() + 1);
    let mut next = 0;
    for target in targets.iter().filter_map(|target| u32::try_from(*target).ok()) {
        if target > next {
            gaps.push((next, target - 1));
        }
        next = target + 1;
    }
    gaps.push((next, u32::MAX));
    gaps
}

/// Entry of the child. Never returns: it executes or leaves.
pub(super) extern "C" fn run_child(child: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes its own `Child` and sleeps while we use it.
    let child = unsafe { &mut *child.cast::<Child<'_>>() };
    let failed = match set_up(child) {
        Ok(()) => execute(child),
        Err(failed) => failed,
    };
    // Written through a pointer so that it is in memory before we leave.
    // SAFETY: a field of a live value.
    unsafe { ptr::write_volatile(&raw mut child.failed, Some(failed)) };
    if let Some(word) = child.plan.failed_word {
        word.store(failed.word(), Ordering::Release);
    }
    // SAFETY: leaves without running anything of the parent whose memory this is.
    unsafe { libc::_exit(127) }
}

/// `Ok`, or the error number of the call that just failed at this step.
fn done(phase: Phase, result: libc::c_int) -> Result<(), Failed> {
    if result == -1 { Err(Failed { phase, errno: errno() }) } else { Ok(()) }
}

fn set_up(child: &mut Child<'_>) -> Result<(), Failed> {
    let contained = |errno| Failed { phase: Phase::Contain, errno };
    match &child.plan.namespace {
        Some(Namespace::First(Some(maps))) => namespace::map(maps).map_err(contained)?,
        Some(Namespace::Inside { .. }) => namespace::mount_proc().map_err(contained)?,
        Some(Namespace::First(None)) | None => {}
    }
    default_dispositions();
    if let Some(joins) = child.plan.joins {
        signal::ignore_each(joins.ignored);
        if child.plan.namespace.is_none() {
            // SAFETY: plain system call.
            done(Phase::Setup, unsafe { libc::setpgid(0, joins.group) })?;
        }
        signal::discard_stops(joins.ignored);
    } else if child.plan.session {
        // SAFETY: plain system call.
        done(Phase::Setup, unsafe { libc::setsid() })?;
    } else {
        // SAFETY: plain system call.
        done(Phase::Setup, unsafe { libc::setpgid(0, 0) })?;
    }
    if child.plan.subreaper {
        // SAFETY: plain system call.
        done(Phase::Setup, unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })?;
    }
    if let Some(score) = child.plan.oom_score {
        set_oom_score(score);
    }
    if let Some(cwd) = child.plan.cwd {
        // SAFETY: plain system call on a descriptor that the plan borrows.
        done(Phase::Chdir, unsafe { libc::fchdir(cwd.as_raw_fd()) })?;
    }
    if let Some(dir) = child.plan.dir {
        // SAFETY: a terminated string that the plan borrows.
        done(Phase::Chdir, unsafe { libc::chdir(dir.as_ptr()) })?;
    }
    place_descriptors(child)?;
    if let Some((soft, hard)) = child.plan.open_files {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        // SAFETY: reads one structure on our stack.
        done(Phase::Setup, unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    if let Some(burden) = child.plan.burden {
        let failed =
            |errno: rustix::io::Errno| Failed { phase: Phase::Ration, errno: errno.raw_os_error() };
        burden.shoulder().map_err(failed)?;
    }
    signal::block_only(child.plan.joins.map_or(0, |joins| joins.blocked));
    Ok(())
}

/// It may always be set higher (man 5 proc_pid_oom_score_adj). Of a process that shares memory as a `vfork`
/// child does the kernel sets this one's alone. Async-signal-safe.
fn set_oom_score(score: &CStr) {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a terminated path.
    let file = unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), flags) };
    if file < 0 {
        return;
    }
    let text = score.to_bytes();
    // SAFETY: as many bytes as there are, to a descriptor that was just opened.
    unsafe { libc::write(file, text.as_ptr().cast(), text.len()) };
    // SAFETY: ours.
    unsafe { libc::close(file) };
}

/// An ignored signal would stay ignored through exec.
pub(super) fn default_dispositions() {
    for number in 1..=LAST_SIGNAL {
        signal::set_default(number);
    }
}

/// Sources out of the way of targets, then sources onto targets, then everything else close-on-exec.
fn place_descriptors(child: &mut Child<'_>) -> Result<(), Failed> {
    for at in 0..child.fds.len() {
        if child.fds[at].1 < child.above {
            child.fds[at].1 = move_up(child.fds[at].1, child.above)?;
        }
    }
    if let Some(image) = child.image.filter(|image| *image < child.above) {
        child.image = Some(move_up(image, child.above)?);
    }
    for &(target, source) in &child.fds {
        // SAFETY: plain system call on numbers of the child's own table.
        done(Phase::Setup, unsafe { libc::dup2(source, target) })?;
    }
    for &(first, last) in &child.gaps {
        // Kernels before 5.11 do not know the flag; our own descriptors are close-on-exec anyway.
        // SAFETY: marks numbers of the child's own table, closes nothing now.
        unsafe {
            libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC);
        }
    }
    Ok(())
}

fn move_up(source: RawFd, above: RawFd) -> Result<RawFd, Failed> {
    // SAFETY: duplicates within the child's own table.
    let moved = unsafe { libc::fcntl(source, libc::F_DUPFD_CLOEXEC, above) };
    done(Phase::Setup, moved)?;
    Ok(moved)
}

/// Executes; returns only the failure. A path that may not be executed is remembered while later
/// ones are tried, as `execvp` does.
fn execute(child: &mut Child<'_>) -> Failed {
    let argv = child.argv.as_ptr();
    let env = child.env.as_ptr();
    if let Some(fd) = child.image {
        // SAFETY: terminated arrays of terminated strings; the descriptor is the plan's or our copy.
        unsafe {
            libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH)
        };
        return Failed { phase: Phase::Exec, errno: errno() };
    }
    let mut last = libc::ENOENT;
    let mut denied = false;
    for path in &child.paths {
        // SAFETY: terminated strings and arrays that were prepared before the clone.
        unsafe { libc::execve(*path, argv, env) };
        last = errno();
        match last {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return Failed { phase: Phase::Exec, errno: last },
        }
    }
    Failed { phase: Phase::Exec, errno: if denied { libc::EACCES } else { last } }
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_are_all_that_is_not_a_target() {
        assert_eq!(gaps(&[0, 1, 2]), [(3, u32::MAX)]);
        assert_eq!(gaps(&[0, 1, 2, 5, 7]), [(3, 4), (6, 6), (8, u32::MAX)]);
        assert_eq!(gaps(&[3]), [(0, 2), (4, u32::MAX)]);
    }
}
