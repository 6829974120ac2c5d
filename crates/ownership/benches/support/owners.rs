//! Owners that are killed, each with another supervisor, and how long their children outlive them.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ownership::{Owner, Program, Spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::{Identity, everybody};
use super::small;

/// The role of an owner: kind, shape, number of children and supervisor program follow.
pub(crate) const ROLE: &str = "@bench-owner";

/// The environment entry by which members are found.
const MARK: &str = "BENCH_OWNER";

/// Nobody needs longer than its grace.
const DEADLINE: Duration = Duration::from_secs(10);

/// Who ends the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The small program of this crate.
    Small,
    /// The same, static, as `.ci/small` builds it.
    Static,
    /// This program, executed again.
    Itself,
    C,
    Dash,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Small => "ours, small program",
            Self::Static => "ours, small static",
            Self::Itself => "ours, itself again",
            Self::C => "C, bare",
            Self::Dash => "dash, bare",
        }
    }
}

/// What the children are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Obey,
    Escape,
    Ignore,
}

impl Shape {
    const ALL: [Self; 3] = [Self::Obey, Self::Escape, Self::Ignore];

    fn script(self) -> &'static str {
        match self {
            Self::Obey => "exec sleep 600",
            Self::Escape => "setsid sleep 600 & (setsid sleep 600 &); exec sleep 600",
            Self::Ignore => "trap '' TERM; exec sleep 600",
        }
    }

    /// Processes that one child comes to.
    fn members(self) -> usize {
        if self == Self::Escape { 3 } else { 1 }
    }
}

/// The other supervisors, as far as they can be had here.
pub(crate) struct Peers {
    c: Option<PathBuf>,
    dash: Option<PathBuf>,
    small: Option<PathBuf>,
}

