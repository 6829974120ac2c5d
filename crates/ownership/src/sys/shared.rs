//! Memory that several processes see: a sealed memfd of 64-bit words, mapped shared.
#![expect(unsafe_code, reason = "mapping memory")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};

/// Nobody can change the size any more, so that reading never faults.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Words that other processes may change at any time.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<AtomicU64>,
    words: usize,
    memfd: OwnedFd,
}

// SAFETY: only atomics are reached through it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// `words` zeros. Pages that are never written to take no memory.
    pub(crate) fn create(words: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("table", flags)?;
        let bytes = u64::try_from(bytes(words)?).map_err(io::Error::other)?;
        rustix::fs::ftruncate(&memfd, bytes)?;
        rustix::fs::fcntl_add_seals(&memfd, SEALS)?;
        Self::map(memfd, words)
    }

    /// The memory that another process made with [`Shared::create`]: so many words at least.
    pub(crate) fn open(memfd: OwnedFd, least: usize) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(&memfd)?.contains(SEALS);
        let size = usize::try_from(rustix::fs::fstat(&memfd)?.st_size).unwrap_or(0);
        if !sealed || size < bytes(least)? {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::map(memfd, size / size_of::<u64>())
    }

    fn map(memfd: OwnedFd, words: usize) -> io::Result<Self> {
        let length = bytes(words)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let number = memfd.as_raw_fd();
        // SAFETY: a new mapping touches no memory that exists.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, number, 0) };
        match NonNull::new(base.cast::<AtomicU64>()).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => Ok(Self { base, words, memfd }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// The descriptor to hand to another process.
    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is that long, aligned to a page, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Ok(length) = bytes(self.words) {
            // SAFETY: our own mapping; `words` borrows from this value.
            unsafe { libc::munmap(self.base.as_ptr().cast(), length) };
        }
    }
}

/// The low half of a word, as the kernel's `pid_t *`.
pub(crate) fn low_half(word: &AtomicU64) -> *mut libc::pid_t {
    let half = usize::from(cfg!(target_endian = "big"));
    let halves = ptr::from_ref(word).cast::<AtomicI32>();
    // SAFETY: a word has two halves.
    unsafe { halves.add(half) }.cast_mut().cast()
}

fn bytes(words: usize) -> io::Result<usize> {
    words.checked_mul(size_of::<u64>()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_mappings_are_the_same_memory() {
        let one = Shared::create(1024).expect("memory");
        let memfd = one.memfd().try_clone_to_owned().expect("descriptor");
        let two = Shared::open(memfd, 1024).expect("memory");
        one.words()[1023].store(7, Ordering::Release);
        assert_eq!(two.words()[1023].load(Ordering::Acquire), 7);
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("open", flags).expect("memfd");
        rustix::fs::ftruncate(&memfd, 1 << 20).expect("size");
        assert!(Shared::open(memfd, 16).is_err());
        let small = Shared::create(16).expect("memory");
        let memfd = small.memfd().try_clone_to_owned().expect("descriptor");
        assert!(Shared::open(memfd, 1024).is_err());
    }
}
