//! The hot paths, each as often as is asked, for counting instructions: `hot PATH COUNT`. `.ci/instructions` runs it under
//! valgrind and compares with what was recorded; a count does not depend on what else the machine does, as a time would.
#![expect(clippy::print_stdout, reason = "it says what it did")]

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use delegate_core::config::OnStale;
use delegate_core::monitor::liveness::Patience;
use delegate_core::monitor::{Event, Input, Limits, Monitor};
use delegate_protocol::frame::{Decoder, Encoder};
use delegate_protocol::message::Verdict;
use delegate_protocol::{
    Beat, ChildEnd, ChildEvent, ChildMessage, Isolation, ParentEnd, SubagentId, Value, page,
};
use ownership::{Emptied, ExitStatus};

const PREVIEW: &str = "src/run/batch.rs: the loop of one batch feeds the pure monitor and carries \
                       out its effects; it is the only code that waits and acts";

fn event() -> ChildEvent {
    ChildEvent::Tool {
        name: "read_file".to_owned(),
        preview: Some(PREVIEW.to_owned()),
        args: Value::Map([("path".to_owned(), Value::Text("src/run/batch.rs".to_owned()))].into()),
        id: None,
        args_bytes: 24,
    }
}

fn encode(count: usize) -> Vec<u8> {
    let (message, encoder) = (ChildMessage::Event(event()), Encoder::<ChildEnd>::default());
    let mut frames = Vec::new();
    for _ in 0..count {
        frames.clear();
        encoder.frame(black_box(&message), &mut frames).expect("a frame");
    }
    frames
}

fn decode(count: usize) -> usize {
    let frame = encode(1);
    let mut decoder = Decoder::<ParentEnd>::default();
    let decoded = (0..count).map(|_| {
        decoder.push(black_box(&frame));
        decoder.next_message().expect("a frame").expect("a message")
    });
    decoded.filter(|message| matches!(message, ChildMessage::Event(_))).count()
}

/// Children from their launch to their record; an operation is one step.
fn monitor(count: usize) -> usize {
    let long = Duration::from_secs(3600);
    let limits = Limits {
        start: long,
        run: Some(long),
        patience: Patience {
            heartbeat: long,
            touches: false,
            inactivity: None,
            stale_idle: long,
            stale_in_tool: long,
            on_stale: OnStale::Interrupt,
        },
        interrupt_grace: long,
        terminate_grace: long,
    };
    let inputs = || {
        [
            Input::Launched { pid: Some(1) },
            Input::Hello,
            Input::Finish(Verdict::Completed),
            Input::Exited(ExitStatus::Code(0)),
            Input::LineClosed,
            Input::StreamEnded,
            Input::Emptied(Emptied::default()),
            Input::Recorded(true),
        ]
    };
    let tasks = u32::try_from(count / inputs().len()).unwrap_or(1).max(1);
    let mut monitor = Monitor::new(tasks, 4, Isolation::Process, vec![limits]);
    let mut effects = monitor.step(Event::Tick, Duration::ZERO).len();
    for index in 0..tasks {
        for input in inputs() {
            effects += monitor.step(Event::Child(index, input), Duration::ZERO).len();
        }
    }
    effects
}

fn pages(count: usize) -> u64 {
    let words: Vec<AtomicU32> = (0..page::WORDS).map(|_| AtomicU32::new(0)).collect();
    let beat = |sequence| Beat {
        sequence,
        api_calls: 3,
        current_tool: Some("read_file".to_owned()),
        quiet_ms: 100,
        activity: sequence,
    };
    let read = (1..=count as u64).filter_map(|sequence| {
        page::write(&words, &page::Record { beat: beat(sequence), at_ms: sequence });
        page::read(&words)
    });
    read.map(|record| record.beat.sequence).max().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (path, count) = (arguments.next(), arguments.next());
    let (Some(path), Some(count)) = (path, count) else { return Err("hot PATH COUNT".into()) };
    let count: usize = count.parse()?;
    let done = match &*path {
        "event-encode" => encode(count).len(),
        "event-decode" => decode(count),
        "outbox-frame" => delegate_child::hot::outbox(&event(), count),
        "monitor-step" => monitor(count),
        "spawn-request" => ownership::hot::requests(count),
        "event-line" => {
            let child = SubagentId::new(0, 1);
            delegate_core::run::counted_lines(&event().of(child).expect("an event"), count)
        }
        "page-beat" => usize::try_from(pages(count))?,
        other => return Err(format!("no such path: {other}").into()),
    };
    println!("{path}: {done}");
    Ok(())
}
