//! `delegate ps`: who owns what that lives here, with what it costs and why it is alive. What is known comes from
//! [`ownership::sight`]; which run an owner works on, from the store; what its tasks do, from itself, if it answers.

mod report;
mod tasks;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use delegate_core::config::Diagnostic;
use delegate_core::store::{RunRecord, Store};
use ownership::sight::{
    self, ChildView, Detail, JobView, OwnerState, OwnerView, Picture, ProcessView, WhyAlive,
};

use crate::cli::commands::janitor::{JOBS, bytes, unreadable};
use crate::cli::control;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::text::{clip, count, escape, took};
use crate::cli::render::{Paint, Style, json};
use crate::cli::{Context, LEDGER, screen, warn, write_out};

use tasks::{Task, Tasks};

/// Runs that are looked through for the one of an owner.
const RUNS: usize = 500;
/// Between two looks of `--watch`.
const AGAIN: Duration = Duration::from_secs(2);

/// `delegate ps`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate ps                              owners, what they started, and all below
  delegate ps --flat --sort mem            processes, the largest first
  delegate ps --filter why=left-over       what dead owners have left
  delegate ps --filter port=8080 --json    who listens there, for a program
  delegate ps --all -w                     marks of other state directories too; look again all the time

Of an owner that answers at once it also shows the tasks: number, state, time, goal, tool and model.

