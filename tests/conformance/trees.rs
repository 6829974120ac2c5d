//! Trees (contract 9.1, matrix 11.14, RB-53): children that delegate, over both executors. What counts across
//! levels is the root's: slots, budgets, stops, events, outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use delegate_protocol::Tokens;
use delegate_runtime::config::Settings;
use delegate_runtime::control::Operator;
use delegate_runtime::{
    Agent, AskError, Event, Failure, Identity, Isolation, ManualClock, Outcome, Relayed, Session,
    Status, SubagentId, Task, blocking,
};
use serde::{Deserialize, Serialize};

use crate::seen::essence_of;
use crate::support::{BOTH, LIMIT, Rig, as_asked, rig_with, wait_for};

/// What a member of a tree does, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Do {
    Text(String),
    /// Says role, depth, parent, and whether it may delegate.
    Who,
    /// A model call of so many tokens for so many dollars.
    Spend(u64, f64),
    Await(String),
    Touch(String),
    /// Waits until it is asked to stop.
    UntilStopped,
    /// Its silence means nothing.
    NoChannel,
    /// Counts itself in a folder for a moment, and says how many are there.
    Meet(String),
    /// Delegates, waits, and says how each ended.
    Delegate(Vec<Knot>),
    /// The same, and says the events.
    Watch(Vec<Knot>),
    /// The same with the arguments of a model's call, as JSON.
    Call(String),
    /// Starts children, waits for the first text of one, and lets go of them.
    Drop(Vec<Knot>),
    /// Starts children, waits for the first text of one, and is done without them.
    Leave(Vec<Knot>),
    /// Starts children, waits for the first text, asks them to stop, and says how each ended.
    Stop(Vec<Knot>),
}

/// A member of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knot {
    pub goal: String,
    pub does: Vec<Do>,
    pub answer: String,
}

impl Knot {
    pub fn task(self) -> Task {
        Task::of::<Knots>(self.goal.clone(), self)
    }
}

pub fn knot(goal: &str, does: impl IntoIterator<Item = Do>) -> Knot {
    let (goal, does) = (goal.to_owned(), does.into_iter().collect());
    Knot { answer: format!("{goal} done"), goal, does }
}

pub struct Knots;

impl Agent for Knots {
    const NAME: &'static str = "knot";
    type Params = Knot;
    type Answer = String;

    fn run(&mut self, knot: Knot, session: &mut Session) -> Result<String, Failure> {
        for act in knot.does {
            play(act, session)?;
        }
        Ok(knot.answer)
    }
}

