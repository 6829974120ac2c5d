//! Looks at a worktree: the facts that [`super::decide`] judges. Changes nothing.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::decide::Inspection;
use super::git::{Git, Trouble};
use super::record::Record;

/// Files of a worktree's own git folder that say that something was begun and not ended.
const UNFINISHED: [&str; 8] = [
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "BISECT_LOG",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "index.lock",
];

/// Looks at it.
pub(super) fn inspect(git: &Git, record: &Record) -> Result<Inspection, String> {
    let path = &record.path;
    let unfinished = unfinished(path)?;
    let trouble = |trouble: Trouble| trouble.to_string();
    let status =
        ["status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none"];
    let dirty = !git.run(path, "status", &status).map_err(trouble)?.is_empty();
    let branch = format!("refs/heads/{}", record.branch);
    // Its head may have left its branch: both are looked at.
    let own = ["rev-list", "--count", "HEAD", &branch, "--not", &record.base];
    let count = |args: &[&str]| {
        let text = git.line(path, "rev-list", args).map_err(trouble)?;
        text.parse::<u64>().map_err(|_| format!("`git rev-list` printed {text:?}"))
    };
    let commits = count(&own)?;
    let mut nowhere_else = own.to_vec();
    nowhere_else.push("--remotes");
    let unpushed = if commits == 0 { 0 } else { count(&nowhere_else)? };
    let listed = git.run(path, "ls-files", &["ls-files", "-v", "-z"]).map_err(trouble)?;
    let hidden = hidden(path, &listed);
    Ok(Inspection { dirty, commits, unpushed, unfinished, hidden, used_by: used_by(path) })
}

/// Whether one whose owner was killed before it was checked out holds nothing but a part of its commit: files as
/// they are there, or the beginning of one. Nobody has worked in it then. Where that cannot be shown: `false`.
pub(super) fn is_half_a_checkout(git: &Git, record: &Record, index: &Path) -> bool {
    if record.checked_out || used_by(&record.path).is_some() {
        return false;
    }
    let only_a_lock = matches!(unfinished(&record.path), Ok(None | Some("index.lock")));
    let shown = only_a_lock && is_part_of_its_commit(git, record, index).unwrap_or(false);
    // It is ours, and there may be none.
    drop(fs::remove_file(index));
    shown
}

fn is_part_of_its_commit(git: &Git, record: &Record, index: &Path) -> Result<bool, Trouble> {
    let Record { path, base, branch, .. } = record;
    let branch = format!("refs/heads/{branch}");
    let own = ["rev-list", "--count", "HEAD", &branch, "--not", base];
    if git.line(path, "rev-list", &own)? != "0" {
        return Ok(false);
    }
    // The index of its own was never written, or only partly.
    git.run_with(path, "read-tree", &["read-tree", base], Some(index))?;
    let status =
        ["status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none"];
    let listed = git.run_with(path, "status", &status, Some(index))?;
    for row in listed.split(|byte| *byte == 0).filter(|row| !row.is_empty()) {
        let is_part = match row.split_at_checked(3) {
            Some((b" D ", _)) => true,
            Some((b" M ", name)) => is_beginning(git, record, name)?,
            Some(_) | None => false,
        };
        if !is_part {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file is the beginning of what its commit has there.
fn is_beginning(git: &Git, record: &Record, name: &[u8]) -> Result<bool, Trouble> {
    let file = record.path.join(OsStr::from_bytes(name));
    let mut named = OsString::from(format!("{}:", record.base));
    named.push(OsStr::from_bytes(name));
    let args = ["cat-file".as_ref(), "--filters".as_ref(), named.as_os_str()];
    let whole = git.run(&record.path, "cat-file", &args)?;
    let is_file = fs::symlink_metadata(&file)
        .is_ok_and(|seen| seen.is_file() && seen.len() <= whole.len() as u64);
    Ok(is_file && fs::read(&file).is_ok_and(|part| whole.starts_with(&part)))
}

/// The worktree's own folder in the repository, as its `.git` file names it.
fn admin_folder(path: &Path) -> Result<PathBuf, String> {
    let file = path.join(".git");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let named = text.trim_end().strip_prefix("gitdir: ");
    named.map(PathBuf::from).ok_or_else(|| format!("{} names no folder", file.display()))
}

fn unfinished(path: &Path) -> Result<Option<&'static str>, String> {
    let folder = admin_folder(path)?;
    // Without the folder nothing could be told from what is not in it.
    fs::metadata(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(UNFINISHED.into_iter().find(|name| folder.join(name).symlink_metadata().is_ok()))
}

/// A file that `git status` says nothing of, since somebody told it so: `assume-unchanged` (small letters) or
/// `skip-worktree` (`S`). The latter is usual where it does not exist (a sparse checkout).
fn hidden(path: &Path, listed: &[u8]) -> Option<String> {
    let rows = listed.split(|byte| *byte == 0).filter(|row| row.len() > 2);
    rows.filter_map(|row| Some((*row.first()?, String::from_utf8_lossy(row.get(2..)?))))
        .find(|(tag, name)| {
            tag.is_ascii_lowercase()
                || *tag == b'S' && path.join(&**name).symlink_metadata().is_ok()
        })
        .map(|(_, name)| name.into_owned())
}

/// A process whose working directory is there. What may not be looked at is not seen.
fn used_by(path: &Path) -> Option<u32> {
    let path = fs::canonicalize(path).ok()?;
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(&path))
    })
}
