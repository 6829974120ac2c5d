//! An owner that starts a launcher shell with each library, as its documentation says, and ends it with what the
//! library has for that when it reads `end`.

use std::io::BufRead;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup, ProcessSession};

/// Runs until it is told to end, or killed.
pub(crate) fn run(library: &str, dir: &Path, script: &str) -> ExitCode {
    // One thread: a parent-death signal is that of a thread.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
    std::fs::write(dir.join("owner"), std::process::id().to_string()).expect("write");
    let wait = || {
        std::fs::write(dir.join("started"), "").expect("write");
        let told = std::io::stdin().lock().lines().any(|line| line.is_ok_and(|line| line == "end"));
        while !told {
            std::thread::park();
        }
    };
    match library {
        "std" => {
            let mut child = std::process::Command::new("sh");
            let mut child = child.args(["-c", script]).stdin(Stdio::null()).spawn().expect("spawn");
            wait();
            child.kill().and_then(|()| child.wait()).expect("kill");
        }
        "tokio" => runtime.block_on(async {
            let mut child = tokio::process::Command::new("sh");
            child.args(["-c", script]).stdin(Stdio::null()).kill_on_drop(true);
            let child = child.spawn().expect("spawn");
            wait();
            drop(child);
        }),
        "group" | "session" => runtime.block_on(async {
            let mut child = CommandWrap::with_new("sh", |command| {
                command.args(["-c", script]).stdin(Stdio::null());
            });
            if library == "group" {
                child.wrap(ProcessGroup::leader());
            } else {
                child.wrap(ProcessSession);
            }
            let mut child = child.wrap(KillOnDrop).spawn().expect("spawn");
            wait();
            // It waits for the group too; what it does not see holds it up, so it has its time.
            drop(
                tokio::time::timeout(
                    std::time::Duration::from_secs(1),
                    std::pin::Pin::from(child.kill()),
                )
                .await,
            );
        }),
        "processkit" => runtime.block_on(async {
            let group = processkit::ProcessGroup::new().expect("group");
            eprintln!("processkit holds by {:?}", group.mechanism());
            let command =
                processkit::Command::new("sh").args(["-c", script]).kill_on_parent_death();
            let child = group.start(&command).await.expect("spawn");
            wait();
            drop(group.shutdown().await);
            drop(child);
        }),
        "ownership" => {
            let program = ownership::Program::current().expect("/proc");
            let owner = ownership::Owner::new(program, Vec::new());
            let spawn = ownership::Spawn::new("sh").arg("-c").arg(script);
            let child = owner.spawn(spawn.leftovers(ownership::Leftovers::Keep), |_| {});
            let child = child.expect("spawn");
            wait();
            child.end(std::time::Duration::from_secs(3));
            child.wait_empty();
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}
