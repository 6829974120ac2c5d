//! What a case is, what is seen of it, and the table of all. Plain data and text; no process.

use std::fmt::Write;

use ownership::{Containment, Machine};
use serde::{Deserialize, Serialize};

use crate::miniatures::{self, EXCEPTIONS};
use crate::rows::{self, ROWS, Row};

/// How an owner ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// KILL.
    Kill,
    /// It tells its children to end, as agent programs do, and exits with code 0.
    Exit,
}

/// What stands above the owner or in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing of ours.
    Before,
    /// `delegate own -- OWNER`.
    Own,
    /// The owner starts its children over [`ownership::Owner`].
    Spawn,
}

impl End {
    pub(crate) const ALL: [Self; 2] = [Self::Kill, Self::Exit];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Exit => "exit",
        }
    }
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Before, Self::Own, Self::Spawn];

    fn title(self) -> &'static str {
        match self {
            Self::Before => "without us",
            Self::Own => "`delegate own`",
            Self::Spawn => "spawn mode",
        }
    }

    /// Its place in [`Mode::ALL`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Before => 0,
            Self::Own => 1,
            Self::Spawn => 2,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Own => "own",
            Self::Spawn => "spawn",
        }
    }
}

/// With what a tree is held together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Subreaper,
    Cgroup,
    PidNamespace,
}

impl Tier {
    pub(crate) const ALL: [Self; 3] = [Self::Subreaper, Self::Cgroup, Self::PidNamespace];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Subreaper => "subreaper",
            Self::Cgroup => "cgroup",
            Self::PidNamespace => "pid-namespace",
        }
    }

    /// What says so to `delegate own`.
    pub(crate) fn words(self) -> [&'static str; 2] {
        ["--containment", self.name()]
    }

    /// What says so to an owner.
    pub(crate) fn containment(self) -> Containment {
        match self {
            Self::Subreaper => Containment::Subreaper,
            Self::Cgroup => Containment::Cgroup,
            Self::PidNamespace => Containment::PidNamespace,
        }
    }

    /// Why it cannot be had here.
    pub(crate) fn refusal(self) -> Option<String> {
        let tier = match self {
            Self::Subreaper => ownership::containment::Tier::Subreaper,
            Self::Cgroup => ownership::containment::Tier::Cgroup,
            Self::PidNamespace => ownership::containment::Tier::PidNamespace,
        };
        Machine::look().refusal(tier).map(|why| why.to_string())
    }
}

/// One run: a row, an end, a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) row: &'static str,
    pub(crate) end: End,
    pub(crate) mode: Mode,
    pub(crate) tier: Tier,
}

/// What was seen of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Processes of the owner before its end: itself, what it started, and guards.
    pub(crate) started: usize,
    /// Who lived with the owner after the act, it and guards apart.
    pub(crate) alive: usize,
    /// The output of a call had ended then.
    pub(crate) output_ended: bool,
    /// Of these, or of what came later, alive at the end.
    pub(crate) left: usize,
    /// Their names.
    pub(crate) names: String,
    /// The dead that nobody has reaped, where PID 1 did not.
    pub(crate) dead: usize,
    /// From the owner's end until nobody was left, or until this was given up.
    pub(crate) millis: u64,
    /// Nobody holds the lock of the row or listens on its port.
    pub(crate) freed: bool,
    /// The other owner and all of its children live.
    pub(crate) control: bool,
    /// The stranger has its number, start time and lock.
    pub(crate) stranger: bool,
}

/// A case with what was seen, or why nothing was.
pub(crate) type Result = (Case, std::result::Result<Seen, String>);

/// The cases of these rows; a miniature's owner is killed.
pub(crate) fn cases(rows: &[&'static Row], tier: Tier) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows {
        for mode in Mode::ALL {
            let ends =
                End::ALL.into_iter().filter(|end| *end == End::Kill || row.expected.is_none());
            cases.extend(ends.map(|end| Case { row: row.name, end, mode, tier }));
        }
    }
    cases
}

impl Case {
    /// How many are to be left; `None` where that is measured only.
    fn wanted(&self) -> Option<usize> {
        let row = rows::find(self.row)?;
        let exception =
            EXCEPTIONS.iter().find(|(name, tier, ..)| *name == row.name && *tier == self.tier);
        match (row.expected.as_ref(), self.mode, exception) {
            (_, Mode::Own, Some((.., own, _))) => Some(*own),
            (_, Mode::Spawn, Some((.., spawn))) => Some(*spawn),
            (Some(expected), mode, _) => Some(expected.left[mode.index()]),
            (None, Mode::Before, _) => None,
            (None, Mode::Own | Mode::Spawn, _) => Some(0),
        }
    }

    /// Whether somebody may be left, so that nobody waits for them to go.
    pub(crate) fn leaves(&self) -> bool {
        self.wanted() != Some(0)
    }

    /// What is not as it must be; empty if all is.
    pub(crate) fn faults(&self, seen: &Seen) -> Vec<String> {
        let Some(row) = rows::find(self.row) else { return vec!["no such row".to_owned()] };
        let mut faults = Vec::new();
        let mut must = |is: bool, what: &str| {
            if !is {
                faults.push(what.to_owned())
            }
        };
        let at = self.mode.index();
        must(seen.control, "the other owner or its children were touched");
        must(seen.stranger, "the stranger was touched");
        if let Some(wanted) = self.wanted() {
            must(
                seen.left == wanted,
                &format!("{} are left, and not {wanted}: {}", seen.left, seen.names),
            );
        } else if self.end == End::Kill {
            must(
                (seen.left > 0) == row.leaves,
                &format!("{} are left without us: {}", seen.left, seen.names),
            );
        }
        must(seen.left > 0 || seen.freed, "a port or a lock is taken, and nobody is left");
        if let Some(expected) = &row.expected {
            let alive = expected.alive.is_none_or(|alive| alive[at] == seen.alive);
            must(alive, &format!("{} lived with the owner", seen.alive));
            let dead = expected.dead.is_none_or(|dead| dead[at] == seen.dead);
            must(dead, &format!("{} are dead and not reaped", seen.dead));
            let output = expected.output_ends.is_none_or(|ends| ends[at] == seen.output_ended);
            must(output, &format!("its output has ended: {}", seen.output_ended));
        }
        faults
    }
}

