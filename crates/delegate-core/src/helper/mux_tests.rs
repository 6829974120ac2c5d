//! Tests of the multiplexer: every way of a message, and ends in between.

use super::*;
use serde_json::Value;

const NOW: Duration = Duration::from_secs(1000);

/// A multiplexer with what it has put out since the last look.
struct Bench {
    mux: Mux,
    now: Duration,
}

impl Bench {
    fn new() -> Self {
        Self { mux: Mux::new("docs"), now: NOW }
    }

    /// With clients that have greeted, and a server that has answered.
    fn ready(clients: u64) -> Self {
        let mut bench = Self::new();
        for client in 1..=clients {
            bench.join(client);
        }
        bench
    }

    fn join(&mut self, client: Client) {
        self.step(Input::Joined(client));
        let out = self.say(client, json!({"id": "hi", "method": "initialize", "params": {"v": 1}}));
        if let Some((_, greeting)) = served(&out).first().map(|line| ((), line.clone())) {
            self.serve(json!({"id": greeting["id"], "result": {"server": "s"}}));
        }
    }

    fn step(&mut self, input: Input<'_>) -> Vec<Output> {
        self.mux.step(input, self.now)
    }

    fn say(&mut self, client: Client, line: Value) -> Vec<Output> {
        self.step(Input::Said(client, line.to_string().as_bytes()))
    }

    fn serve(&mut self, line: Value) -> Vec<Output> {
        self.step(Input::Served(line.to_string().as_bytes()))
    }
}

fn json_of(line: &[u8]) -> Value {
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(line).unwrap()
}

fn served(out: &[Output]) -> Vec<Value> {
    let of = |out: &Output| match out {
        Output::Serve(line) => Some(json_of(line)),
        Output::Start | Output::Tell(..) => None,
    };
    out.iter().filter_map(of).collect()
}

fn told(out: &[Output]) -> Vec<(Client, Value)> {
    let of = |out: &Output| match out {
        Output::Tell(client, line) => Some((*client, json_of(line))),
        Output::Start | Output::Serve(_) => None,
    };
    out.iter().filter_map(of).collect()
}

fn starts(out: &[Output]) -> usize {
    out.iter().filter(|out| **out == Output::Start).count()
}

#[test]
fn the_server_is_started_and_greeted_once_and_everybody_gets_the_answer() {
    let mut bench = Bench::new();
    for client in 1..=2 {
        assert_eq!(bench.step(Input::Joined(client)), []);
    }
    let out = bench.say(1, json!({"id": "a", "method": "initialize", "params": {"v": 1}}));
    assert_eq!(starts(&out), 1);
    let greeting = served(&out).remove(0);
    assert_eq!(greeting["params"], json!({"v": 1}));
    // A second one meanwhile waits, and a request behind a greeting waits too.
    assert_eq!(bench.say(2, json!({"id": 7, "method": "initialize", "params": {}})), []);
    assert_eq!(bench.say(2, json!({"id": 8, "method": "tools/list"})), []);
    let out = bench.serve(json!({"id": greeting["id"], "result": {"name": "s"}}));
    let answers = told(&out);
    assert_eq!(answers[0], (1, json!({"id": "a", "result": {"name": "s"}})));
    assert_eq!(answers[1], (2, json!({"id": 7, "result": {"name": "s"}})));
    let lines = served(&out);
    assert_eq!(lines[0]["method"], "notifications/initialized");
    assert_eq!(lines[1]["method"], "tools/list");
    // Its own word that it is initialized is not said again, and a third one is answered at once.
    assert_eq!(bench.say(1, json!({"method": "notifications/initialized"})), []);
    bench.step(Input::Joined(3));
    let out = bench.say(3, json!({"id": 1, "method": "initialize", "params": {}}));
    assert_eq!(told(&out), [(3, json!({"id": 1, "result": {"name": "s"}}))]);
    assert_eq!((starts(&out), served(&out).len()), (0, 0));
}

#[test]
fn answers_find_their_clients_whatever_the_ids_and_the_order() {
    let mut bench = Bench::ready(2);
    let first = served(&bench.say(1, json!({"id": 5, "method": "m", "params": [1]}))).remove(0);
    let second = served(&bench.say(2, json!({"id": 5, "method": "m", "params": [2]}))).remove(0);
    assert_ne!(first["id"], second["id"]);
    let out = bench.serve(json!({"id": second["id"], "result": 2}));
    assert_eq!(told(&out), [(2, json!({"id": 5, "result": 2}))]);
    let out = bench.serve(json!({"id": first["id"], "error": {"code": 1}}));
    assert_eq!(told(&out), [(1, json!({"id": 5, "error": {"code": 1}}))]);
    // Said twice, it is nobody's.
    assert_eq!(bench.serve(json!({"id": first["id"], "result": 1})), []);
    assert_eq!(bench.serve(json!({"id": "strange", "result": 1})), []);
}

