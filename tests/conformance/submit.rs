//! Many at once: floods of submits, and many writers on one loop.

use delegate_runtime::config::Settings;
use delegate_runtime::{Event, Isolation, Status, Task};
use sha2::{Digest, Sha256};

use crate::agents::{Op, Scripted, answer, script};
use crate::seen::watch;
use crate::support::{BOTH, rig, rig_with};

fn hex(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn rb_05_a_flood_of_submits_from_many_threads_never_blocks_and_loses_nothing() {
    for (isolation, batches, tasks) in [(Isolation::Thread, 40, 10), (Isolation::Process, 3, 4)] {
        let rig = rig(isolation);
        // The loop is busy with a large batch from the start.
        let busy = script([Op::Burn(200)], answer("busy"));
        let first =
            rig.delegator.batch((0..8).map(|i| busy.task(format!("busy {i}")))).start().unwrap();
        let runs: Vec<_> = (0..8)
            .map(|thread| {
                let delegator = rig.delegator.clone();
                std::thread::spawn(move || {
                    // All are started before the first is waited for.
                    let runs: Vec<_> = (0..batches)
                        .map(|batch| {
                            let tasks = (0..tasks).map(|task| {
                                let text = format!("{thread} {batch} {task}");
                                script([], answer(&text)).task(text.clone())
                            });
                            delegator.batch(tasks).start().unwrap()
                        })
                        .collect();
                    runs.into_iter()
                        .map(delegate_runtime::blocking::Run::finish)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        assert!(first.finish().all_completed());
        for (thread, reports) in runs.into_iter().enumerate() {
            for (batch, report) in reports.join().unwrap().iter().enumerate() {
                let answers: Vec<_> =
                    report.results().map(|o| o.summary.clone().unwrap()).collect();
                let expected: Vec<_> =
                    (0..tasks).map(|task| format!("{thread} {batch} {task}")).collect();
                assert_eq!(answers, expected, "{isolation:?}");
            }
        }
    }
}

#[test]
fn rb_05_a_long_batch_runs_to_its_end() {
    let settings = Settings { max_concurrent_children: 16, ..Settings::default() };
    let rig = rig_with(Isolation::Thread, settings);
    let tasks = (0..2_000).map(|index| script([], answer("ok")).task(format!("task {index}")));
    let report = rig.delegator.batch(tasks).run().unwrap();
    assert_eq!(report.counts(), [(Status::Completed, 2_000)].into());
}

#[test]
fn rb_06_eight_writers_of_messages_of_every_size_are_never_mixed_up() {
    const SIZES: [usize; 9] = [1, 3, 100, 4096, 65_535, 65_536, 65_537, 212_992, 700_000];
    for isolation in BOTH {
        let message = |writer: usize, number: usize| {
            let size = SIZES[(writer + number) % SIZES.len()];
            let letter = char::from(b'a' + u8::try_from(writer).unwrap());
            let mut text = format!("{letter}{number};").repeat(size / 3 + 1);
            text.truncate(size);
            text
        };
        let tasks = (0..8).map(|writer| {
            // Tools are never merged: each is one message, with a hash of its own payload.
            let ops = (0..18).flat_map(|number| {
                let text = message(writer, number);
                [Op::Tool(hex(&text)), Op::Text(text)]
            });
            Task::of::<Scripted>(format!("writer {writer}"), script(ops, answer("done")))
        });
        let rig = rig(isolation);
        let seen = watch(&rig, tasks);
        assert!(seen.report.all_completed(), "{isolation:?} {:?}", seen.report.counts());
        for writer in 0..8 {
            // The consumer is fast enough here, so nothing was merged: check every payload. If it was
            // not, the file of the child has them all.
            let mut hashes = Vec::new();
            let mut text = String::new();
            for line in seen.written(u32::try_from(writer).unwrap()) {
                match line["event"].as_str().unwrap() {
                    "subagent.tool" => hashes.push(line["name"].as_str().unwrap().to_owned()),
                    "subagent.text" => text.push_str(line["text"].as_str().unwrap()),
                    _ => {}
                }
            }
            let expected: Vec<_> = (0..18).map(|number| message(writer, number)).collect();
            assert_eq!(hashes, expected.iter().map(|text| hex(text)).collect::<Vec<_>>());
            assert_eq!(hex(&text), hex(&expected.concat()), "{isolation:?} writer {writer}");
        }
        let texts = seen.events.iter().filter(|event| matches!(event, Event::Text { .. }));
        assert!(texts.count() > 0);
    }
}
