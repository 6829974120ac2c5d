//! The same story on machines that lack something, each made from this one in namespaces of its own: a run, what is said
//! of it, `own`, an owner that is killed with -9, and one that is killed together with its guards. Nothing is left, a
//! living owner and a stranger are untouched, and `doctor` says what the machine is. What cannot be made here is
//! skipped loudly.
//!
//! What the kernel has compiled in cannot be taken away: "no lists of children" is made with the setting
//! `OWNERSHIP_TEST_OFF=lists`, which makes guards, janitor and doctor do as if they were missing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::rig::{DELEGATE, Rig, Said};

/// A user without rights: `nobody` of most systems.
const NOBODY: u32 = 65534;

/// What the shell inside does. `$D` is the command, `$T` ends the names of the processes of this test.
const STORY: &str = r#"
names() { cat /proc/[0-9]*/stat 2>/dev/null | sed -n 's/^[0-9]* (\(.*\)) [^ZX] .*/\1/p'; }
count() { names | grep -c "^$1$T\$"; }
until_are() {
    n=0
    until test "$(count $1)" = $2; do
        n=$((n + 1)); sleep 0.02
        test $n -lt 1500 || { echo "STUCK: $1 are $(count $1), not $2"; names; cat *.out; exit 9; }
    done
}
stat_of() { sed "s/.*) //" /proc/$1/stat | cut -d" " -f$2; }
others() { test $(count other) = 1 && test $(count ctrl) = 1 && echo "the others live after $1"; }
umask 022
"./other$T" &
"$D" run control.yaml > control.out 2>&1 & control=$!
until_are ctrl 1

"$D" run tree.yaml --isolation process --set terminate_grace=300ms > tree.out 2>&1 & owner=$!
until_are leaf 4
echo "owner $owner"
"$D" doctor --json > doctor.json; echo "doctor $?"
"$D" ps --json > ps.json; echo "ps $?"
"$D" janitor --json > janitor.json; echo "janitor $?"
"$D" own -q -- sh -c "./own$T & (setsid ./own$T &); until test -e own-begun; do sleep 0.02; done; exit 7" & own=$!
until_are own 2; touch own-begun
wait $own; echo "own $?"
until_are own 0
eval "$MEANWHILE"
kill -9 $owner; wait $owner; echo "killed $?"
until_are leaf 0
others kill
"$D" ps --json > after.json; echo "ps $?"

"$D" run escape.yaml --isolation thread > escape.out 2>&1 & owner=$!
until_are leaf 1
supervisor=$(cat escaped)
until test $(cat /proc/$supervisor/comm) = minder; do supervisor=$(stat_of $supervisor 2); done
keeper=$(stat_of $supervisor 2)
for who in $owner $keeper $supervisor; do
    kill -STOP $who; until test $(stat_of $who 1) = T; do sleep 0.02; done
done
kill -9 $supervisor; kill -9 $keeper; kill -9 $owner; wait $owner
for who in $keeper $supervisor; do
    while test -e /proc/$who && test $(stat_of $who 1) != Z; do sleep 0.02; done
done
test $(count leaf) = 1 && echo escaped
"$D" janitor --json > found.json; echo "found $?"
"$D" janitor --kill --grace 300ms --json > ended.json; echo "ended $?"
until_are leaf 0
others janitor
touch go; wait $control; echo "control $?"
eval "$AFTER"
echo over
"#;

/// A machine that lacks something.
#[derive(Default)]
struct Environment<'a> {
    /// More for `unshare`.
    unshare: &'static [&'static str],
    /// Done as root before the story. Exits with 77 where that cannot be.
    before: &'static str,
    /// The story is a user's without rights.
    unprivileged: bool,
    /// A program that is PID 1 and runs the story; without one a shell is.
    first: Option<&'static str>,
    /// Done while the tree runs, and after all.
    meanwhile: &'static str,
    after: &'static str,
    off: &'static str,
    /// More for its environment.
    variables: &'a [(&'a str, &'a str)],
}

/// What came of it.
struct Told {
    said: Said,
    doctor: Value,
    ps: Value,
    janitor: Value,
}

