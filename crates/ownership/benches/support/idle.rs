//! What guards cost while nothing happens: memory, and how often they run.

use std::fs;
use std::time::Duration;

use super::owners::{Kind, Peers, Running, Shape};
use super::process::{Identity, children_of, everybody, is_guard};

const QUIET: Duration = Duration::from_secs(10);

/// One process as it is now.
struct Cost {
    rss: u64,
    pss: u64,
    switches: u64,
}

impl Cost {
    fn of(who: Identity) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", who.pid));
        let memory = read("smaps_rollup").unwrap_or_default();
        let status = read("status").unwrap_or_default();
        Self {
            rss: number(&memory, "Rss:"),
            pss: number(&memory, "Pss:"),
            switches: number(&status, "voluntary_ctxt_switches:")
                + number(&status, "nonvoluntary_ctxt_switches:"),
        }
    }
}

fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The guards of each kind beside each other, over the same ten seconds.
pub(crate) fn table(peers: &Peers) {
    let kinds = peers.kinds();
    let owners: Vec<_> =
        kinds.iter().map(|kind| (*kind, Running::start(peers, *kind, Shape::Obey, 1))).collect();
    let guards: Vec<_> = owners.iter().map(|(kind, owner)| guards(*kind, owner)).collect();
    let cost = |guards: &Vec<Identity>| guards.iter().map(|who| Cost::of(*who)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_secs(1));
    let before: Vec<_> = guards.iter().map(cost).collect();
    std::thread::sleep(QUIET);
    let after: Vec<_> = guards.iter().map(cost).collect();
    println!("\nguards of one child, idle; context switches in {QUIET:?}");
    println!("{:<24}{:>10}{:>12}{:>12}{:>10}", "", "processes", "RSS KiB", "PSS KiB", "switches");
    for ((kind, before), after) in kinds.iter().zip(before).zip(after) {
        let sum = |field: fn(&Cost) -> u64| after.iter().map(field).sum::<u64>();
        let switches = sum(|cost| cost.switches);
        let switches = switches - before.iter().map(|cost| cost.switches).sum::<u64>();
        let (rss, pss) = (sum(|cost| cost.rss), sum(|cost| cost.pss));
        println!("{:<24}{:>10}{rss:>12}{pss:>12}{switches:>10}", kind.name(), after.len());
        if super::in_rows() {
            for (what, value) in [("resident", rss), ("proportional", pss), ("switches", switches)]
            {
                println!("@row\t{what}: {}\t{value}\t{value}\t1", kind.name());
            }
        }
    }
}

fn guards(kind: Kind, running: &Running) -> Vec<Identity> {
    match kind {
        Kind::C | Kind::Dash => {
            let below = children_of(running.owner.id().cast_signed());
            let all = below.into_iter().filter_map(Identity::of);
            all.filter(|who| !running.members.contains(who)).collect()
        }
        Kind::Small | Kind::Static | Kind::Itself => {
            everybody().filter(|who| is_guard(*who) && who.has_variable(&running.mark)).collect()
        }
    }
}
