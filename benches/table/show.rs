//! The table as text (Markdown, as a page can have it) and as JSON, with the machine that it is from.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::judge::{Bound, Verdict, number};
use crate::{Answer, Judged, Measured};

/// The machine, and how loaded it was as it began.
#[derive(Debug)]
pub(crate) struct Machine {
    date: String,
    processor: String,
    processors: usize,
    kernel: String,
    memory_gib: u64,
    load: String,
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

impl Machine {
    pub(crate) fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim_start_matches([' ', '\t', ':']).to_owned()
        };
        let date = Command::new("date").args(["-u", "+%F %H:%M UTC"]).output();
        let date = date.map_or(String::new(), |said| String::from_utf8_lossy(&said.stdout).into());
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let memory = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        Self {
            date: date.trim().to_owned(),
            processor: value(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_gib: memory >> 20,
            load: load(),
        }
    }

    pub(crate) fn words(&self) -> String {
        let Self { date, processor, processors, kernel, memory_gib, load: before } = self;
        format!(
            "{date}, {processors} processors ({processor}), {memory_gib} GiB, Linux {kernel}; load {before} before, {} after",
            load()
        )
    }

    pub(crate) fn json(&self) -> Value {
        let Self { date, processor, processors, kernel, memory_gib, load: before } = self;
        json!({
            "date": date, "processor": processor, "processors": processors, "kernel": kernel,
            "memory_gib": memory_gib, "load_before": before, "load_after": load(),
        })
    }
}

/// What a verdict found, as its bound counts.
fn found(bound: Bound, verdict: &Verdict) -> String {
    let [found, beside] = [verdict.found, verdict.beside].map(number);
    match bound {
        Bound::Times(_) | Bound::Faster(_) => format!("{found} × ({beside} ×)"),
        Bound::AtMost(_) | Bound::AtLeast(_) => format!("{found} ({beside})"),
    }
}

fn word(judged: &Judged) -> &'static str {
    match judged.verdict {
        None => "**not measured**",
        Some(verdict) if verdict.met => "met",
        Some(_) => "**missed**",
    }
}

/// Goals first, then what was measured.
pub(crate) fn text(answers: &[Answer], machine: &Machine, rounds: usize) -> String {
    let mut text = format!("{}\n{rounds} rounds in turns.\n\n", machine.words());
    text += "| row | ours | beside | goal | found: medians (minima), or worst (median) | |\n|---|---|---|---|---|---|\n";
    for answer in answers {
        for goal in &answer.goals {
            let figures = goal
                .verdict
                .as_ref()
                .map_or("–".to_owned(), |verdict| found(goal.bound, verdict));
            let ours = goal.ours.trim_start_matches("ours: ");
            let unit = match goal.bound {
                Bound::Times(_) | Bound::Faster(_) => String::new(),
                Bound::AtMost(_) | Bound::AtLeast(_) => format!(" {}", answer.unit),
            };
            let (key, other, bound) = (answer.key, goal.other, goal.bound.words() + &unit);
            _ = writeln!(
                text,
                "| {key} | {ours} | {other} | {bound} | {figures} | {} |",
                word(goal)
            );
        }
    }
    for answer in answers {
        _ = write!(text, "\n**{}** (`{}`), {}\n\n", answer.title, answer.key, answer.unit);
        text += "| | median | minimum | rounds |\n|---|---|---|---|\n";
        for Measured { name, figures } in &answer.columns {
            _ = match figures {
                Ok(figures) => {
                    let [median, least] = [figures.median, figures.least].map(number);
                    writeln!(text, "| {name} | {median} | {least} | {} |", figures.rounds)
                }
                Err(why) => {
                    writeln!(text, "| {name} | not measured: {} | | |", why.replace('|', "/"))
                }
            };
        }
    }
    text + ELSEWHERE
}

/// What is no matter of time, and has a command of its own.
const ELSEWHERE: &str = "
Not in this table, since they count and take their time: `cargo run --release --example soak -- 10000` (nothing lost, nothing
left), `cargo run --release -p delegate-ownership --example chaos -- 1000` (kill -9 at random moments).
";

pub(crate) fn json(answers: &[Answer], machine: &Machine, rounds: usize) -> Value {
    let groups = answers.iter().map(|answer| {
        let columns = answer.columns.iter().map(|Measured { name, figures }| match figures {
            Ok(figures) => json!({
                "name": name, "rounds": figures.rounds, "median": figures.median,
                "minimum": figures.least, "maximum": figures.most,
            }),
            Err(why) => json!({"name": name, "failed": why}),
        });
        let goals = answer.goals.iter().map(|goal| {
            json!({
                "ours": goal.ours, "beside": goal.other, "goal": goal.bound.words(),
                "found": goal.verdict.map(|verdict| verdict.found),
                "found_beside": goal.verdict.map(|verdict| verdict.beside),
                "met": goal.verdict.map(|verdict| verdict.met),
            })
        });
        json!({
            "row": answer.key, "title": answer.title, "unit": answer.unit,
            "columns": columns.collect::<Vec<_>>(), "goals": goals.collect::<Vec<_>>(),
        })
    });
    json!({"machine": machine.json(), "rounds": rounds, "rows": groups.collect::<Vec<_>>()})
}
