//! How sure it is that a process is left over: from facts to a grade. Pure, and tested over all combinations.
//!
//! What it says no to comes first: however strong the evidence is, this process and those above it, another user's,
//! a living owner's and its guards', and what is exempt are spared. Proof is a record whose every field was found
//! again through a handle, of an owner that has certainly ended; or to stand in the cgroup that such an owner's guards
//! made, once these are gone; or to stand below somebody who is proved. A mark in an environment is copied by
//! everybody who is started there, and is never proof.

use crate::ledger::Standing;

/// How sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Grade {
    /// It cannot be told whether it is left over.
    Unknown,
    /// It seems so: a person may say that it is.
    Likely,
    /// It is left over.
    Proved,
}

impl Grade {
    /// As one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Likely => "likely",
            Self::Proved => "proved",
        }
    }
}

/// Why a process is spared whatever speaks against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Spared {
    /// It is this process, or stands above it.
    Ours,
    /// PID 1, or a part of the kernel.
    System,
    /// It is another user's, or must not be looked into.
    OtherUser,
    /// Its owner lives, or it is a living owner itself.
    OwnerLives,
    /// It is a guard, or guards still see to it.
    Guarded,
    /// It may outlive its owner.
    Exempt,
}

impl Spared {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Ours => "it is this process, or one above it",
            Self::System => "it is a part of the system",
            Self::OtherUser => "it is another user's, or must not be looked into",
            Self::OwnerLives => "its owner lives, or it is a living owner itself",
            Self::Guarded => "it is a guard, or a guard sees to it",
            Self::Exempt => "it may outlive its owner",
        }
    }
}

/// What a process is, whoever has started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Ours,
    System,
    OtherUser,
    LivingOwner,
    Guard,
}

/// What its environment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marked {
    /// It cannot be read.
    Unreadable,
    /// No mark: cleared, or not ours.
    No,
    /// The mark of the owner that is judged.
    Same,
    /// Of another owner that has ended.
    OtherDead,
    /// Of another owner of which nothing is known.
    OtherUnknown,
    /// Of an owner that lives.
    Living,
}

/// Whether it may outlive its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exempt {
    No,
    Yes,
    /// It might, until a time that has passed by the wall clock, which somebody may have set.
    OverByClock,
}

/// All that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    /// What is left of the child of a record; `None` where no record is about this process.
    pub(super) record: Option<Standing>,
    /// Whether the record and the kernel both know the inode of its pidfd, and it is the same.
    pub(super) inode: bool,
    /// What is left of the owner that record, mark or the place below somebody else names.
    pub(super) owner: Standing,
    /// A guard of that owner is at work, or one stands above the process.
    pub(super) guarded: bool,
    pub(super) exempt: Exempt,
    pub(super) marked: Marked,
    /// It stands below somebody who is proved.
    pub(super) below: bool,
    /// It is in a cgroup that was made for a child of that owner.
    pub(super) cgroup: bool,
    /// That cgroup was made by that owner's guards, and none of them holds it any more. Whoever is in there was born
    /// there, or went there on purpose.
    pub(super) deserted: bool,
}

/// The verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    /// Nothing speaks against it.
    Nothing,
    Spared(Spared),
    Graded(Grade),
}