fn play(act: Do, session: &mut Session) -> Result<(), Failure> {
    match act {
        Do::Text(text) => session.text(&text),
        Do::Who => {
            let spec = session.spec();
            let parent = spec.parent_subagent_id.is_some();
            let who = (spec.role, spec.child_depth, parent, session.may_delegate());
            let tools = session.spec().enabled_toolsets.clone();
            session.text(&format!("{who:?} {tools:?}"));
        }
        Do::Spend(input, usd) => session.api_call(Tokens { input, output: 0 }, Some(usd)),
        Do::Await(path) => {
            while !Path::new(&path).exists() {
                session.checkpoint()?;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Do::Touch(path) => fs::write(path, "")?,
        Do::UntilStopped => {
            session.text("up");
            while !session.is_interrupted() {
                std::thread::sleep(Duration::from_millis(2));
            }
            return Err(Failure::Interrupted);
        }
        Do::NoChannel => session.reports(false),
        Do::Meet(folder) => {
            let me = Path::new(&folder).join(session.spec().subagent_id.to_string());
            fs::write(&me, "")?;
            std::thread::sleep(Duration::from_millis(20));
            let count = fs::read_dir(&folder)?.count();
            fs::remove_file(&me)?;
            session.text(&format!("{count} here"));
        }
        Do::Delegate(below) => {
            let told = session.delegate(below.into_iter().map(Knot::task));
            say(told, session)?;
        }
        Do::Watch(below) => {
            let mut delegation = session.delegation(below.into_iter().map(Knot::task))?;
            while let Some(event) = delegation.next_event()? {
                session.text(&format!("<{} {}>", event.name(), event.child().task_index()));
            }
            let told = delegation.finish();
            say(told, session)?;
        }
        Do::Call(arguments) => {
            let told = session.delegate_call(serde_json::from_str(&arguments)?, Knots::NAME);
            say(told, session)?;
        }
        Do::Drop(below) => drop(started(below, session)?),
        Do::Leave(below) => std::mem::forget(started(below, session)?),
        Do::Stop(below) => {
            let mut delegation = started(below, session)?;
            delegation.interrupt();
            let told = delegation.finish();
            say(told, session)?;
        }
    }
    Ok(())
}

fn started(below: Vec<Knot>, session: &mut Session) -> Result<delegate_child::Delegation, Failure> {
    let mut delegation = session.delegation(below.into_iter().map(Knot::task))?;
    loop {
        match delegation.next_event()? {
            Some(Event::Text { .. }) => return Ok(delegation),
            Some(_) => {}
            None => return Err(Failure::new("no text came")),
        }
    }
}

fn say(told: Result<Vec<Outcome>, AskError>, session: &mut Session) -> Result<(), Failure> {
    match told {
        Ok(outcomes) => {
            for outcome in outcomes {
                let said = outcome.summary.clone().or_else(|| outcome.error.clone());
                let said = said.unwrap_or_default();
                session.text(&format!("[{} {said}]", outcome.status.word()));
            }
            Ok(())
        }
        Err(AskError::Refused(reason)) => {
            session.text(&format!("refused: {reason}"));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn settings(depth: u32) -> Settings {
    Settings { max_spawn_depth: depth, ..Settings::default() }
}

fn text(text: &str) -> Do {
    Do::Text(text.to_owned())
}

/// Everything of one batch: relayed events and outcomes.
struct Tree {
    events: Vec<Relayed>,
    outcomes: Vec<Outcome>,
}

fn grow(rig: &Rig, tasks: impl IntoIterator<Item = Knot>) -> Tree {
    let mut run = rig.delegator.batch(tasks.into_iter().map(Knot::task)).start().unwrap();
    let events = run.relayed().collect();
    let report = run.finish();
    assert!(report.verified_empty(), "{:?}", report.warnings());
    Tree { events, outcomes: report.results().collect() }
}

impl Tree {
    /// What the child with this goal has streamed.
    fn said(&self, goal: &str) -> String {
        let texts = self.events.iter().filter(|relayed| relayed.identity.goal == goal);
        texts
            .filter_map(|relayed| match &relayed.event {
                Event::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    fn names(&self, goal: &str) -> Vec<&'static str> {
        let of = self.events.iter().filter(|relayed| relayed.identity.goal == goal);
        let names = of.map(|relayed| relayed.event.name());
        names.filter(|name| *name != "subagent.text").collect()
    }

    fn identity(&self, goal: &str) -> &Identity {
        &self.events.iter().find(|relayed| relayed.identity.goal == goal).unwrap().identity
    }
}

#[test]
fn m134_a_parent_an_orchestrator_and_two_leaves() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let leaves = [knot("leaf-0", [Do::Who]), knot("leaf-1", [Do::Who])];
        let tree = grow(&rig, [knot("chief", [Do::Who, Do::Delegate(leaves.into())])]);
        let chief = tree.said("chief");
        assert!(chief.starts_with("(Orchestrator, 1, false, true)"), "{isolation:?} {chief}");
        assert!(chief.ends_with("[completed leaf-0 done][completed leaf-1 done]"), "{chief}");
        let order = ["subagent.spawn_requested", "subagent.start", "subagent.complete"];
        for leaf in ["leaf-0", "leaf-1"] {
            let said = tree.said(leaf);
            assert!(said.starts_with("(Leaf, 2, true, false)"), "{isolation:?} {said}");
            // Exactly one complete, at the end, and the lineage beside every event.
            assert_eq!(tree.names(leaf), order, "{isolation:?}");
            let identity = tree.identity(leaf);
            let above = &tree.identity("chief").subagent_id;
            assert_eq!((identity.depth, identity.parent_id.as_ref()), (2, Some(above)));
        }
        // The batch of a child is over before the child is.
        let ends = tree.events.iter().filter(|relayed| relayed.event.name() == order[2]);
        let last = ends.map(|relayed| relayed.identity.depth).collect::<Vec<_>>();
        assert_eq!(last, [2, 2, 1], "{isolation:?}");
        // Outcomes of grandchildren are kept as the others, and where their processes ran.
        let run = tree.identity("leaf-1").run_id.expect("another run");
        let outcome = rig.delegator.store().outcome(run, 1).unwrap();
        assert_eq!(outcome.summary.as_deref(), Some("leaf-1 done"));
        assert_eq!(outcome.pid.is_some(), isolation == Isolation::Process);
        let subtree = tree.outcomes[0].subtree.clone().unwrap();
        assert_eq!((subtree.runs, subtree.children), (vec![run], 2));
    }
}

#[test]
fn the_same_tree_is_the_same_in_both_executors() {
    let trees = BOTH.map(|isolation| {
        let rig = rig_with(isolation, settings(3));
        let deep = knot("deep", [Do::Who, Do::Spend(5, 0.5)]);
        let mid = knot("mid", [Do::Watch(vec![deep]), Do::Spend(7, 0.25)]);
        grow(&rig, [knot("top", [Do::Who, Do::Delegate(vec![mid])])])
    });
    let [thread, process] = &trees;
    for goal in ["top", "mid", "deep"] {
        assert_eq!(thread.names(goal), process.names(goal), "{goal}");
        assert_eq!(thread.said(goal), process.said(goal), "{goal}");
    }
    let essence = |tree: &Tree| {
        let mut essence = essence_of(&tree.outcomes[0]);
        essence["subtree"]["runs"].take();
        essence
    };
    assert_eq!(essence(thread), essence(process));
}

/// The one that delegates sees what its own children do, and theirs, when it asks for it.
#[test]
fn an_orchestrator_sees_the_events_below_it_and_only_those() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(3));
        let deep = knot("deep", []);
        let mid = knot("mid", [Do::Delegate(vec![deep])]);
        let other = knot("other", [Do::Delegate(vec![knot("beside", [])])]);
        let tree = grow(&rig, [knot("top", [Do::Watch(vec![mid])]), other]);
        let said = tree.said("top");
        let (mid, rest) = said.split_once("[").unwrap();
        assert_eq!(rest, "completed mid done]");
        let names = ["spawn_requested", "start", "complete"].map(|n| format!("<subagent.{n} 0>"));
        let [requested, start, complete] = &names;
        let text = "<subagent.text 0>";
        assert_eq!(
            mid,
            format!("{requested}{start}{requested}{start}{complete}{text}{complete}"),
            "{isolation:?}"
        );
    }
}

/// Whoever waits at a cap is told where it stands, and told again when that has changed; who has a place is not.
#[test]
fn a_task_that_waits_at_a_cap_is_told_its_position_and_each_change() {
    for isolation in BOTH {
        let two = Settings { max_concurrent_children: 2, ..settings(1) };
        let rig = rig_with(isolation, two);
        let file = |number: u32| rig.state.path().join(number.to_string());
        let member = |number: u32| {
            let open = Do::Await(file(number).to_str().unwrap().to_owned());
            knot(&format!("number {number}"), [open])
        };
        let mut run =
            rig.delegator.batch((0..5).map(|number| member(number).task())).start().unwrap();
        let mut told = BTreeMap::<u32, Vec<u32>>::new();
        let mut started = BTreeSet::new();
        let mut see = |event: &Event| {
            let task = event.child().task_index();
            match event {
                Event::Waiting { position, .. } => {
                    assert!(!started.contains(&task), "{isolation:?}: {task} runs");
                    told.entry(task).or_default().push(*position);
                }
                Event::Start { .. } => drop(started.insert(task)),
                _ => {}
            }
            told.clone()
        };
        let mut until = |what: BTreeMap<u32, Vec<u32>>| {
            while see(&run.events().next().expect("it is told")) != what {}
        };
        until([(2, vec![1]), (3, vec![2]), (4, vec![3])].into());
        fs::write(file(1), "").unwrap();
        until([(2, vec![1]), (3, vec![2, 1]), (4, vec![3, 2])].into());
        (0..5).for_each(|number| fs::write(file(number), "").unwrap());
        for event in run.events() {
            for positions in see(&event).values() {
                assert!(positions.windows(2).all(|two| two[0] > two[1]), "{positions:?}");
            }
        }
        assert_eq!(run.finish().results().count(), 5);
    }
}

/// The same at the cap of a tree, on every level: the root hears of it, and the one that asked.
#[test]
fn a_grandchild_that_waits_for_a_slot_of_the_tree_is_told_with_its_lineage() {
    for isolation in BOTH {
        let tree = Settings { max_tree_children: Some(2), ..settings(2) };
        let rig = rig_with(isolation, tree);
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let wait = |goal: &str| knot(goal, [Do::Await(open.clone())]);
        let chief = knot("chief", [Do::Watch(vec![wait("first"), wait("second")])]);
        let tasks = [wait("holder"), chief].map(Knot::task);
        let mut run = rig.delegator.batch(tasks).start().unwrap();
        let is = |told: &Relayed| matches!(told.event, Event::Waiting { .. });
        let waiting = run.relayed().find(|told| is(told) && told.identity.goal == "second");
        let waiting = waiting.expect("it is told");
        let Identity { goal, depth, .. } = waiting.identity;
        assert_eq!((goal.as_str(), depth), ("second", 2), "{isolation:?}");
        fs::write(&open, "").unwrap();
        let rest: String = run
            .events()
            .filter_map(|event| match event {
                Event::Text { text, .. } => Some(text),
                _ => None,
            })
            .collect();
        let place = rest.find("<subagent.waiting 1>").expect("the one that asked is told");
        assert!(rest[place..].contains("<subagent.start 1>"), "{isolation:?} {rest}");
        drop(run.finish());
    }
}

/// RB-53: every door is tried at the cap, and nothing that a child says opens one.
#[test]
fn rb_53_m026_a_child_at_the_depth_of_the_cap_is_refused_at_every_door() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(1));
        let below = || vec![knot("below", [])];
        let call = r#"{"tasks": [{"goal": "a goal that is long enough"}]}"#.to_owned();
        let doors = [Do::Delegate(below()), Do::Call(call)];
        let tree = grow(&rig, [knot("leaf", doors), knot("watcher", [Do::Watch(below())])]);
        let both =
            "an agent at depth 1 may not delegate, max_spawn_depth is 1; nothing was started";
        assert_eq!(tree.said("leaf"), format!("refused: {both}refused: {both}"), "{isolation:?}");
        assert_eq!(tree.outcomes[1].error.as_deref(), Some(both), "{isolation:?}");
        assert!(tree.events.iter().all(|relayed| relayed.identity.depth == 1));
    }
}

