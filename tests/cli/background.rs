//! `--background`, `resume`, `rerun` and `runs prune`, as somebody meets them.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{Rig, Said};
use crate::support::{Identity, wait_for};

/// Writes a line into `count`, then waits for `gate`, then says a word.
fn gated(word: &str) -> String {
    format!("echo {word} >> count; while [ ! -e gate ]; do sleep 0.02; done; echo {word}")
}

fn quick(word: &str) -> String {
    format!("echo {word} >> count; echo {word}")
}

fn batch<'a>(rig: &Rig, name: &'a str, scripts: &[String]) -> &'a str {
    let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
    rig.batch(name, &scripts)
}

/// Starts it in the background; the id of its run.
fn dispatched(said: &Said) -> String {
    said.expect(0);
    let id = said.out.trim_end().to_owned();
    assert_eq!(id.len(), 26, "the id and nothing else: {}", said.out);
    id
}

fn counted(rig: &Rig) -> Vec<String> {
    let text = fs::read_to_string(rig.path("count")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn run_of(rig: &Rig, id: &str) -> Value {
    rig.runs().into_iter().find(|run| run["run_id"] == id).expect("it is on record")
}

fn owner(rig: &Rig) -> Identity {
    let state: Vec<_> = fs::read_dir(rig.path("state/background")).unwrap().flatten().collect();
    let record = state.iter().find(|file| file.path().extension().is_some_and(|it| it == "job"));
    let id = record.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
    let job = ownership::reattach(&rig.path("state/background"), &id).unwrap();
    Identity::of(job.pid().unwrap()).unwrap()
}

fn kill(who: Identity) {
    kill_process(Pid::from_raw(who.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn open(rig: &Rig) {
    fs::write(rig.path("gate"), "").unwrap();
}

#[test]
fn it_comes_back_with_the_id_at_once_and_the_run_goes_on_and_is_waited_for() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[gated("slow"), quick("fast"), "exit 3".to_owned()]);
    let said = rig.run(["run", file, "--background", "--name", "night shift"]);
    let id = dispatched(&said);
    assert!(said.err.contains(&format!("delegate wait {}", &id[..4])), "{}", said.err);
    let run = run_of(&rig, &id);
    assert_eq!((&run["status"], &run["title"]), (&"running".into(), &"night shift".into()));
    assert_eq!(run["background"], true);
    rig.run(["runs"]).expect(0).says("night shift").says("background");
    rig.run(["wait", &id, "--timeout", "100ms"]).expect(124);
    let watch = rig.start(["watch", &id]);
    let waits = rig.start(["wait", &id]);
    // Its reason is written down, and it is nobody's child.
    let job = owner(&rig);
    assert!(job.is_alive());
    open(&rig);
    waits.end().expect(1);
    drop(watch);
    let shown = rig.run(["show", &id, "--json"]).expect(0).json();
    let results = shown["results"].as_array().unwrap();
    let statuses: Vec<_> = results.iter().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["completed", "completed", "failed"]);
    rig.wait_for_nobody();
    // The store repeats the exit code when nobody is left to ask.
    rig.run(["wait", &id]).expect(1);
    let job = ownership::list_exempt(&rig.path("state/background")).unwrap();
    let job = job.into_iter().next().unwrap().unwrap();
    assert!(job.reason().contains("does not wait for"), "{}", job.reason());
}

#[test]
fn what_is_wrong_is_told_as_in_the_foreground_and_nothing_is_left() {
    let rig = Rig::new();
    let said = rig.run(["run", "missing.yaml", "-d"]);
    said.expect(2).says("there is no such batch file").says("nothing was started");
    assert_eq!(said.out, "");
    let said = rig.run(["run", "missing.yaml", "-d", "--json"]);
    assert_eq!(said.expect(2).json()["error"]["code"], "missing_file");
    rig.run(["run", "--agent", "nobody", "goal", "-d"]).expect(2).says("no agent `nobody`");
    rig.run(["run", "x", "-d", "--jsonl"]).expect(2);
    assert_eq!(rig.runs(), Vec::<Value>::new());
    rig.wait_for_nobody();
}

#[test]
fn its_object_names_run_process_and_log() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[gated("a")]);
    let said = rig.run(["run", file, "-d", "--json"]).expect(0).json();
    assert_eq!(
        (&said["schema"], &said["mode"]),
        (&"delegate.dispatched/1".into(), &"background".into())
    );
    assert_eq!(said["pid"], owner(&rig).pid);
    assert!(Path::new(said["log"].as_str().unwrap()).exists());
    let id = said["run_id"].as_str().unwrap();
    rig.run(["stop", id]).expect(0);
    rig.run(["wait", id]).expect(1);
    rig.wait_for_nobody();
    let log = fs::read_to_string(said["log"].as_str().unwrap()).unwrap();
    assert!(log.contains(r#""schema":"delegate.report/1""#), "{log}");
}

/// Its terminal is closed, and its process group killed.
#[test]
fn it_outlives_whoever_started_it() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[gated("a")]);
    let script = format!("{} run {file} --background; exec sleep 600", crate::rig::DELEGATE);
    let mut shell = rig.program("setsid");
    shell.args(["-w", "sh", "-c", &script]);
    let shell = crate::rig::Running::of(shell);
    let id = wait_for("the run", || Some(rig.runs().first()?["run_id"].as_str()?.to_owned()));
    let sleeper = wait_for("the sleeper", || {
        rig.processes().into_iter().find(|who| {
            fs::read(format!("/proc/{}/cmdline", who.pid)).unwrap_or_default()
                == b"sleep\x00600\x00"
        })
    });
    let group = Pid::from_raw(sleeper.pid.cast_signed()).unwrap();
    rustix::process::kill_process_group(group, Signal::HUP).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).ok();
    shell.end();
    assert_eq!(run_of(&rig, &id)["status"], "running");
    open(&rig);
    rig.run(["wait", &id]).expect(0);
    rig.wait_for_nobody();
}

