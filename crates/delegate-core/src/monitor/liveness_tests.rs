//! Every pair of what was said before and what is seen, with the time as an argument.

use super::*;
use proptest::prelude::*;

const PATIENCE: Patience = Patience {
    heartbeat: Duration::from_secs(30),
    touches: true,
    inactivity: None,
    stale_idle: Duration::from_secs(450),
    stale_in_tool: Duration::from_secs(1200),
    on_stale: OnStale::Interrupt,
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn stale(limit: Limit, after: u64) -> Due {
    Due::Expired(Expired { limit, after: at(after) })
}

fn window(after: u64) -> Expired {
    Expired { limit: Limit::Inactivity, after: at(after) }
}

fn marks(marks: u64, seconds: u64) -> Activity {
    Activity { marks, at: at(seconds), ..Activity::NONE }
}

/// Without the heartbeats.
fn without_touches(patience: Patience) -> Watch {
    Watch::new(Patience { touches: false, ..patience }, at(0))
}

#[test]
fn c07_the_verdict_names_its_threshold() {
    for (in_tool, due) in
        [(false, stale(Limit::StaleIdle, 450)), (true, stale(Limit::StaleInTool, 1200))]
    {
        let mut watch = without_touches(PATIENCE);
        let seen = Activity { in_tool, ..marks(1, 0) };
        watch.see(seen, at(0));
        let Due::Expired(Expired { after, .. }) = due else { unreachable!() };
        watch.see(seen, after - at(1));
        assert_eq!(watch.tick(after - at(1)), []);
        watch.see(seen, after);
        assert_eq!(watch.tick(after), [due]);
    }
}

/// Matrix 108: a child inside one tool is given the longer time.
#[test]
fn m108_inside_a_tool_it_is_touched_beyond_the_idle_limit() {
    let mut watch = Watch::new(PATIENCE, at(0));
    watch.see(Activity { in_tool: true, ..marks(1, 0) }, at(0));
    for beat in 1..40 {
        assert_eq!(watch.tick(at(30 * beat)), [Due::Touch], "{beat}");
    }
    assert_eq!(watch.tick(at(1200)), [stale(Limit::StaleInTool, 1200)]);
}

#[test]
fn the_present_tool_state_chooses_the_limit_and_its_change_is_progress() {
    let mut watch = without_touches(PATIENCE);
    watch.see(Activity { in_tool: true, ..marks(1, 0) }, at(0));
    assert_eq!(watch.next(), at(450), "it may leave the tool meanwhile");
    // It left the tool at 100, and that is known at 450 only.
    watch.see(marks(2, 100), at(450));
    assert_eq!(watch.tick(at(450)), []);
    assert_eq!(watch.next(), at(550));
    assert_eq!(watch.tick(at(550)), [stale(Limit::StaleIdle, 450)]);
}

#[test]
fn c08_any_change_of_the_count_is_progress_and_the_same_count_is_none() {
    let mut watch = without_touches(PATIENCE);
    for second in (0..4000).step_by(400) {
        watch.see(marks(second + 1, second), at(second));
        assert_eq!(watch.tick(at(second)), []);
    }
    // Beats go on, and nothing is counted.
    for second in (3600..4050).step_by(30) {
        watch.see(marks(3601, 3600), at(second));
        assert_eq!(watch.tick(at(second)), []);
    }
    watch.see(marks(3601, 3600), at(4050));
    assert_eq!(watch.tick(at(4050)), [stale(Limit::StaleIdle, 450)]);
}

#[test]
fn c09_the_window_restarts_and_warns_exactly_once_at_four_fifths() {
    let patience = Patience { inactivity: Some(at(100)), ..PATIENCE };
    let mut watch = without_touches(patience);
    assert_eq!(watch.next(), at(80));
    assert_eq!(watch.tick(at(79)), []);
    assert_eq!(watch.tick(at(80)), [Due::Warn(window(100))]);
    assert_eq!(watch.tick(at(81)), []);
    assert_eq!(watch.tick(at(99)), []);
    // Progress at the last moment: the window begins again, and so does its warning.
    watch.see(marks(1, 99), at(99));
    assert_eq!(watch.tick(at(178)), []);
    assert_eq!(watch.tick(at(179)), [Due::Warn(window(100))]);
    assert_eq!(watch.tick(at(198)), []);
    assert_eq!(watch.tick(at(199)), [Due::Expired(window(100))]);
}

#[test]
fn the_limit_that_runs_out_first_is_named() {
    for (inactivity, first) in
        [(449, Due::Expired(window(449))), (451, stale(Limit::StaleIdle, 450))]
    {
        let patience = Patience { inactivity: Some(at(inactivity)), ..PATIENCE };
        let mut watch = without_touches(patience);
        // Nobody looked in time; both have run out by now.
        assert_eq!(watch.tick(at(5000)), [first]);
    }
}

#[test]
fn without_a_channel_nothing_is_stale_and_the_window_still_counts() {
    let patience = Patience { inactivity: Some(at(5000)), ..PATIENCE };
    let mut watch = without_touches(patience);
    watch.see(Activity { reports: false, ..Activity::NONE }, at(0));
    assert_eq!(watch.liveness(at(4000)), Liveness::NoChannel);
    assert_eq!(watch.tick(at(3999)), []);
    assert_eq!(watch.tick(at(4000)), [Due::Warn(window(5000))]);
    assert_eq!(watch.tick(at(5000)), [Due::Expired(window(5000))]);
}

/// N16: three states, told apart by channel and progress alone.
#[test]
fn the_three_states_are_never_mixed_up() {
    for reports in [false, true] {
        for quiet in [0, 29, 30, 1000] {
            let mut watch = Watch::new(PATIENCE, at(0));
            watch.see(Activity { reports, ..marks(1, 10) }, at(10 + quiet));
            let expected = match (reports, quiet) {
                (false, _) => Liveness::NoChannel,
                (true, 0..30) => Liveness::Reporting,
                (true, _) => Liveness::Quiet,
            };
            assert_eq!(watch.liveness(at(10 + quiet)), expected, "{reports} {quiet}");
        }
    }
}

#[test]
fn a_stale_child_that_is_only_warned_of_is_touched_no_more_until_it_gets_on() {
    let patience = Patience { on_stale: OnStale::Warn, ..PATIENCE };
    let mut watch = Watch::new(patience, at(0));
    let warning = Due::Warn(Expired { limit: Limit::StaleIdle, after: at(450) });
    assert_eq!(watch.tick(at(420)), [Due::Touch]);
    assert_eq!(watch.tick(at(450)), [warning]);
    for second in [480, 900, 901, 2000] {
        assert_eq!(watch.tick(at(second)), [], "{second}");
    }
    watch.see(marks(1, 2000), at(2001));
    assert_eq!(watch.tick(at(2030)), [Due::Touch]);
    assert_eq!(watch.tick(at(2450)), [warning]);
}

/// The verdict does not need anybody who wants heartbeats (defect 12.1.7 of the reference).
#[test]
fn without_a_callback_nothing_is_touched_and_the_verdict_is_the_same() {
    let mut watch = without_touches(PATIENCE);
    assert_eq!(watch.next(), at(450));
    assert_eq!(watch.tick(at(30)), []);
    assert_eq!(watch.tick(at(450)), [stale(Limit::StaleIdle, 450)]);
}

#[test]
fn missed_heartbeats_are_not_made_up_for() {
    let mut watch = Watch::new(PATIENCE, at(0));
    assert_eq!(watch.tick(at(30)), [Due::Touch]);
    assert_eq!(watch.tick(at(300)), [Due::Touch]);
    assert_eq!(watch.tick(at(301)), []);
    assert_eq!(watch.next(), at(330));
}

#[test]
fn a_pause_is_no_silence() {
    let patience = Patience { inactivity: Some(at(100)), ..PATIENCE };
    let mut watch = Watch::new(patience, at(0));
    watch.shift(at(10), at(1010));
    assert_eq!((watch.quiet_for(at(1010)), watch.next()), (at(10), at(1030)));
    assert_eq!(watch.tick(at(1079)), [Due::Touch]);
    assert_eq!(watch.tick(at(1080)), [Due::Warn(window(100))]);
    // What was told in the pause loses nothing by it.
    watch.see(marks(1, 1090), at(1090));
    watch.shift(at(1085), at(1095));
    assert_eq!(watch.quiet_for(at(1095)), at(0));
}

#[test]
fn more_time_moves_warning_and_verdict_until_there_is_progress() {
    let patience = Patience { inactivity: Some(at(100)), ..PATIENCE };
    let mut watch = without_touches(patience);
    assert_eq!(watch.tick(at(80)), [Due::Warn(window(100))]);
    watch.extend(at(50));
    assert_eq!(watch.tick(at(129)), []);
    assert_eq!(watch.tick(at(130)), [Due::Warn(window(150))]);
    watch.see(marks(1, 140), at(140));
    assert_eq!(watch.tick(at(239)), [Due::Warn(window(100))]);
    assert_eq!(watch.tick(at(240)), [Due::Expired(window(100))]);
}

proptest! {
    /// However often it is looked at and whatever it does: the waiting never spins, and nothing is due
    /// before [`Watch::next`] said so, unless something new was seen.
    #[test]
    fn looking_again_at_the_told_time_is_enough(
        acts in prop::collection::vec((0_u64..4, 0_u64..700), 1..40),
        warn: bool,
        inactivity in prop::option::of(1_u64..900),
    ) {
        let on_stale = if warn { OnStale::Warn } else { OnStale::Interrupt };
        let patience = Patience { inactivity: inactivity.map(at), on_stale, ..PATIENCE };
        let mut watch = Watch::new(patience, at(0));
        let (mut now, mut activity) = (at(0), Activity::NONE);
        for (act, seconds) in acts {
            let next = watch.next();
            if next > now {
                let mut early = watch.clone();
                prop_assert_eq!(early.tick(next - Duration::from_millis(1)), []);
            }
            now += at(seconds);
            match act {
                0 => {
                    activity.marks += 1;
                    activity.at = now;
                }
                1 => activity.in_tool = !activity.in_tool,
                2 => activity.reports = !activity.reports,
                _ => {}
            }
            watch.see(activity, now);
            let due = watch.tick(now);
            if due.iter().any(|due| matches!(due, Due::Expired(_))) {
                return Ok(());
            }
            prop_assert!(watch.next() > now, "{:?} spins at {:?}", watch, now);
        }
    }
}
