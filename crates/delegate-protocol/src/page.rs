//! What stands on the page that a parent and one child share: a word with which the parent interrupts, and the child's
//! last heartbeat record. Both are seen without a system call and without waking anybody; whoever has no page is
//! told the same in frames ([`crate::message`]).
//!
//! Pure: the words are somebody else's ([`AtomicU32`]s of any memory). A child may write whatever it likes there at any
//! time, so reading is total: a record that is torn, or that no writer of ours has written, is no news.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::message::Beat;
use crate::outcome::NAME_BYTES;

/// The word that the parent sets to [`INTERRUPTED`], and wakes; the parent never reads it.
pub const INTERRUPT: usize = 0;

/// Any other value says nothing.
pub const INTERRUPTED: u32 = 1;

/// Where the record begins, on another cache line than the word that the child looks at all the time.
const RECORD: usize = 16;

/// Counts writes: odd while one is going on. 0: nothing was written yet.
const COUNT: usize = RECORD;

/// Over the words of the record, and the count.
const CHECK: usize = RECORD + 1;

/// Where its fields begin.
const FIELDS: usize = RECORD + 2;

/// Numbers of 64 bits, low half first: sequence, model calls, quiet time, activity, time of writing.
const NUMBERS: usize = 5;

/// Words of a record: its numbers, the length of the tool's name, the name.
const LENGTH: usize = 2 * NUMBERS + 1 + NAME_BYTES / 4;

/// Words of all that is on the page.
pub const WORDS: usize = FIELDS + LENGTH;

/// The length of a name that is not there.
const NO_NAME: u32 = u32::MAX;

/// Times that a record is read again which was written meanwhile. A child that never stops writing has no news.
const TRIES: usize = 4;

type Fields = [u32; LENGTH];

/// What a child has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// As in a frame. Its `sequence` counts the records of this page.
    pub beat: Beat,
    /// When, in milliseconds of the machine's monotonic clock.
    pub at_ms: u64,
}

/// Asks the child to unwind. Waking it is the caller's.
pub fn interrupt(words: &[AtomicU32]) {
    if let Some(word) = words.get(INTERRUPT) {
        word.store(INTERRUPTED, Ordering::Release);
    }
}

/// Changes the word that says so without saying so, for who waits for it to change. An interrupt stays one.
pub fn nudge(words: &[AtomicU32]) {
    if let Some(word) = words.get(INTERRUPT) {
        let other = |word: u32| {
            // Over the one value that says something.
            (word != INTERRUPTED).then(|| word.wrapping_add(if word == 0 { 2 } else { 1 }))
        };
        let _interrupted = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, other);
    }
}

/// Whether the child was asked to unwind: one atomic load.
#[must_use]
pub fn is_interrupted(words: &[AtomicU32]) -> bool {
    words.get(INTERRUPT).is_some_and(|word| word.load(Ordering::Acquire) == INTERRUPTED)
}

/// Writes a record over the last one. One writer at a time. A name longer than [`NAME_BYTES`] is cut.
pub fn write(words: &[AtomicU32], record: &Record) {
    let Some(words) = words.get(..WORDS) else { return };
    let fields = pack(record);
    // Whatever stands there: another even number than before, and never 0 again.
    let count = (words[COUNT].load(Ordering::Relaxed) | 1).wrapping_add(1).max(2);
    words[COUNT].store(count.wrapping_sub(1), Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, field) in words[FIELDS..].iter().zip(fields) {
        word.store(field, Ordering::Relaxed);
    }
    words[CHECK].store(check(count, &fields), Ordering::Relaxed);
    words[COUNT].store(count, Ordering::Release);
}

/// Reads the last record; `None` where there is none, and where what stands there is none.
#[must_use]
pub fn read(words: &[AtomicU32]) -> Option<Record> {
    let words = words.get(..WORDS)?;
    for _ in 0..TRIES {
        let count = words[COUNT].load(Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let mut fields = [0; LENGTH];
        for (field, word) in fields.iter_mut().zip(&words[FIELDS..]) {
            *field = word.load(Ordering::Relaxed);
        }
        let sum = words[CHECK].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = count & 1 == 0 && words[COUNT].load(Ordering::Relaxed) == count;
        if whole {
            return if sum == check(count, &fields) { unpack(&fields) } else { None };
        }
        std::hint::spin_loop();
    }
    None
}

#[expect(clippy::cast_possible_truncation, reason = "halves of a number")]
fn pack(Record { beat, at_ms }: &Record) -> Fields {
    let Beat { sequence, api_calls, current_tool, quiet_ms, activity } = beat;
    let mut fields = [0; LENGTH];
    let numbers = [*sequence, *api_calls, *quiet_ms, *activity, *at_ms];
    for (halves, number) in fields.chunks_exact_mut(2).zip(numbers) {
        halves.copy_from_slice(&[number as u32, (number >> 32) as u32]);
    }
    let Some(name) = current_tool else {
        fields[2 * NUMBERS] = NO_NAME;
        return fields;
    };
    let name = cut(name);
    fields[2 * NUMBERS] = name.len() as u32;
    for (word, bytes) in fields[2 * NUMBERS + 1..].iter_mut().zip(name.as_bytes().chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_le_bytes(four);
    }
    fields
}

fn unpack(fields: &Fields) -> Option<Record> {
    let number = |at: usize| u64::from(fields[2 * at]) | u64::from(fields[2 * at + 1]) << 32;
    let current_tool = match fields[2 * NUMBERS] {
        NO_NAME => None,
        length => {
            let length = usize::try_from(length).ok().filter(|length| *length <= NAME_BYTES)?;
            let words = fields[2 * NUMBERS + 1..].iter();
            let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).take(length).collect();
            Some(String::from_utf8(bytes).ok()?)
        }
    };
    let beat = Beat {
        sequence: number(0),
        api_calls: number(1),
        current_tool,
        quiet_ms: number(2),
        activity: number(3),
    };
    Some(Record { beat, at_ms: number(4) })
}

