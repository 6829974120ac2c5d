//! `delegate config`: what is in force and from where, what is wrong with files, where they are looked
//! for, and the keys as JSON Schema. The library decides; here are the forms. `edit` changes a file.

mod edit;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use delegate_core::config::{self, Checked, Diagnostic, Loaded, Place, Setting, Sources};
use delegate_core::lease::file;
use delegate_protocol::Value;
use serde::Serialize;

use crate::cli::args::parse_setting;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json::line;
use crate::cli::render::text::{count, escape, pad};
use crate::cli::{Context, warn, write_out};

/// `delegate config`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  delegate config show --origin          every value and where it came from
  delegate config check delegate.yaml    everything that is wrong with one file
  delegate config edit                   change a file, checked before it counts
  delegate config path                   where files are looked for
  delegate config schema > schema.json   the keys, for an editor")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print every setting that is in force; keys of endpoints are masked
    #[command(after_help = "Examples:
  delegate config show --origin
  delegate config show --set max_iterations=9 --json")]
    Show(ShowArgs),
    /// Tell everything that is wrong, each with its place and what to do
    #[command(after_help = "Examples:
  delegate config check                  all that would be read, variables too
  delegate config check delegate.yaml    one file by itself; it need not be trusted

Exit code 2 when something is wrong.")]
    Check(CheckArgs),
    /// Open a file in $VISUAL or $EDITOR; it takes its place only when nothing is wrong with it
    #[command(after_help = "Examples:
  delegate config edit                   the strongest file that is there, else your own
  delegate config edit delegate.yaml
  delegate config edit --resume          take up what was refused, or broken off

Exit code 2 when what was written is not taken: the file stays as it was, and FILE.edit holds your text.")]
    Edit(edit::EditArgs),
    /// Print where configuration files are looked for, what was found, and where state is kept
    #[command(after_help = "Examples:
  delegate config path
  delegate config path --json")]
    Path(PathArgs),
    /// Print the keys as JSON Schema
    #[command(after_help = "Examples:
  delegate config schema > delegate.schema.json")]
    Schema,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Also print the file and line, variable or flag that each value came from
    #[arg(long)]
    origin: bool,
    /// Read this configuration file as well, before all others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Set a key, as `delegate run` would (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The file [default: all that would be read]
    #[arg(value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct PathArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// A configuration that cannot be resolved, or an output that cannot be written.
pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Result<Exit, Fault> {
    match &args.what {
        What::Show(args) => show(args, context),
        What::Check(args) => check(args, context),
        What::Edit(args) => edit::run(args, context),
        What::Path(args) => path(args, context),
        What::Schema => {
            let schema = config::schema();
            write_out(|to| writeln!(to, "{schema}"))?;
            Ok(Exit::Done)
        }
    }
}

fn sources(context: &Context) -> Result<Sources, Fault> {
    let cwd = std::env::current_dir()
        .map_err(|error| Fault::System("the working directory cannot be found", error))?;
    Ok(Sources { explicit: None, cwd, env: context.env.clone(), flags: Vec::new() })
}

fn show(args: &ShowArgs, context: &Context) -> Result<Exit, Fault> {
    let flags = args.settings.iter().cloned();
    let flags = flags.map(|(key, text)| (key, text, "--set".to_owned()));
    let loaded = config::load(&Sources {
        explicit: args.config.clone(),
        flags: flags.collect(),
        ..sources(context)?
    })?;
    loaded.notes.iter().for_each(|note| warn(note));
    write_out(|to| {
        if args.json { show_json(to, &loaded) } else { show_text(to, &loaded, args.origin) }
    })?;
    Ok(Exit::Done)
}

/// A YAML file of one level; the origin stands behind each value as a comment.
fn show_text(to: &mut dyn Write, loaded: &Loaded, origin: bool) -> io::Result<()> {
    for Setting { name, value, origin: from, .. } in loaded.settings_in_order() {
        let entry = format!("{name}: {}", escape(&as_json(&value)?));
        if origin {
            let from = from.map_or_else(|| "default".to_owned(), |from| from.to_string());
            writeln!(to, "{}  # {}", pad(&entry, 38), escape(&from))?;
        } else {
            writeln!(to, "{entry}")?;
        }
    }
    Ok(())
}

/// JSON in one line, which YAML reads as well.
fn as_json(value: &Value) -> io::Result<String> {
    Ok(serde_json::to_string(value)?)
}

#[derive(Serialize)]
struct SettingObject {
    key: &'static str,
    value: Value,
    origin: OriginObject,
    about: &'static str,
}

/// Who set a value; `kind` is `default`, `file`, `variable` or `flag`.
#[derive(Serialize)]
struct OriginObject {
    kind: &'static str,
    file: Option<String>,
    line: Option<u32>,
    name: Option<String>,
}

impl OriginObject {
    fn of(origin: Option<config::Origin>) -> Self {
        use config::Origin;
        let none = Self { kind: "default", file: None, line: None, name: None };
        match origin {
            Some(Origin::File { file, line }) => {
                let file = Some(file.to_string_lossy().into_owned());
                Self { kind: "file", file, line: Some(line), ..none }
            }
            Some(Origin::Variable(name)) => Self { kind: "variable", name: Some(name), ..none },
            Some(Origin::Flag(name)) => Self { kind: "flag", name: Some(name), ..none },
            Some(_) => Self { kind: "other", ..none },
            None => none,
        }
    }
}

