//! Chaos: rounds of SIGKILL at a random moment for a random one of owner, keeper, supervisor and child, while
//! the owner starts, ends and opens scopes. Then the owner is killed, if it was not. Nothing may be left, no
//! stranger hit, and no living child of a living owner lost.
//!
//! `chaos ROUNDS [SEED [FIRST]]` makes a pid namespace of its own and plays inside, as its PID 1; it plays
//! nowhere else. A seed and a round give the same script and victim again, not the same moment.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells what it sees")]
#![expect(clippy::disallowed_methods, reason = "it starts owners bare, and measures")]

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

#[path = "support/player.rs"]
mod player;
#[path = "../tests/support/process.rs"]
mod process;
#[path = "support/rounds.rs"]
mod rounds;
#[path = "support/scripted.rs"]
mod scripted;

use player::{DEADLINE, Player};
use process::{Identity, everybody};
use rounds::{Random, Script, Step};

/// Everybody is gone by then: the longest grace is a scope's own, of 3 s.
const GONE: Duration = Duration::from_secs(8);

/// The role of an owner.
const OWNER: &str = "@chaos-owner";

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == OWNER || arg == scripted::WORKER) {
        return scripted::run();
    }
    let Some(rounds) = args.first().and_then(|rounds| rounds.parse().ok()) else {
        eprintln!("chaos ROUNDS [SEED [FIRST]]");
        return ExitCode::from(2);
    };
    if std::process::id() != 1 {
        return enter(&args);
    }
    let time =
        || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| u64::from(since.subsec_nanos()));
    let seed = args.get(1).and_then(|seed| seed.parse().ok()).unwrap_or_else(time);
    let first = args.get(2).and_then(|first| first.parse().ok()).unwrap_or(0);
    play(first, rounds, seed)
}

/// Runs itself as PID 1 of a namespace of its own.
fn enter(args: &[String]) -> ExitCode {
    let mut command = Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(std::env::current_exe().expect("this program")).args(args);
    let status = command.status().expect("setsid and unshare");
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn owner() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg(OWNER);
    command
}

/// Whom a round kills first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Owner,
    Keeper,
    Supervisor,
    Child,
    /// A child that starts others.
    Worker,
}

#[derive(Default)]
struct Tally {
    rounds: u32,
    worst: Duration,
    checked: usize,
}

