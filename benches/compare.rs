//! Our figures beside those of bare programs, interleaved in one run: medians and minima, and their
//! ratio. `cargo bench --bench compare [-- [ROUNDS] [WORD]]`, 15 rounds without a number; with a word, the rows
//! whose name has it.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts bare programs")]
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

mod support;

use std::process::ExitCode;
use std::time::Duration;

use delegate_runtime::Isolation;

use support::{Rig, bare_bytes, bare_kill, bare_messages, bare_start};

const ROUNDS: usize = 15;
const EVENTS: usize = 100_000;
/// What one of our tool events is on the wire, about.
const EVENT_BYTES: usize = 200;
const MIB: usize = 1 << 20;

fn main() -> ExitCode {
    support::main(|| {
        // Cargo adds a word of its own, which is none of ours.
        let said: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
        let rounds = said.iter().find_map(|word| word.parse().ok()).unwrap_or(ROUNDS);
        let only = said.into_iter().find(|word| word.parse::<usize>().is_err());
        let row = |name: &str, columns: [&mut dyn FnMut() -> Duration; 3]| {
            if only.as_ref().is_none_or(|word| name.contains(word)) {
                row(name, rounds, columns);
            }
        };
        let process = Rig::new(Isolation::Process, 10);
        let thread = Rig::new(Isolation::Thread, 10);
        println!("{rounds} rounds, interleaved; median / minimum in µs\n");
        println!("{:<26} {:>19} {:>19} {:>19}", "", "bare", "processes", "threads");
        row(
            "start to first event",
            [&mut || bare_start().0, &mut || process.start_and_outcome().0, &mut || {
                thread.start_and_outcome().0
            }],
        );
        row(
            "start to reaped, recorded",
            [&mut || bare_start().1, &mut || process.start_and_outcome().1, &mut || {
                thread.start_and_outcome().1
            }],
        );
        row(
            "64 children",
            [
                &mut || (0..64).map(|_| bare_start().1).sum(),
                &mut || process.batch(64, 1),
                &mut || thread.batch(64, 1),
            ],
        );
        row(
            "100,000 events",
            [
                &mut || bare_messages(EVENTS, EVENT_BYTES),
                &mut || process.events(EVENTS),
                &mut || thread.events(EVENTS),
            ],
        );
        row(
            "result of 1 MiB",
            [&mut || bare_bytes(MIB), &mut || process.batch(1, MIB), &mut || thread.batch(1, MIB)],
        );
        row(
            "result of 64 MiB",
            [&mut || bare_bytes(64 * MIB), &mut || process.batch(1, 64 * MIB), &mut || {
                thread.batch(1, 64 * MIB)
            }],
        );
        for (name, bytes) in
            [("1 MiB, from first word", MIB), ("64 MiB, from first word", 64 * MIB)]
        {
            row(
                name,
                [&mut || bare_bytes(bytes), &mut || process.result(bytes), &mut || {
                    thread.result(bytes)
                }],
            );
        }
        row("killed to record", [&mut bare_kill, &mut || process.killed(), &mut || Duration::ZERO]);
        row(
            "interrupt to seen",
            [&mut || Duration::ZERO, &mut || process.interrupt(), &mut || thread.interrupt()],
        );
    })
}

/// One of each per round, so that what disturbs the machine disturbs all of them.
fn row(name: &str, rounds: usize, mut columns: [&mut dyn FnMut() -> Duration; 3]) {
    let mut taken = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (column, taken) in columns.iter_mut().zip(&mut taken) {
            taken.push(column());
        }
    }
    let cells = taken.map(|mut times| {
        times.sort_unstable();
        let [median, minimum] = [times[times.len() / 2], times[0]].map(|time| time.as_micros());
        format!("{:>19}", format!("{median} / {minimum}"))
    });
    println!("{name:<26} {}", cells.join(" "));
}
