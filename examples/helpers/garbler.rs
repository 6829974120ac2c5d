//! Helper: a worker that speaks the child protocol on descriptor 3, and speaks it wrong.
//!
//! `garbler MODE [COUNT]`. With the mode `goal`, the task's goal is `MODE [COUNT]`, so that one batch
//! can hold a wrong worker beside right ones. What happens after `Begin` can be said either way.
//!
//! | mode | does |
//! |---|---|
//! | before `Begin` | |
//! | `silent` | connects, says nothing, and runs on |
//! | `leaver` | exits 0 at once without a word |
//! | `wrong-version` | says `Hello` with a version that nobody speaks |
//! | `no-hello` | sends a right result as the first thing, without a `Hello`, then exits 0 |
//! | `two-hellos` | says `Hello` twice, then does it right |
//! | `noise` | sends COUNT (4096) bytes that are no frame as the first thing, then exits 0 |
//! | `deaf` | says `Hello`, and never reads what comes |
//! | `early-event` | sends `Hello` and an event in one breath, then does it right |
//! | after `Begin` | |
//! | `well` | does it right: text, result `well`, exit 0 |
//! | `garbage` | sends COUNT (4096) bytes that are no frame, then exits 0 |
//! | `half-frame` | sends half of its result's frame, then exits 0 |
//! | `oversized` | sends a frame over the cap, then a right result |
//! | `undecodable` | sends a whole frame that is no message, then a right result |
//! | `wrong-direction` | sends a parent's message, then a right result |
//! | `two-results` | sends `first` and `second` as results |
//! | `asks` | asks COUNT (1000) questions in one breath, then sends a right result |
//! | `late-events` | sends its result, then COUNT (3) events |
//! | `no-result` | sends one event and exits 0 |
//! | `result` | sends a result of COUNT (0) bytes and exits in the same breath |
//! | `short-parts` | announces COUNT (1000) bytes more than the parts of its result hold |
//! | `result-then-crash` | sends a right result and is killed by SEGV |
//! | `result-then-stay` | sends a right result, names itself `stays`, closes nothing, and runs on |
//! | `stop-result-stay` | stops itself (STOP); when it is continued, as `result-then-stay` |
//! | `crash` | is killed by the signal COUNT (11) |
//! | `exit` | exits with the code COUNT (3) and without a result |
//! | `hang` | runs on and ignores every interrupt |
//! | `close` | closes the line without a result and runs on |
//! | `flood` | sends COUNT (1000000) text events, then a right result |
#![expect(clippy::disallowed_methods, reason = "a test program that misbehaves on purpose")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use delegate_protocol::codec;
use delegate_protocol::event::ChildEvent;
use delegate_protocol::frame::{Decoder, Encoder, FRAME_CAP, PART};
use delegate_protocol::message::Verdict;
use delegate_protocol::value::Bytes;
use delegate_protocol::version::PROTOCOL_VERSION;
use delegate_protocol::{
    ChildEnd, ChildMessage, Finish, Hello, ParentEnd, ParentMessage, Question, TaskSpec, Tokens,
};
use rustix::process::{Signal, getpid, kill_process};

/// The line to the parent.
const LINE: i32 = 3;

/// Bytes that are collected before a write.
const BLOCK: usize = 64 * 1024;

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut line = UnixStream::from(ownership::inherit::take(LINE)?);
    let (mode, count) = mode_of(&args.join(" "));
    match mode.as_str() {
        "silent" => run_on(),
        "leaver" => return Ok(ExitCode::SUCCESS),
        "noise" => return noise(&mut line, count.unwrap_or(4096)).map(|()| ExitCode::SUCCESS),
        "no-hello" => return result(&mut line, "unasked").map(|()| ExitCode::SUCCESS),
        "two-hellos" => {
            hello(&mut line, PROTOCOL_VERSION)?;
            hello(&mut line, PROTOCOL_VERSION)?;
        }
        // In one breath: between two the parent may have sent the task.
        "early-event" => hello_and(&mut line, &text("too early"))?,
        "early-ask" => hello_and(&mut line, &ask(1))?,
        "wrong-version" => hello(&mut line, PROTOCOL_VERSION + 1000)?,
        _ => hello(&mut line, PROTOCOL_VERSION)?,
    }
    if mode == "deaf" {
        run_on();
    }
    let spec = begin(&mut line)?;
    let (mode, count) = if mode == "goal" { mode_of(&spec.goal) } else { (mode, count) };
    misbehave(line, &mode, count)
}

