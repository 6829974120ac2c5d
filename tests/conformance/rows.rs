//! Rows of the list of known faults of kinds E (liveness), F (interrupts) and H (floods and logs), over both executors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::{Branch, Event, Status, blocking};

use crate::agents::{End, Op, answer, script};
use crate::seen::watch;
use crate::support::{BOTH, Identity, command, rig, rig_with, run, wait_for};

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

fn at(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

fn until(run: &mut blocking::Run, found: impl Fn(&Event) -> bool) {
    assert!(run.events().any(|event| found(&event)), "the event comes before the end");
}

/// RB-25: nobody asks a busy agent for an answer. It computes for many heartbeat intervals, says nothing, and is left
/// alone; beats come from beside it.
#[test]
fn rb_25_a_busy_child_is_not_taken_for_dead() {
    for isolation in BOTH {
        let beat = Duration::from_millis(20);
        let settings = Settings { heartbeat_interval: beat, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let open = at(rig.state.path(), "open");
        let task = script([text("up"), Op::BurnUntil(open.clone())], answer("42")).task("busy");
        let mut run = rig.delegator.batch([task]).start().unwrap();
        until(&mut run, |event| matches!(event, Event::Text { .. }));
        let control = run.control();
        wait_for("fifty beats of silence", || {
            let list = control.list_blocking()?;
            (list.children[0].quiet_seconds? > 50.0 * beat.as_secs_f64()).then_some(())
        });
        fs::write(open, "").unwrap();
        let outcome = run.finish().results().next().unwrap();
        assert_eq!((outcome.status, outcome.summary.as_deref()), (Status::Completed, Some("42")));
    }
}

/// RB-25: what a limit has ended is not started again, so there is no loop of kills to break: one start for each
/// task, whatever became of it.
#[test]
fn rb_25_a_child_that_was_ended_is_not_started_again() {
    for isolation in BOTH {
        let rig =
            rig_with(isolation, Settings { max_concurrent_children: 1, ..Settings::default() });
        let starts = at(rig.state.path(), "starts");
        let program = format!("echo start >> '{starts}'; exec sleep 600");
        let second = Duration::from_secs(1);
        let tasks = (0..3).map(|_| command("hangs", ["sh", "-c", &program]).timeout(second));
        let (outcomes, report) = run(&rig, tasks);
        assert!(outcomes.iter().all(|outcome| outcome.status == Status::Timeout), "{outcomes:?}");
        assert_eq!(fs::read_to_string(starts).unwrap().lines().count(), 3, "{isolation:?}");
        assert!(report.verified_empty(), "{isolation:?}");
    }
}

/// A tree that is still growing: each level starts four of the next, in sessions of their own.
const GROWING: &str = r#"
grow() {
    echo "$2" >> "$1/alive"
    if [ "$3" -gt 0 ]; then
        for n in 1 2 3 4; do
            setsid sh -c "$SELF" grow "$1" "$2.$n" $(($3 - 1)) &
        done
    fi
    exec sleep 600
}
grow "$1" "$2" "$3"
"#;

/// Living processes whose environment has this mark.
fn marked(mark: &str) -> Vec<Identity> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|dir| {
        let pid = dir.ok()?.file_name().to_str()?.parse::<u32>().ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()).then_some(pid)
    });
    pids.filter_map(Identity::of).filter(|process| process.is_alive()).collect()
}

