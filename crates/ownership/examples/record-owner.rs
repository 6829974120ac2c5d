//! A fixture: an owner that writes down what it does, and those who look at that after its death.
//!
//! `record-owner own DIR [TIER]`: an owner with its ledger in `DIR` that starts three sleepers (the last one in a
//! scope without a process) and a shell with one, prints a line once they run and stays until its end is told on stdin.
//! `record-owner two DIR OTHER`: one owner with a ledger in each, that starts a sleeper by either; otherwise the same.
//! `record-owner escape DIR`, in a pid namespace of its own: starts such an owner, kills it together with
//! both guards, and prints what the ledger makes of it.
#![expect(clippy::disallowed_methods, reason = "a fixture that starts, kills and waits")]
#![expect(clippy::print_stdout, reason = "its starter reads it")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ownership::ledger::Leftover;
use ownership::{Containment, Ledger, Owner, Program, Spawn};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["own", dir] => own(Path::new(dir), Containment::Auto),
        ["own", dir, tier] => own(Path::new(dir), tier.parse().expect("a tier")),
        ["two", first, second] => two([first, second].map(Path::new)),
        ["escape", dir] => escape(Path::new(dir)),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn own(dir: &Path, containment: Containment) {
    let ledger = Arc::new(Ledger::open(dir.join("ledger.sqlite")));
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let owner = owner.with_ledger(Arc::clone(&ledger)).with_containment(containment);
    let sleeper = |purpose: &str| {
        let spawn = Spawn::new("sleep").arg("600").purpose(purpose);
        spawn.grace(Duration::from_millis(300))
    };
    let scope = owner.scope("thread", |_| {}).expect("scope");
    let leaver = Spawn::new("sh").arg("-c").arg("setsid sleep 600 & echo; wait");
    let (mut ready, tell) = std::io::pipe().expect("pipe");
    let children = [
        owner.spawn(sleeper("first"), |_| {}).expect("spawn"),
        owner.spawn(sleeper("second"), |_| {}).expect("spawn"),
        scope.owner().spawn(sleeper("of a thread"), |_| {}).expect("spawn"),
        owner.spawn(leaver.fd(1, tell.into()), |_| {}).expect("spawn"),
    ];
    ready.read_exact(&mut [0]).expect("it has started something");
    assert!(ledger.flush(Duration::from_secs(20)), "{:?}", ledger.trouble());
    println!("{}", children.each_ref().map(|child| child.pid().to_string()).join(" "));
    let _ended = std::io::stdin().read(&mut [0]);
}

fn two(dirs: [&Path; 2]) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let started = dirs.map(|dir| {
        let ledger = Arc::new(Ledger::open(dir.join("ledger.sqlite")));
        let owner = owner.clone().with_ledger(Arc::clone(&ledger));
        let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
        assert!(ledger.flush(Duration::from_secs(20)), "{:?}", ledger.trouble());
        (child, ledger)
    });
    println!("{}", started.each_ref().map(|(child, _)| child.pid().to_string()).join(" "));
    let _ended = std::io::stdin().read(&mut [0]);
}

fn escape(dir: &Path) {
    let first = std::fs::read_to_string("/proc/1/cmdline").expect("proc");
    assert!(first.contains("record-owner"), "only in a pid namespace of its own");
    let mut stranger = Command::new("sleep").arg("600").spawn().expect("stranger");
    let (mut owner, children) = start_owner(dir);
    let leaver = children[3];
    let guards = guards_of(children[0]);
    let ledger = Ledger::open(dir.join("ledger.sqlite"));
    let alive = ledger.review(dir).expect("review");
    assert_eq!(alive.leftovers.len(), 0, "its owner lives: {alive:?}");
    // One after the other, faster than anybody can act: what is stopped does not see the others die.
    for guard in guards {
        send(guard, Signal::STOP);
    }
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    let busy = ledger.review(dir).expect("review");
    assert_eq!(busy.leftovers.len(), 0, "its guards live, and will see to it: {busy:?}");
    for guard in guards {
        send(guard, Signal::KILL);
    }
    guards.iter().for_each(|guard| wait_gone(*guard));
    // One that is known by its mark only: what started it is gone.
    let left = child_of(leaver);
    end(leaver);
    let found = ledger.review(dir).expect("review");
    for leftover in &found.leftovers {
        println!("{leftover}");
    }
    let (rows, marked): (Vec<_>, Vec<_>) =
        found.leftovers.iter().partition(|leftover| leftover.row.is_some());
    let pids = |of: &[&Leftover]| of.iter().map(|it| it.identity.pid).collect::<Vec<_>>();
    assert_eq!((pids(&rows), pids(&marked)), (children[..3].to_vec(), vec![left]));
    assert_eq!(found.settled, 1, "the one that left it: {found:?}");
    let again = ledger.review(dir).expect("review");
    // But for how long ago they began.
    let ageless = |found: &[Leftover]| -> Vec<_> {
        let ageless = |one: &Leftover| {
            let mut one = one.clone();
            one.seconds = 0;
            one
        };
        found.iter().map(ageless).collect()
    };
    let (again, before) = (ageless(&again.leftovers), ageless(&found.leftovers));
    assert_eq!(again, before, "nothing was done to them");
    end(children[1]);
    let rest = ledger.review(dir).expect("review");
    assert_eq!((rest.settled, rest.leftovers.len()), (1, 3), "{rest:?}");
    assert!(stranger.try_wait().expect("wait").is_none(), "a stranger lives on");
    println!("seen");
}

fn start_owner(dir: &Path) -> (Child, Vec<u32>) {
    let mut owner = Command::new("/proc/self/exe");
    let owner = owner.arg("own").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut owner = owner.spawn().expect("owner");
    let mut line = String::new();
    BufReader::new(owner.stdout.take().expect("stdout")).read_line(&mut line).expect("read");
    let children = line.split_whitespace().map(|pid| pid.parse().expect("pid")).collect();
    (owner, children)
}

/// The supervisor and the keeper above a child.
fn guards_of(child: u32) -> [u32; 2] {
    let supervisor = parent_of(child).expect("parent");
    [supervisor, parent_of(supervisor).expect("parent")]
}

fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn parent_of(pid: u32) -> Option<u32> {
    stat(pid).map(|(_, parent)| parent)
}

/// Zombies do not: PID 1 of the namespace, this process, reaps nobody.
fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

fn wait_gone(pid: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    while lives(pid) {
        assert!(Instant::now() < until, "{pid} is gone");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn end(pid: u32) {
    send(pid, Signal::KILL);
    wait_gone(pid);
}

/// Its only child, which must be ready.
fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.expect("children").trim().parse().expect("one")
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    let handle = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    pidfd_send_signal(handle, signal).expect("signal");
}
