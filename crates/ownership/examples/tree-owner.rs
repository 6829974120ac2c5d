//! A fixture: an owner that stands above a tree of the awkward kinds, and ends as it is told.
//!
//! `tree-owner DIR [GRACE_MS]` starts owner → launcher shell → program → {helper, member with a session
//! of its own, double-forked daemon, one that ignores TERM, one that is stopped, one with a session of its
//! own and no environment}. Each writes its number into a file of `DIR` that is named after it: `launcher`,
//! `program`, `helper`, `session`, `daemon`, `stubborn`, `stopped`, `cleared`.
//!
//! Lines on stdin say what it does: `more` (starts another child, file `more`), or how it ends: `exit`,
//! `return`, `panic`, `abort`, `segv`, or that it executes another program (`exec`), itself (`again`) or
//! itself from a second thread (`thread`); the end of stdin is `exit`. It may as well be killed.
//! Its guards are this program again, or the one that `OWNERSHIP_TEST_GUARDS` names.
//! `tree-owner again DIR` is what it executes: writes `again`, starts `second`, and goes on as before.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ownership::{Owned, Owner, Program, Spawn};

const TREE: &str = r#"
sh -c '
    echo $$ > "$DIR/program"
    sh -c "echo \$\$ > \"\$DIR/helper\"; exec sleep 600" &
    setsid sh -c "echo \$\$ > \"\$DIR/session\"; exec sleep 600" &
    (setsid sh -c "echo \$\$ > \"\$DIR/daemon\"; exec sleep 600" &)
    sh -c "trap \"\" TERM; echo \$\$ > \"\$DIR/stubborn\"; exec sleep 600" &
    sh -c "echo \$\$ > \"\$DIR/stopped\"; kill -STOP \$\$; exec sleep 600" &
    setsid env -i /bin/sh -c "echo \$\$ > \"$DIR/cleared\"; exec sleep 600" &
    wait
' &
echo $$ > "$DIR/launcher"
wait
"#;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let guards = std::env::var_os("OWNERSHIP_TEST_GUARDS").map(Program::named);
    let guards = guards.unwrap_or_else(|| Program::current().expect("this program"));
    let owner = Owner::new(guards, Vec::new());
    let (dir, child) = match args.as_slice() {
        [again, dir, ..] if again == "again" => {
            let dir = PathBuf::from(dir);
            let child = sleeper(&owner, &dir, "second");
            std::fs::write(dir.join("again"), format!("{}\n", std::process::id())).expect("write");
            (dir, child)
        }
        [dir, rest @ ..] => {
            let grace = rest.first().and_then(|grace| grace.to_str()?.parse().ok()).unwrap_or(300);
            let tree = Spawn::new("/bin/sh").arg("-c").arg(TREE).env("DIR", dir);
            let tree = owner.spawn(tree.grace(Duration::from_millis(grace)), |_| {}).expect("tree");
            (PathBuf::from(dir), tree)
        }
        [] => return ExitCode::from(2),
    };
    let mut more = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(how) = line else { break };
        if how == "more" {
            more.push(sleeper(&owner, &dir, "more"));
        } else {
            return end(&how, &dir, child);
        }
    }
    // Drops nothing: what ends the tree is this process's end alone.
    std::mem::forget((child, more));
    ExitCode::from(3)
}

fn sleeper(owner: &Owner, dir: &Path, name: &str) -> Owned {
    let script = r#"echo $$ > "$DIR/$NAME"; exec sleep 600"#;
    let spawn = Spawn::new("/bin/sh").arg("-c").arg(script).env("DIR", dir).env("NAME", name);
    owner.spawn(spawn, |_| {}).expect("another child")
}

fn end(how: &str, dir: &Path, child: Owned) -> ExitCode {
    if how == "panic" {
        panic!("as it was told");
    }
    std::mem::forget(child);
    match how {
        "exec" => execute(Path::new("sleep"), &["600"]),
        "again" => execute_itself(dir),
        "thread" => {
            let dir = dir.to_owned();
            let thread = std::thread::spawn(move || execute_itself(&dir));
            thread.join().expect("never: the process is another program by then");
        }
        "abort" => std::process::abort(),
        "segv" => {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::SEGV).expect("signal");
        }
        "return" => return ExitCode::SUCCESS,
        _ => {}
    }
    ExitCode::from(3)
}

fn execute_itself(dir: &Path) {
    let own = std::env::current_exe().expect("this program");
    execute(&own, &["again", dir.to_str().expect("text")]);
}

#[expect(clippy::disallowed_methods, reason = "what the test is about")]
fn execute(program: &Path, args: &[&str]) {
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new(program).args(args).exec();
    panic!("{error}");
}
