//! Every event in every state, and orders of events that nobody thought of.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::exit::{Exit, ExitStatus, Released, Usage};
use crate::protocol::{Image, Order};
use crate::spawn::Leftovers;

fn origin() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "an origin for a pure machine")]
    Instant::now()
}

const GRACE: Duration = Duration::from_millis(100);

fn order(id: u64, grace: Duration) -> Request {
    Request::Spawn(Box::new(Order {
        id,
        image: Image::Named(b"x".to_vec()),
        argv: vec![b"x".to_vec()],
        env: Vec::new(),
        dir: None,
        fds: Vec::new(),
        line: Some(4),
        template: None,
        grace,
        leftovers: Leftovers::Kill,
        release: None,
        containment: crate::containment::Containment::Auto,
        joins: None,
        ration: crate::ration::Ration::default(),
    }))
}

fn spawn_event(line: u64, id: u64) -> Event {
    let null = std::fs::File::open("/dev/null").expect("null");
    Event::Request { line: ScopeId(line), request: order(id, GRACE), fds: vec![null.into()] }
}

fn ask(line: u64, request: Request) -> Event {
    Event::Request { line: ScopeId(line), request, fds: Vec::new() }
}

fn dead(pid: Pid) -> Dead {
    Dead {
        pid,
        exit: Exit {
            status: ExitStatus::Code(0),
            usage: Usage::default(),
            reached: crate::exit::Reached::default(),
        },
    }
}

fn died(pid: Pid, orphans: &[Pid]) -> Event {
    let unknown = orphans.iter().map(|pid| Unknown { pid: *pid, tag: None }).collect();
    Event::Stock { dead: vec![dead(pid)], unknown, suspects: vec![pid] }
}

/// A machine with scope 1 (pid 101) started on the owner's line.
fn running() -> (Supervisor, Instant) {
    let now = origin();
    let mut machine = Supervisor::new(Some(Duration::from_secs(30)), 1, now);
    machine.step(spawn_event(0, 1), now);
    machine.step(Event::Started { scope: ScopeId(1), pid: 101 }, now);
    (machine, now)
}

fn replies(effects: &[Effect]) -> Vec<&Reply> {
    effects
        .iter()
        .filter_map(
            |effect| if let Effect::Reply { reply, .. } = effect { Some(reply) } else { None },
        )
        .collect()
}

fn emptied(effects: &[Effect]) -> usize {
    replies(effects).iter().filter(|reply| matches!(reply, Reply::Emptied { .. })).count()
}

#[test]
fn a_child_that_leaves_nothing_exits_and_is_empty() {
    let (mut machine, now) = running();
    let effects = machine.step(died(101, &[]), now);
    assert!(matches!(
        &effects[..],
        [
            Effect::Reply { reply: Reply::Exited { id: 1, .. }, .. },
            Effect::Reap { pid: 101 },
            Effect::Reply { reply: Reply::Emptied { id: 1, .. }, .. },
            Effect::Forget { .. }
        ]
    ));
}