/// RB-29: depth 3, four children each, stopped while it is being built: nobody lives when the run has ended.
#[test]
fn rb_29_a_stop_while_a_tree_is_built_leaves_nobody() {
    for isolation in BOTH {
        let grace = Duration::from_millis(200);
        let settings =
            Settings { interrupt_grace: grace, terminate_grace: grace, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let folder = rig.state.path().to_owned();
        let alive = folder.join("alive");
        let mark = format!("TREE_OF={}", folder.display());
        let start = format!(
            "export SELF='{}' {mark}; exec sh -c \"$SELF\" grow '{}' 0 3",
            GROWING.replace('\'', "'\\''"),
            folder.display()
        );
        let mut run = rig.delegator.batch([command("tree", ["sh", "-c", &start])]).start().unwrap();
        let grown =
            |alive: &PathBuf| fs::read_to_string(alive).map_or(0, |told| told.lines().count());
        let built =
            wait_for("the tree to grow", || Some(grown(&alive)).filter(|count| *count >= 8));
        assert!(!marked(&mark).is_empty());
        run.control().interrupt();
        until(&mut run, |event| matches!(event, Event::Complete { .. }));
        let report = run.finish();
        assert!(report.verified_empty(), "{isolation:?} {:?}", report.warnings());
        let left = marked(&mark);
        assert_eq!(left.len(), 0, "{isolation:?}: {left:?} of a tree of {built} at the stop");
    }
}

/// RB-29 for agents that delegate: batches are hung into the tree, three levels of four, while it is stopped.
#[test]
fn rb_29_batches_that_are_hung_below_a_stop_are_stopped_at_every_depth() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let root = Branch::new();
        let hang = || script([text("up"), Op::AwaitInterrupt], End::Interrupted).task("hangs");
        // The first level runs when the stop comes, the others are attached while and after it.
        let mut first = rig.delegator.batch((0..4).map(|_| hang())).branch(&root).start().unwrap();
        until(&mut first, |event| matches!(event, Event::Text { .. }));
        let below: Vec<_> = (0..4).map(|_| root.branch()).collect();
        let runs = std::thread::scope(|scope| {
            let late = below.iter().map(|branch| {
                let (rig, deep) = (&rig, branch.branch());
                scope.spawn(move || {
                    [branch.clone(), deep].map(|branch| {
                        let tasks = (0..4).map(|_| hang());
                        rig.delegator.batch(tasks).branch(&branch).start().unwrap()
                    })
                })
            });
            let late: Vec<_> = late.collect();
            root.interrupt();
            late.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(runs.len(), 8);
        for run in runs.into_iter().chain([first]) {
            assert_eq!(run.finish().statuses(), [Status::Interrupted; 4], "{isolation:?}");
        }
        let operator = rig.delegator.operator(None);
        wait_for("nothing to run", || operator.list_blocking().is_empty().then_some(()));
    }
}

/// RB-36: while the consumer stands still four children finish their work, each with far more progress than any queue
/// holds, and every lifecycle event is written down meanwhile.
#[test]
fn rb_36_progress_that_nobody_reads_stops_no_child() {
    const STEPS: u32 = 20_000;
    for isolation in BOTH {
        let rig = rig(isolation);
        let folder = rig.state.path().to_owned();
        let tasks = (0..4).map(|index: u32| {
            let mut ops: Vec<_> = (0..STEPS).map(|step| Op::Progress(step.to_string())).collect();
            ops.insert(0, Op::Tool("first".to_owned()));
            ops.push(Op::Tool("last".to_owned()));
            ops.push(Op::Touch(at(&folder, &index.to_string())));
            script(ops, answer("done")).task("talks")
        });
        let mut run = rig.delegator.batch(tasks).start().unwrap();
        // Nobody reads until all have made their last step.
        wait_for("four children to be done", || {
            (0..4).all(|index: u32| folder.join(index.to_string()).exists()).then_some(())
        });
        let mut seen = vec![Vec::new(); 4];
        let mut steps = [0_u64; 4];
        for event in run.events() {
            let index = event.child().task_index() as usize;
            match &event {
                Event::Progress { merged, summary, .. } if summary.parse::<u32>().is_ok() => {
                    steps[index] += merged + 1;
                }
                Event::Tool { name, .. } => seen[index].push(name.clone()),
                Event::Complete { .. } => seen[index].push("complete".to_owned()),
                _ => {}
            }
        }
        let report = run.finish();
        assert_eq!(report.statuses(), [Status::Completed; 4], "{isolation:?}");
        for (index, seen) in seen.iter().enumerate() {
            assert_eq!(seen, &["first", "last", "complete"], "{isolation:?}");
            // What was merged is counted.
            assert_eq!(steps[index], u64::from(STEPS), "{isolation:?}");
        }
        for outcome in report.results() {
            let log = outcome.logs.as_ref().unwrap().join("events.jsonl");
            let log = fs::read_to_string(log).unwrap();
            for name in ["\"first\"", "\"last\"", "subagent.complete"] {
                assert!(log.contains(name), "{isolation:?}: {name} is not written down");
            }
        }
    }
}

/// RB-37: records of 70 kB of eight children at once, on standard error: each child has a file of its own and no record
/// is torn.
#[test]
fn rb_37_large_records_of_many_children_are_not_torn() {
    const RECORDS: usize = 12;
    const BYTES: usize = 70_000;
    for isolation in BOTH {
        let rig = rig(isolation);
        let tasks = (0..8).map(|index| {
            let record = format!("head -c {BYTES} /dev/zero | tr '\\0' {index}; echo");
            let all = format!("for n in $(seq {RECORDS}); do {record}; done >&2; echo ok");
            command("logs", ["sh", "-c", &all])
        });
        let seen = watch(&rig, tasks);
        for (index, outcome) in seen.outcomes.iter().enumerate() {
            assert_eq!(outcome.status, Status::Completed, "{isolation:?} {outcome:?}");
            let log = fs::read_to_string(outcome.logs.as_ref().unwrap().join("stderr")).unwrap();
            let whole = index.to_string().repeat(BYTES);
            let torn = log.lines().filter(|record| *record != whole).count();
            assert_eq!((log.lines().count(), torn), (RECORDS, 0), "{isolation:?} child {index}");
        }
    }
}

/// RB-64: a stop is no word. What an agent hears are words alone, and what was said to a child that is gone does not
/// become the task, or a word, of the next one.
#[test]
fn rb_64_a_stop_is_never_heard_as_a_word_and_no_word_outlives_its_child() {
    for isolation in BOTH {
        let rig = rig(isolation);
        let never = at(rig.state.path(), "never");
        let listens = || [text("up"), Op::SteersUntil(never.clone())];
        let mut first = rig
            .delegator
            .batch([script(listens(), End::Interrupted).task("the task")])
            .start()
            .unwrap();
        let mut heard = String::new();
        let mut child = None;
        let control = first.control();
        for event in first.events() {
            let Event::Text { child: who, text } = event else { continue };
            heard.push_str(&text);
            if child.is_none() {
                child = Some(who);
                control.steer(who, "one").unwrap();
            } else if heard.contains("<one>") {
                control.stop(who);
            }
        }
        let _late = control.steer(child.unwrap(), "two");
        let outcome = first.finish().results().next().unwrap();
        assert_eq!((outcome.status, heard.as_str()), (Status::Interrupted, "up<one>"));
        // The same task again: its goal is its own, and it hears nothing.
        let open = at(rig.state.path(), "open");
        let ops = [text("up"), Op::ToolResult("result".to_owned()), Op::AwaitFile(open.clone())];
        fs::write(&open, "").unwrap();
        let seen = watch(&rig, [script(ops, answer("done")).task("the task")]);
        let said: String = seen
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(said, "upresult", "{isolation:?}");
        assert_eq!(seen.outcomes[0].missed_steer, None, "{isolation:?}");
    }
}

/// RB-67: the loop of the host turns while children compute without a pause; they go on until it has.
#[test]
fn rb_67_children_that_compute_do_not_freeze_the_hosts_loop() {
    const TURNS: u32 = 200;
    for isolation in BOTH {
        let rig = rig(isolation);
        let open = at(rig.state.path(), "open");
        let tasks = (0..4).map(|_| {
            script([text("up"), Op::BurnUntil(open.clone())], answer("done")).task("computes")
        });
        let mut run = rig.delegator.batch(tasks).start().unwrap();
        let mut up = 0;
        while up < 4 {
            until(&mut run, |event| matches!(event, Event::Text { .. }));
            up += 1;
        }
        let host = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let turns = host.block_on(async {
            let mut turns = 0;
            for _ in 0..TURNS {
                tokio::time::sleep(Duration::from_millis(1)).await;
                turns += 1;
            }
            turns
        });
        let list = run.control().list_blocking().unwrap();
        assert_eq!(
            (turns, list.children.len()),
            (TURNS, 4),
            "{isolation:?}: all computed meanwhile"
        );
        fs::write(open, "").unwrap();
        assert_eq!(run.finish().statuses(), [Status::Completed; 4], "{isolation:?}");
    }
}
