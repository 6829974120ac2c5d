//! A fixture: an owner with a ledger in `DIR` whose loop is watched, in one of these ways.
//!
//! `watched-owner DIR MODE`: starts a shell with a sleeper, prints both numbers, then its loop goes on as MODE says: `spin` computes
//! for ever, `stuck` waits for what never comes, `idle` waits and answers when it is asked, `moves` never turns and does something all
//! the time. How often it was asked stands in `DIR/asked`.
#![expect(clippy::print_stdout, reason = "its starter reads it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ownership::watchdog::{Pulse, Settings, Watchdog};
use ownership::{Ledger, Owner, Program, Spawn};

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, mode] = &args[..] else { return ExitCode::from(2) };
    let dir = Path::new(dir);
    let path = dir.join("ledger.sqlite");
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let owner = owner.with_ledger(Arc::new(Ledger::open(&path)));
    let (read, write) = std::io::pipe().expect("pipe");
    let spawn = Spawn::new("sh").arg("-c").arg("setsid sleep 600 & echo $$ $!; wait");
    let spawn = spawn.fd(1, write.into()).grace(Duration::from_millis(300));
    let _child = owner.spawn(spawn, |_| {}).expect("spawn");
    let mut line = String::new();
    BufReader::new(read).read_line(&mut line).expect("read");

    let (pulse, (ask, asked)) = (Pulse::default(), channel());
    let (mut count, file) = (0, dir.join("asked"));
    let settings = Settings::after(Duration::from_secs(1)).told_in(&path);
    let _watch = Watchdog::start(settings, &pulse, move || {
        count += 1;
        std::fs::write(&file, format!("{count}\n")).expect("write");
        ask.send(()).ok();
    });
    print!("{line}");
    std::io::Write::flush(&mut std::io::stdout()).expect("flush");
    let (_never, nothing) = channel::<()>();
    let mut turns = 0_u64;
    loop {
        match mode.as_str() {
            "spin" => turns = std::hint::black_box(turns.wrapping_add(1)),
            "stuck" => nothing.recv().expect("it never comes"),
            "idle" => {
                asked.recv().expect("the watchdog asks");
                pulse.beat();
            }
            _ => std::thread::park_timeout(Duration::from_millis(10)),
        }
    }
}