#[test]
fn progress_and_cancellation_name_the_right_request() {
    let mut bench = Bench::ready(2);
    let params = json!({"_meta": {"progressToken": "p"}, "x": 1});
    let mut sent = Vec::new();
    for client in 1..=2 {
        let out = bench.say(client, json!({"id": 1, "method": "m", "params": params}));
        sent.push(served(&out).remove(0));
    }
    let token = |line: &Value| line["params"]["_meta"]["progressToken"].clone();
    assert_ne!(token(&sent[0]), token(&sent[1]));
    let out = bench.serve(json!({"method": "notifications/progress",
        "params": {"progressToken": token(&sent[1]), "progress": 3}}));
    let wanted = json!({"method": "notifications/progress",
        "params": {"progressToken": "p", "progress": 3}});
    assert_eq!(told(&out), [(2, wanted)]);
    let cancel = json!({"method": "notifications/cancelled", "params": {"requestId": 1}});
    let out = bench.say(1, cancel.clone());
    assert_eq!(served(&out)[0]["params"]["requestId"], sent[0]["id"]);
    bench.serve(json!({"id": sent[1]["id"], "result": 0}));
    assert_eq!(bench.say(2, cancel), [], "what was answered is not cancelled");
    let stray = json!({"method": "notifications/progress", "params": {"progressToken": 99}});
    assert_eq!(bench.serve(stray), []);
}

#[test]
fn a_notification_of_the_server_reaches_all_that_have_greeted() {
    let mut bench = Bench::ready(2);
    bench.step(Input::Joined(3));
    let changed = json!({"method": "notifications/tools/list_changed"});
    let out = bench.serve(changed.clone());
    assert_eq!(told(&out), [(1, changed.clone()), (2, changed)]);
}

#[test]
fn the_server_can_ask_the_one_client_that_waits_and_no_other() {
    let mut bench = Bench::ready(2);
    let ask = json!({"id": "s1", "method": "sampling/createMessage", "params": {}});
    assert_eq!(served(&bench.serve(ask.clone()))[0]["error"]["code"], rpc::NO_METHOD);
    bench.say(1, json!({"id": 1, "method": "m"}));
    assert_eq!(told(&bench.serve(ask.clone())), [(1, ask.clone())]);
    let answer = json!({"id": "s1", "result": {"text": "x"}});
    assert_eq!(bench.say(2, answer.clone()), [], "it was not asked");
    assert_eq!(served(&bench.say(1, answer.clone()))[0], answer);
    assert_eq!(bench.say(1, answer), [], "it has answered");
    bench.say(2, json!({"id": 1, "method": "m"}));
    let text = served(&bench.serve(ask)).remove(0)["error"]["message"].to_string();
    assert!(text.contains("2 clients"), "{text}");
    let pong = served(&bench.serve(json!({"id": 4, "method": "ping"})));
    assert_eq!(pong, [json!({"jsonrpc": "2.0", "id": 4, "result": {}})]);
}

#[test]
fn a_client_that_leaves_takes_its_requests_along() {
    let mut bench = Bench::ready(2);
    let sent = served(&bench.say(1, json!({"id": 1, "method": "slow"}))).remove(0);
    let ask = json!({"id": "s", "method": "roots/list"});
    bench.serve(ask);
    let lines = served(&bench.step(Input::Left(1)));
    assert_eq!(lines[0]["method"], "notifications/cancelled");
    assert_eq!(lines[0]["params"]["requestId"], sent["id"]);
    assert_eq!(lines[1]["id"], "s", "the server does not wait for it either");
    assert_eq!(bench.serve(json!({"id": sent["id"], "result": 1})), []);
    let sent = served(&bench.say(2, json!({"id": 1, "method": "m"}))).remove(0);
    assert_eq!(told(&bench.serve(json!({"id": sent["id"], "result": 1}))).len(), 1);
}

#[test]
fn who_waits_is_told_of_the_end_and_the_next_request_starts_another_that_is_greeted() {
    let mut bench = Bench::ready(2);
    bench.say(1, json!({"id": 1, "method": "m"}));
    let out = bench.step(Input::Ended("exit code 3"));
    assert_eq!((starts(&out), told(&out).len()), (0, 1));
    let text = told(&out)[0].1["error"]["message"].to_string();
    assert!(text.contains("docs") && text.contains("exit code 3"), "{text}");
    let out = bench.say(2, json!({"id": 2, "method": "again"}));
    assert_eq!(starts(&out), 1);
    let greeting = served(&out).remove(0);
    assert_eq!(
        (&greeting["method"], &greeting["params"]),
        (&json!("initialize"), &json!({"v": 1}))
    );
    let out = bench.serve(json!({"id": greeting["id"], "result": {}}));
    assert_eq!(served(&out)[1]["method"], "again");
    assert!(told(&out).is_empty(), "nobody greeted this time");
}

