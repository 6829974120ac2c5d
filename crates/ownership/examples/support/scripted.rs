//! An owner that does what it reads and says what happens, line by line.
//!
//! Reads: `spawn ID GRACE_MS SCRIPT` (a shell, with `SPAWN_ID` set), `worker ID GRACE_MS` (a child with a
//! line, which starts programs over it all the time), `scope ID`, `within SCOPE ID GRACE_MS SCRIPT`,
//! `end ID GRACE_MS`, `drop ID`, `ping`. The end of input ends it.
//! Says: `started ID PID`, `opened ID`, `failed ID WHY`, `exited ID STATUS` (`unknown` if so), `emptied ID LEFT`, `lost ID`,
//! `pong`. With `SPAWN_RATION` every child has one.

use std::collections::HashMap;
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

use ownership::{ChildEvent, ExitStatus, Owned, Owner, Program, Ration, Scope, Spawn, SpawnError};

/// The role of a worker of it; any program that may be one gives it to [`run`].
pub(crate) const WORKER: &str = "@scripted-worker";

/// Where a worker finds its line.
const LINE: i32 = 4;

/// What is to end together with a handle.
enum Handle {
    Child(Owned),
    Scope(Scope),
}

/// Runs as a worker when this process is one, else as the owner.
pub(crate) fn run() -> ExitCode {
    if std::env::args_os().any(|arg| arg == WORKER) {
        return work();
    }
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let mut handles = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        obey(&owner, &mut handles, &line);
    }
    // What ends them is this process's end alone.
    std::mem::forget(handles);
    ExitCode::SUCCESS
}

fn obey(owner: &Owner, handles: &mut HashMap<String, Handle>, line: &str) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "spawn" | "worker" => start(owner, handles, rest),
        "within" => {
            let (scope, rest) = rest.split_once(' ').expect("a scope");
            if let Some(Handle::Scope(scope)) = handles.get(scope) {
                let owner = scope.owner();
                start(&owner, handles, rest);
            } else {
                say(format_args!("failed {} no such scope", rest.split(' ').next().unwrap_or("")));
            }
        }
        "scope" => match owner.scope("a scope", tell(rest.to_owned())) {
            Ok(scope) => {
                say(format_args!("opened {rest}"));
                handles.insert(rest.to_owned(), Handle::Scope(scope));
            }
            Err(error) => failed(rest, &error),
        },
        "end" => {
            let (id, grace) = rest.split_once(' ').expect("a grace");
            match handles.get(id) {
                Some(Handle::Child(child)) => child.end(millis(grace)),
                Some(Handle::Scope(scope)) => scope.end(millis(grace)),
                None => {}
            }
        }
        "drop" => drop(handles.remove(rest)),
        "ping" => say(format_args!("pong")),
        _ => panic!("not understood: {line}"),
    }
}

fn start(owner: &Owner, handles: &mut HashMap<String, Handle>, rest: &str) {
    let mut words = rest.splitn(3, ' ');
    let (id, grace) = (words.next().expect("a number"), words.next().expect("a grace"));
    let spawn = match words.next() {
        Some(script) => Spawn::new("/bin/sh").arg("-c").arg(script),
        None => Spawn::program(Program::current().expect("this program")).arg(WORKER).line(LINE),
    };
    let spawn = spawn.env("SPAWN_ID", id).grace(millis(grace)).ration(ration());
    match owner.spawn(spawn, tell(id.to_owned())) {
        Ok(child) => {
            say(format_args!("started {id} {}", child.pid()));
            handles.insert(id.to_owned(), Handle::Child(child));
        }
        Err(error) => failed(id, &error),
    }
}

/// What `SPAWN_RATION` says: bytes of memory, processes, weight and nice value, one blank between.
fn ration() -> Ration {
    let text = std::env::var("SPAWN_RATION").unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Ration {
        memory: next(),
        processes: next(),
        cpu_weight: next().and_then(|weight| weight.try_into().ok()),
        nice: next().and_then(|nice| nice.try_into().ok()),
        ..Ration::default()
    }
}

fn failed(id: &str, error: &SpawnError) {
    say(format_args!("failed {id} {}", error.to_string().replace('\n', " ")));
}

fn tell(id: String) -> impl FnMut(ChildEvent) + Send + 'static {
    move |event| match event {
        ChildEvent::Exited(exit) => say(format_args!("exited {id} {}", status(exit.status))),
        ChildEvent::Emptied(emptied) => say(format_args!("emptied {id} {}", emptied.left.len())),
        ChildEvent::Lost => say(format_args!("lost {id}")),
        ChildEvent::Stopped(signal) => say(format_args!("stopped {id} {signal}")),
        other => say(format_args!("other {id} {other:?}")),
    }
}

/// The code, or the signal's number with a minus.
fn status(status: ExitStatus) -> String {
    if let ExitStatus::Code(code) = status {
        code.to_string()
    } else if let ExitStatus::Signal { signal, .. } = status {
        format!("-{signal}")
    } else {
        "unknown".to_owned()
    }
}

/// One line in one write.
fn say(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // Nobody reads any more: then nobody misses it.
    writeln!(std::io::stdout(), "{line}").ok();
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

/// Starts programs over its line: one that stays, and short ones all the time. How many of these there
/// were, or why there are no more, is always in `$DIR/worker.ID`. Without a line it stays too.
fn work() -> ExitCode {
    let owner = ownership::inherit::take(LINE).map(Owner::inherited);
    if let Ok(owner) = owner {
        let script = |text: &str| Spawn::new("/bin/sh").arg("-c").arg(text);
        let stays = owner.spawn(script("exec sleep 600"), |_| {});
        for count in 1_u64.. {
            match owner.spawn(script("exec sleep 0.01"), |_| {}) {
                Ok(short) => {
                    let end = short.wait();
                    note(&count.to_string());
                    if end.is_none() {
                        note("the end of a child was not told");
                        break;
                    }
                }
                Err(error) => {
                    note(&error.to_string());
                    break;
                }
            }
        }
        std::mem::forget(stays);
    }
    loop {
        std::thread::park();
    }
}

fn note(what: &str) {
    let (Some(dir), Ok(id)) = (std::env::var_os("DIR"), std::env::var("SPAWN_ID")) else { return };
    // Its folder goes when its round is over, and it a moment later.
    std::fs::write(std::path::Path::new(&dir).join(format!("worker.{id}")), what).ok();
}