#[test]
fn m132_with_the_switch_off_no_child_delegates_whatever_the_depth() {
    for isolation in BOTH {
        let off = Settings { orchestrator_enabled: false, ..settings(9) };
        let rig = rig_with(isolation, off);
        let tree = grow(&rig, [knot("leaf", [Do::Delegate(vec![knot("below", [])])])]);
        let said = tree.said("leaf");
        assert!(
            said.contains("at depth 1 may not delegate, orchestrator_enabled is false"),
            "{said}"
        );
    }
}

#[test]
fn what_is_wrong_with_its_tasks_is_told_to_the_child_as_to_a_program() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let blank = Do::Delegate(vec![knot(" ", [])]);
        let none = Do::Delegate(Vec::new());
        let vague = Do::Call(r#"{"tasks": [{"goal": "todo"}]}"#.to_owned());
        let tree = grow(&rig, [knot("chief", [blank, none, vague])]);
        let said = tree.said("chief");
        for part in ["task 0: the goal is blank", "the batch has no task", "task 0"] {
            assert!(said.contains(part), "{isolation:?} {part}: {said}");
        }
        assert_eq!(said.matches("nothing was started").count(), 3, "{said}");
        assert_eq!(tree.outcomes[0].status, Status::Completed);
    }
}

/// The full tree of the issue: as many orchestrators as slots, each of which waits for a child.
#[test]
fn as_many_orchestrators_as_slots_that_delegate_one_task_each_go_on() {
    for isolation in BOTH {
        for cap in [1, 3] {
            let caps = Settings { max_tree_children: Some(cap), ..settings(3) };
            let rig = rig_with(isolation, caps);
            let folder = rig.state.path().join("here");
            fs::create_dir(&folder).unwrap();
            let meet = || Do::Meet(folder.to_str().unwrap().to_owned());
            let chiefs = (0..cap).map(|number| {
                let deep = knot("deep", [meet()]);
                let mid = knot("mid", [meet(), Do::Delegate(vec![deep]), meet()]);
                knot(&format!("chief {number}"), [meet(), Do::Delegate(vec![mid])])
            });
            let tree = grow(&rig, chiefs);
            assert!(tree.outcomes.iter().all(|outcome| outcome.status == Status::Completed));
            let counts = tree.events.iter().filter_map(|relayed| match &relayed.event {
                Event::Text { text, .. } => text.split(" here").next()?.parse::<u32>().ok(),
                _ => None,
            });
            let counts: Vec<u32> = counts.collect();
            assert!(counts.len() >= cap as usize, "{counts:?}");
            // One that comes back does not wait; nobody is launched above the cap.
            assert!(counts.iter().all(|count| *count <= 2 * cap), "{isolation:?} {counts:?}");
        }
    }
}

