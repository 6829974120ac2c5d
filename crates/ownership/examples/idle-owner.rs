//! A fixture: spawns again and again, at the moment when its supervisor leaves for want of children
//! (set `OWNERSHIP_TEST_IDLE_MS` to 1), and writes how many supervisors it saw into `DIR/supervisors`.
//! Every spawn must be served, by whichever of them. `idle-owner DIR [subreaper]`: as a subreaper it is
//! the parent of supervisors, and none of those that left may stay as a zombie.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use ownership::{ExitStatus, Owner, Program, Spawn};

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let subreaper = std::env::args_os().nth(2).is_some();
    if subreaper {
        let own = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(own)).expect("subreaper");
    }
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let mut supervisors = HashSet::new();
    for round in 0..300_u32 {
        // From at once to a little after the supervisor's patience.
        let pause = std::time::Duration::from_micros(u64::from(round % 60) * 40);
        std::thread::park_timeout(pause);
        let (read, write) = std::io::pipe().expect("pipe");
        let spawn = Spawn::new("/bin/sh").arg("-c").arg("echo $PPID").fd(1, write.into());
        let child = owner.spawn(spawn, |_| {}).expect("served");
        let parent = std::io::read_to_string(read).expect("read");
        supervisors.insert(parent.trim().to_owned());
        assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(0));
        child.wait_empty().expect("empty");
    }
    let mut patience = 2000;
    while subreaper && zombies() > 0 {
        patience -= 1;
        assert!(patience > 0, "{} zombies are left", zombies());
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    std::fs::write(dir.join("supervisors"), supervisors.len().to_string()).expect("write");
    ExitCode::SUCCESS
}

/// Children that are dead and not waited for. A supervisor that is just leaving may be one for a moment.
fn zombies() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks").flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<String> = lists
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let stats =
        children.iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    stats.filter(|stat| stat.contains(") Z ")).count()
}
