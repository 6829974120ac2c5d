//! A server of the kind that children share: JSON-RPC by lines on standard input and output, as MCP has it
//! (<https://modelcontextprotocol.io/specification>).
//!
//! | method | does |
//! |---|---|
//! | `initialize` | answers with its pid and how often it was greeted |
//! | `echo` | answers with its parameters |
//! | `slow` | tells progress to the token of the request, and answers only `release` of another one |
//! | `release` | answers every `slow` that waits |
//! | `deaf` | reads nothing from now on |
//! | `crash` | exits with code 3 and a word on stderr |
//!
//! `helper-mcp FILE` writes its pid into FILE, a line per start, and starts a helper of its own that would
//! outlive it.
#![expect(clippy::disallowed_methods, reason = "a test program")]

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

fn main() -> io::Result<ExitCode> {
    if let Some(file) = std::env::args().nth(1) {
        // A file of several starts: appended in one write each.
        let own = std::process::id();
        let child = Command::new("setsid") // detached-spawn: ok — the test looks whether it is ended
            .args(["sleep", "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut starts = OpenOptions::new().create(true).append(true).open(file)?;
        starts.write_all(format!("{own} {}\n", child.id()).as_bytes())?;
    }
    let (mut out, mut greetings, mut slow) = (io::stdout().lock(), 0, Vec::new());
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => {
                greetings += 1;
                let result = json!({"pid": std::process::id(), "greetings": greetings});
                answer(&mut out, id, result)?;
            }
            "echo" => answer(&mut out, id, params.clone())?,
            "slow" => {
                let token = &params["_meta"]["progressToken"];
                let params = json!({"progressToken": token, "progress": 1});
                say(&mut out, &json!({"method": "notifications/progress", "params": params}))?;
                slow.push(id.clone());
            }
            "release" => {
                for id in slow.drain(..) {
                    answer(&mut out, &id, json!("released"))?;
                }
                answer(&mut out, id, json!("done"))?;
            }
            "deaf" => loop {
                std::thread::park();
            },
            "crash" => {
                io::stderr().write_all(b"out of ideas\n")?;
                return Ok(ExitCode::from(3));
            }
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(out: &mut impl Write, id: &Value, result: Value) -> io::Result<()> {
    say(out, &json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn say(out: &mut impl Write, message: &Value) -> io::Result<()> {
    out.write_all(format!("{message}\n").as_bytes())?;
    out.flush()
}