#[test]
fn an_orphan_is_recorded_before_its_parent_is_reaped_and_ended() {
    let (mut machine, now) = running();
    let effects = machine.step(died(101, &[201]), now);
    assert_eq!(emptied(&effects), 0);
    let effects = machine.step(Event::Tick, now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Walk { scope: ScopeId(1) })));
    assert!(machine.registry().knows(201));
    let members = vec![Process { pid: 201, name: "left".into() }];
    machine.step(Event::Found { scope: ScopeId(1), members }, now);
    // After the grace comes KILL.
    let effects = machine.step(Event::Tick, now + GRACE);
    assert!(
        effects.iter().any(
            |effect| matches!(effect, Effect::Kill { scopes } if scopes.contains(&ScopeId(1)))
        )
    );
    let effects = machine.step(died(201, &[]), now + GRACE);
    match &replies(&effects)[..] {
        [Reply::Emptied { id: 1, emptied }] => {
            assert_eq!((emptied.leftover_count, emptied.leftovers.len()), (1, 1));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_marker_decides_among_several_dead_and_without_it_all_are_held() {
    for (tag, expected) in [(Some(2), vec![2]), (None, vec![1, 2]), (Some(9), vec![1, 2])] {
        let (mut machine, now) = running();
        machine.step(spawn_event(0, 2), now);
        machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
        let unknown = vec![Unknown { pid: 201, tag: tag.map(ScopeId) }];
        machine
            .step(Event::Stock { dead: vec![dead(101)], unknown, suspects: vec![101, 102] }, now);
        let mut held: Vec<_> = machine.registry().scopes_of(201).iter().map(|s| s.0).collect();
        held.sort_unstable();
        assert_eq!(held, expected, "{tag:?}");
    }
}

#[test]
fn what_a_paused_scope_had_asked_for_starts_stopped() {
    let (mut machine, now) = running();
    machine.step(ask(0, Request::Pause { id: 1 }), now);
    machine.step(spawn_event(1, 7), now);
    let effects = machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Pause { scopes } if scopes[..] == [ScopeId(2)]))
    );
    let effects = machine.step(ask(0, Request::Resume { id: 1 }), now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Resume { scope: ScopeId(2) })));
    machine.step(spawn_event(1, 8), now);
    let effects = machine.step(Event::Started { scope: ScopeId(3), pid: 103 }, now);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Pause { .. })));
}

/// An orphan is no subreaper: what it double-forks comes to us although it lives.
#[test]
fn what_a_living_orphan_leaves_is_held_against_its_scope() {
    for tag in [Some(ScopeId(1)), None] {
        let (mut machine, now) = running();
        machine.step(spawn_event(0, 2), now);
        machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
        machine.step(died(101, &[201]), now);
        // One that nobody knows is dead, another one lives; the orphan that left both is not dead.
        let unknown = [301, 302].map(|pid| Unknown { pid, tag }).to_vec();
        machine.step(Event::Stock { dead: vec![dead(301)], unknown, suspects: Vec::new() }, now);
        assert_eq!(machine.registry().scopes_of(302), [ScopeId(1)]);
        // Another scope's end finds a third one.
        let unknown = vec![Unknown { pid: 303, tag }];
        machine.step(Event::Stock { dead: vec![dead(102)], unknown, suspects: vec![102] }, now);
        assert!(machine.registry().scopes_of(303).contains(&ScopeId(1)), "{tag:?}");
        machine.step(died(201, &[]), now);
        machine.step(died(302, &[]), now);
        assert!(machine.registry().get(ScopeId(1)).is_some(), "303 is left of it");
        assert!(emptied(&machine.step(died(303, &[]), now)) >= 1);
        assert!(machine.registry().is_idle());
    }
}

#[test]
fn a_childs_death_ends_what_it_started_over_its_line() {
    let (mut machine, now) = running();
    machine.step(spawn_event(1, 7), now);
    machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
    let effects = machine.step(died(101, &[]), now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Terminate { scope: ScopeId(2) })));
    assert_eq!(emptied(&effects), 0, "what it started is part of it");
    let effects = machine.step(died(102, &[]), now);
    let order: Vec<_> = effects
        .iter()
        .filter_map(|effect| {
            if let Effect::Reply { line, reply: Reply::Emptied { .. }, .. } = effect {
                Some(line.0)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(order, [1, 0], "inner first");
}

#[test]
fn a_scope_without_a_process_ends_with_its_line() {
    let now = origin();
    let mut machine = Supervisor::new(Some(Duration::from_secs(30)), 1, now);
    machine.step(ask(0, Request::Open { id: 5, grace: GRACE }), now);
    machine.step(Event::Opened { scope: ScopeId(1) }, now);
    machine.step(spawn_event(1, 1), now);
    machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
    let effects = machine.step(Event::LineClosed { line: ScopeId(1) }, now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Terminate { scope: ScopeId(2) })));
    assert_eq!(emptied(&machine.step(died(102, &[]), now)), 2);
}

