//! Ctrl-C, SIGTERM, SIGHUP and Ctrl-Z: what was heard ([`Signals`], which waits), and what it means
//! ([`Policy`], which does not).

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::cli::exit::Exit;

/// What somebody wants of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed.
    HangUp,
    /// SIGTSTP, as from Ctrl-Z.
    Suspend,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the children to unwind.
    Interrupt,
    /// End them at once.
    Kill,
    /// They are being ended already; wait no longer for whoever reads our output.
    LeaveOutput,
    /// Stop the children, then this process.
    Suspend,
}

/// The ladder: ask, kill, leave.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    ended_by: Option<Exit>,
    killing: bool,
}

impl Policy {
    /// What this signal means after those before it.
    pub(crate) fn hear(&mut self, heard: Heard) -> Action {
        let (exit, first) = match heard {
            Heard::Suspend => return Action::Suspend,
            Heard::Interrupt => (Exit::Interrupted, Action::Interrupt),
            Heard::Terminate => (Exit::Terminated, Action::Kill),
            Heard::HangUp => (Exit::HungUp, Action::Kill),
        };
        let action = match (self.ended_by, self.killing) {
            (None, _) => first,
            (Some(_), false) => Action::Kill,
            (Some(_), true) => Action::LeaveOutput,
        };
        self.killing |= action == Action::Kill;
        self.ended_by.get_or_insert(exit);
        action
    }

    /// How the command exits because of them.
    pub(crate) const fn ended_by(&self) -> Option<Exit> {
        self.ended_by
    }
}

/// The signals of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Option<unix::Signal>,
    terminate: Option<unix::Signal>,
    hang_up: Option<unix::Signal>,
    suspend: Option<unix::Signal>,
}

impl Signals {
    /// Begins to listen. Signals that the caller ignores (`nohup`, a job of a shell without job
    /// control) stay ignored.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored_signals(&status);
        let listen = |signal: Signal| {
            let number = signal.as_raw();
            if ignored >> (number - 1) & 1 == 1 {
                return Ok(None);
            }
            unix::signal(SignalKind::from_raw(number)).map(Some)
        };
        Ok(Self {
            interrupt: listen(Signal::INT)?,
            terminate: listen(Signal::TERM)?,
            hang_up: listen(Signal::HUP)?,
            suspend: listen(Signal::TSTP)?,
        })
    }

    /// The next one. Cancel safe: a signal that came is heard by the next call.
    pub(crate) async fn next(&mut self) -> Heard {
        let Self { interrupt, terminate, hang_up, suspend } = self;
        tokio::select! {
            biased;
            () = hear(terminate) => Heard::Terminate,
            () = hear(hang_up) => Heard::HangUp,
            () = hear(interrupt) => Heard::Interrupt,
            () = hear(suspend) => Heard::Suspend,
        }
    }
}

async fn hear(signal: &mut Option<unix::Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// The mask of ignored signals in the text of `/proc/self/status` (proc_pid_status(5)); none where
/// it is not known.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Stops this process as Ctrl-Z would have; returns when it was continued.
///
/// # Errors
/// When the system refuses.
pub(crate) fn stop_self() -> io::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Interrupt, Kill, LeaveOutput, Suspend};

    #[test]
    fn the_ladder() {
        let (int, term, stop) = (Heard::Interrupt, Heard::Terminate, Heard::Suspend);
        let hup = Heard::HangUp;
        for (heard, actions, exit) in [
            (&[int][..], &[Interrupt][..], Some(130)),
            (&[int, int, int, int], &[Interrupt, Kill, LeaveOutput, LeaveOutput], Some(130)),
            (&[term, term], &[Kill, LeaveOutput], Some(143)),
            (&[hup, hup], &[Kill, LeaveOutput], Some(129)),
            (&[int, hup], &[Interrupt, Kill], Some(130)),
            (&[int, term, int], &[Interrupt, Kill, LeaveOutput], Some(130)),
            (&[stop, int, stop], &[Suspend, Interrupt, Suspend], Some(130)),
            (&[stop], &[Suspend], None),
        ] {
            let mut policy = Policy::default();
            let got: Vec<_> = heard.iter().map(|heard| policy.hear(*heard)).collect();
            assert_eq!(got, actions, "{heard:?}");
            assert_eq!(policy.ended_by().map(Exit::code), exit, "{heard:?}");
        }
    }

    #[test]
    fn ignored_signals_are_read_from_the_kernel() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001002\n";
        assert_eq!(ignored_signals(status), 0x1002);
        assert_eq!(ignored_signals(""), 0);
        assert_eq!(ignored_signals("SigIgn:\tnothing"), 0);
    }
}
