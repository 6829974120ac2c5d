//! Listeners that are absent, silent, rude or somebody else's, each at a real socket: every one of them is told apart, in time.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use super::*;

/// Long enough for a busy machine, where an answer comes.
const LIMIT: Duration = Duration::from_secs(20);
/// Where none comes.
const SHORT: Duration = Duration::from_millis(60);
/// Enough for one answer, and more than once for none.
const A_WHILE: Duration = Duration::from_secs(1);

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What is said to whoever asks, by one who listens here and then does this.
fn asked(limit: Duration, serve: impl FnOnce(UnixStream) + Send + 'static) -> NoScope {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("bus");
    let listener = UnixListener::bind(&path).expect("bind");
    let served = thread::spawn(move || serve(listener.accept().expect("somebody").0));
    let place = Place::path(path, false, user());
    let why = enter(&[place], "owned-1-2-3.scope", limit).expect_err("no systemd is here");
    served.join().expect("served");
    why
}

/// Reads up to these bytes.
fn until(stream: &mut UnixStream, end: &[u8]) -> Vec<u8> {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(end) && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        all.push(byte[0]);
    }
    all
}

fn welcome(stream: &mut UnixStream) {
    assert_eq!(until(stream, b"EXTERNAL\r\n"), b"\0AUTH EXTERNAL\r\n");
    stream.write_all(b"DATA\r\n").expect("said");
    until(stream, b"DATA\r\n");
    stream.write_all(b"OK 1234\r\n").expect("said");
    until(stream, b"BEGIN\r\n");
}

/// The next call.
fn heard(stream: &mut UnixStream) -> Message {
    let mut head = [0; wire::HEAD];
    stream.read_exact(&mut head).expect("a head");
    let mut rest = vec![0; wire::length(&head).expect("a message") - head.len()];
    stream.read_exact(&mut rest).expect("the rest");
    wire::parse(&[&head[..], &rest].concat()).expect("a message")
}

/// Reads to the end of the line.
fn to_the_end(mut stream: UnixStream) {
    drop(stream.read_to_end(&mut Vec::new()));
}

fn says(kind: u8, call: &Message, name: &str, text: &str) -> Vec<u8> {
    let mut body = Bytes::default();
    body.text(text);
    let named = [Field(wire::ERROR_NAME, name), Field(wire::SIGNATURE, "s")];
    let fields = if name.is_empty() { &named[1..] } else { &named[..] };
    wire::message(kind, 9, fields, Some(call.number), &body.0)
}

#[test]
fn nobody_there_is_told_with_the_place() {
    let place = |path: &str| Place::path(path.into(), true, user());
    let why = enter(&[place("/nowhere/bus"), place("/nowhere/else")], "x", LIMIT);
    let why = why.expect_err("nobody").to_string();
    assert!(why.starts_with("nobody answers at /nowhere/bus: No such file"), "{why}");
    let none = enter(&[], "x", LIMIT).expect_err("nobody").to_string();
    assert!(none.starts_with("nobody answers at any bus"), "{none}");
    let long = format!("/{}", "x".repeat(200));
    let why = enter(&[place(&long)], "x", LIMIT).expect_err("no path of a socket").to_string();
    assert!(why.contains(&long), "{why}");
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    assert_eq!(asked(SHORT, to_the_end), NoScope::Silent { step: "greeting" });
    let greets = |mut stream: UnixStream| {
        welcome(&mut stream);
        to_the_end(stream);
    };
    // How far it came in so short a time is not said.
    assert!(matches!(asked(SHORT, greets), NoScope::Silent { .. }));
}

/// It would be heard for ever if each of its messages was waited for anew.
#[test]
fn who_never_stops_talking_is_not_heard_for_ever() {
    let chatters = |mut stream: UnixStream| {
        welcome(&mut stream);
        let signal = wire::message(4, 1, &[], None, &[]);
        while stream.write_all(&signal).is_ok() {}
    };
    assert!(matches!(asked(SHORT, chatters), NoScope::Silent { .. }));
}

#[test]
fn a_backlog_that_is_full_is_not_waited_for() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("bus");
    let socket =
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("socket");
    let address = rustix::net::SocketAddrUnix::new(&path).expect("address");
    rustix::net::bind(&socket, &address).expect("bind");
    rustix::net::listen(&socket, 0).expect("listen");
    let _waits = UnixStream::connect(&path).expect("the first one may wait");
    let why = enter(&[Place::path(path, true, user())], "x", SHORT);
    assert_eq!(why, Err(NoScope::Silent { step: "connecting" }));
}

