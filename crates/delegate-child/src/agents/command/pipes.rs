//! The three pipes of a running program, moved by one thread that waits in `poll`: writing its stdin
//! cannot deadlock with reading its stdout, and nothing is waited for but what is ready.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;

use super::lossy::Lossy;
use crate::agent::Failure;
use crate::answer::LongText;
use crate::kept::Stream;
use crate::session::Session;
use crate::tail::Tail;

/// Bytes of one read: what a pipe holds when nobody asked for more (man 7 pipe).
const READ: usize = 64 * 1024;

/// The longest piece of a line that is streamed; a longer line comes in pieces.
const LINE: usize = 64 * 1024;

/// Bytes of stderr that are kept.
const STDERR_RING: usize = 64 * 1024;

/// Our ends, all non-blocking, and what came over them so far.
pub(super) struct Pipes {
    stdin: Option<PipeWriter>,
    goal: Vec<u8>,
    /// Bytes of the goal that were written.
    written: usize,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
    /// Readable when there is something else to look at.
    woken: PipeReader,
    buffer: Box<[u8]>,
    lines: Lines,
    errors: Tail,
}

/// What came over stdout.
#[derive(Default)]
struct Lines {
    lossy: Lossy,
    /// The line that is not complete yet.
    line: String,
    answer: LongText,
}

impl Pipes {
    pub(super) fn new(
        goal: Vec<u8>,
        stdin: PipeWriter,
        stdout: PipeReader,
        stderr: PipeReader,
        woken: PipeReader,
    ) -> Self {
        Self {
            stdin: Some(stdin),
            goal,
            written: 0,
            stdout: Some(stdout),
            stderr: Some(stderr),
            woken,
            buffer: vec![0; READ].into_boxed_slice(),
            lines: Lines::default(),
            errors: Tail::new(STDERR_RING),
        }
    }

    /// Waits until at least one pipe is ready, and moves what is there.
    ///
    /// # Errors
    /// When the output is over the limit of the task, or cannot be kept.
    pub(super) fn step(&mut self, session: &mut Session) -> Result<(), Failure> {
        let [woken, stdin, stdout, stderr] = self.wait()?;
        if woken {
            self.clear_waker()?;
        }
        if stdin {
            self.feed();
        }
        if stdout {
            self.read_stdout(session)?;
        }
        if stderr {
            self.read_stderr(session)?;
        }
        Ok(())
    }

    /// Takes what is in the pipes now (man 2const FIONREAD), and not what may still be written; gives
    /// the answer and the end of stderr.
    ///
    /// # Errors
    /// As [`Pipes::step`].
    pub(super) fn finish(mut self, session: &mut Session) -> Result<(LongText, Tail), Failure> {
        self.stdin = None;
        let mut rest = ready(self.stdout.as_ref());
        while rest > 0 {
            let count = self.read_stdout(session)?;
            rest = if count == 0 { 0 } else { rest.saturating_sub(count as u64) };
        }
        let mut rest = ready(self.stderr.as_ref());
        while rest > 0 {
            let count = self.read_stderr(session)?;
            rest = if count == 0 { 0 } else { rest.saturating_sub(count as u64) };
        }
        self.lines.finish(session)?;
        Ok((self.lines.answer, self.errors))
    }

