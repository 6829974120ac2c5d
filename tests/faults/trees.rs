//! Kill matrix, trees of children that delegate: with the root every level goes, with an orchestrator all that
//! is below it, and in both cases nobody else.

use std::collections::BTreeMap;

use delegate_runtime::store::Store;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::program::{
    Bystanders, OwnerProgram, TREE, TREE_SIZE, assert_alive, raw, step, wait_gone,
};
use crate::step::Step;
use crate::support::Identity;

/// A grandchild that runs a whole [`TREE`], in the form of a task of the step agent.
fn grown() -> (String, Value) {
    ("command".to_owned(), json!({"argv": ["sh", "-c", TREE]}))
}

fn orchestrator(below: Vec<(String, Value)>) -> Value {
    let below = below
        .into_iter()
        .map(|(agent, params)| (agent, serde_json::from_value(params).expect("a value")));
    serde_json::to_value(Step::Delegate(below.collect())).unwrap()
}

/// What is known of the children of an owner: workers by depth and top task, and members of trees by the worker
/// that runs them.
#[derive(Default)]
struct Grown {
    /// Worker and parent id by child id.
    workers: BTreeMap<String, (Identity, Option<String>)>,
    parents: BTreeMap<String, String>,
    members: BTreeMap<String, Vec<Identity>>,
}

impl Grown {
    /// Reads until so many workers have started, and so many trees are up.
    fn wait(owner: &mut OwnerProgram, workers: usize, trees: usize) -> Self {
        let mut grown = Self::default();
        owner.expect("the whole tree", |line| {
            grown.take(line);
            let up = grown.members.values().filter(|members| members.len() == TREE_SIZE).count();
            (grown.workers.len() == workers && up == trees).then_some(())
        });
        grown
    }

    fn take(&mut self, line: &Value) {
        let child = line["child"].as_str().unwrap_or_default().to_owned();
        if let Some(parent) = line["identity"]["parent_id"].as_str() {
            self.parents.insert(child.clone(), parent.to_owned());
        }
        if line["event"] == "subagent.start"
            && let Some(pid) = line["pid"].as_u64()
        {
            let worker = Identity::of(u32::try_from(pid).unwrap()).expect("it lives");
            self.workers.insert(child.clone(), (worker, self.parents.get(&child).cloned()));
        }
        for line in line["text"].as_str().unwrap_or_default().lines() {
            let pid = line.strip_prefix("tree ").and_then(|rest| rest.split(' ').nth(1));
            let member = pid.and_then(|pid| Identity::of(pid.parse().ok()?));
            self.members.entry(child.clone()).or_default().extend(member);
        }
    }

    /// A child and everything below it.
    fn subtree(&self, top: &str) -> Vec<Identity> {
        let mut all = vec![self.workers[top].0];
        all.extend(self.members.get(top).into_iter().flatten());
        for (child, parent) in &self.parents {
            if parent == top {
                all.extend(self.subtree(child));
            }
        }
        all
    }

    /// Ids of the children of the root, by task.
    fn tops(&self) -> Vec<&str> {
        let mut tops: Vec<&str> = self.workers.keys().map(String::as_str).collect();
        tops.retain(|child| !self.parents.contains_key(*child));
        tops.sort_unstable();
        tops
    }
}

/// Two orchestrators; the first has an orchestrator with a tree below it and a tree of its own.
fn tasks() -> [Value; 2] {
    let mid = ("step".to_owned(), orchestrator(vec![grown()]));
    let first = orchestrator(vec![mid, grown()]);
    let second = orchestrator(vec![grown()]);
    [first, second].map(|params| json!({"agent": "step", "goal": "step", "params": params}))
}

#[test]
fn killed_with_the_root_every_level_is_gone_and_nobody_else() {
    let bystanders = Bystanders::start();
    let mut owner = OwnerProgram::start(&tasks(), &json!({"depth": 3, "grace_seconds": 1}));
    let run = owner.run_id();
    let grown = Grown::wait(&mut owner, 6, 3);
    let all: Vec<Identity> = grown.tops().into_iter().flat_map(|top| grown.subtree(top)).collect();
    assert_eq!(all.len(), 6 + 3 * TREE_SIZE);
    let supervisor = owner.supervisor();
    assert_alive(&all);
    owner.signal(Signal::KILL);
    owner.wait();
    wait_gone(&all);
    wait_gone(&[supervisor]);
    bystanders.assert_untouched();
    // Nobody lives who could have ended it: every level of the run is unknown, and one list has the root.
    let store = Store::open_existing(owner.state.path());
    let runs = store.runs(9).unwrap();
    assert_eq!(runs.iter().map(|run| run.id.to_string()).collect::<Vec<_>>(), [run]);
    assert_eq!((runs[0].status.as_str(), runs[0].above), ("unknown", None));
}

/// The process of the orchestrator alone is killed: the root ends what hangs below it, and tells both ends.
#[test]
fn c52_killed_an_orchestrator_takes_what_is_below_it_and_no_sibling() {
    let bystanders = Bystanders::start();
    let mut owner = OwnerProgram::start(&tasks(), &json!({"depth": 3, "grace_seconds": 1}));
    owner.run_id();
    let grown = Grown::wait(&mut owner, 6, 3);
    let tops = grown.tops();
    let (below, beside) = (grown.subtree(tops[0]), grown.subtree(tops[1]));
    assert_eq!((below.len(), beside.len()), (4 + 2 * TREE_SIZE, 2 + TREE_SIZE));
    kill_process(raw(grown.workers[tops[0]].0), Signal::KILL).unwrap();
    wait_gone(&below);
    assert_alive(&beside);
    let mut ended = BTreeMap::new();
    owner.expect("the ends of that subtree", |line| {
        if line["event"] == "subagent.complete" {
            let child = line["child"].as_str()?.to_owned();
            let status = line["end"]["status"].as_str()?.to_owned();
            assert_eq!(ended.insert(child, status), None, "one complete each");
        }
        (ended.len() == 4).then_some(())
    });
    assert_eq!(ended.remove(tops[0]).as_deref(), Some("error"));
    assert!(ended.values().all(|status| status == "interrupted"), "{ended:?}");
    assert_alive(&beside);
    owner.tell("interrupt");
    let report = owner.report();
    assert_eq!(report["verified_empty"], true, "{report}");
    wait_gone(&beside);
    let [first, second] = [0, 1].map(|task| report["results"][task].clone());
    assert_eq!((&first["status"], &second["status"]), (&json!("error"), &json!("interrupted")));
    assert_eq!(first["subtree"]["children"], 3, "{first}");
    // What its grandchildren came to can be read by whoever looks, with the way to it.
    let store = Store::open_existing(owner.state.path());
    let below = first["subtree"]["runs"][0].as_str().unwrap();
    let record = store.find_run(below).unwrap();
    assert_eq!((record.tasks, record.above.map(|(_, task)| task)), (2, Some(0)));
    let mid = store.outcome(record.id, 0).unwrap();
    assert_eq!(mid.subtree.map(|below| below.children), Some(1));
    bystanders.assert_untouched();
}

/// Without a depth that allows it nothing of this starts: what is killed above is there because of the root.
#[test]
fn at_the_default_depth_an_orchestrator_has_nothing_to_lose() {
    let mut owner = OwnerProgram::start(&[step(&Step::Delegate(Vec::new()))], &json!({}));
    owner.run_id();
    let report = owner.report();
    let error = report["results"][0]["error"].as_str().unwrap();
    assert!(error.contains("max_spawn_depth is 1"), "{report}");
}
