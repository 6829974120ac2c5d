//! Event order (contract 4.5), as a consumer sees it and as events.jsonl keeps it.

use std::collections::BTreeSet;
use std::time::Duration;

use delegate_protocol::Class;
use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Isolation};

use crate::agents::{End, Op, Script, answer, script};
use crate::seen::{Seen, watch, watch_with};
use crate::support::{BOTH, rig, rig_with, wait_for};

fn mixed() -> Vec<Script> {
    let text = |text: &str| Op::Text(text.to_owned());
    let tool = |name: &str| Op::Tool(name.to_owned());
    vec![
        script([text("a"), tool("t1"), text("b"), tool("t2")], answer("ok")),
        script([tool("t1"), text("x")], End::Fail("no".to_owned(), None)),
        script([text("p"), tool("t1")], End::Panic("boom".to_owned())),
        script([], answer("")),
        script((0..40).map(|number| tool(&format!("t{number}"))), answer("many")),
    ]
}

fn tasks(scripts: &[Script]) -> impl Iterator<Item = delegate_runtime::Task> + '_ {
    scripts.iter().enumerate().map(|(index, script)| script.task(format!("task {index}")))
}

/// Asserts the order for every child.
fn check(seen: &Seen, count: usize) {
    let requested = |event: &Event| matches!(event, Event::SpawnRequested { .. });
    assert!(seen.events[..count].iter().all(requested), "all are requested before anything runs");
    assert_eq!(seen.events.iter().filter(|event| requested(event)).count(), count);
    for index in 0..u32::try_from(count).unwrap() {
        let mut names: Vec<_> = seen.of(index).iter().map(|event| event.name()).collect();
        // Where it stands in line is told before it starts, if at all.
        let start = names.iter().position(|name| *name == "subagent.start");
        let is_waiting = |name: &&str| *name == "subagent.waiting";
        assert_eq!(names.iter().rposition(is_waiting).max(start), start, "{names:?}");
        names.retain(|name| !is_waiting(name));
        assert_eq!(names[..2], ["subagent.spawn_requested", "subagent.start"], "{names:?}");
        assert_eq!(names.last(), Some(&"subagent.complete"), "{names:?}");
        let completes = names.iter().filter(|name| **name == "subagent.complete").count();
        assert_eq!(completes, 1, "{names:?}");
        let starts = names.iter().filter(|name| **name == "subagent.start").count();
        assert_eq!(starts, 1, "{names:?}");
    }
}

