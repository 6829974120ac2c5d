//! What is sent is what arrives, and nothing else is a record.

use proptest::prelude::*;

use super::*;
use crate::exit::{ExitStatus, Process, Reached, Released, Usage};

fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5)
}

fn durations() -> impl Strategy<Value = Duration> {
    any::<u32>().prop_map(|micros| Duration::from_micros(micros.into()))
}

fn policies() -> impl Strategy<Value = Leftovers> {
    prop_oneof![Just(Leftovers::Kill), Just(Leftovers::Report), Just(Leftovers::Keep)]
}

prop_compose! {
    fn orders()(
        id in any::<u64>(),
        name in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        argv in texts(),
        env in texts(),
        dir in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        fds in prop::collection::vec(any::<i32>(), 0..MAX_FDS),
        [line, template] in [prop::option::of(any::<i32>()), prop::option::of(any::<i32>())],
        grace in durations(),
        leftovers in policies(),
        release in prop::option::of(durations()),
        containment in prop::sample::select(&Containment::ALL[..]),
        joins in prop::option::of(any::<(i32, u64, u64)>()),
        ration in rations(),
    ) -> Order {
        let image = match (name, id % 2) {
            (Some(name), _) => Image::Named(name),
            (None, 0) => Image::Open,
            (None, _) => Image::Fork(id),
        };
        let joins = joins.map(|(group, ignored, blocked)| Joins { group, ignored, blocked });
        Order { id, image, argv, env, dir, fds, line, template, grace, leftovers, release, containment, joins, ration }
    }
}

prop_compose! {
    fn rations()(
        [memory, processes, open_files] in any::<[Option<u64>; 3]>(),
        cpu in prop::option::of(durations()),
        nice in any::<Option<u8>>(),
        cpu_weight in any::<Option<u16>>(),
    ) -> Ration {
        Ration { memory, processes, open_files, cpu, nice, cpu_weight }
    }
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        orders().prop_map(|order| Request::Spawn(Box::new(order))),
        (any::<u64>(), durations()).prop_map(|(id, grace)| Request::Open { id, grace }),
        (any::<u64>(), durations()).prop_map(|(id, grace)| Request::End { id, grace }),
        any::<u64>().prop_map(|id| Request::Pause { id }),
        any::<u64>().prop_map(|id| Request::Resume { id }),
        any::<u64>().prop_map(|number| Request::Resync { number }),
        any::<u64>().prop_map(|number| Request::Ping { number }),
        fosters(),
        Just(Request::EndStrays),
        (any::<u64>(), any::<i32>(), any::<[u64; 2]>(), any::<bool>(), durations()).prop_map(
            |(id, leader, [start, mark], session, grace)| {
                let group = Adopted { leader, start, session, mark };
                Request::Adopt { id, group, grace }
            }
        ),
        (any::<u64>(), any::<bool>())
            .prop_map(|(id, once_empty)| Request::Disown { id, once_empty }),
        any::<u64>().prop_map(|number| Request::Recount { number }),
    ]
}

prop_compose! {
    fn fosters()(
        id in any::<u64>(),
        scope in any::<u64>(),
        pid in any::<i32>(),
        grace in durations(),
        leftovers in policies(),
        release in prop::option::of(durations()),
        kept in any::<bool>(),
    ) -> Request {
        Request::Foster { id, scope, pid, grace, leftovers, release, kept }
    }
}

fn processes() -> impl Strategy<Value = Vec<Process>> {
    let one = (any::<u32>(), ".{0,15}").prop_map(|(pid, name)| Process { pid, name });
    prop::collection::vec(one, 0..MAX_NAMED)
}

fn statuses() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        any::<i32>().prop_map(ExitStatus::Code),
        (any::<i32>(), any::<bool>())
            .prop_map(|(signal, core_dumped)| ExitStatus::Signal { signal, core_dumped }),
        Just(ExitStatus::Unknown),
    ]
}

fn released() -> impl Strategy<Value = Released> {
    prop_oneof![
        statuses().prop_map(Released::Ended),
        Just(Released::TimedOut),
        any::<i32>().prop_map(|errno| Released::NotStarted { errno }),
    ]
}

