//! Storms: members that fork, take a session of their own and exit all the time, while their owner is killed, many
//! rounds. Runs as PID 1 of a pid namespace of its own, over [`crate::inside`]; the storming user may have a
//! limited number of processes. One round without us is a control: a single walk over all, and KILL.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::inside::{Agent, CONTROL, Stranger, wait_for};
use crate::look::{Identity, everybody, reap};
use crate::outside::{Tools, compile};
use crate::rows::{ROW, Row};
use crate::table::{Case, End, Mode, Tier};

/// What storms, and how many there are at least before the owner is killed.
pub(crate) const KINDS: [(&str, &str, usize); 4] = [
    ("hop 2 ms", r#"tool=$AS prlimit --nproc=400 "$DIR/../storm" hop 2; :"#, 6),
    ("hop 5 ms", r#"tool=$AS prlimit --nproc=400 "$DIR/../storm" hop 5; :"#, 6),
    ("hop 20 ms", r#"tool=$AS prlimit --nproc=400 "$DIR/../storm" hop 20; :"#, 6),
    (FORK, r#"tool=$AS prlimit --nproc=100 "$DIR/../storm" fork; :"#, 50),
];

/// The one that no walk outruns for sure: that it ends is reported, and not promised.
const FORK: &str = "fork, 100 processes";

/// Rounds of the control, which shows something soon, and of [`FORK`], which holds the machine up.
const FEW: u32 = 20;

/// Rounds of a kind where so many are asked for.
pub(crate) fn rounds(kind: &str, mode: Mode, asked: u32) -> u32 {
    if kind == FORK || mode == Mode::Before { asked.min(FEW) } else { asked }
}

/// From the owner's end until a round is given up; reached by a failure alone.
const LIMIT: Duration = Duration::from_secs(20);

/// Milliseconds between TERM, which nobody obeys, and KILL.
const GRACE: u32 = 20;

/// After a single walk: a chain has hopped on by then.
const PAUSE: Duration = Duration::from_millis(100);

/// What was seen in all rounds of a kind.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Storm {
    pub(crate) rounds: u32,
    /// Processes that were alive at the end, of all rounds.
    pub(crate) left: usize,
    /// Most of one round.
    pub(crate) most: usize,
    /// From the owner's end until nobody was left, of each round.
    pub(crate) millis: Vec<u64>,
    /// The other owner, its children and the stranger live.
    pub(crate) untouched: bool,
}

/// All rounds of a kind, in this namespace.
pub(crate) fn run(
    kind: &str,
    mode: Mode,
    rounds: u32,
    tools: &Tools,
    dir: &Path,
) -> Result<Storm, String> {
    if std::process::id() != 1 {
        return Err("only as PID 1 of a pid namespace of its own: see `families --help`".to_owned());
    }
    let (_, script, least) = KINDS.iter().find(|(name, ..)| *name == kind).ok_or("no such kind")?;
    rustix::process::setsid().map_err(|error| format!("setsid: {error}"))?;
    compile(&dir.join("storm"), include_str!("storm.c"))?;
    let row = Row { name: "storm", grace: GRACE, ..ROW };
    let case = Case { row: row.name, end: End::Kill, mode, tier: Tier::Subreaper };
    let mut stranger = Stranger::start(&dir.join("stranger"))?;
    let mut control = Agent::start(&dir.join("control"), &case, tools, &CONTROL, &row)?;
    control.wait_for("the other owner", |agent| agent.is_started() && agent.lock_is_held())?;
    let others = everybody();
    let mut storm = Storm::default();
    for round in 0..rounds {
        let folder = dir.join(format!("round-{round}"));
        let mut agent = Agent::start(&folder, &case, tools, &[script], &row)?;
        let own = [stranger.number(), control.number(), agent.number()];
        wait_for("the storm", || {
            reap(&own);
            (agent.is_started() && agent.members(&others).len() >= *least).then_some(())
        })
        .map_err(|error| format!("{error}; it said: {}", agent.said()))?;
        agent.kill();
        let ended = Instant::now();
        let left = if mode == Mode::Before {
            for who in everybody().difference(&others) {
                who.signal(Signal::KILL);
            }
            std::thread::sleep(PAUSE);
            everybody().difference(&others).count()
        } else {
            until_nobody(&others, || {
                reap(&own);
                agent.has_ended();
            })
        };
        storm.millis.push(ended.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        storm.rounds += 1;
        storm.left += left;
        storm.most = storm.most.max(left);
        until_killed(&others, || reap(&own));
        agent.wait()?;
        std::fs::remove_dir_all(&folder).map_err(|error| error.to_string())?;
    }
    storm.untouched = stranger.is_untouched() && others.iter().all(|who| who.lives());
    Ok(storm)
}

/// How many are left when nobody should be: none, or those of the last look.
fn until_nobody(others: &BTreeSet<Identity>, mut reap: impl FnMut()) -> usize {
    let until = Instant::now() + LIMIT;
    loop {
        reap();
        let left = everybody().difference(others).count();
        if left == 0 || Instant::now() > until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a round has left goes before the next one.
fn until_killed(others: &BTreeSet<Identity>, reap: impl Fn()) {
    loop {
        let all = everybody();
        let mut left = all.difference(others).peekable();
        if left.peek().is_none() {
            return reap();
        }
        // Stopped, they hop no more.
        let left: Vec<_> = left.collect();
        for signal in [Signal::STOP, Signal::KILL] {
            for who in &left {
                who.signal(signal);
            }
        }
        reap();
    }
}

/// As Markdown: a line for each kind and mode.
pub(crate) fn markdown(storms: &[(&str, Mode, Result<Storm, String>)]) -> String {
    let mut text = String::from(
        "| storm | how it ends | rounds | left | most of one round | until empty: median, longest |\n\
         |---|---|---|---|---|---|\n",
    );
    for (kind, mode, storm) in storms {
        text.push_str(&line(kind, *mode, storm));
    }
    text
}

/// A line of the table.
pub(crate) fn line(kind: &str, mode: Mode, storm: &Result<Storm, String>) -> String {
    let how = match mode {
        Mode::Before => "one walk and KILL (control)",
        Mode::Own => "`delegate own`",
        Mode::Spawn => "spawn mode",
    };
    let seen = match storm {
        Ok(storm) => {
            let mut millis = storm.millis.clone();
            millis.sort_unstable();
            let at = |index: usize| millis.get(index).copied().unwrap_or_default();
            let (median, longest) = (at(millis.len() / 2), at(millis.len().saturating_sub(1)));
            let time = match mode {
                Mode::Before => "–".to_owned(),
                Mode::Own | Mode::Spawn => format!("{median} ms, {longest} ms"),
            };
            let touched = if storm.untouched { "" } else { " **others were touched**" };
            format!("{} | {} | {} | {time}{touched}", storm.rounds, storm.left, storm.most)
        }
        Err(why) => format!("**failed**: {why} | | |"),
    };
    format!("| {kind} | {how} | {seen} |\n")
}

/// Whether nothing was left with us where that is promised, and nobody else was touched.
pub(crate) fn holds(kind: &str, mode: Mode, storm: &Result<Storm, String>) -> bool {
    let promised = mode != Mode::Before && kind != FORK;
    storm.as_ref().is_ok_and(|storm| storm.untouched && (!promised || storm.left == 0))
}
