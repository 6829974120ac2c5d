//! The stock worker as a real process, with a socket as descriptor 3 and no supervisor above it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use delegate_child::worker::{UNWIND, WORKER_ROLE};
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::message::Verdict;
use delegate_protocol::spec::sample;
use delegate_protocol::{ChildEvent, ChildMessage, ParentEnd, ParentMessage};

const DEADLINE: Duration = Duration::from_secs(30);

/// A worker whose descriptor 3 is `line`: a shell moves it there from 0 and is replaced by it.
fn worker(program: &str, line: Stdio) -> Child {
    Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" \"$1\" 3<&0 0</dev/null", program, WORKER_ROLE])
        .stdin(line)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn stock() -> &'static str {
    env!("CARGO_BIN_EXE_delegate-child")
}

fn connected(program: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(DEADLINE)).unwrap();
    (worker(program, OwnedFd::from(theirs).into()), ours)
}

fn send(line: &mut UnixStream, message: &ParentMessage) {
    let mut bytes = Vec::new();
    Encoder::<ParentEnd>::default().frame(message, &mut bytes).unwrap();
    line.write_all(&bytes).unwrap();
}

/// The next message; `None` at the end.
fn next(line: &mut UnixStream, decoder: &mut Decoder<ParentEnd>) -> Option<ChildMessage> {
    loop {
        if let Some(message) = decoder.next_message() {
            return Some(message.unwrap());
        }
        let mut buffer = [0; 4096];
        match line.read(&mut buffer).unwrap() {
            0 => return None,
            count => decoder.push(&buffer[..count]),
        }
    }
}

fn exit(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the worker does not leave");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_greets_serves_and_leaves() {
    let (mut child, mut line) = connected(stock());
    let mut decoder = Decoder::default();
    let Some(ChildMessage::Hello(hello)) = next(&mut line, &mut decoder) else {
        panic!("no hello");
    };
    assert_eq!((hello.pid, hello.agents), (child.id(), vec!["command".to_owned()]));
    send(&mut line, &ParentMessage::Begin(Box::new(sample(0, "nobody", "goal"))));
    let Some(ChildMessage::Finish(finish)) = next(&mut line, &mut decoder) else {
        panic!("no finish");
    };
    assert_eq!(finish.verdict, Verdict::Failed);
    assert_eq!(next(&mut line, &mut decoder), None);
    assert!(exit(&mut child).success());
}

#[test]
fn a_command_needs_a_supervisor_and_says_so() {
    let (mut child, mut line) = connected(stock());
    let mut decoder = Decoder::default();
    next(&mut line, &mut decoder);
    let mut task = sample(0, "command", "goal");
    task.params =
        delegate_protocol::Value::from_typed(&serde_json::json!({"argv": ["true"]})).unwrap();
    send(&mut line, &ParentMessage::Begin(Box::new(task)));
    let quiet = next(&mut line, &mut decoder);
    assert!(matches!(quiet, Some(ChildMessage::Event(ChildEvent::Note(_)))), "{quiet:?}");
    let Some(ChildMessage::Finish(finish)) = next(&mut line, &mut decoder) else {
        panic!("no finish");
    };
    let error = finish.error.unwrap();
    assert!(error.contains("there is no supervisor"), "{error}");
    assert!(exit(&mut child).success());
}

#[test]
fn a_worker_whose_parent_is_gone_leaves() {
    let (mut child, line) = connected(stock());
    drop(line);
    assert_eq!(exit(&mut child).code(), Some(1));
}

#[test]
fn an_agent_that_does_not_unwind_is_ended() {
    let program = std::env::current_exe().unwrap();
    let examples = program.parent().unwrap().parent().unwrap().join("examples");
    let (mut child, mut line) = connected(examples.join("stubborn_worker").to_str().unwrap());
    let mut decoder = Decoder::default();
    next(&mut line, &mut decoder);
    send(&mut line, &ParentMessage::Begin(Box::new(sample(0, "stubborn", "goal"))));
    assert!(matches!(next(&mut line, &mut decoder), Some(ChildMessage::Event(_))));
    let gone = Instant::now();
    drop(line);
    let status = exit(&mut child);
    assert_eq!(status.signal(), Some(9), "{status}");
    assert!(gone.elapsed() >= UNWIND);
}

#[test]
fn a_line_that_is_no_socket_is_refused() {
    let Output { status, stderr, .. } = worker(stock(), Stdio::null()).wait_with_output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(text.contains("descriptor 3 is not the line to a parent"), "{text}");
}

#[test]
fn a_worker_that_is_started_by_hand_says_what_it_is() {
    let Output { status, stderr, .. } = Command::new(stock()).output().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8(stderr).unwrap().contains("not by hand"));
}