#[test]
fn nonsense_is_told_from_an_answer() {
    let greeting = |text: &'static [u8]| {
        move |mut stream: UnixStream| {
            drop(stream.write_all(text));
            to_the_end(stream);
        }
    };
    let nonsense = |step| NoScope::Nonsense { step };
    assert_eq!(asked(LIMIT, greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n")), nonsense("greeting"));
    assert_eq!(asked(LIMIT, greeting(b"REJECTED EXTERNAL\r\n")), nonsense("greeting"));
    assert_eq!(asked(LIMIT, greeting(&[b'x'; 4096])), nonsense("greeting"));
    let answers = |bytes: Vec<u8>| {
        move |mut stream: UnixStream| {
            welcome(&mut stream);
            drop(stream.write_all(&bytes));
            to_the_end(stream);
        }
    };
    assert_eq!(asked(LIMIT, answers(vec![b'x'; 99])), nonsense("StartTransientUnit"));
    // A message that says that it is longer than anybody reads.
    let mut huge = wire::message(wire::ANSWER, 1, &[], Some(1), &[]);
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(asked(LIMIT, answers(huge)), nonsense("StartTransientUnit"));
    let hangs_up = |mut stream: UnixStream| welcome(&mut stream);
    assert_eq!(asked(LIMIT, hangs_up), NoScope::Ended { step: "StartTransientUnit" });
}

#[test]
fn a_refusal_is_told_in_its_words_without_what_is_none() {
    let refuses = |mut stream: UnixStream| {
        welcome(&mut stream);
        let call = heard(&mut stream);
        assert_eq!(call.text(wire::MEMBER), "StartTransientUnit");
        assert_eq!(call.says.as_deref(), Some("owned-1-2-3.scope"));
        // Without a bus there is nobody to be named.
        assert_eq!(call.text(wire::DESTINATION), "");
        drop(stream.write_all(&says(wire::ERROR, &call, "org.x.No", "not\x1b[2J you\n")));
        to_the_end(stream);
    };
    let why = asked(LIMIT, refuses);
    assert_eq!(why.to_string(), "it refuses: not[2J you (org.x.No)");
}

/// A yes is no move, and that the scope is gone again is an answer.
#[test]
fn who_says_yes_and_does_nothing_is_found_out() {
    let promises = |then: &'static str| {
        move |mut stream: UnixStream| {
            welcome(&mut stream);
            let call = heard(&mut stream);
            drop(stream.write_all(&says(wire::ANSWER, &call, "", "/job/1")));
            loop {
                let mut head = [0; 1];
                if stream.peek_byte(&mut head) {
                    let call = heard(&mut stream);
                    let kind = if then.is_empty() { wire::ANSWER } else { wire::ERROR };
                    drop(stream.write_all(&says(kind, &call, then, "not loaded")));
                } else {
                    return;
                }
            }
        }
    };
    assert_eq!(asked(A_WHILE, promises("")), NoScope::NotMoved);
    let why = asked(LIMIT, promises("org.freedesktop.systemd1.NoSuchUnit")).to_string();
    assert_eq!(why, "it refuses: not loaded (org.freedesktop.systemd1.NoSuchUnit)");
}

trait Peek {
    fn peek_byte(&self, into: &mut [u8; 1]) -> bool;
}

impl Peek for UnixStream {
    /// Whether more comes.
    fn peek_byte(&self, into: &mut [u8; 1]) -> bool {
        recv(self, into, RecvFlags::PEEK).is_ok_and(|(_, length)| length > 0)
    }
}

/// The next place is asked where the first has nobody, and not where the first was asked.
#[test]
fn another_place_is_asked_only_where_the_first_has_nobody() {
    let place = |path: &Path| Place::path(path.to_owned(), false, user());
    for (name, goes_on) in
        [("org.freedesktop.DBus.Error.ServiceUnknown", true), ("org.x.AccessDenied", false)]
    {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| -> PathBuf { dir.path().join(name) };
        let serve = |path: &Path, name: &'static str| {
            let listener = UnixListener::bind(path).expect("bind");
            thread::spawn(move || {
                let mut stream = listener.accept().expect("somebody").0;
                welcome(&mut stream);
                let call = heard(&mut stream);
                drop(stream.write_all(&says(wire::ERROR, &call, name, "no")));
            })
        };
        let first = serve(&at("first"), name);
        let second = serve(&at("second"), "org.x.Second");
        let places = [place(&at("absent")), place(&at("first")), place(&at("second"))];
        let why = enter(&places, "x", LIMIT).expect_err("both say no");
        first.join().expect("asked");
        if goes_on {
            second.join().expect("asked too");
            assert_eq!(why, NoScope::Refused { name: "org.x.Second".into(), says: "no".into() });
        } else {
            assert!(!second.is_finished(), "nobody came");
            assert_eq!(why, NoScope::Refused { name: name.into(), says: "no".into() });
        }
    }
}

/// After `sudo -E` the environment names the bus of another user, whose systemd is not ours to ask.
#[test]
fn somebody_elses_socket_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("bus");
    let _listener = UnixListener::bind(&path).expect("bind");
    let why = enter(&[Place::path(path, true, user() + 1)], "x", LIMIT).expect_err("a stranger");
    assert!(matches!(why, NoScope::Stranger { user: listens, .. } if listens == user()), "{why}");
}
