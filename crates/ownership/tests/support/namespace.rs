//! A pid namespace of its own for tests that recycle numbers or signal whomever they see: the test runs
//! this binary again inside, as PID 1, for itself alone.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what the test inside has said")]

use std::process::Command;
use std::time::{Duration, Instant};

/// Set inside.
const INSIDE: &str = "OWNERSHIP_TEST_INSIDE";

/// Whether the test `name` is inside, and goes on. Outside it runs itself inside and this is `false`; it
/// fails as the one inside does. Skips loudly where no namespace may be made.
pub(crate) fn enter(name: &str, limit: Duration) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(std::process::id(), 1, "only as PID 1 of a namespace of its own");
        return true;
    }
    let dir = tempfile::tempdir().expect("dir");
    let (out, error) = (dir.path().join("out"), dir.path().join("error"));
    let create = |path| std::fs::File::create(path).expect("create");
    let mut command = Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env(INSIDE, "1");
    command.stdin(std::process::Stdio::null()).stdout(create(&out)).stderr(create(&error));
    let mut inside = command.spawn().expect("setsid");
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = inside.try_wait().expect("wait") {
            break Some(status);
        }
        if Instant::now() > until {
            // What is inside dies with it (--kill-child).
            super::process::children_of(inside.id().cast_signed())
                .into_iter()
                .chain([inside.id().cast_signed()])
                .filter_map(super::Identity::of)
                .for_each(super::Identity::kill);
            inside.wait().expect("wait");
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |path| std::fs::read_to_string(path).expect("read");
    let (out, error) = (read(&out), read(&error));
    if error.contains("Operation not permitted") && !out.contains("running") {
        eprintln!("SKIPPED {name}: no pid namespace may be made here: {error}");
        return false;
    }
    println!("{out}{error}");
    assert!(status.is_some_and(|status| status.success()), "inside: {status:?}");
    assert!(out.contains("1 passed"), "it ran inside");
    false
}
