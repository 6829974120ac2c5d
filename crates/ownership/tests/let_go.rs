//! What tells apart the ways of letting a group go, and that nothing which tests switch off can be switched off in a
//! release build.
#![expect(clippy::disallowed_methods, reason = "tests start programs and wait")]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::process::Guards;
use support::{Identity, example, no_hooks, wait_for};

/// A `group-owner` with a group of one zombie, whose guards leave soon once they have nothing left.
struct ZombieOwner {
    process: Child,
    guards: Guards,
    _dir: tempfile::TempDir,
}

impl ZombieOwner {
    fn start(how: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = Command::new(example("group-owner"));
        command.arg(dir.path()).arg(how);
        command.env("DIR", dir.path()).env("OWNERSHIP_TEST_IDLE_MS", "1500");
        let process = command.stdin(Stdio::piped()).spawn().expect("group-owner");
        wait_for("ready", || dir.path().join("ready").exists().then_some(()));
        let mark = format!("DIR={}", dir.path().display());
        let guards = wait_for("its guards", || Guards::marked(&mark));
        Self { process, guards, _dir: dir }
    }

    fn guards_live(&self) -> bool {
        self.guards.supervisor.lives() && self.guards.keeper.is_none_or(Identity::lives)
    }
}

impl Drop for ZombieOwner {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// With the last living member gone it is let go, although a zombie keeps the number: its guards have nothing left
/// and leave. A group that is owned keeps them, zombie or not.
#[test]
fn let_go_once_empty_a_group_of_a_zombie_keeps_no_guard() {
    if no_hooks() {
        return;
    }
    let owned = ZombieOwner::start("zombie");
    let let_go = ZombieOwner::start("zombie-once-empty");
    wait_for("the guards of the one leave", || (!let_go.guards_live()).then_some(()));
    // Those of the other one were there before, and have had the time twice.
    std::thread::park_timeout(Duration::from_millis(1500));
    assert!(owned.guards_live(), "what is owned keeps them");
}

/// The one place that gives test settings gives none where debug assertions are off.
#[test]
fn a_release_build_knows_no_test_setting() {
    let dir = tempfile::tempdir().expect("dir");
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let main = format!(
        r#"#![allow(dead_code)] #[path = {:?}] mod hook;
        fn main() {{ println!("{{:?}} {{}}", hook::setting("OWNERSHIP_TEST_X"), hook::is_off("walk")); }}"#,
        crate_dir.join("src/hook.rs")
    );
    std::fs::write(dir.path().join("main.rs"), main).expect("write");
    let said = |assertions: &str| {
        let program = dir.path().join(format!("hook-{assertions}"));
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut compile = Command::new(rustc);
        compile.args(["--edition", "2024", "-C", &format!("debug-assertions={assertions}"), "-o"]);
        let status = compile.arg(&program).arg(dir.path().join("main.rs")).status();
        assert!(status.expect("rustc, which compiled this test").success());
        let mut run = Command::new(program);
        run.env("OWNERSHIP_TEST_X", "1").env("OWNERSHIP_TEST_OFF", "walk,kill");
        String::from_utf8(run.output().expect("run").stdout).expect("text")
    };
    assert_eq!(said("on"), "Some(\"1\") true\n");
    assert_eq!(said("off"), "None false\n");
}
