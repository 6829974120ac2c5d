//! `delegate config edit`: a copy of the file goes through the editor and through the check, and takes the file's
//! place only when nothing is wrong with it. Until then the file stays as it is, and what was written stays in the
//! copy. The editor is owned, as a program of `delegate own`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use delegate_core::config::{self, Diagnostic, Sources, State};

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json::line;
use crate::cli::render::text::escape;
use crate::cli::{Context, warn, write_out};

/// What a new file begins with: every key with its default, as a comment.
const EXAMPLE: &str = include_str!("../../../../config.example.yaml");

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    /// The file [default: the strongest that is there, else that of this user; see `config path`]
    #[arg(value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Take up what an earlier edit has left in FILE.edit
    #[arg(long)]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EditArgs, context: &Context) -> Result<Exit, Fault> {
    let sources = super::sources(context)?;
    let editor = editor(context)?;
    let named = match &args.file {
        Some(file) => sources.cwd.join(file),
        None => usual(&sources)?,
    };
    // A link stays, what it leads to is replaced.
    let file = named.canonicalize().unwrap_or(named);
    let before = read(&file)?;
    let copy = Copy::of(&file, before.as_deref(), args.resume)?;
    open_in(&editor, &copy.path, context)?;
    let after = match fs::read_to_string(&copy.path) {
        Ok(after) => after,
        Err(error) => {
            return Err(refused(&file, &copy.path, &format!("cannot be read back: {error}")));
        }
    };
    if before.as_deref().unwrap_or_default() == after || (before.is_none() && after == fresh()) {
        copy.drop()?;
        return told(args, &file, false, "nothing was changed");
    }
    let mut checked = config::check(Some(&copy.path), &sources);
    if !checked.faults.is_empty() {
        for fault in &mut checked.faults {
            fault.file = Some(copy.path.clone());
        }
        return Err(not_taken(args, &file, &copy.path, &checked.faults, context));
    }
    if read(&file)? != before {
        return Err(refused(&file, &copy.path, "is not taken: the file was changed meanwhile"));
    }
    copy.put_in_place(&file)?;
    checked.notes.iter().for_each(|note| warn(note));
    let places = config::places(&sources);
    let untrusted = |place: &config::Place| place.path == file && place.state == State::Untrusted;
    if places.iter().any(untrusted) {
        let file = escape(&file.to_string_lossy()).into_owned();
        warn(&format!("a changed file has to be trusted again: delegate trust {file}"));
    }
    told(args, &file, true, "checked, and put in place")
}

/// The editor as a shell takes it: it may have arguments.
fn editor(context: &Context) -> Result<String, Fault> {
    let value = |name| {
        let found = context.env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.trim().is_empty())
    };
    value("VISUAL").or_else(|| value("EDITOR")).ok_or_else(|| {
        let message = "neither VISUAL nor EDITOR names an editor; nothing was opened".to_owned();
        let fault = Diagnostic { code: "no_editor", message, ..Diagnostic::default() };
        fault.hint("EDITOR=vi delegate config edit").into()
    })
}

/// The strongest file that is there, else the user's own.
fn usual(sources: &Sources) -> Result<PathBuf, Fault> {
    let there = |place: &config::Place| place.state != State::Absent;
    let found = config::places(sources).into_iter().find(there).map(|place| place.path);
    let user = || config::user_dir(&sources.env).map(|dir| dir.join("config.yaml"));
    found.or_else(user).ok_or_else(|| {
        let message = "there is no configuration file and no home directory for one".to_owned();
        let fault = Diagnostic { code: "missing_file", message, ..Diagnostic::default() };
        fault.hint("name it: delegate config edit FILE").into()
    })
}

fn read(file: &Path) -> Result<Option<String>, Fault> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot(file, &error)),
    }
}

fn cannot(file: &Path, error: &io::Error) -> Fault {
    let message = format!("it cannot be edited: {error}; nothing was changed");
    let file = Some(file.to_owned());
    Diagnostic { code: "not_editable", message, file, ..Diagnostic::default() }.into()
}

/// What a new file begins with.
fn fresh() -> String {
    let commented = |line: &str| match line.trim_start() {
        "" => "\n".to_owned(),
        text if text.starts_with('#') => format!("{line}\n"),
        _ => format!("# {line}\n"),
    };
    EXAMPLE.lines().map(commented).collect()
}

/// What the editor works on, beside the file, so that it can take its place at once.
struct Copy {
    path: PathBuf,
}