fn play(first: u64, rounds: u64, seed: u64) -> ExitCode {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    stranger(dir);
    let mut control = Player::start(&mut owner());
    let mut steps = Script::default();
    steps.add(Step::Sleeper(1));
    steps.add(Step::Tree(2));
    steps.lines.iter().for_each(|line| control.say(line));
    control.ping().expect("a control owner");
    // The tree's members start a moment after their root.
    std::thread::sleep(Duration::from_millis(300));
    let others: HashSet<Identity> = everybody().collect();
    let has_keeper = control.guards().is_some_and(|guards| guards.keeper.is_some());
    assert!(has_keeper, "two guards stand above a child");
    println!("seed {seed}, {rounds} rounds");
    let mut tallies: BTreeMap<Victim, Tally> = BTreeMap::new();
    let mut faults = Vec::new();
    for round in first..first + rounds {
        let mut random = Random::new(seed, round);
        let (victim, report) = play_round(&mut random, &others);
        let tally = tallies.entry(victim).or_default();
        tally.rounds += 1;
        tally.worst = tally.worst.max(report.to_empty);
        tally.checked += report.checked;
        let mut found = report.faults;
        let gone = others.iter().filter(|who| !who.lives()).map(|who| who.pid).collect::<Vec<_>>();
        if !gone.is_empty() || !holds_lock(dir) {
            found.push(format!("STRANGERS HIT: {gone:?}"));
        }
        for fault in found {
            println!("round {round} ({victim:?}): {fault}");
            faults.push(round);
        }
        if faults.len() > 50 {
            break;
        }
        if (round + 1) % 100 == 0 {
            println!("{} rounds, {} faults", round + 1 - first, faults.len());
        }
    }
    println!("killed first   rounds  worst ms to empty  living children looked at");
    for (victim, tally) in &tallies {
        let worst = tally.worst.as_millis();
        println!(
            "{:<12} {:>8} {worst:>18} {:>26}",
            format!("{victim:?}"),
            tally.rounds,
            tally.checked
        );
    }
    println!("{} faults", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Report {
    to_empty: Duration,
    checked: usize,
    faults: Vec<String>,
}

fn play_round(random: &mut Random, others: &HashSet<Identity>) -> (Victim, Report) {
    let mut faults = Vec::new();
    let dir = tempfile::tempdir().expect("a folder");
    let mut player = Player::start(owner().env("DIR", dir.path()));
    let mut script = Script::default();
    script.write(random);
    for line in &script.lines {
        player.say(line);
    }
    player.until("a first child", |player| !player.alive().is_empty()).expect("a first child");
    let within = if random.below(4) == 0 { 3_000 } else { 120_000 };
    player.listen_for(Duration::from_micros(random.below(within)));
    let (victim, who) = choose(random, &player, &script);
    who.kill();
    if matches!(victim, Victim::Child | Victim::Worker) {
        player.killed.insert(who);
    }
    let at_once = matches!(victim, Victim::Keeper | Victim::Supervisor) && random.below(3) == 0;
    let mut checked = 0;
    if at_once {
        // The owner dies while its guard is being replaced.
        player.listen_for(Duration::from_micros(random.below(4_000)));
    } else if victim != Victim::Owner {
        match check(&mut player, &script, dir.path()) {
            Ok(living) => checked = living,
            Err(fault) => faults.push(fault),
        }
        faults.append(&mut complaints(&player, &script));
    }
    let since = Instant::now();
    player.identity.kill();
    let mut left = left(others);
    while !left.is_empty() && since.elapsed() < GONE {
        std::thread::sleep(Duration::from_millis(1));
        left = self::left(others);
    }
    let to_empty = since.elapsed();
    for who in &left {
        faults.push(format!("LEFT: {} {} below {:?}", who.pid, who.name(), who.parent()));
        who.kill();
    }
    (victim, Report { to_empty, checked, faults })
}

fn choose(random: &mut Random, player: &Player, script: &Script) -> (Victim, Identity) {
    let mut any = |of: Vec<Identity>| {
        let at = usize::try_from(random.below(of.len().max(1) as u64)).expect("few");
        of.get(at).copied()
    };
    let alive = any(player.alive()).map(|who| (Victim::Child, who));
    let workers = script.workers.iter().filter_map(|id| player.started.get(id).copied());
    let worker = any(workers.filter(|who| who.lives()).collect()).map(|who| (Victim::Worker, who));
    let guards = player.guards();
    let keeper = guards.and_then(|guards| Some((Victim::Keeper, guards.keeper?)));
    let supervisor = guards.map(|guards| (Victim::Supervisor, guards.supervisor));
    let kinds = [None, alive, worker, keeper, supervisor];
    let chosen = kinds.get(usize::try_from(random.below(5)).expect("few")).copied().flatten();
    chosen.unwrap_or((Victim::Owner, player.identity))
}

/// The owner lives: all it was told is done, and every child of it that should live does. How many.
fn check(player: &mut Player, script: &Script, dir: &Path) -> Result<usize, String> {
    player.ping()?;
    // Ends that were ordered are told when they are over.
    player.until("every end is told", |player| {
        let over = |id: &u32| player.told("emptied", *id) > 0 || player.told("failed", *id) > 0;
        script.over.iter().all(over) && player.killed_ids().iter().all(over)
    })?;
    let should = script.living().filter(|id| !player.killed_ids().contains(id));
    let living: Vec<u32> = should.collect();
    for id in &living {
        match player.started.get(id) {
            Some(who) if who.lives() => {}
            Some(who) => {
                return Err(format!("LOST: child {id} ({who:?}) is dead: {:?}", player.of(*id)));
            }
            None => return Err(format!("UNANSWERED: child {id}: {:?}", player.of(*id))),
        }
    }
    for worker in script.workers.iter().filter(|id| living.contains(id)) {
        let count = dir.join(format!("worker.{worker}"));
        if !goes_on(&count) {
            let last = std::fs::read_to_string(count).unwrap_or_default();
            return Err(format!("DEAF: worker {worker} starts nothing any more: {last}"));
        }
    }
    Ok(living.len())
}

/// Whether a worker still starts programs: its count grows.
fn goes_on(count: &Path) -> bool {
    let read = || std::fs::read_to_string(count).ok().and_then(|text| text.parse::<u64>().ok());
    let (until, mut before) = (Instant::now() + DEADLINE, None);
    while Instant::now() < until {
        match (before, read()) {
            (Some(before), Some(now)) if now > before => return true,
            (None, now) => before = now,
            (Some(_), _) => {}
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// What is told of children that does not fit to what was done with them.
fn complaints(player: &Player, script: &Script) -> Vec<String> {
    let mut faults = Vec::new();
    for id in script.all() {
        let (lost, failed) = (player.told("lost", id), player.told("failed", id));
        let (exits, empties) = (player.told("exited", id), player.told("emptied", id));
        if lost + failed > 0 || exits > 1 || empties > 1 {
            faults.push(format!("TOLD: {id}: {:?}", player.of(id)));
        }
    }
    faults
}

/// Who is left in the namespace, the dead apart.
fn left(others: &HashSet<Identity>) -> Vec<Identity> {
    bury();
    everybody().filter(|who| !others.contains(who) && who.lives()).collect()
}

/// PID 1 is the parent of every orphan.
fn bury() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// A process that belongs to nobody, and holds a lock.
#[expect(clippy::zombie_processes, reason = "it ends with the namespace")]
fn stranger(dir: &Path) {
    let path = dir.join("lock");
    let mut command = Command::new("flock");
    command.arg("--no-fork").arg(path).args(["sleep", "100000"]).spawn().expect("flock");
    let until = Instant::now() + DEADLINE;
    while !holds_lock(dir) {
        assert!(Instant::now() < until, "the stranger takes its lock");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn holds_lock(dir: &Path) -> bool {
    let lock = std::fs::File::create(dir.join("lock")).expect("a lock");
    matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}
