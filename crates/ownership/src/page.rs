//! A page of memory that a parent and one child see: words that each may change at any time, and whose size nobody can
//! change any more, so that reading them never faults whatever the other does. What they mean is not known here.
//!
//! Talks to `sys`. Where there is no ownership there is no page, and whoever wants one does without.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Words of a page: 4 KiB.
pub const WORDS: usize = 1024;

/// The page, mapped for as long as this value lives.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct Page(crate::sys::shared::Small);

#[cfg(target_os = "linux")]
impl Page {
    /// A page of zeros, and the descriptor (a sealed memfd) to give to a child.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor left.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        crate::sys::shared::Small::create(WORDS).map(|(words, memfd)| (Self(words), memfd))
    }

    /// The page behind this descriptor, which is not needed any more then.
    ///
    /// # Errors
    /// When it is none: no memfd, one whose size may change, or too small.
    pub fn open(memfd: OwnedFd) -> io::Result<Self> {
        crate::sys::shared::Small::open(&memfd, WORDS).map(Self)
    }

    /// Takes over the page that this process inherited under this number, once. Call it before anything else opens
    /// descriptors.
    ///
    /// # Errors
    /// As of [`crate::inherit::take`] and [`Page::open`]; what is no page is left as it is.
    pub fn inherited(number: RawFd) -> io::Result<Self> {
        crate::inherit::take_memory(number).and_then(Self::open)
    }

    /// Its words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        self.0.words()
    }

    /// Waits until [`Page::wake`] is called for this word, at most this long (for ever without a time); not at all
    /// when its value is not `seen`. It may return for no reason.
    ///
    /// # Panics
    /// When there is no such word.
    pub fn wait(&self, word: usize, seen: u32, time: Option<Duration>) {
        use rustix::thread::futex;
        // A time beyond what the kernel takes is none.
        let time = time.and_then(|time| time.try_into().ok());
        // Woken, another value, a signal, or the time is over: the caller looks again.
        let _why = futex::wait(&self.words()[word], futex::Flags::empty(), seen, time.as_ref());
    }

    /// Wakes whoever waits for this word, in either process.
    ///
    /// # Panics
    /// When there is no such word.
    pub fn wake(&self, word: usize) {
        use rustix::thread::futex;
        let all = i32::MAX.unsigned_abs();
        let _woken = futex::wake(&self.words()[word], futex::Flags::empty(), all);
    }
}

/// There is none here.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct Page(std::convert::Infallible);

#[cfg(not(target_os = "linux"))]
impl Page {
    /// As on Linux.
    ///
    /// # Errors
    /// Always `Unsupported`.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Always `Unsupported`.
    pub fn open(_memfd: OwnedFd) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Always `Unsupported`.
    pub fn inherited(_number: RawFd) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As on Linux.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        match self.0 {}
    }

    /// As on Linux.
    pub fn wait(&self, _word: usize, _seen: u32, _time: Option<Duration>) {
        match self.0 {}
    }

    /// As on Linux.
    pub fn wake(&self, _word: usize) {
        match self.0 {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;

    #[test]
    fn both_sides_see_one_memory_and_who_waits_is_woken() {
        let (ours, memfd) = Page::create().expect("a page");
        let theirs = Page::open(memfd).expect("the same page");
        let waiter = thread::spawn(move || {
            while theirs.words()[3].load(Ordering::Acquire) == 0 {
                theirs.wait(3, 0, None);
            }
            theirs.words()[3].load(Ordering::Acquire)
        });
        ours.words()[3].store(7, Ordering::Release);
        while !waiter.is_finished() {
            ours.wake(3);
            thread::yield_now();
        }
        assert_eq!(waiter.join().expect("it returned"), 7);
        assert_eq!(ours.words().len(), WORDS);
    }

    #[test]
    fn a_wait_ends_with_its_time_and_at_another_value() {
        let (page, _memfd) = Page::create().expect("a page");
        page.wait(0, 0, Some(Duration::from_millis(1)));
        page.wait(0, 1, None);
    }

    #[test]
    fn what_is_no_page_is_none() {
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert!(Page::open(file.into()).is_err());
    }
}
