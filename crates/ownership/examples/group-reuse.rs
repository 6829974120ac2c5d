//! A fixture: an adopted group is gone, and its number is another group's when the owner dies. Sets the
//! kernel's last number, so only for a pid namespace of its own.
//!
//! `group-reuse DIR` is that test; `group-reuse DIR own` is its owner.
#![expect(clippy::disallowed_methods, reason = "groups of its own are what the fixture is about")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ownership::{Owner, Program};

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let first = std::fs::read_to_string("/proc/1/cmdline").expect("proc");
    assert!(first.contains("group-reuse"), "only in a pid namespace of its own");
    let dir = PathBuf::from(std::env::args().nth(1).expect("a directory"));
    if std::env::args().nth(2).is_some() {
        own(&dir)
    } else {
        test(&dir)
    }
    ExitCode::SUCCESS
}

/// Adopts a group whose leader leads a session too, reaps it, and waits to be killed.
fn own(dir: &Path) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let mut groups: Vec<Child> = [false, true].map(leader).into();
    let numbers: Vec<_> = groups.iter().map(|child| child.id().cast_signed()).collect();
    owner.own_process_groups(&numbers).expect("adopted");
    for group in &mut groups {
        group.kill().expect("kill");
        group.wait().expect("wait");
    }
    std::fs::write(dir.join("new"), format!("{} {}", numbers[0], numbers[1])).expect("write");
    std::fs::rename(dir.join("new"), dir.join("numbers")).expect("rename");
    loop {
        std::thread::park();
    }
}

/// One of a session, or of a group only, once it leads it.
fn leader(session: bool) -> Child {
    let mut command = if session { Command::new("setsid") } else { Command::new("sleep") };
    if session {
        command.arg("sleep");
    } else {
        // detached-spawn: ok — a group that is adopted, or stands for a stranger
        command.process_group(0);
    }
    let child = command.arg("600").stdin(Stdio::null()).spawn().expect("sleep");
    let led = || fields(child.id()).is_some_and(|fields| fields[2] == child.id().to_string());
    wait_for("it leads", led);
    child
}

fn test(dir: &Path) {
    let mut owner = Command::new(std::env::current_exe().expect("this program"))
        .arg(dir)
        .arg("own")
        .spawn()
        .expect("owner");
    wait_for("the groups are gone", || dir.join("numbers").exists());
    let text = std::fs::read_to_string(dir.join("numbers")).expect("numbers");
    let numbers: Vec<u32> = text.split(' ').map(|word| word.parse().expect("number")).collect();
    let mut strangers: Vec<Child> =
        numbers.iter().zip([false, true]).map(|(number, session)| take(*number, session)).collect();
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    wait_for("the guards have left", || {
        !std::fs::read_dir("/proc").expect("proc").flatten().any(|entry| {
            let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let state = entry.file_name().to_str().and_then(|pid| fields(pid.parse().ok()?));
            let dead = state.is_none_or(|fields| fields[0] == "Z");
            !dead && (comm == "warden\n" || comm == "minder\n")
        })
    });
    for stranger in &mut strangers {
        assert!(stranger.try_wait().expect("wait").is_none(), "a stranger was hit");
        stranger.kill().expect("kill");
        stranger.wait().expect("wait");
    }
}

/// Starts a leader that has this number.
fn take(number: u32, session: bool) -> Child {
    for _ in 0..100 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", format!("{}", number - 1)).expect("set");
        let mut child = leader(session);
        if child.id() == number {
            return child;
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    panic!("the number {number} is not handed out");
}

/// What follows the name in `/proc/PID/stat`.
fn fields(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.get(text.rfind(')')? + 2..)?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

fn wait_for(what: &str, mut fact: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if fact() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("in time: {what}");
}
