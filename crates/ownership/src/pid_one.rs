//! Number 1 of a scope's pid namespace: reaps what loses its parent in there, leaves when the scope's root is dead and
//! nobody is left, and ends all of it when owner and guards are gone. Its own end is everybody's in there, as the kernel
//! sees to.
//!
//! Decisions are [`decide`]'s, a function of what is seen and the time. Started by [`crate::supervisor_loop`], which it
//! never hears of again but by what it holds: the root's handle, the owner's, and a pipe whose other end is the guards'.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::hook;
use crate::identity;
use crate::line::{self, Received};
use crate::spawn::DEFAULT_GRACE;
use crate::sys::wait::{self, Look};
use crate::sys::{process, signal};

/// A root that is dead is reaped by its parent, of which nothing tells: looked for after this time, then twice that.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const SLOWEST_LOOK: Duration = Duration::from_millis(100);

/// The scope's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    /// Not told of yet.
    Expected,
    /// Whoever was to tell of it is gone.
    Untold,
    Lives,
    /// Dead, and its number is taken until it is reaped.
    Dead,
    Gone,
}

/// What is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    root: Root,
    /// Whether a guard lives.
    guards: bool,
    owner: bool,
    /// Whether anybody else is in here.
    others: bool,
    /// When everybody was told to end.
    told: Option<Instant>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To wait until something happens.
    Wait,
    /// To wait, and to look again although nothing tells.
    Look,
    /// To wait until this time at most.
    Until(Instant),
    /// To tell everybody to end.
    Tell,
    /// To leave, with everybody.
    Leave,
}

fn decide(seen: Seen, now: Instant) -> Step {
    let abandoned = !seen.guards && !seen.owner;
    let over =
        matches!(seen.root, Root::Gone | Root::Untold) || abandoned && seen.root != Root::Dead;
    match (seen.others, abandoned, seen.told) {
        (false, ..) if over => Step::Leave,
        (true, true, None) => Step::Tell,
        (true, true, Some(told)) if now >= told + DEFAULT_GRACE => Step::Leave,
        (true, true, Some(told)) => Step::Until(told + DEFAULT_GRACE),
        _ => match seen.root {
            Root::Untold | Root::Dead => Step::Look,
            Root::Expected | Root::Lives | Root::Gone => Step::Wait,
        },
    }
}

/// Runs this process as number 1 of its namespace, to its end.
pub(crate) fn run() -> ExitCode {
    let fds = [3, 4, 5].map(process::inherited);
    let [Some(guards), Some(owner), Some(line)] = fds else { return ExitCode::from(2) };
    // Elsewhere, all others are not ours.
    if identity::own_pid() != 1 {
        return ExitCode::from(2);
    }
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    // Fails only for want of what a guard has had a moment ago.
    drop(std::fs::write("/proc/self/comm", "porter"));
    for fd in [&guards, &owner, &line] {
        let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
    }
    process::close_from(6);
    signal::ignore_terminal();
    let Ok(deaths) = signal::child_deaths(false) else { return ExitCode::FAILURE };
    let _ = rustix::process::chdir("/");
    First { guards, owner, line: Some(line), root: None, untold: false, deaths, told: None }.live()
}

struct First {
    guards: OwnedFd,
    owner: OwnedFd,
    /// On which the root's handle comes.
    line: Option<OwnedFd>,
    root: Option<OwnedFd>,
    untold: bool,
    deaths: OwnedFd,
    told: Option<Instant>,
}

impl First {
    fn live(mut self) -> ExitCode {
        let mut pause = FIRST_LOOK;
        loop {
            self.hear();
            self.reap();
            let now = now();
            let timeout = match decide(self.look(), now) {
                Step::Wait => None,
                Step::Look => {
                    let this = pause;
                    pause = (pause * 2).min(SLOWEST_LOOK);
                    Some(this)
                }
                Step::Until(until) => Some(until.saturating_duration_since(now)),
                Step::Tell => {
                    self.told = Some(now);
                    for number in [libc::SIGTERM, libc::SIGCONT] {
                        // Fails only where nobody is left.
                        let _ = signal::send_all_others(number);
                    }
                    continue;
                }
                Step::Leave => return ExitCode::SUCCESS,
            };
            self.wait(timeout);
        }
    }