#[test]
fn one_that_keeps_ending_is_given_up_for_a_while_and_says_so() {
    let mut bench = Bench::ready(1);
    let mut started = 1;
    for _ in 0..10 {
        bench.step(Input::Ended("signal 9"));
        let out = bench.say(1, json!({"id": 1, "method": "m"}));
        started += starts(&out);
        if starts(&out) == 0 {
            let text = told(&out)[0].1["error"]["message"].to_string();
            assert!(text.contains("4 times within 60 s"), "{text}");
        }
    }
    assert_eq!(started, STARTS);
    bench.now += WINDOW;
    assert_eq!(starts(&bench.say(1, json!({"id": 1, "method": "m"}))), 1);
}

#[test]
fn a_greeting_that_is_refused_is_the_clients_own_and_the_next_one_is_tried() {
    let mut bench = Bench::new();
    for client in 1..=2 {
        bench.step(Input::Joined(client));
    }
    let hello = |id: u64| json!({"id": id, "method": "initialize", "params": {"v": id}});
    let first = served(&bench.say(1, hello(1))).remove(0);
    bench.say(1, json!({"id": 2, "method": "m"}));
    let out = bench.serve(json!({"id": first["id"], "error": {"code": 5}}));
    assert_eq!(told(&out)[0], (1, json!({"id": 1, "error": {"code": 5}})));
    assert_eq!(told(&out)[1].1["id"], 2, "what waited behind it is answered, too");
    let out = bench.say(2, hello(9));
    assert_eq!((starts(&out), &served(&out)[0]["params"]), (0, &json!({"v": 9})));
}

#[test]
fn nonsense_is_answered_and_changes_nothing() {
    let mut bench = Bench::ready(1);
    for (line, code) in [
        (&b"{"[..], Some(rpc::PARSE)),
        (b"[{\"id\":1}]", Some(rpc::PARSE)),
        (b"{\"id\":1,\"method\":7}", Some(rpc::INVALID)),
        (b"  ", None),
        (b"{}", None),
    ] {
        let out = bench.step(Input::Said(1, line));
        let codes: Vec<_> = told(&out).iter().map(|(_, v)| v["error"]["code"].clone()).collect();
        assert_eq!(codes, Vec::from_iter(code.map(|code| json!(code))), "{line:?}");
        assert!(served(&out).is_empty());
    }
    assert_eq!(bench.step(Input::Served(b"starting up...")), []);
    bench.step(Input::Joined(2));
    let out = bench.say(2, json!({"id": 1, "method": "early"}));
    assert_eq!(told(&out)[0].1["error"]["code"], rpc::INVALID);
}

#[test]
fn a_client_has_a_bounded_number_of_requests() {
    let mut bench = Bench::ready(2);
    for id in 0..OPEN {
        assert_eq!(served(&bench.say(1, json!({"id": id, "method": "m"}))).len(), 1);
    }
    let out = bench.say(1, json!({"id": "more", "method": "m"}));
    assert_eq!(told(&out)[0].1["error"]["code"], rpc::HELPER);
    assert_eq!(served(&bench.say(2, json!({"id": 1, "method": "m"}))).len(), 1, "nobody else's");
}

mod orders {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever happens in whatever order: each request is answered at most once, to the one that asked it,
        /// and, once the server has ended, exactly once for each client that is still there.
        #[test]
        fn each_request_is_answered_once(events in prop::collection::vec((0..6u8, 1..4u64), 0..120)) {
            let mut bench = Bench::new();
            let mut open: Vec<(Client, String)> = Vec::new();
            let mut sent: Vec<Value> = Vec::new();
            let mut here: Vec<Client> = Vec::new();
            let mut next = 0;
            let ended = events.iter().copied().chain([(5, 0)]);
            for (kind, client) in ended {
                let out = match kind {
                    0 if !here.contains(&client) => {
                        here.push(client);
                        bench.step(Input::Joined(client));
                        next += 1;
                        open.push((client, format!("i{next}")));
                        bench.say(client, json!({"id": format!("i{next}"), "method": "initialize"}))
                    }
                    1 | 2 if here.contains(&client) => {
                        next += 1;
                        open.push((client, format!("r{next}")));
                        bench.say(client, json!({"id": format!("r{next}"), "method": "m"}))
                    }
                    3 if !sent.is_empty() => {
                        let id = sent.remove(usize::try_from(client).unwrap() % sent.len());
                        bench.serve(json!({"id": id, "result": 0}))
                    }
                    4 if here.contains(&client) => {
                        here.retain(|other| *other != client);
                        open.retain(|(other, _)| *other != client);
                        bench.step(Input::Left(client))
                    }
                    5 => {
                        sent.clear();
                        bench.step(Input::Ended("it"))
                    }
                    _ => Vec::new(),
                };
                for line in served(&out) {
                    if line.get("id").is_some() {
                        sent.push(line["id"].clone());
                    }
                }
                for (client, line) in told(&out) {
                    let id = line["id"].as_str().unwrap().to_owned();
                    let place = open.iter().position(|one| *one == (client, id.clone()));
                    prop_assert!(place.is_some(), "{client} {id} was not open");
                    open.remove(place.unwrap());
                }
            }
            prop_assert_eq!(open, Vec::new());
        }
    }
}
