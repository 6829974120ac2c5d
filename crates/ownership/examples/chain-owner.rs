//! A fixture: an owner of chains whose links fork, set a session and exit all the time, and ignore TERM.
//! Each scope must be empty when it is told to be, and everything must be when the owner is killed.
//! They storm, so only for a pid namespace of its own.
//!
//! `chain-owner end|die ROUNDS [CHAINS MILLIS]`: `CHAINS` is a program that leaves chains which hop every
//! `MILLIS`; without it they are shells. With `end` each round is a scope that ends, with `die` an owner
//! that is killed. `chain-owner own [CHAINS MILLIS]` is such an owner.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells what it sees")]

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ownership::{Owner, Program, Spawn};

const SHELLS: &str = r#"
trap "" TERM
export LINK=': chain-link; setsid sh -c "$LINK" & exit 0'
for chain in 1 2 3 4 5; do setsid sh -c "$LINK" & done
sleep "${CHAIN_ROOT_STAYS:-0.05}""#;

/// Longer than anything takes here but the harness's patience.
const DEADLINE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let first = std::fs::read_to_string("/proc/1/cmdline").expect("proc");
    assert!(first.contains("chain-owner"), "only in a pid namespace of its own");
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rounds = || args[1].parse::<u32>().expect("rounds");
    match args[0].as_str() {
        "end" => (0..rounds()).for_each(|round| end(round, &args[2..])),
        "die" => (0..rounds()).for_each(|round| die(round, &args[2..])),
        _ => own(&args[1..]),
    }
    ExitCode::SUCCESS
}

fn chains(program: &[String]) -> Spawn {
    match program {
        [program, millis] => Spawn::new(program).arg(millis),
        _ => Spawn::new("/bin/sh").arg("-c").arg(SHELLS),
    }
}

#[expect(clippy::disallowed_methods, reason = "a fixture that measures")]
fn now() -> Instant {
    Instant::now()
}

/// The chains are what the scope's root leaves.
fn end(round: u32, program: &[String]) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let beside = Spawn::new("/bin/sh").arg("-c").arg("setsid sleep 777 & wait");
    let beside = owner.spawn(beside, |_| {}).expect("spawn");
    wait_for("somebody is beside them", sleeper_lives);
    let grace = Duration::from_millis(u64::from(round % 2) * 30);
    let child = owner.spawn(chains(program).grace(grace), |_| {}).expect("spawn");
    child.wait().expect("exit");
    let since = now();
    let empty = child.wait_empty().expect("empty");
    eprintln!("round {round}: empty {:?} after the root, grace {grace:?}", since.elapsed());
    assert!(empty.left.is_empty(), "{empty:?}");
    assert_eq!(links(), 0, "told to be empty in round {round}");
    assert!(sleeper_lives(), "who is beside them lives on");
    beside.end(Duration::ZERO);
    beside.wait_empty().expect("empty");
}

/// Leaves the chains in a scope that is not ended, says so, and waits to be killed.
fn own(program: &[String]) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let spawn = chains(program).env("CHAIN_ROOT_STAYS", "600").grace(Duration::from_millis(20));
    let _child = owner.spawn(spawn, |_| {}).expect("spawn");
    wait_for("the chains are there", || links() > 1);
    println!("ready");
    std::thread::park_timeout(DEADLINE);
}

fn die(round: u32, program: &[String]) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg("own").args(program).stdout(Stdio::piped());
    #[expect(clippy::disallowed_methods, reason = "an owner that is to be killed")]
    let mut owner = command.spawn().expect("owner");
    let stdout = std::io::BufReader::new(owner.stdout.take().expect("stdout"));
    assert_eq!(stdout.lines().next().expect("a line").expect("read"), "ready");
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    let since = now();
    wait_for("the supervisor has left", || !supervised());
    eprintln!("round {round}: supervisor gone {:?} after its owner", since.elapsed());
    assert_eq!(links(), 0, "the supervisor has left them in round {round}");
}

fn wait_for(what: &str, mut fact: impl FnMut() -> bool) {
    let until = now() + DEADLINE;
    while !fact() {
        assert!(now() < until, "in time: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// How many links live.
fn links() -> usize {
    lines().filter(|line| line.contains("chain-link") && !line.contains("chain-owner")).count()
}

/// Whether the member of the scope that stands beside the storm lives.
fn sleeper_lives() -> bool {
    lines().any(|line| line.starts_with("sleep") && line.trim_end_matches('\0').ends_with("777"))
}

/// All command lines; the dead have none.
fn lines() -> impl Iterator<Item = String> {
    entries().filter_map(|one| std::fs::read_to_string(one.join("cmdline")).ok())
}

/// Whether a supervisor is there that is not dead.
fn supervised() -> bool {
    let stats = entries().filter_map(|one| std::fs::read_to_string(one.join("stat")).ok());
    stats.filter(|stat| !stat.contains(") Z ")).any(|stat| stat.contains("(warden)"))
}

fn entries() -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir("/proc").expect("proc").flatten().map(|entry| entry.path())
}
