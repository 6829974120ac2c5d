//! Every state of a session against every event, the restart policy, and any order of events.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn policy() -> Policy {
    Policy {
        max_restarts: 2,
        window: at(100),
        turn_timeout: Some(at(60)),
        idle_timeout: Some(at(300)),
        max_turns: None,
        grace: at(10),
    }
}

const GONE: Event = Event::Gone(Parting::Lost);
const HOPELESS: Event = Event::Gone(Parting::Hopeless);
const LEFT: Event = Event::Gone(Parting::BetweenTurns);

fn after(policy: Policy, events: &[Event]) -> Machine {
    let mut machine = Machine::new(policy);
    for event in events {
        machine.step(*event, at(0));
    }
    machine
}

/// Every kind of state, as the events that lead to it.
const STATES: [(&str, &[Event]); 8] = [
    ("starting", &[]),
    ("waits", &[Event::Asked]),
    ("works", &[Event::Asked, Event::Prompted(1)]),
    ("works, one in line", &[Event::Asked, Event::Prompted(1), Event::Prompted(2)]),
    ("told the end", &[Event::Asked, Event::Prompted(1), Event::Over(1)]),
    ("stopping a turn", &[Event::Asked, Event::Prompted(1), Event::StopTurn(1)]),
    ("leaves", &[Event::Asked, Event::Close]),
    ("over", &[Event::Asked, Event::Close, GONE]),
];

#[test]
fn every_state_against_every_event() {
    use Effect::{EndWorker, Give, Launch, Lose, NoMore, Over, Refuse, Settle, StopTurn, TakeBack};
    let asked = Some(Stop::Asked);
    let table: [(Event, [Vec<Effect>; 8]); 10] = [
        (
            Event::Prompted(9),
            [
                vec![],
                vec![Give(9)],
                vec![],
                vec![],
                vec![],
                vec![],
                vec![Refuse(9)],
                vec![Refuse(9)],
            ],
        ),
        (
            Event::Asked,
            [
                vec![],
                vec![],
                vec![EndWorker],
                vec![EndWorker],
                vec![],
                vec![EndWorker],
                vec![],
                vec![],
            ],
        ),
        (
            Event::Over(1),
            [
                vec![],
                vec![],
                vec![Settle(1, None)],
                vec![Settle(1, None)],
                vec![],
                vec![Settle(1, asked)],
                vec![],
                vec![],
            ],
        ),
        (
            GONE,
            [
                vec![Launch],
                vec![Launch],
                vec![Lose(1, None), Launch],
                vec![Lose(1, None), Launch],
                vec![Launch],
                vec![Lose(1, asked), Launch],
                vec![Over(Why::Closed)],
                vec![],
            ],
        ),
        (
            LEFT,
            [
                vec![Launch],
                vec![Launch],
                vec![TakeBack(1), Launch],
                vec![TakeBack(1), Launch],
                vec![Launch],
                vec![Lose(1, asked), Launch],
                vec![Over(Why::Closed)],
                vec![],
            ],
        ),
        (
            HOPELESS,
            [
                vec![Over(Why::TakesNoTurns)],
                vec![Over(Why::TakesNoTurns)],
                vec![Lose(1, None), Over(Why::TakesNoTurns)],
                vec![Lose(1, None), Refuse(2), Over(Why::TakesNoTurns)],
                vec![Over(Why::TakesNoTurns)],
                vec![Lose(1, asked), Over(Why::TakesNoTurns)],
                vec![Over(Why::TakesNoTurns)],
                vec![],
            ],
        ),
        (
            Event::StopTurn(1),
            [vec![], vec![], vec![StopTurn(1)], vec![StopTurn(1)], vec![], vec![], vec![], vec![]],
        ),
        (Event::Close, [vec![], vec![NoMore], vec![], vec![], vec![], vec![], vec![], vec![]]),
        (
            Event::Stop,
            [
                vec![EndWorker],
                vec![NoMore],
                vec![EndWorker],
                vec![Refuse(2), EndWorker],
                vec![EndWorker],
                vec![EndWorker],
                vec![EndWorker],
                vec![],
            ],
        ),
        (Event::Tick, [vec![], vec![], vec![], vec![], vec![], vec![], vec![], vec![]]),
    ];
    for (event, wanted) in table {
        for ((name, way), want) in STATES.into_iter().zip(wanted) {
            let got = after(policy(), way).step(event, SECOND);
            assert_eq!(got, want, "{name} × {event:?}");
        }
    }
}