#[test]
fn requested_start_events_and_exactly_one_complete_per_child() {
    for isolation in BOTH {
        let scripts = mixed();
        let seen = watch(&rig(isolation), tasks(&scripts));
        check(&seen, scripts.len());
        let tools: Vec<_> = seen
            .of(4)
            .into_iter()
            .filter_map(|event| match event {
                Event::Tool { name, .. } => Some(name.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(tools, (0..40).map(|number| format!("t{number}")).collect::<Vec<_>>());
    }
}

#[test]
fn text_before_a_tool_stays_before_it() {
    for isolation in BOTH {
        let seen = watch(&rig(isolation), tasks(&mixed()[..1]));
        let mut text = String::new();
        let mut at_tool = Vec::new();
        for event in seen.of(0) {
            match event {
                Event::Text { text: delta, .. } => text.push_str(delta),
                Event::Tool { .. } => at_tool.push(text.clone()),
                _ => {}
            }
        }
        assert_eq!((at_tool, text.as_str()), (vec!["a".to_owned(), "ab".to_owned()], "ab"));
    }
}

#[test]
fn one_place_means_one_after_the_other_in_task_order() {
    for isolation in BOTH {
        let settings = Settings { max_concurrent_children: 1, ..Settings::default() };
        let scripts = mixed();
        let seen = watch(&rig_with(isolation, settings), tasks(&scripts));
        check(&seen, scripts.len());
        let order: Vec<_> = seen
            .events
            .iter()
            .filter(|event| matches!(event, Event::Start { .. } | Event::Complete { .. }))
            .map(|event| (event.child().task_index(), event.name()))
            .collect();
        let expected: Vec<_> = (0..5)
            .flat_map(|index| [(index, "subagent.start"), (index, "subagent.complete")])
            .collect();
        assert_eq!(order, expected, "{isolation:?}");
    }
}

#[test]
fn ids_are_the_same_in_events_files_and_specs() {
    for isolation in BOTH {
        let task = |index| {
            delegate_runtime::Task::of::<crate::agents::Spec>(
                format!("task {index}"),
                delegate_runtime::Value::Null,
            )
        };
        let rig = rig(isolation);
        let seen = watch(&rig, (0..3).map(task));
        let mut sessions = BTreeSet::new();
        for (index, outcome) in (0..).zip(&seen.outcomes) {
            let ids: BTreeSet<_> = seen.of(index).iter().map(|event| event.child()).collect();
            assert_eq!(ids.len(), 1, "one id per child");
            let id = ids.first().unwrap().to_string();
            assert!(id.starts_with(&format!("sa-{index}-")), "{id}");
            let spec: delegate_protocol::TaskSpec =
                serde_json::from_str(outcome.summary.as_ref().unwrap()).unwrap();
            assert_eq!(spec.subagent_id.to_string(), id);
            assert_eq!((spec.child_depth, spec.parent_subagent_id), (1, None));
            sessions.insert(spec.session_id);
            assert!(seen.written(index).iter().all(|line| line["child"] == id.as_str()));
            let start = seen.of(index).into_iter().find_map(|event| match event {
                Event::Start { pid, .. } => Some(*pid),
                _ => None,
            });
            assert_eq!(start, Some(outcome.pid));
        }
        assert_eq!(sessions.len(), 3, "each child has a session of its own");
    }
}

#[test]
fn every_lifecycle_event_stands_in_the_childs_file_in_order() {
    for isolation in BOTH {
        let scripts = mixed();
        let rig = rig(isolation);
        let seen = watch(&rig, tasks(&scripts));
        for index in 0..5 {
            let lifecycle = |event: &&&Event| event.class() == Class::Lifecycle;
            let shown: Vec<_> = seen
                .of(index)
                .iter()
                .filter(lifecycle)
                .map(|event| serde_json::to_value(event).unwrap())
                .collect();
            let mut times = Vec::new();
            let written: Vec<_> = seen
                .written(index)
                .into_iter()
                .filter(|line| {
                    !["subagent.text", "subagent.thinking", "subagent.progress"]
                        .contains(&line["event"].as_str().unwrap())
                })
                .map(|mut line| {
                    times.push(line["at"].as_f64().unwrap());
                    line.as_object_mut().unwrap().remove("at");
                    line
                })
                .collect();
            assert_eq!(written, shown, "{isolation:?} task {index}");
            assert!(times.is_sorted(), "{times:?}");
        }
    }
}

#[test]
fn rb_65_a_consumer_that_stands_still_loses_no_lifecycle_event() {
    const TOOLS: usize = 3000;
    for isolation in BOTH {
        let many = script(
            (0..TOOLS).flat_map(|number| [Op::Tool(number.to_string()), Op::Text("t".to_owned())]),
            answer("ok"),
        );
        let mut first = true;
        let seen = watch_with(&rig(isolation), [many.task("many")], |event, _| {
            if matches!(event, Event::Tool { .. }) && std::mem::take(&mut first) {
                // It stands still long enough for the child to run into every bound.
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
        });
        let tools: Vec<_> = seen
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Tool { name, .. } => name.parse::<usize>().ok(),
                _ => None,
            })
            .collect();
        assert_eq!(tools, (0..TOOLS).collect::<Vec<_>>(), "{isolation:?}");
        check(&seen, 1);
    }
}

#[test]
fn rb_31_every_child_is_announced_for_batches_of_every_size() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let sizes: &[usize] =
            if isolation == Isolation::Thread { &[1, 2, 3, 7, 30, 100] } else { &[1, 2, 3, 20] };
        for size in sizes {
            let scripts = vec![script([], answer("ok")); *size];
            let seen = watch(&rig, tasks(&scripts));
            check(&seen, *size);
            assert_eq!(seen.outcomes.len(), *size);
        }
    }
}

#[test]
fn a_consumer_that_reads_nothing_gets_every_result_and_the_files_hold_every_event() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let scripts = mixed();
        let report = rig.delegator.batch(tasks(&scripts)).start().unwrap().finish();
        let outcomes: Vec<_> = report.results().collect();
        assert_eq!(outcomes.len(), scripts.len());
        let seen = Seen { events: Vec::new(), outcomes, report };
        for index in 0..5 {
            let names: Vec<_> = seen
                .written(index)
                .iter()
                .map(|line| line["event"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(names[..2], ["subagent.spawn_requested", "subagent.start"]);
            assert_eq!(names.last().map(String::as_str), Some("subagent.complete"));
        }
    }
}

/// Somebody else writes to the database meanwhile: the store waits, and so does the announcement.
#[test]
fn an_outcome_is_announced_when_it_is_stored_and_not_before() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let other = rusqlite::Connection::open(rig.state.path().join("runs.sqlite")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let last = rig.state.path().join("last").to_str().unwrap().to_owned();
        let task = script([Op::Touch(last.clone())], answer("done")).task("g");
        let mut batch = rig.delegator.batch([task]).start().unwrap();
        let (said, heard) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for event in batch.events() {
                said.send(event).unwrap();
            }
            batch
        });
        wait_for("its last step", || std::path::Path::new(&last).exists().then_some(()));
        // Not a wait for a fact: the time in which it would have been announced.
        std::thread::sleep(Duration::from_millis(700));
        let early: Vec<Event> = heard.try_iter().collect();
        assert!(early.iter().any(|event| matches!(event, Event::Start { .. })), "{early:?}");
        let complete = |event: &Event| matches!(event, Event::Complete { .. });
        assert!(!early.iter().any(complete), "{isolation:?} {early:?}");
        other.execute_batch("COMMIT").unwrap();
        let late: Vec<Event> = heard.iter().collect();
        let child = late.iter().find(|event| complete(event)).unwrap().child();
        let batch = reader.join().unwrap();
        assert_eq!(batch.outcome(child).unwrap().summary.as_deref(), Some("done"));
        assert!(batch.finish().is_durable(), "{isolation:?}");
    }
}
