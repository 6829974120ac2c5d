//! The columns of `rows` as criterion benches, one by one and not in turns: what criterion says of its samples (spread,
//! outliers, the change since the last time) is worth more than a ratio to whoever changes the code.
//!
//! A column is named `ROW/COLUMN`. Where a row counts something else than time (memory, shares), the time of its whole round is
//! sampled. Rows with a bench of their own in `ownership` are sampled there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use criterion::Criterion;

use crate::PATIENCE;
use crate::participant::Participant;
use crate::peers::{Peers, Who};
use crate::rows::{Column, Group};

/// A round is a process or many, so few of them must do; criterion takes no fewer than ten.
const SAMPLES: usize = 15;
const FEWEST: usize = 10;

/// Rounds of one sample at most, and of a column that takes longer than a moment. Criterion asks for as many as fit its time by what is
/// measured, which may be a small part of a round; what it is given is their mean.
const ROUNDS: u64 = 8;
const LONG: usize = 5;

/// Samples each column whose name has `filter` in it. What is missing here is said, and left out.
pub(crate) fn measure(peers: &Peers, groups: &[Group], filter: &str) {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    let mut sides: HashMap<Who, Result<Participant, String>> = HashMap::new();
    for group in groups {
        let named = |column: &&Column| format!("{}/{}", group.key, column.name).contains(filter);
        for column in group.columns.iter().filter(named) {
            let side = sides.entry(column.who.clone()).or_insert_with(|| peers.start(&column.who));
            match side {
                Ok(side) => sample(&mut criterion, group, column, side),
                Err(why) => eprintln!("!! MISSING, {}/{}: {why}", group.key, column.name),
            }
        }
        if let Some(bench) = &group.bench
            && group.key.contains(filter)
        {
            let (package, name) = (bench.package, bench.name);
            eprintln!("{}: cargo bench -p {package} --bench {name} -- criterion", group.key);
        }
    }
    criterion.final_summary();
}

fn sample(criterion: &mut Criterion, group: &Group, column: &Column, side: &mut Participant) {
    let mut rows = criterion.benchmark_group(group.key);
    let is_long = column.rounds <= LONG;
    rows.sample_size(if is_long { FEWEST } else { SAMPLES });
    let mut round = || {
        let began = Instant::now();
        let numbers = side.ask(&column.request, PATIENCE);
        let whole = began.elapsed().as_nanos() as f64;
        let numbers = numbers.unwrap_or_else(|why| panic!("{}: {why}", column.name));
        let number = nanos(group.unit).zip(numbers.get(column.place));
        number.map_or(whole, |(unit, number)| number / column.per * unit)
    };
    rows.bench_function(&column.name, |bench| {
        bench.iter_custom(|wanted| {
            let rounds = if is_long { 1 } else { wanted.min(ROUNDS) };
            let mean = (0..rounds).map(|_| round()).sum::<f64>() / rounds as f64;
            Duration::from_secs_f64(mean * wanted as f64 / 1e9)
        });
    });
    rows.finish();
}

/// What one of this unit is, if it is a time.
fn nanos(unit: &str) -> Option<f64> {
    match unit {
        "µs" => Some(1e3),
        "ms" => Some(1e6),
        _ => None,
    }
}
