//! The control socket: every verb from another connection, and clients that mean no good. The `delegate`
//! command over it is tested with the command.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::control::{Ask, Watched, call, clients};
use delegate_runtime::{Event, Isolation, ManualClock, Status, blocking};
use serde_json::{Value, json};

use crate::agents::{End, Op, answer, script};
use crate::support::{BOTH, LIMIT, as_asked, wait_for};

struct Bench {
    delegator: blocking::Delegator,
    dir: tempfile::TempDir,
    clock: ManualClock,
}

fn bench(isolation: Isolation, settings: Settings) -> Bench {
    let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    let delegator = blocking::Delegator::builder()
        .isolation(isolation)
        .settings(as_asked(settings))
        .state_dir(dir.path().join("state"))
        .control_dir(dir.path().join("sockets"))
        .clock(clock.clone())
        .build()
        .unwrap();
    Bench { delegator, dir, clock }
}

impl Bench {
    fn sockets(&self) -> PathBuf {
        self.dir.path().join("sockets")
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The only socket that is there, as any program would open it.
    fn raw(&self) -> UnixStream {
        let entries = fs::read_dir(self.sockets()).unwrap();
        let path = entries.map(|entry| entry.unwrap().path()).next().expect("a socket");
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

fn request(ask: Value) -> String {
    json!({ "schema": "delegate.control/1", "id": 1, "ask": ask }).to_string() + "\n"
}

fn text(text: &str) -> Op {
    Op::Text(text.to_owned())
}

fn until_text(run: &mut blocking::Run, part: &str) {
    let said = |event: Event| matches!(event, Event::Text { text, .. } if text.contains(part));
    assert!(run.events().any(said), "{part} comes before the end");
}

fn code(dir: &Path, id: &str, ask: impl Fn(String) -> Ask) -> Option<String> {
    call(dir, None, id, ask).err().map(|error| error.code().to_owned())
}

#[test]
fn every_verb_works_from_another_connection() {
    for isolation in BOTH {
        let settings = Settings {
            max_concurrent_children: 1,
            child_timeout: Some(Duration::from_secs(100)),
            ..Settings::default()
        };
        let bench = bench(isolation, settings);
        let dir = bench.sockets();
        assert!(clients(&dir, None).is_empty(), "nothing listens before the first batch");
        let ops = [text("up"), Op::AwaitSteer, Op::AwaitInterrupt];
        let tasks = [
            script(ops, End::Interrupted).task("first"),
            script([text("2")], answer("2")).task("second"),
        ];
        let mut run = bench.delegator.batch(tasks).session("chat-1").start().unwrap();
        until_text(&mut run, "up");
        let id = run.id().to_string();
        let short = id[..6].to_owned();
        let first = format!("{short}/0");

        let listed = clients(&dir, None)[0].list().unwrap();
        assert_eq!((listed.len(), listed[0].run_id, listed[0].tasks), (1, run.id(), 2));
        let child = &listed[0].list.children[0];
        assert_eq!((&*child.goal, &*child.state, child.accepts_steer), ("first", "running", true));
        assert_eq!(child.pid.is_some(), isolation == Isolation::Process);
        assert_eq!(listed[0].list.waiting, 1);

        let mut feed = call(&dir, None, &short, |id| Ask::Watch { id }).unwrap();
        call(&dir, None, &id, |id| Ask::Pause { id }).unwrap();
        let steer = |id| Ask::Steer { id, text: "left".to_owned() };
        let answer = call(&dir, None, &first, steer).unwrap().value;
        assert_eq!(answer["child"].as_str(), Some(&*child.child.to_string()));
        until_text(&mut run, "left");
        assert_eq!(code(&dir, &short, steer).as_deref(), Some("needs_child"));
        assert_eq!(code(&dir, &format!("{short}/7"), steer).as_deref(), Some("not_found"));
        assert_eq!(code(&dir, "zzzzzz", steer).as_deref(), Some("not_found"));
        let wait = |seconds| move |id| Ask::Wait { id, seconds: Some(seconds) };
        assert_eq!(code(&dir, &short, wait(0.01)).as_deref(), Some("elapsed"));
        assert_eq!(code(&dir, &first, wait(0.01)).as_deref(), Some("needs_run"));

        // The limit is 100 s; with 100 more it still runs at 150, as it would not without.
        call(&dir, None, &first, |id| Ask::Extend { id, seconds: 100.0 }).unwrap();
        bench.clock.advance(Duration::from_secs(150));
        assert_eq!(clients(&dir, None)[0].list().unwrap()[0].list.children[0].state, "running");

        call(&dir, None, &child.child.to_string(), |id| Ask::Stop { id, now: false }).unwrap();
        wait_for("the first to end", || {
            let list = clients(&dir, None)[0].list().unwrap();
            (list[0].list.ended == 1).then_some(())
        });
        assert_eq!(code(&dir, &first, steer).as_deref(), Some("ended"));
        let mut waiter = bench.raw();
        let wait = request(json!({ "verb": "wait", "id": "latest" }));
        waiter.write_all(wait.as_bytes()).unwrap();
        // One thread serves both: who is answered now came later.
        clients(&dir, None)[0].list().unwrap();
        call(&dir, None, "-", |id| Ask::Resume { id }).unwrap();
        let statuses = run.finish().statuses().to_vec();
        assert_eq!(statuses, [Status::Interrupted, Status::Completed], "{isolation:?}");
        let mut line = String::new();
        BufReader::new(waiter).read_line(&mut line).unwrap();
        let end = &serde_json::from_str::<Value>(&line).unwrap()["ok"];
        assert_eq!(
            (&end["end"]["all_completed"], &end["end"]["verified_empty"]),
            (&json!(false), &json!(true))
        );

        let mut events = Vec::new();
        let end = loop {
            match feed.client.watched().unwrap() {
                Watched::Event(event) => events.push(event),
                Watched::Lost(count) => panic!("{count} lost"),
                Watched::End(end) => break end,
            }
        };
        assert_eq!(end["reason"], "ended");
        let completes = events.iter().filter(|event| event["event"] == "subagent.complete").count();
        assert_eq!(completes, 2, "{events:?}");
        assert!(events.iter().any(|event| event["text"] == "left"), "{events:?}");
    }
}

#[test]
fn c21_with_a_session_only_its_runs_exist_on_the_socket() {
    let bench = bench(Isolation::Thread, Settings::default());
    let ops = [text("up"), Op::AwaitInterrupt];
    let batch = bench.delegator.batch([script(ops, End::Interrupted).task("t")]).session("chat-1");
    let mut run = batch.start().unwrap();
    until_text(&mut run, "up");
    let (dir, id) = (bench.sockets(), run.id().to_string());
    let stop = |id| Ask::Stop { id, now: true };
    assert!(clients(&dir, Some("chat-2"))[0].list().unwrap().is_empty());
    assert_eq!(call(&dir, Some("chat-2"), &id, stop).unwrap_err().code(), "not_found");
    call(&dir, Some("chat-1"), &id, stop).unwrap();
    assert_eq!(run.finish().statuses(), [Status::Interrupted]);
}

/// Whatever they send, or do not, the run goes on and others are served.
#[test]
fn a_hostile_client_holds_up_nobody() {
    for isolation in BOTH {
        let bench = bench(isolation, Settings::default());
        let open = bench.file("open");
        // Much to tell for one that never reads.
        let chatty = (0..200).map(|_| text(&"x".repeat(60_000)));
        let ops = [text("up"), Op::AwaitFile(open.clone())].into_iter().chain(chatty);
        let mut run =
            bench.delegator.batch([script(ops, answer("done")).task("t")]).start().unwrap();
        until_text(&mut run, "up");
        let id = run.id().to_string();
        let mut held = Vec::new();
        // Watches, and never reads.
        let mut deaf = bench.raw();
        deaf.write_all(request(json!({ "verb": "watch", "id": id })).as_bytes()).unwrap();
        let mut answer = BufReader::new(deaf);
        let mut hello = String::new();
        answer.read_line(&mut hello).unwrap();
        assert!(hello.contains("ok"), "{hello}");
        // Half a line, and nothing more.
        let mut half = bench.raw();
        half.write_all(b"{\"schema\":").unwrap();
        held.push(half);
        // Says nothing at all.
        held.push(bench.raw());
        // Garbage is answered, and the line goes on.
        let mut garbage = bench.raw();
        garbage.write_all(b"\xff\xfe garbage\n{}\n[[[[\n").unwrap();
        garbage.write_all(request(json!({ "verb": "list" })).as_bytes()).unwrap();
        let lines: Vec<Value> = BufReader::new(garbage.try_clone().unwrap())
            .lines()
            .take(4)
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let codes: Vec<_> = lines.iter().map(|line| line["error"]["code"].as_str()).collect();
        assert_eq!(codes, [Some("bad_request"), Some("version"), Some("bad_request"), None]);
        // A line without an end is not kept.
        let mut endless = bench.raw();
        let block = vec![b'x'; 64 * 1024];
        while endless.write_all(&block).is_ok() {}
        // Deep JSON is an error, not a stack overflow.
        let mut deep = bench.raw();
        deep.write_all(format!("{}\n", "[".repeat(200_000)).as_bytes()).unwrap();
        let mut said = String::new();
        BufReader::new(deep).read_line(&mut said).unwrap();
        assert!(said.contains("bad_request"), "{said}");
        // So many that the last are turned away; they are told so, or find the door shut.
        let crowd: Vec<_> = (0..60).map(|_| bench.raw()).collect();
        let mut last = String::new();
        drop(BufReader::new(crowd.last().unwrap()).read_line(&mut last));
        assert!(last.is_empty() || last.contains("busy"), "{last}");
        drop(crowd);

        fs::write(&open, "").unwrap();
        let statuses = run.finish().statuses().to_vec();
        assert_eq!(statuses, [Status::Completed], "{isolation:?}");
        // And there is room again for who behaves.
        let ops = [text("up"), Op::AwaitInterrupt];
        let mut run =
            bench.delegator.batch([script(ops, End::Interrupted).task("t")]).start().unwrap();
        until_text(&mut run, "up");
        wait_for("a place for a client", || {
            let listed = clients(&bench.sockets(), None).first_mut()?.list().ok()?;
            (listed.len() == 1).then_some(())
        });
        drop((held, run));
        // It was told what there was room for, how much there was more, and the end.
        let mut last = Vec::new();
        for line in answer.lines() {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let end = line["end"].is_object();
            last.push(line);
            if end {
                break;
            }
        }
        assert!(last.iter().any(|line| line["lost"].as_u64() > Some(0)), "{isolation:?}");
        assert_eq!(last.last().unwrap()["end"]["reason"], "ended", "{isolation:?}");
    }
}

/// The negative control of the socket: without it nobody listens, and everything else goes on.
#[test]
fn a_delegator_can_do_without_a_socket_and_one_that_cannot_listen_runs_on() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = dir.path().join("sockets");
    let build = |listens: bool, at: &Path| {
        blocking::Delegator::builder()
            .isolation(Isolation::Thread)
            .state_dir(dir.path().join("state"))
            .control_dir(at)
            .control_socket(listens)
            .build()
            .unwrap()
    };
    let run = |delegator: blocking::Delegator| {
        let report = delegator.batch([script([], answer("done")).task("t")]).run().unwrap();
        assert_eq!(report.statuses(), [Status::Completed]);
        delegator
    };
    run(build(false, &sockets));
    assert!(!sockets.exists());
    run(build(true, &dir.path().join("no/such/place")));
    let delegator = run(build(true, &sockets));
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 1);
    drop(delegator);
    wait_for("its socket to be gone", || {
        (fs::read_dir(&sockets).unwrap().count() == 0).then_some(())
    });
}