pub(super) fn grade(facts: &Facts) -> Verdict {
    let Facts { kind, record, inode, owner, guarded, exempt, marked, below, cgroup, deserted } =
        *facts;
    // A record of somebody else under this number says nothing about this process.
    let record = record.filter(|standing| !standing.has_ended());
    let has_mark = matches!(marked, Marked::Same | Marked::OtherDead);
    if record.is_none() && !below && !has_mark && !cgroup && !deserted {
        return Verdict::Nothing;
    }
    let spared = match kind {
        Kind::Ours => Some(Spared::Ours),
        Kind::System => Some(Spared::System),
        Kind::OtherUser => Some(Spared::OtherUser),
        Kind::LivingOwner => Some(Spared::OwnerLives),
        Kind::Guard => Some(Spared::Guarded),
        Kind::Plain if owner == Standing::Same || marked == Marked::Living => {
            Some(Spared::OwnerLives)
        }
        Kind::Plain if guarded => Some(Spared::Guarded),
        Kind::Plain if exempt == Exempt::Yes => Some(Spared::Exempt),
        Kind::Plain => None,
    };
    if let Some(spared) = spared {
        return Verdict::Spared(spared);
    }
    if !owner.has_ended() {
        return Verdict::Graded(Grade::Unknown);
    }
    // Without an inode a process of the same clock tick looks the same; its mark tells them apart.
    let certain = record == Some(Standing::Same) && (inode || marked == Marked::Same);
    let contradicted = match marked {
        Marked::OtherUnknown => true,
        // One that was started below by another owner that is dead too, or was started again by it.
        Marked::OtherDead => !below,
        Marked::Unreadable | Marked::No | Marked::Same | Marked::Living => false,
    };
    let proved = (certain || below || deserted) && !contradicted && exempt == Exempt::No;
    let likely = record == Some(Standing::Same) || below || has_mark || deserted;
    Verdict::Graded(match (proved, likely) {
        (true, _) => Grade::Proved,
        (false, true) => Grade::Likely,
        (false, false) => Grade::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDINGS: [Standing; 6] = [
        Standing::Same,
        Standing::Gone,
        Standing::Another,
        Standing::Stale,
        Standing::Elsewhere,
        Standing::Unknown,
    ];
    const KINDS: [Kind; 6] =
        [Kind::Plain, Kind::Ours, Kind::System, Kind::OtherUser, Kind::LivingOwner, Kind::Guard];
    const MARKS: [Marked; 6] = [
        Marked::Unreadable,
        Marked::No,
        Marked::Same,
        Marked::OtherDead,
        Marked::OtherUnknown,
        Marked::Living,
    ];
    const EXEMPTS: [Exempt; 3] = [Exempt::No, Exempt::Yes, Exempt::OverByClock];

    fn all() -> impl Iterator<Item = Facts> {
        let records = STANDINGS.map(Some).into_iter().chain([None]);
        records.flat_map(|record| {
            STANDINGS.into_iter().flat_map(move |owner| {
                KINDS.into_iter().flat_map(move |kind| {
                    MARKS.into_iter().flat_map(move |marked| {
                        EXEMPTS.into_iter().flat_map(move |exempt| {
                            (0..32_u8).map(move |bits| {
                                let [inode, guarded, below, cgroup, deserted] =
                                    [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
                                Facts {
                                    kind,
                                    record,
                                    inode,
                                    owner,
                                    guarded,
                                    exempt,
                                    marked,
                                    below,
                                    cgroup,
                                    deserted,
                                }
                            })
                        })
                    })
                })
            })
        })
    }

    #[test]
    fn what_is_proved_is_proved_by_a_record_a_cgroup_of_ours_or_by_standing_below_one() {
        let mut proved = 0;
        for facts in all().filter(|facts| grade(facts) == Verdict::Graded(Grade::Proved)) {
            proved += 1;
            let Facts { kind, record, inode, owner, guarded, exempt, marked, below, .. } = facts;
            let deserted = facts.deserted;
            assert!(kind == Kind::Plain && owner.has_ended() && !guarded, "{facts:?}");
            assert!(exempt == Exempt::No && marked != Marked::Living, "{facts:?}");
            let recorded = record == Some(Standing::Same) && (inode || marked == Marked::Same);
            assert!(recorded || below || deserted, "{facts:?}");
            assert!(marked != Marked::OtherUnknown, "{facts:?}");
        }
        assert!(proved > 100, "{proved}");
    }

    #[test]
    fn a_mark_or_a_cgroup_of_others_alone_is_never_proof() {
        for facts in all() {
            let recorded = facts.record == Some(Standing::Same);
            if !recorded && !facts.below && !facts.deserted {
                assert_ne!(grade(&facts), Verdict::Graded(Grade::Proved), "{facts:?}");
            }
        }
    }

    #[test]
    fn whoever_is_to_be_spared_has_no_grade() {
        for facts in all() {
            let spared = facts.kind != Kind::Plain
                || facts.owner == Standing::Same
                || facts.guarded
                || facts.exempt == Exempt::Yes
                || facts.marked == Marked::Living;
            if spared {
                assert!(!matches!(grade(&facts), Verdict::Graded(_)), "{facts:?}");
            }
        }
    }

    #[test]
    fn more_evidence_against_it_never_lowers_a_grade() {
        for facts in all().filter(|facts| matches!(facts.marked, Marked::Same | Marked::No)) {
            let Verdict::Graded(before) = grade(&facts) else { continue };
            for more in [
                Facts { inode: true, ..facts },
                Facts { below: true, ..facts },
                Facts { cgroup: true, ..facts },
                Facts { deserted: true, ..facts },
                Facts { marked: Marked::Same, ..facts },
            ] {
                let Verdict::Graded(after) = grade(&more) else { panic!("{facts:?} {more:?}") };
                assert!(after >= before, "{facts:?} {more:?}");
            }
        }
    }

    #[test]
    fn nothing_is_said_about_a_stranger() {
        for facts in all() {
            let known = facts.record.is_some_and(|record| !record.has_ended())
                || facts.below
                || facts.cgroup
                || facts.deserted
                || matches!(facts.marked, Marked::Same | Marked::OtherDead);
            assert_eq!(grade(&facts) == Verdict::Nothing, !known, "{facts:?}");
        }
    }
}
