//! Builds the programs that we are compared with, as far as this machine can, and says loudly what is missing and how
//! to have it. They stand in `benches/peers`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::judge::Figures;
use crate::participant::Participant;
use crate::rows::Bench;
use crate::support;

/// Who takes part. Two of the same kind with other words are two processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// We, with a launcher, children at once, and MiB that the parent holds.
    Ours(&'static str, usize, usize),
    /// Bare C, which holds so many MiB.
    Bare(usize),
    /// A Rust library.
    Rust(&'static str),
    /// A way of Python's.
    Python(&'static str),
    Node,
    /// Bare processes of this very program.
    Still,
}

/// What was built and found.
#[derive(Debug)]
pub(crate) struct Peers {
    table: PathBuf,
    bare: Result<PathBuf, String>,
    rust: Result<PathBuf, String>,
    python: Result<PathBuf, String>,
    node: Result<PathBuf, String>,
}

/// What is printed where a program is missing, once.
const VENV: &str =
    "python3 -m venv target/peers/venv && target/peers/venv/bin/pip install httpx openai loky ray";

impl Peers {
    /// Builds what it can. Says on the error stream what it does and what is missing.
    pub(crate) fn prepare() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let sources = root.join("benches/peers");
        let table = std::env::current_exe().expect("this program");
        // target/PROFILE/deps/table-HASH
        let target = table.ancestors().nth(3).map_or_else(|| root.join("target"), Path::to_owned);
        let target = target.join("peers");
        std::fs::create_dir_all(&target).expect("a folder for what is built");
        let bare = target.join("bare");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-o"]).arg(&bare).arg(sources.join("bare.c"));
        let bare = built(compile, bare, "a C compiler (Debian: apt-get install gcc libc6-dev)");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--release", "--bin", "rounds", "--manifest-path"]);
        cargo.arg(sources.join("Cargo.toml")).arg("--target-dir").arg(&target);
        let rust = built(cargo, target.join("release/rounds"), "cargo and its registry");
        let own = target.join("venv/bin/python3");
        let python = std::env::var_os("BENCH_PYTHON").map(PathBuf::from);
        let python = python.or_else(|| own.exists().then_some(own)).or_else(|| on_path("python3"));
        let python = python.ok_or_else(|| format!("no python3 here: install it, then {VENV}"));
        let node = on_path("node").ok_or_else(|| "no node here: https://nodejs.org".to_owned());
        Self { table, bare, rust, python, node }
    }

    /// Starts one of them.
    ///
    /// # Errors
    /// Why it cannot take part here.
    pub(crate) fn start(&self, who: &Who) -> Result<Participant, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
        let command = match who {
            Who::Ours(launcher, places, held) => {
                let mut command = Command::new(&self.table);
                command.args(["@ours", launcher, &places.to_string(), &held.to_string()]);
                command
            }
            Who::Still => {
                let mut command = Command::new(&self.table);
                command.arg("@still");
                command
            }
            Who::Bare(held) => {
                let mut command = Command::new(self.bare.as_ref().map_err(String::clone)?);
                command.arg(held.to_string()).arg(&self.table).arg(support::BARE);
                command
            }
            Who::Rust(library) => {
                let mut command = Command::new(self.rust.as_ref().map_err(String::clone)?);
                command.arg(library);
                command
            }
            Who::Python(way) => {
                let mut command = Command::new(self.python.as_ref().map_err(String::clone)?);
                command.arg(sources.join("peer.py")).arg(way);
                command
            }
            Who::Node => {
                let mut command = Command::new(self.node.as_ref().map_err(String::clone)?);
                command.arg(sources.join("peer.js"));
                command
            }
        };
        Participant::start(command).map_err(|why| {
            let lacks = matches!(who, Who::Python(_)) && why.contains("No module named");
            if lacks { format!("{why} ({VENV})") } else { why }
        })
    }

    /// The rows of a bench of the workspace that prints `@row NAME MEDIAN MINIMUM ROUNDS` lines among others.
    ///
    /// # Errors
    /// Why it did not run.
    pub(crate) fn bench(bench: &Bench, rounds: usize) -> Result<Vec<(String, Figures)>, String> {
        let Bench { package, name, words, rounds: _ } = bench;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["bench", "--quiet", "-p", package, "--bench", name, "--"]).args(*words);
        cargo.arg(rounds.to_string()).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = cargo.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("the bench {name} failed ({})", output.status));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let rows = said.lines().filter_map(|line| {
            let mut fields = line.strip_prefix("@row\t")?.split('\t');
            let name = fields.next()?.to_owned();
            let (median, least) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let rounds = fields.next()?.parse().ok()?;
            Some((name, Figures { rounds, median, least, most: median }))
        });
        Ok(rows.collect())
    }
}

fn built(mut command: Command, program: PathBuf, needs: &str) -> Result<PathBuf, String> {
    eprintln!("building {}", program.display());
    match command.stdin(Stdio::null()).stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("it could not be built ({status}); it needs {needs}")),
        Err(error) => Err(format!("it could not be built ({error}); it needs {needs}")),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.exists())
}