#[test]
fn a_turn_that_is_stopped_ends_its_worker_after_the_grace_and_no_sooner() {
    let mut machine = after(policy(), &[Event::Asked, Event::Prompted(1), Event::StopTurn(1)]);
    assert_eq!(machine.next_deadline(), Some(at(10)));
    assert_eq!(machine.step(Event::Tick, at(9)), []);
    assert_eq!(machine.step(Event::Tick, at(10)), [Effect::EndWorker]);
    assert_eq!((machine.step(Event::Tick, at(500)), machine.next_deadline()), (vec![], None));
    let lost = [Effect::Lose(1, Some(Stop::Asked)), Effect::Launch];
    assert_eq!(machine.step(GONE, at(501)), lost);
}

#[test]
fn a_limit_of_a_turn_counts_from_its_begin_and_is_the_stronger_reason() {
    let mut machine = Machine::new(policy());
    machine.step(Event::Prompted(1), at(0));
    machine.step(Event::Prompted(2), at(0));
    assert_eq!(machine.step(Event::Asked, at(50)), [Effect::Give(1)]);
    assert_eq!(machine.step(Event::Over(1), at(55)), [Effect::Settle(1, None)]);
    assert_eq!(machine.step(Event::Asked, at(58)), [Effect::Give(2)]);
    assert_eq!(machine.next_deadline(), Some(at(118)));
    machine.step(Event::StopTurn(2), at(112));
    assert_eq!(machine.next_deadline(), Some(at(118)));
    assert_eq!(machine.step(Event::Tick, at(118)), [Effect::StopTurn(2)]);
    // The grace has begun with the stop.
    assert_eq!(machine.next_deadline(), Some(at(122)));
    let settled = [Effect::Settle(2, Some(Stop::Timeout))];
    assert_eq!(machine.step(Event::Over(2), at(119)), settled);
    assert_eq!(machine.step(Event::Tick, at(200)), []);
}

#[test]
fn an_idle_session_ends_and_a_turn_starts_the_limit_again() {
    let mut machine = after(policy(), &[Event::Asked]);
    assert_eq!(machine.step(Event::Tick, at(299)), []);
    machine.step(Event::Prompted(1), at(299));
    machine.step(Event::Over(1), at(310));
    machine.step(Event::Asked, at(311));
    assert_eq!(machine.next_deadline(), Some(at(611)));
    assert_eq!(machine.step(Event::Tick, at(611)), [Effect::NoMore]);
    assert_eq!(machine.step(Event::Prompted(2), at(611)), [Effect::Refuse(2)]);
    assert_eq!(machine.step(GONE, at(612)), [Effect::Over(Why::Idle)]);
}

#[test]
fn no_more_turns_begin_than_may_and_the_rest_is_refused() {
    let policy = Policy { max_turns: Some(2), ..policy() };
    let prompts = [1, 2, 3].map(Event::Prompted);
    let mut machine = after(policy, &prompts);
    assert_eq!(machine.step(Event::Asked, at(1)), [Effect::Give(1)]);
    machine.step(Event::Over(1), at(2));
    assert_eq!(machine.step(Event::Asked, at(2)), [Effect::Give(2)]);
    machine.step(Event::Over(2), at(3));
    assert_eq!(machine.step(Event::Asked, at(3)), [Effect::Refuse(3), Effect::NoMore]);
    assert_eq!(machine.step(GONE, at(4)), [Effect::Over(Why::MaxTurns)]);
}

#[test]
fn a_close_lets_what_waits_be_done_also_by_another_worker() {
    let way = [Event::Asked, Event::Prompted(1), Event::Prompted(2), Event::Close];
    let mut machine = after(policy(), &way);
    assert_eq!(machine.step(GONE, at(1)), [Effect::Lose(1, None), Effect::Launch]);
    assert_eq!(machine.step(Event::Asked, at(2)), [Effect::Give(2)]);
    assert_eq!(machine.step(Event::Over(2), at(3)), [Effect::Settle(2, None)]);
    assert_eq!(machine.step(Event::Asked, at(3)), [Effect::NoMore]);
    assert_eq!(machine.step(GONE, at(4)), [Effect::Over(Why::Closed)]);
}