impl Copy {
    fn of(file: &Path, text: Option<&str>, resume: bool) -> Result<Self, Fault> {
        let mut path = file.as_os_str().to_owned();
        path.push(".edit");
        let path = PathBuf::from(path);
        if resume {
            // No link: it shall be ours.
            let is_file = path.symlink_metadata().is_ok_and(|there| there.is_file());
            return if is_file { Ok(Self { path }) } else { Err(nothing_left(&path)) };
        }
        let mode = file.metadata().map_or(0o600, |there| there.permissions().mode() & 0o7777);
        let made = Self::make(file, &path, text.unwrap_or(&fresh()), mode);
        match made {
            Ok(()) => Ok(Self { path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(another(&path)),
            Err(error) => Err(cannot(&path, &error)),
        }
    }

    fn make(file: &Path, path: &Path, text: &str, mode: u32) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut copy = options.write(true).create_new(true).mode(mode).open(path)?;
        copy.write_all(text.as_bytes())
    }

    fn drop(self) -> Result<(), Fault> {
        fs::remove_file(&self.path).map_err(|error| cannot(&self.path, &error))
    }

    /// On disk, then in place, at once.
    fn put_in_place(self, file: &Path) -> Result<(), Fault> {
        let put = || {
            let copy = File::open(&self.path)?;
            // An editor may have made it anew, with a mode of its own.
            if let Ok(there) = file.metadata()
                && there.mode() != copy.metadata()?.mode()
            {
                copy.set_permissions(there.permissions())?;
            }
            copy.sync_all()?;
            fs::rename(&self.path, file)
        };
        put().map_err(|error| cannot(file, &error))
    }
}

fn nothing_left(path: &Path) -> Fault {
    let message = "no edit has left anything here".to_owned();
    let file = Some(path.to_owned());
    Diagnostic { code: "missing_file", message, file, ..Diagnostic::default() }
        .hint("without --resume an edit begins with the file")
        .into()
}

fn another(path: &Path) -> Fault {
    let message = "another edit goes on, or one was broken off; nothing was opened".to_owned();
    let file = Some(path.to_owned());
    Diagnostic { code: "edit_exists", message, file, ..Diagnostic::default() }
        .hint("delegate config edit --resume takes it up; remove it to begin anew")
        .into()
}

fn refused(file: &Path, copy: &Path, why: &str) -> Fault {
    let message = format!("what was written {why}; {} stays as it was", file.display());
    let copy = Some(copy.to_owned());
    Diagnostic { code: "not_taken", message, file: copy, ..Diagnostic::default() }
        .hint("delegate config edit --resume takes it up again")
        .into()
}

/// Tells every fault, and gives the one that ends the command.
fn not_taken(
    args: &EditArgs,
    file: &Path,
    copy: &Path,
    faults: &[Diagnostic],
    context: &Context,
) -> Fault {
    if !args.json {
        let told: Vec<_> = faults.iter().map(|fault| fault.render(context.err.color)).collect();
        // Where standard error is closed there is nobody to tell; the exit code says it as well.
        drop(io::stderr().lock().write_all(format!("{}\n", told.join("\n")).as_bytes()));
    }
    let count = crate::cli::render::text::count(faults.len(), "fault", "faults");
    let mut fault = refused(file, copy, &format!("has {count}"));
    if let (Fault::Input(diagnostic), Some(first)) = (&mut fault, faults.first()) {
        (diagnostic.line, diagnostic.column) = (first.line, first.column);
    }
    fault
}

fn told(args: &EditArgs, file: &Path, changed: bool, what: &str) -> Result<Exit, Fault> {
    #[derive(serde::Serialize)]
    struct Object {
        schema: &'static str,
        file: String,
        changed: bool,
    }
    let shown = file.to_string_lossy();
    write_out(|to| {
        if args.json {
            let file = shown.clone().into_owned();
            return line(to, &Object { schema: "delegate.config_edit/1", file, changed });
        }
        writeln!(to, "{}: {what}", escape(&shown))
    })?;
    Ok(Exit::Done)
}

/// Runs the editor to its end. One that fails says that nothing is to be taken.
#[cfg(target_os = "linux")]
fn open_in(editor: &str, copy: &Path, context: &Context) -> Result<(), Fault> {
    use std::os::fd::AsFd as _;
    let words = ["-c".into(), format!("{editor} \"$@\"").into(), editor.into(), copy.into()];
    // Whoever stands for a program gives its output away; ours is needed behind it.
    let lost = |error| Fault::System("standard output cannot be kept", error);
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(lost)?;
    let ended = ownership::wrap::Wrap::new("config edit", "sh".into(), words.to_vec())
        .ledger(Some(context.state_dir.join("ledger.sqlite")))
        .run();
    rustix::stdio::dup2_stdout(&output).map_err(|error| lost(error.into()))?;
    if ended == std::process::ExitCode::SUCCESS {
        return Ok(());
    }
    let message = format!("the editor `{editor}` failed; nothing was changed");
    let file = Some(copy.to_owned());
    let fault = Diagnostic { code: "editor_failed", message, file, ..Diagnostic::default() };
    Err(fault.hint("what was written stays there; --resume takes it up").into())
}

/// There is nothing that could own it.
#[cfg(not(target_os = "linux"))]
fn open_in(_editor: &str, _copy: &Path, _context: &Context) -> Result<(), Fault> {
    Err(Fault::System("an editor", io::ErrorKind::Unsupported.into()))
}
