//! A fixture: stands in for a user's systemd on a real bus. It really makes the cgroup of a scope and moves who asked, or
//! it misbehaves in one way: `refuse`, `mute` (never answers), `idle` (says yes and does nothing), `gone` (says yes and has
//! forgotten it at the next question).
//!
//! `stand-in-systemd BUS DIR MODE`: the socket of the bus, and the cgroup in which it makes scopes. Says `ready` when it
//! can be asked, and for each call the sender's process, what was asked, and of which scope. It has the messages of the
//! crate itself; that they are right is what the bus between the two says, which hangs up on any that is not.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

#[path = "../src/systemd/wire.rs"]
mod wire;

use wire::{Bytes, Field, Message};

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// The field of a header that says whose call it is.
const SENDER: u8 = 7;

const BUS: &str = "org.freedesktop.DBus";

fn main() -> Done {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bus, dir, mode] = &args[..] else { return Err("BUS DIR MODE".into()) };
    let mut line = Line::open(Path::new(bus))?;
    line.ask_bus("Hello", "", &[])?;
    let mut name = Bytes::default();
    name.text("org.freedesktop.systemd1").word(0);
    line.ask_bus("RequestName", "su", &name.0)?;
    say("ready");
    loop {
        let call = match line.waiting.pop() {
            Some(call) => call,
            // Its end is that of the bus.
            None => match line.read() {
                Ok(message) => message,
                Err(_) => return Ok(()),
            },
        };
        if call.kind == wire::CALL {
            serve(&mut line, &call, Path::new(dir), mode)?;
        }
    }
}

#[expect(clippy::print_stdout, reason = "its test reads it")]
fn say(text: &str) {
    println!("{text}");
}

fn serve(line: &mut Line, call: &Message, dir: &Path, mode: &str) -> Done {
    let (what, scope) = (call.text(wire::MEMBER), call.says.clone().unwrap_or_default());
    let mut asked = Bytes::default();
    asked.text(call.text(SENDER));
    let who = line.ask_bus("GetConnectionUnixProcessID", "s", &asked.0)?;
    let who = who.body.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).ok_or("no number")?;
    say(&format!("{who} {what} {scope}"));
    let scope: PathBuf = dir.join(scope);
    let there = scope.is_dir();
    match (mode, what) {
        ("mute", _) => Ok(()),
        ("refuse", _) => line.answer(call, Some("org.stand.in.No"), "scopes are out of stock"),
        ("idle", _) | ("gone", "StartTransientUnit") => line.answer(call, None, "/job/1"),
        ("gone", _) => line.answer(call, Some("org.freedesktop.systemd1.NoSuchUnit"), "not loaded"),
        (_, "GetUnit") if there => line.answer(call, None, "/unit/1"),
        (_, "StartTransientUnit") if there => {
            line.answer(call, Some("org.freedesktop.systemd1.UnitExists"), "it is there")
        }
        (_, "StartTransientUnit" | "AttachProcessesToUnit") => {
            if !there {
                std::fs::create_dir(&scope)?;
            }
            // Said before it is done, as systemd does it.
            line.answer(call, None, "/job/1")?;
            Ok(std::fs::write(scope.join("cgroup.procs"), who.to_string())?)
        }
        _ => line.answer(call, Some("org.stand.in.Unknown"), "what is that"),
    }
}

struct Line {
    stream: BufReader<UnixStream>,
    last: u32,
    /// Calls that came while an answer was waited for.
    waiting: Vec<Message>,
}

impl Line {
    fn open(bus: &Path) -> Done<Self> {
        let mut stream = BufReader::new(UnixStream::connect(bus)?);
        for said in ["\0AUTH EXTERNAL\r\n", "DATA\r\n"] {
            stream.get_mut().write_all(said.as_bytes())?;
            stream.read_line(&mut String::new())?;
        }
        stream.get_mut().write_all(b"BEGIN\r\n")?;
        Ok(Self { stream, last: 0, waiting: Vec::new() })
    }

    fn read(&mut self) -> Done<Message> {
        let mut head = [0; wire::HEAD];
        self.stream.read_exact(&mut head)?;
        let length = wire::length(&head).ok_or("no message")?;
        let mut whole = head.to_vec();
        whole.resize(length, 0);
        self.stream.read_exact(&mut whole[wire::HEAD..])?;
        wire::parse(&whole).ok_or_else(|| "no message".into())
    }

    /// Asks the bus itself.
    fn ask_bus(&mut self, what: &str, signature: &str, body: &[u8]) -> Done<Message> {
        self.last += 1;
        let mut fields = vec![
            Field(wire::PATH, "/org/freedesktop/DBus"),
            Field(wire::DESTINATION, BUS),
            Field(wire::INTERFACE, BUS),
            Field(wire::MEMBER, what),
        ];
        if !signature.is_empty() {
            fields.push(Field(wire::SIGNATURE, signature));
        }
        let call = wire::message(wire::CALL, self.last, &fields, None, body);
        self.stream.get_mut().write_all(&call)?;
        loop {
            let message = self.read()?;
            if message.kind == wire::CALL {
                self.waiting.push(message);
            } else if message.answers == Some(self.last) {
                return if message.kind == wire::ANSWER {
                    Ok(message)
                } else {
                    Err(message.text(wire::ERROR_NAME).into())
                };
            }
        }
    }

    fn answer(&mut self, call: &Message, error: Option<&str>, says: &str) -> Done {
        self.last += 1;
        let mut body = Bytes::default();
        body.text(says);
        let signature = if error.is_none() { "o" } else { "s" };
        let mut fields =
            vec![Field(wire::DESTINATION, call.text(SENDER)), Field(wire::SIGNATURE, signature)];
        fields.extend(error.map(|name| Field(wire::ERROR_NAME, name)));
        let kind = if error.is_none() { wire::ANSWER } else { wire::ERROR };
        let answer = wire::message(kind, self.last, &fields, Some(call.number), &body.0);
        Ok(self.stream.get_mut().write_all(&answer)?)
    }
}
