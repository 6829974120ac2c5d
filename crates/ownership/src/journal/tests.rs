//! Records survive their bytes, whatever stands around them; a journal is turned over, and is not
//! taken while somebody writes.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;
use crate::exit::{ExitStatus, Released};

fn owner() -> Identity {
    Identity::own()
}

fn record(event: Event) -> Record {
    Record { at: 1_700_000_000_000, guard: Guard::Supervisor, event }
}

fn any_event() -> impl Strategy<Value = Event> {
    let (spawn, number, wide) = (any::<u64>(), any::<u32>(), any::<u64>());
    const WHYS: [Why; 5] =
        [Why::Asked, Why::OwnerGone, Why::Leftover, Why::GraceOver, Why::Unattributed];
    (0..17_u8, spawn, number, wide, any::<i32>(), any::<bool>(), prop::sample::select(&WHYS[..]))
        .prop_map(|(kind, spawn, pid, wide, value, flag, why)| match kind {
            0 => Event::Started { spawn, pid, start: wide, inode: !wide },
            1 => Event::Exited { spawn, pid, status: ExitStatus::Code(value) },
            2 => {
                let status = ExitStatus::Signal { signal: value, core_dumped: flag };
                Event::Exited { spawn, pid, status }
            }
            3 => Event::Emptied { spawn, leftovers: pid },
            4 => Event::Left { spawn, pid },
            5 => Event::OwnerGone,
            6 => Event::SweepBegun,
            7 => Event::SweepEnded { left: pid },
            8 => Event::Takeover { pid, generation: value.cast_unsigned() },
            9 => Event::NoDoor { errno: value },
            10 => Event::Reattached,
            11 => Event::Released { spawn, released: Released::TimedOut },
            12 => Event::Released { spawn, released: Released::NotStarted { errno: value } },
            13 => {
                let status = ExitStatus::Signal { signal: value, core_dumped: flag };
                Event::Released { spawn, released: Released::Ended(status) }
            }
            14 => Event::NoCgroup { spawn, errno: value },
            15 => {
                let rule = RuleName::of(if flag { "tmux" } else { "a-name-of-12" });
                Event::Spared { spawn, pid, start: wide, inode: !wide, rule }
            }
            _ => Event::KillSent { spawn, pid, signal: value, why },
        })
}

fn any_record() -> impl Strategy<Value = Record> {
    (any::<u64>(), any::<bool>(), any_event()).prop_map(|(at, keeper, event)| {
        let guard = if keeper { Guard::Keeper } else { Guard::Supervisor };
        Record { at, guard, event }
    })
}

proptest! {
    #[test]
    fn records_survive_torn_neighbours(
        records in prop::collection::vec((any_record(), 0..RECORD_BYTES), 0..20),
    ) {
        let mut bytes = codec::encode_owner(&owner()).to_vec();
        let mut torn = 0;
        for (record, cut) in &records {
            let whole = codec::encode(record);
            bytes.extend(&whole[..*cut]);
            torn += cut;
            bytes.extend(whole);
        }
        let contents = read(&bytes);
        let expected: Vec<_> = records.iter().map(|(record, _)| *record).collect();
        prop_assert_eq!(contents.records, expected);
        prop_assert_eq!(contents.skipped, torn);
        prop_assert_eq!(contents.owner, Some(Identity { cgroup: None, ..owner() }));
    }

    #[test]
    fn reading_is_total(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(read(&bytes).skipped <= bytes.len());
    }

    #[test]
    fn a_changed_bit_is_noticed(record in any_record(), bit in 0..RECORD_BYTES * 8) {
        let mut bytes = codec::encode(&record);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(read(&bytes).records, []);
    }
}

#[test]
fn a_record_of_another_version_is_skipped() {
    let good = codec::encode(&record(Event::OwnerGone));
    let mut foreign = good;
    foreign[4] = 2;
    let foreign = codec::seal(foreign);
    let contents = read(&[good, foreign, good].concat());
    assert_eq!((contents.records.len(), contents.skipped), (2, RECORD_BYTES));
}

#[test]
fn a_journal_is_private_and_read_back() {
    let dir = tempfile::tempdir().expect("dir");
    let journal = Journal::open(dir.path(), &owner()).expect("journal");
    let other = Journal::open(dir.path(), &owner()).expect("the other guard's");
    journal.append(&record(Event::OwnerGone)).expect("append");
    other.append(&record(Event::SweepBegun)).expect("append");
    let path = files(dir.path()).expect("files").pop().expect("one");
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&dir.path().join(FOLDER))), (0o600, 0o700));

    assert!(Finished::take(&path).expect("take").is_none(), "two guards hold it");
    drop(journal);
    assert!(Finished::take(&path).expect("take").is_none(), "one guard holds it");
    drop(other);
    let finished = Finished::take(&path).expect("take").expect("nobody holds it");
    let events: Vec<_> = finished.contents.records.iter().map(|record| record.event).collect();
    assert_eq!(events, [Event::OwnerGone, Event::SweepBegun]);
}

#[test]
fn a_long_journal_is_turned_over_and_both_guards_follow() {
    let dir = tempfile::tempdir().expect("dir");
    let bytes = |records: usize| u64::try_from(records * RECORD_BYTES).expect("small");
    let open = || Journal::open_with(dir.path(), &owner(), bytes(8)).expect("journal");
    let (one, two) = (open(), open());
    for spawn in 0..40 {
        let guard = if spawn % 2 == 0 { &one } else { &two };
        guard.append(&record(Event::Emptied { spawn, leftovers: 0 })).expect("append");
    }
    drop((one, two));
    let (mut spawns, mut size) = (Vec::new(), 0);
    for path in files(dir.path()).expect("files") {
        let finished = Finished::take(&path).expect("take").expect("free");
        size += fs::metadata(&path).expect("metadata").len();
        spawns.extend(finished.contents.records.iter().filter_map(|record| {
            if let Event::Emptied { spawn, .. } = record.event { Some(spawn) } else { None }
        }));
    }
    assert!(size <= bytes(2 * 18), "{size} bytes in two parts");
    assert!(spawns.len() >= 8 && spawns.contains(&39), "{spawns:?}");
}

#[test]
fn a_guard_does_not_wait_for_somebody_who_folds() {
    let dir = tempfile::tempdir().expect("dir");
    drop(Journal::open(dir.path(), &owner()).expect("journal"));
    let path = files(dir.path()).expect("files").pop().expect("one");
    let folding = Finished::take(&path).expect("take").expect("free");
    let journal = Journal::open(dir.path(), &owner()).expect("at once");
    journal.append(&record(Event::OwnerGone)).expect("append");
    drop(folding);
}

#[test]
fn a_journal_without_its_head_is_known_by_its_name() {
    let dir = tempfile::tempdir().expect("dir");
    drop(Journal::open(dir.path(), &owner()).expect("journal"));
    let path = files(dir.path()).expect("files").pop().expect("one");
    fs::write(&path, &codec::encode_owner(&owner())[..30]).expect("write");
    let finished = Finished::take(&path).expect("take").expect("free");
    let named = finished.contents.owner.expect("by name");
    assert_eq!((named.boot, named.pid, named.start), (owner().boot, owner().pid, owner().start));
}

#[test]
fn a_folder_that_is_gone_is_not_made_again() {
    let dir = tempfile::tempdir().expect("dir");
    let state = dir.path().join("state");
    Journal::open(&state, &owner()).expect_err("there is no such folder");
    assert!(!state.exists());
    fs::create_dir(&state).expect("make");
    for _ in 0..2 {
        Journal::open(&state, &owner()).expect("a journal");
    }
}
