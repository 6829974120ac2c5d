//! Which configuration files of working trees may set commands, keys and endpoints.
//!
//! A cloned repository must not run code by being entered: such a file counts only after
//! `delegate trust FILE`, which records its canonical path and the SHA-256 of its content in
//! `STATE/trusted`. Any change of the file withdraws the trust. `config::load` asks here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::yaml::Source;
use super::{Diagnostic, layer, search};

/// Name of the list in the state directory. One line per file: hash, two spaces, path.
const LIST: &str = "trusted";

/// Held while the list is replaced, so that two commands at once lose no entry.
const LOCK: &str = "trusted.lock";

/// What was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    /// Canonical path.
    pub file: PathBuf,
    /// SHA-256 of the content, in hex.
    pub sha256: String,
    /// The commands, keys and endpoints that the file sets, by dotted name.
    pub keys: Vec<String>,
}

/// Records that a configuration file, as it is now, may set commands, keys and endpoints.
///
/// # Errors
/// The file is missing, unreadable or no configuration; the record cannot be written.
pub fn trust(file: &Path, state_dir: &Path) -> Result<Trusted, Diagnostic> {
    let text = search::read_text(file)?;
    let layer = layer::from_file(Source { file: Some(file), text: &text })?;
    let fault = |code, message: String| Diagnostic {
        code,
        message,
        file: Some(file.to_owned()),
        ..Diagnostic::default()
    };
    let path = file
        .canonicalize()
        .map_err(|error| fault("unreadable_file", format!("the file cannot be found: {error}")))?;
    let Some(name) = path.to_str().filter(|name| !name.contains(['\n', '\r'])) else {
        let message = "the path is not text in one line, so it cannot be recorded".to_owned();
        return Err(fault("not_text", message));
    };
    let sha256 = hash(&text);
    record(state_dir, name, &sha256).map_err(|error| {
        let place = state_dir.join(LIST);
        fault("not_recorded", format!("cannot write {}: {error}", place.display()))
    })?;
    let keys = layer.sensitive.into_iter().map(|(name, _)| name).collect();
    Ok(Trusted { file: path, sha256, keys })
}

/// Whether this file with this content was trusted. A list that cannot be read trusts nothing.
pub(crate) fn is_trusted(file: &Path, text: &str, state_dir: &Path) -> bool {
    let Ok(path) = file.canonicalize() else { return false };
    let Some(name) = path.to_str() else { return false };
    let entry = line(name, &hash(text));
    search::refuse_foreign(state_dir)
        .and_then(|()| fs::read_to_string(state_dir.join(LIST)))
        .is_ok_and(|list| list.lines().any(|line| line == entry))
}

fn hash(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn line(path: &str, sha256: &str) -> String {
    format!("{sha256}  {path}")
}

/// Replaces the entry of one path in the list, in one step.
fn record(state_dir: &Path, path: &str, sha256: &str) -> io::Result<()> {
    create_private_dir(state_dir)?;
    search::refuse_foreign(state_dir)?;
    let lock = private(OpenOptions::new().write(true).create(true).truncate(false))
        .open(state_dir.join(LOCK))?;
    lock.lock()?;
    let list = state_dir.join(LIST);
    let old = match fs::read_to_string(&list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let mut lines: Vec<&str> = old
        .lines()
        .filter(|line| line.split_once("  ").is_some_and(|(_, other)| other != path))
        .collect();
    let entry = line(path, sha256);
    lines.push(&entry);
    let new = state_dir.join(format!("{LIST}.new"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&new)?;
    file.write_all((lines.join("\n") + "\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, &list)?;
    // So that the rename itself survives a power cut; not every file system can do it.
    let _unsynced = File::open(state_dir).and_then(|dir| dir.sync_all()).is_err();
    Ok(())
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

fn create_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(dir)
}
