//! What was started, where both guards see it: one row per scope in shared memory
//! ([`sys::shared`](crate::sys::shared)), so that whoever survives the other knows grace and state of
//! everything that the other had. Written by [`crate::supervisor_loop`] as it acts; the kernel itself
//! writes the number of a new process into its row before that process runs (`CLONE_PARENT_SETTID`).
//!
//! A row belongs to the guard whose generation stands in it, and only that one writes it. Words of a
//! torn row are never trusted further than to be decoded: a row that makes no sense is none.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::exit::{Exit, Released, Usage};
use crate::protocol::Failure;
use crate::registry::ScopeId;
use crate::spawn::Leftovers;
use crate::sys::Pid;
use crate::sys::shared::{Shared, low_half};

mod room;
mod words;

pub(crate) use room::is_too_small;
pub(crate) use words::{Flag, Stage};
use words::{
    decode_failure, decode_reached, decode_status, low, micros, reached_word, status_word,
};

/// Most scopes at once. A system commonly has room for 32,768 processes; unused rows take no memory.
const ROWS: usize = 65_536;

/// Words of one row: 144 bytes.
const ROW: usize = 19;

// The words of a row.
const STATE: usize = 0;
const SCOPE: usize = 1;
const PARENT: usize = 2;
const ID: usize = 3;
const GRACE: usize = 4;
const PID: usize = 5;
const FAILED: usize = 6;
const START: usize = 7;
const STATUS: usize = 8;
const USER: usize = 9;
const SYSTEM: usize = 10;
const MEMORY: usize = 11;
const FLAGS: usize = 12;
const RELEASE: usize = 13;
const RELEASED: usize = 14;
const MARK: usize = 15;
/// Grace of an end that was begun, and one more.
const ENDING: usize = 16;
/// Number 1 of its pid namespace.
const FIRST: usize = 17;
/// What it had met of its ration when its process had ended.
const REACHED: usize = 18;

/// Words before the first row.
const HEADER: usize = 64;

/// Header: one above the highest row that was ever used.
const USED: usize = 0;

/// Header: the number of the last guard that was started.
const GENERATION: usize = 1;

/// Header: the number of the keeper.
const KEEPER: usize = 2;

/// Header: the number of the last guard before this table, 0 if there was none.
const BEFORE: usize = 3;

/// Header: for tests, steps that were counted.
const STEPS: usize = 4;

/// Header: the highest number that the owner gave to a child.
const LAST_ID: usize = 5;

/// Header: where the marks of sweeping guards begin.
const SWEEPING: usize = 6;

/// Number of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot(usize);

/// A row, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    pub(crate) stage: Stage,
    pub(crate) scope: ScopeId,
    pub(crate) parent: ScopeId,
    pub(crate) id: u64,
    pub(crate) grace: Duration,
    /// 0 when there was no process yet.
    pub(crate) pid: Pid,
    /// Start time of the process; 0 when it was not read yet.
    pub(crate) start: u64,
    /// Why the process could not execute its program.
    pub(crate) failed: Option<Failure>,
    pub(crate) exit: Option<Exit>,
    /// Deadline of its release command.
    pub(crate) release: Option<Duration>,
    /// What became of that.
    pub(crate) released: Option<Released>,
    /// The mark of an adopted group; 0 for none.
    pub(crate) mark: u64,
    /// It is being ended, with this grace.
    pub(crate) ending: Option<Duration>,
    /// Number 1 of its pid namespace, as seen from here; 0 where it has none.
    pub(crate) first: Pid,
    flags: u64,
}

impl Row {
    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u64 != 0
    }

    pub(crate) fn policy(&self) -> Leftovers {
        match (self.has(Flag::Report), self.has(Flag::Keep)) {
            (true, _) => Leftovers::Report,
            (false, true) => Leftovers::Keep,
            (false, false) => Leftovers::Kill,
        }
    }
}

/// The table, as one guard holds it.
#[derive(Debug)]
pub(crate) struct Table {
    shared: Shared,
    /// No row below this one was free when we last looked.
    first_free: usize,
}

