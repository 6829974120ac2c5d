//! A fixture: a child that starts a process over the line that it was given as descriptor 4, writes
//! its number into `DIR/inner`, and waits. `line-user DIR`.

use std::path::PathBuf;

use ownership::{Owner, Spawn};

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let owner = Owner::inherited(ownership::inherit::take(4).expect("a line"));
    let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
    std::fs::write(dir.join("inner.new"), format!("{}\n", child.pid())).expect("write");
    std::fs::rename(dir.join("inner.new"), dir.join("inner")).expect("rename");
    child.wait();
}
