//! `delegate janitor`: what is left over is shown, ended when that is proved, and picked on a terminal. In a pid namespace of its own,
//! since it looks at everybody.

use serde_json::Value;

use crate::rig::{DELEGATE, Rig, Said};

/// A shell inside a pid namespace, after a `delegate run` and its guards were killed at once. It knows `$left`, the process
/// that escaped.
fn inside(rig: &Rig, script: &str) -> Option<Said> {
    rig.batch("b.yaml", &["echo $$ > escaped; exec sleep 600"]);
    let script = format!(
        "{DELEGATE} run b.yaml --isolation thread > /dev/null 2>&1 & owner=$!
         until test -s escaped; do sleep 0.02; done
         parent() {{ sed 's/.*) . //; s/ .*//' /proc/$1/stat; }}
         left=$(cat escaped); supervisor=$left
         until test $(cat /proc/$supervisor/comm) = minder; do supervisor=$(parent $supervisor); done
         keeper=$(parent $supervisor)
         until test -s state/ledger.sqlite; do sleep 0.02; done
         kill -STOP $keeper $supervisor $owner
         sleep 0.1
         kill -KILL $supervisor; kill -KILL $keeper
         kill -KILL $owner; wait $owner
         while test -e /proc/$keeper/exe || test -e /proc/$supervisor/exe; do sleep 0.02; done
         {script}"
    );
    let mut fence = rig.program("setsid");
    fence.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]);
    let said = Said::of(fence.arg(script).output().unwrap());
    if said.err.contains("unshare failed") {
        eprintln!("SKIPPED: no pid namespace can be made here");
        return None;
    }
    Some(said)
}

#[test]
fn where_nothing_is_left_it_says_so() {
    let rig = Rig::new();
    // Nothing of this state directory; marks of others that are dead may be on this machine.
    let said = rig.run(["janitor", "--json"]);
    let value = said.json();
    assert_eq!(value["schema"], "delegate.janitor/1");
    assert_eq!(value["ledger"], false);
    assert!(!rig.path("state/ledger.sqlite").exists(), "looking makes nothing");
}

#[test]
fn it_shows_and_ends_what_is_left() {
    let rig = Rig::new();
    let script = format!(
        "{DELEGATE} janitor; echo code $?
         kill -0 $left && echo still there
         {DELEGATE} janitor --json > found.json
         {DELEGATE} janitor --kill --grace 300ms; echo code $?
         test -e /proc/$left/exe || echo gone $left
         {DELEGATE} janitor; echo code $?
         {DELEGATE} janitor --kill --json > ended.json; echo code $?"
    );
    let Some(said) = inside(&rig, &script) else { return };
    said.says("code 1").says("still there").says("1 proved").says("--kill ends what is proved");
    said.says("ended").says("gone ").says("0 processes left").says("nothing is left over");
    let codes: Vec<_> = said.out.lines().filter(|line| line.starts_with("code")).collect();
    assert_eq!(codes, ["code 1", "code 0", "code 0", "code 0"], "{said:?}");
    let read = |name| -> Value {
        serde_json::from_slice(&std::fs::read(rig.path(name)).unwrap()).unwrap()
    };
    let one = &read("found.json")["left_over"][0];
    assert_eq!((&one["grade"], &one["name"]), (&"proved".into(), &"sleep".into()));
    assert_eq!(one["purpose"], "command sh", "what was written down of it: {one}");
    assert_eq!(read("ended.json")["left_over"], serde_json::json!([]));
}

#[test]
fn picking_needs_a_terminal() {
    let rig = Rig::new();
    rig.run(["janitor", "--pick"]).expect(2).says("terminal").says("--kill");
    rig.run(["janitor", "--grace", "soon"]).expect(2).says("90s");
}

#[test]
fn a_person_picks_on_the_terminal() {
    let rig = Rig::new();
    // `script` gives it a terminal, and types what it reads.
    let script = format!(
        "env $(tr '\\0' '\\n' < /proc/$left/environ | grep OWNERSHIP_TAG) sleep 600 & copy=$!
         until test $(cat /proc/$copy/comm) = sleep; do sleep 0.02; done
         {DELEGATE} janitor --kill --grace 300ms; echo code $?
         kill -0 $copy && echo a mark is no proof
         printf '9\\n1\\n' | script -qec '{DELEGATE} janitor --pick --grace 300ms' /dev/null; echo code $?
         test -e /proc/$copy/exe || echo picked"
    );
    let Some(said) = inside(&rig, &script) else { return };
    said.says("code 1").says("a mark is no proof").says("1 likely");
    said.says("whom to end?").says("names nobody of the list").says("picked");
    said.says("0 processes left").says("code 0");
}

