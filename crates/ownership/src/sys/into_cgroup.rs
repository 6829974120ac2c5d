//! `clone3` with `CLONE_INTO_CGROUP`: a child that stands in its cgroup before its first instruction, so
//! that there is no moment at which it could leave descendants outside. For [`super::start`].
//!
//! No libc has a wrapper for it, and the child begins on a stack of its own where nothing can be returned
//! to: the few instructions between the call and its entry are written out for each architecture.
#![expect(unsafe_code, reason = "a system call that comes back twice")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Pid;

/// `CLONE_INTO_CGROUP` (linux/sched.h, 5.7).
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts [`super::start::run_child`] with `child` on this stack (lowest address and bytes) in `cgroup`.
/// The flags are those of `clone` without a signal; `SIGCHLD` tells of its end, and of a child of our parent's what tells
/// of ours.
pub(super) fn clone(
    flags: i32,
    (stack, bytes): (*mut libc::c_void, usize),
    child: *mut libc::c_void,
    word: *mut Pid,
    cgroup: BorrowedFd<'_>,
) -> io::Result<Pid> {
    // SAFETY: a structure of integers, for which zero means "nothing".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from(flags.cast_unsigned()) | INTO_CGROUP;
    args.parent_tid = word as u64;
    let is_ours = flags & libc::CLONE_PARENT == 0;
    args.exit_signal = if is_ours { u64::from(libc::SIGCHLD.cast_unsigned()) } else { 0 };
    args.stack = stack as u64;
    args.stack_size = bytes as u64;
    args.cgroup = u64::try_from(cgroup.as_raw_fd()).unwrap_or(u64::MAX);
    let result = enter(&args, child);
    // An error is a small negative number (man 2 intro); a pid fits its type.
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(error) => Err(io::Error::from_raw_os_error(-error)),
        Err(_) => Err(io::ErrorKind::Other.into()),
    }
}

/// The call. The child goes on in `run_child`, which never returns.
#[cfg(target_arch = "x86_64")]
fn enter(args: &libc::clone_args, child: *mut libc::c_void) -> i64 {
    let result: i64;
    // SAFETY: the kernel reads `args`; the child has a mapped stack of its own, on which it calls a function
    // that never returns, with the registers that it had before the call; `rcx` and `r11` are lost to it
    // by the system call, and the parent sleeps until the child has left our memory.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {child}",
            "call {entry}",
            "ud2",
            "2:",
            child = in(reg) child,
            entry = sym super::start::run_child,
            inout("rax") libc::SYS_clone3 => result,
            in("rdi") std::ptr::from_ref(args),
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// The call. The child goes on in `run_child`, which never returns.
#[cfg(target_arch = "aarch64")]
fn enter(args: &libc::clone_args, child: *mut libc::c_void) -> i64 {
    let result: i64;
    // SAFETY: the kernel reads `args`; the child has a mapped stack of its own, on which it calls a function
    // that never returns, with the registers that it had before the call; the parent sleeps until the
    // child has left our memory.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {child}",
            "bl {entry}",
            "brk #1",
            "2:",
            child = in(reg) child,
            entry = sym super::start::run_child,
            in("x8") libc::SYS_clone3,
            inout("x0") std::ptr::from_ref(args) => result,
            in("x1") size_of::<libc::clone_args>(),
        );
    }
    result
}

/// No code for this processor: as on a kernel that does not know the call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn enter(_args: &libc::clone_args, _child: *mut libc::c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}
