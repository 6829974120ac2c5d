//! Which programs play the supervisor and the worker: this one again, or stock ones beside it.
//!
//! One program, many roles: `workers()` (facade) declares that `main` answers to the roles;
//! `test_support!()` does the same for a test binary. A stock `delegate-child` or
//! `ownership-supervisor` is used where it is installed beside this program.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use delegate_child::Registry;
use delegate_child::worker::WORKER_ROLE;
use ownership::{Owner, Program};

use super::exec::WorkerProgram;

mod linkage;

pub use linkage::Linkage;

/// How this program answers to the roles.
#[derive(Debug, Clone)]
struct SelfRoles {
    registry: Registry,
    /// Arguments after the role.
    trailing: Vec<OsString>,
}

/// A test binary that answers to the roles in a test function of this path (without the crate).
#[derive(Debug)]
pub struct TestRoles {
    /// `module_path!()` of the function, and its name.
    pub path: &'static str,
    /// Agents of the binary.
    pub registry: fn() -> Registry,
}

inventory::collect!(TestRoles);

static DECLARED: OnceLock<SelfRoles> = OnceLock::new();

/// Declares that the `main` of this program answers to the roles, with these agents. The first call
/// wins.
pub fn declare(registry: Registry) {
    if DECLARED.set(SelfRoles { registry, trailing: Vec::new() }).is_err() {
        tracing::debug!(target: "delegate::launch::program", "roles were declared before");
    }
}

fn self_roles() -> Option<SelfRoles> {
    if let Some(declared) = DECLARED.get() {
        return Some(declared.clone());
    }
    let test = inventory::iter::<TestRoles>.into_iter().next()?;
    let path = test.path.split_once("::").map_or(test.path, |(_, path)| path);
    // libtest takes the role as one more filter that fits nothing.
    let trailing = [path, "--exact", "--nocapture", "--test-threads=1"];
    Some(SelfRoles { registry: (test.registry)(), trailing: trailing.map(OsString::from).to_vec() })
}

/// Agents of this program: those that it declared, else those that ship.
#[must_use]
pub fn registry() -> Registry {
    self_roles().map_or_else(Registry::shipped, |roles| roles.registry)
}

/// The owner of this process, made at the first call; a delegator has it write down what it starts. `None` when no program here can be a
/// supervisor.
#[must_use]
pub fn owner() -> Option<Owner> {
    static OWNER: OnceLock<Option<Owner>> = OnceLock::new();
    OWNER
        .get_or_init(|| {
            let (program, args) = supervisor_program()?;
            Some(Owner::new(program, args))
        })
        .clone()
}

/// The program that keeps jobs that live on: this one, where its `main` answers to the roles.
#[must_use]
pub fn shim() -> Option<Program> {
    DECLARED.get().and_then(|_| Program::current().ok())
}

/// Which program the guards are, and whether it is one of its own and not this one; `None` when no program here
/// can be a guard.
#[must_use]
pub fn guards() -> Option<(PathBuf, bool)> {
    match stock("ownership-supervisor") {
        Some(path) => Some((path, true)),
        None => supervisor_program().and_then(|_| Some((env::current_exe().ok()?, false))),
    }
}

fn supervisor_program() -> Option<(Program, Vec<OsString>)> {
    if let Some(path) = stock("ownership-supervisor") {
        return Some((Program::named(path), Vec::new()));
    }
    Some((Program::current().ok()?, self_roles()?.trailing))
}

/// The worker program: `worker.command` where it is set, else a stock worker beside this program
/// when it has every agent that this program has, else this program. `None` when there is none.
#[must_use]
pub fn worker(command: Option<&[String]>) -> Option<WorkerProgram> {
    let owner = owner()?;
    if let Some((program, args)) = command.and_then(<[String]>::split_first) {
        return Some(WorkerProgram {
            program: Program::named(program),
            args: args.iter().map(OsString::from).collect(),
            description: format!("worker.command: {program}"),
            owner,
            hidden_variables: Vec::new(),
        });
    }
    let role = OsString::from(WORKER_ROLE);
    let ships_only = registry().names() == Registry::shipped().names();
    if let Some(path) = stock("delegate-child").filter(|_| ships_only) {
        return Some(WorkerProgram {
            description: path.display().to_string(),
            program: Program::named(path),
            args: vec![role],
            owner,
            hidden_variables: Vec::new(),
        });
    }
    let roles = self_roles()?;
    Some(WorkerProgram {
        program: Program::current().ok()?.shown_as("delegate-worker"),
        args: [vec![role], roles.trailing].concat(),
        description: "this program, executed again".to_owned(),
        owner,
        hidden_variables: Vec::new(),
    })
}

/// Why this program cannot execute itself although it answers to the roles: no `/proc`, for instance.
#[must_use]
pub fn unreadable() -> Option<std::io::Error> {
    self_roles().and_then(|_| Program::current().err())
}

/// An installed program beside this one. Build directories do not count: what lies there may be of
/// an older build.
fn stock(name: &str) -> Option<PathBuf> {
    let folder = env::current_exe().ok()?.parent()?.to_owned();
    if folder.ancestors().any(is_build_directory) {
        return None;
    }
    Some(folder.join(name)).filter(|path| path.is_file())
}

/// Cargo marks the build directory that it made itself (<https://bford.info/cachedir/>), not one that
/// was there before, as a cache that was restored is; its own files lie in each profile's folder.
fn is_build_directory(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").is_file()
        || folder.join(".cargo-lock").is_file()
        || folder.join(".fingerprint").is_dir()
}
