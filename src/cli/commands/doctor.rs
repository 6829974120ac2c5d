//! `delegate doctor`: what this machine offers to hold processes together, what is used and why not the rest, and
//! whether it works: a program is started, looked at and ended. Facts and the decision are
//! [`ownership::containment`]'s; here they are asked for and shown.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::Args;
use delegate_core::launch::limits;
use delegate_core::launch::program::{self, Linkage};
use ownership::containment::{self, Choice, Limits, Systemd, Tier};
use ownership::ration::{Limit, Means, Offers};
use ownership::{ChildEvent, Containment, Machine, Spawn};
use serde::Serialize;

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json;
use crate::cli::{Context, value_of, write_out};

mod show;

use show::show;

/// `delegate doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate doctor                         what is used here, and why not more
  delegate doctor --containment cgroup    whether this could be kept; exits with 3 if not
  delegate doctor --containment pid-namespace
  delegate doctor --json | jq .containment.used")]
pub(crate) struct DoctorArgs {
    /// What would be asked for: auto, subreaper, cgroup or pid-namespace
    #[arg(long, value_name = "TIER", default_value_t = Containment::Auto)]
    containment: Containment,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A program that was started to see whether it is held has ended by then.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fewer descriptors than this are few for a guard of many children: each takes one to three.
const FEW_FILES: u64 = 1024;

/// Fewer process numbers than this are used up by one build.
const FEW_PIDS: u64 = 4096;

#[derive(Debug, Serialize)]
struct Findings {
    schema: &'static str,
    version: &'static str,
    /// Nothing that is needed is missing.
    ok: bool,
    /// What is missing, each with what to do.
    problems: Vec<String>,
    /// What could be better.
    remarks: Vec<String>,
    containment: Contained,
    guards: Guards,
    state_dir: Directory,
    runtime_dir: Option<Directory>,
    limits: Bounds,
    /// By what each limit of a child is held here.
    child_limits: Vec<LimitRow>,
    kernel: Kernel,
}

#[derive(Debug, Serialize)]
struct LimitRow {
    key: &'static str,
    means: Option<&'static str>,
    /// Why not by what is better, best first.
    not: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Contained {
    asked: &'static str,
    used: Option<&'static str>,
    tiers: Vec<TierRow>,
    /// Where scopes have their cgroups.
    cgroup: Option<PathBuf>,
    /// A systemd that guards ask for a cgroup, since our own may not be written.
    asks: Option<String>,
}

#[derive(Debug, Serialize)]
struct TierRow {
    tier: &'static str,
    offered: bool,
    used: bool,
    /// Why not.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Guards {
    program: Option<PathBuf>,
    /// `stock` beside this program, or `self`: this one, executed again.
    kind: Option<&'static str>,
    /// `static`, or `dynamic`: then each of the two loads libraries.
    linked: Option<&'static str>,
    /// A program was started, held as it should be, and ended.
    works: bool,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Directory {
    path: PathBuf,
    exists: bool,
    writable: bool,
    file_system: Option<String>,
    /// `false` on a file system of another machine or process.
    local: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Bounds {
    open_files: Option<u64>,
    open_files_max: Option<u64>,
    processes: Option<u64>,
    pid_max: Option<u64>,
    cgroup_pids: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Kernel {
    release: String,
    pidfd: bool,
    children_lists: bool,
    hidepid: bool,
    cgroup2_mount: Option<PathBuf>,
    cgroup_kill: bool,
    cgroup_freeze: bool,
    systemd: bool,
    systemd_user: Option<PathBuf>,
    user_namespaces: u64,
    pid_namespaces: u64,
    restricted_namespaces: bool,
}

/// Looks, and says what it found.
///
/// # Errors
/// An output that cannot be written.
pub(crate) fn run(args: &DoctorArgs, context: &Context) -> Result<Exit, Fault> {
    let findings = look(args.containment, context);
    let exit = if findings.ok { Exit::Done } else { Exit::BrokenPromise };
    write_out(|to| if args.json { json::line(to, &findings) } else { show(to, &findings) })?;
    Ok(exit)
}

fn look(asked: Containment, context: &Context) -> Findings {
    let mut machine = Machine::look();
    let door = machine.door(asked);
    // What a systemd gives is known when guards have asked it.
    let tried = (door.is_some() || machine.choose(asked).used.is_some()).then(|| try_out(asked));
    if door.is_some() {
        machine.scope = tried.as_ref().map(|tried| match (&tried.no_scope, &tried.cgroup) {
            (None, Some(cgroup)) => {
                // Only where one can be made it is seen what a cgroup has.
                machine.cgroup.kill = cgroup.join("cgroup.kill").exists();
                machine.cgroup.freeze = cgroup.join("cgroup.freeze").exists();
                Ok(cgroup.clone())
            }
            (said, _) => Err(said.clone().unwrap_or_else(|| "nobody was asked".to_owned())),
        });
    }
    let choice = machine.choose(asked);
    let limits = containment::limits();
    let offers = Offers::look(asked);
    let mut findings = Findings {
        schema: "delegate.doctor/1",
        version: env!("CARGO_PKG_VERSION"),
        ok: false,
        problems: Vec::new(),
        remarks: Vec::new(),
        containment: contained(asked, &machine, &choice, door),
        guards: guards(choice.used, tried),
        state_dir: directory(&context.state_dir),
        runtime_dir: value_of(&context.env, "XDG_RUNTIME_DIR")
            .map(|dir| directory(Path::new(&dir))),
        limits: Bounds {
            open_files: limits.open_files.0,
            open_files_max: limits.open_files.1,
            processes: limits.processes.0,
            pid_max: limits.pid_max,
            cgroup_pids: limits.cgroup_pids,
        },
        child_limits: Limit::ALL.map(|limit| child_limit(&offers, limit)).into(),
        kernel: kernel(&machine),
    };
    findings.problems = problems(&findings, asked, &choice);
    findings.remarks = remarks(&findings, &machine, limits, offers.needs_leaf);
    findings.ok = findings.problems.is_empty();
    findings
}

fn contained(
    asked: Containment,
    machine: &Machine,
    choice: &Choice,
    door: Option<Systemd>,
) -> Contained {
    let given = machine.scope.as_ref().and_then(|scope| scope.as_ref().ok());
    let place = given.or(machine.cgroup.dir.as_ref());
    let row = |tier: Tier| TierRow {
        tier: tier.word(),
        offered: machine.refusal(tier).is_none(),
        used: choice.used.is_some_and(|used| tier <= used) && machine.refusal(tier).is_none(),
        why: choice.not.iter().find(|(not, _)| *not == tier).map(|(_, why)| why.to_string()),
    };
    Contained {
        asked: asked.word(),
        used: choice.used.map(Tier::word),
        tiers: Tier::ALL.map(row).into(),
        cgroup: place.cloned().filter(|_| {
            choice.used >= Some(Tier::Cgroup) && machine.refusal(Tier::Cgroup).is_none()
        }),
        asks: door.map(|systemd| systemd.to_string()),
    }
}

/// What came of starting a program.
struct Tried {
    /// Its end was not as it should be, or it could not be started.
    error: Option<String>,
    /// Where the cgroups of its owner are, if it had one.
    cgroup: Option<PathBuf>,
    /// It was in a pid namespace of its own.
    inside: bool,
    /// Why a systemd that was asked for a cgroup gave none.
    no_scope: Option<String>,
}

fn guards(expected: Option<Tier>, tried: Option<Tried>) -> Guards {
    let (program, kind) = match program::guards() {
        Some((path, true)) => (Some(path), Some("stock")),
        Some((path, false)) => (Some(path), Some("self")),
        None => (None, None),
    };
    let error = match (expected, tried) {
        (Some(expected), Some(tried)) => tried.error.clone().or_else(|| held_by(&tried, expected)),
        _ => Some("not tried: what was asked for cannot be had".to_owned()),
    };
    let linked = program.as_deref().and_then(Linkage::of).map(Linkage::word);
    Guards { program, kind, linked, works: error.is_none(), error }
}

/// What is wrong with how it was held. A pid namespace has a cgroup only where there can be one.
fn held_by(tried: &Tried, expected: Tier) -> Option<String> {
    let right = match expected {
        Tier::PidNamespace => tried.inside,
        expected @ (Tier::Subreaper | Tier::Cgroup | _) => {
            tried.cgroup.is_some() == (expected >= Tier::Cgroup) && !tried.inside
        }
    };
    let what = || format!("a program that was started is not held by {}", expected.word());
    (!right).then(what)
}

/// Starts a program, sees where it stands, and ends it.
fn try_out(asked: Containment) -> Tried {
    let mut tried = Tried { error: None, cgroup: None, inside: false, no_scope: None };
    let Some(owner) = program::owner() else {
        tried.error = Some("no program here can be a guard".to_owned());
        return tried;
    };
    let owner = owner.with_containment(asked);
    let (tell, events) = channel();
    let spawn = Spawn::new("sleep").arg("60").purpose("delegate doctor");
    let started = owner.spawn(spawn, move |event| drop(tell.send(event)));
    tried.no_scope = owner.no_scope();
    match started {
        Err(error) => tried.error = Some(error.to_string()),
        Ok(child) => {
            (tried.cgroup, tried.inside) = (place_of(&child), has_namespace(&child));
            child.kill();
            tried.error = until_ended(&events).err();
        }
    }
    tried
}

fn until_ended(events: &Receiver<ChildEvent>) -> Result<(), String> {
    loop {
        match events.recv_timeout(PATIENCE) {
            Ok(ChildEvent::Emptied(emptied)) if emptied.left.is_empty() => return Ok(()),
            Ok(ChildEvent::Exited(_)) => {}
            Ok(other) => return Err(format!("it was not ended: {other:?}")),
            Err(_) => return Err("its end was not told in time".to_owned()),
        }
    }
}

/// Where the cgroups of its owner are.
#[cfg(target_os = "linux")]
fn place_of(child: &ownership::Owned) -> Option<PathBuf> {
    child.cgroup().and_then(|cell| containment::dir_of(cell.parent()?.parent()?))
}

/// Whether it has another pid namespace than this program.
#[cfg(target_os = "linux")]
fn has_namespace(child: &ownership::Owned) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/pid")).ok();
    let its = of(&child.pid().to_string());
    its.is_some() && its != of("self")
}

#[cfg(not(target_os = "linux"))]
fn has_namespace(_child: &ownership::Owned) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn place_of(_child: &ownership::Owned) -> Option<PathBuf> {
    None
}

/// A directory that need not be there yet: then it counts where it would be made.
fn directory(path: &Path) -> Directory {
    use rustix::fs::{Access, access};
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    Directory {
        path: path.to_owned(),
        exists: path.is_dir(),
        writable: there.is_dir() && access(there, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        file_system: containment::file_system(path),
        local: is_local(there),
    }
}

#[cfg(target_os = "linux")]
fn is_local(path: &Path) -> Option<bool> {
    use std::os::fd::AsFd as _;
    let folder = std::fs::File::open(path).ok()?;
    let elsewhere = ownership::journal::is_served_elsewhere(folder.as_fd()).ok()?;
    Some(!elsewhere)
}

#[cfg(not(target_os = "linux"))]
fn is_local(_path: &Path) -> Option<bool> {
    None
}

fn kernel(machine: &Machine) -> Kernel {
    Kernel {
        release: machine.kernel.clone(),
        pidfd: machine.pidfd,
        children_lists: machine.children,
        hidepid: machine.hidepid,
        cgroup2_mount: machine.cgroup.mount.clone(),
        cgroup_kill: machine.cgroup.kill,
        cgroup_freeze: machine.cgroup.freeze,
        systemd: machine.systemd,
        systemd_user: machine.systemd_user.clone(),
        user_namespaces: machine.user_namespaces,
        pid_namespaces: machine.pid_namespaces,
        restricted_namespaces: machine.restricted_namespaces,
    }
}

fn problems(findings: &Findings, asked: Containment, choice: &Choice) -> Vec<String> {
    let mut problems = Vec::new();
    match choice.used {
        None => {
            let wanted = match asked {
                Containment::Cgroup => Tier::Cgroup,
                Containment::PidNamespace => Tier::PidNamespace,
                Containment::Auto | Containment::Subreaper | _ => Tier::Subreaper,
            };
            let why = choice.not.iter().find(|(tier, _)| *tier == wanted);
            let why = why.map_or_else(String::new, |(_, why)| format!(": {why}"));
            problems.push(format!("no process can be held by {}{why}", wanted.word()));
        }
        Some(_) => problems.extend(
            findings.guards.error.as_ref().map(|error| format!("the guards do not work: {error}")),
        ),
    }
    let state = &findings.state_dir;
    if !state.writable {
        let path = state.path.display();
        problems.push(format!("the state directory {path} cannot be written: give --state-dir"));
    }
    problems
}

fn child_limit(offers: &Offers, limit: Limit) -> LimitRow {
    let held = offers.decide(limit);
    LimitRow {
        key: limits::key(limit),
        means: held.means.map(Means::word),
        not: held.not.iter().map(ToString::to_string).collect(),
    }
}

fn remarks(
    findings: &Findings,
    machine: &Machine,
    limits: Limits,
    needs_leaf: bool,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut remark = |applies: bool, text: &str| {
        if applies {
            remarks.push(text.to_owned());
        }
    };
    remark(
        machine.hidepid,
        "/proc hides processes of other users: members of theirs are not seen by descent",
    );
    remark(
        !machine.children && machine.proc,
        "this kernel does not list children: each look reads all processes",
    );
    remark(
        findings.state_dir.local == Some(false),
        "the state directory is on a file system of another machine or process: the guards keep no \
         journal there, and SQLite may be slow or unsafe",
    );
    remark(
        findings.guards.linked == Some(Linkage::Dynamic.word()),
        "the guards load libraries: a static `ownership-supervisor` beside this program takes a third of their memory \
         (docs/design/small-program.md)",
    );
    remark(
        needs_leaf,
        "where a limit of a child needs a controller of cgroup v2, this program moves into a cgroup inside of its \
         own one first (ownership-leaf): only an empty one can hand controllers on",
    );
    remark(
        limits.open_files.1.is_some_and(|files| files < FEW_FILES),
        "few descriptors are allowed: raise the hard limit of `ulimit -n` to hold many children",
    );
    remark(
        limits.pid_max.is_some_and(|max| max < FEW_PIDS)
            || limits.cgroup_pids.is_some_and(|max| max < FEW_PIDS),
        "few processes are allowed here: starts may fail when many run",
    );
    remarks
}