#[test]
fn the_owners_line_may_end_while_it_lives() {
    let (mut machine, now) = running();
    let effects = machine.step(Event::LineClosed { line: ScopeId::ALL }, now);
    assert!(effects.is_empty());
    assert!(machine.registry().get(ScopeId(1)).is_some_and(Scope::is_open));
}

#[test]
fn a_dead_owner_ends_everything_and_only_no_child_is_the_end() {
    let (mut machine, now) = running();
    let effects = machine.step(Event::OwnerGone, now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Terminate { scope: ScopeId(1) })));
    let refused = machine.step(spawn_event(0, 2), now);
    assert!(matches!(replies(&refused)[..], [Reply::Failed { id: 2, .. }]));
    let effects = machine.step(died(101, &[]), now);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Exit)));
    let effects = machine.step(Event::NoChild, now);
    assert!(matches!(effects[..], [Effect::Exit]));
}

#[test]
fn what_cannot_die_is_told_once_and_still_waited_for() {
    let (mut machine, mut now) = running();
    machine.step(ask(0, Request::End { id: 1, grace: Duration::ZERO }), now);
    let mut told = 0;
    for _ in 0..40 {
        now += Duration::from_millis(500);
        for effect in machine.step(Event::Tick, now) {
            if matches!(effect, Effect::Survey { .. }) {
                let members = vec![Process { pid: 101, name: "stuck".into() }];
                let effects = machine.step(Event::Left { scope: ScopeId(1), members }, now);
                told += emptied(&effects);
            }
        }
    }
    assert_eq!(told, 1);
    let effects = machine.step(died(101, &[]), now);
    assert_eq!(emptied(&effects), 0, "its end was told");
    assert!(machine.registry().is_idle());
}

#[test]
fn what_is_left_is_named_even_where_kill_comes_at_once() {
    let (mut machine, now) = running();
    machine.step(ask(0, Request::End { id: 1, grace: Duration::ZERO }), now);
    machine.step(died(101, &[201]), now);
    let effects = machine.step(Event::Tick, now);
    assert!(matches!(&effects[..], [Effect::Walk { .. }, Effect::Kill { .. }]), "{effects:?}");
}

/// A storm in which everybody recorded is dead by the time of the look.
#[test]
fn what_is_not_over_and_has_nobody_to_name_is_looked_at_again() {
    let (mut machine, mut now) = running();
    machine.step(ask(0, Request::End { id: 1, grace: Duration::ZERO }), now);
    let mut surveys = 0;
    for _ in 0..40 {
        now += Duration::from_millis(500);
        for effect in machine.step(Event::Tick, now) {
            if matches!(effect, Effect::Survey { .. }) {
                surveys += 1;
                let event = Event::Left { scope: ScopeId(1), members: Vec::new() };
                assert_eq!(emptied(&machine.step(event, now)), 0, "that would be a lie");
            }
        }
    }
    assert!(surveys > 3, "{surveys}");
}

#[test]
fn many_deaths_are_one_burial_and_what_the_dead_left_among_themselves_is_no_walk() {
    let (mut machine, now) = running();
    machine.step(spawn_event(0, 2), now);
    machine.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
    let unknown = vec![Unknown { pid: 201, tag: None }];
    let all = vec![dead(101), dead(102), dead(201)];
    let effects = machine.step(Event::Stock { dead: all, unknown, suspects: vec![101, 102] }, now);
    let reaped = effects.iter().filter(|effect| matches!(effect, Effect::Reap { .. })).count();
    assert_eq!((reaped, emptied(&effects)), (3, 2), "{effects:?}");
    assert!(machine.step(Event::Tick, now).is_empty(), "nobody is there to walk to");
    assert!(machine.registry().is_idle());
}

#[test]
fn who_comes_after_kill_gets_kill() {
    let (mut machine, now) = running();
    machine.step(died(101, &[201]), now);
    machine.step(Event::Tick, now + GRACE);
    let later = now + GRACE + Duration::from_millis(1);
    let unknown = vec![Unknown { pid: 301, tag: None }];
    let effects = machine.step(Event::Stock { dead: Vec::new(), unknown, suspects: vec![] }, later);
    assert!(effects.is_empty(), "TERM is past: {effects:?}");
    let soon = machine.deadline().expect("due");
    let effects = machine.step(Event::Tick, soon);
    assert!(matches!(&effects[..], [Effect::Kill { scopes }] if scopes.contains(&ScopeId(1))));
}

