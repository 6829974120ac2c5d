//! A fixture: an owner that has almost no descriptors left. A handle that cannot be received is an error
//! of the start, never a wait without end, and nothing stays behind.

use std::process::ExitCode;
use std::time::Duration;

use ownership::{Owner, Program, Spawn};
use rustix::process::{Resource, getrlimit, setrlimit};

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let sleep = || Spawn::new("sleep").arg("600").arg("x".repeat(100_000)).arg("x".repeat(100_000));
    drop(owner.spawn(Spawn::new("true"), |_| {}).expect("with descriptors").wait_empty());
    let before = getrlimit(Resource::Nofile);
    let used = std::fs::read_dir("/proc/self/fd").expect("fds").count() as u64;
    let (mut started, mut refused) = (0, 0);
    for room in 0..12 {
        let mut tight = before;
        tight.current = Some(used - 4 + room);
        setrlimit(Resource::Nofile, tight).expect("limit");
        match owner.spawn(sleep(), |_| {}) {
            Ok(child) => {
                child.end(Duration::ZERO);
                child.wait_empty().expect("empty");
                started += 1;
            }
            Err(error) => {
                assert_eq!(error.errno, Some(libc::EMFILE), "{error}");
                refused += 1;
            }
        }
    }
    setrlimit(Resource::Nofile, before).expect("limit");
    assert!(started > 0 && refused > 2, "{started} {refused}");
    let child = owner.spawn(Spawn::new("true"), |_| {}).expect("with descriptors again");
    child.wait_empty().expect("empty");
    ExitCode::SUCCESS
}