impl Environment<'_> {
    /// Runs the story and asserts what is so in every environment. `None` where it cannot be made.
    fn told(&self, name: &str) -> Option<Told> {
        if !Path::new("/usr/bin/perl").exists() {
            return skipped(name, "no /usr/bin/perl");
        }
        let rig = Rig::new();
        let token = rig.dir().file_name().unwrap().to_str().unwrap().replace('.', "");
        let token = &token[token.len() - 6..];
        prepare(&rig, token, self.unprivileged);
        let mut command = rig.program("setsid");
        command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        if !rustix::process::geteuid().is_root() && !self.unshare.contains(&"--user") {
            if self.unprivileged {
                return skipped(name, "only root may become another user");
            }
            command.args(["--user", "--map-root-user"]);
        }
        let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
        let user = if self.unprivileged { user.as_str() } else { "" };
        let first = self.first.unwrap_or("");
        let script = format!("{}\n{first} {user} sh story.sh", self.before);
        command.args(self.unshare).args(["sh", "-c", &script]);
        let program = if self.unprivileged { rig.path("delegate") } else { DELEGATE.into() };
        command.env("D", program).env("T", token).env("OWNERSHIP_TEST_OFF", self.off);
        command.envs(self.variables.iter().copied());
        command.env("MEANWHILE", self.meanwhile).env("AFTER", self.after);
        let said = Said::of(command.output().unwrap());
        if said.code == Some(77) || said.err.contains("unshare failed") {
            return skipped(name, &said.err);
        }
        said.expect(0).says("over");
        rig.wait_for_nobody();
        for so in [
            "doctor 0",
            "janitor 0",
            "own 7",
            "killed 137",
            "the others live after kill",
            "escaped",
            "found 1",
            "ended 0",
            "the others live after janitor",
            "control 0",
        ] {
            assert!(said.out.lines().any(|line| line == so), "{name}: not {so}: {said:?}");
        }
        let read = |file: &str| -> Value {
            serde_json::from_slice(&fs::read(rig.path(file)).unwrap()).unwrap()
        };
        let owner = said.out.lines().find_map(|line| line.strip_prefix("owner ")).unwrap();
        let owner: Value = owner.parse::<u64>().unwrap().into();
        let ps = read("ps.json");
        let owners = ps["owners"].as_array().unwrap();
        let shown = owners.iter().find(|one| one["pid"] == owner).unwrap_or_else(|| panic!("{ps}"));
        assert_eq!(
            (&shown["state"], &shown["guarding"]),
            (&"lives".into(), &"guarded".into()),
            "{name}"
        );
        let leaf = Value::from(format!("leaf{token}"));
        let children = shown["children"].as_array().unwrap().iter();
        let processes = children.flat_map(|child| child["processes"].as_array().unwrap());
        let leaves = processes.filter(|process| process["name"] == leaf).count();
        assert_eq!(leaves, 4, "{name}: {ps}");
        let after = read("after.json");
        let owners = after["owners"].as_array().unwrap();
        assert!(!owners.iter().any(|one| one["pid"] == owner), "{name}: {after}");
        let janitor = read("janitor.json");
        assert_eq!(janitor["left_over"], serde_json::json!([]), "{name}: everybody's owner lives");
        let found = read("found.json");
        let proved = found["left_over"].as_array().unwrap();
        let proved = proved.iter().filter(|one| one["grade"] == "proved" && one["name"] == leaf);
        assert_eq!(proved.count(), 1, "{name}: {found}");
        let doctor = read("doctor.json");
        assert_eq!(
            (&doctor["ok"], &doctor["guards"]["works"]),
            (&true.into(), &true.into()),
            "{name}"
        );
        Some(Told { said, doctor, ps, janitor })
    }
}

/// Programs that are told apart by their names, and batches that start them.
fn prepare(rig: &Rig, token: &str, unprivileged: bool) {
    for name in ["leaf", "own", "ctrl", "other"] {
        let name = format!("{name}{token}");
        rig.file(&name, "#!/usr/bin/perl\nsleep 600;\n");
        fs::set_permissions(rig.path(&name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let leaf = format!("./leaf{token}");
    // A child, one in a session of its own, one that is nobody's child any more, and one that ignores TERM.
    let tree =
        format!("{leaf} & setsid {leaf} & (setsid {leaf} &); (trap '' TERM; exec {leaf}) & wait");
    rig.batch("tree.yaml", &[&tree]);
    let control = format!("./ctrl{token} & until test -e go; do sleep 0.02; done; kill $!");
    rig.batch("control.yaml", &[&control]);
    rig.batch("escape.yaml", &[&format!("echo $$ > escaped; {leaf} & wait")]);
    rig.file("story.sh", STORY);
    if unprivileged {
        // Where the tests were built nobody may be able to go.
        fs::copy(DELEGATE, rig.path("delegate")).unwrap();
        for file in fs::read_dir(rig.dir()).unwrap().map(|file| file.unwrap().path()) {
            std::os::unix::fs::chown(file, Some(NOBODY), Some(NOBODY)).ok();
        }
        std::os::unix::fs::chown(rig.dir(), Some(NOBODY), Some(NOBODY)).ok();
    }
}

fn skipped<T>(name: &str, why: &str) -> Option<T> {
    eprintln!("SKIPPED: THE ENVIRONMENT \"{name}\" CANNOT BE MADE HERE: {}", why.trim());
    None
}

/// Mounts of this kind, here.
fn mounted(kind: &str) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind))
}

