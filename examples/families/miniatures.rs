//! Miniatures: each kind of leftover in a few lines, with what is expected of it without us, under `delegate
//! own` and in spawn mode. Data only, as [`crate::rows`].

use crate::rows::{Act, Expected, READY, ROW, Ready, Row};
use crate::table::Tier;

/// Something is left without us and nothing with us.
const fn ends(before: usize) -> Option<Expected> {
    Some(Expected { alive: None, left: [before, 0, 0], dead: None, output_ends: None })
}

/// As [`ends`], and `alive` while the owner lives.
const fn lives(alive: [usize; 3], before: usize) -> Option<Expected> {
    Some(Expected { alive: Some(alive), left: [before, 0, 0], dead: None, output_ends: None })
}

const fn ready(members: usize) -> Ready {
    Ready { members, ..READY }
}

/// What a tier cannot do that others can, as (row, tier, left under `own`, left in spawn mode). None so far.
pub(crate) const EXCEPTIONS: [(&str, Tier, usize, usize); 0] = [];

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "M01",
        what: "the launcher alone is killed",
        starts: &[r#"tool=echo $$ >"$DIR/launcher"; sleep 600; :"#],
        ready: ready(2),
        act: Act::KillLauncher,
        // An agent program under `own` lives, and so does what it has: until its end.
        expected: lives([1, 1, 0], 1),
        ..ROW
    },
    Row {
        name: "M02",
        what: "the owner is killed",
        starts: &["tool=exec sleep 600"],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M03",
        what: "a launcher keeps the pipe of its server open",
        needs: &["python3"],
        starts: &[r#"server=exec python3 -c '
import subprocess, time
server = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
time.sleep(600)'"#],
        ready: ready(2),
        expected: ends(2),
        ..ROW
    },
    Row {
        name: "M04",
        what: "a session of its own",
        starts: &["tool=setsid -f sleep 600; sleep 600; :"],
        ready: ready(3),
        expected: ends(3),
        ..ROW
    },
    Row {
        name: "M05",
        what: "double fork with a session of its own; every ancestor has ended",
        needs: &["python3"],
        starts: &[r#"done=python3 -c '
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])'"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M06",
        what: "TERM is ignored",
        starts: &[r#"tool=trap "" TERM; sleep 600; :"#],
        ready: ready(2),
        expected: ends(2),
        ..ROW
    },
    Row {
        name: "M08",
        what: "a stopped member, for which TERM stays pending",
        starts: &["tool=sleep 600 & kill -STOP $!; wait"],
        ready: ready(2),
        expected: ends(2),
        ..ROW
    },
    Row {
        name: "M09",
        what: "a copy without exec holds every descriptor",
        needs: &["python3"],
        starts: &[r#"tool=exec python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
time.sleep(600)'"#],
        ready: ready(2),
        expected: ends(2),
        ..ROW
    },
    Row {
        name: "M10",
        what: "a background job has inherited the output that a caller reads to its end",
        starts: &["call=echo said; sleep 600 &"],
        expected: Some(Expected {
            alive: Some([1, 1, 0]),
            left: [1, 0, 0],
            dead: None,
            output_ends: Some([false, false, true]),
        }),
        ..ROW
    },
    Row {
        name: "M11",
        what: "a lock (flock) outlives its holder in a copy",
        needs: &["python3"],
        starts: &[r#"done=python3 -c '
import fcntl, os, time
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    os.close(1), os.close(2)
    time.sleep(600)'"#],
        ready: Ready { lock: true, ..ready(1) },
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M13",
        what: "work that another daemon does: a hole; `Spawn::release` is for it",
        needs: &["python3"],
        beside: r#"exec python3 -c '
import socket, subprocess
broker = socket.socket(socket.AF_UNIX)
broker.bind("broker")
broker.listen()
while True:
    client, _ = broker.accept()
    subprocess.Popen(["sleep", "600"])
    client.sendall(b"x")'"#,
        starts: &[r#"tool=exec python3 -c '
import os, socket, time
broker = socket.socket(socket.AF_UNIX)
broker.connect(os.environ["BESIDE"] + "/broker")
broker.recv(1)
time.sleep(600)'"#],
        ready: ready(2),
        // It is the broker's child, and nobody's descendant here.
        expected: Some(Expected { alive: None, left: [2, 1, 1], dead: None, output_ends: None }),
        ..ROW
    },
    Row {
        name: "M14",
        what: "the number of a dead leader, and of its group, is a stranger's",
        // It writes the namespace's last number.
        needs: &["root"],
        starts: &[r#"call=trap "" TERM; setsid sleep 600 & echo $$ >launcher"#],
        act: Act::Recycle,
        expected: lives([1, 1, 0], 1),
        ..ROW
    },
    Row {
        name: "M15",
        what: "the environment is cleared",
        starts: &[r#"tool=sleep 600 & setsid env -i /bin/sh -c "sleep 600; :" & wait"#],
        ready: ready(4),
        expected: ends(4),
        ..ROW
    },
    Row {
        name: "M16",
        what: "the thread that started it ends, the owner does not",
        starts: &["thread=exec sleep 600"],
        expected: lives([1, 1, 1], 1),
        ..ROW
    },
    Row {
        name: "M17",
        what: "a parent-death signal that is armed after the parent's death",
        needs: &["python3"],
        starts: &[r#"done=python3 -c '
import ctypes, os, time
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    ctypes.CDLL(None).prctl(1, 9)
    os.execvp("sleep", ["sleep", "600"])'"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M19",
        what: "`kill %1` of a script: dash finds no such job",
        needs: &["dash"],
        starts: &[r#"done=dash -c 'sh -c "sleep 600; :" | cat & kill %1'; :"#],
        ready: ready(3),
        expected: ends(3),
        ..ROW
    },
    Row {
        name: "M20",
        what: "two siblings below a runner: the first ends, nobody ends the other",
        needs: &["bash"],
        starts: &["call=bash -c 'sleep 0.1 & sleep 600 & wait -n'; :"],
        expected: lives([1, 1, 0], 1),
        ..ROW
    },
    Row {
        name: "M21",
        what: "a parent that never waits",
        needs: &["python3"],
        starts: &[r#"tool=exec python3 -c '
import os, time
for _ in range(5):
    if os.fork() == 0:
        os._exit(0)
time.sleep(600)'"#],
        expected: Some(Expected {
            alive: None,
            left: [1, 0, 0],
            dead: Some([5, 0, 0]),
            output_ends: None,
        }),
        ..ROW
    },
    Row {
        name: "M22",
        what: "the supervisor is killed before the owner",
        starts: &["tool=setsid sleep 600 & wait"],
        ready: ready(2),
        act: Act::KillSupervisor,
        expected: lives([2, 2, 2], 2),
        ..ROW
    },
    Row {
        name: "M23",
        what: "a member has children after it was looked at: at TERM",
        needs: &["python3"],
        starts: &[r#"tool=exec python3 -c '
import signal, subprocess
def more(*_):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
signal.signal(signal.SIGTERM, more)
while True:
    signal.pause()'"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M25",
        what: "a terminal is gone, HUP is ignored, and the survivor spins",
        needs: &["python3"],
        starts: &[r#"done=python3 -c '
import os, pty, signal, time
parent = os.getpid()
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open("spins", "w").close()
    while True:
        try:
            os.read(0, 1)
        except OSError:
            pass
while not os.path.exists("spins"):
    time.sleep(0.01)'"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M26",
        what: "a stranger has the same name and the same words",
        beside: r#"exec sh -c "sleep 600; : serve-model""#,
        starts: &[r#"tool=exec sh -c "sleep 600; : serve-model""#],
        ready: ready(2),
        expected: ends(2),
        ..ROW
    },
    Row {
        name: "M27",
        what: "a stranger is a daemon: parent 1, session of its own",
        beside: "(setsid sleep 600 &)",
        starts: &["tool=exec sleep 600"],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M28",
        what: "the owner executes itself and lives",
        starts: &["tool=exec sleep 600"],
        act: Act::Again,
        expected: lives([1, 1, 1], 1),
        ..ROW
    },
    Row {
        name: "M29",
        what: "the owner dies as soon as it has started something",
        starts: &["die=exec sleep 600"],
        act: Act::Dies,
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M31",
        what: "a child that leads no group, so that only its number can be signalled",
        starts: &[r#"server=echo $$ >"$DIR/launcher"; sleep 600; :"#],
        ready: ready(2),
        act: Act::KillLauncher,
        expected: lives([1, 1, 0], 1),
        ..ROW
    },
    Row {
        name: "M32",
        what: "a watchdog thread that never gets the interpreter's lock",
        needs: &["python3"],
        starts: &[r#"server=exec python3 -c '
import ctypes, os, threading
def watch():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
ctypes.PyDLL(None).sleep(600)'"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M33",
        what: "a handle is replaced by that of a second child",
        starts: &["replaced=exec sleep 600"],
        expected: lives([2, 2, 1], 2),
        ..ROW
    },
    Row {
        name: "M35",
        what: "detached maintenance, one at a time by a file with a number",
        starts: &[r#"done=job() {
    [ -e pid ] && kill -0 "$(cat pid)" && return
    setsid sleep 600 >/dev/null 2>&1 & echo $! >pid
}
job; job"#],
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M37",
        what: "orphans below a PID 1 that does not reap",
        needs: &["python3"],
        starts: &[r#"done=python3 -c '
import os, time
if os.fork() == 0:
    for _ in range(3):
        if os.fork() == 0:
            time.sleep(0.3)
            os._exit(0)
    os._exit(0)
os.wait()
time.sleep(0.6)'"#],
        ready: ready(0),
        expected: Some(Expected {
            alive: None,
            left: [0, 0, 0],
            dead: Some([3, 0, 0]),
            output_ends: None,
        }),
        ..ROW
    },
    Row {
        name: "M38",
        what: "the OOM score is that of the owner, and not that of its guards",
        starts: &["tool=echo score $(cat /proc/self/oom_score_adj); exec sleep 600"],
        ready: Ready { says: "score 300\n", ..ready(1) },
        expected: ends(1),
        ..ROW
    },
    Row {
        name: "M39",
        what: "a pid namespace inside, that does not end with whoever made it",
        starts: &["tool=unshare --user --map-root-user --pid --fork sleep 600; :"],
        ready: ready(3),
        expected: ends(3),
        ..ROW
    },
];