/// What is asked goes over a socket: neither argv nor environment nor the state directory holds it, while
/// it runs and after.
#[test]
fn a_secret_in_a_batch_from_standard_input_reaches_the_child_and_nothing_else() {
    const CANARY: &str = "canary-of-the-background-7";
    let rig = Rig::new();
    let task = serde_json::json!({"goal": "g", "params": {
        "argv": ["sh", "-c", "while [ ! -e gate ]; do sleep 0.02; done; test -n \"$BG_SECRET\" && echo ${#BG_SECRET}"],
        "env": {"BG_SECRET": CANARY},
    }});
    let text = serde_json::json!({ "tasks": [task] }).to_string();
    let mut command = rig.command(["run", "-", "-d"]);
    command.stdin(std::process::Stdio::piped());
    let mut running = crate::rig::Running::of(command);
    let stdin = running.child().stdin.take().unwrap();
    std::io::Write::write_all(&mut { stdin }, text.as_bytes()).unwrap();
    let id = dispatched(&running.end());
    let child = wait_for("the child", || {
        rig.processes().into_iter().find(|who| {
            let name = fs::read_to_string(format!("/proc/{}/comm", who.pid)).unwrap_or_default();
            name.trim() == "sh"
        })
    });
    for who in rig.processes() {
        // The command itself is to have it: that is what `env` is for.
        let files: &[&str] =
            if in_tree(who.pid, child.pid) { &["cmdline"] } else { &["cmdline", "environ"] };
        for file in files {
            let bytes = fs::read(format!("/proc/{}/{file}", who.pid)).unwrap_or_default();
            assert!(!holds(&bytes, CANARY), "{file} of {}", who.pid);
        }
    }
    assert_eq!(files_with(rig.dir(), CANARY), Vec::<String>::new());
    open(&rig);
    rig.run(["wait", &id]).expect(0);
    let shown = rig.run(["show", &id, "--json"]).json();
    assert_eq!(shown["results"][0]["summary"], CANARY.len().to_string());
    assert_eq!(files_with(rig.dir(), CANARY), Vec::<String>::new());
    let said = rig.run(["rerun", &id]);
    said.expect(2).says("params.env.BG_SECRET").says("set the variable BG_SECRET");
    let mut command = rig.command(["rerun", &id]);
    command.env("BG_SECRET", "four");
    crate::rig::Running::of(command).end().expect(0).says("\"4\"");
    rig.wait_for_nobody();
}