#[test]
fn idle_counts_from_the_last_child_and_leaving_serves_nothing() {
    let (mut machine, now) = running();
    let later = now + Duration::from_secs(100);
    assert!(machine.step(Event::Tick, later).is_empty());
    machine.step(died(101, &[]), later);
    assert!(machine.step(Event::Tick, later + Duration::from_secs(29)).is_empty());
    let effects = machine.step(Event::Tick, later + Duration::from_secs(30));
    assert!(matches!(effects[..], [Effect::Leave]));
    assert!(machine.step(spawn_event(0, 9), later).is_empty(), "the next supervisor's");
}

/// The states of a scope, each with what brings a fresh machine there.
fn states() -> Vec<(&'static str, Supervisor, Instant)> {
    let now = origin();
    let fresh = Supervisor::new(Some(Duration::from_secs(30)), 1, now);
    let mut starting = fresh.clone();
    starting.step(spawn_event(0, 1), now);
    let mut opened = fresh.clone();
    opened.step(ask(0, Request::Open { id: 1, grace: GRACE }), now);
    let (running, _) = {
        let mut machine = starting.clone();
        machine.step(Event::Started { scope: ScopeId(1), pid: 101 }, now);
        (machine, now)
    };
    let mut ending = running.clone();
    ending.step(ask(0, Request::End { id: 1, grace: GRACE }), now);
    let mut killing = ending.clone();
    killing.step(Event::Tick, now + GRACE);
    let mut leftover = running.clone();
    leftover.step(died(101, &[201]), now);
    let mut nested = running.clone();
    nested.step(spawn_event(1, 1), now);
    nested.step(Event::Started { scope: ScopeId(2), pid: 102 }, now);
    let mut ownerless = running.clone();
    ownerless.step(Event::OwnerGone, now);
    let mut leaving = fresh.clone();
    leaving.step(Event::Tick, now + Duration::from_secs(30));
    let (releasing, _) = releasing();
    vec![
        ("fresh", fresh, now),
        ("starting", starting, now),
        ("opened", opened, now),
        ("running", running, now),
        ("ending", ending, now),
        ("killing", killing, now + GRACE),
        ("leftover", leftover, now),
        ("nested", nested, now),
        ("ownerless", ownerless, now),
        ("releasing", releasing, now),
        ("leaving", leaving, now + Duration::from_secs(30)),
    ]
}

fn events() -> Vec<Event> {
    let failure = Failure { phase: Phase::Exec, errno: libc::ENOENT };
    let members = vec![Process { pid: 201, name: "m".into() }];
    let mut events = vec![
        Event::OwnerGone,
        Event::NoChild,
        Event::Tick,
        died(101, &[]),
        died(101, &[301, 302]),
        died(201, &[]),
        died(999, &[]),
    ];
    for scope in [0, 1, 2, 77].map(ScopeId) {
        let line = scope;
        events.extend([
            spawn_event(line.0, 1),
            spawn_event(line.0, 2),
            ask(line.0, Request::Open { id: 3, grace: GRACE }),
            ask(line.0, Request::End { id: 1, grace: Duration::ZERO }),
            ask(line.0, Request::Pause { id: 1 }),
            ask(line.0, Request::Resume { id: 1 }),
            // Descriptors are missing.
            ask(line.0, order(4, GRACE)),
            Event::Unreadable { line, id: 9 },
            Event::Started { scope, pid: 400 },
            Event::Failed { scope, failure },
            Event::Opened { scope },
            Event::LineClosed { line },
            Event::Found { scope, members: members.clone() },
            Event::Left { scope, members: members.clone() },
        ]);
    }
    events
}