Filters: owner, pid, run, status (of a task), name, purpose, state, why (owner-lives, exempt, ending, left-over,
unknown), known-by (row, place, mark), port. Several must all hold; name and purpose hold a text.")]
pub(crate) struct PsArgs {
    /// Only processes for which this holds (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_filter)]
    filter: Vec<Filter>,
    /// Order of children, and of processes with --flat
    #[arg(long, value_enum, default_value_t = Sort::Age)]
    sort: Sort,
    /// A list of processes instead of a tree
    #[arg(long)]
    flat: bool,
    /// Also owners of which this state directory knows nothing: by their marks
    #[arg(long)]
    all: bool,
    /// Also each process's share of memory (PSS), which takes longer
    #[arg(long)]
    pss: bool,
    /// Look again every 2 s until Ctrl-C; needs a terminal
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `--sort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Resident memory, largest first
    Mem,
    /// Processor time, most first
    Cpu,
    /// Oldest first
    Age,
    /// By number
    Pid,
}

/// `--filter`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Filter {
    key: Key,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Owner,
    Pid,
    Run,
    Status,
    Name,
    Purpose,
    State,
    Why,
    KnownBy,
    Port,
}

const KEYS: [(&str, Key); 10] = [
    ("owner", Key::Owner),
    ("pid", Key::Pid),
    ("run", Key::Run),
    ("status", Key::Status),
    ("name", Key::Name),
    ("purpose", Key::Purpose),
    ("state", Key::State),
    ("why", Key::Why),
    ("known-by", Key::KnownBy),
    ("port", Key::Port),
];

fn parse_filter(text: &str) -> Result<Filter, String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    let found = KEYS.iter().find(|(name, _)| *name == key).map(|(_, key)| *key);
    let names = KEYS.map(|(name, _)| name).join(", ");
    let key = found.ok_or_else(|| format!("no filter `{key}`; there are {names}"))?;
    Ok(Filter { key, value: value.to_owned() })
}

/// Runs by number and start time of the process that began them.
type Runs = HashMap<(u32, u64), Run>;

/// What is shown of a run.
#[derive(Debug, Clone)]
struct Run {
    id: String,
    short: String,
    title: String,
}

/// Shows it.
///
/// # Errors
/// `--watch` without a terminal, or an output that cannot be written.
pub(crate) fn run(args: &PsArgs, context: &Context) -> Result<Exit, Fault> {
    if args.watch && screen::columns(io::stdout()).is_none() {
        return Err(Fault::from(Diagnostic {
            code: "no_terminal",
            message: "--watch draws on a terminal, and standard output is none".into(),
            hint: Some("without it the list is printed once".into()),
            ..Diagnostic::default()
        }));
    }
    loop {
        let Seen { picture, runs, tasks } = look(args, context);
        if args.json {
            write_out(|to| json::line(to, &report::report(&picture, &runs, &tasks)))?;
            return Ok(exit(&picture));
        }
        let text = if args.flat {
            flat(&picture, &runs, &tasks, args.sort, context.out)
        } else {
            tree(&picture, &runs, &tasks, context.out)
        };
        if !args.watch {
            remarks(&picture, args);
            write_out(|to| to.write_all(text.as_bytes()))?;
            return Ok(exit(&picture));
        }
        // From the top, each line to its end, and what is left below.
        let lines = text.replace('\n', "\x1b[K\n");
        write_out(|to| write!(to, "\x1b[H{lines}\x1b[J"))?;
        std::thread::park_timeout(AGAIN);
    }
}

/// Of a ledger with rows that cannot be read not all is shown.
fn exit(picture: &Picture) -> Exit {
    if picture.unreadable.is_empty() { Exit::Done } else { Exit::BrokenPromise }
}

/// What there is to show.
struct Seen {
    picture: Picture,
    runs: Runs,
    tasks: Tasks,
}

fn look(args: &PsArgs, context: &Context) -> Seen {
    let detail = if args.pss { Detail::none().pss() } else { Detail::none() };
    let path = context.state_dir.join(LEDGER);
    let mut picture = sight::look(&path, &[context.state_dir.join(JOBS)], detail.ports());
    let runs = runs(context);
    picture.owners.retain(|owner| args.all || owner.in_ledger);
    // Nobody is asked where nobody could answer.
    let lives = picture.owners.iter().any(|owner| owner.state == OwnerState::Lives);
    let tasks = if lives { tasks::ask(&control::directory(context)) } else { Tasks::new() };
    picture.jobs.retain(|job| args.all || job.reason.is_some());
    for owner in &mut picture.owners {
        let run = run_of(owner, &runs).cloned();
        let owner_pid = owner.identity.pid;
        for child in &mut owner.children {
            let task = task_of(&tasks, owner_pid, child);
            let (owner, run, child_) = (Some(owner_pid), run.as_ref(), Some(&*child));
            let about = About { owner, run, child: child_, task };
            let kept: Vec<_> =
                child.processes.iter().map(|one| about.passes(one, &args.filter)).collect();
            let mut kept = kept.into_iter();
            child.processes.retain(|_| kept.next().unwrap_or(false));
        }
        // Rows without a process are being started or ended just now.
        owner.children.retain(|child| !child.processes.is_empty());
        sort(&mut owner.children, args.sort);
    }
    let asked = !args.filter.is_empty();
    picture
        .owners
        .retain(|owner| !owner.children.is_empty() || (!asked && owner.state == OwnerState::Lives));
    for job in &mut picture.jobs {
        let about = About { owner: None, run: None, child: None, task: None };
        job.processes.retain(|one| about.passes(one, &args.filter));
    }
    picture.jobs.retain(|job| !job.processes.is_empty());
    Seen { picture, runs, tasks }
}

/// What the first process of a child works on.
fn task_of<'a>(tasks: &'a Tasks, owner: u32, child: &ChildView) -> Option<&'a Task> {
    tasks::of_process(tasks, owner, child.processes.first()?.pid)
}

fn runs(context: &Context) -> Runs {
    let store = Store::open_existing(&context.state_dir);
    let found = store.runs(RUNS).unwrap_or_default();
    let shown = |run: &RunRecord| Run {
        id: run.id.to_string(),
        short: store.short_id(run.id),
        title: run.title.clone(),
    };
    // Of one process's runs the newest one that goes on.
    let going = found.iter().filter(|run| run.duration_seconds.is_none()).rev();
    going.filter_map(|run| Some((run.process?, shown(run)))).collect()
}

fn run_of<'a>(owner: &OwnerView, runs: &'a Runs) -> Option<&'a Run> {
    runs.get(&(owner.identity.pid, owner.identity.start?))
}

fn sort(children: &mut [ChildView], by: Sort) {
    use std::cmp::Reverse;
    match by {
        Sort::Mem => children.sort_by_key(|child| Reverse(child.rss())),
        Sort::Cpu => children.sort_by_key(|child| Reverse(child.cpu())),
        Sort::Age => children.sort_by_key(|child| Reverse(child.age())),
        Sort::Pid => {
            children.sort_by_key(|child| child.processes.first().map_or(0, |first| first.pid));
        }
    }
}

/// What is around a process.
#[derive(Clone, Copy)]
struct About<'a> {
    owner: Option<u32>,
    run: Option<&'a Run>,
    child: Option<&'a ChildView>,
    task: Option<&'a Task>,
}

impl About<'_> {
    fn why(&self) -> &'static str {
        self.child.map_or("exempt", |child| child.why.word())
    }

    fn purpose(&self) -> &str {
        self.child.and_then(|child| child.row.as_ref()).map_or("", |row| &row.purpose)
    }

    fn passes(&self, one: &ProcessView, filters: &[Filter]) -> bool {
        filters.iter().all(|Filter { key, value }| match key {
            Key::Owner => self.owner.is_some_and(|owner| owner.to_string() == *value),
            Key::Pid => one.pid.to_string() == *value,
            Key::Run => self.run.is_some_and(|run| run.id.starts_with(value)),
            Key::Status => self.task.is_some_and(|task| task.state() == value),
            Key::Name => one.name.contains(value),
            Key::Purpose => self.purpose().contains(value),
            Key::State => one.state.to_string() == *value,
            Key::Why => self.why() == value,
            Key::KnownBy => known_by(one) == value,
            Key::Port => one.ports.iter().any(|port| ends_with_port(&port.to_string(), value)),
        })
    }
}

/// A number matches the port, anything else the whole place.
fn ends_with_port(place: &str, value: &str) -> bool {
    place == value || place.rsplit_once(':').is_some_and(|(_, port)| port == value)
}

fn known_by(one: &ProcessView) -> &'static str {
    use ownership::sight::KnownBy;
    match one.known_by {
        KnownBy::Row => "row",
        KnownBy::Place => "place",
        KnownBy::Mark | _ => "mark",
    }
}

fn state_of(owner: &OwnerView) -> &'static str {
    match owner.state {
        OwnerState::Lives => "lives",
        OwnerState::Dead => "dead",
        OwnerState::Elsewhere | _ => "elsewhere",
    }
}

fn remarks(picture: &Picture, args: &PsArgs) {
    if let Some(why) = &picture.trouble {
        warn(&format!("{why}; only marks are seen, so use --all"));
    } else if !picture.ledger && !args.all {
        warn("there is no ledger in this state directory; --all shows what bears a mark");
    }
    picture.unreadable.iter().for_each(|row| warn(&unreadable(row)));
    if !picture.whole {
        warn("only your own processes are shown here (hidepid)");
    }
}

const HEAD: &str = "    PID     AGE       MEM     CPU  S  TIER           WHAT";

/// `tier` stands with the first process of a child.
fn line(one: &ProcessView, tier: &str, before: &str, mark: &str) -> String {
    let mut line = format!(
        "{:>7} {:>7} {:>9} {:>7}  {}  {tier:13}  {before}",
        one.pid,
        took(one.age),
        bytes(one.pss.unwrap_or(one.rss)),
        took(one.cpu),
        one.state
    );
    let command = one.command.join(" ");
    let what = if command.is_empty() { &one.name } else { &command };
    line.push_str(&escape(what));
    for port in &one.ports {
        // Writing to a `String` cannot fail.
        let _: std::fmt::Result = write!(line, " [{}]", escape(&port.to_string()));
    }
    line.push_str(mark);
    line
}

fn tree(picture: &Picture, runs: &Runs, tasks: &Tasks, style: Style) -> String {
    let mut lines = Vec::new();
    for owner in &picture.owners {
        lines.push(owner_line(owner, run_of(owner, runs), style));
        let threads = tasks::in_threads(tasks, owner.identity.pid);
        lines.extend(threads.map(|task| format!("{:53}{}, in a thread", "", task.line())));
        for child in &owner.children {
            let purpose = child.row.as_ref().map_or("", |row| &*row.purpose);
            for (at, one) in child.processes.iter().enumerate() {
                let first = at == 0;
                let before = "  ".repeat(one.depth + 1);
                let mut mark = String::new();
                if first && !purpose.is_empty() {
                    let _: std::fmt::Result = write!(mark, " ({})", escape(purpose));
                }
                if first {
                    mark.push_str(&why(&child.why));
                    let task = task_of(tasks, owner.identity.pid, child);
                    mark.extend(task.map(|task| format!(" {}", task.line())));
                }
                if known_by(one) == "mark" {
                    mark.push_str(" (by its mark only)");
                }
                let tier = if first { child.tier.word() } else { "" };
                lines.push(line(one, tier, &before, &mark));
            }
        }
    }
    for JobView { id, reason, processes, .. } in &picture.jobs {
        let reason = reason.as_deref().map_or("of another state directory", |reason| reason);
        lines.push(style.paint(Paint::Faint, &format!("exempt job {id}: {}", escape(reason))));
        lines.extend(processes.iter().map(|one| line(one, "", &"  ".repeat(one.depth + 1), "")));
    }
    page(lines, picture, style)
}

/// Only what is not as usual.
fn why(why: &WhyAlive) -> String {
    match why {
        WhyAlive::OwnerLives => String::new(),
        WhyAlive::Exempt { reason, .. } => format!(" exempt: {}", escape(reason)),
        WhyAlive::Ending => " (being ended by its guards)".to_owned(),
        WhyAlive::LeftOver => " (left over: delegate janitor)".to_owned(),
        WhyAlive::Unknown | _ => " (why it is alive cannot be told)".to_owned(),
    }
}

fn owner_line(owner: &OwnerView, run: Option<&Run>, style: Style) -> String {
    let OwnerView { identity, name, guarding, children, .. } = owner;
    let dot = style.dot();
    let who = name.as_deref().unwrap_or("owner");
    let mut text = format!("{} {}{dot}{}", escape(who), identity.pid, state_of(owner));
    if !children.is_empty() {
        text.push_str(dot);
        text.push_str(guarding.word());
    }
    if let Some(run) = run {
        let _: std::fmt::Result = write!(text, "{dot}run {} {}", run.short, escape(&run.title));
    }
    if !owner.in_ledger {
        let _: std::fmt::Result = write!(text, "{dot}not in this ledger");
    }
    if let Some(above) = owner.below {
        let _: std::fmt::Result = write!(text, "{dot}itself owned by {above}");
    }
    let paint = match owner.state {
        OwnerState::Lives => Paint::Good,
        OwnerState::Dead => Paint::Bad,
        OwnerState::Elsewhere | _ => Paint::Faint,
    };
    style.paint(paint, &text)
}

fn flat(picture: &Picture, runs: &Runs, tasks: &Tasks, by: Sort, style: Style) -> String {
    use std::cmp::Reverse;
    let mut all: Vec<(&ProcessView, &str, String)> = Vec::new();
    for owner in &picture.owners {
        let run = run_of(owner, runs).map_or(String::new(), |run| format!(" run {}", run.short));
        for child in &owner.children {
            let task = task_of(tasks, owner.identity.pid, child);
            let task = task.map_or_else(String::new, |task| format!(", {}", task.line()));
            let of = format!(" (of {}{run}{}{task})", owner.identity.pid, why(&child.why));
            let tier = child.tier.word();
            all.extend(child.processes.iter().map(|one| (one, tier, of.clone())));
        }
    }
    for job in &picture.jobs {
        all.extend(job.processes.iter().map(|one| (one, "", format!(" (exempt job {})", job.id))));
    }
    match by {
        Sort::Mem => all.sort_by_key(|(one, ..)| Reverse(one.pss.unwrap_or(one.rss))),
        Sort::Cpu => all.sort_by_key(|(one, ..)| Reverse(one.cpu)),
        Sort::Age => all.sort_by_key(|(one, ..)| one.start),
        Sort::Pid => all.sort_by_key(|(one, ..)| one.pid),
    }
    page(all.into_iter().map(|(one, tier, of)| line(one, tier, "", &of)).collect(), picture, style)
}

fn page(lines: Vec<String>, picture: &Picture, style: Style) -> String {
    let children = picture.owners.iter().flat_map(|owner| &owner.children);
    let jobs = picture.jobs.iter().map(|job| job.processes.len()).sum::<usize>();
    let processes = children.map(|child| child.processes.len()).sum::<usize>() + jobs;
    if lines.is_empty() {
        return "nothing that is owned lives here\n".to_owned();
    }
    let mut text = String::new();
    for line in std::iter::once(HEAD.to_owned()).chain(lines) {
        // Colours stand around whole lines of owners, which are short.
        let fits = style.width.filter(|_| !line.contains('\x1b'));
        let line =
            fits.map_or(line.clone(), |width| clip(&line, width, style.ellipsis()).into_owned());
        text.push_str(&line);
        text.push('\n');
    }
    let owners = count(picture.owners.len(), "owner", "owners");
    let processes = count(processes, "process", "processes");
    let _: std::fmt::Result = writeln!(text, "{owners}{}{processes}", style.dot());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_known_key_and_a_value() {
        let filter = parse_filter("port=8080").unwrap();
        assert_eq!(filter, Filter { key: Key::Port, value: "8080".into() });
        assert!(parse_filter("port").unwrap_err().contains("KEY=VALUE"));
        assert!(parse_filter("colour=red").unwrap_err().contains("purpose"));
    }

    #[test]
    fn a_port_is_a_number_or_the_whole_place() {
        assert!(ends_with_port("tcp 127.0.0.1:8080", "8080"));
        assert!(ends_with_port("unix /run/x", "unix /run/x"));
        assert!(!ends_with_port("tcp 127.0.0.1:18080", "8080"));
    }
}
