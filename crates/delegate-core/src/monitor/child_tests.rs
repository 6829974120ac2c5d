//! Every phase against every input, and properties over all orders of facts.

use super::*;
use crate::monitor::liveness::{Activity, Patience};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    start: Duration::from_secs(60),
    run: Some(Duration::from_secs(5)),
    patience: Patience {
        heartbeat: Duration::from_secs(30),
        touches: false,
        inactivity: None,
        stale_idle: Duration::from_secs(450),
        stale_in_tool: Duration::from_secs(1200),
        on_stale: OnStale::Interrupt,
    },
    interrupt_grace: Duration::from_secs(10),
    terminate_grace: Duration::from_secs(3),
};
/// A child that has called its model is not looked at before it is stopped.
const ONE_CALL: Activity = Activity { marks: 1, api_calls: 1, ..Activity::NONE };
const OK: ExitStatus = ExitStatus::Code(0);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn inputs() -> Vec<Input> {
    vec![
        Input::Launched { pid: Some(7) },
        Input::LaunchFailed,
        Input::Hello,
        Input::Violation("garbage".to_owned()),
        Input::Finish(Verdict::Completed),
        Input::Finish(Verdict::Interrupted),
        Input::LineClosed,
        Input::StreamEnded,
        Input::Exited(OK),
        Input::Emptied(Emptied::default()),
        Input::Lost,
        Input::Activity(ONE_CALL),
        Input::Diagnosed,
        Input::Extend(at(3)),
        Input::Cancel(CancelReason::Interrupt),
        Input::Cancel(CancelReason::Stale),
        Input::Cancel(CancelReason::Timeout),
        Input::Cancel(CancelReason::Kill),
        Input::Recorded(true),
        Input::Tick,
    ]
}

/// A child in each phase, by the shortest way there.
fn in_phase(phase: Phase, isolation: Isolation) -> Child {
    let mut child = Child::launching(isolation, LIMITS, at(0));
    let way: &[Input] = match phase {
        Phase::Launching => &[],
        Phase::Greeting => &[Input::Launched { pid: Some(7) }],
        Phase::Running => &[Input::Launched { pid: Some(7) }, Input::Hello],
        Phase::Diagnosing => {
            &[Input::Launched { pid: Some(7) }, Input::Hello, Input::Cancel(CancelReason::Timeout)]
        }
        Phase::Interrupting => &[
            Input::Launched { pid: Some(7) },
            Input::Hello,
            Input::Cancel(CancelReason::Interrupt),
        ],
        Phase::Terminating => {
            &[Input::Launched { pid: Some(7) }, Input::Hello, Input::Cancel(CancelReason::Kill)]
        }
        Phase::Draining => {
            &[Input::Launched { pid: Some(7) }, Input::Hello, Input::Finish(Verdict::Completed)]
        }
        Phase::Settling => &[Input::LaunchFailed],
        Phase::Ended => &[Input::LaunchFailed, Input::Recorded(true)],
    };
    for input in way {
        let _orders = child.step(input.clone(), at(0));
    }
    assert_eq!(child.phase(), phase);
    child
}

const PHASES: [Phase; 9] = [
    Phase::Launching,
    Phase::Greeting,
    Phase::Running,
    Phase::Diagnosing,
    Phase::Interrupting,
    Phase::Terminating,
    Phase::Draining,
    Phase::Settling,
    Phase::Ended,
];

/// The decision table: what each fact asks for in each phase, when nothing else is known.
fn expected(isolation: Isolation, phase: Phase, input: &Input) -> Vec<Order> {
    // A thread can only be asked, so it is asked before what it started is ended.
    let end = |grace| match (isolation, phase) {
        (Isolation::Process, _) | (_, Phase::Interrupting) => vec![Order::Terminate(grace)],
        (Isolation::Thread, _) => vec![Order::Interrupt, Order::Terminate(grace)],
    };
    match (phase, input) {
        (Phase::Launching, Input::LaunchFailed) => vec![Order::Settle],
        (Phase::Greeting, Input::Hello) => vec![Order::Begin],
        (Phase::Launching, Input::Violation(_))
        | (
            Phase::Greeting | Phase::Running | Phase::Diagnosing | Phase::Interrupting,
            Input::Violation(_),
        ) => end(LIMITS.terminate_grace),
        (Phase::Running, Input::Cancel(CancelReason::Stale | CancelReason::Timeout)) => {
            vec![Order::Diagnose]
        }
        (Phase::Diagnosing, Input::Diagnosed) => vec![Order::Interrupt],
        (Phase::Greeting | Phase::Running, Input::Cancel(reason))
            if *reason != CancelReason::Kill =>
        {
            vec![Order::Interrupt]
        }
        (
            Phase::Greeting
            | Phase::Running
            | Phase::Diagnosing
            | Phase::Interrupting
            | Phase::Draining,
            Input::Cancel(CancelReason::Kill),
        ) => end(Duration::ZERO),
        (Phase::Settling, Input::Recorded(_)) => vec![Order::Announce],
        _ => Vec::new(),
    }
}

