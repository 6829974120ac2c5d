//! What is measured, beside whom, and what is asked of it: the rows of the table, as data. `main` takes the rounds.

use crate::judge::Bound;
use crate::peers::Who;

/// One side of a comparison, asked once a round.
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) who: Who,
    pub(crate) request: String,
    /// Which number of the answer.
    pub(crate) place: usize,
    /// The answer's number for one of our unit.
    pub(crate) per: f64,
    /// At most so many rounds, for what takes long.
    pub(crate) rounds: usize,
}

/// What is asked of a column, by the names of both.
pub(crate) struct Goal {
    pub(crate) ours: &'static str,
    pub(crate) other: &'static str,
    pub(crate) bound: Bound,
}

/// A bench that prints rows of its own.
pub(crate) struct Bench {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    pub(crate) words: &'static [&'static str],
    /// At most so many rounds.
    pub(crate) rounds: usize,
}

/// Columns that take turns.
pub(crate) struct Group {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) goals: Vec<Goal>,
    /// A bench of its own that measures it.
    pub(crate) bench: Option<Bench>,
}

const MANY: usize = usize::MAX;
/// For what takes a second or more.
const FEW: usize = 5;
const ONCE: usize = 1;

const MICROS: f64 = 1e3;
const MILLIS: f64 = 1e6;
const KIB_IN_MIB: f64 = 1024.0;

/// Tasks of one round of a rate.
const TASKS: usize = 200;
const TRIPS: usize = 2_000;
const EVENTS: usize = 100_000;
/// A tool event of ours on the wire, about.
const EVENT_BYTES: usize = 200;
const UNREAD: usize = 10_000_000;
const EARLY: usize = 20;
const ALIVE: usize = 1_000;

fn column(name: &str, who: Who, request: impl Into<String>) -> Column {
    let (name, request) = (name.to_owned(), request.into());
    Column { name, who, request, place: 0, per: MICROS, rounds: MANY }
}

impl Column {
    fn place(self, place: usize) -> Self {
        Self { place, ..self }
    }

    fn per(self, per: f64) -> Self {
        Self { per, ..self }
    }

    fn rounds(self, rounds: usize) -> Self {
        Self { rounds, ..self }
    }
}

fn ours(launcher: &'static str) -> Who {
    Who::Ours(launcher, 1, 0)
}

fn group(
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    columns: Vec<Column>,
    goals: Vec<(&'static str, &'static str, Bound)>,
) -> Group {
    let goals = goals.into_iter().map(|(ours, other, bound)| Goal { ours, other, bound }).collect();
    Group { key, title, unit, columns, goals, bench: None }
}

/// Every row, in the order in which they are measured.
pub(crate) fn groups() -> Vec<Group> {
    vec![
        start(),
        end(),
        large_parent(),
        batch(),
        alive(),
        rate(),
        prepared(),
        large_template(),
        events(),
        results(),
        killed(),
        interrupt(),
        early(),
        unread(),
        responsive(),
        owner(),
        idle(),
        ledger(),
        heavier(),
    ]
}

fn peers(place: usize) -> Vec<Column> {
    let rust = ["std", "tokio", "procspawn", "processkit", "ipc-channel"];
    let rust = rust.map(|library| {
        let name = match library {
            "std" => "std Command, lines of JSON",
            "tokio" => "tokio Command, lines of JSON",
            "ipc-channel" => "ipc-channel, one-shot server",
            other => other,
        };
        column(name, Who::Rust(library), "start").place(place)
    });
    let python = column("Python forkserver, preloaded", Who::Python("forkserver"), "start");
    let node = column("Node child_process.fork", Who::Node, "start").place(place);
    rust.into_iter().chain([python.place(place), node]).collect()
}

fn start() -> Group {
    let mut columns = vec![
        column("a worker that runs, a round trip", Who::Bare(0), "worker"),
        column("bare fork", Who::Bare(0), "fork"),
        column("zygote in C", Who::Bare(0), "zygote"),
        column("clone + exec of this program", Who::Bare(0), "exec"),
        column("ours: pool", ours("pool"), "start"),
        column("ours: zygote", ours("zygote"), "start"),
        column("ours: exec", ours("exec"), "start"),
        column("ours: thread", ours("thread"), "start"),
    ];
    columns.extend(peers(0));
    let goals = vec![
        ("ours: pool", "a worker that runs, a round trip", Bound::Times(2.0)),
        ("ours: zygote", "zygote in C", Bound::Times(1.5)),
        ("ours: exec", "clone + exec of this program", Bound::Times(1.5)),
    ];
    group("start", "Start of a worker to the first event of its child", "µs", columns, goals)
}

