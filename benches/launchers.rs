//! A child's start by each launcher beside a bare program, interleaved in one run: medians and minima, and the
//! ratio of the medians to the bare one. `cargo bench --bench launchers [-- ROUNDS]`, 40 rounds without a number.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts bare programs")]
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use delegate_runtime::config::LauncherWish;

use support::{Rig, bare_start};

const ROUNDS: usize = 40;

/// Between two rounds: the shelf of a pool is filled again, as it is where children come one by one.
const REST: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    support::main(|| {
        let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
        let rounds: usize = rounds.unwrap_or(ROUNDS);
        let [exec, zygote, pool] =
            [LauncherWish::Exec, LauncherWish::Zygote, LauncherWish::Pool].map(Rig::launched);
        // Templates and shelves are there.
        for rig in [&exec, &zygote, &pool] {
            rig.start_and_outcome_of_heavy();
        }
        println!("{rounds} rounds, interleaved; median / minimum in µs, ratio of medians\n");
        println!("{:<28} {:>16} {:>22} {:>22} {:>22}", "", "bare", "exec", "zygote", "pool");
        row(
            "start to first event",
            rounds,
            [
                &mut || bare_start().0,
                &mut || exec.start_and_outcome().0,
                &mut || zygote.start_and_outcome().0,
                &mut || pool.start_and_outcome().0,
            ],
        );
        row(
            "start to reaped, recorded",
            rounds,
            [
                &mut || bare_start().1,
                &mut || exec.start_and_outcome().1,
                &mut || zygote.start_and_outcome().1,
                &mut || pool.start_and_outcome().1,
            ],
        );
        row(
            "the same, 64 MiB prepared",
            rounds,
            [
                &mut || bare_start().0,
                &mut || exec.start_and_outcome_of_heavy().0,
                &mut || zygote.start_and_outcome_of_heavy().0,
                &mut || pool.start_and_outcome_of_heavy().0,
            ],
        );
        row(
            "64 children, 10 places",
            rounds.div_ceil(4),
            [
                &mut || (0..64).map(|_| bare_start().1).sum(),
                &mut || exec.batch(64, 1),
                &mut || zygote.batch(64, 1),
                &mut || pool.batch(64, 1),
            ],
        );
        for account in zygote.delegator.templates() {
            let Some(prepared) = account.prepared else { continue };
            println!(
                "\ntemplate of {}: prepared in {} µs, a copy {} µs (small pages {} µs), {} KiB, {} KiB in huge pages",
                account.agent,
                prepared.prepare_us,
                prepared.fork_us,
                prepared.fork_us_small_pages,
                prepared.anonymous_kib,
                prepared.huge_kib,
            );
        }
    })
}

/// One of each per round, so that what disturbs the machine disturbs all of them.
fn row<const N: usize>(name: &str, rounds: usize, mut columns: [&mut dyn FnMut() -> Duration; N]) {
    let mut taken = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (column, taken) in columns.iter_mut().zip(&mut taken) {
            taken.push(column());
            thread::sleep(REST);
        }
    }
    let (mut bare, mut cells) = (Vec::new(), Vec::new());
    for mut times in taken {
        times.sort_unstable();
        let [median, minimum] = [times[times.len() / 2], times[0]].map(|time| time.as_micros());
        bare.push(median);
        let ratio = median as f64 / bare[0] as f64;
        cells.push(format!("{:>22}", format!("{median} / {minimum}  {ratio:.2}")));
    }
    println!("{name:<28} {}", cells.join(" "));
}
