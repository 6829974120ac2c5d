//! What may be adopted: a group type whose constructor refuses what must never be signalled.

use std::os::fd::OwnedFd;

use super::GroupError;
use crate::identity::{self, Stat};
use crate::launch;
use crate::protocol::Adopted;
use crate::sys::{Pid, wait};

/// A group that may be adopted, held by its leader.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) adopted: Adopted,
    pub(crate) handle: OwnedFd,
}

impl Group {
    /// The group that this process leads, which is not reaped. Refuses what must never be signalled:
    /// everything (-1), the own group (0 and by its number), init's, the `guards`', and that of a
    /// process that this one descends from; and what is not this owner's: neither a descendant of this process nor
    /// marked as of this owner, as a daemon may be that has lost its parents.
    ///
    /// `owner` is the identity in the marks of its owner.
    pub(crate) fn led_by(leader: Pid, owner: &str, guards: &[Pid]) -> Result<Self, GroupError> {
        let refused = |detail: &str| GroupError { leader, detail: detail.into() };
        if leader <= 1 {
            return Err(refused("it is no group of its own"));
        }
        if Stat::read(identity::own_pid()).is_none_or(|own| own.group == leader) {
            return Err(refused("it is the group of the owner"));
        }
        if guards.contains(&leader) {
            return Err(refused("it is the group of a guard"));
        }
        if ancestors().any(|ancestor| ancestor == leader) {
            return Err(refused("the owner descends from its leader"));
        }
        // The number is the leader's until it is reaped; who had it before and after the handle was
        // opened is who the handle stands for.
        let before = Stat::read(leader).ok_or_else(|| refused("its leader is gone"))?;
        let handle = wait::open_child(leader).map_err(|errno| refused(&errno.to_string()))?;
        let mark = launch::tag_of(leader, owner).map_or(0, |mark| mark.0);
        let same = Stat::read(leader).is_some_and(|now| now.start == before.start);
        if !same || before.group != leader {
            return Err(refused("no process of this number leads a group"));
        }
        // A stranger's is not ours to end, whoever may signal it.
        if mark == 0 && !above(leader).any(|above| above == identity::own_pid()) {
            return Err(refused(
                "its leader neither descends from the owner nor bears a mark of it (Owner::mark)",
            ));
        }
        let session = before.session == leader;
        Ok(Self { adopted: Adopted { leader, start: before.start, session, mark }, handle })
    }
}

fn ancestors() -> impl Iterator<Item = Pid> {
    above(identity::own_pid())
}

/// This process and those above it.
fn above(pid: Pid) -> impl Iterator<Item = Pid> {
    let parent = |pid: &Pid| Stat::read(*pid).map(|stat| stat.parent).filter(|pid| *pid > 0);
    std::iter::successors(Some(pid), parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "groups of the test itself")]
    fn unsafe_groups_cannot_be_written_down() {
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        let parent = rustix::process::getppid().expect("parent").as_raw_nonzero().get();
        // Each by its own check: without it another one, or none, would answer.
        let why = |leader, guards: &[Pid]| match Group::led_by(leader, "", guards) {
            Ok(group) => format!("{group:?} is adopted"),
            Err(error) => error.detail,
        };
        for none in [i32::MIN, -1, 0, 1] {
            assert_eq!(why(none, &[]), "it is no group of its own", "{none}");
        }
        assert_eq!(why(own, &[]), "it is the group of the owner");
        assert_eq!(why(i32::MAX, &[]), "its leader is gone");
        // The parent may share our group, or be init's.
        if parent != own && parent > 1 {
            assert_eq!(why(parent, &[]), "the owner descends from its leader");
        }
        use std::os::unix::process::CommandExt;
        let start = |group: Option<i32>| {
            let mut sleep = std::process::Command::new("sleep");
            // detached-spawn: ok — a group to be adopted, killed below
            if let Some(group) = group {
                sleep.process_group(group);
            }
            sleep.arg("60").spawn().expect("sleep")
        };
        let (mut member, mut leader) = (start(None), start(Some(0)));
        let leads_none = "no process of this number leads a group";
        assert_eq!(why(member.id().cast_signed(), &[]), leads_none);
        let number = leader.id().cast_signed();
        assert_eq!(why(number, &[number]), "it is the group of a guard");
        let group = Group::led_by(number, "", &[]).expect("a group");
        assert_eq!((group.adopted.leader, group.adopted.session), (number, false));
        for child in [&mut member, &mut leader] {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
        assert_eq!(why(number, &[]), "its leader is gone", "it is reaped");
    }
}