/// What must hold whatever happened: nothing is reaped that was not seen dead, nobody is forgotten
/// who lives, and a machine with children can always go on to its end.
#[test]
fn every_event_in_every_state_leaves_a_machine_that_can_end() {
    for (name, state, now) in states() {
        for at in 0..events().len() {
            let mut machine = state.clone();
            let event = events().swap_remove(at);
            let shown = format!("{name} × {event:?}");
            let died =
                if let Event::Stock { dead, .. } = &event { Some(dead[0].pid) } else { None };
            let before: Vec<_> = machine.registry().known().collect();
            let effects = machine.step(event, now);
            let reaped: Vec<_> = effects
                .iter()
                .filter_map(|e| if let Effect::Reap { pid } = e { Some(*pid) } else { None })
                .collect();
            assert!(reaped.iter().all(|pid| Some(*pid) == died), "{shown}");
            let lost = before
                .iter()
                .filter(|pid| !machine.registry().knows(**pid) && Some(**pid) != died)
                .count();
            assert_eq!(lost, 0, "{shown}");
            if let Some(deadline) = machine.deadline().filter(|_| name != "leaving") {
                assert!(deadline + Duration::from_secs(40) > now, "{shown}");
            }
            let (empty, exits) = run_to_the_end(machine, now);
            assert!(empty && exits, "{shown}");
        }
    }
}

/// The owner goes, starts under way fail, and everything dies at KILL.
fn run_to_the_end(mut machine: Supervisor, mut now: Instant) -> (bool, bool) {
    machine.step(Event::OwnerGone, now);
    for _ in 0..200 {
        let starting: Vec<_> = machine
            .registry()
            .iter()
            .filter(|(_, scope)| scope.root == Root::Starting)
            .map(|(id, _)| id)
            .collect();
        for scope in starting {
            let failure = Failure { phase: Phase::Exec, errno: libc::ENOENT };
            machine.step(Event::Failed { scope, failure }, now);
        }
        let Some(due) = machine.deadline() else { break };
        now = now.max(due);
        let killed: Vec<_> = machine
            .step(Event::Tick, now)
            .into_iter()
            .filter_map(|e| if let Effect::Kill { scopes } = e { Some(scopes) } else { None })
            .flatten()
            .flat_map(|scope| {
                machine
                    .registry()
                    .known()
                    .filter(|p| machine.registry().scopes_of(*p).contains(&scope))
                    .collect::<Vec<_>>()
            })
            .collect();
        for pid in killed {
            machine.step(died(pid, &[]), now);
        }
        if machine.registry().known().next().is_none() {
            break;
        }
    }
    let empty = machine.registry().is_idle();
    let exits = machine.step(Event::NoChild, now).iter().any(|e| matches!(e, Effect::Exit));
    (empty, exits)
}

/// One thing that may happen in a made-up world.
#[derive(Debug, Clone)]
enum Move {
    Spawn { line: usize, works: bool },
    Open { line: usize },
    End { scope: usize, grace: u64 },
    Close { scope: usize },
    Die { which: usize, orphans: usize },
    Wait { millis: u64 },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (0..6_usize, prop::bool::weighted(0.8)).prop_map(|(line, works)| Move::Spawn { line, works }),
        1 => (0..6_usize).prop_map(|line| Move::Open { line }),
        1 => (0..6_usize, 0..300_u64).prop_map(|(scope, grace)| Move::End { scope, grace }),
        1 => (0..6_usize).prop_map(|scope| Move::Close { scope }),
        3 => (0..8_usize, 0..3_usize).prop_map(|(which, orphans)| Move::Die { which, orphans }),
        2 => (0..3000_u64).prop_map(|millis| Move::Wait { millis }),
    ];
    prop::collection::vec(one, 0..60)
}

/// A world around the machine: counts what each requester was told of each of its requests.
struct World {
    machine: Supervisor,
    now: Instant,
    next_id: u64,
    next_pid: Pid,
    answers: BTreeMap<(ScopeId, u64), Vec<&'static str>>,
}