fn end() -> Group {
    let mut columns = vec![
        column("bare fork", Who::Bare(0), "fork").place(1),
        column("zygote in C", Who::Bare(0), "zygote").place(1),
        column("clone + exec of this program", Who::Bare(0), "exec").place(1),
        column("ours: pool", ours("pool"), "start").place(1),
        column("ours: zygote", ours("zygote"), "start").place(1),
        column("ours: exec", ours("exec"), "start").place(1),
    ];
    columns.extend(peers(1));
    let goals = vec![("ours: exec", "Python forkserver, preloaded", Bound::Faster(20.0))];
    group("end", "One child end to end: outcome stored, process reaped", "µs", columns, goals)
}

/// Apart from the rest: some of them are at work even while nobody asks anything of them.
fn heavier() -> Group {
    let python = [
        ("Python spawn", "spawn"),
        ("loky, a fresh executor", "loky"),
        ("Ray, a fresh actor", "ray"),
    ];
    let python = python.map(|(name, way)| column(name, Who::Python(way), "start"));
    let mut columns = vec![column("ours: exec", ours("exec"), "start")];
    columns.extend(python);
    let columns = columns.into_iter().map(|column| column.place(1).per(MILLIS).rounds(FEW));
    group("heavier", "The same beside heavier ways", "ms", columns.collect(), Vec::new())
}

fn large_parent() -> Group {
    let large = |launcher| Who::Ours(launcher, 1, 1024);
    let columns = vec![
        column("bare fork", Who::Bare(0), "fork"),
        column("bare fork, 1 GiB", Who::Bare(1024), "fork"),
        column("clone + exec, 1 GiB", Who::Bare(1024), "exec"),
        column("ours: pool", ours("pool"), "start"),
        column("ours: pool, 1 GiB", large("pool"), "start"),
        column("ours: zygote", ours("zygote"), "start"),
        column("ours: zygote, 1 GiB", large("zygote"), "start"),
        column("ours: exec", ours("exec"), "start"),
        column("ours: exec, 1 GiB", large("exec"), "start"),
    ];
    let goals = vec![
        ("ours: pool, 1 GiB", "ours: pool", Bound::Times(1.2)),
        ("ours: zygote, 1 GiB", "ours: zygote", Bound::Times(1.2)),
        ("ours: exec, 1 GiB", "ours: exec", Bound::Times(1.2)),
    ];
    let title = "The same start where the parent holds 1 GiB in small pages";
    group("large-parent", title, "µs", columns, goals)
}

fn batch() -> Group {
    let ten = |launcher| Who::Ours(launcher, 10, 0);
    let columns = vec![
        column("tokio Command, lines of JSON", Who::Rust("tokio"), "batch 64").place(1),
        column("procspawn", Who::Rust("procspawn"), "batch 64").place(1),
        column("Python forkserver, preloaded", Who::Python("forkserver"), "batch 64").place(1),
        column("Node child_process.fork", Who::Node, "batch 64").place(1).rounds(FEW),
        column("ours: auto, 10 at once", ten("auto"), "batch 64"),
        column("ours: exec, 10 at once", ten("exec"), "batch 64"),
        column("ours: threads, 10 at once", ten("thread"), "batch 64"),
    ];
    let columns = columns.into_iter().map(|column| column.per(MILLIS));
    let goals =
        vec![("ours: auto, 10 at once", "Python forkserver, preloaded", Bound::Faster(20.0))];
    group("batch", "64 children end to end", "ms", columns.collect(), goals)
}

fn alive() -> Group {
    use crate::crowd::place::ALL;
    let (many, request) = (ALIVE, format!("alive {ALIVE}"));
    let columns = vec![
        column("bare processes of this program", Who::Still, request.clone()),
        column("ours: exec", Who::Ours("exec", many, 0), request.clone()),
        column("ours: zygote", Who::Ours("zygote", many, 0), request),
    ];
    let columns = columns.into_iter().map(|column| column.place(ALL).per(1000.0).rounds(3));
    let bare = "bare processes of this program";
    let goals =
        vec![("ours: exec", bare, Bound::Times(1.5)), ("ours: zygote", bare, Bound::Times(1.5))];
    let title = "Memory of each of 1,000 alive at once, parent, guards and kernel's side included";
    group("alive", title, "KiB", columns.collect(), goals)
}