/// Splits `MODE [COUNT]`.
fn mode_of(text: &str) -> (String, Option<u64>) {
    let mut words = text.split_whitespace();
    let mode = words.next().unwrap_or("well").to_owned();
    (mode, words.next().and_then(|count| count.parse().ok()))
}

fn ask(number: u64) -> ChildMessage {
    ChildMessage::Ask { number, question: Question::TimeLeft }
}

fn misbehave(mut line: UnixStream, mode: &str, count: Option<u64>) -> io::Result<ExitCode> {
    let number = |default: u64| count.unwrap_or(default);
    match mode {
        "well" | "early-event" | "two-hellos" => {
            send(&mut line, &text("working"))?;
            result(&mut line, "well")?;
        }
        "garbage" => noise(&mut line, number(4096))?,
        "half-frame" => {
            let bytes = framed(&finish(Some("never whole".to_owned()), 11))?;
            line.write_all(&bytes[..bytes.len() / 2])?;
        }
        "oversized" => {
            oversized(&mut line)?;
            result(&mut line, "after an oversized frame")?;
        }
        "undecodable" => {
            line.write_all(&[3, 0, 0, 0, 0xc1, 0xc1, 0xc1])?;
            result(&mut line, "after an undecodable frame")?;
        }
        "wrong-direction" => {
            let mut bytes = Vec::new();
            let frame =
                Encoder::<ParentEnd>::default().frame(&ParentMessage::Interrupt, &mut bytes);
            frame.map_err(io::Error::other)?;
            line.write_all(&bytes)?;
            result(&mut line, "after a parent's message")?;
        }
        "two-results" => {
            result(&mut line, "first")?;
            result(&mut line, "second")?;
        }
        "asks" => {
            let mut bytes = Vec::new();
            for number in 0..number(1000) {
                bytes.extend(framed(&ask(number))?);
            }
            line.write_all(&bytes)?;
            result(&mut line, "after many questions")?;
        }
        "late-events" => {
            result(&mut line, "early")?;
            flood(&mut line, number(3))?;
        }
        "no-result" => send(&mut line, &text("and then nothing"))?,
        "result" => parts(&mut line, number(0), 0)?,
        "short-parts" => parts(&mut line, PART as u64 + 1, number(1000))?,
        "result-then-crash" => {
            result(&mut line, "right before the crash")?;
            die_by(11)?;
        }
        "result-then-stay" => stay(&mut line)?,
        "stop-result-stay" => {
            kill_process(getpid(), Signal::STOP)?;
            stay(&mut line)?;
        }
        "crash" => die_by(number(11))?,
        "exit" => return Ok(ExitCode::from(u8::try_from(number(3)).unwrap_or(u8::MAX))),
        "hang" => swallow(&mut line),
        "close" => {
            drop(line);
            run_on();
        }
        "flood" => {
            flood(&mut line, number(1_000_000))?;
            result(&mut line, "after the flood")?;
        }
        _ => return Ok(ExitCode::from(2)),
    }
    Ok(ExitCode::SUCCESS)
}

fn hello(line: &mut UnixStream, protocol: u32) -> io::Result<()> {
    send(line, &greeting(protocol))
}

fn hello_and(line: &mut UnixStream, message: &ChildMessage) -> io::Result<()> {
    let both = [framed(&greeting(PROTOCOL_VERSION))?, framed(message)?].concat();
    line.write_all(&both)
}

fn greeting(protocol: u32) -> ChildMessage {
    let agents = ["garbler", "command"].map(str::to_owned).to_vec();
    let (program_version, pid) = ("0.0.0-garbler".to_owned(), std::process::id());
    ChildMessage::Hello(Hello { protocol, program_version, pid, agents })
}

