//! `delegate logs ID [CHILD]`: what children wrote and said, from the files of the state directory.
//!
//! With `-f` the files are looked at again every [`POLL`] until the run has ended: they may be on any
//! file system, and a growing file costs one `stat`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

use delegate_core::store::{Log, Reader, RunRecord, Store, StoreError};

use crate::cli::args::LogsArgs;
use crate::cli::control;
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::printer::forgive_closed_pipe;
use crate::cli::render::decode::Decoder;
use crate::cli::{Context, warn};

/// Between two looks at the files.
const POLL: Duration = Duration::from_millis(200);

/// Bytes read at once.
const CHUNK: u64 = 64 * 1024;

/// Shows them, with `-f` until the run has ended.
///
/// # Errors
/// No such run or child, or an output that cannot be written.
pub(crate) fn run(args: &LogsArgs, context: &Context) -> Result<Exit, Fault> {
    let store = Store::open_existing(&context.state_dir);
    let run = control::stored_run(context, &store, &args.run)?;
    let children = children(args, &run, &store)?;
    let folder = |child| store.child_dir(run.id, child);
    let kinds = kinds(args);
    let one_file = children.len() == 1 && kinds.len() == 1;
    let form = if one_file && !io::stdout().is_terminal() { Form::Raw } else { Form::Shown };
    let mut tail = Tail::new(folder, children, &kinds, form, !one_file);
    let to = io::BufWriter::new(io::stdout().lock());
    let result = if args.follow {
        follow(&mut tail, to, &store, &run)?
    } else {
        let mut to = to;
        tail.drain(&mut to).and_then(|()| tail.end(&mut to))
    };
    forgive_closed_pipe(result).map_err(Fault::Output)?;
    if !tail.found {
        warn("no file was kept for this run, or none yet");
    }
    Ok(Exit::Done)
}

fn children(
    args: &LogsArgs,
    run: &RunRecord,
    store: &Reader,
) -> Result<std::ops::Range<u32>, StoreError> {
    match args.child {
        None => Ok(0..run.tasks),
        Some(child) if child < run.tasks => Ok(child..child + 1),
        Some(child) => Err(StoreError::NotFound(format!(
            "run {} has no task {child}: its tasks are 0 to {}",
            store.short_id(run.id),
            run.tasks.saturating_sub(1)
        ))),
    }
}

/// What was asked for; all three where nothing was.
fn kinds(args: &LogsArgs) -> Vec<Log> {
    let asked =
        [(args.stdout, Log::Stdout), (args.stderr, Log::Stderr), (args.events, Log::Events)];
    let all = asked.iter().all(|(wanted, _)| !wanted);
    asked.into_iter().filter(|(wanted, _)| all || *wanted).map(|(_, log)| log).collect()
}

/// Reads on until the run has ended. What was written before its end is read after it.
fn follow(
    tail: &mut Tail<impl Fn(u32) -> Option<PathBuf>>,
    mut to: impl Write,
    store: &Reader,
    run: &RunRecord,
) -> Result<io::Result<()>, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| Fault::System("the loop of this command cannot be made", error))?;
    runtime.block_on(async {
        loop {
            let running = store.find_run(&run.id.to_string())?.status == "running";
            let step = tail.drain(&mut to).and_then(|()| to.flush());
            let step = if running { step } else { step.and_then(|()| tail.end(&mut to)) };
            if step.is_err() || !running {
                return Ok(step);
            }
            tokio::time::sleep(POLL).await;
        }
    })
}

/// How bytes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As they are.
    Raw,
    /// Safe for a terminal.
    Shown,
}

/// Files that are read on from where they were left.
#[derive(Debug)]
struct Tail<F> {
    /// The folder of a child, once it is there.
    folder: F,
    files: Vec<Source>,
    form: Form,
    /// Name each file before its part.
    headed: bool,
    /// The file that was printed last, and whether its last line has ended.
    last: Option<(usize, bool)>,
    /// Some file exists.
    found: bool,
}

#[derive(Debug)]
struct Source {
    child: u32,
    kind: Log,
    offset: u64,
    decoder: Decoder,
}

impl<F: Fn(u32) -> Option<PathBuf>> Tail<F> {
    fn new(
        folder: F,
        children: std::ops::Range<u32>,
        kinds: &[Log],
        form: Form,
        headed: bool,
    ) -> Self {
        let source = |child, kind: &Log| Source {
            child,
            kind: *kind,
            offset: 0,
            decoder: Decoder::default(),
        };
        let files =
            children.flat_map(|child| kinds.iter().map(move |kind| source(child, kind))).collect();
        Self { folder, files, form, headed, last: None, found: false }
    }

    /// Prints what is new.
    fn drain(&mut self, to: &mut impl Write) -> io::Result<()> {
        for index in 0..self.files.len() {
            let source = &mut self.files[index];
            // A file that is not there yet may come; one that cannot be read is as good as absent.
            let Some(folder) = (self.folder)(source.child) else { continue };
            let Ok(mut file) = File::open(folder.join(source.kind.file_name())) else { continue };
            self.found = true;
            if file.metadata().map_or(0, |data| data.len()) <= source.offset {
                continue;
            }
            if file.seek(SeekFrom::Start(source.offset)).is_err() {
                continue;
            }
            loop {
                let mut bytes = Vec::new();
                let read = (&mut file).take(CHUNK).read_to_end(&mut bytes).unwrap_or(0);
                if read == 0 {
                    break;
                }
                self.print(index, &bytes, to)?;
            }
        }
        Ok(())
    }