/// Children of all levels are counted together: without the tree's cap these would all be there at once.
#[test]
fn no_more_work_at_once_than_the_tree_has_slots() {
    for isolation in BOTH {
        for (cap, at_most) in [(2, 2), (9, 9)] {
            let caps = Settings { max_tree_children: Some(cap), ..settings(2) };
            let rig = rig_with(isolation, caps);
            let folder = rig.state.path().join("here");
            fs::create_dir(&folder).unwrap();
            let meet = || Do::Meet(folder.to_str().unwrap().to_owned());
            let leaves = || (0..4).map(|_| knot("leaf", [meet()])).collect::<Vec<_>>();
            let chiefs = (0..2).map(|_| knot("chief", [Do::Delegate(leaves())]));
            let tree = grow(&rig, chiefs);
            let said = tree.said("leaf");
            let counts: Vec<u32> =
                said.split(" here").filter_map(|count| count.parse().ok()).collect();
            assert_eq!(counts.len(), 8, "{said}");
            assert!(counts.iter().all(|count| *count <= at_most), "{isolation:?} {counts:?}");
        }
    }
}

#[test]
fn a_task_that_waits_for_a_slot_is_in_the_list_with_its_position() {
    for isolation in BOTH {
        let caps = Settings { max_tree_children: Some(1), ..settings(2) };
        let rig = rig_with(isolation, caps);
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let leaf = knot("leaf", [text("up"), Do::Await(open.clone())]);
        let tasks = [
            knot("chief", [Do::Delegate(vec![leaf.clone(), leaf])]).task(),
            knot("late", []).task(),
            knot("later", []).task(),
            knot("last", []).task(),
        ];
        let mut run = rig.delegator.batch(tasks).start().unwrap();
        let control = run.control();
        wait_for("a leaf", || {
            let up = matches!(run.events().next()?, Event::Text { text, .. } if text == "up");
            up.then_some(())
        });
        // The chief goes on for a moment at each event of its child.
        let list = wait_for("the chief waits", || {
            let list = control.list_blocking().unwrap();
            (list.children[0].state == "waiting").then_some(list)
        });
        let line: Vec<_> =
            list.line.iter().map(|task| (task.goal.as_str(), task.position)).collect();
        // Turns: the root's batch had the first one when the chief lent its slot, the leaf the second.
        assert_eq!(line, [("later", 1), ("last", 2)], "{isolation:?}");
        let below = rig.delegator.operator(None).list_blocking();
        let nested = below.iter().find(|run| run.parent_id.is_some()).expect("it is listed");
        assert_eq!(nested.parent_id, Some(list.children[0].child));
        assert_eq!((nested.list.children[0].depth, nested.list.line.len()), (2, 1));
        fs::write(&open, "").unwrap();
        assert!(run.finish().all_completed());
    }
}

