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