    fn print(&mut self, index: usize, bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
        self.head(index, to)?;
        let source = &mut self.files[index];
        source.offset += u64::try_from(bytes.len()).unwrap_or(0);
        if self.form == Form::Raw {
            return to.write_all(bytes);
        }
        let text = source.decoder.push(bytes);
        to.write_all(text.as_bytes())?;
        self.last = Some((index, bytes.ends_with(b"\n")));
        Ok(())
    }

    fn head(&mut self, index: usize, to: &mut impl Write) -> io::Result<()> {
        let gap = match self.last {
            _ if !self.headed => return Ok(()),
            Some((last, _)) if last == index => return Ok(()),
            Some((_, true)) => "\n",
            Some((_, false)) => "\n\n",
            None => "",
        };
        let Source { child, kind, .. } = &self.files[index];
        let kind = kind.file_name().trim_end_matches(".jsonl");
        writeln!(to, "{gap}==> {child} {kind} <==")
    }

    /// Ends the last line where people read it.
    fn end(&mut self, to: &mut impl Write) -> io::Result<()> {
        if let Some((last, ended)) = self.last {
            let rest = self.files[last].decoder.end();
            to.write_all(rest.as_bytes())?;
            if !ended {
                to.write_all(b"\n")?;
            }
        }
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        dir
    }

    fn within(dir: &tempfile::TempDir) -> impl Fn(u32) -> Option<PathBuf> {
        let dir = dir.path().to_owned();
        move |child| Some(dir.join(child.to_string()))
    }

    const ALL: [Log; 3] = [Log::Stdout, Log::Stderr, Log::Events];

    #[test]
    fn files_are_headed_and_safe() {
        let dir = folder(&[("0/stdout", b"one\nno end"), ("1/stderr", b"\x1b[31mred\xff\n")]);
        let mut tail = Tail::new(within(&dir), 0..3, &ALL, Form::Shown, true);
        let mut text = Vec::new();
        tail.drain(&mut text).unwrap();
        tail.end(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "==> 0 stdout <==\none\nno end\n\n==> 1 stderr <==\n\\x1b[31mred\\xff\n"
        );
        assert!(tail.found);
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let dir = folder(&[("0/stdout", b"one\n")]);
        let mut tail = Tail::new(within(&dir), 0..1, &ALL, Form::Shown, true);
        let mut text = Vec::new();
        tail.drain(&mut text).unwrap();
        tail.drain(&mut text).unwrap();
        std::fs::write(dir.path().join("0/stdout"), b"one\ntwo\n").unwrap();
        tail.drain(&mut text).unwrap();
        std::fs::write(dir.path().join("0/events.jsonl"), b"{}\n").unwrap();
        tail.drain(&mut text).unwrap();
        tail.end(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "==> 0 stdout <==\none\ntwo\n\n==> 0 events <==\n{}\n"
        );
    }

    #[test]
    fn one_file_to_a_pipe_is_byte_for_byte() {
        let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        let dir = folder(&[("2/stdout", &bytes)]);
        let mut tail = Tail::new(within(&dir), 2..3, &[Log::Stdout], Form::Raw, false);
        let mut out = Vec::new();
        tail.drain(&mut out).unwrap();
        tail.end(&mut out).unwrap();
        assert!(out == bytes);
    }

    #[test]
    fn following_ends_with_the_run_and_misses_nothing() {
        use delegate_core::store::{NewRun, Store};
        const LIMIT: Duration = Duration::from_secs(30);
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path());
        let id = delegate_protocol::RunId::random();
        let new = NewRun::new(id, "t", "thread", 2);
        store.begin_run(new);
        store.flush(LIMIT);
        let existing = Store::open_existing(dir.path());
        let run = existing.find_run("latest").unwrap();
        assert_eq!(run.status, "running");

        // The run writes and ends only after its follower has seen the first line.
        struct Signalling(Vec<u8>, Option<std::sync::mpsc::Sender<()>>);
        impl Write for Signalling {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.extend_from_slice(bytes);
                drop(self.1.take());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (seen, first_line) = std::sync::mpsc::channel::<()>();
        store.append(id, 1, Log::Stdout, b"one\n".to_vec());
        let writer = std::thread::spawn(move || {
            let gone = std::sync::mpsc::RecvTimeoutError::Disconnected;
            assert_eq!(first_line.recv_timeout(LIMIT), Err(gone));
            store.append(id, 1, Log::Stdout, b"two\n".to_vec());
            store.end_run(id, "completed", Duration::from_secs(1));
            store.flush(LIMIT);
        });
        let folder = |child| existing.child_dir(id, child);
        let mut tail = Tail::new(folder, 0..2, &ALL, Form::Shown, true);
        let mut out = Signalling(Vec::new(), Some(seen));
        follow(&mut tail, &mut out, &existing, &run).unwrap().unwrap();
        writer.join().unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "==> 1 stdout <==\none\ntwo\n");
    }

    #[test]
    fn nothing_kept_is_seen() {
        let dir = folder(&[]);
        let mut tail = Tail::new(within(&dir), 0..2, &ALL, Form::Shown, true);
        let mut out = Vec::new();
        tail.drain(&mut out).unwrap();
        tail.end(&mut out).unwrap();
        assert!(out.is_empty() && !tail.found);
    }

    #[test]
    fn without_a_choice_all_three_are_shown() {
        let args = |stdout, events| LogsArgs {
            run: "-".into(),
            child: None,
            follow: false,
            stdout,
            stderr: false,
            events,
        };
        assert_eq!(kinds(&args(false, false)), ALL);
        assert_eq!(kinds(&args(true, false)), [Log::Stdout]);
        assert_eq!(kinds(&args(true, true)), [Log::Stdout, Log::Events]);
    }
}
