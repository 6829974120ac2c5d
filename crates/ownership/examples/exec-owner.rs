//! A fixture: an owner that executes itself, and takes up what it had. Does what it reads, line by line, and says
//! what happens.
//!
//! Reads: `spawn SCRIPT` (a shell), `blocking SCRIPT` (the same,
//! with a callback that blocks at the first event), `many COUNT` (sleepers, by one descriptor each), `group` (a process group that is
//! not ours, adopted), `ledger` (from now on, in `$DIR`), `flush`, `exec` and `thread` (executes
//! itself, from a second thread), `reattach`
//! and `reattach-thread` (the same on a second thread), `take PID`, `end PID`,
//! `drop PID`, `leave` (drops what was not taken), `wait PID`, `empty PID`, `release PID` (a group),
//! `other` (another owner: what follows is about it), `nested` (a child of this process tries to take up what is not
//! its own), `raise` (as many descriptors as there may be), `ping`.
//! Says: `started PID`, `back PID EXIT WORD` for each child, then `reattached COUNT GROUPS`, or `failed WHY`; `exit PID
//! STATUS`, `over PID LEFTOVERS`, `pong`.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ownership::{ExitStatus, Ledger, Owned, Owner, Program, Returned, Spawn};

#[derive(Default)]
struct Scene {
    owner: Option<Owner>,
    ledger: Option<Arc<Ledger>>,
    children: HashMap<u32, Owned>,
    returned: HashMap<u32, Returned>,
}

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "nested") {
        let failed = Owner::reattach(program(), Vec::new()).expect_err("none of its own");
        say(format_args!("failed {failed}"));
        return ExitCode::SUCCESS;
    }
    let mut scene = Scene::default();
    while let Some(line) = read_line() {
        scene.obey(&line);
    }
    // What ends them is this process's end alone.
    std::mem::forget(scene);
    ExitCode::SUCCESS
}

fn program() -> Program {
    Program::current().expect("this program")
}

impl Scene {
    fn owner(&mut self) -> &Owner {
        self.owner.get_or_insert_with(|| Owner::new(program(), Vec::new()))
    }

    fn obey(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pid = rest.parse().unwrap_or(0);
        match word {
            "spawn" => self.spawn(Spawn::new("/bin/sh").arg("-c").arg(rest)),
            "blocking" => {
                let spawn = Spawn::new("/bin/sh").arg("-c").arg(rest);
                let block = |_| {
                    say(format_args!("blocked"));
                    std::thread::park();
                };
                let child = self.owner().spawn(spawn, block).expect("a child");
                say(format_args!("started {}", child.pid()));
                self.children.insert(child.pid(), child);
            }
            "many" => {
                for _ in 0..pid {
                    let spawn = Spawn::new("sleep").arg("600");
                    let child = self.owner().spawn(spawn, |_| {}).expect("a sleeper");
                    self.children.insert(child.pid(), child);
                }
                say(format_args!("pong"));
            }
            "ledger" => {
                let dir = std::env::var_os("DIR").expect("DIR");
                let ledger = Arc::new(Ledger::open(std::path::Path::new(&dir).join("ledger")));
                self.owner = Some(self.owner().clone().with_ledger(Arc::clone(&ledger)));
                self.ledger = Some(ledger);
            }
            "flush" => {
                let done = self.ledger.as_ref().is_none_or(|l| l.flush(Duration::from_secs(20)));
                say(format_args!("flushed {done}"));
            }
            "group" => self.group(),
            "other" => self.owner = Some(Owner::new(program(), Vec::new())),
            "exec" => execute(),
            "thread" => drop(std::thread::spawn(execute).join()),
            "reattach" => {
                let back = Owner::reattach(program(), Vec::new());
                self.take_up(back);
            }
            "reattach-thread" => {
                let thread = std::thread::spawn(|| Owner::reattach(program(), Vec::new()));
                self.take_up(thread.join().expect("no panic"));
            }
            "take" => {
                let child = self.returned.remove(&pid).expect("one that came back").take();
                self.children.insert(pid, child);
            }
            "end" => self.children[&pid].end(Duration::from_secs(20)),
            "drop" => drop(self.children.remove(&pid)),
            "leave" => self.returned.clear(),
            "wait" => say(format_args!("exit {pid} {}", shown(self.children[&pid].wait()))),
            "empty" => {
                let end = self.children[&pid].wait_empty();
                say(format_args!("over {pid} {:?}", end.map(|end| end.leftover_count)));
            }
            "release" => {
                self.owner().release_process_groups(&[pid.cast_signed()]);
                say(format_args!("pong"));
            }
            "raise" => raise(),
            "nested" => nested(),
            "ping" => say(format_args!("pong")),
            _ => panic!("not understood: {line}"),
        }
    }

