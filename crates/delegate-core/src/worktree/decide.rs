//! Whether a worktree may go: a pure function of what was seen of it. Only what is proved to hold nothing
//! goes; whatever is not known is a reason to keep it.

/// What was seen of a worktree whose child has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Inspection {
    /// Files that are changed, staged or not tracked (ignored ones do not count).
    pub(super) dirty: bool,
    /// Commits of it that its base does not have.
    pub(super) commits: u64,
    /// Those among them that no remote branch has either.
    pub(super) unpushed: u64,
    /// What git was in the middle of, such as `rebase-merge`.
    pub(super) unfinished: Option<&'static str>,
    /// A file whose changes git was told not to look at.
    pub(super) hidden: Option<String>,
    /// A process that works in it.
    pub(super) used_by: Option<u32>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is proved clean.
    Prune,
    /// It stays, and why.
    Keep(String),
}

/// Decides. `alive` says why its child may still work in it, if it may.
pub(super) fn judge(inspection: &Result<Inspection, String>, alive: Option<&str>) -> Verdict {
    if let Some(why) = alive {
        return Verdict::Keep(format!("kept: {why}"));
    }
    let seen = match inspection {
        Ok(seen) => seen,
        Err(why) => return Verdict::Keep(format!("kept, since it could not be looked at: {why}")),
    };
    let Inspection { dirty, commits, unpushed, unfinished, hidden, used_by } = seen;
    let mut reasons = Vec::new();
    if *dirty {
        reasons.push("it has changes that are not committed".to_owned());
    }
    if *unpushed > 0 {
        let among = if commits > unpushed { format!(" of its {commits}") } else { String::new() };
        reasons.push(format!("{unpushed} commit(s){among} are nowhere else"));
    }
    if let Some(what) = unfinished {
        reasons.push(format!("git is in the middle of something there ({what})"));
    }
    if let Some(path) = hidden {
        reasons.push(format!("git was told not to look at {path} there"));
    }
    if let Some(pid) = used_by {
        reasons.push(format!("process {pid} works in it"));
    }
    if reasons.is_empty() {
        Verdict::Prune
    } else {
        Verdict::Keep(format!("kept: {}", reasons.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the six, with and without a child that may be alive; and no inspection at all.
    #[test]
    fn only_what_is_proved_clean_goes() {
        let mut pruned = 0;
        for bits in 0..64_u32 {
            let is = |bit: u32| bits & (1 << bit) != 0;
            let seen = Inspection {
                dirty: is(0),
                commits: if is(1) || is(2) { 3 } else { 0 },
                unpushed: if is(1) { 2 } else { 0 },
                unfinished: is(3).then_some("MERGE_HEAD"),
                hidden: is(4).then(|| "a".to_owned()),
                used_by: is(5).then_some(7),
            };
            let only_pushed = bits & !0b100 == 0;
            for alive in [None, Some("its thread may still run")] {
                let verdict = judge(&Ok(seen.clone()), alive);
                let prune = only_pushed && alive.is_none();
                assert_eq!(verdict == Verdict::Prune, prune, "{seen:?} {alive:?}: {verdict:?}");
                pruned += u32::from(prune);
            }
        }
        assert_eq!(pruned, 2, "nothing at all, and commits that were all pushed");
        let Verdict::Keep(why) = judge(&Err("no git".to_owned()), None) else { panic!("it went") };
        assert_eq!(why, "kept, since it could not be looked at: no git");
    }

    #[test]
    fn every_reason_is_told() {
        let seen = Inspection {
            dirty: true,
            commits: 3,
            unpushed: 1,
            unfinished: Some("rebase-merge"),
            hidden: None,
            used_by: Some(9),
        };
        let Verdict::Keep(why) = judge(&Ok(seen), None) else { panic!("it went") };
        assert_eq!(
            why,
            "kept: it has changes that are not committed; 1 commit(s) of its 3 are nowhere else; git is in the \
             middle of something there (rebase-merge); process 9 works in it"
        );
    }
}
