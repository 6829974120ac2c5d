//! `delegate shim`: small scripts, early in `PATH`, that start a program under `own`: for launchers and editors that know no
//! aliases. What is decided from texts and paths is apart from what reads and writes files.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use delegate_core::config::Diagnostic;

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json::Safe;
use crate::cli::render::text::escape;
use crate::cli::{Context, value_of, write_out};

/// `delegate shim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate shim install codex claude    from now on these run under `delegate own`
  delegate shim list                    what there is, and whether it is found first
  delegate shim remove codex

The scripts are in $XDG_DATA_HOME/delegate/shims, which has to stand in PATH before the programs themselves.")]
pub(crate) struct ShimArgs {
    #[command(subcommand)]
    verb: ShimVerb,
}

#[derive(Debug, Subcommand)]
enum ShimVerb {
    /// Make the script for each of these programs
    Install {
        /// Names as they are typed, without a folder
        #[arg(value_name = "NAME", required = true)]
        names: Vec<OsString>,
    },
    /// Show what there is
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove the scripts for these programs, and nothing else
    Remove {
        /// Names as they are typed, without a folder
        #[arg(value_name = "NAME", required = true)]
        names: Vec<OsString>,
    },
}

/// Second line of each script: what has it was made here, and may be removed.
const MARK: &[u8] = b"# made by `delegate shim install`";

/// What begins the line with the program.
const OWN: &[u8] = b" own -- ";

/// # Errors
/// A name for which no script can be made or removed; those before it are done.
pub(crate) fn run(args: &ShimArgs, context: &Context) -> Result<Exit, Fault> {
    let place = Place::of(context)?;
    match &args.verb {
        ShimVerb::Install { names } => place.install(names),
        ShimVerb::List { json } => place.list(*json),
        ShimVerb::Remove { names } => place.remove(names),
    }
}

fn fault(message: String, hint: &str) -> Fault {
    let hint = Some(hint.to_owned()).filter(|hint| !hint.is_empty());
    Diagnostic { code: "shim", message, hint, ..Diagnostic::default() }.into()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    fault(format!("{what} {}: {error}", path.display()), "")
}

/// The directory of the scripts, and what is looked through for programs.
struct Place {
    dir: PathBuf,
    path: OsString,
}

impl Place {
    fn of(context: &Context) -> Result<Self, Fault> {
        let value = |name| value_of(&context.env, name).filter(|value| value.starts_with('/'));
        let data = value("XDG_DATA_HOME").map(PathBuf::from);
        let data = data.or_else(|| Some(Path::new(&value("HOME")?).join(".local/share")));
        let data = data.ok_or_else(|| {
            fault("there is no place for scripts".into(), "set HOME or XDG_DATA_HOME")
        })?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        Ok(Self { dir: data.join("delegate/shims"), path })
    }

    /// The files that this name may mean, in order.
    fn candidates<'a>(&'a self, name: &'a OsStr) -> impl Iterator<Item = PathBuf> + 'a {
        let folders = std::env::split_paths(&self.path).filter(|folder| folder.is_absolute());
        let folders: Vec<_> = folders.collect();
        let files = folders.into_iter().map(move |folder| folder.join(name));
        files.filter(|file| is_executable(file))
    }

    fn install(&self, names: &[OsString]) -> Result<Exit, Fault> {
        let own = std::env::current_exe().map_err(|error| {
            failed("cannot find this program", Path::new("/proc/self/exe"), &error)
        })?;
        fs::create_dir_all(&self.dir).map_err(|error| failed("cannot make", &self.dir, &error))?;
        for name in names {
            let target = self.target(name, &own)?;
            let script = script(own.as_os_str(), target.as_os_str());
            let file = self.dir.join(name);
            self.write(&file, &script)?;
            let said = format!("{} runs {} under own", file.display(), target.display());
            write_out(|to| writeln!(to, "{}", escape(&said)))?;
            if self.candidates(name).next() != Some(file) {
                let dir = self.dir.display().to_string();
                let hint = format!(
                    "not effective yet: export PATH=\"{dir}:$PATH\" in your shell's startup file"
                );
                write_out(|to| writeln!(to, "{}", escape(&hint)))?;
            }
        }
        Ok(Exit::Done)
    }

    /// The program itself: no script of ours, and not this program, which would run itself for ever.
    fn target(&self, name: &OsStr, own: &Path) -> Result<PathBuf, Fault> {
        let shown = name.to_string_lossy();
        if !is_name(name) {
            return Err(fault(
                format!("`{shown}` is no name of a program"),
                "write it without a folder",
            ));
        }
        let is_real = |file: &PathBuf| !is_shim(file);
        let found = self.candidates(name).find(is_real).ok_or_else(|| {
            fault(format!("`{shown}` is in no directory of PATH"), "install the program first")
        })?;
        let same = |one: &Path, other: &Path| {
            fs::canonicalize(one)
                .ok()
                .is_some_and(|one| fs::canonicalize(other).is_ok_and(|other| one == other))
        };
        if same(&found, own) {
            return Err(fault(
                format!("`{shown}` is this program: it would start itself for ever"),
                "",
            ));
        }
        Ok(found)
    }

