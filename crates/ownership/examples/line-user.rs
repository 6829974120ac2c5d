//! A fixture: a child that starts a process over the line that it was given as descriptor 4, writes
//! its number into `DIR/inner`, waits for the file `DIR/go`, does the same once more with `DIR/inner2`,
//! and waits for the ends of both, which it writes into `DIR/told`: their signals with a minus, or `lost`.
//! `line-user DIR`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ownership::{ExitStatus, Owned, Owner, Spawn};

#[expect(clippy::disallowed_methods, reason = "a fixture waits for a file")]
fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let owner = Owner::inherited(ownership::inherit::take(4).expect("a line"));
    let first = start(&owner, &dir, "inner");
    while !dir.join("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = start(&owner, &dir, "inner2");
    let ends = [first, second].map(|child| match child.wait().map(|exit| exit.status) {
        Some(ExitStatus::Signal { signal, .. }) => format!("-{signal}"),
        Some(other) => format!("{other:?}"),
        None => "lost".to_owned(),
    });
    put(&dir, "told", &ends.join(" "));
}

fn start(owner: &Owner, dir: &Path, name: &str) -> Owned {
    let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
    put(dir, name, &format!("{}\n", child.pid()));
    child
}

fn put(dir: &Path, name: &str, text: &str) {
    let new = dir.join(format!("{name}.new"));
    std::fs::write(&new, text).expect("write");
    std::fs::rename(new, dir.join(name)).expect("rename");
}
