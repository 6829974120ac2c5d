//! A fixture: sends everything that is no request over its line (descriptor 4), then uses the line as
//! it should be used and writes the number of what it started into `DIR/inner`. `junk-sender DIR`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::PathBuf;

use ownership::{Owner, Spawn};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let line = ownership::inherit::take(4).expect("a line");
    for at in 0..=u8::MAX {
        for length in [0, 1, 7, 100] {
            send(&line, &vec![at; length], 0);
        }
    }
    // Truncated, and with more descriptors than anybody takes.
    send(&line, &vec![1; 200_000], 0);
    send(&line, &[1, 2, 3], 100);
    send(&line, &[0xff], 1);
    let owner = Owner::inherited(line);
    let child = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}).expect("spawn");
    std::fs::write(dir.join("inner.new"), format!("{}\n", child.pid())).expect("write");
    std::fs::rename(dir.join("inner.new"), dir.join("inner")).expect("rename");
    child.wait();
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
