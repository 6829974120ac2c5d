//! An owner with a template, which starts copies of it as it is told on stdin and says what became of them.
//!
//! Reads: `template` (starts one), `copy ID` (a copy, which says what it is on its stdout, appends a line to
//! `DIR/ran` and stays until its stdin ends), `end ID`, `kill-template`. Says: `template PID`, `copy ID PID`, then
//! `facts ID …` of the copy itself; `failed ID PHASE ERRNO`; `exited ID STATUS`, `emptied ID`.
//!
//! The same program is its guards, and the template.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use ownership::template::{Served, Template};
use ownership::{ChildEvent, Leftovers, Owned, Owner, Program, Ration, Spawn, inherit};

const TEMPLATE: &str = "@copy-template";

/// Where the template finds its line, and a copy its own.
const CONTROL: i32 = 5;
const LINE: i32 = 4;
/// Something else that a copy is given.
const GIVEN: i32 = 9;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    if std::env::args_os().any(|arg| arg == TEMPLATE) {
        return serve();
    }
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let mut template: Option<Owned> = None;
    let mut copies = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let (word, id) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "template" => {
                let spawn = Spawn::program(Program::current().expect("this program"))
                    .arg(TEMPLATE)
                    .env("LEFT_OUT", "by copies")
                    .template(CONTROL);
                // What a template leaves is ended, which must not hide that a copy ran.
                let kept = std::env::var("KEEP_LEFT").is_ok();
                let spawn = if kept { spawn.leftovers(Leftovers::Keep) } else { spawn };
                let started = owner.spawn(spawn, tell("template".to_owned())).expect("template");
                say(&format!("template {}", started.pid()));
                template = Some(started);
            }
            "copy" => copy(&owner, template.as_ref().expect("a template"), &mut copies, id),
            "end" => drop(copies.remove(id)),
            "kill-template" => {
                let pid = template.as_ref().expect("a template").pid().cast_signed();
                let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
            }
            _ => panic!("not understood: {line}"),
        }
    }
    // What ends them is this process's end alone.
    std::mem::forget((template, copies));
    ExitCode::SUCCESS
}

fn copy(owner: &Owner, template: &Owned, copies: &mut HashMap<String, (Owned, OwnedFd)>, id: &str) {
    let (out, into) = std::io::pipe().expect("pipe");
    let (stdin, keep) = std::io::pipe().expect("pipe");
    let given = fs::File::open("/dev/null").expect("null");
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let nice = number("COPY_NICE").and_then(|nice| nice.try_into().ok());
    let ration = Ration { processes: number("COPY_PROCESSES"), nice, ..Ration::default() };
    let spawn = Spawn::program(Program::current().expect("this program"))
        .ration(ration)
        .env("COPY_ID", id)
        .fd(0, stdin.into())
        .fd(1, into.into())
        .fd(GIVEN, given.into())
        .line(LINE)
        .grace(Duration::from_millis(200))
        .copy_of(template);
    match owner.spawn(spawn, tell(id.to_owned())) {
        Ok(copy) => {
            say(&format!("copy {id} {}", copy.pid()));
            let id_of = id.to_owned();
            std::thread::spawn(move || {
                let mut facts = String::new();
                let mut out = std::io::BufReader::new(out);
                if out.read_line(&mut facts).is_ok_and(|count| count > 0) {
                    say(&format!("facts {id_of} {}", facts.trim_end()));
                }
                drop(out.read_to_string(&mut facts));
            });
            copies.insert(id.to_owned(), (copy, keep.into()));
        }
        Err(error) => {
            let errno = error.errno.unwrap_or(0);
            say(&format!("failed {id} {} {errno}", error.phase.word()));
        }
    }
}

fn tell(id: String) -> impl FnMut(ChildEvent) + Send + 'static {
    move |event| match event {
        ChildEvent::Exited(exit) => say(&format!("exited {id} {:?}", exit.status)),
        ChildEvent::Emptied(_) => say(&format!("emptied {id}")),
        ChildEvent::Stopped(_) | ChildEvent::Lost | _ => {}
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).expect("stdout");
}

/// The template: what it prepares is a hasher, and a change of everything that a child must not see.
fn serve() -> ExitCode {
    let control = inherit::take(CONTROL).expect("a control line");
    let template = Template::on(control).expect("a template");
    let hasher = RandomState::new();
    let ours = hasher.hash_one(1);
    std::env::set_current_dir("/").expect("directory");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
    template.settle().expect("one thread");
    match template.serve() {
        Served::Over(code) => code,
        Served::Child(given) => {
            let id = std::env::var("COPY_ID").expect("its id");
            let dir = std::env::var("DIR").expect("a directory");
            let mut ran =
                fs::File::options().create(true).append(true).open(dir + "/ran").expect("file");
            ran.write_all(format!("{id}\n").as_bytes()).expect("write");
            // On a thread of its own, as agents are.
            let facts = std::thread::spawn(move || facts(ours, &given)).join().expect("facts");
            say(&facts);
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            ExitCode::SUCCESS
        }
    }
}

fn facts(ours: u64, given: &[(i32, OwnedFd)]) -> String {
    let pid = std::process::id();
    let of = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("proc");
    let stat = of("stat");
    let rest: Vec<_> = stat.rsplit_once(')').expect("stat").1.split_whitespace().collect();
    let environ = fs::read("/proc/self/environ").expect("environ");
    let shown =
        environ.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    let shown = shown.filter_map(|entry| entry.strip_prefix("OWNERSHIP_TAG=")).next();
    let status = of("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim().to_owned()).unwrap_or_default()
    };
    let mut open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .expect("fd")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    open.sort_unstable();
    // One of them is the list itself.
    let count = open.len() - 1;
    let numbers: Vec<_> = given.iter().map(|(number, _)| *number).collect();
    let numbers = format!("{numbers:?}").replace(' ', "");
    let dir = std::env::current_dir().expect("directory");
    let hash = RandomState::new().hash_one(1);
    format!(
        "parent={} group={} session={} open={count} given={numbers} tag={} shown={} dir={} umask={} blocked={} \
         ignored={} fresh={} left={} hash={hash:016x}",
        rest[1],
        rest[2],
        rest[3],
        std::env::var("OWNERSHIP_TAG").unwrap_or_default(),
        shown.unwrap_or_default(),
        dir.display(),
        field("Umask:"),
        field("SigBlk:"),
        field("SigIgn:"),
        hash != ours,
        std::env::var("LEFT_OUT").is_err(),
    )
}
