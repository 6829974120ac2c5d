//! A fixture: an owner of chains whose links fork, set a session and exit all the time, and ignore TERM.
//! Each scope must be empty when it is told to be. `chain-owner ROUNDS`; it storms, so only for a pid
//! namespace of its own.

use std::process::ExitCode;
use std::time::Duration;

use ownership::{Owner, Program, Spawn};

const CHAINS: &str = r#"
export LINK='trap "" TERM; : chain-link; setsid sh -c "$LINK" & exit 0'
for chain in 1 2 3 4 5; do setsid sh -c "$LINK" & done
sleep 0.05"#;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    assert!(std::process::id() < 1000, "only in a pid namespace of its own");
    let rounds: u32 =
        std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).expect("rounds");
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    for round in 0..rounds {
        let grace = Duration::from_millis(u64::from(round % 2) * 30);
        let spawn = Spawn::new("/bin/sh").arg("-c").arg(CHAINS).grace(grace);
        let child = owner.spawn(spawn, |_| {}).expect("spawn");
        let empty = child.wait_empty().expect("empty");
        assert!(empty.left.is_empty(), "{empty:?}");
        assert_eq!(links(), 0, "told to be empty in round {round}");
    }
    ExitCode::SUCCESS
}

fn links() -> usize {
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let lines =
        processes.filter_map(|one| std::fs::read_to_string(one.path().join("cmdline")).ok());
    lines.filter(|line| line.contains("chain-link")).count()
}