prop_compose! {
    fn emptied()(
        leftover_count in any::<u32>(),
        leftovers in processes(),
        left in processes(),
        kept in any::<u32>(),
        spared in prop::collection::vec((any::<u32>(), "[a-z ]{0,15}", "[a-z-]{1,12}"), 0..4),
        release in prop::option::of(released()),
    ) -> Emptied {
        let spared = spared.into_iter().map(|(pid, name, rule)| (Process { pid, name }, rule));
        Emptied { leftovers, leftover_count, left, kept, spared: spared.collect(), release }
    }
}

prop_compose! {
    fn exits()(
        status in statuses(),
        user in durations(),
        system in durations(),
        max_rss_kib in any::<u64>(),
        (memory, processes, cpu) in any::<(u32, u32, bool)>(),
    ) -> Exit {
        let reached = Reached { memory, processes, cpu };
        Exit { status, usage: Usage { user, system, max_rss_kib }, reached }
    }
}

prop_compose! {
    fn backs()(
        [id, scope, start, mark] in any::<[u64; 4]>(),
        pid in any::<i32>(),
        grace in durations(),
        leftovers in policies(),
        release in prop::option::of(durations()),
        session in prop::option::of(any::<bool>()),
        exit in prop::option::of(exits()),
        kept in any::<bool>(),
    ) -> Back {
        let group = session.map(|session| Adopted { leader: pid, start, session, mark });
        Back { id, scope, pid, start, grace, leftovers, release, group, exit, kept }
    }
}

fn replies() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<u32>(), any::<i32>(), any::<u32>())
            .prop_map(|(version, pid, generation)| Reply::Hello { version, pid, generation }),
        (any::<u64>(), any::<i32>(), any::<u64>()).prop_map(|(id, pid, scope)| Reply::Started {
            id,
            pid,
            scope
        }),
        any::<u64>().prop_map(|number| Reply::Resynced { number }),
        any::<u64>().prop_map(|number| Reply::Pong { number }),
        prop::collection::vec(any::<u8>(), 0..99).prop_map(|why| Reply::NoScope { why }),
        (any::<u64>(), 0..PHASES.len(), any::<i32>()).prop_map(|(id, at, errno)| {
            Reply::Failed { id, failure: Failure { phase: PHASES[at], errno } }
        }),
        any::<u64>().prop_map(|id| Reply::Opened { id }),
        (any::<u64>(), exits()).prop_map(|(id, exit)| Reply::Exited { id, exit }),
        (any::<u64>(), emptied()).prop_map(|(id, emptied)| Reply::Emptied { id, emptied }),
        Just(Reply::Leaving),
        backs().prop_map(|back| Reply::Returned(Box::new(back))),
        any::<[u64; 2]>().prop_map(|[number, next]| Reply::Recounted { number, next }),
    ]
}

proptest! {
    #[test]
    fn requests_survive_the_line(request in requests()) {
        prop_assert_eq!(Request::decode(&request.encode()), Some(request));
    }

    #[test]
    fn replies_survive_the_line(reply in replies()) {
        prop_assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }

    #[test]
    fn a_release_command_survives_its_memfd(argv in texts(), env in texts()) {
        let command = Command { argv, env };
        let whole = Some(command.clone()).filter(|command| !command.argv.is_empty());
        prop_assert_eq!(Command::decode(&command.encode()), whole);
    }

    #[test]
    fn every_cut_and_every_surplus_is_no_record(request in requests(), reply in replies()) {
        let (asked, said) = (request.encode(), reply.encode());
        prop_assert!((0..asked.len()).all(|cut| Request::decode(&asked[..cut]).is_none()));
        prop_assert!((0..said.len()).all(|cut| Reply::decode(&said[..cut]).is_none()));
        let mut longer = request.encode();
        longer.push(0);
        prop_assert_eq!(Request::decode(&longer), None);
    }

    #[test]
    fn junk_is_decoded_without_harm(junk in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(Request::decode(&junk));
        drop(Reply::decode(&junk));
        drop(Command::decode(&junk));
    }
}

#[test]
fn a_list_longer_than_its_record_reserves_nothing() {
    let mut bytes = vec![1];
    bytes.extend(7_u64.to_le_bytes());
    bytes.push(0);
    bytes.extend(u32::MAX.to_le_bytes());
    assert_eq!(Request::decode(&bytes), None);
}