#[test]
fn every_phase_answers_every_input_as_the_table_says() {
    for isolation in [Isolation::Process, Isolation::Thread] {
        for phase in PHASES {
            for input in inputs() {
                let mut child = in_phase(phase, isolation);
                let orders = child.step(input.clone(), at(0));
                assert_eq!(
                    orders,
                    expected(isolation, phase, &input),
                    "{isolation:?} {phase:?} {input:?}"
                );
            }
        }
    }
}

#[test]
fn the_wall_clock_starts_with_the_child_and_not_with_its_launch() {
    let mut child = in_phase(Phase::Greeting, Isolation::Process);
    assert_eq!(child.step(Input::Tick, at(50)), []);
    assert_eq!(child.step(Input::Hello, at(50)), [Order::Begin]);
    assert_eq!(child.next_deadline(), Some(at(55)));
    assert_eq!(child.step(Input::Activity(ONE_CALL), at(54)), []);
    assert_eq!(child.step(Input::Tick, at(54)), []);
    assert_eq!(child.step(Input::Tick, at(55)), [Order::Interrupt]);
    assert_eq!(child.facts().timed_out_at, Some(at(55)));
}

#[test]
fn the_ladder_is_interrupt_grace_term_grace_kill() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    assert_eq!(child.step(Input::Activity(ONE_CALL), at(5)), []);
    assert_eq!(child.step(Input::Tick, at(5)), [Order::Interrupt]);
    assert_eq!(child.step(Input::Tick, at(14)), []);
    assert_eq!(child.step(Input::Tick, at(15)), [Order::Terminate(at(3))]);
    assert_eq!(child.facts().cancel, Some(CancelReason::Timeout));
}

#[test]
fn a_child_that_says_nothing_is_ended_at_the_start_limit() {
    let mut child = in_phase(Phase::Greeting, Isolation::Process);
    assert_eq!(child.step(Input::Tick, at(60)), [Order::Terminate(at(3))]);
    assert!(child.facts().start_timeout);
}

#[test]
fn a_launch_that_never_returns_is_given_up() {
    let mut child = in_phase(Phase::Launching, Isolation::Process);
    assert_eq!(child.step(Input::Cancel(CancelReason::Kill), at(1)), []);
    let limit = LIMITS.start + VERIFY_LIMIT;
    assert_eq!(child.next_deadline(), Some(limit));
    assert_eq!(child.step(Input::Tick, limit), [Order::Settle]);
    assert!(child.facts().start_timeout);
    // It comes too late.
    assert_eq!(child.step(Input::Launched { pid: Some(7) }, limit), []);
    assert_eq!((child.phase(), child.facts().launched_at), (Phase::Settling, None));
}

#[test]
fn a_stop_before_the_birth_is_honoured_at_the_birth() {
    let mut child = in_phase(Phase::Launching, Isolation::Process);
    assert_eq!(child.step(Input::Cancel(CancelReason::Interrupt), at(0)), []);
    assert_eq!(child.step(Input::Launched { pid: Some(1) }, at(1)), [Order::Interrupt]);

    let mut child = in_phase(Phase::Launching, Isolation::Process);
    assert_eq!(child.step(Input::Cancel(CancelReason::Kill), at(0)), []);
    let end = Order::Terminate(Duration::ZERO);
    assert_eq!(child.step(Input::Launched { pid: Some(1) }, at(1)), [end]);
}