/// What is spent on any level is the tree's; what may not start any more is refused with both numbers.
#[test]
fn a_spent_budget_stops_who_spends_and_refuses_who_waits() {
    for isolation in BOTH {
        let tokens = Settings { max_tree_tokens: Some(100), ..settings(2) };
        let dollars = Settings { max_tree_cost_usd: Some(1.0), ..settings(2) };
        for (caps, key, spent) in [
            (tokens, "max_tree_tokens is 100", "has spent 120 tokens"),
            (dollars, "max_tree_cost_usd is $1", "has spent $1.2"),
        ] {
            let one = Settings { max_concurrent_children: 1, ..caps };
            let rig = rig_with(isolation, one);
            let deep = knot("deep", [Do::Spend(60, 0.6)]);
            let greedy = knot("greedy", [Do::Spend(60, 0.6), Do::UntilStopped]);
            let chief = knot("chief", [Do::Delegate(vec![deep])]);
            let tree = grow(&rig, [chief, greedy, knot("late", []), knot("later", [])]);
            let [chief, greedy, late, later] = &tree.outcomes[..] else { panic!() };
            assert_eq!(chief.status, Status::Completed, "{isolation:?} {chief:?}");
            assert_eq!(greedy.status, Status::Interrupted);
            for outcome in [greedy, late, later] {
                let error = outcome.error.as_deref().unwrap();
                assert!(error.contains(key) && error.contains(spent), "{isolation:?} {error}");
            }
            assert_eq!((late.status, late.pid), (Status::Error, None));
        }
    }
}

#[test]
fn what_one_child_may_spend_is_its_own_limit_and_is_reserved() {
    for isolation in BOTH {
        let caps =
            Settings { max_tree_tokens: Some(100), child_max_tokens: Some(50), ..settings(1) };
        let rig = rig_with(isolation, caps);
        let folder = rig.state.path().join("here");
        fs::create_dir(&folder).unwrap();
        let meet = || Do::Meet(folder.to_str().unwrap().to_owned());
        let thrifty = || knot("thrifty", [meet(), Do::Spend(10, 0.0)]);
        let greedy = knot("greedy", [Do::Spend(50, 0.0), Do::UntilStopped]);
        let tree = grow(&rig, [greedy, thrifty(), thrifty(), thrifty(), thrifty()]);
        let error = tree.outcomes[0].error.as_deref().unwrap();
        assert!(error.contains("50 tokens, child_max_tokens is 50"), "{isolation:?} {error}");
        assert!(tree.outcomes[1..].iter().all(|outcome| outcome.status == Status::Completed));
        let said = tree.said("thrifty");
        let counts = said.split(" here").filter_map(|count| count.parse::<u32>().ok());
        // 50 of 100 are reserved for each: two at once, and one while the greedy one runs.
        assert!(counts.max() <= Some(2), "{isolation:?} {said}");
    }
}

