//! Where settings and state live: the search path of configuration files, and the state directory.

use std::path::{Path, PathBuf};

use super::layer::value_of;
use super::{Diagnostic, Sources};

/// A file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) found: Found,
}

/// How a file came into question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// `--config`: must exist, is trusted.
    Flag,
    /// `$DELEGATE_CONFIG`: the same.
    Variable,
    /// In the working tree.
    Tree,
    /// The user's or the system's own.
    Home,
}

impl Found {
    /// Why a file is in question, for people.
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::Flag => "--config",
            Self::Variable => "DELEGATE_CONFIG",
            Self::Tree => "working tree",
            Self::Home => "user or system",
        }
    }
}

/// Name that is searched upward from the working directory.
const IN_TREE: &str = "delegate.yaml";

/// The files in question, strongest first; the tree's was seen to exist, the others may not.
/// `system` is `/etc/delegate/config.yaml`.
pub(crate) fn candidates(sources: &Sources, system: &Path) -> Vec<Candidate> {
    let env = &sources.env;
    let named = |path: &Path, found| Candidate { path: sources.cwd.join(path), found };
    let flag = sources.explicit.as_deref().map(|path| named(path, Found::Flag));
    let variable =
        value_of(env, "DELEGATE_CONFIG").map(|path| named(Path::new(path), Found::Variable));
    let home = home(env);
    let tree =
        upward(&sources.cwd, home.as_deref()).map(|path| Candidate { path, found: Found::Tree });
    let user = user_dir(env).map(|dir| dir.join("config.yaml"));
    let own = user.into_iter().chain([system.to_owned()]);
    let own = own.map(|path| Candidate { path, found: Found::Home });
    let mut all: Vec<Candidate> = Vec::new();
    for candidate in [flag, variable, tree].into_iter().flatten().chain(own) {
        // A file that is named and found as well counts where it is strongest.
        if !all.iter().any(|earlier| same_file(&earlier.path, &candidate.path)) {
            all.push(candidate);
        }
    }
    all
}

/// The directory of this user's own settings: `$XDG_CONFIG_HOME/delegate`, else `~/.config/delegate`. `None` without a
/// home directory.
#[must_use]
pub fn user_dir(env: &[(String, String)]) -> Option<PathBuf> {
    let base = absolute(env, "XDG_CONFIG_HOME");
    base.or_else(|| Some(home(env)?.join(".config"))).map(|dir| dir.join("delegate"))
}

fn same_file(left: &Path, right: &Path) -> bool {
    left == right
        || matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}

/// The nearest `delegate.yaml` from `cwd` up to the root of its repository (the directory with
/// `.git`). Never above the home directory; outside of a repository and of the home directory only
/// in `cwd` itself, since the directories above may be anybody's.
fn upward(cwd: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let bounded = |dir: &Path| dir.join(".git").exists() || Some(dir) == home;
    let last = cwd.ancestors().find(|dir| bounded(dir)).unwrap_or(cwd);
    cwd.ancestors()
        .take_while(|dir| dir.starts_with(last))
        .map(|dir| dir.join(IN_TREE))
        .find(|path| path.is_file())
}

/// A variable that holds an absolute path; a relative one is ignored, as the XDG specification
/// wants.
fn absolute(env: &[(String, String)], name: &str) -> Option<PathBuf> {
    value_of(env, name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn home(env: &[(String, String)]) -> Option<PathBuf> {
    absolute(env, "HOME")
}

/// Where runs, results and trust are kept: `$DELEGATE_STATE_DIR`, else `$XDG_STATE_HOME/delegate`,
/// else `~/.local/state/delegate`. Without a home directory: `delegate-state-UID` in the
/// directory for temporary files.
#[must_use]
pub fn state_dir(env: &[(String, String)]) -> PathBuf {
    if let Some(dir) = value_of(env, "DELEGATE_STATE_DIR") {
        return PathBuf::from(dir);
    }
    let base =
        absolute(env, "XDG_STATE_HOME").or_else(|| home(env).map(|home| home.join(".local/state")));
    match base {
        Some(base) => base.join("delegate"),
        None => std::env::temp_dir().join(format!("delegate-state-{}", user())),
    }
}

/// Whose state it is, where several users share a directory.
#[cfg(unix)]
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn user() -> u32 {
    0
}

/// Refuses a state directory that another user made in a directory that everybody may write to
/// (`/tmp`): what lies in it says what is trusted.
///
/// # Errors
/// It belongs to another user, or cannot be looked at.
pub(crate) fn refuse_foreign(state_dir: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        const OTHERS_WRITE: u32 = 0o002;
        let parent = state_dir.parent().filter(|dir| !dir.as_os_str().is_empty());
        let shared = parent.unwrap_or(Path::new(".")).metadata()?.mode() & OTHERS_WRITE != 0;
        let owner = state_dir.symlink_metadata()?.uid();
        if shared && owner != user() && owner != 0 {
            let text = format!("it belongs to another user ({owner}), in a directory of everybody");
            return Err(std::io::Error::other(text));
        }
    }
    Ok(())
}

/// Whether it cannot even be seen if there is such a file, as where `HOME` is another user's. A file
/// that is there and cannot be read is an error instead.
pub(crate) fn is_hidden(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Whether users other than its owner can read a file.
pub(crate) fn others_can_read(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        const OTHERS_READ: u32 = 0o044;
        path.metadata().is_ok_and(|data| data.mode() & OTHERS_READ != 0)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Reads a candidate; `None` when it need not exist and does not.
///
/// # Errors
/// `missing_file`, `unreadable_file`, `too_large`, `not_text`.
pub(crate) fn read(candidate: &Candidate) -> Result<Option<String>, Diagnostic> {
    let by = match candidate.found {
        Found::Flag => Some("--config"),
        Found::Variable => Some("DELEGATE_CONFIG"),
        Found::Tree | Found::Home => None,
    };
    match read_text(&candidate.path) {
        Err(fault) if fault.code == "missing_file" => match by {
            Some(by) => Err(fault.hint(format!("it was named by {by}"))),
            None => Ok(None),
        },
        other => other.map(Some),
    }
}

/// Reads a text file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, Diagnostic> {
    use std::io::Read as _;
    let limit = super::yaml::MAX_TEXT;
    let fault = |code, message: String| Diagnostic {
        code,
        message,
        file: Some(path.to_owned()),
        ..Diagnostic::default()
    };
    let missing =
        |kind| matches!(kind, std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory);
    let failed = |error: std::io::Error| {
        if missing(error.kind()) {
            fault("missing_file", "there is no such file".to_owned())
        } else {
            fault("unreadable_file", format!("the file cannot be read: {error}"))
        }
    };
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let file = super::plain::open(path).map_err(failed)?;
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > limit {
        return Err(fault("too_large", format!("the file has more than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        fault("not_text", format!("the file is not UTF-8 text (byte {at})"))
    })
}
