//! A stream with a thread of its own, so that a reader that stands still (`| less`) holds up the
//! batch, as it should, but neither Ctrl-C nor SIGTERM.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{self, FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

/// Pieces that wait for the reader. Each is about one line; a slow reader is felt after this many.
const WAITING: usize = 256;

type Job = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// Writes jobs in order. After the first error (a closed pipe) the rest is dropped.
#[derive(Debug)]
pub(crate) struct Printer {
    jobs: mpsc::Sender<Job>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Printer {
    /// Over this writer.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn new(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING);
        let (ended, done) = oneshot::channel();
        let write = move || {
            let mut result = Ok(());
            while let Some(job) = waiting.blocking_recv() {
                if result.is_ok() {
                    result = job(&mut to).and_then(|()| to.flush());
                }
            }
            // Nobody listens when the command left without waiting for the reader.
            drop(ended.send(result));
        };
        std::thread::Builder::new().name("printer".to_owned()).spawn(write)?;
        Ok(Self { jobs, done })
    }

    /// Waits until one more job has room. Cancel safe.
    pub(crate) async fn ready(&self) {
        // An error means that the thread is gone, and then nothing can be in the way.
        drop(self.jobs.reserve().await);
    }

    /// Adds a job; drops it where there is no room. After [`Printer::ready`] there is.
    pub(crate) fn print(
        &self,
        job: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) {
        drop(self.jobs.try_send(Box::new(job)));
    }

    /// A line of text.
    pub(crate) fn line(&self, line: String) {
        self.print(move |to| writeln!(to, "{line}"));
    }

    /// Waits for the last job.
    ///
    /// # Errors
    /// The first one of the writer.
    pub(crate) async fn finish(self) -> io::Result<()> {
        drop(self.jobs);
        self.done.await.unwrap_or(Ok(()))
    }
}

/// Whether a standard stream was closed when this program began. `std` puts `/dev/null` there then, for
/// reading and writing; what a shell puts there for `>/dev/null` is for writing only.
pub(crate) fn was_closed(stream: impl AsFd) -> bool {
    let is_null = fstat(&stream)
        .is_ok_and(|stat| (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)) == (1, 3));
    is_null && fcntl_getfl(&stream).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// Ready when nobody reads this pipe or socket any more; what is neither has no reader to lose. Nothing need be written
/// for it. A thread waits for that, as long as this command lives.
pub(crate) async fn reader_gone(stream: impl AsFd + Send + 'static) {
    let kind = fstat(&stream).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
        let (tell, gone) = oneshot::channel();
        let wait = move || {
            // Nothing is asked for: an error of the stream is told always (man 2 poll).
            let mut watched = [PollFd::new(&stream, PollFlags::empty())];
            let result = loop {
                match poll(&mut watched, None) {
                    Err(Errno::INTR) => {}
                    result => break result,
                }
            };
            if result.is_ok() {
                // The command may have ended.
                _ = tell.send(());
            }
        };
        let thread = std::thread::Builder::new().name("reader-gone".to_owned()).spawn(wait);
        if thread.is_ok() && gone.await.is_ok() {
            return;
        }
    }
    std::future::pending().await
}

/// A closed pipe is a reader that had enough.
///
/// # Errors
/// Every other one.
pub(crate) fn forgive_closed_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc as std_mpsc;
    use std::time::Duration;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), future).await.expect("it does not end")
        })
    }

    #[test]
    fn lines_arrive_in_order() {
        let (reader, writer) = io::pipe().unwrap();
        block_on(async {
            let printer = Printer::new(writer).unwrap();
            for number in 0..1000 {
                printer.ready().await;
                printer.line(number.to_string());
                if number % WAITING == WAITING - 1 {
                    // The pipe holds all of it, so nobody has to read yet.
                    printer.ready().await;
                }
            }
            printer.finish().await.unwrap();
        });
        let text = io::read_to_string(reader).unwrap();
        assert!(text.lines().eq((0..1000).map(|number| number.to_string())));
    }

    #[test]
    fn a_closed_pipe_is_told_and_may_be_forgiven() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        block_on(async {
            let printer = Printer::new(writer).unwrap();
            for _ in 0..WAITING * 2 {
                printer.ready().await;
                printer.line("x".into());
            }
            let told = printer.finish().await;
            assert_eq!(told.as_ref().map_err(io::Error::kind), Err(io::ErrorKind::BrokenPipe));
            forgive_closed_pipe(told).unwrap();
        });
    }

    #[test]
    fn a_reader_that_goes_is_noticed_while_nothing_is_written() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (reader, writer) = io::pipe().unwrap();
            let mut gone = std::pin::pin!(reader_gone(writer));
            let mut later = std::pin::pin!(tokio::time::sleep(Duration::from_millis(20)));
            tokio::select! {
                () = &mut gone => panic!("it reads"),
                () = &mut later => drop(reader),
            }
            tokio::time::timeout(Duration::from_secs(30), gone).await.expect("it has gone");
            let file = std::fs::File::open("/dev/null").unwrap();
            let never = tokio::time::timeout(Duration::from_millis(20), reader_gone(file)).await;
            assert!(never.is_err(), "nobody reads it, and nobody can leave it");
        });
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_ready_and_nothing_else() {
        struct Stuck(std_mpsc::Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.recv().map_err(io::Error::other)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (release, stuck) = std_mpsc::channel();
        block_on(async {
            let printer = Printer::new(Stuck(stuck)).unwrap();
            let mut sent = 0_usize;
            let full = loop {
                tokio::select! {
                    () = printer.ready() => printer.line("x".into()),
                    () = tokio::time::sleep(Duration::from_millis(200)) => break sent,
                }
                sent += 1;
            };
            assert!((WAITING..=WAITING + 2).contains(&full), "{full}");
            printer.line("dropped, and nobody waits".into());
            drop(release);
            assert!(printer.finish().await.is_err());
        });
    }
}
