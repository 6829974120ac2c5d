//! Where a child's output is kept as bytes, beside what it says in events. A worker process has its
//! own stdout and stderr, which its parent reads; a worker thread gets two pipes instead, so that the
//! same is kept of both.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

/// The two streams, written to as they come.
#[derive(Debug, Default)]
pub struct Kept(Option<[File; 2]>);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Kept {
    /// Those of this process; none where they cannot be had.
    #[must_use]
    pub fn of_process() -> Self {
        let own = || Ok([copy(&io::stdout())?, copy(&io::stderr())?]);
        Self(own().map_err(|error: io::Error| tracing::debug!(%error, "no output is kept")).ok())
    }

    /// New ones, with the ends that are read: stdout, stderr.
    ///
    /// # Errors
    /// When no descriptor can be had.
    pub fn pipes() -> io::Result<(Self, (OwnedFd, OwnedFd))> {
        let (from_stdout, stdout) = io::pipe()?;
        let (from_stderr, stderr) = io::pipe()?;
        let ours = [stdout, stderr].map(|end| File::from(OwnedFd::from(end)));
        Ok((Self(Some(ours)), (from_stdout.into(), from_stderr.into())))
    }

    /// Keeps bytes. Where nobody reads any more they are nobody's loss.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let Some([stdout, stderr]) = &mut self.0 else { return };
        let to = match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        };
        if let Err(error) = to.write_all(bytes) {
            tracing::debug!(%error, "output is kept no longer");
            self.0 = None;
        }
    }
}

fn copy(stream: &impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn each_stream_is_kept_apart_and_nobody_must_read_it() {
        let (mut kept, (stdout, stderr)) = Kept::pipes().unwrap();
        kept.write(Stream::Stdout, b"out\xff");
        kept.write(Stream::Stderr, b"err");
        drop(stderr);
        kept.write(Stream::Stderr, b"lost");
        kept.write(Stream::Stdout, b"lost too");
        let mut seen = Vec::new();
        File::from(stdout).read_to_end(&mut seen).unwrap();
        assert_eq!(seen, b"out\xff");
        Kept::default().write(Stream::Stdout, b"nowhere");
    }
}
