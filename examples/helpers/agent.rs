//! Helper: an agent program that knows nothing of us. It starts what agents start, in the ways in which
//! they start it, and is then killed or told to exit.
//!
//! `agent DIR [--owned] KIND=SCRIPT…` starts one launcher shell for each script:
//!
//! | kind | how |
//! |---|---|
//! | `tool` | a session of its own, output read by the agent: how shell tools are run |
//! | `server` | in the agent's group, stdin and stdout are pipes that the agent keeps: MCP, language servers |
//! | `done` | as `tool`, and the agent waits until the launcher has ended; what it started stays |
//! | `call` | as `done`, but what it started is not wanted any more |
//! | `thread` | as `tool`, by a thread that ends at once |
//! | `replaced` | as `tool`, twice; the first handle is dropped |
//! | `die` | as `tool`, and the agent kills itself at once |
//!
//! What `AGENT_INPUT` holds is written to the stdin of each server. Its number is in `DIR/agent`; what
//! launchers say goes to `DIR/out`; when all are started there is `DIR/started`, and when the output of a call has
//! ended, `DIR/ended`. The line `exit` on stdin is a clean exit: TERM to each launcher that it still knows, and an
//! end with code 0. At `again` it executes itself and writes `DIR/again`. The end of stdin alone says nothing.
//!
//! With `--owned` it starts the same over [`ownership::Owner`] with a grace of `AGENT_GRACE_MS` and
//! the containment of `AGENT_CONTAINMENT`, and exits without ending anything.
#![expect(clippy::disallowed_methods, reason = "a program that knows nothing of us")]

use std::fs::File;
use std::io::{BufRead, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ownership::{Leftovers, Owned, Owner, Program, Spawn};
use rustix::process::{Pid, Signal, getpid, kill_process};

/// What is held of a launcher.
enum Launcher {
    Plain(Child),
    Owned(Owned),
}

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let mut args = std::env::args().skip(1).peekable();
    let Some(dir) = args.next().map(PathBuf::from) else { return ExitCode::from(2) };
    if args.next_if(|arg| arg == "@again").is_some() {
        tell(&dir, "again", "");
        return obey(&dir, Vec::new());
    }
    let owner = args
        .next_if(|arg| arg == "--owned")
        .map(|_| Owner::new(Program::current().expect("this program"), Vec::new()))
        .map(|owner| {
            let asked = std::env::var("AGENT_CONTAINMENT").unwrap_or_default().parse();
            owner.with_containment(asked.unwrap_or_default())
        });
    tell(&dir, "agent", &std::process::id().to_string());
    let mut held = Vec::new();
    let mut inputs = Vec::new();
    for start in args {
        let (kind, script) = start.split_once('=').expect("KIND=SCRIPT");
        let start = || launch(&dir, owner.as_ref(), kind, script);
        let (mut launcher, input) = if kind == "thread" {
            std::thread::scope(|threads| threads.spawn(start).join().expect("a thread"))
        } else {
            start()
        };
        match (&mut launcher, kind) {
            (_, "die") => kill_process(getpid(), Signal::KILL).expect("itself"),
            (Launcher::Plain(child), "done" | "call") => drop(child.wait().expect("wait")),
            // With its handle what it has left would end.
            (Launcher::Owned(child), "done" | "call") => drop(child.wait()),
            (_, "replaced") => launcher = launch(&dir, owner.as_ref(), kind, script).0,
            _ => {}
        }
        let ended = ["done", "call"].contains(&kind);
        held.push((launcher, ended));
        inputs.extend(input);
    }
    tell(&dir, "started", "");
    obey(&dir, held)
}

/// Does what is said on stdin, until it exits or is killed. The flag says that a launcher has ended.
fn obey(dir: &Path, held: Vec<(Launcher, bool)>) -> ExitCode {
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("exit") => {
                held.iter().filter(|(_, ended)| !ended).for_each(|(one, _)| terminate(one));
                std::mem::forget(held);
                return ExitCode::SUCCESS;
            }
            Ok("again") => {
                let own = std::env::current_exe().expect("this program");
                let error = Command::new(own).arg(dir).arg("@again").exec();
                panic!("{error}");
            }
            _ => {}
        }
    }
    loop {
        std::thread::park();
    }
}

fn launch(
    dir: &Path,
    owner: Option<&Owner>,
    kind: &str,
    script: &str,
) -> (Launcher, Option<PipeWriter>) {
    let (output, said) = pipe().expect("pipe");
    drain(dir, output, kind == "call");
    let (input, feed) = (kind == "server").then(|| pipe().expect("pipe")).unzip();
    let launcher = match owner {
        Some(owner) => {
            let spawn = Spawn::new("/bin/sh").arg("-c").arg(script).dir(dir);
            let error = said.try_clone().expect("pipe");
            let spawn = spawn.fd(1, said.into()).fd(2, error.into());
            let spawn = input.into_iter().fold(spawn, |spawn, input| spawn.fd(0, input.into()));
            // A shell that is done leaves on purpose: the jobs in its background are the owner's.
            let keeps = kind == "done";
            let grace = std::env::var("AGENT_GRACE_MS").ok().and_then(|text| text.parse().ok());
            let spawn = spawn.grace(Duration::from_millis(grace.unwrap_or(3000)));
            let spawn = spawn.leftovers(if keeps { Leftovers::Keep } else { Leftovers::Kill });
            Launcher::Owned(owner.spawn(spawn, |_| {}).expect("spawn"))
        }
        None => {
            // A child that leads no group executes the shell itself: the number stays.
            let mut command = Command::new(if kind == "server" { "/bin/sh" } else { "setsid" });
            command.args((kind != "server").then_some("/bin/sh")).arg("-c").arg(script);
            command.stdin(input.map_or_else(Stdio::null, Stdio::from));
            command.stderr(said.try_clone().expect("pipe")).stdout(said).current_dir(dir);
            Launcher::Plain(command.spawn().expect("spawn"))
        }
    };
    if let (Some(mut feed), Ok(text)) = (feed.as_ref(), std::env::var("AGENT_INPUT")) {
        feed.write_all(text.as_bytes()).expect("write");
    }
    (launcher, feed)
}

/// Reads what a launcher says, and whoever has inherited its stdout.
fn drain(dir: &Path, mut output: PipeReader, is_call: bool) {
    let mut file = File::options().append(true).create(true).open(dir.join("out")).expect("out");
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            file.write_all(&buffer[..count]).expect("write");
        }
        if is_call {
            tell(&dir, "ended", "");
        }
    });
}

/// What agents do when they leave: TERM to the number that they hold.
fn terminate(launcher: &Launcher) {
    if let Launcher::Plain(child) = launcher {
        kill_process(Pid::from_child(child), Signal::TERM).ok();
    }
}

/// A file that appears with all that it holds.
fn tell(dir: &Path, name: &str, text: &str) {
    let new = dir.join(format!("{name}.new"));
    std::fs::write(&new, format!("{text}\n")).expect("write");
    std::fs::rename(new, dir.join(name)).expect("rename");
}
