//! Rust libraries that start workers or carry messages, timed for `benches/table`: one job, a task of 200 bytes in,
//! an event and a result out, worker gone.
//!
//! `rounds std | tokio | procspawn | processkit | ipc-channel`. It says `ready`, then answers each line of its input
//! (`start`, `batch N`, `events N`) with `ok` and nanoseconds, or with `failed` and why. The workers are this program again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use processkit::prelude::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// The role of a worker that speaks lines of JSON over its standard streams.
const LINES: &str = "@lines";

/// The role of a worker that speaks over ipc-channel; the name of its server follows.
const CHANNEL: &str = "@channel";

type Done<T> = Result<T, String>;

#[derive(Serialize, Deserialize, Clone)]
struct Task {
    index: usize,
    goal: String,
}

/// A tool event of a realistic size.
#[derive(Serialize, Deserialize, Clone)]
struct Event {
    child: usize,
    name: String,
    preview: String,
    args: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
enum Said {
    /// Where the worker reads its tasks.
    Tasks(IpcSender<Task>),
    Event(Event),
    Result(String),
}

fn task(index: usize) -> Task {
    Task { index, goal: "g".repeat(200) }
}

fn event(child: usize) -> Event {
    let args = [("path", "src/run/batch.rs"), ("offset", "1")];
    let args = args.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Event { child, name: "read_file".to_owned(), preview: "x".repeat(120), args }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [LINES] => return of(lines()),
        [CHANNEL, server] => return of(channel(server)),
        _ => procspawn::init(),
    }
    let [kind] = arguments[..] else {
        eprintln!("rounds: std, tokio, procspawn, processkit or ipc-channel");
        return ExitCode::from(2);
    };
    of(serve(kind))
}

fn of(done: Done<()>) -> ExitCode {
    if let Err(why) = done {
        eprintln!("rounds: {why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn serve(kind: &str) -> Done<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let local = tokio::task::LocalSet::new();
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let (what, count) = line.split_once(' ').unwrap_or((&line, "1"));
        let count = count.parse().map_err(|_| format!("no number: {count}"))?;
        let took = match (kind, what) {
            ("ipc-channel", "events") => channel_events(count).map(|took| (took, took)),
            (_, "start" | "batch") => match kind {
                "std" => batch_of_std(count),
                "tokio" => local.block_on(&runtime, batch_of_tokio(count)),
                "procspawn" => batch_of_procspawn(count),
                "processkit" => local.block_on(&runtime, batch_of_processkit(count)),
                "ipc-channel" => batch_of_channel(count),
                _ => Err(format!("no library {kind}")),
            },
            _ => Err(format!("no such round: {line}")),
        };
        match took {
            Ok((first, last)) => println!("ok {} {}", first.as_nanos(), last.as_nanos()),
            Err(why) => println!("failed {why}"),
        }
    }
    Ok(())
}

/// A worker: a line with a task in, a line with an event and one with a result out.
fn lines() -> Done<()> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|error| text(&error))?;
    let task: Task = serde_json::from_str(&line).map_err(|error| text(&error))?;
    let mut out = std::io::stdout().lock();
    let event = serde_json::to_string(&event(task.index)).map_err(|error| text(&error))?;
    writeln!(out, "{event}").and_then(|()| out.flush()).map_err(|error| text(&error))?;
    writeln!(out, "{}", serde_json::json!({"done": task.index})).map_err(|error| text(&error))
}

fn channel(server: &str) -> Done<()> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let said = IpcSender::<Said>::connect(server.to_owned()).map_err(|error| text(&error))?;
    let (tasks, mine) = ipc::channel::<Task>().map_err(|error| text(&error))?;
    said.send(Said::Tasks(tasks)).map_err(|error| text(&error))?;
    let task = mine.recv().map_err(|error| text(&error))?;
    // The goal says how many events there are to be beside the first.
    let more = task.goal.parse().unwrap_or(1);
    let event = event(task.index);
    for _ in 0..more {
        said.send(Said::Event(event.clone())).map_err(|error| text(&error))?;
    }
    said.send(Said::Result("done".to_owned())).map_err(|error| text(&error))
}

fn worker() -> Done<Command> {
    std::env::current_exe().map(Command::new).map_err(|error| error.to_string())
}

fn read_event(line: &str) -> Done<()> {
    let event: Event = serde_json::from_str(line).map_err(|error| format!("{error}: {line:?}"))?;
    if event.name == "read_file" { Ok(()) } else { Err("another event".to_owned()) }
}

fn batch_of_std(count: usize) -> Done<(Duration, Duration)> {
    let text = |error: std::io::Error| error.to_string();
    let began = Instant::now();
    let (mut running, mut first) = (Vec::new(), None);
    for index in 0..count {
        let mut command = worker()?;
        command.arg(LINES).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let said = serde_json::to_string(&task(index)).map_err(|error| error.to_string())?;
        writeln!(child.stdin.take().ok_or("no input")?, "{said}").map_err(text)?;
        running.push(child);
    }
    for mut child in running {
        let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (mut event, mut result) = (String::new(), String::new());
        out.read_line(&mut event).map_err(text)?;
        read_event(&event)?;
        first.get_or_insert_with(|| began.elapsed());
        out.read_line(&mut result).map_err(text)?;
        if !result.contains("done") || !child.wait().map_err(text)?.success() {
            return Err("a worker without a result".to_owned());
        }
    }
    Ok((first.ok_or("no children")?, began.elapsed()))
}