/// FNV-1a over words: enough to tell a record from words that somebody else left there.
fn check(count: u32, fields: &Fields) -> u32 {
    let words = [count].into_iter().chain(fields.iter().copied());
    words.fold(0x811c_9dc5, |sum, word| (sum ^ word).wrapping_mul(0x0100_0193))
}

/// What of a name has room, cut between characters.
fn cut(name: &str) -> &str {
    let mut most = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(most) {
        most -= 1;
    }
    &name[..most]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn page() -> Vec<AtomicU32> {
        (0..WORDS).map(|_| AtomicU32::new(0)).collect()
    }

    fn record(sequence: u64, tool: Option<&str>) -> Record {
        let current_tool = tool.map(str::to_owned);
        let beat =
            Beat { sequence, api_calls: sequence, current_tool, quiet_ms: 7, activity: sequence };
        Record { beat, at_ms: sequence }
    }

    #[test]
    fn an_empty_page_says_nothing() {
        assert_eq!((read(&page()), is_interrupted(&page())), (None, false));
        assert_eq!((read(&[]), is_interrupted(&[])), (None, false));
        write(&[], &record(1, None));
        interrupt(&[]);
    }

    #[test]
    fn only_one_word_interrupts() {
        let page = page();
        for word in [0, 2, u32::MAX, INTERRUPTED << 16] {
            page[INTERRUPT].store(word, Ordering::Relaxed);
            assert!(!is_interrupted(&page), "{word}");
        }
        interrupt(&page);
        assert!(is_interrupted(&page));
        assert_eq!(read(&page), None, "that is no record");
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let page = page();
        write(&page, &record(1, Some(&"ö".repeat(NAME_BYTES))));
        let tool = read(&page).and_then(|record| record.beat.current_tool);
        assert_eq!(tool, Some("ö".repeat(NAME_BYTES / 2)));
    }

    #[test]
    fn a_count_that_comes_around_is_no_empty_page() {
        let page = page();
        for count in [u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            page[COUNT].store(count, Ordering::Relaxed);
            write(&page, &record(3, None));
            assert_eq!(read(&page), Some(record(3, None)), "{count}");
        }
    }

    /// Whoever reads while somebody writes gets a record that was written, or none.
    #[test]
    fn what_is_read_was_written() {
        let (page, done) = (Arc::new(page()), Arc::new(AtomicBool::new(false)));
        let (words, over) = (Arc::clone(&page), Arc::clone(&done));
        let writer = thread::spawn(move || {
            for number in 1..50_000 {
                write(
                    &words,
                    &record(number, Some(if number & 1 == 0 { "grep" } else { "a longer name" })),
                );
            }
            over.store(true, Ordering::Release);
        });
        let (mut last, mut seen) = (0, 0);
        while !done.load(Ordering::Acquire) {
            if let Some(found) = read(&page) {
                let number = found.beat.sequence;
                let tool = if number & 1 == 0 { "grep" } else { "a longer name" };
                assert_eq!(found, record(number, Some(tool)));
                assert!(number >= last);
                (last, seen) = (number, seen + 1);
            }
        }
        writer.join().expect("it wrote");
        assert_eq!(read(&page).map(|record| record.beat.sequence), Some(49_999));
        assert!(seen > 0 || last == 0);
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (numbers, proptest::option::of("\\PC{0,60}")).prop_map(|(numbers, current_tool)| {
            let (sequence, api_calls, quiet_ms, activity, at_ms) = numbers;
            Record { beat: Beat { sequence, api_calls, current_tool, quiet_ms, activity }, at_ms }
        })
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(records in prop::collection::vec(any_record(), 1..4)) {
            let page = page();
            for record in records {
                write(&page, &record);
                prop_assert_eq!(read(&page), Some(record));
            }
        }

        /// One word changed anywhere in the record is seen, and words of a stranger are no record.
        #[test]
        fn what_somebody_scribbled_is_no_news(
            record in any_record(),
            at in COUNT..WORDS,
            change in 1..=u32::MAX,
            noise in prop::collection::vec(any::<u32>(), WORDS),
        ) {
            let page = page();
            write(&page, &record);
            page[at].fetch_xor(change, Ordering::Relaxed);
            prop_assert_eq!(read(&page), None);
            for (word, noise) in page.iter().zip(noise) {
                word.store(noise, Ordering::Relaxed);
            }
            // Total whatever stands there; that noise has the right sum is one case in 2^32.
            drop(read(&page));
            write(&page, &record);
            prop_assert_eq!(read(&page), Some(record), "and the next record is read again");
        }
    }
}