#[test]
fn it_gives_up_when_workers_are_lost_too_often_within_the_window() {
    let mut machine = after(policy(), &[Event::Prompted(1)]);
    assert_eq!(machine.step(GONE, at(0)), [Effect::Launch]);
    assert_eq!(machine.step(GONE, at(50)), [Effect::Launch]);
    assert_eq!(machine.step(GONE, at(100)), [Effect::Launch], "the first is out of the window");
    let given_up = [Effect::Refuse(1), Effect::Over(Why::GaveUp)];
    assert_eq!((machine.step(GONE, at(149)), machine.restarts()), (given_up.to_vec(), 3));
    let never = Policy { max_restarts: 0, ..policy() };
    assert_eq!(Machine::new(never).step(GONE, at(0)), [Effect::Over(Why::GaveUp)]);
}

#[test]
fn what_was_not_begun_is_the_first_in_line_again_as_if_it_had_not_been_given() {
    let policy = Policy { max_turns: Some(1), ..policy() };
    let way = [Event::Asked, Event::Prompted(1), Event::Prompted(2), LEFT];
    let mut machine = after(policy, &way);
    assert_eq!(machine.step(Event::Asked, at(1)), [Effect::Give(1)], "it is no second turn");
    assert_eq!(machine.next_deadline(), Some(at(61)), "its time begins anew");
    machine.step(LEFT, at(2));
    let given_up = [Effect::TakeBack(1), Effect::Refuse(1), Effect::Refuse(2)];
    machine.step(Event::Asked, at(3));
    let last = machine.step(LEFT, at(4));
    assert_eq!(last[..3], given_up, "and a worker that never begins one counts as lost");
    assert_eq!(last[3..], [Effect::Over(Why::GaveUp)]);
}

#[test]
fn of_the_reasons_to_end_the_strongest_is_told() {
    let way = [Event::Asked, Event::Prompted(1), Event::Close, Event::Stop, Event::Close];
    let ended = after(policy(), &way).step(GONE, at(1));
    assert_eq!(ended, [Effect::Lose(1, Some(Stop::Asked)), Effect::Over(Why::Stopped)]);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Asked),
        4 => (1_u64..9).prop_map(Event::Over),
        2 => Just(GONE),
        1 => Just(HOPELESS),
        2 => Just(LEFT),
        2 => (1_u64..9).prop_map(Event::StopTurn),
        1 => Just(Event::Close),
        1 => Just(Event::Stop),
        3 => Just(Event::Tick),
    ]
}

proptest! {
    /// Whatever comes in whatever order: each prompt is settled, lost or refused exactly once, is begun at most
    /// once, and no worker is started behind the end.
    #[test]
    fn every_prompt_has_one_end_in_any_order(
        steps in prop::collection::vec((prop::option::of(any_event()), 0_u64..40), 0..120),
    ) {
        let mut machine = Machine::new(policy());
        let (mut now, mut last, mut over) = (at(0), 0, false);
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        let closing = [Event::Stop, GONE, GONE];
        let steps = steps.into_iter().chain(closing.map(|event| (Some(event), 1)));
        for (event, seconds) in steps {
            now += at(seconds);
            let event = event.unwrap_or_else(|| {
                last += 1;
                Event::Prompted(last)
            });
            for effect in machine.step(event, now) {
                prop_assert!(!over || matches!(effect, Effect::Refuse(_)), "{effect:?}");
                match effect {
                    Effect::Give(number) => begun.push(number),
                    Effect::Settle(number, _) | Effect::Lose(number, _) => {
                        prop_assert!(begun.contains(&number));
                        ended.push(number);
                    }
                    Effect::Refuse(number) => {
                        prop_assert!(!begun.contains(&number));
                        ended.push(number);
                    }
                    Effect::TakeBack(number) => {
                        prop_assert_eq!(begun.pop(), Some(number));
                    }
                    Effect::Over(_) => over = true,
                    Effect::Launch
                    | Effect::NoMore
                    | Effect::StopTurn(_)
                    | Effect::EndWorker => {}
                }
            }
        }
        prop_assert!(over);
        let mut once = begun.clone();
        once.dedup();
        prop_assert_eq!(once, begun);
        ended.sort_unstable();
        prop_assert_eq!(ended, (1..=last).collect::<Vec<_>>());
    }
}