/// A cgroup below ours, or why there can be none.
fn own_cgroup(name: &str) -> Result<std::path::PathBuf, String> {
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).ok_or("no version 2")?;
    let dir = ownership::containment::dir_of(std::path::Path::new(own)).ok_or("not mounted")?;
    let dir = dir.join(name);
    std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// An owner that was number 1 of a pid namespace, with guards and all, and one that was killed with its guards: their empty
/// cgroups are named and removed; that of a living one, and one with somebody in it, are neither. In a cgroup of their own: guards
/// of other owners remove what they meet.
#[test]
fn empty_cgroups_of_dead_owners_are_named_and_removed_and_no_other() {
    let first = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if first != std::path::Path::new("pid:[4026531836]") {
        eprintln!("SKIPPED: NOT EVERYBODY IS SEEN FROM THIS PID NAMESPACE");
        return;
    }
    let rig = Rig::new();
    let name = format!("janitor-test-{}", std::process::id());
    let base = match own_cgroup(&name) {
        Ok(base) => base,
        Err(why) => {
            eprintln!("SKIPPED: NO CGROUP CAN BE MADE HERE: {why}");
            return;
        }
    };
    rig.batch("b.yaml", &["mktemp up.XXXXXX; exec sleep 600"]);
    let root = base.display();
    let script = format!(
        "echo $$ > {root}/cgroup.procs || exit 9
         own='{DELEGATE} run b.yaml --containment cgroup --state-dir'
         up() {{ until test $(ls up.* 2>/dev/null | wc -l) = $1; do sleep 0.02; done; }}
         $own living > living.told 2>&1 & living=$!; up 1
         unshare --pid --fork --mount-proc --kill-child $own inside > inside.told 2>&1 & fence=$!; up 2
         unshare --pid --fork --mount-proc --kill-child $own full > full.told 2>&1 & full=$!; up 3
         before=$(ls -d {root}/ownership-1.* | sort); test $(echo $before | wc -w) = 2 || echo not two
         kill -KILL $fence; wait $fence 2> /dev/null
         until grep -l 'populated 0' {root}/ownership-1.*/cgroup.events > dead; do sleep 0.02; done
         dead=$(dirname $(cat dead))
         {DELEGATE} janitor > looked
         test -d $dead && echo it only looked
         {DELEGATE} janitor --kill --json > killed.json
         test -d $dead || echo removed
         test $(ls -d {root}/ownership-* | wc -l) = 2 && echo others stay
         {DELEGATE} janitor | grep -c $dead
         echo $dead > dead
         kill -KILL $full; kill -TERM $living; wait"
    );
    let said = Said::of(rig.program("sh").args(["-c", &script]).output().unwrap());
    // Whoever was to be ended leaves first.
    crate::support::wait_for("the cgroup to be empty", || {
        let rest = std::fs::read_dir(&base).into_iter().flatten().flatten();
        for left in rest.filter(|entry| entry.path().is_dir()) {
            for inside in std::fs::read_dir(left.path()).into_iter().flatten().flatten() {
                drop(std::fs::remove_dir(inside.path()));
            }
            drop(std::fs::remove_dir(left.path()));
        }
        std::fs::remove_dir(&base).is_ok().then_some(())
    });
    if said.code == Some(9) || said.err.contains("unshare failed") {
        eprintln!("SKIPPED: no process can be moved, or no pid namespace be made here");
        return;
    }
    let words: Vec<_> = said.out.lines().collect();
    assert_eq!(words, ["it only looked", "removed", "others stay", "0"], "{said:?}");
    let text = |name| std::fs::read_to_string(rig.path(name)).unwrap();
    let (dead, looked) = (text("dead").trim().to_owned(), text("looked"));
    let named = looked.lines().filter(|line| line.contains(&name)).collect::<Vec<_>>();
    assert_eq!(named.len(), 1, "{looked}");
    assert!(named[0].contains(&dead) && named[0].contains("--kill removes it"), "{looked}");
    let killed: Value = serde_json::from_str(&text("killed.json")).unwrap();
    let removed = killed["cgroups_removed"].as_array().unwrap();
    assert!(removed.iter().any(|path| *path == *dead), "{killed}");
    let group = killed["empty_cgroups"].as_array().unwrap().iter().find(|it| it["path"] == *dead);
    assert!(group.unwrap()["owner_pid_namespace"].is_u64(), "{killed}");
}