    fn look(&self) -> Seen {
        let root = match &self.root {
            None if self.untold => Root::Untold,
            None => Root::Expected,
            Some(root) if !is_ready(root) => Root::Lives,
            Some(root) if signal::send(root.as_fd(), 0) == Err(Errno::SRCH) => Root::Gone,
            Some(_) => Root::Dead,
        };
        Seen {
            root,
            guards: !is_ready(&self.guards) || hook::is_off("porter"),
            owner: !is_ready(&self.owner),
            others: signal::send_all_others(0) != Err(Errno::SRCH),
            told: self.told,
        }
    }

    /// The root's handle, if it has come.
    fn hear(&mut self) {
        let Some(line) = &self.line else { return };
        match line::receive(line.as_fd(), &mut [0; 64], false) {
            Ok(Received::Record { fds, .. }) => self.root = fds.into_iter().next(),
            Err(Errno::AGAIN) => return,
            Ok(Received::End | Received::Junk | Received::Bodiless { .. }) | Err(_) => {}
        }
        self.untold = self.root.is_none();
        self.line = None;
    }

    fn reap(&self) {
        // Fails only when there is nothing to read.
        let _ = rustix::io::read(&self.deaths, &mut [0; 8]);
        while let Look::Dead(dead) = wait::look() {
            wait::reap(dead.pid);
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        let mut watched = vec![PollFd::new(&self.deaths, PollFlags::IN)];
        watched.extend(self.line.as_ref().map(|line| PollFd::new(line, PollFlags::IN)));
        // What has happened would be told without end.
        let once = [Some(&self.guards), Some(&self.owner), self.root.as_ref()];
        let once = once.into_iter().flatten().filter(|fd| !is_ready(fd));
        watched.extend(once.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        // Interrupted, it looks.
        let _ = poll(&mut watched, timeout.as_ref());
    }
}

/// Whether a process is dead, by its handle, or all other ends of a pipe are closed.
fn is_ready(fd: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(fd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

#[expect(clippy::disallowed_methods, reason = "this process waits by itself")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: [Root; 5] = [Root::Expected, Root::Untold, Root::Lives, Root::Dead, Root::Gone];

    #[expect(clippy::disallowed_methods, reason = "a time to begin with")]
    fn start() -> Instant {
        Instant::now()
    }

    /// Every pair of what can be seen: who leaves has nobody with it, or nobody above it and has told everybody a grace
    /// ago; and whoever waits without end will be told.
    #[test]
    fn it_leaves_with_the_last_one_and_not_before() {
        let at = start();
        for (root, bits, told) in ROOTS.into_iter().flat_map(|root| {
            (0..8_u8).flat_map(move |bits| {
                [None, Some(at), Some(at - DEFAULT_GRACE)].map(|told| (root, bits, told))
            })
        }) {
            let (guards, owner, others) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            let seen = Seen { root, guards, owner, others, told };
            let abandoned = !guards && !owner;
            let late = told.is_some_and(|told| at >= told + DEFAULT_GRACE);
            let step = decide(seen, at);
            match step {
                Step::Leave => {
                    let alone = !others && (abandoned || matches!(root, Root::Gone | Root::Untold));
                    assert!(alone || abandoned && late, "{seen:?}");
                }
                Step::Tell => assert!(abandoned && others && told.is_none(), "{seen:?}"),
                Step::Until(until) => assert!(abandoned && until > at, "{seen:?}"),
                Step::Look => assert!(matches!(root, Root::Dead | Root::Untold), "{seen:?}"),
                Step::Wait => {
                    assert!(!abandoned || !others && root == Root::Dead, "{seen:?}");
                    assert!(!matches!(root, Root::Dead | Root::Untold), "{seen:?}");
                    assert!(others || root != Root::Gone, "{seen:?}");
                }
            }
        }
    }
}
