//! Memory that several processes see: a sealed memfd of words, mapped shared. [`Shared`] is the guards' table, [`Small`]
//! what a parent and one child see ([`crate::page`]).
#![expect(unsafe_code, reason = "mapping memory")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};

/// Nobody can change the size any more, so that reading never faults.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Words that other processes may change at any time.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    words: usize,
    memfd: OwnedFd,
}

impl Shared {
    /// `words` zeros. Pages that are never written to take no memory.
    pub(crate) fn create(words: usize) -> io::Result<Self> {
        let memfd = sealed("table", bytes(words)?)?;
        Self::map(memfd, words)
    }

    /// The memory that another process made with [`Shared::create`]: so many words at least.
    pub(crate) fn open(memfd: OwnedFd, least: usize) -> io::Result<Self> {
        let size = check(&memfd, bytes(least)?)?;
        Self::map(memfd, size / size_of::<u64>())
    }

    fn map(memfd: OwnedFd, words: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::of(&memfd, bytes(words)?)?, words, memfd })
    }

    /// The descriptor to hand to another process.
    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        let base = self.mapping.base.as_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is that long, aligned to a page, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(base, self.words) }
    }
}

/// The same of half-sized words, as the kernel's `futex` wants them, without its descriptor: one less for each child.
#[derive(Debug)]
pub(crate) struct Small(Mapping);

impl Small {
    /// So many zeros, and the descriptor for the other process.
    pub(crate) fn create(words: usize) -> io::Result<(Self, OwnedFd)> {
        let memfd = sealed("delegate-page", words * size_of::<u32>())?;
        Ok((Self(Mapping::of(&memfd, words * size_of::<u32>())?), memfd))
    }

    /// The memory that another process made with [`Small::create`].
    pub(crate) fn open(memfd: &OwnedFd, words: usize) -> io::Result<Self> {
        check(memfd, words * size_of::<u32>())?;
        Ok(Self(Mapping::of(memfd, words * size_of::<u32>())?))
    }

    pub(crate) fn words(&self) -> &[AtomicU32] {
        let base = self.0.base.as_ptr().cast::<AtomicU32>();
        // SAFETY: the mapping is that long, aligned to a page, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(base, self.0.length / size_of::<u32>()) }
    }
}

/// A shared mapping, for as long as this value lives.
#[derive(Debug)]
struct Mapping {
    base: NonNull<libc::c_void>,
    length: usize,
}

// SAFETY: only atomics are reached through it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(memfd: &OwnedFd, length: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let number = memfd.as_raw_fd();
        // SAFETY: a new mapping touches no memory that exists.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, number, 0) };
        match NonNull::new(base).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => Ok(Self { base, length }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; what was borrowed of it borrowed from this value.
        unsafe { libc::munmap(self.base.as_ptr(), self.length) };
    }
}

/// A memfd of this size that keeps it.
fn sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&memfd, u64::try_from(bytes).map_err(io::Error::other)?)?;
    rustix::fs::fcntl_add_seals(&memfd, SEALS)?;
    Ok(memfd)
}

/// Its size in bytes, which is this at least, and stays.
fn check(memfd: &OwnedFd, least: usize) -> io::Result<usize> {
    let keeps = rustix::fs::fcntl_get_seals(memfd)?.contains(SEALS);
    let size = usize::try_from(rustix::fs::fstat(memfd)?.st_size).unwrap_or(0);
    let good = keeps && size >= least;
    if good { Ok(size) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
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
        assert!(
            Small::open(&std::fs::File::open("/dev/null").expect("a file").into(), 16).is_err()
        );
    }
}