impl Peers {
    pub(crate) fn prepare(dir: &Path) -> Self {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
        let program = dir.join("bare");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-static", "-o"]).arg(&program).arg(sources.join("bare.c"));
        let c = compile.status().is_ok_and(|status| status.success()).then_some(program);
        let dash = Command::new("dash").arg("-c").arg(":").status();
        let dash = dash.is_ok_and(|status| status.success()).then(|| sources.join("bare.sh"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let small = small::program(&root).inspect_err(|why| eprintln!("{why}")).ok();
        for (there, what) in [
            (c.is_some(), "C compiler (static)"),
            (dash.is_some(), "dash"),
            (small.is_some(), "static program of ours"),
        ] {
            if !there {
                eprintln!("!! no {what} here: that row is MISSING");
            }
        }
        Self { c, dash, small }
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let c = self.c.is_some().then_some(Kind::C);
        let dash = self.dash.is_some().then_some(Kind::Dash);
        let small = self.small.is_some().then_some(Kind::Static);
        c.into_iter().chain(dash).chain(small).chain([Kind::Small, Kind::Itself]).collect()
    }

    fn program(&self, kind: Kind) -> &Path {
        let own = Path::new(env!("CARGO_BIN_EXE_ownership-supervisor"));
        match kind {
            Kind::C => self.c.as_deref().unwrap_or(own),
            Kind::Dash => self.dash.as_deref().unwrap_or(own),
            Kind::Static => self.small.as_deref().unwrap_or(own),
            Kind::Small | Kind::Itself => own,
        }
    }
}

/// Runs as an owner. Reads the numbers of groups, hands them on where that is needed, and says so.
pub(crate) fn own(arguments: &[String]) -> ExitCode {
    let [kind, shape, count, program] = arguments else { return ExitCode::from(2) };
    let kinds = [Kind::Small, Kind::Static, Kind::Itself, Kind::C, Kind::Dash];
    let kind = kinds.into_iter().find(|one| format!("{one:?}") == *kind).expect("a kind");
    let shape = Shape::ALL.into_iter().find(|one| format!("{one:?}") == *shape).expect("a shape");
    let count = count.parse().expect("a number");
    let mut told: Box<dyn Write> = match kind {
        Kind::Small | Kind::Static => own_ours(Program::named(program), shape, count),
        Kind::Itself => own_ours(Program::current().expect("this program"), shape, count),
        Kind::C => own_bare(Command::new(program), shape, count),
        Kind::Dash => {
            let mut dash = Command::new("dash");
            dash.arg(program);
            own_bare(dash, shape, count)
        }
    };
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        if line == "ready" {
            println!("ready");
        } else {
            writeln!(told, "a {line}").expect("a supervisor");
        }
    }
    ExitCode::SUCCESS
}

fn own_ours(program: Program, shape: Shape, count: usize) -> Box<dyn Write> {
    let owner = Owner::new(program, Vec::new());
    for _ in 0..count {
        let spawn = Spawn::new("/bin/sh").arg("-c").arg(shape.script());
        std::mem::forget(owner.spawn(spawn.grace(super::GRACE), |_| {}).expect("a child"));
    }
    Box::new(std::io::sink())
}

#[expect(clippy::zombie_processes, reason = "they outlive this owner, that is the point")]
fn own_bare(mut supervisor: Command, shape: Shape, count: usize) -> Box<dyn Write> {
    let mut supervisor =
        supervisor.env_remove(MARK).stdin(Stdio::piped()).spawn().expect("a supervisor");
    for _ in 0..count {
        let mut child = Command::new("/bin/sh");
        child.arg("-c").arg(shape.script()).process_group(0).stdin(Stdio::null());
        std::mem::forget(child.spawn().expect("a child"));
    }
    Box::new(supervisor.stdin.take().expect("its input"))
}

/// An owner with all its members there.
pub(crate) struct Running {
    pub(crate) owner: Child,
    pub(crate) members: HashSet<Identity>,
    pub(crate) mark: String,
}

impl Running {
    pub(crate) fn start(peers: &Peers, kind: Kind, shape: Shape, count: usize) -> Self {
        let mark = format!("{}.{:?}", std::process::id(), Instant::now());
        let mut owner = Command::new(std::env::current_exe().expect("this program"));
        owner.args([ROLE, &format!("{kind:?}"), &format!("{shape:?}"), &count.to_string()]);
        owner.arg(peers.program(kind)).env(MARK, &mark);
        let owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an owner");
        let mark = format!("{MARK}={mark}");
        let mut running = Self { owner, members: HashSet::new(), mark };
        let until = Instant::now() + DEADLINE;
        while running.members.len() < count * shape.members() {
            assert!(Instant::now() < until, "all members are there: {}", running.members.len());
            std::thread::sleep(Duration::from_millis(2));
            let sleeping = everybody().filter(|who| who.name() == "sleep");
            running.members = sleeping.filter(|who| who.has_variable(&running.mark)).collect();
        }
        running.tell();
        // A script takes its time to read what it was told.
        let settle = 30_000 + 300 * u64::try_from(running.members.len()).expect("few");
        std::thread::sleep(Duration::from_micros(settle));
        running
    }

    /// Every member leads a group of its own.
    fn tell(&mut self) {
        let mut input = self.owner.stdin.take().expect("its input");
        for member in &self.members {
            writeln!(input, "{}", member.pid).expect("an owner");
        }
        writeln!(input, "ready").expect("an owner");
        let mut line = String::new();
        let output = self.owner.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("an answer");
        assert_eq!(line, "ready\n");
        // Kept open: its end would be the owner's.
        self.owner.stdin = Some(input);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.owner.kill().ok();
        self.owner.wait().ok();
        self.members.iter().for_each(|who| who.kill());
    }
}

/// How long the members outlive their owner, or how many do for good.
pub(crate) fn death(
    peers: &Peers,
    kind: Kind,
    shape: Shape,
    count: usize,
) -> Result<Duration, usize> {
    let mut running = Running::start(peers, kind, shape, count);
    let handles: Vec<OwnedFd> = running.members.iter().filter_map(|who| who.handle()).collect();
    assert_eq!(handles.len(), running.members.len(), "all live");
    let began = Instant::now();
    running.owner.kill().expect("a signal");
    let mut left = handles.len();
    for handle in &handles {
        // Readable once the process has ended (man 2 pidfd_open).
        let limit = DEADLINE.saturating_sub(began.elapsed());
        let limit = Timespec::try_from(limit).expect("a short time");
        left -= poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit)).expect("a wait");
    }
    let took = began.elapsed();
    if left == 0 { Ok(took) } else { Err(left) }
}
