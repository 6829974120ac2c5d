//! The batch machine against a world that answers in any order.

use super::*;
use delegate_protocol::message::Verdict;
use ownership::{Emptied, ExitStatus};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    start: Duration::from_secs(60),
    run: None,
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
    assert_eq!(launches(&monitor.step(Event::Room(true), Duration::ZERO)), [0]);
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

#[derive(Debug, Clone)]
enum Act {
    Child(u8, u8),
    CancelAll(u8),
    Cancel(u8, u8),
    Room(bool),
    Pause,
    Resume,
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (any::<u8>(), 0_u8..9).prop_map(|(child, input)| Act::Child(child, input)),
        1 => (0_u8..3).prop_map(Act::CancelAll),
        1 => (any::<u8>(), 0_u8..3).prop_map(|(child, reason)| Act::Cancel(child, reason)),
        1 => any::<bool>().prop_map(Act::Room),
        1 => Just(Act::Pause),
        1 => Just(Act::Resume),
        2 => Just(Act::Tick),
    ]
}

fn reason(number: u8) -> CancelReason {
    [CancelReason::Interrupt, CancelReason::Timeout, CancelReason::Kill][number as usize % 3]
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