impl World {
    fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.machine.step(event, self.now) {
                if let Effect::Reply { line, reply, .. } = &effect {
                    self.note(*line, reply);
                } else if let Effect::OpenLine { scope } = effect {
                    events.push(Event::Opened { scope });
                }
            }
        }
    }

    fn note(&mut self, line: ScopeId, reply: &Reply) {
        let (id, word) = match reply {
            Reply::Started { id, .. } | Reply::Opened { id } => (*id, "started"),
            Reply::Failed { id, .. } => (*id, "failed"),
            Reply::Exited { id, .. } => (*id, "exited"),
            Reply::Emptied { id, .. } => (*id, "emptied"),
            Reply::Hello { .. }
            | Reply::NoScope { .. }
            | Reply::Leaving
            | Reply::Resynced { .. }
            | Reply::Stopped { .. }
            | Reply::Pong { .. }
            | Reply::Returned(_)
            | Reply::Recounted { .. } => {
                return;
            }
        };
        self.answers.entry((line, id)).or_default().push(word);
    }

    fn scope(&self, at: usize) -> ScopeId {
        let scopes: Vec<_> = self.machine.registry().iter().map(|(id, _)| id).collect();
        scopes[at % scopes.len()]
    }

    fn spawn(&mut self, line: ScopeId, works: bool) {
        self.next_id += 1;
        let before: Vec<_> = self.machine.registry().iter().map(|(id, _)| id).collect();
        self.feed(spawn_event(line.0, self.next_id));
        let made = self.machine.registry().iter().map(|(id, _)| id).find(|id| !before.contains(id));
        let Some(scope) = made else { return };
        self.next_pid += 1;
        let failure = Failure { phase: Phase::Exec, errno: libc::ENOENT };
        self.feed(if works {
            Event::Started { scope, pid: self.next_pid }
        } else {
            Event::Failed { scope, failure }
        });
    }

    fn die(&mut self, which: usize, orphans: usize) {
        let known: Vec<_> = self.machine.registry().known().collect();
        if known.is_empty() {
            return;
        }
        let orphans: Vec<_> =
            (0..orphans).map(|at| self.next_pid + 1 + Pid::try_from(at).unwrap_or(0)).collect();
        self.next_pid += 10;
        self.feed(died(known[which % known.len()], &orphans));
    }

    fn apply(&mut self, one: &Move) {
        match *one {
            Move::Spawn { line, works } => self.spawn(self.scope(line), works),
            Move::Open { line } => {
                self.next_id += 1;
                let request = Request::Open { id: self.next_id, grace: GRACE };
                self.feed(ask(self.scope(line).0, request));
            }
            Move::End { scope, grace } => {
                let scope = self.scope(scope);
                let Some((parent, id)) =
                    self.machine.registry().get(scope).map(|s| (s.parent, s.id))
                else {
                    return;
                };
                let grace = Duration::from_millis(grace);
                self.feed(ask(parent.0, Request::End { id, grace }));
            }
            Move::Close { scope } => self.feed(Event::LineClosed { line: self.scope(scope) }),
            Move::Die { which, orphans } => self.die(which, orphans),
            Move::Wait { millis } => {
                self.now += Duration::from_millis(millis);
                self.feed(Event::Tick);
            }
        }
    }
}

proptest! {
    #[test]
    fn no_order_of_events_loses_a_scope_or_tells_its_end_twice(moves in moves()) {
        let now = origin();
        let machine = Supervisor::new(Some(Duration::from_secs(1_000_000)), 1, now);
        let mut world = World { machine, now, next_id: 0, next_pid: 1000, answers: BTreeMap::new() };
        for one in &moves {
            world.apply(one);
        }
        // Everything that still runs ends.
        world.feed(Event::OwnerGone);
        for _ in 0..10_000 {
            if world.machine.registry().known().next().is_none() {
                break;
            }
            world.die(0, 0);
        }
        prop_assert!(world.machine.registry().is_idle());
        for (request, told) in &world.answers {
            let good = matches!(
                told[..],
                ["failed"] | ["started", "exited", "emptied"] | ["started", "emptied"]
            );
            prop_assert!(good, "{:?} was told {:?}", request, told);
        }
    }
}