#[test]
fn an_exit_does_not_settle_before_the_stream_is_drained_and_the_scope_is_empty() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    assert_eq!(child.step(Input::Exited(OK), at(1)), []);
    assert_eq!(child.step(Input::Finish(Verdict::Completed), at(1)), []);
    assert_eq!(child.step(Input::StreamEnded, at(1)), []);
    assert_eq!(child.step(Input::Emptied(Emptied::default()), at(2)), [Order::Settle]);
    assert_eq!(child.facts().verdict, Some(Verdict::Completed));
}

#[test]
fn a_finished_child_that_stays_is_ended_and_keeps_its_result() {
    let mut child = in_phase(Phase::Draining, Isolation::Process);
    assert_eq!(child.step(Input::Tick, LEAVE_GRACE), [Order::Terminate(at(3))]);
    assert!(child.facts().lingered);
    assert_eq!(child.facts().verdict, Some(Verdict::Completed));
}

#[test]
fn the_first_of_two_ends_counts_and_the_second_is_a_violation() {
    let mut child = in_phase(Phase::Draining, Isolation::Process);
    assert_eq!(child.step(Input::Finish(Verdict::Failed), at(1)), []);
    assert_eq!(child.facts().verdict, Some(Verdict::Completed));
    assert!(child.facts().violation.as_ref().unwrap().contains("twice"));
    assert_eq!(child.next_deadline(), Some(LEAVE_GRACE), "it has no longer to leave");
}

#[test]
fn a_thread_that_does_not_return_is_abandoned_and_a_silent_supervisor_is_lost() {
    for (isolation, abandoned) in [(Isolation::Thread, true), (Isolation::Process, false)] {
        let mut child = in_phase(Phase::Terminating, isolation);
        let deadline = child.next_deadline().unwrap();
        assert_eq!(child.step(Input::Tick, deadline), [Order::Settle]);
        assert_eq!((child.facts().abandoned, child.facts().lost), (abandoned, !abandoned));
    }
}

#[test]
fn a_pause_moves_every_deadline() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    child.hold(Hold::Batch, at(0));
    assert_eq!(child.next_deadline(), None);
    assert!(child.release(Hold::Batch, at(100)));
    assert_eq!(child.step(Input::Tick, at(104)), []);
    assert_eq!(child.step(Input::Tick, at(105)), [Order::Diagnose]);
}

#[test]
fn a_deadline_that_was_set_in_a_pause_is_moved_by_the_rest_of_it() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    child.hold(Hold::Batch, at(1));
    let asked = child.step(Input::Cancel(CancelReason::Interrupt), at(3600));
    assert_eq!(asked, [Order::Interrupt]);
    child.release(Hold::Batch, at(3605));
    assert_eq!(child.next_deadline(), Some(at(3605) + LIMITS.interrupt_grace));
}

#[test]
fn a_limit_longer_than_the_clock_is_no_limit_and_no_panic() {
    let longest = Limits {
        start: Duration::MAX,
        run: Some(Duration::MAX),
        patience: Patience {
            heartbeat: Duration::MAX,
            touches: true,
            inactivity: Some(Duration::MAX),
            stale_idle: Duration::MAX,
            stale_in_tool: Duration::MAX,
            on_stale: OnStale::Interrupt,
        },
        interrupt_grace: Duration::MAX,
        terminate_grace: Duration::MAX,
    };
    for input in [Input::Cancel(CancelReason::Interrupt), Input::Exited(OK), Input::Hello] {
        let mut child = Child::launching(Isolation::Process, longest, at(1));
        for input in [Input::Launched { pid: None }, input, Input::Violation(String::new())] {
            let _orders = child.step(input, at(1));
        }
        child.hold(Hold::Batch, at(2));
        child.release(Hold::Batch, at(3));
        assert_eq!(child.next_deadline(), Some(Duration::MAX));
    }
}

#[test]
fn a_slow_consumer_does_not_make_a_child_lost() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    assert_eq!(child.step(Input::Exited(OK), at(1)), []);
    assert_eq!(child.step(Input::Emptied(Emptied::default()), at(1)), []);
    let orders = child.step(Input::Tick, child.next_deadline().unwrap());
    assert_eq!((orders, child.facts().lost), (vec![Order::Settle], false));
}

