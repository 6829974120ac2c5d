//! `ps` and `janitor` over 4,000 real processes: everybody is seen, proved and ended, and time and memory are printed for
//! `docs/performance.md`. Nothing here fails for being slow.

use std::fs;

use serde_json::Value;

use crate::rig::{DELEGATE, Rig, Said};

const MANY: usize = 4000;

/// Runs what follows and says how long it took and how much was resident at most (`VmHWM`, looked at each millisecond).
const MEASURE: &str = r#"use Time::HiRes qw(time sleep);
my ($name, $out, @what) = @ARGV;
my $begin = time;
my $pid = fork // die;
if (!$pid) { open(STDOUT, ">", $out) or die; exec @what or die }
my $peak = 0;
until (waitpid($pid, 1) == $pid) {
    if (open(my $status, "<", "/proc/$pid/status")) { while (<$status>) { $peak = $1 if /^VmHWM:\s+(\d+)/ && $1 > $peak } }
    sleep 0.001;
}
printf "%s exit %d in %.0f ms, %d KiB\n", $name, $? >> 8, (time - $begin) * 1000, $peak;
"#;

#[test]
fn four_thousand_are_seen_and_ended() {
    let rig = Rig::new();
    rig.file("measure.pl", MEASURE);
    let script = format!(
        "for (1..{MANY}) {{ $p = fork // exit 1; if (!$p) {{ $0 = 'crowd'; sleep 600; exit }} }} sleep 600"
    );
    rig.file("crowd.pl", script);
    rig.batch("b.yaml", &["echo $$ > escaped; exec perl crowd.pl"]);
    let story = format!(
        "{DELEGATE} run b.yaml --isolation thread > run.out 2>&1 & owner=$!
         crowd() {{ cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(crowd) [^ZX]'; }}
         until test $(crowd) = {MANY}; do sleep 0.2; done
         field() {{ sed 's/.*) //' /proc/$1/stat | cut -d' ' -f$2; }}
         supervisor=$(cat escaped)
         until test $(cat /proc/$supervisor/comm) = minder; do supervisor=$(field $supervisor 2); done
         keeper=$(field $supervisor 2)
         measure() {{ perl measure.pl \"$@\"; }}
         measure ps ps.json {DELEGATE} ps --json
         measure 'janitor while all live' idle.json {DELEGATE} janitor --json
         for who in $owner $keeper $supervisor; do
             kill -STOP $who; until test $(field $who 1) = T; do sleep 0.02; done
         done
         kill -9 $supervisor; kill -9 $keeper; kill -9 $owner; wait $owner
         for who in $keeper $supervisor; do
             while test -e /proc/$who && test $(field $who 1) != Z; do sleep 0.02; done
         done
         measure janitor found.json {DELEGATE} janitor --json
         measure 'janitor --kill' ended.json {DELEGATE} janitor --kill --json
         echo left $(crowd)"
    );
    let mut fence = rig.program("setsid");
    fence.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]);
    let said = Said::of(fence.arg(story).output().unwrap());
    if said.err.contains("unshare failed") {
        eprintln!("SKIPPED: NO PID NAMESPACE CAN BE MADE HERE");
        return;
    }
    eprintln!("{}", said.out);
    said.says("left 0").says("ps exit 0").says("janitor exit 1").says("janitor --kill exit 0");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(rig.path(name)).unwrap()).unwrap()
    };
    let crowd =
        |list: &Value| list.as_array().unwrap().iter().filter(|one| one["name"] == "crowd").count();
    let ps = read("ps.json");
    let children = ps["owners"].as_array().unwrap().iter();
    let children = children.flat_map(|owner| owner["children"].as_array().unwrap());
    assert_eq!(children.map(|child| crowd(&child["processes"])).sum::<usize>(), MANY);
    assert_eq!(read("idle.json")["left_over"], serde_json::json!([]));
    let found = read("found.json");
    let proved = found["left_over"].as_array().unwrap().iter();
    let proved = proved.filter(|one| one["grade"] == "proved").cloned().collect();
    assert_eq!(crowd(&Value::Array(proved)), MANY);
    let ended = read("ended.json");
    let gone = ended["ended"].as_array().unwrap().iter();
    let gone = gone.filter(|one| one["fate"] == "ended" || one["fate"] == "gone").count();
    assert!(gone >= MANY, "{gone}");
}