impl Table {
    /// With as many rows as the limit of file sizes allows, which holds for memory that is handed on too.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { shared: Shared::create(HEADER + room::rows()? * ROW)?, first_free: 0 })
    }

    pub(crate) fn open(memfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { shared: Shared::open(memfd, HEADER + room::FEWEST * ROW)?, first_free: 0 })
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.shared.memfd()
    }

    fn word(&self, slot: Slot, word: usize) -> &AtomicU64 {
        &self.shared.words()[HEADER + slot.0 * ROW + word]
    }

    fn get(&self, slot: Slot, word: usize) -> u64 {
        self.word(slot, word).load(Ordering::Acquire)
    }

    fn set(&self, slot: Slot, word: usize, value: u64) {
        self.word(slot, word).store(value, Ordering::Release);
    }

    /// Takes a row for a scope that is about to be. `None` when all are taken.
    pub(crate) fn claim(
        &mut self,
        holder: u32,
        scope: ScopeId,
        parent: ScopeId,
        id: u64,
        grace: Duration,
    ) -> Option<Slot> {
        // Between claim and intent it is nobody's, and forgotten if its taker dies.
        let taken = state(0, holder);
        let take = |slot: &Slot| {
            let order = Ordering::AcqRel;
            self.word(*slot, STATE).compare_exchange(0, taken, order, Ordering::Acquire).is_ok()
        };
        // What the other guard has freed below is found when nothing is free above.
        let order = (self.first_free..self.rows_at_all()).chain(0..self.first_free);
        let slot = order.map(Slot).find(take)?;
        self.first_free = slot.0 + 1;
        let used = u64::try_from(slot.0 + 1).unwrap_or(u64::MAX);
        self.shared.words()[USED].fetch_max(used, Ordering::AcqRel);
        for word in PID..ROW {
            self.set(slot, word, 0);
        }
        self.set(slot, SCOPE, scope.0);
        self.set(slot, PARENT, parent.0);
        self.set(slot, ID, id);
        self.set(slot, GRACE, micros(grace));
        if parent == ScopeId::ALL {
            self.shared.words()[LAST_ID].fetch_max(id, Ordering::AcqRel);
        }
        self.set(slot, STATE, state(Stage::Intent as u8, holder));
        Some(slot)
    }

    /// Above every number that the owner gave to a child.
    pub(crate) fn next_id(&self) -> u64 {
        self.shared.words()[LAST_ID].load(Ordering::Acquire).saturating_add(1)
    }

    pub(crate) fn advance(&self, slot: Slot, stage: Stage) {
        let holder = self.get(slot, STATE) >> 8;
        self.set(slot, STATE, holder << 8 | u64::from(stage as u8));
    }

    pub(crate) fn set_process(&self, slot: Slot, pid: Pid) {
        self.set(slot, PID, u64::from(pid.cast_unsigned()));
        self.advance(slot, Stage::Alive);
    }

    /// Before the process is reaped: after that nobody could be told any more.
    pub(crate) fn set_exit(&self, slot: Slot, exit: &Exit) {
        let Exit { status, usage, reached } = exit;
        self.set(slot, REACHED, reached_word(*reached));
        self.set(slot, USER, micros(usage.user));
        self.set(slot, SYSTEM, micros(usage.system));
        self.set(slot, MEMORY, usage.max_rss_kib);
        self.set(slot, STATUS, status_word(*status));
        self.advance(slot, Stage::Dead);
    }

    /// Unless the row is about another process by now.
    pub(crate) fn set_start(&self, slot: Slot, pid: Pid, start: u64) {
        if low(self.get(slot, PID)) == pid {
            self.set(slot, START, start);
        }
    }

    /// It is being ended: whoever goes on with it gives it no less time, and no more.
    pub(crate) fn set_ending(&self, slot: Slot, grace: Duration) {
        self.set(slot, ENDING, micros(grace).saturating_add(1));
    }

    pub(crate) fn stage(&self, slot: Slot) -> Option<Stage> {
        self.read(slot).map(|row| row.stage)
    }

    pub(crate) fn flag(&self, slot: Slot, flag: Flag, on: bool) {
        let flags = self.get(slot, FLAGS);
        let flags = if on { flags | flag as u64 } else { flags & !(flag as u64) };
        self.set(slot, FLAGS, flags);
    }

    pub(crate) fn is_flagged(&self, slot: Slot, flag: Flag) -> bool {
        self.get(slot, FLAGS) & flag as u64 != 0
    }

    pub(crate) fn set_policy(&self, slot: Slot, policy: Leftovers) {
        self.flag(slot, Flag::Report, policy == Leftovers::Report);
        self.flag(slot, Flag::Keep, policy == Leftovers::Keep);
    }

    /// Where the kernel writes the number of a new process.
    pub(crate) fn pid_word(&self, slot: Slot) -> *mut libc::pid_t {
        low_half(self.word(slot, PID))
    }

    /// Where the kernel writes the number of the process that is number 1 of its pid namespace.
    pub(crate) fn first_word(&self, slot: Slot) -> *mut libc::pid_t {
        low_half(self.word(slot, FIRST))
    }

    /// That one is gone.
    pub(crate) fn forget_first(&self, slot: Slot) {
        self.set(slot, FIRST, 0);
    }

    /// Where a process that cannot execute its program says why.
    pub(crate) fn failed_word(&self, slot: Slot) -> &AtomicU64 {
        self.word(slot, FAILED)
    }

    /// A row that survives its holder belongs to this guard from now on.
    pub(crate) fn take_over(&self, slot: Slot, holder: u32) {
        let stage = self.get(slot, STATE) & 0xff;
        self.set(slot, STATE, u64::from(holder) << 8 | stage);
    }

    /// Nothing, if it is not this guard's: freed once, it may be the other one's a moment later.
    pub(crate) fn free(&mut self, slot: Slot, holder: u32) {
        if self.get(slot, STATE) >> 8 == u64::from(holder) {
            self.first_free = self.first_free.min(slot.0);
            self.set(slot, STATE, 0);
        }
    }

    /// The rows of this guard, older scopes first.
    pub(crate) fn rows(&self, holder: u32) -> Vec<Row> {
        let mut rows: Vec<_> = self.slots_of(holder).filter_map(|slot| self.read(slot)).collect();
        rows.sort_by_key(|row| row.scope);
        rows
    }

    /// Whether this guard has any row.
    pub(crate) fn holds_any(&self, holder: u32) -> bool {
        self.slots_of(holder).next().is_some()
    }

    /// The longest time that a row of this guard may take for its end, grace and release command.
    pub(crate) fn longest_end(&self, holder: u32) -> Duration {
        let ends = self
            .slots_of(holder)
            .map(|slot| self.get(slot, GRACE).saturating_add(self.get(slot, RELEASE)));
        Duration::from_micros(ends.max().unwrap_or(0))
    }

    /// Frees what a dead guard had begun to claim, and nothing else.
    pub(crate) fn forget_claims(&mut self, holder: u32) {
        let claims: Vec<_> =
            self.slots_of(holder).filter(|slot| self.get(*slot, STATE) & 0xff == 0).collect();
        for slot in claims {
            self.free(slot, holder);
        }
    }

    fn slots_of(&self, holder: u32) -> impl Iterator<Item = Slot> {
        (0..self.used())
            .map(Slot)
            .filter(move |slot| self.get(*slot, STATE) >> 8 == u64::from(holder))
    }

    /// `None` where it makes no sense.
    pub(crate) fn read(&self, slot: Slot) -> Option<Row> {
        let stage = match self.get(slot, STATE) & 0xff {
            1 => Stage::Intent,
            2 => Stage::Alive,
            3 => Stage::Dead,
            4 => Stage::Empty,
            _ => return None,
        };
        Some(Row {
            slot,
            stage,
            scope: ScopeId(self.get(slot, SCOPE)),
            parent: ScopeId(self.get(slot, PARENT)),
            id: self.get(slot, ID),
            grace: Duration::from_micros(self.get(slot, GRACE)),
            pid: low(self.get(slot, PID)),
            start: self.get(slot, START),
            failed: decode_failure(self.get(slot, FAILED)),
            exit: self.exit(slot),
            release: self.release(slot),
            released: self.released(slot),
            mark: self.get(slot, MARK),
            ending: self.get(slot, ENDING).checked_sub(1).map(Duration::from_micros),
            first: low(self.get(slot, FIRST)),
            flags: self.get(slot, FLAGS),
        })
    }

    fn exit(&self, slot: Slot) -> Option<Exit> {
        let status = decode_status(self.get(slot, STATUS))?;
        let usage = Usage {
            user: Duration::from_micros(self.get(slot, USER)),
            system: Duration::from_micros(self.get(slot, SYSTEM)),
            max_rss_kib: self.get(slot, MEMORY),
        };
        Some(Exit { status, usage, reached: decode_reached(self.get(slot, REACHED)) })
    }

    pub(crate) fn set_release(&self, slot: Slot, deadline: Duration) {
        self.set(slot, RELEASE, micros(deadline).saturating_add(1));
    }

    fn release(&self, slot: Slot) -> Option<Duration> {
        self.get(slot, RELEASE).checked_sub(1).map(Duration::from_micros)
    }

    pub(crate) fn set_released(&self, slot: Slot, released: Released) {
        let word = match released {
            Released::Ended(status) => status_word(status),
            Released::TimedOut => 5 << 32,
            Released::NotStarted { errno } => 6 << 32 | u64::from(errno.cast_unsigned()),
        };
        self.set(slot, RELEASED, word);
    }

    fn released(&self, slot: Slot) -> Option<Released> {
        let word = self.get(slot, RELEASED);
        match word >> 32 {
            5 => Some(Released::TimedOut),
            6 => Some(Released::NotStarted { errno: low(word) }),
            _ => decode_status(word).map(Released::Ended),
        }
    }

    pub(crate) fn set_mark(&self, slot: Slot, mark: u64) {
        self.set(slot, MARK, mark);
    }

    /// The number of the process that a row is about; 0 for none.
    pub(crate) fn pid(&self, slot: Slot) -> Pid {
        low(self.get(slot, PID))
    }

    /// A number for the next guard, above all before it.
    pub(crate) fn next_generation(&self) -> u32 {
        let next = self.shared.words()[GENERATION].fetch_add(1, Ordering::AcqRel) + 1;
        u32::try_from(next).unwrap_or(u32::MAX)
    }

    /// Whether the owner had guards before those of this table, or what a dead one was the parent of.
    pub(crate) fn had_others(&self) -> bool {
        self.shared.words()[BEFORE].load(Ordering::Acquire) > 0
    }

    /// For tests only: how often this was called for any table's step.
    pub(crate) fn count_step(&self) -> u64 {
        self.shared.words()[STEPS].fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last number that was taken.
    pub(crate) fn last_generation(&self) -> u32 {
        u32::try_from(self.shared.words()[GENERATION].load(Ordering::Acquire)).unwrap_or(u32::MAX)
    }

    /// The keeper of the supervisor that is started next.
    pub(crate) fn set_keeper(&self, generation: u32) {
        self.shared.words()[KEEPER].store(u64::from(generation), Ordering::Release);
    }

    pub(crate) fn keeper(&self) -> u32 {
        u32::try_from(self.shared.words()[KEEPER].load(Ordering::Acquire)).unwrap_or(0)
    }

    /// A guard of this table has died that was somebody's parent: as if there had been others.
    pub(crate) fn note_lost_parent(&self) {
        self.shared.words()[BEFORE].fetch_max(1, Ordering::AcqRel);
    }

    /// The guards before this table's were numbered up to this.
    pub(crate) fn numbered_up_to(&self, generation: u32) {
        self.shared.words()[GENERATION].store(u64::from(generation), Ordering::Release);
        self.shared.words()[BEFORE].store(u64::from(generation), Ordering::Release);
    }

    /// This guard has seen the owner's death and acts on it.
    pub(crate) fn mark_sweeping(&self, generation: u32) {
        self.shared.words()[sweeping_word(generation)]
            .store(u64::from(generation) + 1, Ordering::Release);
    }

    pub(crate) fn is_sweeping(&self, generation: u32) -> bool {
        let word = &self.shared.words()[sweeping_word(generation)];
        word.load(Ordering::Acquire) == u64::from(generation) + 1
    }
}