#[test]
fn a_process_that_cannot_die_is_not_lost_with_its_supervisor() {
    let mut child = in_phase(Phase::Terminating, Isolation::Process);
    let left = vec![ownership::Process { pid: 7, name: "worker".to_owned() }];
    let told = Input::Emptied(Emptied { left, ..Emptied::default() });
    assert_eq!(child.step(told, at(1)), []);
    assert_eq!(child.step(Input::StreamEnded, at(1)), [Order::Settle]);
    assert_eq!((child.facts().lost, child.facts().exit), (false, None));
    // A thread is not over with what it started.
    let mut thread = in_phase(Phase::Running, Isolation::Thread);
    assert_eq!(thread.step(Input::StreamEnded, at(1)), []);
    assert_eq!(thread.step(Input::Emptied(Emptied::default()), at(1)), []);
    assert_eq!(thread.step(Input::Exited(OK), at(1)), [Order::Settle]);
}

fn any_input() -> impl Strategy<Value = Input> {
    prop::sample::select(inputs())
}

proptest! {
    /// Whatever comes, in whatever order: exactly one settlement, one announcement, and an end.
    #[test]
    fn no_order_of_facts_leaves_a_child_without_exactly_one_outcome(
        inputs in prop::collection::vec(any_input(), 0..40),
        step in 0_u64..7,
        thread: bool,
    ) {
        let isolation = if thread { Isolation::Thread } else { Isolation::Process };
        let mut child = Child::launching(isolation, LIMITS, at(0));
        let mut now = Duration::ZERO;
        let (mut settled, mut announced) = (0, 0);
        let mut count = |orders: Vec<Order>| {
            settled += orders.iter().filter(|order| **order == Order::Settle).count();
            announced += orders.iter().filter(|order| **order == Order::Announce).count();
        };
        let mut feed = |child: &mut Child, input: Input, now: Duration| {
            let before = child.phase();
            count(child.step(input, now));
            // Nothing leads back from the end.
            if before >= Phase::Settling {
                assert!(child.phase() >= before);
            }
        };
        // `Recorded` answers a settlement; it cannot come before one.
        for input in inputs.into_iter().filter(|input| !matches!(input, Input::Recorded(_))) {
            now += at(step);
            feed(&mut child, input, now);
        }
        // What the world owes every child in the end.
        feed(&mut child, Input::Launched { pid: None }, now);
        feed(&mut child, Input::Cancel(CancelReason::Kill), now);
        while let Some(deadline) = child.next_deadline() {
            now = now.max(deadline);
            feed(&mut child, Input::Tick, now);
        }
        feed(&mut child, Input::Recorded(true), now);
        feed(&mut child, Input::Recorded(true), now);
        prop_assert_eq!((settled, announced), (1, 1));
        prop_assert_eq!(child.phase(), Phase::Ended);
    }
}

#[test]
fn a_child_that_closes_its_line_and_runs_on_is_ended_and_one_that_ends_is_not() {
    for phase in [Phase::Greeting, Phase::Running] {
        let mut child = in_phase(phase, Isolation::Process);
        assert_eq!(child.step(Input::LineClosed, at(1)), []);
        assert_eq!(
            child.next_deadline(),
            Some(at(1) + LEAVE_GRACE).min(child.run_deadline.map(|run| run.at).or(Some(at(60))))
        );
        let mut ends = child.clone();
        assert_eq!(ends.step(Input::Exited(ExitStatus::Code(1)), at(2)), []);
        assert_eq!((ends.step(Input::Tick, at(7)), &ends.facts().violation), (vec![], &None));
        child.run_deadline = None;
        let orders = child.step(Input::Tick, at(6));
        assert_eq!(orders, [Order::Terminate(LIMITS.terminate_grace)], "{phase:?}");
        assert!(child.facts().violation.as_ref().unwrap().contains("closed its line"));
        assert!(!child.facts().start_timeout);
    }
}

/// Paused by two, a child goes on when the second lets it; the pause is one pause.
#[test]
fn a_child_that_two_hold_goes_on_when_both_have_let_go() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    child.hold(Hold::Own, at(1));
    child.hold(Hold::Batch, at(2));
    assert!(child.release(Hold::Own, at(50)));
    assert_eq!(child.next_deadline(), None);
    assert!(child.release(Hold::Batch, at(101)));
    assert!(!child.release(Hold::Batch, at(200)), "nobody holds it");
    assert_eq!(child.next_deadline(), Some(at(105)));
}

