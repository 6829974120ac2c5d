//! One child over both lines: a socket and the channel of a thread. Every case runs over both, and
//! asserts the same.

use std::thread;
use std::time::Duration;

use crate::common::{Line, Parent, spec, text_of};
use delegate_child::LinkError;
use delegate_protocol::codec;
use delegate_protocol::frame::PART;
use delegate_protocol::message::Verdict;
use delegate_protocol::spec::sample;
use delegate_protocol::value::Bytes;
use delegate_protocol::{ChildEvent, ChildMessage, Finish, ParentMessage, TaskSpec};

macro_rules! over_both_lines {
    ($($(#[$doc:meta])* fn $name:ident($line:ident: Line) $body:block)+) => {
        $(
            mod $name {
                use super::*;
                fn case($line: Line) $body
                $(#[$doc])*
                #[test]
                fn socket() {
                    case(Line::Socket);
                }
                $(#[$doc])*
                #[test]
                fn memory() {
                    case(Line::Memory);
                }
            }
        )+
    };
}

/// What came after the hello, up to the end of the stream.
struct Heard {
    events: Vec<ChildEvent>,
    beats: usize,
    finish: Finish,
    answer: String,
}

fn begin(line: Line, task: TaskSpec) -> Parent {
    let mut parent = Parent::start(line);
    let hello = parent.next();
    assert!(matches!(hello, Some(ChildMessage::Hello(_))), "{hello:?}");
    parent.send(&ParentMessage::Begin(Box::new(task)));
    parent
}

/// Reads to the end; exactly one finish, and nothing behind it.
fn rest(parent: &mut Parent) -> Heard {
    let (mut events, mut beats, mut parts, mut finish) = (Vec::new(), 0, Vec::new(), None);
    while let Some(message) = parent.next() {
        assert!(finish.is_none(), "behind the finish: {message:?}");
        match message {
            ChildMessage::Hello(hello) => panic!("a second hello: {hello:?}"),
            ChildMessage::Event(event) => {
                assert!(parts.is_empty(), "an event among the parts");
                events.push(event);
            }
            ChildMessage::Beat(_) => beats += 1,
            ChildMessage::Dump { .. } | ChildMessage::Ask { .. } => {}
            ChildMessage::ResultPart(part) => {
                assert!(part.0.len() <= PART);
                parts.extend(part.0);
            }
            ChildMessage::Finish(last) => finish = Some(*last),
        }
    }
    let finish = finish.expect("the stream ended without a finish");
    let answer = match &finish.answer {
        Some(answer) => answer.clone(),
        None => String::from_utf8(parts).unwrap(),
    };
    assert_eq!(finish.answer_bytes, answer.len() as u64);
    Heard { events, beats, finish, answer }
}

fn carried(line: Line, task: TaskSpec) -> Heard {
    let mut parent = begin(line, task);
    let heard = rest(&mut parent);
    parent.served().unwrap();
    heard
}

/// Reads until the agent has said that it is at work.
fn until_at_work(parent: &mut Parent) {
    loop {
        let message = parent.next().expect("the child left");
        if let ChildMessage::Event(ChildEvent::Progress { summary, .. }) = message
            && summary == "at work"
        {
            return;
        }
    }
}

fn error(heard: &Heard) -> &str {
    heard.finish.error.as_deref().unwrap_or_default()
}

over_both_lines! {
    fn frames_come_in_the_order_in_which_they_were_said(line: Line) {
        let heard = carried(line, spec("talk", ()));
        let kinds: Vec<_> = heard.events.iter().map(|event| match event {
            ChildEvent::Text { text } | ChildEvent::Thinking { text } => text.as_str(),
            ChildEvent::Tool { name, .. } => name,
            ChildEvent::Progress { summary, .. } => summary,
            ChildEvent::Note(_) => "",
        }).collect();
        assert_eq!(kinds.concat(), "think;grep;text and more;half;sed;end;");
        assert_eq!((heard.finish.verdict, heard.answer.as_str()), (Verdict::Completed, "done"));
        assert_eq!((heard.finish.api_calls, heard.finish.cost_usd), (1, Some(0.25)));
        assert_eq!(heard.finish.model.as_deref(), Some("m-1"));
        let trace: Vec<_> = heard.finish.tool_trace.iter()
            .map(|call| (call.tool.as_str(), call.result_bytes, call.status.as_str())).collect();
        assert_eq!(trace, [("grep;", 12, "error"), ("sed;", 0, "ok")]);
    }

    fn a_typed_answer_is_json(line: Line) {
        let heard = carried(line, spec("typed", ()));
        assert_eq!((heard.answer.as_str(), heard.finish.answer_is_json), ("[1,2]", true));
    }

    fn a_panic_becomes_an_end_with_message_and_place(line: Line) {
        let heard = carried(line, spec("panic", ()));
        assert_eq!(heard.finish.verdict, Verdict::Panicked);
        let place = "gave up (crates/delegate-child/tests/suite/common.rs:";
        assert!(error(&heard).starts_with(place), "{}", error(&heard));
        assert_eq!(heard.answer, "before");
    }

    fn an_unknown_agent_names_the_known_ones(line: Line) {
        let heard = carried(line, spec("nobody", ()));
        assert_eq!(heard.finish.verdict, Verdict::Failed);
        assert!(error(&heard).contains("`nobody`") && error(&heard).contains("panic, "), "{}", error(&heard));
    }

    fn params_that_do_not_fit_are_a_clear_failure(line: Line) {
        let heard = carried(line, spec("size", "large"));
        assert_eq!(heard.finish.verdict, Verdict::Failed);
        assert!(error(&heard).contains("params do not fit agent `size`"), "{}", error(&heard));
    }

    fn an_interrupt_before_begin_runs_nothing(line: Line) {
        for also_begin in [false, true] {
            let mut parent = Parent::start(line);
            parent.next();
            parent.send(&ParentMessage::Interrupt);
            if also_begin {
                parent.send_if_there(&ParentMessage::Begin(Box::new(spec("talk", ()))));
            }
            let heard = rest(&mut parent);
            assert_eq!((heard.finish.verdict, heard.events.len()), (Verdict::Interrupted, 0));
            parent.served().unwrap();
        }
    }

    fn an_interrupt_while_running_unwinds_and_keeps_the_last_text(line: Line) {
        let mut parent = begin(line, spec("wait", ()));
        until_at_work(&mut parent);
        parent.send(&ParentMessage::Interrupt);
        let heard = rest(&mut parent);
        assert_eq!((heard.finish.verdict, heard.answer.as_str()), (Verdict::Interrupted, "so far"));
        parent.served().unwrap();
    }

    fn an_interrupt_frees_an_agent_that_waits_for_a_full_outbox(line: Line) {
        let mut parent = begin(line, spec("tools", ()));
        until_at_work(&mut parent);
        // Nobody reads: line and outbox fill up, and the agent waits.
        parent.until_stuck();
        parent.send(&ParentMessage::Interrupt);
        let heard = rest(&mut parent);
        assert_eq!(heard.finish.verdict, Verdict::Interrupted);
        let numbers: Vec<_> = heard.events.iter().filter_map(|event| match event {
            ChildEvent::Tool { name, .. } => Some(name.parse::<usize>().unwrap()),
            ChildEvent::Text { .. }
            | ChildEvent::Thinking { .. }
            | ChildEvent::Progress { .. }
            | ChildEvent::Note(_) => None,
        }).collect();
        let first = numbers[0];
        assert!(numbers.iter().enumerate().all(|(index, number)| *number == first + index));
        assert_eq!(*numbers.last().unwrap() as u64 + 1, heard.finish.api_calls, "none was lost");
        parent.served().unwrap();
    }

    fn a_parent_that_goes_away_ends_the_child(line: Line) {
        let mut parent = begin(line, spec("wait", ()));
        until_at_work(&mut parent);
        let served = parent.leave();
        assert!(matches!(served, Err(LinkError::Closed)), "{served:?}");
    }

    fn a_parent_that_goes_away_frees_a_stuck_child(line: Line) {
        let mut parent = begin(line, spec("tools", ()));
        until_at_work(&mut parent);
        parent.until_stuck();
        let served = parent.leave();
        assert!(matches!(served, Err(LinkError::Closed)), "{served:?}");
    }

    fn a_parent_that_goes_away_before_begin_is_no_task(line: Line) {
        let mut parent = Parent::start(line);
        parent.next();
        let served = parent.leave();
        assert!(matches!(served, Err(LinkError::Closed)), "{served:?}");
    }

    fn garbage_from_the_parent_ends_the_child_with_a_typed_error(line: Line) {
        for begun in [false, true] {
            for garbage in [&b"\x03\0\0\0\xc1\xc1\xc1"[..], &b"\xff\xff\xff\x7fx"[..]] {
                let mut parent = Parent::start(line);
                parent.next();
                if begun {
                    parent.send(&ParentMessage::Begin(Box::new(spec("wait", ()))));
                    until_at_work(&mut parent);
                }
                parent.send_bytes(garbage.to_vec());
                let served = parent.served();
                assert!(matches!(served, Err(LinkError::Frame(_))), "{served:?}");
            }
        }
    }

    fn a_second_begin_breaks_the_protocol(line: Line) {
        let mut parent = begin(line, spec("wait", ()));
        until_at_work(&mut parent);
        parent.send(&ParentMessage::Begin(Box::new(spec("wait", ()))));
        let served = parent.served();
        assert!(matches!(served, Err(LinkError::OutOfOrder(_))), "{served:?}");
    }

    fn a_spec_comes_in_parts(line: Line) {
        let goal = "0123456789abcdef".repeat((17 << 20) / 16);
        let mut parent = Parent::start(line);
        parent.next();
        for part in codec::to_bytes(&sample(0, "goal", &goal)).unwrap().chunks(PART) {
            parent.send(&ParentMessage::SpecPart(Bytes(part.to_vec())));
        }
        parent.send(&ParentMessage::BeginFromParts);
        let heard = rest(&mut parent);
        assert!(heard.answer == goal);
        parent.served().unwrap();
    }

    fn answers_of_every_size_arrive_whole(line: Line) {
        let kib = 1 << 10;
        for size in [
            0, 1, 64 * kib - 1, 64 * kib, 64 * kib + 1, 208 * kib, 256 * kib, 256 * kib + 1,
            kib * kib, 17 * kib * kib,
        ] {
            let heard = carried(line, spec("size", size));
            assert_eq!(heard.finish.verdict, Verdict::Completed);
            assert!(heard.answer == text_of(size), "{size}");
            assert_eq!(heard.finish.answer.is_some(), size <= 256 * kib, "{size}");
        }
    }

    fn an_answer_over_the_limit_is_a_failure_with_both_numbers(line: Line) {
        let mut task = spec("size", 1001);
        task.max_result_bytes = 1000;
        let heard = carried(line, task);
        assert_eq!(heard.finish.verdict, Verdict::Failed);
        assert!(error(&heard).contains("1001 bytes") && error(&heard).contains("1000 bytes"));
    }

    /// What is asserted on the queue itself is in `outbox`; here nothing is lost on the way.
    fn a_flood_of_text_reaches_a_parent_that_reads_slowly(line: Line) {
        let deltas = 1_000_000;
        let mut parent = begin(line, spec("flood", deltas));
        parent.pause = Some(Duration::from_micros(200));
        let heard = rest(&mut parent);
        let mut text = String::new();
        for event in &heard.events {
            let ChildEvent::Text { text: piece } = event else { panic!("{event:?}") };
            text.push_str(piece);
        }
        assert_eq!(text.len(), deltas * 7);
        assert!(text.split_whitespace().enumerate().all(|(index, number)| number.parse() == Ok(index)));
        assert!(heard.events.len() < deltas / 2, "{} events", heard.events.len());
        parent.served().unwrap();
    }

    fn progress_is_merged_with_its_count(line: Line) {
        let count: u64 = 100_000;
        let heard = carried(line, spec("progress", count));
        let (mut total, mut last) = (0, String::new());
        for event in &heard.events {
            let ChildEvent::Progress { summary, merged } = event else { panic!("{event:?}") };
            total += merged + 1;
            last.clone_from(summary);
        }
        assert_eq!((total, last), (count, format!("step {count}")));
    }

    fn beats_come_while_the_agent_computes(line: Line) {
        let mut task = spec("compute", ());
        task.heartbeat_interval_ms = 20;
        let mut parent = begin(line, task);
        let mut beats = Vec::new();
        while beats.len() < 3 {
            if let ChildMessage::Beat(beat) = parent.next().expect("the child left") {
                beats.push(beat);
            }
        }
        assert_eq!(beats.iter().map(|beat| beat.sequence).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(beats.iter().all(|beat| beat.current_tool.as_deref() == Some("multiply")));
        assert!(beats[2].quiet_ms >= 40, "{beats:?}");
        parent.send(&ParentMessage::Interrupt);
        let heard = rest(&mut parent);
        assert_eq!(heard.finish.verdict, Verdict::Interrupted);
        parent.served().unwrap();
    }

    fn a_dump_and_a_notice_come_while_the_agent_computes(line: Line) {
        let mut parent = begin(line, spec("compute", ()));
        parent.send(&ParentMessage::Notice { text: "soon".to_owned() });
        parent.send(&ParentMessage::Dump);
        let dump = loop {
            if let ChildMessage::Dump { text } = parent.next().expect("the child left") {
                break text;
            }
        };
        assert!(dump.contains("current tool: multiply") || dump.contains("current tool: none"), "{dump}");
        assert!(dump.contains("asked to stop: no"), "{dump}");
        // The agent's thread has not begun, or it is told.
        assert!(dump.contains("state: ") || dump.contains("nothing yet"), "{dump}");
        parent.send(&ParentMessage::Interrupt);
        let heard = rest(&mut parent);
        assert_eq!(heard.finish.verdict, Verdict::Interrupted);
        parent.served().unwrap();
    }

    fn beats_go_on_under_a_flood(line: Line) {
        let mut task = spec("flood", 1_000_000);
        task.heartbeat_interval_ms = 10;
        let heard = carried(line, task);
        assert!(heard.beats >= 2, "{} beats", heard.beats);
    }
}

/// Panics of other threads still reach the hook that was there before.
#[test]
fn children_side_by_side_keep_their_panics_apart() {
    let threads: Vec<_> = (0..4)
        .map(|_| thread::spawn(|| error(&carried(Line::Memory, spec("panic", ()))).to_owned()))
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap().starts_with("gave up ("));
    }
}