fn show_json(to: &mut dyn Write, loaded: &Loaded) -> io::Result<()> {
    #[derive(Serialize)]
    struct Object {
        schema: &'static str,
        files: Vec<String>,
        settings: Vec<SettingObject>,
        notes: Vec<String>,
    }
    let settings = loaded.settings_in_order().into_iter();
    let settings = settings.map(|Setting { name, value, origin, about }| SettingObject {
        key: name,
        value,
        origin: OriginObject::of(origin),
        about,
    });
    line(
        to,
        &Object {
            schema: "delegate.config/1",
            files: texts(&loaded.files),
            settings: settings.collect(),
            notes: loaded.notes.clone(),
        },
    )
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

fn check(args: &CheckArgs, context: &Context) -> Result<Exit, Fault> {
    let sources = sources(context)?;
    let mut checked = config::check(args.file.as_deref(), &sources);
    check_keys(args, sources, context, &mut checked);
    let exit = if checked.faults.is_empty() { Exit::Done } else { Exit::BadInput };
    if args.json {
        write_out(|to| check_json(to, &checked))?;
        return Ok(exit);
    }
    checked.notes.iter().for_each(|note| warn(note));
    let mut told = String::new();
    for fault in &checked.faults {
        told.push_str(&fault.render(context.err.color));
        told.push('\n');
    }
    // Where standard error is closed there is nobody to tell; the exit code says it as well.
    drop(io::stderr().lock().write_all(told.as_bytes()));
    write_out(|to| {
        let (files, faults) = (checked.files.len(), checked.faults.len());
        let files = count(files, "file", "files");
        match faults {
            0 => writeln!(to, "{files} checked, nothing is wrong"),
            _ => writeln!(to, "{files} checked, {}", count(faults, "fault", "faults")),
        }
    })?;
    Ok(exit)
}

/// The file with the keys that the configuration names.
fn check_keys(args: &CheckArgs, sources: Sources, context: &Context, checked: &mut Checked) {
    let explicit = args.file.clone().or(sources.explicit.clone());
    let Ok(loaded) = config::load(&Sources { explicit, ..sources }) else { return };
    let Some(path) = loaded.settings.credential_pools else { return };
    match file::read(&file::expand(&path, &context.env), &context.env) {
        Ok(read) => checked.notes.extend(read.notes),
        Err(fault) => checked.faults.push(fault),
    }
}

fn check_json(to: &mut dyn Write, checked: &Checked) -> io::Result<()> {
    #[derive(Serialize)]
    struct Object<'a> {
        schema: &'static str,
        ok: bool,
        files: Vec<String>,
        errors: Vec<ErrorObject<'a>>,
        notes: &'a [String],
    }
    /// As the `error` object of every verb.
    #[derive(Serialize)]
    struct ErrorObject<'a> {
        code: &'static str,
        message: &'a str,
        file: Option<String>,
        line: Option<u32>,
        column: Option<u32>,
        hint: Option<&'a str>,
    }
    let errors = checked.faults.iter().map(|fault| {
        let Diagnostic { code, message, file, line, column, hint, .. } = fault;
        let file = file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let (line, column, hint) = (*line, *column, hint.as_deref());
        ErrorObject { code, message, file, line, column, hint }
    });
    line(
        to,
        &Object {
            schema: "delegate.config_check/1",
            ok: checked.faults.is_empty(),
            files: texts(&checked.files),
            errors: errors.collect(),
            notes: &checked.notes,
        },
    )
}

fn path(args: &PathArgs, context: &Context) -> Result<Exit, Fault> {
    let places = config::places(&sources(context)?);
    write_out(|to| {
        if args.json {
            return path_json(to, &places, context);
        }
        writeln!(to, "configuration files, strongest first")?;
        for Place { path, why, state } in &places {
            let path = escape(&path.to_string_lossy()).into_owned();
            writeln!(to, "  {}  {path}  ({why})", pad(state.word(), 9))?;
        }
        writeln!(to, "state")?;
        writeln!(to, "  {}  {}", pad("", 9), escape(&context.state_dir.to_string_lossy()))
    })?;
    Ok(Exit::Done)
}

fn path_json(to: &mut dyn Write, places: &[Place], context: &Context) -> io::Result<()> {
    #[derive(Serialize)]
    struct Object {
        schema: &'static str,
        files: Vec<PlaceObject>,
        state_dir: String,
    }
    #[derive(Serialize)]
    struct PlaceObject {
        path: String,
        why: &'static str,
        state: &'static str,
    }
    let place = |place: &Place| PlaceObject {
        path: place.path.to_string_lossy().into_owned(),
        why: place.why,
        state: place.state.word(),
    };
    line(
        to,
        &Object {
            schema: "delegate.config_path/1",
            files: places.iter().map(place).collect(),
            state_dir: context.state_dir.to_string_lossy().into_owned(),
        },
    )
}