#[test]
fn cgroup_v2_beside_v1() {
    const NAME: &str = "hybrid cgroups";
    if !(mounted("cgroup") && mounted("cgroup2")) {
        return skipped(NAME, "cgroups of both versions are not mounted").unwrap_or(());
    }
    let Some(Told { doctor, ps, .. }) = Environment::default().told(NAME) else { return };
    let writable = rustix::process::geteuid().is_root();
    let used = if writable { "cgroup" } else { "subreaper" };
    assert_eq!(doctor["containment"]["used"], used, "{doctor}");
    assert!(doctor["kernel"]["cgroup2_mount"].is_string(), "{doctor}");
    assert_eq!(ps["all_users_shown"], true);
}

#[test]
fn no_cgroup_v2() {
    let environment = Environment {
        before: "for at in $(awk '$3 == \"cgroup2\" { print $2 }' /proc/mounts); do umount $at || exit 77; done",
        ..Environment::default()
    };
    let Some(Told { doctor, .. }) = environment.told("no cgroup v2") else { return };
    assert_eq!(doctor["containment"]["used"], "subreaper");
    assert_eq!(doctor["kernel"]["cgroup2_mount"], Value::Null);
    let why = doctor["containment"]["tiers"][1]["why"].as_str().unwrap();
    assert!(why.contains("no cgroup2 hierarchy is mounted"), "{why}");
}

#[test]
fn no_user_namespaces() {
    let environment = Environment {
        unshare: &["--user", "--map-root-user"],
        before: "echo 0 > /proc/sys/user/max_user_namespaces || exit 77
                 unshare --user true 2>/dev/null && exit 77; echo none can be made",
        ..Environment::default()
    };
    let Some(Told { doctor, said, .. }) = environment.told("no user namespaces") else { return };
    said.says("none can be made");
    assert_eq!(doctor["kernel"]["user_namespaces"], 0, "{doctor}");
}

#[test]
fn other_users_processes_are_hidden() {
    let environment = Environment {
        before: "mount -t proc -o hidepid=2 proc /proc || exit 77",
        unprivileged: true,
        meanwhile: "test -e /proc/1 || echo PID 1 is hidden",
        ..Environment::default()
    };
    let told = environment.told("hidepid=2, as a user without rights");
    let Some(Told { doctor, ps, janitor, said }) = told else { return };
    said.says("PID 1 is hidden");
    assert_eq!(doctor["kernel"]["hidepid"], true);
    let remarks = doctor["remarks"].to_string();
    assert!(remarks.contains("hides processes of other users"), "{remarks}");
    for shown in [&ps, &janitor] {
        assert_eq!(shown["all_users_shown"], false, "{shown}");
    }
}

#[test]
fn a_user_without_rights() {
    let environment = Environment { unprivileged: true, ..Environment::default() };
    let Some(Told { doctor, ps, .. }) = environment.told("a user without rights") else { return };
    assert_eq!(doctor["containment"]["used"], "subreaper", "{doctor}");
    let why = doctor["containment"]["tiers"][1]["why"].as_str().unwrap();
    assert!(!why.is_empty());
    assert_eq!(
        (&ps["all_users_shown"], &doctor["state_dir"]["writable"]),
        (&true.into(), &true.into())
    );
}

#[test]
fn no_lists_of_children() {
    const NAME: &str = "no lists of children";
    if !cfg!(debug_assertions) {
        return skipped(NAME, "nothing can be switched off in a release build").unwrap_or(());
    }
    let environment = Environment { off: "lists", ..Environment::default() };
    let Some(Told { doctor, .. }) = environment.told(NAME) else { return };
    assert_eq!(doctor["kernel"]["children_lists"], false);
    assert!(doctor["remarks"].to_string().contains("does not list children"), "{doctor}");
}

/// Since Linux 6.14 a pid namespace has a limit of its own; before that it is the machine's, and left alone.
#[test]
fn four_thousand_process_numbers() {
    const NAME: &str = "pid_max 4096";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    if version < (6, 14) {
        return skipped(NAME, "the limit is the whole machine's").unwrap_or(());
    }
    let before = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let environment = Environment {
        before: "echo 4096 > /proc/sys/kernel/pid_max || exit 77",
        // All numbers once, while the tree runs: what is started later gets numbers that others had.
        meanwhile: "n=0; while test $n -lt 4500; do (:); n=$((n + 1)); done
                    test $(sh -c 'echo $$') -lt 4096 && echo all numbers were used",
        ..Environment::default()
    };
    let told = environment.told(NAME);
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/pid_max").unwrap(),
        before,
        "ours is as before"
    );
    let Some(Told { doctor, said, .. }) = told else { return };
    said.says("all numbers were used");
    assert_eq!(doctor["limits"]["pid_max"], 4096, "{doctor}");
}

