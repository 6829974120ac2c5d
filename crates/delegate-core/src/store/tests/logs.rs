//! The files of children: in order, capped, and honest about what is missing.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use delegate_protocol::event::Class;

use super::*;
use crate::store::{Limits, Lines, Log};

fn small() -> Limits {
    Limits { queue_bytes: 100, queue_pieces: 8, open_files: 4, file_bytes: 1000, pages: None }
}

/// Whether it was taken, or dropped.
fn append_event(store: &Store, class: Class, line: &[u8]) -> bool {
    let mut lines = Lines::of(class, line.to_vec());
    store.append_events(run(1), 0, &mut lines);
    lines.is_empty()
}

fn text(store: &Store, run: RunId, index: u32, log: Log) -> String {
    let path = store.child_dir(run, index).unwrap().join(log.file_name());
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

#[test]
fn bytes_are_written_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    for part in [&b"a\xff"[..], b"", b"\0\r\n", b"no newline"] {
        store.append(run(1), 0, Log::Stdout, part.to_vec());
    }
    store.append(run(1), 0, Log::Stderr, b"other".to_vec());
    store.flush(LONG);
    let folder = store.child_dir(run(1), 0).unwrap();
    assert_eq!(fs::read(folder.join("stdout")).unwrap(), b"a\xff\0\r\nno newline");
    assert_eq!(fs::read(folder.join("stderr")).unwrap(), b"other");
    assert!(!folder.join("events.jsonl").exists());
}

#[test]
fn more_children_than_open_files_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { open_files: 4, ..Limits::default() };
    let store = Store::open_with(dir.path(), limits);
    for round in 0..5 {
        for child in 0..40 {
            store.append(run(1), child, Log::Stdout, format!("{round} ").into_bytes());
        }
    }
    store.flush(LONG);
    // Of this directory, so that other tests of this process do not count.
    let ours = |link: &fs::DirEntry| {
        fs::read_link(link.path()).is_ok_and(|to| to.starts_with(dir.path().join("runs")))
    };
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        assert!(open.filter_map(Result::ok).filter(ours).count() <= 4);
    }
    for child in 0..40 {
        assert_eq!(text(&store, run(1), child, Log::Stdout), "0 1 2 3 4 ");
    }
}

#[test]
fn a_full_queue_drops_log_bytes_and_says_how_many_where_they_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), small());
    let release = stall(&store);
    store.append(run(1), 0, Log::Stdout, vec![b'a'; 100]);
    store.append(run(1), 0, Log::Stdout, vec![b'b'; 70]);
    store.append(run(1), 0, Log::Stdout, vec![b'c'; 7]);
    store.append(run(1), 1, Log::Stderr, vec![b'd'; 5]);
    drop(release);
    store.flush(LONG);
    store.append(run(1), 0, Log::Stdout, b"after\n".to_vec());
    store.flush(LONG);
    let expected = format!("{}\n[77 bytes not kept]\nafter\n", "a".repeat(100));
    assert_eq!(text(&store, run(1), 0, Log::Stdout), expected);
    assert_eq!(text(&store, run(1), 1, Log::Stderr), "[5 bytes not kept]\n");
}

#[test]
fn the_count_stands_before_the_bytes_that_follow() {
    let inbox = super::super::inbox::Inbox::new(10, 2);
    let key = (run(1), 0, Log::Stdout);
    let put = |bytes: &[u8]| inbox.append(key, &mut Lines::of(Class::Progress, bytes.to_vec()));
    let mut batch = super::super::inbox::Batch::default();
    assert_eq!(put(b"1234567890"), 0);
    assert_eq!(put(b"dropped"), 7);
    assert!(inbox.take(&mut batch));
    assert_eq!(put(b"next"), 0);
    assert!(inbox.take(&mut batch));
    let counts: Vec<_> =
        batch.pieces.iter().map(|piece| (piece.lines.len(), piece.dropped_before)).collect();
    assert_eq!(counts, [(10, 0), (0, 7), (4, 0)]);
}

