//! The records between a supervisor and a template, the process that forks children for it
//! ([`crate::template`]). The template runs somebody's code: what it says is checked, never believed.

use super::bytes::{Reader, Writer};
use super::{Failure, MAX_FDS, phase_number, phase_of};
use crate::sys::Pid;

/// A child to be. Its descriptors come with the record, in this order: working directory of the asking
/// process, one for each of `fds`, its line to the supervisor, and its cgroup if it is born in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fork {
    /// What its environment says whose it is.
    pub(crate) tag: Vec<u8>,
    /// `NAME=value`.
    pub(crate) env: Vec<Vec<u8>>,
    pub(crate) dir: Option<Vec<u8>>,
    pub(crate) fds: Vec<i32>,
    pub(crate) line: i32,
    pub(crate) subreaper: bool,
    pub(crate) in_cgroup: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forked {
    /// Said by the child itself, once it stands where it should; it goes on when its line says hello.
    Ready { pid: Pid },
    /// There is no child, or it leaves.
    Failed(Failure),
}

impl Fork {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { tag, env, dir, fds, line, subreaper, in_cgroup } = self;
        let mut to = Writer::default();
        to.byte(1).text(tag).texts(env);
        match dir {
            None => to.byte(0),
            Some(dir) => to.byte(1).text(dir),
        };
        to.length(fds.len());
        for number in fds {
            to.signed(*number);
        }
        to.signed(*line).byte(u8::from(*subreaper)).byte(u8::from(*in_cgroup));
        to.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader { rest: bytes };
        if from.byte()? != 1 {
            return None;
        }
        let fork = Self {
            tag: from.text()?,
            env: from.list(Reader::text)?,
            dir: if from.flag()? { Some(from.text()?) } else { None },
            fds: from.list(Reader::signed).filter(|fds| fds.len() <= MAX_FDS)?,
            line: from.signed()?,
            subreaper: from.flag()?,
            in_cgroup: from.flag()?,
        };
        from.finish(fork)
    }
}

impl Forked {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Ready { pid } => to.byte(1).signed(pid),
            Self::Failed(failure) => {
                to.byte(2).byte(phase_number(failure.phase)).signed(failure.errno)
            }
        };
        to.bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader { rest: bytes };
        let forked = match from.byte()? {
            1 => Self::Ready { pid: from.signed()? },
            2 => Self::Failed(Failure { phase: phase_of(from.byte()?)?, errno: from.signed()? }),
            _ => return None,
        };
        from.finish(forked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::Phase;

    #[test]
    fn records_arrive_as_they_were_and_anything_else_is_none() {
        let fork = Fork {
            tag: b"1.2.3:4".to_vec(),
            env: vec![b"A=b".to_vec(), Vec::new()],
            dir: Some(b"/x".to_vec()),
            fds: vec![0, 3],
            line: 4,
            subreaper: true,
            in_cgroup: false,
        };
        let bytes = fork.encode();
        assert_eq!(Fork::decode(&bytes), Some(fork));
        for end in 0..bytes.len() {
            assert_eq!(Fork::decode(&bytes[..end]), None, "cut at {end}");
        }
        let failure = Failure { phase: Phase::Clone, errno: libc::ENOMEM };
        for forked in [Forked::Ready { pid: 77 }, Forked::Failed(failure)] {
            assert_eq!(Forked::decode(&forked.encode()), Some(forked));
        }
        for junk in [&[][..], &[0], &[3, 1, 2, 3, 4], &[2, 99, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0]] {
            assert_eq!(Forked::decode(junk), None, "{junk:?}");
            assert_eq!(Fork::decode(junk), None, "{junk:?}");
        }
    }
}