fn rate() -> Group {
    let tasks = TASKS as f64 * MICROS;
    let raw = |at_once| format!("zygotes {TASKS} {at_once}");
    let mine = |name, launcher, at_once| {
        column(name, Who::Ours(launcher, at_once, 0), format!("tasks {TASKS}")).per(tasks)
    };
    let columns = vec![
        column("zygote in C, one at a time", Who::Bare(0), raw(1)).per(tasks),
        mine("ours: zygote, one at a time", "zygote", 1),
        column("zygote in C, 4 at once", Who::Bare(0), raw(4)).per(tasks),
        mine("ours: zygote, 4 at once", "zygote", 4),
        column("a worker that runs, round trips", Who::Bare(0), format!("workers {TRIPS}"))
            .per(TRIPS as f64 * MICROS),
        mine("ours: pool, a worker each", "pool", 1),
        mine("ours: pool, one worker again and again", "again", 1),
    ];
    let goals = vec![
        ("ours: zygote, one at a time", "zygote in C, one at a time", Bound::Faster(0.6)),
        ("ours: zygote, 4 at once", "zygote in C, 4 at once", Bound::Faster(0.6)),
        (
            "ours: pool, one worker again and again",
            "a worker that runs, round trips",
            Bound::Faster(0.6),
        ),
    ];
    group("rate", "Each of many empty tasks, in one batch, stored", "µs", columns, goals)
}

fn prepared() -> Group {
    let columns = vec![
        column("an agent that prepares nothing, zygote", ours("zygote"), "start"),
        column("300 ms of preparing, exec", ours("exec"), "costly"),
        column("300 ms of preparing, zygote, from the second child on", ours("zygote"), "costly"),
    ];
    let goals = vec![(
        "300 ms of preparing, zygote, from the second child on",
        "an agent that prepares nothing, zygote",
        Bound::Times(1.5),
    )];
    group("prepared", "Start of an agent that is costly to build", "µs", columns, goals)
}

fn large_template() -> Group {
    let columns = vec![
        column("a small agent, zygote", ours("zygote"), "start"),
        column("one that holds 256 MiB, zygote", ours("zygote"), "large"),
        column("one that holds 256 MiB, exec", ours("exec"), "large").rounds(FEW),
        column("bare fork, 256 MiB in small pages", Who::Bare(256), "fork"),
    ];
    let goals =
        vec![("one that holds 256 MiB, zygote", "a small agent, zygote", Bound::Times(3.0))];
    group("large-template", "Start from a template that holds 256 MiB", "µs", columns, goals)
}

fn events() -> Group {
    let request = format!("events {EVENTS}");
    let columns = vec![
        column(
            "socket pair, a write each",
            Who::Bare(0),
            format!("messages {EVENTS} {EVENT_BYTES}"),
        ),
        column("ipc-channel", Who::Rust("ipc-channel"), request.clone()),
        column("Python multiprocessing.Queue", Who::Python("queue"), request.clone()).rounds(FEW),
        column("ours: exec", ours("exec"), request.clone()),
        column("ours: thread", ours("thread"), request),
    ];
    let columns = columns.into_iter().map(|column| column.per(EVENTS as f64 * MICROS)).collect();
    let goals = vec![
        ("ours: exec", "socket pair, a write each", Bound::Faster(1.0)),
        ("ours: exec", "ipc-channel", Bound::Faster(3.0)),
        ("ours: exec", "Python multiprocessing.Queue", Bound::Faster(6.0)),
    ];
    group("events", "Each of 100,000 tool events of one child", "µs", columns, goals)
}

fn results() -> Group {
    let (small, large) = (1_usize << 20, 64_usize << 20);
    let columns = vec![
        column("socket copy of 1 MiB", Who::Bare(0), format!("messages 1 {small}")),
        column("ours: 1 MiB", ours("exec"), format!("result {small}")),
        column("socket copy of 64 MiB", Who::Bare(0), format!("messages 1 {large}")),
        column("ours: 64 MiB", ours("exec"), format!("result {large}")),
    ];
    let goals = vec![
        ("ours: 1 MiB", "socket copy of 1 MiB", Bound::Times(3.0)),
        ("ours: 64 MiB", "socket copy of 64 MiB", Bound::Times(3.0)),
    ];
    group(
        "results",
        "A result, end to end: started, answered, stored, reaped",
        "µs",
        columns,
        goals,
    )
}

fn killed() -> Group {
    let columns = vec![
        column("SIGKILL to a readable pidfd", Who::Bare(0), "kill"),
        column("ours: exec", ours("exec"), "killed"),
    ];
    let goals = vec![("ours: exec", "SIGKILL to a readable pidfd", Bound::Times(10.0))];
    group("killed", "A child killed to its record, stored and told", "µs", columns, goals)
}