#[test]
fn a_first_process_that_does_not_reap() {
    let environment = Environment {
        // It starts the story, looks for its end and never waits.
        first: Some(
            "exec perl -e 'my $p = fork; if (!$p) { exec @ARGV } \
             while (1) { open(my $f, q(<), qq(/proc/$p/stat)); my $s = <$f>; \
             exit(-e q(told) ? 0 : 1) if $s =~ /\\) Z /; select(undef, undef, undef, 0.02) }'",
        ),
        after: "cat /proc/[0-9]*/stat | grep -q '(warden) Z 1 ' && echo nobody reaps; touch told",
        ..Environment::default()
    };
    let Some(Told { said, .. }) = environment.told("a PID 1 that does not reap") else { return };
    said.says("nobody reaps");
}

/// A user without rights, in a session whose cgroup is root's, with a systemd of its own beside that. Everybody's guards
/// have a scope of that systemd, which `own` and `run` ask for by themselves.
#[test]
fn under_a_users_systemd() {
    const NAME: &str = "systemd --user";
    const SYSTEMD: &str = "/lib/systemd/systemd";
    if !Path::new(SYSTEMD).exists() || !mounted("cgroup2") {
        return skipped(NAME, &format!("no {SYSTEMD}, or no cgroup v2")).unwrap_or(());
    }
    // Cgroups that are left would be there after the test.
    let machine = ownership::Machine::look();
    let Some(base) = machine.cgroup.dir.filter(|_| machine.cgroup.made == Some(Ok(()))) else {
        return skipped(NAME, "no cgroup can be made").unwrap_or(());
    };
    let login = base.join(format!("test-systemd-{}", std::process::id()));
    let _removed = Login(login.clone());
    fs::create_dir(&login).unwrap();
    let told = Environment {
        unprivileged: true,
        before: r#"
            user=65534; as="setpriv --reuid=$user --regid=$user --clear-groups"
            mkdir $LOGIN/session $LOGIN/manager || exit 77
            chown $user $LOGIN/cgroup.procs $LOGIN/manager
            (cd $LOGIN/manager && chown $user cgroup.procs cgroup.subtree_control cgroup.threads)
            # A name for its own use, below which it would leave something.
            for at in $(awk '/name=systemd/ { print $2 }' /proc/mounts); do umount $at; done
            mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/user/$user || exit 77
            chown $user /run/user/$user && chmod 700 /run/user/$user
            export XDG_RUNTIME_DIR=/run/user/$user HOME=/run/user/$user
            (echo 0 > $LOGIN/manager/cgroup.procs; exec $as /lib/systemd/systemd --user > systemd.out 2>&1) &
            echo 0 > $LOGIN/session/cgroup.procs
            n=0
            until $as systemctl --user is-system-running > /dev/null 2>&1; do
                n=$((n + 1)); sleep 0.05
                test $n -lt 400 || { cat systemd.out >&2; echo it does not start >&2; exit 77; }
            done
        "#,
        meanwhile: r#"echo by name: $("$D" own -q --containment cgroup -- grep 0:: /proc/self/cgroup)"#,
        variables: &[("LOGIN", login.to_str().unwrap())],
        ..Environment::default()
    }
    .told(NAME);
    let Some(Told { doctor, said, .. }) = told else { return };
    let named = said.out.lines().find(|line| line.starts_with("by name:")).unwrap();
    assert!(named.contains("/manager/") && named.contains(".scope/ownership-"), "{named}");
    let containment = &doctor["containment"];
    assert_eq!(
        (&containment["used"], &doctor["kernel"]["systemd"]),
        (&"cgroup".into(), &true.into())
    );
    assert_eq!(containment["asks"], "this user's systemd");
    assert_eq!(doctor["kernel"]["cgroup_kill"], true, "{doctor}");
    let place = containment["cgroup"].as_str().unwrap();
    let scope = place.strip_prefix(login.join("manager").to_str().unwrap()).expect(place);
    assert!(scope.contains("/owned-") && scope.ends_with(".scope"), "{place}");
}

/// The cgroups of a test, which are removed with it.
struct Login(PathBuf);

impl Drop for Login {
    fn drop(&mut self) {
        fn remove(dir: &Path) {
            let inside = fs::read_dir(dir).into_iter().flatten().flatten();
            inside.filter(|e| e.path().is_dir()).for_each(|e| remove(&e.path()));
            fs::remove_dir(dir).ok();
        }
        // Who was in there died with the pid namespace, or is about to.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while self.0.exists() && std::time::Instant::now() < until {
            remove(&self.0);
        }
    }
}