    fn spawn(&mut self, spawn: Spawn) {
        match self.owner().spawn(spawn, |_| {}) {
            Ok(child) => {
                say(format_args!("started {}", child.pid()));
                self.children.insert(child.pid(), child);
            }
            Err(error) => say(format_args!("failed {error}")),
        }
    }

    fn take_up(&mut self, back: Result<ownership::Reattached, ownership::NotReattached>) {
        let back = match back {
            Ok(back) => back,
            Err(error) => return say(format_args!("failed {error}")),
        };
        let dir = std::env::var_os("DIR").expect("DIR");
        let path = std::path::Path::new(&dir).join("ledger");
        let back = if path.exists() {
            let ledger = Arc::new(Ledger::open(path));
            self.ledger = Some(Arc::clone(&ledger));
            back.with_ledger(ledger)
        } else {
            back
        };
        for child in &back.children {
            let exit = child.exit().map_or("-".to_owned(), |exit| shown(Some(exit.clone())));
            let word = child.argv().next().map_or("-".into(), |word| word.to_string_lossy());
            say(format_args!("back {} {exit} {word}", child.pid()));
        }
        say(format_args!("reattached {} {:?}", back.children.len(), back.groups));
        self.owner = Some(back.owner);
        self.returned.extend(back.children.into_iter().map(|child| (child.pid(), child)));
    }

    #[expect(clippy::disallowed_methods, reason = "a group that something else started")]
    fn group(&mut self) {
        use std::os::unix::process::CommandExt;
        // detached-spawn: ok — what the test is about
        let group = std::process::Command::new("sleep").arg("600").process_group(0).spawn();
        let leader = group.expect("sleep").id();
        self.owner().own_process_groups(&[leader.cast_signed()]).expect("adopted");
        say(format_args!("started {leader}"));
    }
}

fn shown(exit: Option<ownership::Exit>) -> String {
    let Some(exit) = exit else { return "unknown".to_owned() };
    if let ExitStatus::Code(code) = exit.status {
        code.to_string()
    } else if let ExitStatus::Signal { signal, .. } = exit.status {
        format!("-{signal}")
    } else {
        "unknown".to_owned()
    }
}

/// A byte at a time: what is read ahead would be lost to the next program.
fn read_line() -> Option<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut byte) {
            Ok(1) if byte == *b"\n" => return String::from_utf8(line).ok(),
            Ok(1) => line.push(byte[0]),
            Ok(_) => return None,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "what the test is about")]
fn execute() {
    use std::os::unix::process::CommandExt;
    let own = std::env::current_exe().expect("this program");
    let error = std::process::Command::new(own).arg("next").exec();
    panic!("{error}");
}

#[expect(clippy::disallowed_methods, reason = "a child that is none of ours")]
fn nested() {
    let own = std::env::current_exe().expect("this program");
    // detached-spawn: ok — it ends by itself, and is waited for
    let status = std::process::Command::new(own).arg("nested").status().expect("it runs");
    assert!(status.success());
}

fn raise() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("raised");
    say(format_args!("pong"));
}

/// One line in one write.
fn say(line: std::fmt::Arguments<'_>) {
    // Nobody reads any more: then nobody misses it.
    writeln!(std::io::stdout(), "{}", line.to_string().replace('\n', " ")).ok();
}
