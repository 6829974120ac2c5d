//! Helpers that a tree of children shares (`shared_helpers`) over both executors: one process for all, ended with
//! the program that delegates, told when it ends by itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};

use delegate_runtime::config::Settings;
use delegate_runtime::{Isolation, Session, Status, Task};
use serde_json::{Value, json};

use crate::agents::{Op, answer, script};
use crate::support::{BOTH, Identity, Rig, command, helper, rig_with, wait_for};

/// Greets, asks, and gives the answer as JSON: what an MCP client does.
pub fn speak(session: &Session, name: &str, method: &str, params: &str) -> io::Result<String> {
    let stream = session.helper(name)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut ask = |id: u32, method: &str, params: Value| {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (&stream).write_all(format!("{line}\n").as_bytes())?;
        let answer = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        Ok::<Value, io::Error>(serde_json::from_str(&answer)?)
    };
    let hello = ask(1, "initialize", json!({}))?;
    let said = match method {
        "initialize" => hello,
        _ if hello.get("error").is_some() => hello,
        _ => ask(2, method, serde_json::from_str(params)?)?,
    };
    Ok(said.to_string())
}

/// Says `method` and then asks for 80 MiB of echoes without reading one; gives the end as JSON.
pub fn flood(session: &Session, name: &str, method: &str) -> io::Result<String> {
    let mut stream = session.helper(name)?;
    let mut ask = |id: u32, method: &str, params: Value| {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        stream.write_all(format!("{line}\n").as_bytes())
    };
    ask(1, "initialize", json!({}))?;
    let written = ask(2, method, json!(0))
        .and_then(|()| (3..83).try_for_each(|id| ask(id, "echo", json!("e".repeat(1 << 20)))));
    // Where nothing was refused, the end of the server is told.
    let told = BufReader::new(&stream).lines().map_while(Result::ok);
    let error = told.filter(|line| line.contains("error")).find(|line| line.contains("ended"));
    Ok(json!({"written": written.is_ok(), "told": error}).to_string())
}

struct Bench {
    rig: Rig,
    starts: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn bench(isolation: Isolation) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let words = vec![helper("mcp"), starts.to_str().unwrap().to_owned()];
    let helpers = BTreeMap::from([("docs".to_owned(), words)]);
    let settings = Settings { shared_helpers: helpers, ..Settings::default() };
    Bench { rig: rig_with(isolation, settings), starts, _dir: dir }
}

impl Bench {
    /// Processes of each start: the server, and what it has started; `None` for one that is gone.
    fn started(&self) -> Vec<[Option<Identity>; 2]> {
        let text = fs::read_to_string(&self.starts).unwrap_or_default();
        let pids = |line: &str| {
            let mut pids = line.split(' ').map(|pid| Identity::of(pid.parse().unwrap()));
            [pids.next().unwrap(), pids.next().unwrap()]
        };
        text.lines().map(pids).collect()
    }
}

fn ask(method: &str, params: &str) -> Op {
    Op::Helper("docs".to_owned(), method.to_owned(), params.to_owned())
}

fn said(rig: &Rig, ops: Vec<Op>) -> (Status, Vec<Value>) {
    let mut run = rig.delegator.batch([script(ops, answer("done")).task("t")]).start().unwrap();
    let texts: Vec<String> = run
        .events()
        .filter_map(|event| match event {
            delegate_runtime::Event::Text { text, .. } => Some(text),
            _ => None,
        })
        .collect();
    let report = run.finish();
    let texts = texts.concat();
    let values = serde_json::Deserializer::from_str(&texts).into_iter().map(Result::unwrap);
    (report.results().next().unwrap().status, values.collect())
}

#[test]
fn one_helper_serves_all_children_and_each_gets_its_own_answers() {
    for isolation in BOTH {
        let bench = bench(isolation);
        let task = |number: u32| {
            let ops = [ask("echo", &json!({"child": number}).to_string()), ask("initialize", "{}")];
            script(ops, answer("done")).task(format!("t{number}"))
        };
        let mut run = bench.rig.delegator.batch((0..8).map(task)).start().unwrap();
        let mut said: BTreeMap<u32, String> = BTreeMap::new();
        for event in run.events() {
            if let delegate_runtime::Event::Text { child, text } = event {
                said.entry(child.task_index()).or_default().push_str(&text);
            }
        }
        let report = run.finish();
        assert!(report.results().all(|outcome| outcome.status == Status::Completed), "{report:?}");
        let [[Some(server), Some(below)]] = bench.started()[..] else {
            panic!("{:?}", bench.started())
        };
        for (index, text) in said {
            let values: Vec<Value> =
                serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
            assert_eq!(values[0]["result"], json!({"child": index}), "{isolation:?}");
            assert_eq!(values[1]["result"], json!({"pid": server.pid, "greetings": 1}));
        }
        // It outlives its children, and ends with the program that delegates.
        assert!(server.is_alive() && below.is_alive(), "{isolation:?}");
        let other = self::bench(isolation);
        self::said(&other.rig, vec![ask("echo", "1")]);
        drop(bench);
        wait_for("the helper to end", || (!server.is_alive() && !below.is_alive()).then_some(()));
        assert!(other.started()[0].iter().flatten().count() == 2, "another's");
    }
}