fn interrupt() -> Group {
    let columns = vec![
        column("futex wake", Who::Bare(0), "futex"),
        column("eventfd wake", Who::Bare(0), "eventfd"),
        column("ours: exec", ours("exec"), "interrupt"),
        column("ours: thread", ours("thread"), "interrupt"),
    ];
    let goals = vec![
        ("ours: exec", "futex wake", Bound::Times(1.5)),
        ("ours: exec", "eventfd wake", Bound::Times(1.5)),
    ];
    group("interrupt", "An interrupt to its sight by a child in a loop", "µs", columns, goals)
}

fn early() -> Group {
    let request = format!("early {EARLY}");
    let columns = ["exec", "zygote", "pool"].map(|launcher| {
        let name = format!("ours: {launcher}");
        column(&name, ours(launcher), request.clone()).per(EARLY as f64 / 100.0)
    });
    let whole = Bound::AtLeast(100.0);
    let goals =
        vec![("ours: exec", "", whole), ("ours: zygote", "", whole), ("ours: pool", "", whole)];
    group(
        "early",
        "Interrupts before the child is ready that were honoured",
        "%",
        columns.into(),
        goals,
    )
}

fn unread() -> Group {
    let columns = vec![
        column("ours: growth of the parent", ours("exec"), format!("unread {UNREAD}"))
            .per(KIB_IN_MIB)
            .rounds(ONCE),
    ];
    let goals = vec![("ours: growth of the parent", "", Bound::AtMost(64.0))];
    group("unread", "10 M events that nobody reads, then the result", "MiB", columns, goals)
}

fn responsive() -> Group {
    let mut columns = Vec::new();
    for (name, with) in
        [("idle", "idle"), ("8 hogs in threads", "thread"), ("8 hogs in processes", "process")]
    {
        let request = format!("ticker {with}");
        for (place, what) in ["p99", "worst"].into_iter().enumerate() {
            let name = format!("{name}, {what}");
            let one = column(&name, ours("exec"), request.clone()).place(place);
            columns.push(one.per(MILLIS).rounds(FEW));
        }
    }
    let goals = vec![
        ("8 hogs in processes, p99", "", Bound::AtMost(5.0)),
        ("8 hogs in processes, worst", "", Bound::AtMost(50.0)),
    ];
    group("ticker", "How late a 1 ms tick of the parent's loop is", "ms", columns, goals)
}

const OWNERSHIP: &str = "delegate-ownership";

fn owner_death(words: &'static [&'static str]) -> Option<Bench> {
    Some(Bench { package: OWNERSHIP, name: "owner_death", words, rounds: MANY })
}

fn owner() -> Group {
    let mut goals = Vec::new();
    for (ours, other) in [
        ("obey, N=1: ours, small program", "obey, N=1: C, bare"),
        ("obey, N=10: ours, small program", "obey, N=10: C, bare"),
        ("obey, N=100: ours, small program", "obey, N=100: C, bare"),
        ("escape, N=1: ours, small program", "escape, N=1: C, bare"),
        ("escape, N=10: ours, small program", "escape, N=10: C, bare"),
        ("escape, N=100: ours, small program", "escape, N=100: C, bare"),
    ] {
        goals.push((ours, other, Bound::Times(1.5)));
    }
    let beyond = Bound::AtMost(10_000.0);
    goals.push(("ignore, N=1: ours, small program", "", beyond));
    goals.push(("ignore, N=10: ours, small program", "", beyond));
    let title = "Owner's SIGKILL to the last child gone (ignore: beyond the grace of 3 s)";
    let bench = owner_death(&["rows", "obey", "escape", "ignore"]);
    Group { bench, ..group("owner", title, "µs", Vec::new(), goals) }
}

fn idle() -> Group {
    let goals = vec![
        ("resident: ours, small program", "resident: dash, bare", Bound::Times(0.5)),
        ("proportional: ours, small program", "proportional: dash, bare", Bound::Times(1.5)),
        ("switches: ours, small program", "", Bound::AtMost(0.0)),
    ];
    let title = "Idle guards of one child: memory in KiB, context switches in 10 s";
    let bench = owner_death(&["rows", "idle"]);
    Group { bench, ..group("idle", title, "KiB or switches", Vec::new(), goals) }
}

fn ledger() -> Group {
    let half = Bound::Faster(0.5);
    let goals = vec![
        ("waits, 16: ledger", "waits, 16: bare", half),
        ("queue, 16: ledger", "queue, 16: bare", half),
    ];
    let title = "A row of the ledger beside bare SQLite; writers at once";
    let bench = Some(Bench { package: OWNERSHIP, name: "ledger", words: &["rows"], rounds: 3 });
    Group { bench, ..group("ledger", title, "µs", Vec::new(), goals) }
}
