//! A fixture: an owner that stands above a tree of the awkward kinds, and ends as it is told.
//!
//! `tree-owner DIR [GRACE_MS]` starts owner → launcher shell → program → {helper, member with a session
//! of its own, double-forked daemon, one that ignores TERM, one that is stopped}. Each writes its
//! number into a file of `DIR` that is named after it: `launcher`, `program`, `helper`, `session`,
//! `daemon`, `stubborn`, `stopped`. A line on stdin says how the owner ends: `exit`, `return`, `abort`,
//! `segv`, or that it executes another program (`exec`); the end of stdin is `exit`. It may as well be killed.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

use ownership::{Owner, Program, Spawn};

const TREE: &str = r#"
sh -c '
    echo $$ > "$DIR/program"
    sh -c "echo \$\$ > \"\$DIR/helper\"; exec sleep 600" &
    setsid sh -c "echo \$\$ > \"\$DIR/session\"; exec sleep 600" &
    (setsid sh -c "echo \$\$ > \"\$DIR/daemon\"; exec sleep 600" &)
    sh -c "trap \"\" TERM; echo \$\$ > \"\$DIR/stubborn\"; exec sleep 600" &
    sh -c "echo \$\$ > \"\$DIR/stopped\"; kill -STOP \$\$; exec sleep 600" &
    wait
' &
echo $$ > "$DIR/launcher"
wait
"#;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let mut args = std::env::args_os().skip(1);
    let Some(dir) = args.next() else { return ExitCode::from(2) };
    let grace = args.next().and_then(|grace| grace.to_str()?.parse().ok()).unwrap_or(300);
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let spawn = Spawn::new("/bin/sh").arg("-c").arg(TREE).env("DIR", dir);
    let tree = owner.spawn(spawn.grace(Duration::from_millis(grace)), |_| {}).expect("tree");
    let mut how = String::new();
    let _read = std::io::stdin().lock().read_line(&mut how);
    match how.trim() {
        "exec" => {
            use std::os::unix::process::CommandExt;
            std::mem::forget(tree);
            let mut sleep = std::process::Command::new("sleep");
            #[expect(clippy::disallowed_methods, reason = "what the test is about")]
            let error = sleep.arg("600").exec();
            panic!("{error}");
        }
        "abort" => std::process::abort(),
        "segv" => {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::SEGV).expect("signal");
            ExitCode::FAILURE
        }
        // Drops nothing: what ends the tree is this process's end alone.
        "return" => {
            std::mem::forget(tree);
            ExitCode::SUCCESS
        }
        _ => {
            std::mem::forget(tree);
            ExitCode::from(3)
        }
    }
}
