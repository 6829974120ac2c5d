//! The batch machine against a world that answers in any order.

use super::*;
use crate::config::OnStale;
use delegate_protocol::message::Verdict;
use ownership::{Emptied, ExitStatus};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    start: Duration::from_secs(60),
    run: None,
    patience: Patience {
        heartbeat: Duration::from_secs(30),
        touches: true,
        inactivity: Some(Duration::from_secs(40)),
        stale_idle: Duration::from_secs(450),
        stale_in_tool: Duration::from_secs(1200),
        on_stale: OnStale::Interrupt,
    },
    interrupt_grace: Duration::from_secs(10),
    terminate_grace: Duration::from_secs(3),
};

fn monitor(tasks: u32, places: u32) -> Monitor {
    Monitor::new(tasks, places, Isolation::Process, vec![LIMITS])
}

fn launches(effects: &[Effect]) -> Vec<u32> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Launch(index) => Some(*index),
            Effect::Child(..) => None,
        })
        .collect()
}

/// Everything that a child does between its launch and its outcome.
fn complete(monitor: &mut Monitor, index: u32) -> Vec<Effect> {
    let inputs = [
        Input::Launched { pid: Some(1) },
        Input::Hello,
        Input::Finish(Verdict::Completed),
        Input::Exited(ExitStatus::Code(0)),
        Input::LineClosed,
        Input::StreamEnded,
        Input::Emptied(Emptied::default()),
        Input::Recorded(true),
    ];
    inputs
        .into_iter()
        .flat_map(|input| monitor.step(Event::Child(index, input), Duration::ZERO))
        .collect()
}

#[test]
fn tasks_wait_in_order_for_a_place() {
    let mut monitor = monitor(5, 2);
    assert_eq!(launches(&monitor.step(Event::Tick, Duration::ZERO)), [0, 1]);
    assert_eq!(launches(&complete(&mut monitor, 1)), [2]);
    assert_eq!(launches(&complete(&mut monitor, 0)), [3]);
    assert_eq!(launches(&complete(&mut monitor, 2)), [4]);
    assert!(launches(&complete(&mut monitor, 3)).is_empty());
    assert!(!monitor.is_done());
    complete(&mut monitor, 4);
    assert!(monitor.is_done());
}

#[test]
fn nothing_is_launched_while_the_consumer_does_not_keep_up() {
    let mut monitor = monitor(2, 1);
    assert!(launches(&monitor.step(Event::Room(false), Duration::ZERO)).is_empty());
    assert!(!monitor.waits_at_a_cap(), "it waits for its consumer");
    assert_eq!(launches(&monitor.step(Event::Room(true), Duration::ZERO)), [0]);
    assert!(monitor.waits_at_a_cap());
    let _effects = monitor.step(Event::Launches(false), Duration::ZERO);
    assert!(!monitor.waits_at_a_cap(), "it waits until launches go on");
    let _effects = monitor.step(Event::Launches(true), Duration::ZERO);
    let _effects = monitor.step(Event::CancelAll(CancelReason::Interrupt), Duration::ZERO);
    assert!(!monitor.waits_at_a_cap(), "it waits for its end");
}

#[test]
fn nothing_is_launched_and_nothing_times_out_while_paused() {
    let mut monitor = monitor(2, 1);
    let _effects = monitor.step(Event::Tick, Duration::ZERO);
    let _effects = monitor.step(Event::Child(0, Input::Launched { pid: None }), Duration::ZERO);
    let _effects = monitor.step(Event::Pause, Duration::from_secs(10));
    assert_eq!(monitor.next_deadline(), None);
    assert_eq!(monitor.step(Event::Tick, Duration::from_secs(1000)), []);
    assert_eq!(monitor.step(Event::Resume, Duration::from_secs(1000)), []);
    assert_eq!(monitor.next_deadline(), Some(Duration::from_secs(60 + 990)));
}

