//! The whole of it: an owner, a child that double-forks, and the verified end.

use std::process::ExitCode;
use std::time::Duration;

use ownership::{Owner, Program, Spawn};

fn main() -> ExitCode {
    // The same program is its own supervisor: this comes first.
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let owner = Owner::new(Program::current().expect("/proc"), Vec::new());
    let spawn = Spawn::new("sh").arg("-c").arg("(setsid sleep 1000 &) ; exit 7");
    let child = owner.spawn(spawn.grace(Duration::from_secs(1)), |_| {}).expect("spawn");
    let exit = child.wait().expect("a supervisor that lives");
    let empty = child.wait_empty().expect("a supervisor that lives");
    assert!(empty.left.is_empty(), "the kernel says that nothing is left");
    assert_eq!(exit.status, ownership::ExitStatus::Code(7));
    ExitCode::SUCCESS
}
