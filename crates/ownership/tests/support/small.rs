//! The small program of this crate as it is installed: static, of the profile that is made for it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `.ci/small` exits with where no static program can be.
const CANNOT_BE: i32 = 4;

/// Builds it by the command that users have, which does nothing when it is there; `root` is the workspace. Why there can
/// be none here: what that command said.
pub(crate) fn program(root: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new(root.join(".ci/small"));
    command.arg("--static").env("CARGO_NET_OFFLINE", "true");
    let output = command.output().expect(".ci/small, which needs bash");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.code() == Some(CANNOT_BE) {
        return Err(said(&output.stderr));
    }
    assert!(output.status.success(), "it is not built: {}", said(&output.stderr));
    let lines = said(&output.stdout);
    let paths = lines.lines().filter_map(|line| line.strip_prefix("static ")?.split_once(' '));
    let mut paths = paths.map(|(_size, path)| root.join(path));
    Ok(paths.find(|path| path.ends_with("ownership-supervisor")).expect("its path"))
}