/// Its end is told once with who is there, and once more when it is over; in between nobody is signalled.
#[test]
fn what_is_let_live_is_told_and_ends_with_the_owner() {
    for policy in [Leftovers::Report, Leftovers::Keep] {
        let (mut machine, now) = running();
        machine.registry.get_mut(ScopeId(1)).expect("scope").policy = policy;
        let effects = machine.step(died(101, &[201]), now);
        assert!(
            matches!(effects[..], [_, Effect::Reap { .. }, Effect::Survey { .. }]),
            "{effects:?}"
        );
        let nobody = Event::Left { scope: ScopeId(1), members: Vec::new() };
        assert!(machine.step(nobody, now).is_empty(), "their deaths tell");
        let members = vec![Process { pid: 201, name: "left".into() }];
        let told = machine.step(Event::Left { scope: ScopeId(1), members: members.clone() }, now);
        let named = if policy == Leftovers::Report { members } else { Vec::new() };
        let expected = Emptied { left: named, kept: 1, ..Emptied::default() };
        assert_eq!(replies(&told), [&Reply::Emptied { id: 1, emptied: expected }]);
        assert!(machine.step(died(777, &[]), now + GRACE).len() == 1, "only reaped");
        let effects = machine.step(Event::OwnerGone, now);
        assert!(effects.iter().any(|e| matches!(e, Effect::Terminate { scope: ScopeId(1) })));
        let effects = machine.step(died(201, &[]), now);
        assert_eq!(emptied(&effects), 1, "it is over");
        assert!(machine.registry().is_idle());
    }
}

/// With the command of scope 1 started as scope 2, pid 301, after its root has left nothing.
fn releasing() -> (Supervisor, Instant) {
    let (mut machine, now) = running();
    machine.registry.get_mut(ScopeId(1)).expect("scope").release = Release::Due(2 * GRACE);
    let effects = machine.step(died(101, &[]), now);
    assert_eq!(emptied(&effects), 0);
    let (scope, of) = (ScopeId(2), ScopeId(1));
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Release { scope: s, of: o } if (*s, *o) == (scope, of)))
    );
    assert!(machine.step(Event::Started { scope, pid: 301 }, now).is_empty(), "nobody is told");
    (machine, now)
}

fn release_of(effects: &[Effect]) -> Option<Released> {
    replies(effects).iter().find_map(|reply| {
        if let Reply::Emptied { id: 1, emptied } = reply { emptied.release } else { None }
    })
}

#[test]
fn a_release_command_is_part_of_the_end_and_ends_at_its_deadline_only() {
    let (machine, now) = releasing();
    let mut good = machine.clone();
    let effects = good.step(died(301, &[]), now);
    assert_eq!(release_of(&effects), Some(Released::Ended(ExitStatus::Code(0))));
    assert!(good.registry().is_idle());
    let mut late = machine;
    late.step(ask(0, Request::End { id: 1, grace: Duration::ZERO }), now);
    late.step(Event::OwnerGone, now);
    let effects = late.step(Event::Tick, now + GRACE);
    let touches = |effect: &Effect| {
        let ends = matches!(effect, Effect::Terminate { scope } if *scope != ScopeId::ALL);
        ends || matches!(effect, Effect::Kill { scopes } if scopes[..] != [ScopeId::ALL])
    };
    assert!(!effects.iter().any(touches), "{effects:?}");
    let until = now + 2 * GRACE;
    assert!(late.deadline().is_some_and(|due| due <= until));
    let effects = late.step(Event::Tick, until);
    assert!(effects.iter().any(|e| matches!(e, Effect::Terminate { scope: ScopeId(2) })));
    let effects = late.step(died(301, &[]), until);
    assert_eq!(release_of(&effects), Some(Released::TimedOut));
    assert!(late.registry().is_idle());
}

#[test]
fn a_release_command_that_cannot_be_started_is_told() {
    let (mut machine, now) = running();
    machine.registry.get_mut(ScopeId(1)).expect("scope").release = Release::Due(GRACE);
    machine.step(died(101, &[]), now);
    let failure = Failure { phase: Phase::Exec, errno: libc::ENOENT };
    let effects = machine.step(Event::Failed { scope: ScopeId(2), failure }, now);
    assert_eq!(release_of(&effects), Some(Released::NotStarted { errno: libc::ENOENT }));
    assert!(machine.registry().is_idle());
}

