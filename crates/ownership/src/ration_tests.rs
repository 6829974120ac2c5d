//! The decision over every pair of offers, and what its words say.

use super::*;

fn offers(v2: bool, v1: bool, counts: bool) -> Offers {
    let controllers = Controller::ALL.map(|which| Offer {
        v2: if v2 { Ok(()) } else { Err(Lack::NoController(which)) },
        v1: if v1 { Ok(()) } else { Err(Lack::NotInVersion1(which)) },
    });
    let counts = if counts { Ok(()) } else { Err(Lack::NoCell(Why::NotMounted)) };
    Offers { controllers, counts, needs_leaf: false }
}

/// Columns: what is offered (version 2, version 1, counting), then memory, processes, cpu, weight.
#[test]
fn the_best_that_is_offered_is_taken_and_what_is_better_says_why_not() {
    use Means::{CgroupV1, CgroupV2, Counted, EachProcess};
    let table = [
        ((true, true, true), [Some(CgroupV2), Some(CgroupV2), Some(Counted), Some(CgroupV2)]),
        ((true, false, true), [Some(CgroupV2), Some(CgroupV2), Some(Counted), Some(CgroupV2)]),
        ((false, true, true), [Some(CgroupV1), Some(CgroupV1), Some(Counted), Some(CgroupV1)]),
        ((false, true, false), [Some(CgroupV1), Some(CgroupV1), Some(EachProcess), Some(CgroupV1)]),
        ((false, false, true), [Some(EachProcess), None, Some(Counted), None]),
        ((false, false, false), [Some(EachProcess), None, Some(EachProcess), None]),
    ];
    for ((v2, v1, counts), means) in table {
        let offers = offers(v2, v1, counts);
        let limits = [Limit::Memory, Limit::Processes, Limit::Cpu, Limit::CpuWeight];
        for (limit, means) in limits.into_iter().zip(means) {
            let held = offers.decide(limit);
            assert_eq!((held.limit, held.means), (limit, means), "{v2} {v1} {counts}");
            // What is best has nothing above it; everything else says why.
            let best = matches!(held.means, Some(CgroupV2 | Counted));
            assert_eq!(held.not.is_empty(), best, "{held:?}");
            assert!(held.not.iter().all(|lack| !lack.to_string().is_empty()));
        }
        assert_eq!(offers.decide(Limit::OpenFiles).means, Some(EachProcess));
        assert_eq!(offers.decide(Limit::Nice).means, Some(Means::Priority));
    }
}

#[test]
fn what_is_asked_for_is_named() {
    assert!(Ration::default().is_empty());
    assert_eq!(Ration::default().asked().count(), 0);
    let all = Ration {
        memory: Some(1),
        processes: Some(1),
        open_files: Some(1),
        cpu: Some(Duration::from_millis(1)),
        nice: Some(1),
        cpu_weight: Some(1),
    };
    assert_eq!(all.asked().collect::<Vec<_>>(), Limit::ALL);
    let one = Ration { cpu: all.cpu, ..Ration::default() };
    assert_eq!(one.asked().collect::<Vec<_>>(), [Limit::Cpu]);
}

#[cfg(target_os = "linux")]
#[test]
fn time_is_kept_to_the_second_and_never_cut() {
    let of = |millis| {
        Ration { cpu: Some(Duration::from_millis(millis)), ..Ration::default() }.cpu_seconds()
    };
    assert_eq!([of(1), of(1000), of(1001)], [Some(1), Some(1), Some(2)]);
    assert_eq!(Ration::default().cpu_seconds(), None);
}
