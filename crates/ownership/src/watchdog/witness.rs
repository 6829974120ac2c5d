//! Reads what the kernel says of the loop's thread, and both clocks.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::decide::Thread;

/// Calls that wait for data to reach a disk.
const SYNCS: [i64; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_msync,
];

/// A thread of this process. `None` when it has ended or cannot be looked at.
pub(super) fn thread(id: i32) -> Option<Thread> {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{id}/{file}")).ok();
    let stat = read("stat")?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let status = read("status")?;
    let number = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    // `running`, or the number of the call. Where it may not be read nothing is known of it.
    let call = read("syscall").unwrap_or_default();
    let call = call.split(' ').next().and_then(|number| number.parse::<i64>().ok());
    Some(Thread {
        state,
        cpu: user + system,
        slept: number("voluntary_ctxt_switches:")?,
        syncs: call.is_some_and(|call| SYNCS.contains(&call)),
        traced: number("TracerPid:")? != 0,
    })
}

/// `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME`.
pub(super) fn clocks() -> (Duration, Duration) {
    let now = |clock| {
        let time = clock_gettime(clock);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    (now(ClockId::Monotonic), now(ClockId::Boottime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_runs_and_another_one_sleeps() {
        let own = thread(rustix::thread::gettid().as_raw_nonzero().get()).expect("this thread");
        assert_eq!((own.state, own.syncs), (b'R', false));
        assert!(thread(1 << 30).is_none());
        let (awake, total) = clocks();
        assert!(total >= awake && awake > Duration::ZERO);
    }
}