/// Contract 3.7: money adds up layer by layer, failed ones too; labels are set where there were none.
#[test]
fn costs_and_tokens_roll_up_layer_by_layer() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(3));
        let deep = knot("deep", [Do::Spend(5, 0.5)]);
        let failed = knot("failed", [Do::Spend(1, 0.25), Do::Call("no JSON".to_owned())]);
        let mid = knot("mid", [Do::Delegate(vec![deep, failed])]);
        let free = knot("free", []);
        let top = knot("top", [Do::Spend(7, 1.0), Do::Delegate(vec![mid, free.clone()])]);
        let tree = grow(&rig, [top, free]);
        let [top, free] = &tree.outcomes[..] else { panic!() };
        let near = |cost: Option<f64>, want: f64| (cost.unwrap() - want).abs() < 1e-9;
        assert!(near(top.cost_usd, 1.75), "{isolation:?} {top:?}");
        let below = top.subtree.as_ref().unwrap();
        assert_eq!((below.children, below.tokens.input, below.api_calls), (4, 6, 2));
        assert!(near(below.cost_usd, 0.75), "{below:?}");
        assert_eq!(top.tokens.input, 7, "its own");
        assert_eq!((free.cost_usd, &free.subtree), (None, &None));
        let of = |goal: &str| {
            let run = tree.identity(goal).run_id.unwrap();
            rig.delegator.store().outcome(run, tree.identity(goal).task_index).unwrap()
        };
        let mid = of("mid");
        assert!(near(mid.cost_usd, 0.75) && mid.cost_status == "estimated", "{mid:?}");
        assert_eq!(of("failed").status, Status::Failed);
    }
}

/// Reads until so many have said that they are up; gives them by goal.
fn until_up(run: &mut blocking::Run, count: usize) -> BTreeMap<String, SubagentId> {
    let mut up = BTreeMap::new();
    let mut relayed = run.relayed();
    while up.len() < count {
        let next = relayed.next().expect("it comes before the end");
        if let Event::Text { child, text } = &next.event
            && text == "up"
        {
            up.insert(next.identity.goal.clone(), *child);
        }
    }
    up
}

/// Until a child is seen waiting for its own. The list is answered after what the run heard before.
fn until_it_waits(operator: &Operator, goal: &str) {
    wait_for("it waits", || {
        let runs = operator.list_blocking();
        let mut all = runs.iter().flat_map(|run| &run.list.children);
        all.any(|child| child.goal == goal && child.state == "waiting").then_some(())
    });
}

fn statuses(run: blocking::Run) -> (BTreeMap<String, Status>, Vec<Outcome>) {
    let mut run = run;
    let mut ends = BTreeMap::new();
    for relayed in run.relayed() {
        if let Event::Complete { end, .. } = relayed.event {
            assert_eq!(ends.insert(relayed.identity.goal, end.status), None, "one complete each");
        }
    }
    let report = run.finish();
    (ends, report.results().collect())
}

/// RB-29: one interrupt at the root is one moment on every level, and not a grace per level.
#[test]
fn rb_29_an_interrupt_of_the_root_reaches_every_level_at_once() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(4));
        let leaf = knot("d", [Do::UntilStopped]);
        let chain = knot("c", [Do::Delegate(vec![leaf])]);
        let chain = knot("b", [Do::Delegate(vec![chain])]);
        let tree = [knot("a", [Do::Delegate(vec![chain])]), knot("e", [Do::UntilStopped])];
        let mut run = rig.delegator.batch(tree.map(Knot::task)).start().unwrap();
        until_up(&mut run, 2);
        let stopped = Instant::now();
        run.control().interrupt();
        let (ends, _) = statuses(run);
        let all = ["a", "b", "c", "d", "e"].map(|goal| (goal.to_owned(), Status::Interrupted));
        assert_eq!(ends, all.into(), "{isolation:?}");
        assert!(stopped.elapsed() < Settings::default().interrupt_grace, "one grace is 10 s");
    }
}