/// As Markdown: a line for each row, then what was missing and what failed.
pub(crate) fn markdown(results: &[Result], skipped: &[(&Row, String)]) -> String {
    let mut text = String::new();
    let has = |row: &Row| {
        results.iter().any(|(case, _)| case.row == row.name)
            || skipped.iter().any(|(skipped, _)| skipped.name == row.name)
    };
    let skip = |row: &Row| {
        let why = skipped.iter().find(|(skipped, _)| skipped.name == row.name);
        why.map(|(_, why)| format!("**skipped**: {why}"))
    };
    if ROWS.iter().any(has) {
        text.push_str("| | family | what is started | `kill -9` of the owner | clean exit | left without us |\n");
        text.push_str("|---|---|---|---|---|---|\n");
    }
    for row in ROWS.iter().filter(|row| has(row)) {
        let number = if row.family == 0 { "–".to_owned() } else { row.family.to_string() };
        let [kill, exit] = End::ALL.map(|end| skip(row).unwrap_or_else(|| cell(results, row, end)));
        let names = names(results, row);
        let line =
            format!("| {number} | {} | {} | {kill} | {exit} | {names} |", row.name, row.what);
        writeln!(text, "{line}").expect("text");
    }
    if miniatures::ROWS.iter().any(has) {
        text.push_str(if text.is_empty() { "" } else { "\n" });
        text.push_str("| | what happens | while the owner lives | after `kill -9` of it |\n|---|---|---|---|\n");
    }
    for row in miniatures::ROWS.iter().filter(|row| has(row)) {
        let left = skip(row).unwrap_or_else(|| cell(results, row, End::Kill));
        let alive = Mode::ALL.map(|mode| match find(results, row, End::Kill, mode) {
            Some(Ok(seen)) => seen.alive.to_string(),
            Some(Err(_)) | None => "–".to_owned(),
        });
        let alive = row.expected.as_ref().and_then(|expected| expected.alive).map(|_| alive);
        let alive = alive.map_or_else(String::new, |alive| alive.join(" / "));
        writeln!(text, "| {} | {} | {alive} | {left} |", row.name, row.what).expect("text");
    }
    text.push_str(&summary(results, skipped));
    text
}

/// `5 → 0 / 0`: without us, under `delegate own`, in spawn mode.
fn cell(results: &[Result], row: &Row, end: End) -> String {
    let [before, own, spawn] = Mode::ALL.map(|mode| match find(results, row, end, mode) {
        Some(Ok(seen)) => seen.left.to_string(),
        Some(Err(_)) => "failed".to_owned(),
        None => "–".to_owned(),
    });
    format!("{before} → **{own}** / **{spawn}**")
}

fn names(results: &[Result], row: &Row) -> String {
    let seen = find(results, row, End::Kill, Mode::Before);
    seen.and_then(|seen| seen.as_ref().ok()).map_or_else(String::new, |seen| seen.names.clone())
}

fn find<'a>(
    results: &'a [Result],
    row: &Row,
    end: End,
    mode: Mode,
) -> Option<&'a std::result::Result<Seen, String>> {
    let mut results = results.iter();
    results
        .find(|(case, _)| case.row == row.name && case.end == end && case.mode == mode)
        .map(|(_, seen)| seen)
}

fn summary(results: &[Result], skipped: &[(&Row, String)]) -> String {
    let seen: Vec<_> =
        results.iter().filter_map(|(case, seen)| Some((case, seen.as_ref().ok()?))).collect();
    let of = |mode: Mode| seen.iter().filter(move |(case, _)| case.mode == mode);
    let mut text = String::from("\n");
    for mode in Mode::ALL {
        let all = of(mode).count();
        let left: usize = of(mode).map(|(_, seen)| seen.left).sum();
        let freed = of(mode).filter(|(_, seen)| seen.freed).count();
        let mut millis: Vec<_> = of(mode).map(|(_, seen)| seen.millis).collect();
        millis.sort_unstable();
        let took = match (mode, millis.get(millis.len() / 2), millis.last()) {
            (Mode::Own | Mode::Spawn, Some(median), Some(last)) => {
                format!("; empty after {median} ms (median), {last} ms (longest)")
            }
            _ => String::new(),
        };
        let name = mode.title();
        writeln!(
            text,
            "- {name}: {all} cases, {left} processes left, ports and locks free in {freed}{took}"
        )
        .expect("text");
    }
    let touched = seen.iter().filter(|(_, seen)| !(seen.control && seen.stranger)).count();
    writeln!(text, "- other owner or stranger touched: {touched} of {} cases", seen.len())
        .expect("text");
    for (case, seen) in results {
        for why in faults(case, seen) {
            let (end, mode) = (case.end.name(), case.mode.name());
            writeln!(text, "- FAILED {} {end} {mode}: {why}", case.row).expect("text");
        }
    }
    for (row, why) in skipped {
        writeln!(text, "- SKIPPED {}: {why}", row.name).expect("text");
    }
    text
}

/// Why a case is not as it must be.
pub(crate) fn faults(case: &Case, seen: &std::result::Result<Seen, String>) -> Vec<String> {
    match seen {
        Ok(seen) => case.faults(seen),
        Err(why) => vec![why.clone()],
    }
}