fn in_tree(pid: u32, root: u32) -> bool {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    std::iter::successors(Some(pid), |pid| parent(*pid)).take(20).any(|pid| pid == root)
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| holds(&bytes, text)) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_killed_run_is_shown_with_what_it_finished_and_resumed_without_doing_it_twice() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[quick("zero"), gated("one"), gated("two")]);
    let id = dispatched(&rig.run(["run", file, "-d", "-j", "2"]));
    wait_for("the first outcome", || {
        (run_of(&rig, &id)["counts"]["completed"] == 1 && counted(&rig).len() == 3).then_some(())
    });
    rig.run(["resume", &id]).expect(2).says("it still runs in process").says("nothing was started");
    // What is told of it afterwards is what had been written by then.
    wait_for("the second has begun on record", || {
        let events = rig.path(&format!("state/runs/{id}/1/events.jsonl"));
        fs::read_to_string(events).ok()?.contains("subagent.start").then_some(())
    });
    kill(owner(&rig));
    rig.wait_for_nobody();
    let run = run_of(&rig, &id);
    assert_eq!((&run["status"], &run["counts"]["completed"]), (&"unknown".into(), &1.into()));
    assert_eq!(run["counts"]["unknown"], 2, "{run}");
    rig.run(["wait", &id]).expect(1);
    rig.run(["show", &id])
        .expect(0)
        .says("\"zero\"")
        .says("its parent died before it had an outcome");
    let shown = rig.run(["show", &id, "--json"]).json();
    assert_eq!(shown["results"][1]["cause"]["kind"], "lost");
    let evidence = shown["results"][1]["notes"][0].as_str().unwrap();
    assert!(evidence.contains("its last event: {"), "{evidence}");
    let lost = shown["results"][1].clone();

    open(&rig);
    let said = rig.run(["resume", &id, "--json"]);
    let report = said.expect(0).json();
    assert_eq!(report["run_id"], id);
    let said: Vec<_> =
        report["results"].as_array().unwrap().iter().map(|it| it["summary"].clone()).collect();
    assert_eq!(said, ["zero", "one", "two"]);
    assert_eq!(counted(&rig).iter().filter(|word| *word == "zero").count(), 1, "not again");
    assert_eq!(counted(&rig).len(), 5);
    let run = run_of(&rig, &id);
    assert_eq!((&run["status"], &run["resumed"]), (&"completed".into(), &1.into()));
    // The same child: its folder, and its id in its events.
    assert_eq!(report["results"][1]["logs"], lost["logs"]);
    let events = fs::read_to_string(Path::new(lost["logs"].as_str().unwrap()).join("events.jsonl"));
    let ids: std::collections::BTreeSet<_> = events
        .unwrap()
        .lines()
        .filter_map(|line| {
            serde_json::from_str::<Value>(line).ok()?["child"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    rig.run(["resume", &id]).expect(2).says("there is no task without an outcome");
    rig.wait_for_nobody();
}

/// One task of many megabytes does not make its run one that cannot be resumed.
#[test]
fn a_run_with_a_large_task_is_resumed_and_names_what_it_launches() {
    let rig = Rig::new();
    let goal = format!("much to say {}", "x".repeat(5 << 20));
    let task = |goal: &str, script: &str| serde_json::json!({"goal": goal, "params": {"argv": ["sh", "-c", script]}});
    let slow = "test -e gate || { touch up; sleep 600; }; echo again";
    let tasks = [task("the quick one of them", "echo fast"), task(&goal, slow)];
    rig.file("b.json", serde_json::json!({ "tasks": tasks }).to_string());
    let mut killed = rig.start(["run", "b.json", "-j", "1"]);
    wait_for("the second to run", || rig.path("up").exists().then_some(()));
    killed.signal(Signal::KILL);
    drop(killed.child().wait());
    rig.wait_for_nobody();
    open(&rig);
    let said = rig.run(["resume", "latest"]);
    said.expect(0).says("2 completed").says("much to say");
}

/// Records and logs of such processes do not pile up, however they ended: the last ones stay for whoever looks.
#[test]
fn what_is_written_of_processes_that_were_killed_goes_and_wait_says_what_became_of_them() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[gated("slow"), quick("fast")]);
    let id = dispatched(&rig.run(["run", file, "--background"]));
    wait_for("the quick one", || {
        let run = run_of(&rig, &id);
        (run["counts"]["completed"] == 1).then_some(())
    });
    let jobs = || fs::read_dir(rig.path("state/background")).unwrap().count();
    // Its shim with it, so that nobody writes how it ended.
    let folder = rig.path("state/background");
    let record = fs::read_dir(&folder).unwrap().flatten().map(|file| file.path());
    let record = record.into_iter().find(|path| path.extension().is_some_and(|it| it == "job"));
    let text = fs::read_to_string(record.unwrap()).unwrap();
    let shim = text.lines().find_map(|line| line.strip_prefix("shim ")).unwrap();
    let shim = Identity::of(shim.split(' ').next().unwrap().parse().unwrap()).unwrap();
    let job = owner(&rig);
    kill(shim);
    kill(job);
    wait_for("both to be gone", || (!shim.is_alive() && !job.is_alive()).then_some(()));
    let said = rig.run(["wait", &id]);
    said.expect(1).says("its owner died; 1 of 2 tasks have an outcome");
    rig.wait_for_nobody();
    assert_eq!(jobs(), 2);
    rig.run(["runs", "prune", "--keep", "0"]).expect(0);
    assert_eq!(jobs(), 0, "record and log are gone");
}

