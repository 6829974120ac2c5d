//! What ever more children cost that live at once: time, memory, descriptors, processor time of parent and guards. One
//! number after the other, each kind beside the others; a line that is not straight shows.

use std::time::Duration;

use serde_json::json;

use crate::crowd::place;
use crate::judge::number;
use crate::peers::{Peers, Who};
use crate::show::Machine;

/// Children alive at once.
const COUNTS: [usize; 5] = [1, 10, 100, 1_000, 4_000];

/// Rounds of a small number; one of a large one, which is long.
const ROUNDS: usize = 3;
const LARGE: usize = 1_000;

/// Nobody needs longer for 4,000.
const PATIENCE: Duration = Duration::from_secs(600);

/// What one number of children cost of one kind: the medians of an answer's numbers.
pub(crate) struct Grown {
    name: &'static str,
    count: usize,
    numbers: Result<Vec<f64>, String>,
}

pub(crate) fn measure(peers: &Peers, only: &[String]) -> Vec<Grown> {
    let counts = COUNTS.into_iter();
    let counts: Vec<usize> = match only {
        [] => counts.collect(),
        only => only.iter().filter_map(|count| count.parse().ok()).collect(),
    };
    let mut grown = Vec::new();
    for count in counts {
        let kinds = [
            ("bare processes of this program", Who::Still),
            ("ours: exec", Who::Ours("exec", count, 0)),
            ("ours: zygote", Who::Ours("zygote", count, 0)),
        ];
        let mut sides: Vec<_> =
            kinds.into_iter().map(|(name, who)| (name, peers.start(&who), Vec::new())).collect();
        let rounds = if count < LARGE { ROUNDS } else { 1 };
        for round in 0..rounds {
            for (name, side, taken) in &mut sides {
                eprintln!("{count} children, {name}, round {} of {rounds}", round + 1);
                let Ok(process) = side else { continue };
                match process.ask(&format!("alive {count}"), PATIENCE) {
                    Ok(numbers) => taken.push(numbers),
                    Err(why) => *side = Err(why),
                }
            }
        }
        grown.extend(sides.into_iter().map(|(name, side, taken)| {
            let numbers = side.map(|_| medians(taken));
            if let Err(why) = &numbers {
                eprintln!("!! FAILED, {count} of {name}: {why}");
            }
            Grown { name, count, numbers }
        }));
    }
    grown
}

fn medians(taken: Vec<Vec<f64>>) -> Vec<f64> {
    let width = taken.iter().map(Vec::len).min().unwrap_or(0);
    let middle = |at: usize| {
        let mut values: Vec<f64> = taken.iter().map(|numbers| numbers[at]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (0..width).map(middle).collect()
}

pub(crate) fn show(grown: &[Grown], machine: &Machine, as_json: bool) {
    if as_json {
        let rows = grown.iter().map(|Grown { name, count, numbers }| match numbers {
            Ok(numbers) => json!({"name": name, "children": count, "numbers": numbers}),
            Err(why) => json!({"name": name, "children": count, "failed": why}),
        });
        let names = [
            "ns_until_all_are_there",
            "ns_until_all_have_ended",
            "kib_of_children",
            "kib_of_their_kernel_side",
            "kib_of_all",
            "kib_less_available",
            "descriptors",
            "descriptors_of_guards",
            "cpu_ms",
            "cpu_ms_of_guards",
        ];
        println!(
            "{}",
            json!({"machine": machine.json(), "numbers": names, "rows": rows.collect::<Vec<_>>()})
        );
        return;
    }
    println!("{}\n", machine.words());
    println!(
        "Each child's share in brackets. Medians of {ROUNDS} rounds, from {LARGE} children on one.\n"
    );
    println!(
        "| alive at once | | all there, ms | all ended, ms | children, MiB (KiB) | their kernel's side, MiB (KiB) | all with parent and guards, MiB (KiB) | descriptors: parent / guards | processor, ms: parent / guards |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for Grown { name, count, numbers } in grown {
        match numbers {
            Ok(numbers) => println!("| {count} | {name} | {} |", cells(*count, numbers)),
            Err(why) => {
                println!("| {count} | {name} | failed: {} | | | | | | |", why.replace('|', "/"))
            }
        }
    }
}

fn cells(count: usize, numbers: &[f64]) -> String {
    let each = count as f64;
    let at = |place: usize| numbers.get(place).copied().unwrap_or(f64::NAN);
    let time = |place: usize| {
        let ms = at(place) / 1e6;
        format!("{} ({})", number(ms), number(ms / each))
    };
    let memory =
        |place: usize| format!("{} ({})", number(at(place) / 1024.0), number(at(place) / each));
    let both = |first: usize, second: usize| format!("{} / {}", at(first), at(second));
    [
        time(place::THERE),
        time(place::ENDED),
        memory(place::CHILDREN),
        memory(place::KERNEL),
        memory(place::ALL),
        both(place::DESCRIPTORS, place::GUARDS_DESCRIPTORS),
        both(place::CPU, place::GUARDS_CPU),
    ]
    .join(" | ")
}