#[test]
fn a_stopped_batch_launches_nothing_more_and_settles_its_line_through_the_places() {
    let mut monitor = monitor(5, 2);
    let _effects = monitor.step(Event::Tick, Duration::ZERO);
    let effects = monitor.step(Event::CancelAll(CancelReason::Interrupt), Duration::ZERO);
    assert!(launches(&effects).is_empty());
    let effects = complete(&mut monitor, 0);
    assert!(effects.contains(&Effect::Child(2, Order::Settle)), "{effects:?}");
    assert!(!effects.contains(&Effect::Child(3, Order::Settle)), "{effects:?}");
}

#[test]
fn one_waiting_task_can_be_stopped_out_of_turn() {
    let mut monitor = monitor(3, 1);
    let _effects = monitor.step(Event::Tick, Duration::ZERO);
    let effects = monitor.step(Event::Cancel(2, CancelReason::Interrupt), Duration::ZERO);
    assert_eq!(effects, [Effect::Child(2, Order::Settle)]);
    assert_eq!(monitor.facts(2).unwrap().cancel, Some(CancelReason::Interrupt));
    let _effects = monitor.step(Event::Child(2, Input::Recorded(true)), Duration::ZERO);
    assert_eq!(launches(&complete(&mut monitor, 0)), [1]);
    assert!(launches(&complete(&mut monitor, 1)).is_empty());
    assert!(monitor.is_done());
}

#[test]
fn a_task_that_waits_gets_its_extension_with_its_start() {
    let limits = Limits { run: Some(Duration::from_secs(5)), ..LIMITS };
    let mut monitor = Monitor::new(2, 1, Isolation::Process, vec![limits]);
    let _effects = monitor.step(Event::Tick, Duration::ZERO);
    let _effects = monitor.step(Event::Extend(1, Duration::from_secs(7)), Duration::ZERO);
    complete(&mut monitor, 0);
    let _effects = monitor.step(Event::Child(1, Input::Launched { pid: None }), Duration::ZERO);
    let _effects = monitor.step(Event::Child(1, Input::Hello), Duration::ZERO);
    assert_eq!(monitor.due(Duration::from_secs(11)).count(), 0);
    assert_eq!(monitor.due(Duration::from_secs(12)).collect::<Vec<_>>(), [1]);
}

#[test]
fn one_child_is_held_alone_and_one_that_is_stopped_is_not_held() {
    let mut monitor = monitor(2, 2);
    let _effects = monitor.step(Event::Tick, Duration::ZERO);
    for index in [0, 1] {
        let launched = Event::Child(index, Input::Launched { pid: None });
        let _effects = monitor.step(launched, Duration::ZERO);
    }
    let held = monitor.step(Event::Hold(0, true), Duration::ZERO);
    assert_eq!(held, [Effect::Child(0, Order::Stop)]);
    assert_eq!(monitor.due(Duration::from_secs(60)).collect::<Vec<_>>(), [1]);
    let free = monitor.step(Event::Hold(0, false), Duration::from_secs(100));
    assert_eq!(free, [Effect::Child(0, Order::Continue)]);
    assert_eq!(monitor.due(Duration::from_secs(159)).collect::<Vec<_>>(), [1]);
    let _effects = monitor.step(Event::Cancel(0, CancelReason::Interrupt), Duration::from_secs(1));
    assert_eq!(monitor.step(Event::Hold(0, true), Duration::from_secs(1)), []);
}

#[derive(Debug, Clone)]
enum Act {
    Child(u8, u8),
    CancelAll(u8),
    Cancel(u8, u8),
    Room(bool),
    Pause,
    Resume,
    Hold(u8, bool),
    Extend(u8),
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (any::<u8>(), 0_u8..11).prop_map(|(child, input)| Act::Child(child, input)),
        1 => (0_u8..4).prop_map(Act::CancelAll),
        1 => (any::<u8>(), 0_u8..4).prop_map(|(child, reason)| Act::Cancel(child, reason)),
        1 => any::<bool>().prop_map(Act::Room),
        1 => Just(Act::Pause),
        1 => Just(Act::Resume),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(child, held)| Act::Hold(child, held)),
        1 => any::<u8>().prop_map(Act::Extend),
        2 => Just(Act::Tick),
    ]
}