    /// Which of waker, stdin, stdout and stderr are ready.
    fn wait(&self) -> io::Result<[bool; 4]> {
        let ends = [
            Some((self.woken.as_fd(), PollFlags::IN)),
            self.stdin.as_ref().map(|end| (end.as_fd(), PollFlags::OUT)),
            self.stdout.as_ref().map(|end| (end.as_fd(), PollFlags::IN)),
            self.stderr.as_ref().map(|end| (end.as_fd(), PollFlags::IN)),
        ];
        let open = ends.iter().flatten();
        let mut polled: Vec<_> =
            open.map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok([false; 4]),
            Err(error) => return Err(error.into()),
        }
        let mut polled = polled.iter();
        Ok(ends
            .map(|end| end.is_some() && polled.next().is_some_and(|end| !end.revents().is_empty())))
    }

    fn clear_waker(&mut self) -> io::Result<()> {
        match self.woken.read(&mut self.buffer) {
            Err(error) if !is_transient(&error) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Writes more of the goal; closes stdin behind the last byte, or when the program has closed it.
    fn feed(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        match stdin.write(&self.goal[self.written..]) {
            Ok(count) => self.written += count,
            Err(error) if is_transient(&error) => return,
            // A program need not read its goal.
            Err(_) => self.written = self.goal.len(),
        }
        if self.written == self.goal.len() {
            self.stdin = None;
            self.goal = Vec::new();
            self.written = 0;
        }
    }

    fn read_stdout(&mut self, session: &mut Session) -> Result<usize, Failure> {
        let count = read(&mut self.stdout, &mut self.buffer)?;
        session.keep(Stream::Stdout, &self.buffer[..count]);
        self.lines.push(&self.buffer[..count], session)?;
        Ok(count)
    }

    fn read_stderr(&mut self, session: &mut Session) -> Result<usize, Failure> {
        let count = read(&mut self.stderr, &mut self.buffer)?;
        if count > 0 {
            session.alive();
            session.keep(Stream::Stderr, &self.buffer[..count]);
            self.errors.push(&self.buffer[..count]);
        }
        Ok(count)
    }
}

/// Bytes that can be read now.
fn ready(end: Option<&PipeReader>) -> u64 {
    end.and_then(|end| ioctl_fionread(end).ok()).unwrap_or(0)
}

/// Reads what is there; closes the end at the end of the stream.
fn read(end: &mut Option<PipeReader>, buffer: &mut [u8]) -> io::Result<usize> {
    let Some(reader) = end else { return Ok(0) };
    match reader.read(buffer) {
        Ok(0) => {
            *end = None;
            Ok(0)
        }
        Err(error) if is_transient(&error) => Ok(0),
        result => result,
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Lines {
    fn push(&mut self, bytes: &[u8], session: &mut Session) -> Result<(), Failure> {
        let mut text = String::with_capacity(bytes.len());
        self.lossy.push(bytes, &mut text);
        self.take(&text, session)
    }

    /// The end of the stream ends the last line.
    fn finish(&mut self, session: &mut Session) -> Result<(), Failure> {
        let mut text = String::new();
        self.lossy.finish(&mut text);
        self.take(&text, session)?;
        self.stream(session);
        self.answer.trim_newline();
        Ok(())
    }

    fn stream(&mut self, session: &mut Session) {
        session.text(&self.line);
        self.line.clear();
    }

    fn take(&mut self, text: &str, session: &mut Session) -> Result<(), Failure> {
        // One byte more than the limit may be the newline that is cut off at the end.
        let limit = session.spec().max_result_bytes;
        if self.answer.len() + text.len() as u64 > limit.saturating_add(1) {
            return Err(Failure::new(format!(
                "the output is over the limit of {limit} bytes (max_result_bytes); the program was ended"
            )));
        }
        self.answer
            .push(text)
            .map_err(|error| Failure::new(format!("the output cannot be kept: {error}")))?;
        // Whole lines as soon as they are there; those of one read in one go.
        let complete = text.rfind('\n').map_or(0, |at| at + 1);
        self.line.push_str(&text[..complete]);
        if complete > 0 {
            self.stream(session);
        }
        self.line.push_str(&text[complete..]);
        if self.line.len() >= LINE {
            self.stream(session);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::command::{nonblocking, wake};
    use crate::kept::Kept;
    use crate::owner_source::OwnerSource;
    use crate::queue::{MERGED_TEXT, QUEUE_BYTES};
    use crate::session::{Desk, Session};
    use delegate_protocol::spec::sample;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    /// The program's ends, and the waker.
    struct Program {
        stdin: PipeReader,
        stdout: PipeWriter,
        stderr: PipeWriter,
        waker: PipeWriter,
    }

    fn pipes(goal: &str) -> (Pipes, Program) {
        let (stdin, to_program) = io::pipe().unwrap();
        let (from_stdout, stdout) = io::pipe().unwrap();
        let (from_stderr, stderr) = io::pipe().unwrap();
        let (woken, waker) = io::pipe().unwrap();
        let pipes = Pipes::new(
            goal.as_bytes().to_vec(),
            nonblocking(to_program).unwrap(),
            nonblocking(from_stdout).unwrap(),
            nonblocking(from_stderr).unwrap(),
            nonblocking(woken).unwrap(),
        );
        (pipes, Program { stdin, stdout, stderr, waker })
    }

    fn session(max_result_bytes: u64) -> Session {
        Session::for_tests(|spec| spec.max_result_bytes = max_result_bytes)
    }

    /// Steps until both outputs are closed.
    fn run(pipes: &mut Pipes, session: &mut Session) -> Result<(), Failure> {
        while pipes.stdout.is_some() || pipes.stderr.is_some() {
            pipes.step(session)?;
        }
        Ok(())
    }

    /// A grandchild that outlived its program writes on while the last of the output is read: the reader
    /// waits for a full outbox then, until more has been written.
    #[test]
    fn a_pipe_that_is_written_without_end_ends_with_the_program() {
        let desk = Desk::new(Arc::default(), Arc::default());
        let spec = Arc::new(sample(0, "command", ""));
        let said = Arc::clone(&desk);
        let mut session = Session::new(spec, OwnerSource::of(None), Kept::default(), said);
        for _ in 0..QUEUE_BYTES / MERGED_TEXT {
            session.text(&"x".repeat(MERGED_TEXT));
        }
        let (pipes, program) = pipes("");
        let written = Arc::new(AtomicUsize::new(0));
        let (mut stdout, count) = (program.stdout, Arc::clone(&written));
        thread::spawn(move || {
            while stdout.write_all(&[b'y'; 4096]).is_ok() {
                count.fetch_add(4096, Ordering::Relaxed);
            }
        });
        let reached = |bytes| {
            while written.load(Ordering::Relaxed) < bytes {
                thread::yield_now()
            }
        };
        reached(READ);
        let (done, finished) = crossbeam_channel::bounded(1);
        thread::spawn(move || {
            let (answer, _) = pipes.finish(&mut session).unwrap();
            done.send(answer.len()).unwrap();
        });
        reached(2 * READ);
        let answer = (0..30_000).find_map(|_| {
            desk.outbox.try_take(&mut VecDeque::new());
            finished.recv_timeout(Duration::from_millis(1)).ok()
        });
        assert_eq!(answer, Some(READ as u64), "what was there, and nothing that came later");
    }

    #[test]
    fn a_large_goal_goes_in_while_a_large_output_comes_out() {
        let goal = "goal line é\n".repeat(300_000);
        let (mut pipes, mut program) = pipes(&goal);
        let cat = thread::spawn(move || {
            io::copy(&mut program.stdin, &mut program.stdout).unwrap();
            program.stderr.write_all(b"done").unwrap();
        });
        let mut session = session(1 << 30);
        run(&mut pipes, &mut session).unwrap();
        cat.join().unwrap();
        let (answer, errors) = pipes.finish(&mut session).unwrap();
        assert_eq!(answer.into_text().unwrap(), goal.trim_end_matches('\n'));
        assert_eq!(errors.text(100), "done");
        let events = session.said_for_tests();
        assert_eq!(events.concat(), goal);
    }

    #[test]
    fn a_program_that_reads_nothing_is_not_waited_for() {
        let (mut pipes, program) = pipes(&"x".repeat(1 << 20));
        drop(program);
        let mut session = session(10);
        run(&mut pipes, &mut session).unwrap();
        assert!(pipes.finish(&mut session).unwrap().0.is_empty());
    }

    #[test]
    fn what_is_in_the_pipe_is_taken_though_somebody_keeps_it_open() {
        let (pipes, mut kept) = pipes("");
        kept.stdout.write_all(b"before\nlast").unwrap();
        kept.stderr.write_all(b"oops").unwrap();
        let mut session = session(100);
        let (answer, errors) = pipes.finish(&mut session).unwrap();
        assert_eq!(answer.into_text().unwrap(), "before\nlast");
        assert_eq!(errors.text(100), "oops");
    }

    #[test]
    fn a_waker_ends_a_wait_in_which_nothing_comes() {
        let (mut pipes, program) = pipes("");
        pipes.stdin = None;
        wake(&program.waker);
        pipes.step(&mut session(10)).unwrap();
    }

    #[test]
    fn an_output_over_the_limit_is_a_failure_that_names_it() {
        let (mut pipes, mut program) = pipes("");
        program.stdout.write_all(b"12345\n").unwrap();
        drop(program);
        run(&mut pipes, &mut session(5)).unwrap();

        let (mut pipes, mut program) = self::pipes("");
        program.stdout.write_all(b"123456\n").unwrap();
        drop(program);
        match run(&mut pipes, &mut session(5)) {
            Err(Failure::Failed { message, .. }) => {
                assert!(message.contains("limit of 5 bytes"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_without_end_is_streamed_in_pieces_and_bad_bytes_are_replaced() {
        let (mut pipes, mut program) = pipes("");
        drop(program.stderr);
        let writer = thread::spawn(move || {
            program.stdout.write_all(&vec![b'x'; 3 << 20]).unwrap();
            program.stdout.write_all(b"\xff").unwrap();
        });
        let mut session = session(1 << 30);
        run(&mut pipes, &mut session).unwrap();
        writer.join().unwrap();
        assert!(pipes.lines.line.len() < 2 * LINE);
        let (answer, _) = pipes.finish(&mut session).unwrap();
        let text = answer.into_text().unwrap();
        assert!(text.ends_with("x\u{fffd}") && text.len() == (3 << 20) + 3);
        assert_eq!(session.said_for_tests().concat(), text);
    }
}