#[test]
fn a_killed_run_is_resumed_in_the_background_and_only_by_one_of_two() {
    let rig = Rig::new();
    let file = batch(&rig, "b.json", &[gated("one")]);
    let id = dispatched(&rig.run(["run", file, "-d"]));
    wait_for("the child", || (counted(&rig).len() == 1).then_some(()));
    kill(owner(&rig));
    rig.wait_for_nobody();
    let both = [(); 2].map(|()| rig.start(["resume", &id, "-d"]));
    let codes = both.map(|one| one.end().code.unwrap());
    assert!(codes == [0, 2] || codes == [2, 0], "{codes:?}");
    open(&rig);
    rig.run(["wait", &id]).expect(0);
    assert_eq!(counted(&rig).len(), 2);
    assert_eq!(run_of(&rig, &id)["background"], true);
    rig.wait_for_nobody();
}

#[test]
fn rerun_repeats_what_failed_or_what_is_named_with_its_options_and_names_the_old_run() {
    let rig = Rig::new();
    let fails = "echo bad >> count; test -e gate && echo good".to_owned();
    let file = batch(&rig, "b.json", &[quick("zero"), fails.clone(), fails]);
    rig.run(["run", file, "-j", "1", "--set", "interrupt_grace=7s"]).expect(1);
    let first = rig.runs()[0]["run_id"].as_str().unwrap().to_owned();
    open(&rig);
    rig.run(["rerun", &first, "--task", "2"]).expect(0).says("\"good\"");
    let said = rig.run(["rerun", &first, "--failed", "--json"]);
    assert_eq!(said.expect(0).json()["results"].as_array().unwrap().len(), 2);
    assert_eq!(counted(&rig).iter().filter(|word| *word == "zero").count(), 1);
    assert_eq!(rig.runs()[0]["rerun_of"], first);
    rig.run(["runs"]).says(&format!("rerun of {}", &first[..6]));
    rig.run(["rerun", &first, "--task", "9"]).expect(2).says("there is no such task");
    rig.run(["rerun", "latest", "--failed"]).expect(2).says("there is no failed task");
    rig.run(["rerun", "zzzz"]).expect(4);
    rig.run(["rerun", &first, "--failed", "--task", "1"]).expect(2);
    rig.wait_for_nobody();
}

#[test]
fn prune_forgets_by_count_and_size_and_never_a_living_run() {
    let rig = Rig::new();
    let lives = dispatched(&rig.run(["run", batch(&rig, "g.json", &[gated("a")]), "-d"]));
    for _ in 0..3 {
        rig.run(["run", batch(&rig, "q.json", &[quick("a")])]).expect(0);
    }
    let ids = || {
        rig.runs().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let before = ids();
    rig.run(["runs", "prune"]).expect(2).says("--older-than");
    rig.run(["runs", "prune", "--older-than", "soon"]).expect(2).says("`30d`");
    let dry = rig.run(["runs", "prune", "--keep", "1", "--dry-run", "--json"]).expect(0).json();
    assert_eq!(dry["schema"], "delegate.prune/1");
    assert_eq!(dry["forgotten"].as_array().unwrap().len(), 2);
    assert_eq!((&dry["held"][0]["run_id"], &dry["kept"]), (&lives.clone().into(), &2.into()));
    assert_eq!(ids(), before, "a dry run forgets nothing");
    rig.run(["runs", "prune", "--older-than", "1h"]).expect(0).says("0 runs forgotten");
    rig.run(["runs", "prune", "--keep", "1"])
        .expect(0)
        .says("2 runs forgotten")
        .says("it still runs");
    assert_eq!(ids(), [before[0].clone(), lives.clone()]);
    let folders = fs::read_dir(rig.path("state/runs")).unwrap().count();
    assert_eq!(folders, 2);
    open(&rig);
    rig.run(["wait", &lives]).expect(0);
    rig.wait_for_nobody();
    rig.run(["runs", "prune", "--max-size", "0"]).expect(0).says("2 runs forgotten");
    assert_eq!(ids(), Vec::<String>::new());
    let records = fs::read_dir(rig.path("state/background")).unwrap().count();
    assert_eq!(records, 0, "its record and log too");
}

/// The system's own words for it name no path and no remedy.
#[test]
fn a_runtime_directory_that_is_too_long_for_a_socket_is_said_with_path_and_remedy() {
    let rig = Rig::new();
    let file = rig.batch("b.yaml", &["true"]);
    let long = rig.path(&format!("run/{}", "x".repeat(120)));
    fs::create_dir_all(&long).unwrap();
    let mut command = rig.command(["run", file, "--background"]);
    let said = crate::rig::Said::of(command.env("XDG_RUNTIME_DIR", &long).output().unwrap());
    assert_ne!(said.code, Some(0), "{said:?}");
    for part in [long.to_str().unwrap(), "room for 107", "set XDG_RUNTIME_DIR to a directory"] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    // A run that needs no such socket goes on as ever.
    let mut command = rig.command(["run", file]);
    let said = crate::rig::Said::of(command.env("XDG_RUNTIME_DIR", &long).output().unwrap());
    said.expect(0);
}
