//! Programs installed side by side, and a program file that is replaced while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::rig::{DELEGATE, Rig, Running, Said};
use crate::support::wait_for;

#[path = "../../crates/ownership/tests/support/small.rs"]
mod small;

/// The programs that are installed beside each other.
const PROGRAMS: [&str; 3] = ["delegate", "delegate-child", "ownership-supervisor"];

/// Programs of member crates are there after `cargo test --workspace`; for the tests of the root
/// package alone they are built here.
fn built(name: &str) -> PathBuf {
    static BUILD: OnceLock<()> = OnceLock::new();
    let path = Path::new(DELEGATE).with_file_name(name);
    if !path.is_file() {
        BUILD.get_or_init(|| build(path.parent().unwrap()));
    }
    path
}

fn build(folder: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--offline"]);
    cargo.args(["-p", "delegate-child", "-p", "delegate-ownership", "--bins"]);
    cargo.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the stock programs do not build");
}

/// A home with these programs in `bin`.
fn installed(programs: &[&str]) -> Rig {
    let rig = Rig::new();
    fs::create_dir(rig.path("bin")).unwrap();
    for name in programs {
        fs::copy(built(name), rig.path("bin").join(name)).unwrap();
    }
    rig
}

fn command(rig: &Rig, args: &[&str]) -> Command {
    let mut command = rig.program(rig.path("bin/delegate"));
    command.args(args);
    command
}

/// Names of the programs that the processes of this rig run.
fn programs(rig: &Rig) -> Vec<String> {
    let exe = |pid| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let found = rig.processes().into_iter().filter_map(|process| exe(process.pid));
    found.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

const UNTIL_GO: &str = "touch begun; until test -e go; do sleep 0.02; done; echo over";

#[test]
fn stock_programs_that_stand_beside_it_are_used() {
    let rig = installed(&PROGRAMS);
    rig.batch("b.yaml", &[UNTIL_GO]);
    let said =
        Said::of(command(&rig, &["run", "b.yaml", "--explain", "--dry-run"]).output().unwrap());
    said.expect(0).says(rig.path("bin/delegate-child").to_str().unwrap());
    let running = Running::of(command(&rig, &["run", "b.yaml"]));
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    let programs = programs(&rig);
    // Keeper and supervisor are one program.
    for (name, count) in PROGRAMS.into_iter().zip([1, 1, 2]) {
        let found = programs.iter().filter(|program| *program == name).count();
        assert_eq!(found, count, "{name}: {programs:?}");
    }
    rig.file("go", "");
    running.end().expect(0).says("\"over\"").says("0 processes left");
    rig.wait_for_nobody();
}

/// The static program of the guards, put beside it as its command says: both are it, `doctor` says so, and they end
/// what they hold.
#[test]
fn static_guards_that_stand_beside_it_are_used_and_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Err(why) = small::program(root) {
        return eprintln!("SKIPPED: NO STATIC PROGRAM: {why}");
    }
    let rig = installed(&PROGRAMS[..1]);
    let mut install = Command::new(root.join(".ci/small"));
    install.args(["--static", "--into"]).arg(rig.path("bin")).env("CARGO_NET_OFFLINE", "true");
    let told = Said::of(install.output().unwrap());
    told.expect(0).says(rig.path("bin/ownership-supervisor").to_str().unwrap());
    let said = Said::of(command(&rig, &["doctor", "--json"]).output().unwrap());
    let found: serde_json::Value = serde_json::from_str(&said.expect(0).out).unwrap();
    let guards = &found["guards"];
    assert_eq!((&guards["kind"], &guards["linked"]), (&"stock".into(), &"static".into()));
    assert_eq!(guards["works"], true, "{found}");
    assert!(!found["remarks"].to_string().contains("the guards load libraries"), "{found}");
    let said = Said::of(command(&rig, &["doctor"]).output().unwrap());
    said.expect(0).says("bin/ownership-supervisor (static)");

    rig.batch("b.yaml", &[UNTIL_GO]);
    let running = Running::of(command(&rig, &["run", "b.yaml"]));
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    let programs = programs(&rig);
    let guards = programs.iter().filter(|program| *program == "ownership-supervisor").count();
    assert_eq!(guards, 2, "{programs:?}");
    rig.file("go", "");
    running.end().expect(0).says("0 processes left");
    rig.wait_for_nobody();
}

#[test]
fn one_program_alone_plays_every_role() {
    let rig = installed(&PROGRAMS[..1]);
    rig.batch("b.yaml", &[UNTIL_GO]);
    let said =
        Said::of(command(&rig, &["run", "b.yaml", "--explain", "--dry-run"]).output().unwrap());
    said.expect(0).says("this program, executed again");
    let running = Running::of(command(&rig, &["run", "b.yaml"]));
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    let programs = programs(&rig);
    let ours = programs.iter().filter(|program| *program == "delegate").count();
    assert_eq!(ours, 4, "command, keeper, supervisor, worker: {programs:?}");
    rig.file("go", "");
    running.end().expect(0).says("0 processes left");
}

#[test]
fn a_rebuild_does_not_break_a_running_parent() {
    let rig = installed(&PROGRAMS[..1]);
    rig.batch("b.yaml", &[UNTIL_GO, "echo started after the rebuild"]);
    let running = Running::of(command(&rig, &["run", "b.yaml", "-j", "1"]));
    wait_for("the task to begin", || rig.path("begun").exists().then_some(()));
    // As a linker does it: the old file goes, another comes under its name.
    fs::remove_file(rig.path("bin/delegate")).unwrap();
    rig.file("bin/delegate", "not a program any more\n");
    rig.file("go", "");
    running.end().expect(0).says("started after the rebuild").says("0 processes left");
}
