//! Runs cases beside each other, each in a pid namespace of its own, and takes what they say. Also finds the
//! programs that the rows need. [`crate::inside`] is what runs there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde::de::DeserializeOwned;

use crate::rows::Row;
use crate::table::{Case, Seen};

/// Cases at the same time: most of their time they wait.
const ABREAST: usize = 8;

/// Seconds after which a case is given up.
const LIMIT: &str = "150";

/// What the cases are made of.
#[derive(Debug)]
pub(crate) struct Tools {
    /// `delegate`, of which `own` runs the owner.
    pub(crate) delegate: PathBuf,
    pub(crate) agent: PathBuf,
    pub(crate) service: PathBuf,
    /// Where `.ci/programs` puts things.
    pub(crate) programs: PathBuf,
    /// Words that become another user; empty where this is none that may.
    pub(crate) become_other: &'static str,
}

impl Tools {
    /// Beside this program, as Cargo has built them.
    pub(crate) fn find() -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let examples = own.parent().ok_or("no directory")?;
        let profile = examples.parent().ok_or("no directory")?;
        let target = profile.parent().ok_or("no directory")?;
        let root = rustix::process::geteuid().is_root();
        let tools = Self {
            delegate: profile.join("delegate"),
            agent: examples.join("helper-agent"),
            service: examples.join("helper-service"),
            programs: target.join("programs"),
            become_other: if root {
                "setpriv --reuid=65534 --regid=65534 --clear-groups"
            } else {
                ""
            },
        };
        for one in [&tools.delegate, &tools.agent, &tools.service] {
            if !one.exists() {
                let one = one.display();
                return Err(format!("{one} is not built: cargo build --bins --examples"));
            }
        }
        Ok(tools)
    }

    /// What a row needs and is not here.
    pub(crate) fn missing(&self, row: &Row) -> Vec<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        dirs.push(self.programs.join("npm/node_modules/.bin"));
        dirs.push(self.programs.join("python/bin"));
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        dirs.extend(versions.map(|entry| entry.path().join("bin")));
        let root = rustix::process::geteuid().is_root();
        let is_there =
            |name: &str| name == "root" && root || dirs.iter().any(|dir| dir.join(name).exists());
        row.needs.iter().copied().filter(|name| !is_there(name)).collect()
    }
}

/// On what this was measured, and when: `Linux 6.18, 2 CPUs, root, 2026-12-01`.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = kernel.split('-').next().unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let user = if rustix::process::geteuid().is_root() { "root" } else { "a user's namespaces" };
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let date = date.unwrap_or_default();
    format!("Linux {kernel}, {processors} CPUs, {user}, {ABREAST} cases beside each other, {date}")
}

/// Why nothing can be shown here; `None` where pid namespaces may be made.
pub(crate) fn no_namespace() -> Option<String> {
    let output = namespace(LIMIT).arg("true").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("setsid: {error}")),
    }
}

/// The beginning of a command that runs in a pid namespace of its own.
fn namespace(limit: &str) -> Command {
    let mut command = Command::new("timeout");
    // KILL of whoever holds the namespace ends all that is in it.
    command.args(["-s", "KILL", limit, "setsid", "-w", "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command
}

/// Runs all, and calls `done` as they end.
pub(crate) fn run(
    cases: Vec<Case>,
    done: impl Fn(&Case, &Result<Seen, String>) + Sync,
) -> Vec<(Case, Result<Seen, String>)> {
    let cases = Mutex::new(cases.into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..ABREAST {
            threads.spawn(|| {
                loop {
                    let Some((at, case)) = cases.lock().expect("no panic").next() else { return };
                    let seen = one(&case);
                    done(&case, &seen);
                    results.lock().expect("no panic").push((at, case, seen));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic");
    results.sort_by_key(|(at, ..)| *at);
    results.into_iter().map(|(_, case, seen)| (case, seen)).collect()
}

fn one(case: &Case) -> Result<Seen, String> {
    let words = [case.row, case.end.name(), case.mode.name(), case.tier.name()];
    alone("@inside", &words, LIMIT)
}

/// Runs this program in a namespace, with a directory as its last word, and takes what it says last.
pub(crate) fn alone<T: DeserializeOwned>(
    role: &str,
    words: &[&str],
    limit: &str,
) -> Result<T, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    open_the_way(dir.path());
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = namespace(limit);
    command.arg(own).arg(role).args(words).arg(dir.path()).env("RUST_BACKTRACE", "0");
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| {
        let error = String::from_utf8_lossy(&output.stderr);
        let error: String = error.trim().chars().take(600).collect();
        format!("{}: {error}", output.status)
    })
}

/// Others work there too (a database server refuses to be root).
fn open_the_way(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)).expect("own directory");
}

/// Compiles a program in C that others may run.
pub(crate) fn compile(program: &Path, source: &str) -> Result<(), String> {
    let code = program.with_extension("c");
    std::fs::write(&code, source).map_err(|error| error.to_string())?;
    let status = Command::new("cc").arg("-o").arg(program).arg(&code).status();
    let status = status.map_err(|error| format!("cc: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cc: {status}")) }
}
