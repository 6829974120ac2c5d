//! Starting a child as a copy of a template ([`crate::template`]): asked for over the line that the
//! template was started with, and waited for, as an execution is.
//!
//! While we wait nobody is reaped, so a child whose template has not told of it yet is still there under
//! its number. It is ours by birth; it says where it stands by itself, and goes on when its line says
//! hello, which is after its number is in the table.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Loop, now, timespec};
use crate::launch::TAG;
use crate::line::{self, Received};
use crate::protocol::{Failure, Fork, Forked, Order};
use crate::registry::{Root, ScopeId};
use crate::spawn::Phase;
use crate::sys::burden::Burden;
use crate::sys::{Pid, signal, wait};

/// A template that has not forked by then is killed. A copy takes a tenth of a millisecond, that of a
/// template with a gigabyte some 50 ms; the owner gives us a second for a start.
const FORK_LIMIT: Duration = Duration::from_millis(500);

/// Bytes of the longest answer.
const ANSWER_BYTES: usize = 64;

impl Loop {
    /// Has a template fork. Its scope is the one that was started under this number on the same line.
    pub(super) fn fork_in(
        &mut self,
        scope: ScopeId,
        template: u64,
        (order, fds, theirs): (&Order, &[OwnedFd], Option<&OwnedFd>),
        tag: &str,
        (cgroup, burden): (Option<BorrowedFd<'_>>, &Burden),
    ) -> Result<(Pid, OwnedFd), Failure> {
        let failed = |phase, errno: Errno| Failure { phase, errno: errno.raw_os_error() };
        let parent = self.machine.registry().get(scope).map(|scope| scope.parent);
        let template = parent.and_then(|line| self.machine.registry().find(line, template));
        // One that another guard had started has another parent than its copies should have.
        let Some((of, control)) =
            template.and_then(|of| Some((of, self.templates.get(&of)?.try_clone().ok()?)))
        else {
            return Err(failed(Phase::Request, Errno::SRCH));
        };
        let Some((number, theirs)) = order.line.zip(theirs) else {
            return Err(failed(Phase::Request, Errno::INVAL));
        };
        let own_tag = format!("{TAG}=");
        let env = order.env.iter().filter(|entry| !entry.starts_with(own_tag.as_bytes()));
        let fork = Fork {
            tag: tag.as_bytes().to_vec(),
            env: env.cloned().collect(),
            dir: order.dir.clone(),
            fds: order.fds.clone(),
            line: number,
            subreaper: !self.off.subreaper,
            in_cgroup: cgroup.is_some(),
        };
        let mut memfd = Vec::new();
        let bytes = line::pack(fork.encode(), 0, &mut memfd);
        let bytes = bytes.map_err(|errno| failed(Phase::Request, errno))?;
        // What is behind them is the release command, which is ours to keep.
        let carried = fds.iter().take(1 + order.fds.len());
        let carried: Vec<_> =
            memfd.iter().chain(carried).chain([theirs]).map(AsFd::as_fd).chain(cgroup).collect();
        let asked = line::send(control.as_fd(), &bytes, &carried, false);
        let answered =
            asked.and_then(|()| answer(control.as_fd(), &mut self.buffer, now() + FORK_LIMIT));
        match answered {
            Ok(Forked::Failed(failure)) => Err(failure),
            Ok(Forked::Ready { pid }) if self.is_news(pid) => {
                let handle = wait::open_child(pid).map_err(|errno| failed(Phase::Clone, errno))?;
                if let Err(errno) = burden.lay_on(pid) {
                    // It does nothing before its line says hello.
                    let _ = signal::send(handle.as_fd(), libc::SIGKILL);
                    wait::reap_handle(&handle);
                    return Err(failed(Phase::Ration, errno));
                }
                Ok((pid, handle))
            }
            // It lies, is dead, or does not answer: whatever it may have forked ends with it.
            Ok(Forked::Ready { .. }) => Err(self.give_up(of, failed(Phase::Setup, Errno::PROTO))),
            Err(errno) => Err(self.give_up(of, failed(Phase::Setup, errno))),
        }
    }

    /// Whether this is a child of ours that we do not know.
    fn is_news(&self, pid: Pid) -> bool {
        pid > 1 && !self.machine.registry().knows(pid) && !self.is_peer(pid) && wait::is_child(pid)
    }

    fn give_up(&mut self, template: ScopeId, failure: Failure) -> Failure {
        self.templates.remove(&template);
        if let Some(Root::Running(pid)) = self.machine.registry().get(template).map(|t| t.root)
            && let Some(handle) = self.handles.get(&pid)
        {
            // It may be dead already.
            let _ = signal::send(handle.as_fd(), libc::SIGKILL);
        }
        failure
    }
}

/// The next answer of a template.
fn answer(
    control: BorrowedFd<'_>,
    buffer: &mut [u8],
    until: Instant,
) -> rustix::io::Result<Forked> {
    loop {
        let left = until.saturating_duration_since(now());
        let mut asked = [PollFd::from_borrowed_fd(control, PollFlags::IN)];
        match poll(&mut asked, Some(&timespec(left))) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let size = buffer.len().min(ANSWER_BYTES);
        return match line::receive(control, &mut buffer[..size], false) {
            Ok(Received::Record { bytes, fds: _ }) => Forked::decode(&bytes).ok_or(Errno::PROTO),
            Ok(Received::Bodiless { .. } | Received::Junk) => Err(Errno::PROTO),
            Ok(Received::End) => Err(Errno::PIPE),
            Err(Errno::AGAIN) => continue,
            Err(errno) => Err(errno),
        };
    }
}