    /// Whole, or not at all; never over something of somebody else's.
    fn write(&self, file: &Path, script: &[u8]) -> Result<(), Fault> {
        if fs::symlink_metadata(file).is_ok() && !is_shim(file) {
            let message = format!("{} is there and was not made here", file.display());
            return Err(fault(message, "move it away first"));
        }
        let new = self.dir.join(format!(".new-{}", std::process::id()));
        let written = fs::write(&new, script)
            .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&new, file));
        written.map_err(|error| {
            // What is half done is not kept.
            drop(fs::remove_file(&new));
            failed("cannot write", file, &error)
        })
    }

    fn remove(&self, names: &[OsString]) -> Result<Exit, Fault> {
        for name in names {
            let file = self.dir.join(name);
            if !is_name(name) || !is_shim(&file) {
                let shown = name.to_string_lossy();
                let message = format!("there is no script for `{shown}` that was made here");
                return Err(fault(message, "`delegate shim list` shows what there is"));
            }
            fs::remove_file(&file).map_err(|error| failed("cannot remove", &file, &error))?;
            let said = format!("{} is removed", file.display());
            write_out(|to| writeln!(to, "{}", escape(&said)))?;
        }
        Ok(Exit::Done)
    }

    fn list(&self, json: bool) -> Result<Exit, Fault> {
        let mut files: Vec<_> = fs::read_dir(&self.dir).into_iter().flatten().flatten().collect();
        files.retain(|file| is_shim(&file.path()));
        files.sort_by_key(fs::DirEntry::file_name);
        let rows = files.iter().map(|file| {
            let (name, path) = (file.file_name(), file.path());
            let target = fs::read(&path).ok().and_then(|text| target_of(&text)).unwrap_or_default();
            let first = self.candidates(&name).next();
            let state = state(first.as_deref(), &path, is_executable(&target));
            (name.to_string_lossy().into_owned(), target, state)
        });
        let rows: Vec<_> = rows.collect();
        if json {
            let shims: Vec<_> = rows
                .iter()
                .map(|(name, target, state)| {
                    serde_json::json!({"name": name, "target": target.to_string_lossy(),
                        "effective": *state == State::Effective, "state": state.text()})
                })
                .collect();
            let object = serde_json::json!({"schema": "delegate.shims/1", "dir": self.dir.to_string_lossy(), "shims": shims});
            write_out(|to| writeln!(Safe(to), "{object}"))?;
        } else {
            for (name, target, state) in &rows {
                let line = format!("{name}  {}  {}", target.display(), state.text());
                write_out(|to| writeln!(to, "{}", escape(&line)))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn is_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_bytes().contains(&b'/') && !name.as_bytes().starts_with(b".")
}

/// Whether it was made here. Only its beginning is read: it may be a program of any size.
fn is_shim(file: &Path) -> bool {
    let mut head = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(256).read_to_end(&mut head));
    read.is_ok() && head.split(|byte| *byte == b'\n').nth(1) == Some(MARK)
}

/// How a script stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Effective,
    /// Something else of this name is found first.
    Behind(PathBuf),
    NotInPath,
    /// The program is gone.
    Dangling,
}

impl State {
    fn text(&self) -> String {
        match self {
            Self::Effective => "effective".to_owned(),
            Self::Behind(other) => {
                format!("not effective: {} comes first in PATH", other.display())
            }
            Self::NotInPath => "not effective: its directory is not in PATH".to_owned(),
            Self::Dangling => "the program is gone".to_owned(),
        }
    }
}

/// What is found first for a name, and what that means for its script.
fn state(first: Option<&Path>, script: &Path, target_is_there: bool) -> State {
    match first {
        _ if !target_is_there => State::Dangling,
        Some(first) if first == script => State::Effective,
        Some(other) => State::Behind(other.to_owned()),
        None => State::NotInPath,
    }
}

/// The script for a program.
fn script(own: &OsStr, target: &OsStr) -> Vec<u8> {
    let (own, target) = (quoted(own.as_bytes()), quoted(target.as_bytes()));
    [b"#!/bin/sh\n", MARK, b"\nexec ", &own, OWN, &target, b" \"$@\"\n"].concat()
}

/// The program that a script starts.
fn target_of(script: &[u8]) -> Option<PathBuf> {
    let line = script.split(|byte| *byte == b'\n').nth(2)?;
    let end = line.strip_suffix(b" \"$@\"")?;
    let at = end.windows(OWN.len()).position(|window| window == OWN)?;
    let text = end.get(at + OWN.len()..)?.strip_prefix(b"'")?.strip_suffix(b"'")?;
    let text = String::from_utf8_lossy(text).replace("'\\''", "'");
    Some(OsString::from_vec(text.into_bytes()).into())
}

/// As one word of a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let inner = word.iter().flat_map(|byte| match byte {
        b'\'' => b"'\\''".as_slice(),
        other => std::slice::from_ref(other),
    });
    [b"'".as_slice(), &inner.copied().collect::<Vec<_>>(), b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_the_program_that_it_starts() {
        for target in ["/usr/bin/codex", "/opt/a b/x", "/opt/it's", "/a own -- b/x"] {
            let text = script(OsStr::new("/usr/bin/delegate"), OsStr::new(target));
            let found = target_of(&text);
            assert_eq!(found.as_deref(), Some(Path::new(target)));
        }
        assert_eq!(target_of(b""), None);
        assert_eq!(target_of(b"#!/bin/sh\n\nexec x \"$@\"\n"), None);
    }

    #[test]
    fn what_is_found_first_decides() {
        let own = Path::new("/shims/x");
        assert_eq!(state(Some(own), own, true), State::Effective);
        assert_eq!(state(Some(Path::new("/bin/x")), own, true), State::Behind("/bin/x".into()));
        assert_eq!(state(None, own, true), State::NotInPath);
        assert_eq!(state(Some(own), own, false), State::Dangling);
    }

    #[test]
    fn names_are_no_paths() {
        for bad in ["", ".", "..", "a/b", "/bin/x", ".hidden"] {
            assert!(!is_name(OsStr::new(bad)), "{bad}");
        }
        assert!(is_name(OsStr::new("codex")));
    }
}
