//! A fixture: sends everything that is no request over its line (descriptor 4), then uses the line as
//! it should be used and writes the number of what it started into `DIR/inner`.
//!
//! `junk-sender DIR [flood]`: with `flood` it sends requests that are answered, and reads no answer
//! until the supervisor takes no more; then writes `DIR/flooded` and waits for `DIR/go`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ownership::{Owner, Spawn};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let line = ownership::inherit::take(4).expect("a line");
    match std::env::args_os().nth(2) {
        Some(_) => flood(&line, &dir),
        None => junk(&line),
    }
    let owner = Owner::inherited(line);
    let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
    std::fs::write(dir.join("inner.new"), format!("{}\n", child.pid())).expect("write");
    std::fs::rename(dir.join("inner.new"), dir.join("inner")).expect("rename");
    child.wait();
}

/// The same scope opened again and again: refused each time after the first.
fn flood(line: &OwnedFd, dir: &Path) {
    let request = [&[2_u8][..], &[0xff; 8], &[0; 8]].concat();
    let mut refused = 0;
    // No room several times in a row: the supervisor has stopped to read.
    while refused < 50 {
        match rustix::net::send(line, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => refused = 0,
            Err(_) => {
                refused += 1;
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
    }
    std::fs::write(dir.join("flooded"), "").expect("write");
    while !dir.join("go").exists() {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn junk(line: &OwnedFd) {
    for at in 0..=u8::MAX {
        for length in [0, 1, 7, 100] {
            send(line, &vec![at; length], 0);
        }
    }
    // Truncated, and with more descriptors than anybody takes.
    send(line, &vec![1; 200_000], 0);
    send(line, &[1, 2, 3], 100);
    send(line, &[0xff], 1);
}

fn send(line: impl AsFd, bytes: &[u8], descriptors: usize) {
    let null = std::fs::File::open("/dev/null").expect("null");
    let fds = vec![null.as_fd(); descriptors];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors > 0 {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    sendmsg(line, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).expect("send");
}