#[test]
fn a_stop_of_one_child_ends_its_subtree_and_no_other() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let one = knot("one", [Do::Delegate(vec![knot("below one", [Do::UntilStopped])])]);
        let waits = [text("up"), Do::Await(open.clone())];
        let two = knot("two", [Do::Delegate(vec![knot("below two", waits)])]);
        let mut run = rig.delegator.batch([one, two].map(Knot::task)).start().unwrap();
        until_up(&mut run, 2);
        let control = run.control();
        let list = control.list_blocking().unwrap();
        control.stop(list.children[0].child);
        let mut ended = BTreeSet::new();
        while ended.len() < 2 {
            let next = run.relayed().next().unwrap();
            if next.event.name() == "subagent.complete" {
                ended.insert(next.identity.goal);
            }
        }
        assert_eq!(ended, ["below one", "one"].map(str::to_owned).into(), "{isolation:?}");
        fs::write(&open, "").unwrap();
        let (ends, outcomes) = statuses(run);
        let all = ["below two", "two"].map(|goal| (goal.to_owned(), Status::Completed));
        assert_eq!(ends, all.into());
        assert_eq!(outcomes[0].status, Status::Interrupted);
    }
}

/// A grandchild can be named from outside like any child: listed, and stopped alone.
#[test]
fn a_grandchild_is_stopped_by_its_id_and_its_parent_is_told() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let below = vec![knot("below", [Do::UntilStopped])];
        let task = knot("chief", [Do::Delegate(below)]).task();
        let mut run = rig.delegator.batch([task]).start().unwrap();
        let up = until_up(&mut run, 1);
        rig.delegator.operator(None).stop(&up["below"].to_string(), false).unwrap();
        let text: String = run
            .events()
            .filter_map(|event| match event {
                Event::Text { text, .. } => Some(text),
                _ => None,
            })
            .collect();
        assert!(text.contains("[interrupted "), "{isolation:?} {text}");
        assert!(run.finish().all_completed());
    }
}

/// What a child does not wait for ends with it, however it goes.
#[test]
fn what_an_orchestrator_lets_go_of_or_leaves_behind_ends() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let below = |goal: &str| vec![knot(goal, [Do::UntilStopped])];
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let tasks = [
            knot("drops", [Do::Drop(below("dropped")), Do::Await(open.clone())]),
            knot("leaves", [Do::Leave(below("left"))]),
            knot("stops", [Do::Stop(below("stopped"))]),
        ];
        let mut run = rig.delegator.batch(tasks.map(Knot::task)).start().unwrap();
        // The first one lives on while what it has dropped ends.
        while !run.relayed().any(|relayed| {
            relayed.event.name() == "subagent.complete" && relayed.identity.goal == "dropped"
        }) {}
        fs::write(&open, "").unwrap();
        let report = run.finish();
        let all: Vec<_> = report.results().collect();
        assert!(all.iter().all(|outcome| outcome.status == Status::Completed), "{all:?}");
        for outcome in &all {
            let run = outcome.subtree.as_ref().unwrap().runs[0];
            let below = rig.delegator.store().outcome(run, 0).unwrap();
            assert_eq!(below.status, Status::Interrupted, "{isolation:?} {outcome:?}");
        }
    }
}

/// The clocks of a child that waits for its own stand still; those of one that does not, run.
#[test]
fn a_child_that_waits_for_its_children_is_not_stale_while_they_live() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let beats = Settings { heartbeat_interval: Duration::from_millis(20), ..settings(2) };
        let delegator = blocking::Delegator::builder()
            .isolation(isolation)
            .settings(as_asked(Settings {
                child_inactivity: Some(Duration::from_secs(300)),
                ..beats
            }))
            .state_dir(state.path())
            .clock(clock.clone())
            .build()
            .unwrap();
        let open = state.path().join("open").to_str().unwrap().to_owned();
        let long = knot("long", [Do::NoChannel, text("up"), Do::Await(open.clone())]);
        let patient = knot("patient", [Do::Delegate(vec![long])]);
        let idle = knot("idle", [Do::UntilStopped]);
        let tasks = [patient, idle].map(Knot::task);
        // The one below has no limit of its own kind here: only its parent's clocks are looked at.
        let tasks = tasks.map(|task| task.timeout(Duration::from_secs(100_000)));
        let mut run = delegator.batch(tasks).start().unwrap();
        let up = until_up(&mut run, 2);
        assert!(up.contains_key("long"), "{up:?}");
        // The one below is given time; nothing is said of its parent.
        let operator = delegator.operator(None);
        operator.extend(&up["long"].to_string(), Duration::from_secs(5000)).unwrap();
        for _ in 0..4 {
            // It goes on for a moment at each event of its child, and the last one may be on its way still.
            until_it_waits(&operator, "patient");
            clock.advance(Duration::from_secs(200));
        }
        let mut ended = None;
        while ended.is_none() {
            let next = run.relayed().next().unwrap();
            if let Event::Complete { end, .. } = next.event {
                ended = Some((next.identity.goal, end.status));
            }
        }
        assert_eq!(ended, Some(("idle".to_owned(), Status::Timeout)), "{isolation:?}");
        fs::write(&open, "").unwrap();
        let (ends, _) = statuses(run);
        let all = ["long", "patient"].map(|goal| (goal.to_owned(), Status::Completed));
        assert_eq!(ends, all.into(), "{isolation:?}");
    }
}