#[test]
fn an_outcome_goes_through_a_full_queue() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), small());
    let release = stall(&store);
    for _ in 0..50 {
        store.append(run(1), 0, Log::Stdout, vec![b'x'; 100]);
    }
    let (stored, count) = counter();
    for index in 0..100 {
        let stored = stored.clone();
        store.put_outcome(run(1), outcome(index, "x"), move |on_disk| {
            stored.fetch_add(usize::from(on_disk), Ordering::SeqCst);
        });
    }
    assert_eq!(count(), 0, "the recorder was not stalled");
    drop(release);
    store.flush(LONG);
    assert_eq!(count(), 100);
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_lifecycle_line_is_given_back_and_its_sender_woken() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), small());
    let release = stall(&store);
    let append = |class, line: String| append_event(&store, class, line.as_bytes());
    // Text stops at the bound; lifecycle has as much again.
    for _ in 0..5 {
        // Dropped or not, it is never given back.
        assert!(append(Class::Progress, format!("{{\"p\":\"{}\"}}\n", "p".repeat(40))));
    }
    let line = |n: usize| format!("{{\"n\":{n}}}\n");
    let mut taken = 0;
    while append(Class::Lifecycle, line(taken)) {
        taken += 1;
    }
    assert!(taken >= 2, "{taken}");
    // Of both classes: only what may be left out is.
    let mut both = Lines::of(Class::Progress, b"{\"p\":0}\n".to_vec());
    both.add(Class::Lifecycle, |bytes| bytes.extend_from_slice(line(taken).as_bytes()));
    assert_eq!(store.append_events(run(1), 0, &mut both), 8);
    assert_eq!(both, Lines::of(Class::Lifecycle, line(taken).into_bytes()));
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let mut room = Box::pin(store.events_have_room());
    assert_eq!(room.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    drop(release);
    store.flush(LONG);
    assert!(flag.0.load(Ordering::SeqCst), "nobody was woken");
    assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!((store.append_events(run(1), 0, &mut both), both.len()), (0, 0));
    store.flush(LONG);
    let text = text(&store, run(1), 0, Log::Events);
    let numbers: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("every line is JSON"))
        .filter_map(|line| line["n"].as_u64())
        .collect();
    assert_eq!(numbers, (0..=taken as u64).collect::<Vec<_>>());
    assert!(text.contains("{\"event\":\"delegate.not_kept\",\"bytes\":"), "{text}");
}

#[test]
fn a_file_has_a_cap_and_says_at_the_end_what_is_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { file_bytes: 1000, ..Limits::default() };
    let store = Store::open_with(dir.path(), limits);
    store.begin_run(new_run(run(1)));
    for _ in 0..30 {
        store.append(run(1), 0, Log::Stdout, vec![b'x'; 99]);
    }
    let mut lines = Lines::of(Class::Progress, vec![b'\n'; 999]);
    lines.add(Class::Lifecycle, |bytes| bytes.extend_from_slice(b"{\"tool\":1}\n"));
    lines.add(Class::Progress, |bytes| bytes.extend_from_slice(b"{\"over\":1}\n"));
    assert_eq!(store.append_events(run(1), 0, &mut lines), 0);
    assert!(append_event(&store, Class::Lifecycle, b"{\"complete\":1}\n"));
    store.end_run(run(1), "completed", Duration::ZERO);
    store.flush(LONG);
    let expected = format!("{}\n[1970 bytes not kept]\n", "x".repeat(1000));
    assert_eq!(text(&store, run(1), 0, Log::Stdout), expected);
    let events = text(&store, run(1), 0, Log::Events);
    let end = "{\"tool\":1}\n{\"complete\":1}\n{\"event\":\"delegate.not_kept\",\"bytes\":11}\n";
    assert_eq!(events.trim_start_matches('\n'), end);
}

#[test]
fn a_line_begins_a_line_after_half_of_one_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let half = Store::open(dir.path());
    assert!(append_event(&half, Class::Lifecycle, b"{\"half"));
    drop(half);
    let store = Store::open(dir.path());
    assert!(append_event(&store, Class::Lifecycle, b"{}\n"));
    store.flush(LONG);
    assert_eq!(text(&store, run(1), 0, Log::Events), "{\"half\n{}\n");
}

#[test]
fn a_file_that_cannot_be_written_is_one_warning() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path());
    fs::create_dir_all(store.child_dir(run(1), 0).unwrap().join("stdout")).unwrap();
    for _ in 0..3 {
        store.append(run(1), 0, Log::Stdout, b"x".to_vec());
    }
    store.append(run(1), 0, Log::Stderr, b"fine".to_vec());
    store.flush(LONG);
    assert_eq!(text(&store, run(1), 0, Log::Stderr), "fine");
    let warnings = warnings(&store);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("not all output"), "{warnings:?}");
    assert!(store.is_durable(), "outcomes are");
}