/// Reads until the spec is there.
fn begin(line: &mut UnixStream) -> io::Result<TaskSpec> {
    let mut decoder = Decoder::<ChildEnd>::default();
    let mut whole = Vec::new();
    let mut block = vec![0; BLOCK];
    loop {
        let len = line.read(&mut block)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoder.push(&block[..len]);
        while let Some(message) = decoder.next_message() {
            match message.map_err(io::Error::other)? {
                ParentMessage::Begin(spec) => return Ok(*spec),
                ParentMessage::SpecPart(Bytes(part)) => whole.extend_from_slice(&part),
                ParentMessage::BeginFromParts => {
                    return codec::from_bytes(&whole).map_err(io::Error::other);
                }
                ParentMessage::Interrupt
                | ParentMessage::Notice { .. }
                | ParentMessage::Steer { .. }
                | ParentMessage::StopTurn { .. }
                | ParentMessage::Dump
                | ParentMessage::Answer { .. } => {}
            }
        }
    }
}

fn text(text: &str) -> ChildMessage {
    ChildMessage::Event(ChildEvent::Text { text: text.to_owned() })
}

fn finish(answer: Option<String>, answer_bytes: u64) -> ChildMessage {
    ChildMessage::Finish(Box::new(Finish {
        verdict: Verdict::Completed,
        answer_bytes,
        answer,
        answer_is_json: false,
        empty_on_purpose: answer_bytes == 0,
        error: None,
        failure_reason: None,
        api_calls: 0,
        tokens: Tokens::default(),
        model: None,
        cost_usd: None,
        cost_status: None,
        schema: None,
        tool_trace: Vec::new(),
    }))
}

fn framed(message: &ChildMessage) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Encoder::<ChildEnd>::default().frame(message, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn send(line: &mut UnixStream, message: &ChildMessage) -> io::Result<()> {
    line.write_all(&framed(message)?)
}

fn result(line: &mut UnixStream, answer: &str) -> io::Result<()> {
    send(line, &finish(Some(answer.to_owned()), answer.len() as u64))
}

/// The name (man 5 proc_pid_comm) says that the result is out.
fn stay(line: &mut UnixStream) -> io::Result<()> {
    result(line, "and still here")?;
    rustix::thread::set_name(c"stays")?;
    run_on();
    Ok(())
}

/// A result of `count` bytes, in parts when it is longer than one, announced as `extra` bytes more.
fn parts(line: &mut UnixStream, count: u64, extra: u64) -> io::Result<()> {
    if count <= PART as u64 && extra == 0 {
        let answer = "r".repeat(usize::try_from(count).map_err(io::Error::other)?);
        return result(line, &answer);
    }
    let mut left = count;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(PART).min(PART);
        send(line, &ChildMessage::ResultPart(Bytes(vec![b'r'; now])))?;
        left -= now as u64;
    }
    send(line, &finish(None, count + extra))
}

/// Bytes whose every header announces a frame far over the cap.
fn noise(line: &mut UnixStream, count: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0xfe).take(count), line).map(drop)
}

/// A frame one byte over the cap, complete.
fn oversized(line: &mut UnixStream) -> io::Result<()> {
    let len = u32::try_from(FRAME_CAP + 1).map_err(io::Error::other)?;
    line.write_all(&len.to_le_bytes())?;
    io::copy(&mut io::repeat(b'o').take(len.into()), line).map(drop)
}

fn flood(line: &mut UnixStream, count: u64) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(2 * BLOCK);
    for number in 0..count {
        bytes.extend(framed(&text(&format!("{number}\n")))?);
        if bytes.len() >= BLOCK {
            line.write_all(&bytes)?;
            bytes.clear();
        }
    }
    line.write_all(&bytes)
}

/// Reads and drops what comes, and stays also when nobody is left to say anything.
fn swallow(line: &mut UnixStream) {
    let _bytes = io::copy(line, &mut io::sink());
    run_on();
}

fn run_on() {
    thread::sleep(Duration::from_secs(600));
}

/// Sends itself the signal until it works: the runtime's own SEGV handler takes the first one for a
/// stack overflow that was none, and steps aside.
fn die_by(signal: u64) -> io::Result<()> {
    let signal = i32::try_from(signal).ok().and_then(Signal::from_named_raw);
    let signal = signal.ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        kill_process(getpid(), signal)?;
    }
}