fn reason(number: u8) -> CancelReason {
    [CancelReason::Interrupt, CancelReason::Stale, CancelReason::Timeout, CancelReason::Kill]
        [number as usize % 4]
}

fn input(number: u8) -> Input {
    match number {
        0 => Input::Launched { pid: Some(1) },
        1 => Input::LaunchFailed,
        2 => Input::Hello,
        3 => Input::Violation("garbage".to_owned()),
        4 => Input::Finish(Verdict::Completed),
        5 => Input::StreamEnded,
        6 => Input::Exited(ExitStatus::Code(1)),
        7 => Input::Emptied(Emptied::default()),
        8 => Input::Diagnosed,
        9 => Input::Activity(Activity { marks: 1, ..Activity::NONE }),
        _ => Input::Lost,
    }
}

proptest! {
    #[test]
    fn every_task_is_announced_exactly_once(
        tasks in 1_u32..8,
        places in 1_u32..4,
        acts in prop::collection::vec(act(), 0..80),
    ) {
        let mut monitor = monitor(tasks, places);
        let mut announced = vec![0_u32; tasks as usize];
        let mut launched = vec![0_u32; tasks as usize];
        let mut to_record = Vec::new();
        let mut now = Duration::ZERO;
        let mut run = |monitor: &mut Monitor, event: Event, now: Duration| {
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                for effect in monitor.step(event, now) {
                    match effect {
                        Effect::Launch(index) => launched[index as usize] += 1,
                        Effect::Child(index, Order::Settle) => to_record.push(index),
                        Effect::Child(index, Order::Announce) => announced[index as usize] += 1,
                        Effect::Child(..) => {}
                    }
                }
                events.extend(to_record.drain(..).map(|i| Event::Child(i, Input::Recorded(true))));
            }
            assert!(monitor.active().count() <= (places + tasks) as usize);
            let deadline = |index| Some((monitor.child(index)?.next_deadline()?, index));
            let by_look: std::collections::BTreeSet<_> =
                monitor.active().filter_map(deadline).collect();
            assert_eq!(monitor.due_at, by_look, "what is noted is what a look at all finds");
        };
        for act in acts {
            now += Duration::from_secs(1);
            let event = match act {
                Act::Child(child, number) => Event::Child(u32::from(child) % tasks, input(number)),
                Act::CancelAll(number) => Event::CancelAll(reason(number)),
                Act::Cancel(child, number) => {
                    Event::Cancel(u32::from(child) % tasks, reason(number))
                }
                Act::Room(room) => Event::Room(room),
                Act::Pause => Event::Pause,
                Act::Resume => Event::Resume,
                Act::Hold(child, held) => Event::Hold(u32::from(child) % tasks, held),
                Act::Extend(child) => {
                    Event::Extend(u32::from(child) % tasks, Duration::from_secs(5))
                }
                Act::Tick => Event::Tick,
            };
            run(&mut monitor, event, now);
        }
        // What the world owes a batch in the end.
        run(&mut monitor, Event::Resume, now);
        run(&mut monitor, Event::Room(true), now);
        run(&mut monitor, Event::CancelAll(CancelReason::Kill), now);
        for _ in 0..=tasks {
            for index in 0..tasks {
                run(&mut monitor, Event::Child(index, Input::Launched { pid: Some(1) }), now);
            }
            while let Some(deadline) = monitor.next_deadline() {
                now = now.max(deadline);
                run(&mut monitor, Event::Tick, now);
            }
        }
        prop_assert!(monitor.is_done());
        prop_assert!(announced.iter().all(|times| *times == 1), "{:?}", announced);
        prop_assert!(launched.iter().all(|times| *times <= 1), "{:?}", launched);
    }
}