/// The time to the first event of any of the jobs, and to the end of all.
async fn all<F>(count: usize, job: impl Fn(usize) -> F) -> Done<(Duration, Duration)>
where
    F: Future<Output = Done<Instant>> + 'static,
{
    let began = Instant::now();
    let jobs: Vec<_> = (0..count).map(|index| tokio::task::spawn_local(job(index))).collect();
    let mut first: Option<Instant> = None;
    for job in jobs {
        let spoke = job.await.map_err(|error| error.to_string())??;
        first = Some(first.map_or(spoke, |first| first.min(spoke)));
    }
    Ok((first.ok_or("no children")?.duration_since(began), began.elapsed()))
}

async fn batch_of_tokio(count: usize) -> Done<(Duration, Duration)> {
    let text = |error: std::io::Error| error.to_string();
    all(count, move |index| async move {
        let mut command = tokio::process::Command::from(worker()?);
        command.arg(LINES).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let said = serde_json::to_string(&task(index)).map_err(|error| error.to_string())?;
        let mut input = child.stdin.take().ok_or("no input")?;
        input.write_all(format!("{said}\n").as_bytes()).await.map_err(text)?;
        drop(input);
        let mut out = tokio::io::BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        read_event(&out.next_line().await.map_err(text)?.ok_or("no event")?)?;
        let spoke = Instant::now();
        let result = out.next_line().await.map_err(text)?.ok_or("no result")?;
        let fine = child.wait().await.map_err(text)?.success() && result.contains("done");
        if fine { Ok(spoke) } else { Err("a worker without a result".to_owned()) }
    })
    .await
}

async fn batch_of_processkit(count: usize) -> Done<(Duration, Duration)> {
    let text = |error: processkit::Error| error.to_string();
    all(count, move |index| async move {
        let said = serde_json::to_string(&task(index)).map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let input = processkit::Stdin::from_string(format!("{said}\n"));
        let command = processkit::Command::new(program).arg(LINES).stdin(input);
        let mut child = command.start().await.map_err(text)?;
        let mut out = child.stdout_lines().map_err(text)?;
        read_event(&out.next().await.ok_or("no event")?)?;
        let spoke = Instant::now();
        let result = out.next().await.ok_or("no result")?;
        drop(out);
        let fine = child.finish().await.map_err(text)?.outcome.code() == Some(0);
        if fine && result.contains("done") { Ok(spoke) } else { Err("no result".to_owned()) }
    })
    .await
}

/// It has no events: the result is the first that is heard.
fn batch_of_procspawn(count: usize) -> Done<(Duration, Duration)> {
    let began = Instant::now();
    let job = |task: Task| (event(task.index), "done".to_owned());
    let running: Vec<_> = (0..count).map(|index| procspawn::spawn(task(index), job)).collect();
    let mut first = None;
    for child in running {
        let (_, result) = child.join().map_err(|error| error.to_string())?;
        first.get_or_insert_with(|| began.elapsed());
        if result != "done" {
            return Err("no result".to_owned());
        }
    }
    Ok((first.ok_or("no children")?, began.elapsed()))
}

/// A worker that has connected: its process, and what it says.
fn connected(task: Task) -> Done<(std::process::Child, IpcReceiver<Said>)> {
    let text = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let (server, name) = IpcOneShotServer::<Said>::new().map_err(|error| text(&error))?;
    let child = worker()?.args([CHANNEL, &name]).spawn().map_err(|error| text(&error))?;
    let (said, tasks) = server.accept().map_err(|error| text(&error))?;
    let Said::Tasks(tasks) = tasks else { return Err("no line for tasks".to_owned()) };
    tasks.send(task).map_err(|error| text(&error))?;
    Ok((child, said))
}

fn batch_of_channel(count: usize) -> Done<(Duration, Duration)> {
    let text = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let began = Instant::now();
    let running: Vec<_> = (0..count).map(|index| connected(task(index))).collect::<Done<_>>()?;
    let mut first = None;
    for (mut child, said) in running {
        let Said::Event(_) = said.recv().map_err(|error| text(&error))? else {
            return Err("no event".to_owned());
        };
        first.get_or_insert_with(|| began.elapsed());
        let Said::Result(_) = said.recv().map_err(|error| text(&error))? else {
            return Err("no result".to_owned());
        };
        child.wait().map_err(|error| text(&error))?;
    }
    Ok((first.ok_or("no children")?, began.elapsed()))
}

/// One worker's events, from the first to the last.
fn channel_events(count: usize) -> Done<Duration> {
    let text = |error: &dyn std::fmt::Debug| format!("{error:?}");
    let (mut child, said) = connected(Task { index: 0, goal: (count + 1).to_string() })?;
    let (mut came, mut began) = (0, Instant::now());
    while let Said::Event(event) = said.recv().map_err(|error| text(&error))? {
        if came == 0 {
            began = Instant::now();
        }
        came += usize::from(event.name == "read_file");
    }
    let took = began.elapsed();
    child.wait().map_err(|error| text(&error))?;
    if came == count + 1 { Ok(took) } else { Err(format!("{came} events of {}", count + 1)) }
}
