//! What a job prints: read as it comes by a thread of its own, and once more when nothing of the job is left, so that its
//! end is never told before its last words. The last part is kept.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use delegate_protocol::job::TAIL_CHARS;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};

/// Bytes that are kept, the last ones.
const KEPT: usize = 200_000;

/// Bytes of one read.
const PIECE: usize = 16 * 1024;

/// Reads in a row: more than a pipe holds. Who has the pipe elsewhere and writes on keeps nobody here.
const READS: usize = 256;

/// The output of one job; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Output(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Never blocks. `None` after its end.
    pipe: Option<PipeReader>,
    kept: VecDeque<u8>,
}

impl Output {
    pub(super) fn of(pipe: PipeReader) -> io::Result<Self> {
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Mutex::new(State { pipe: Some(pipe), kept: VecDeque::new() }))))
    }

    /// Reads on, until its end.
    pub(super) fn follow(&self) -> io::Result<()> {
        let own = self.clone();
        let pipe = {
            let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have ended before it was followed.
            let Some(pipe) = &state.pipe else { return Ok(()) };
            pipe.try_clone()?
        };
        let work = move || {
            loop {
                let mut ready = [PollFd::new(&pipe, PollFlags::IN)];
                match poll(&mut ready, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => {
                        tracing::debug!(target: "delegate::jobs", %error, "output of a job is lost");
                        return;
                    }
                }
                if own.drain() {
                    return;
                }
            }
        };
        thread::Builder::new().name("delegate-job".to_owned()).spawn(work).map(drop)
    }

    /// Takes what is there, without waiting. `true` at the end.
    pub(super) fn drain(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { pipe, kept } = &mut *state;
        let Some(reader) = pipe else { return true };
        let mut piece = vec![0; PIECE];
        for _ in 0..READS {
            match reader.read(&mut piece) {
                Ok(0) => {
                    *pipe = None;
                    return true;
                }
                Ok(read) => {
                    kept.extend(piece.iter().take(read));
                    let over = kept.len().saturating_sub(KEPT);
                    drop(kept.drain(..over));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => {
                    tracing::debug!(target: "delegate::jobs", %error, "output of a job is lost");
                    *pipe = None;
                    return true;
                }
            }
        }
        false
    }

    /// Its end, at least [`TAIL_CHARS`] where there are so many, with what has been printed by now.
    pub(super) fn tail(&self) -> String {
        self.drain();
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A character has four bytes at most.
        let skip = state.kept.len().saturating_sub(4 * TAIL_CHARS);
        let bytes: Vec<u8> = state.kept.iter().skip(skip).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_last_words_are_there_without_any_other_thread_and_the_first_ones_go() {
        let (read, mut write) = io::pipe().unwrap();
        let output = Output::of(read).unwrap();
        assert!(!output.drain(), "nothing is there, and nobody waits");
        for _ in 0..30 {
            write.write_all(&[b'x'; 10_000]).unwrap();
            assert!(!output.drain());
        }
        write.write_all(b"not read yet").unwrap();
        assert!(output.tail().ends_with("xnot read yet"));
        write.write_all("xlast words \u{e9}".as_bytes()).unwrap();
        drop(write);
        assert!(output.drain() && output.drain());
        assert!(output.tail().ends_with("xlast words \u{e9}"));
        assert_eq!(output.0.lock().unwrap().kept.len(), KEPT);
        output.follow().unwrap();
    }
}