#[test]
fn a_helper_that_ends_is_told_and_the_next_request_starts_it_again() {
    for isolation in BOTH {
        let bench = bench(isolation);
        let (status, values) = said(&bench.rig, vec![ask("crash", "{}"), ask("echo", "7")]);
        assert_eq!(status, Status::Completed, "{values:?}");
        let text = values[0]["error"]["message"].as_str().unwrap();
        assert!(text.contains("exit code 3") && text.contains("out of ideas"), "{text}");
        assert_eq!(values[1]["result"], 7, "{isolation:?}");
        let started = bench.started();
        assert_eq!(started.len(), 2);
        assert!(started[0][0].is_none_or(|first| !first.is_alive()), "{started:?}");
        assert!(started[1].iter().flatten().count() == 2, "{started:?}");
        wait_for("what the first one left to end", || {
            started[0][1].is_none_or(|left| !left.is_alive()).then_some(())
        });
    }
}

/// Nobody makes us keep without end what he does not read, and nobody else is the worse for it.
#[test]
fn a_client_that_does_not_read_is_cut_off_and_a_server_that_does_not_is_ended() {
    for isolation in BOTH {
        let bench = bench(isolation);
        let flood = |method: &str| Op::FloodHelper("docs".to_owned(), method.to_owned());
        let (_, values) = said(&bench.rig, vec![flood("echo"), ask("echo", "7")]);
        assert_eq!(values[0], json!({"written": false, "told": null}), "{isolation:?}");
        assert_eq!((&values[1]["result"], bench.started().len()), (&json!(7), 1));
        let (_, values) = said(&bench.rig, vec![flood("deaf"), ask("echo", "8")]);
        let told = values[0]["told"].as_str().unwrap_or_else(|| panic!("{:?}", values[0]));
        assert!(told.contains("does not read"), "{told}");
        assert_eq!((&values[1]["result"], bench.started().len()), (&json!(8), 2));
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    for isolation in BOTH {
        let bench = bench(isolation);
        let nope = Op::Helper("nope".to_owned(), "echo".to_owned(), "1".to_owned());
        let (outcomes, _) =
            crate::support::run(&bench.rig, [script([nope], answer("never")).task("t")]);
        let error = outcomes[0].error.as_deref().unwrap();
        assert!(error.contains("`nope`") && error.contains("docs"), "{error}");
        let plain = rig_with(isolation, Settings::default());
        let (outcomes, _) =
            crate::support::run(&plain, [script([ask("echo", "1")], answer("never")).task("t")]);
        assert!(outcomes[0].error.as_deref().unwrap().contains("shared_helpers"));
        assert!(bench.started().is_empty(), "nobody wanted it");
    }
}

#[test]
fn a_helper_that_cannot_be_started_says_why() {
    let words = vec!["/no/such/server".to_owned()];
    let helpers = BTreeMap::from([("docs".to_owned(), words)]);
    let settings = Settings { shared_helpers: helpers, ..Settings::default() };
    let rig = rig_with(Isolation::Process, settings);
    let (_, values) = said(&rig, vec![ask("echo", "1")]);
    let text = values[0]["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("/no/such/server"), "{values:?}");
}

/// Programs of a child reach it by the command, whose place a client's configuration names.
#[test]
fn a_program_of_a_child_is_told_the_address() {
    for isolation in BOTH {
        let bench = bench(isolation);
        let show = command("g", ["sh", "-c", "test -S \"$DELEGATE_HELPERS\" && echo there"]);
        let (outcomes, _) = crate::support::run(&bench.rig, [show]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("there"), "{isolation:?} {outcomes:?}");
        let plain = rig_with(isolation, Settings::default());
        let show: Task = command("g", ["sh", "-c", "echo \"<${DELEGATE_HELPERS-none}>\""]);
        let (outcomes, _) = crate::support::run(&plain, [show]);
        assert_eq!(outcomes[0].summary.as_deref(), Some("<none>"), "{isolation:?}");
    }
}