#[path = "supervisor/inherited_tests.rs"]
mod inherited;

/// A machine with scope 1 (pid 101), of which orphans come while it lives.
fn joined() -> (Supervisor, Instant) {
    let now = origin();
    let mut machine = Supervisor::new(Some(Duration::from_secs(30)), 1, now);
    let Request::Spawn(mut order) = order(1, GRACE) else { unreachable!() };
    order.joins = Some(crate::spawn::Joins { group: 50, ignored: 0, blocked: 0 });
    let null = std::fs::File::open("/dev/null").expect("null");
    let request = Request::Spawn(order);
    machine.step(Event::Request { line: ScopeId::ALL, request, fds: vec![null.into()] }, now);
    machine.step(Event::Started { scope: ScopeId(1), pid: 101 }, now);
    (machine, now)
}

#[test]
fn orphans_of_a_root_that_joined_are_its_own_and_end_after_it() {
    let orphan = || {
        let unknown = vec![Unknown { pid: 201, tag: None }];
        Event::Stock { dead: Vec::new(), unknown, suspects: Vec::new() }
    };
    let (mut machine, now) = joined();
    assert!(machine.step(orphan(), now).is_empty(), "nothing is done to it while its root lives");
    assert_eq!(machine.registry().scopes_of(201), [ScopeId(1)]);
    let effects = machine.step(died(101, &[]), now);
    assert_eq!(emptied(&effects), 0);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Terminate { scope: ScopeId(1) })));
    assert_eq!(emptied(&machine.step(died(201, &[]), now)), 1);
    // Of any other root it is nobody's but the owner's.
    let (mut machine, now) = running();
    machine.step(orphan(), now);
    assert_eq!(machine.registry().scopes_of(201), [ScopeId::ALL]);
}

#[test]
fn only_of_a_root_that_joined_is_a_stop_told() {
    let stop = || Event::Stopped { scope: ScopeId(1), signal: libc::SIGTSTP };
    let (mut machine, now) = joined();
    let effects = machine.step(stop(), now);
    let told = Reply::Stopped { id: 1, signal: libc::SIGTSTP };
    assert_eq!(replies(&effects), [&told]);
    let (mut machine, now) = running();
    assert!(machine.step(stop(), now).is_empty());
}

/// What a rule keeps does not hold the scope open, is told once, and is reaped if it dies while we are there.
#[test]
fn what_is_let_go_is_nobodys() {
    let (mut machine, now) = running();
    machine.step(died(101, &[201, 202]), now);
    let process = |pid: u32| Process { pid, name: "tmux: server".into() };
    let spare = |pid, scope| {
        let rule = "tmux".to_owned();
        Event::Spared { scope: ScopeId(scope), process: process(pid), rule }
    };
    assert_eq!(emptied(&machine.step(spare(201, 1), now)), 0, "another one is there");
    assert!(machine.registry().knows(201), "it is our child still");
    let over = machine.step(died(202, &[]), now);
    let told = |effects: &[Effect]| {
        replies(effects).into_iter().find_map(|reply| {
            if let Reply::Emptied { emptied, .. } = reply {
                Some(emptied.spared.clone())
            } else {
                None
            }
        })
    };
    assert_eq!(told(&over), Some(vec![(process(201), "tmux".to_owned())]));
    assert!(machine.registry().is_idle() && machine.registry().has_spared());
    let effects = machine.step(died(201, &[]), now);
    assert!(matches!(effects[..], [Effect::Reap { pid: 201 }]), "{effects:?}");
    assert!(!machine.registry().has_spared());
    // Of a scope whose processes are no children of ours nothing is held open by it, and it is told too.
    let (mut machine, now) = running();
    machine.step(died(101, &[201]), now);
    machine.step(spare(999, 1), now);
    let over = machine.step(spare(201, 1), now);
    assert_eq!(told(&over).map(|spared| spared.len()), Some(2));
}