#[test]
fn a_paused_child_that_is_stopped_goes_on_to_hear_of_it() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    child.hold(Hold::Own, at(1));
    let orders = child.step(Input::Cancel(CancelReason::Interrupt), at(90));
    assert_eq!(orders, [Order::Continue, Order::Interrupt]);
    assert_eq!(child.next_deadline(), Some(at(90) + LIMITS.interrupt_grace));
}

#[test]
fn an_extension_moves_the_wall_clock_and_the_limit_that_is_told() {
    let mut child = in_phase(Phase::Running, Isolation::Process);
    assert_eq!(child.step(Input::Extend(at(7)), at(4)), []);
    assert_eq!(child.step(Input::Tick, at(11)), []);
    assert_eq!(child.step(Input::Tick, at(12)), [Order::Diagnose]);
    assert_eq!(child.facts().expired, Some(Expired { limit: Limit::Run, after: at(12) }));
    // What is extended before its start has the time at its start.
    let mut early = in_phase(Phase::Greeting, Isolation::Process);
    let _orders = early.step(Input::Extend(at(7)), at(1));
    let _orders = early.step(Input::Hello, at(2));
    assert_eq!(early.next_deadline(), Some(at(14)));
}

/// RB-27: between the look and the end lie the graces, also where they are 0.
#[test]
fn rb_27_a_child_is_looked_at_before_it_is_told_and_told_before_it_is_ended() {
    let none = Limits { interrupt_grace: at(0), terminate_grace: at(0), ..LIMITS };
    let mut child = Child::launching(Isolation::Process, none, at(0));
    let _orders = child.step(Input::Launched { pid: Some(7) }, at(0));
    let _orders = child.step(Input::Hello, at(0));
    assert_eq!(child.step(Input::Tick, at(5)), [Order::Diagnose]);
    assert_eq!(child.step(Input::Tick, at(6)), [], "nothing before the look is done");
    assert_eq!(child.step(Input::Diagnosed, at(6)), [Order::Interrupt]);
    assert_eq!(child.step(Input::Tick, at(6)), [Order::Terminate(at(0))]);
    // A look that hangs does not hold the ladder.
    let mut hangs = in_phase(Phase::Diagnosing, Isolation::Process);
    assert_eq!(hangs.step(Input::Tick, DIAGNOSE_LIMIT), [Order::Interrupt]);
    assert_eq!(hangs.step(Input::Diagnosed, at(9)), []);
}

#[test]
fn c10_only_a_child_without_a_model_call_is_looked_at() {
    for (calls, first) in [(0, Order::Diagnose), (1, Order::Interrupt)] {
        let mut child = in_phase(Phase::Running, Isolation::Process);
        let seen = Activity { api_calls: calls, ..ONE_CALL };
        let _orders = child.step(Input::Activity(seen), at(1));
        assert_eq!(child.step(Input::Tick, at(5)), [first], "{calls}");
    }
}

/// What staleness leads to, by setting.
#[test]
fn c07_stale_interrupts_kills_or_only_warns() {
    let run = |on_stale, isolation| {
        let patience = Patience { on_stale, ..LIMITS.patience };
        let mut child =
            Child::launching(isolation, Limits { run: None, patience, ..LIMITS }, at(0));
        let _orders = child.step(Input::Launched { pid: Some(7) }, at(0));
        let _orders = child.step(Input::Hello, at(0));
        let _orders = child.step(Input::Activity(ONE_CALL), at(0));
        assert_eq!(child.step(Input::Tick, at(449)), []);
        (child.step(Input::Tick, at(450)), child.facts().cancel)
    };
    let stale = Expired { limit: Limit::StaleIdle, after: at(450) };
    let process = Isolation::Process;
    let kill = vec![Order::Terminate(at(0))];
    assert_eq!(
        run(OnStale::Interrupt, process),
        (vec![Order::Interrupt], Some(CancelReason::Stale))
    );
    assert_eq!(run(OnStale::Kill, process), (kill, Some(CancelReason::Stale)));
    assert_eq!(run(OnStale::Warn, process), (vec![Order::Warn(stale)], None));
    let asked = vec![Order::Interrupt, Order::Terminate(at(0))];
    assert_eq!(run(OnStale::Kill, Isolation::Thread).0, asked);
}