/// Its whole answer reaches the one that delegates, however long, and its typed form.
#[test]
fn a_long_answer_of_a_grandchild_arrives_whole() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let long = Knot { answer: "é".repeat(5 << 20), ..knot("long", []) };
        let tree = grow(&rig, [knot("chief", [Do::Delegate(vec![long])])]);
        let run = tree.identity("long").run_id.unwrap();
        let stored = rig.delegator.store().outcome(run, 0).unwrap();
        assert_eq!(stored.summary.map(|text| text.len()), Some(10 << 20));
        // What it streams of that is cut nowhere but in the queue of a slow consumer.
        let file = tree.outcomes[0].logs.clone().unwrap().join("events.jsonl");
        let said: usize = fs::read_to_string(file)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter_map(|event| Some(event.get("text")?.as_str()?.matches('é').count()))
            .sum();
        assert_eq!(said, 5 << 20, "{isolation:?}");
    }
}

#[test]
fn a_pause_of_the_root_holds_every_level() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let leaves = vec![knot("first", [text("up"), Do::Await(open.clone())]), knot("next", [])];
        let one = Settings { max_concurrent_children: 1, ..settings(2) };
        let rig = Rig { delegator: rig_with(isolation, one).delegator, state: rig.state };
        let task = knot("chief", [Do::Delegate(leaves)]).task();
        let mut run = rig.delegator.batch([task]).start().unwrap();
        until_up(&mut run, 1);
        run.control().pause_launches();
        assert!(run.control().settle(LIMIT));
        fs::write(&open, "").unwrap();
        let first = run.relayed().find(|relayed| relayed.event.name() == "subagent.complete");
        assert_eq!(first.unwrap().identity.goal, "first");
        let below = rig.delegator.operator(None).list_blocking();
        let nested = below.iter().find(|run| run.parent_id.is_some()).unwrap();
        assert!(
            nested.list.launches_paused && nested.list.waiting == 1,
            "{isolation:?} {nested:?}"
        );
        run.control().resume_launches();
        assert!(run.finish().all_completed());
    }
}

/// Ctrl-Z: when it has settled, the processes of every level stand still.
#[test]
fn a_suspended_root_stops_the_processes_of_every_level() {
    let rig = rig_with(Isolation::Process, settings(3));
    let deep = knot("deep", [Do::UntilStopped]);
    let task = knot("top", [Do::Delegate(vec![knot("mid", [Do::Delegate(vec![deep])])])]).task();
    let mut run = rig.delegator.batch([task]).start().unwrap();
    let mut pids = Vec::new();
    while pids.len() < 3 {
        if let Event::Start { pid, .. } = run.events().next().unwrap() {
            pids.extend(pid.and_then(crate::support::Identity::of));
        }
    }
    let control = run.control();
    control.suspend();
    assert!(control.settle(LIMIT));
    for process in &pids {
        wait_for("it stands still", || (process.state() == Some('T')).then_some(()));
    }
    control.resume();
    assert!(control.settle(LIMIT));
    for process in &pids {
        wait_for("it goes on", || (process.state() != Some('T')).then_some(()));
    }
    until_up(&mut run, 1);
    control.interrupt();
    let (ends, _) = statuses(run);
    assert!(ends.values().all(|status| *status == Status::Interrupted) && ends.len() == 3);
}

#[test]
fn a_paused_delegator_refuses_what_a_child_delegates() {
    for isolation in BOTH {
        let rig = rig_with(isolation, settings(2));
        let open = rig.state.path().join("open").to_str().unwrap().to_owned();
        let does = [text("up"), Do::Await(open.clone()), Do::Delegate(vec![knot("below", [])])];
        let mut run = rig.delegator.batch([knot("chief", does).task()]).start().unwrap();
        until_up(&mut run, 1);
        rig.delegator.pause();
        fs::write(&open, "").unwrap();
        let said: String = run
            .events()
            .filter_map(|event| match event {
                Event::Text { text, .. } => Some(text),
                _ => None,
            })
            .collect();
        assert!(said.contains("refused: starting is paused"), "{isolation:?} {said}");
    }
}
