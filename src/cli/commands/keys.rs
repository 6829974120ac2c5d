//! `delegate keys`: the keys of the pools by fingerprint, whether each may be used, until when it rests, and how
//! many children have it. Never a key.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, ValueHint};
use delegate_core::config::{self, Sources};
use delegate_core::lease::beside::Beside;
use delegate_core::lease::desk;
use delegate_core::lease::moment::Moment;
use delegate_core::lease::status::{Cause, State};
use serde::Serialize;

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::json;
use crate::cli::render::text::escape;
use crate::cli::{Context, write_out};

/// What may be typed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    delegate keys                      which keys work, which rest and until when\n  \
    delegate keys --json               the same for a program\n  \
    delegate keys --forget 3fa94c01d2  a key was repaired: forget what is known of it\n\n\
    The file with the keys is named by the setting `credential_pools`.")]
pub(crate) struct KeysArgs {
    /// The configuration file to use
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Forget that the key with this fingerprint (or its beginning) rests or is dead; `all` for every key
    #[arg(long, value_name = "FINGERPRINT")]
    forget: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Listing {
    schema: &'static str,
    /// The file with the keys.
    file: Option<PathBuf>,
    pools: Vec<PoolRow>,
    /// Keys that are not there.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PoolRow {
    pool: String,
    base_url: Option<String>,
    keys: Vec<KeyRow>,
}

#[derive(Debug, Serialize)]
struct KeyRow {
    id: String,
    label: String,
    /// `null`: the key is not there.
    fingerprint: Option<String>,
    source: String,
    /// `ok`, `exhausted`, `dead` or `missing`.
    status: &'static str,
    cause: Option<&'static str>,
    code: Option<u16>,
    reason: Option<String>,
    /// Milliseconds since 1970.
    until_ms: Option<u64>,
    /// Children that have it, of every parent of this state directory.
    leases: u32,
    /// How often it was marked.
    marked: u64,
}

/// Lists them.
///
/// # Errors
/// A configuration or a file with keys that is wrong, or an output that cannot be written.
pub(crate) fn run(args: &KeysArgs, context: &Context) -> Result<Exit, Fault> {
    let sources = Sources {
        explicit: args.config.clone(),
        cwd: std::env::current_dir().unwrap_or_default(),
        env: context.env.clone(),
        flags: Vec::new(),
    };
    let settings = config::load(&sources)?.settings;
    let now = Moment::from(SystemTime::now());
    let Some(file) = settings.credential_pools.clone() else {
        let none = Listing { schema: SCHEMA, file: None, pools: Vec::new(), notes: Vec::new() };
        write_out(|to| {
            if args.json {
                return json::line(to, &none);
            }
            writeln!(to, "no pools of keys: the setting credential_pools names no file")
        })?;
        return Ok(Exit::Done);
    };
    if let Some(wanted) = &args.forget {
        return forget(wanted, context, now);
    }
    let (known, read) = desk::look(&file, &context.state_dir, &context.env, &settings)?;
    let mut pools = Vec::new();
    for (name, pool) in known.pools() {
        let keys = pool.entries().map(|(entry, print, mut record, leases)| {
            record.look(now);
            KeyRow {
                id: entry.id.clone(),
                label: entry.label.clone(),
                fingerprint: print.map(ToString::to_string),
                source: entry.source.clone(),
                status: if print.is_some() { record.state.word() } else { "missing" },
                cause: record.cause.map(Cause::word).filter(|_| record.state != State::Ok),
                code: record.code,
                reason: record.reason.clone(),
                until_ms: record.back_at().map(Moment::as_ms),
                leases,
                marked: record.marked,
            }
        });
        let keys = keys.collect();
        let base_url = pool.base_url().map(str::to_owned);
        pools.push(PoolRow { pool: name.clone(), base_url, keys });
    }
    let listing = Listing { schema: SCHEMA, file: Some(file), pools, notes: read.notes };
    write_out(|to| if args.json { json::line(to, &listing) } else { show(to, &listing) })?;
    Ok(Exit::Done)
}

const SCHEMA: &str = "delegate.keys/1";

fn forget(wanted: &str, context: &Context, now: Moment) -> Result<Exit, Fault> {
    let which = (wanted != "all").then_some(wanted);
    let mut beside = Beside::new(&context.state_dir);
    let forgotten = beside.forget(which, now).map_err(|error| config::Diagnostic {
        code: "unwritable_file",
        message: format!("what is known of the keys cannot be changed: {error}"),
        file: Some(beside.status_file()),
        ..config::Diagnostic::default()
    })?;
    write_out(|to| writeln!(to, "forgotten: what was known of {forgotten} keys"))?;
    Ok(if forgotten == 0 && which.is_some() { Exit::NotFound } else { Exit::Done })
}

fn show(to: &mut dyn std::io::Write, listing: &Listing) -> std::io::Result<()> {
    for PoolRow { pool, base_url, keys } in &listing.pools {
        let at = base_url.as_deref().map(|url| format!(" · {}", escape(url))).unwrap_or_default();
        writeln!(to, "{}{at}", escape(pool))?;
        for key in keys {
            let print = key.fingerprint.as_deref().unwrap_or("-");
            let until = key.until_ms.map(Moment::from_ms).map(|at| format!(" until {at}"));
            let code = key.code.map(|code| format!(" ({code})")).unwrap_or_default();
            let why = key.cause.map(|cause| format!(" {cause}{code}")).unwrap_or_default();
            writeln!(
                to,
                "  {print:12}  {:<9}{why}{}  leases {}  {}",
                key.status,
                until.unwrap_or_default(),
                key.leases,
                escape(&key.label)
            )?;
        }
    }
    for note in &listing.notes {
        writeln!(to, "{}", escape(note))?;
    }
    Ok(())
}