/// Each of the last generations has a word of the header; two live at a time.
fn sweeping_word(generation: u32) -> usize {
    let words = u32::try_from(HEADER - SWEEPING).unwrap_or(1);
    SWEEPING + usize::try_from(generation % words).unwrap_or(0)
}

fn state(stage: u8, holder: u32) -> u64 {
    u64::from(holder) << 8 | u64::from(stage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exit::ExitStatus;
    use crate::spawn::Phase;

    const GRACE: Duration = Duration::from_millis(1500);

    fn claim(table: &mut Table, holder: u32, scope: u64) -> Slot {
        table.claim(holder, ScopeId(scope), ScopeId::ALL, scope, GRACE).expect("room")
    }

    fn second(table: &Table) -> Table {
        Table::open(table.memfd().try_clone_to_owned().expect("descriptor")).expect("table")
    }

    #[test]
    fn what_one_guard_wrote_the_other_reads() {
        let mut ours = Table::create().expect("table");
        let theirs = second(&ours);
        let slot = claim(&mut ours, 1, 7);
        assert_eq!(theirs.rows(1)[0].stage, Stage::Intent);
        ours.set_process(slot, 42);
        ours.set_start(slot, 42, 99);
        ours.set_start(slot, 43, 100);
        ours.flag(slot, Flag::ToldStarted, true);
        ours.flag(slot, Flag::Paused, true);
        ours.flag(slot, Flag::Paused, false);
        let status = ExitStatus::Signal { signal: 9, core_dumped: true };
        let usage = Usage { user: GRACE, system: Duration::ZERO, max_rss_kib: 5 };
        let reached = crate::exit::Reached { memory: 3, processes: 70_000, cpu: true };
        let exit = Exit { status, usage, reached };
        ours.set_exit(slot, &exit);
        let row = theirs.rows(1).pop().expect("row");
        assert_eq!((row.stage, row.scope, row.id, row.grace), (Stage::Dead, ScopeId(7), 7, GRACE));
        assert_eq!((row.pid, row.start, row.exit.clone()), (42, 99, Some(exit)));
        assert!(row.has(Flag::ToldStarted) && !row.has(Flag::Paused));
        assert!(theirs.rows(2).is_empty());
        theirs.take_over(slot, 2);
        assert!(!ours.holds_any(1) && ours.holds_any(2));
    }

    #[test]
    fn rows_of_two_guards_do_not_meet_and_are_used_again() {
        let mut ours = Table::create().expect("table");
        let mut theirs = second(&ours);
        let slots = [claim(&mut ours, 1, 1), claim(&mut theirs, 2, 2), claim(&mut ours, 1, 3)];
        assert_eq!((ours.next_id(), theirs.next_id()), (4, 4));
        assert_eq!(slots.iter().collect::<std::collections::HashSet<_>>().len(), 3);
        ours.free(slots[0], 1);
        assert_eq!(claim(&mut ours, 1, 4), slots[0]);
        let scopes: Vec<_> = ours.rows(1).into_iter().map(|row| row.scope.0).collect();
        assert_eq!(scopes, [3, 4]);
    }

    #[test]
    fn a_full_table_refuses_and_a_freed_row_is_found() {
        let mut table = Table::create().expect("table");
        let mut last = None;
        for scope in 0..ROWS {
            last = Some(claim(&mut table, 1, u64::try_from(scope).expect("number")));
        }
        assert_eq!(table.claim(1, ScopeId(9), ScopeId::ALL, 9, GRACE), None);
        second(&table).free(last.expect("one"), 1);
        assert_eq!(
            table.claim(1, ScopeId(9), ScopeId::ALL, 9, GRACE),
            last,
            "the other one freed it"
        );
    }

    /// Whoever opens a table sees as many rows as its maker.
    #[test]
    fn a_short_table_is_full_for_both() {
        let shared = Shared::create(HEADER + room::FEWEST * ROW).expect("memory");
        let mut ours = Table { shared, first_free: 0 };
        let mut theirs = second(&ours);
        for scope in 0..room::FEWEST {
            claim(&mut theirs, 2, u64::try_from(scope).expect("number"));
        }
        assert_eq!(ours.claim(1, ScopeId(99), ScopeId::ALL, 99, GRACE), None);
        assert_eq!(ours.rows(2).len(), room::FEWEST);
    }

    #[test]
    fn a_row_that_is_the_other_ones_by_now_is_not_freed_again() {
        let mut ours = Table::create().expect("table");
        let mut theirs = second(&ours);
        let slot = claim(&mut ours, 1, 1);
        ours.free(slot, 1);
        assert_eq!(claim(&mut theirs, 2, 2), slot);
        ours.free(slot, 1);
        assert_eq!(theirs.rows(2).len(), 1);
    }

    #[test]
    fn the_grace_of_an_end_is_kept_beside_that_of_its_scope() {
        let mut table = Table::create().expect("table");
        let slot = claim(&mut table, 1, 1);
        assert_eq!(table.rows(1)[0].ending, None);
        for grace in [Duration::ZERO, GRACE * 2, Duration::MAX] {
            table.set_ending(slot, grace);
            let row = table.rows(1).pop().expect("row");
            assert_eq!((row.grace, row.ending), (GRACE, Some(grace.min(ENDLESS))));
        }
        assert_eq!(table.longest_end(1), GRACE, "no end outlives the owner for longer");
        table.free(slot, 1);
        assert_eq!(table.rows(1).len(), 0);
        claim(&mut table, 1, 2);
        assert_eq!(table.rows(1)[0].ending, None, "that was another scope's");
    }

    /// The longest that a row can hold.
    const ENDLESS: Duration = Duration::from_micros(u64::MAX - 1);

    #[test]
    fn a_claim_that_was_not_finished_is_no_row() {
        let mut table = Table::create().expect("table");
        let slot = claim(&mut table, 1, 1);
        table.set(slot, STATE, state(0, 1));
        assert!(table.rows(1).is_empty() && table.holds_any(1));
        table.forget_claims(1);
        assert!(!table.holds_any(1));
    }

    #[test]
    fn the_mark_of_one_generation_is_not_that_of_another() {
        let table = Table::create().expect("table");
        table.mark_sweeping(3);
        assert!(table.is_sweeping(3) && !table.is_sweeping(4) && !table.is_sweeping(3 + 59));
    }

    #[test]
    fn failures_survive() {
        for phase in [
            Phase::Request,
            Phase::Supervisor,
            Phase::Clone,
            Phase::Setup,
            Phase::Chdir,
            Phase::Exec,
        ] {
            let failed = crate::sys::start::Failed { phase, errno: libc::ENOENT };
            let failure = Failure { phase, errno: libc::ENOENT };
            assert_eq!(decode_failure(failed.word()), Some(failure));
        }
        assert_eq!(decode_failure(0), None);
    }

    proptest! {
        #[test]
        fn reading_is_total(words in prop::collection::vec(any::<u64>(), ROW)) {
            let mut table = Table::create().expect("table");
            let slot = claim(&mut table, 1, 1);
            for (word, value) in words.into_iter().enumerate() {
                table.set(slot, word, value);
            }
            let _row = table.read(slot);
        }
    }
}
