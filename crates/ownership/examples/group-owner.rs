//! A fixture: an owner of process groups that it starts itself, with `std::process::Command`.
//!
//! `group-owner DIR HOW` starts a shell as the leader of a group with members of several kinds, each of
//! which writes its number into a file of `DIR`: `leader`, `plain`, `own-group`, `session`, `daemon` (double-forked,
//! session of its own, with this owner's mark) and `stubborn` (ignores TERM). Beside it stands `stranger`, a group that is
//! not adopted. `HOW` is `group`, or `session` for a leader of a session; with `-dead` behind it the leader has ended
//! before it is reaped; `zombie` is a group of which nothing but its unreaped leader is left; with `-released` it was let go, with `-once-empty` it is once it is empty. `DIR/ready` is
//! written then. Each line on stdin starts a child through the guards, whose number goes to `DIR/child`.
#![expect(clippy::disallowed_methods, reason = "groups of its own are what the fixture is about")]
#![expect(clippy::zombie_processes, reason = "it is killed, and init reaps")]

use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ownership::{Owner, Program, Spawn};

const MEMBERS: &str = r#"
sh -c 'echo $$ > "$DIR/plain"; exec sleep 600' &
perl -e 'setpgrp(0, 0); exec @ARGV' sh -c 'echo $$ > "$DIR/own-group"; exec sleep 600' &
setsid sh -c 'echo $$ > "$DIR/session"; exec sleep 600' &
(setsid sh -c 'echo $$ > "$DIR/daemon"; exec sleep 600' &)
sh -c 'trap "" TERM; echo $$ > "$DIR/stubborn"; exec sleep 600' &
echo $$ > "$DIR/leader"
while ! [ -e "$DIR/end" ]; do sleep 0.01; done
"#;

/// Longer than anything takes here but the harness's patience.
const PATIENCE: u32 = 10_000;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, how] = &args[..] else { return ExitCode::from(2) };
    let dir = PathBuf::from(dir);
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let mark = owner.mark();
    if how.starts_with("zombie") {
        return with_zombie(&dir, &owner, how.ends_with("once-empty"));
    }
    let leads_session = how.starts_with("session");
    let mut leader = start(&dir, MEMBERS, leads_session, Some(&mark));
    let _stranger = start(&dir, "echo $$ > \"$DIR/stranger\"; exec sleep 600", false, None);
    let number = leader.id().cast_signed();
    for name in ["leader", "plain", "own-group", "session", "daemon", "stubborn", "stranger"] {
        wait_for(&dir.join(name));
    }
    owner.own_process_groups(&[number]).expect("adopted");
    if how.contains("dead") || how.contains("once-empty") {
        std::fs::write(dir.join("end"), "").expect("write");
        if how.contains("once-empty") {
            owner.release_process_group_once_empty(number);
        }
        leader.wait().expect("leader");
    }
    if how.contains("released") {
        owner.release_process_groups(&[number]);
    }
    std::fs::write(dir.join("ready"), "").expect("write");
    let mut children = Vec::new();
    for _line in std::io::stdin().lock().lines() {
        let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
        std::fs::write(dir.join("child.new"), format!("{}\n", child.pid())).expect("write");
        std::fs::rename(dir.join("child.new"), dir.join("child")).expect("rename");
        children.push(child);
    }
    ExitCode::SUCCESS
}

/// Adopts a group of a zombie, and stays.
fn with_zombie(dir: &Path, owner: &Owner, once_empty: bool) -> ExitCode {
    let leader = start(dir, "exit 0", false, None);
    let number = leader.id().cast_signed();
    let stat = format!("/proc/{number}/stat");
    let is_zombie = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
    while !is_zombie() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    owner.own_process_groups(&[number]).expect("adopted");
    if once_empty {
        owner.release_process_group_once_empty(number);
    }
    std::fs::write(dir.join("ready"), "").expect("write");
    let _end = std::io::stdin().lock().lines().next();
    ExitCode::SUCCESS
}

fn start(dir: &Path, script: &str, session: bool, mark: Option<&(String, String)>) -> Child {
    let mut command = if session { Command::new("setsid") } else { Command::new("sh") };
    if session {
        // It executes the shell in place: what it is started as leads no group, so it does not fork.
        command.arg("sh");
    } else {
        // detached-spawn: ok — the fixture's groups, which are to be adopted
        command.process_group(0);
    }
    command.arg("-c").arg(script).env("DIR", dir).stdin(Stdio::null());
    command.envs(mark.map(|(name, value)| (name, value)));
    command.spawn().expect("start")
}

fn wait_for(file: &Path) {
    for _ in 0..PATIENCE {
        if std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n')) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("{} is not there", file.display());
}
