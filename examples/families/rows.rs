//! The rows of the table: what agent programs start, as shell scripts that a `helper-agent` runs. Data only;
//! [`crate::inside`] runs them, [`crate::table`] prints them, [`crate::miniatures`] has more.
//!
//! Scripts find `DIR` (their own directory), `PORT` (free), `PROGRAMS` (what `.ci/programs` has put there), `AS`
//! (becomes another user where these tests are root) and `SERVICE` (`helper-service`).

/// One family of what agents leave behind, and what stands for it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Which of the 14 families, from 1; 0 for a program beside them.
    pub(crate) family: u8,
    /// What is started. A stand-in is named as one.
    pub(crate) what: &'static str,
    /// Programs without which it is skipped; `root` for being root.
    pub(crate) needs: &'static [&'static str],
    /// `KIND=SCRIPT` for `helper-agent`.
    pub(crate) starts: &'static [&'static str],
    /// What is written to the stdin of each server.
    pub(crate) input: &'static str,
    pub(crate) ready: Ready,
    /// Whether something is known to be left without us, when the owner is killed.
    pub(crate) leaves: bool,
    /// Milliseconds between TERM and KILL, with us.
    pub(crate) grace: u32,
    /// A script that runs before the owner starts, as somebody else.
    pub(crate) beside: &'static str,
    /// What happens before the owner ends.
    pub(crate) act: Act,
    /// What is expected of a miniature.
    pub(crate) expected: Option<Expected>,
}

/// What happens while the owner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    /// Whoever wrote its number into `DIR/launcher` is killed.
    KillLauncher,
    /// The same, and a stranger gets its number.
    Recycle,
    /// The lower of the guards is killed, where there are any.
    KillSupervisor,
    /// The owner executes itself again.
    Again,
    /// The owner has killed itself as soon as it had started something.
    Dies,
}

/// What is expected of a miniature, without us, under `delegate own`, and in spawn mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// Who of the owner's lives after the act, while the owner lives too; the owner and guards apart.
    pub(crate) alive: Option<[usize; 3]>,
    /// Who lives after the owner's end.
    pub(crate) left: [usize; 3],
    /// The dead whom PID 1 does not reap, and nobody else; guards apart. `None`: PID 1 reaps.
    pub(crate) dead: Option<[usize; 3]>,
    /// Whether the output of a `call` has ended with its launcher.
    pub(crate) output_ends: Option<[bool; 3]>,
}

/// When everything of a row is there.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Least number of processes below the agent.
    pub(crate) members: usize,
    /// Something listens on `PORT`.
    pub(crate) port: bool,
    /// `DIR/lock` is held.
    pub(crate) lock: bool,
    /// A part of what was said on stdout or stderr; empty for nothing.
    pub(crate) says: &'static str,
}

pub(crate) const READY: Ready = Ready { members: 1, port: false, lock: false, says: "" };

pub(crate) const ROW: Row = Row {
    name: "",
    family: 0,
    what: "",
    needs: &[],
    starts: &[],
    input: "",
    ready: READY,
    leaves: true,
    grace: 3000,
    beside: "",
    act: Act::Nothing,
    expected: None,
};

/// `initialize` of the Model Context Protocol, one line.
const MCP: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"agent","version":"1"}}}"#,
    "\n"
);

/// `initialize` of the Language Server Protocol.
const LSP: &str = concat!(
    "Content-Length: 96\r\n\r\n",
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":null,"capabilities":{}}}    "#
);

/// A child with its own session, one without, and a daemon; then it waits.
const CELL: &str = r#"tool=python3 -c '
import os, subprocess, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
time.sleep(600)'; :"#;

/// An HTTP server with a child, which does not look at its stdin.
macro_rules! bridge {
    ($kind:literal) => {
        concat!(
            $kind,
            r#"=node -e '
require("child_process").spawn("sleep", ["600"], { stdio: "ignore" });
require("http").createServer((_, answer) => answer.end("ok")).listen(process.env.PORT, "127.0.0.1");'; :"#
        )
    };
}

const CHROMIUM: &str = r#"tool=chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
    --user-data-dir="$DIR/profile" --remote-debugging-port="$PORT" about:blank; :"#;

/// A fetch in the background of a repository whose remote never answers.
const MAINTENANCE: &str = r#"done=git init -q "$DIR/repository" && cd "$DIR/repository" &&
git config protocol.ext.allow always && git remote add origin "ext::sleep 600" &&
(setsid git maintenance run --task=prefetch >"$DIR/log" 2>&1 </dev/null &)"#;

const POSTGRES: &str = r#"done=
PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
cd "$DIR" && $AS initdb -N -A trust -D "$DIR/data" >"$DIR/log" &&
$AS pg_ctl -w -D "$DIR/data" -l "$DIR/data/log" -o "-p $PORT -k $DIR -h 127.0.0.1" start >>"$DIR/log""#;

/// The row of this name, miniatures too.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().chain(crate::miniatures::ROWS).find(|row| row.name == name)
}

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "model router",
        family: 1,
        what: "stand-in: a router on a port, two models with sessions of their own",
        starts: &[
            r#"tool="$SERVICE" --port "$PORT" & setsid "$SERVICE" --lock "$DIR/lock" & setsid "$SERVICE" & wait"#,
        ],
        ready: Ready { members: 4, port: true, lock: true, ..READY },
        ..ROW
    },
    Row {
        name: "browser",
        family: 2,
        what: "Chromium, headless",
        needs: &["chromium"],
        starts: &[CHROMIUM],
        ready: Ready { members: 7, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "language server",
        family: 3,
        what: "typescript-language-server, its pipe kept open by a launcher",
        needs: &["node", "typescript-language-server"],
        // As editors and agents do that bridge a server: the launcher's own end of the pipe keeps it waiting.
        starts: &[r#"server=cd "$PROGRAMS/npm" && mkfifo "$DIR/in" && exec 3<>"$DIR/in" &&
            (cat >"$DIR/in" <&4 &) 4<&0; node_modules/.bin/typescript-language-server --stdio <"$DIR/in"; :"#],
        input: LSP,
        ready: Ready { members: 4, says: "capabilities", ..READY },
        ..ROW
    },
    Row {
        name: "code cells",
        family: 4,
        what: "Python with three children: plain, own session, double fork",
        needs: &["python3"],
        starts: &[CELL],
        ready: Ready { members: 5, ..READY },
        ..ROW
    },
    Row {
        name: "slash worker",
        family: 5,
        what: "stand-in: a worker with a session of its own and a lock",
        starts: &[r#"server=setsid sh -c '"$SERVICE" --lock "$DIR/lock"; :'; :"#],
        ready: Ready { members: 3, lock: true, ..READY },
        ..ROW
    },
    Row {
        name: "foreground command",
        family: 6,
        what: "bash with a pipeline that waits",
        needs: &["bash"],
        starts: &[r#"tool=bash -c 'tail -f /dev/null | cat; :'; :"#],
        ready: Ready { members: 4, ..READY },
        ..ROW
    },
    Row {
        name: "background jobs",
        family: 7,
        what: "bash: nohup, setsid and a double fork; the shell itself has ended",
        needs: &["bash"],
        starts: &[
            r#"done=bash -c 'nohup sleep 600 >"$DIR/log" 2>&1 & setsid sleep 600 & (sleep 600 &)'"#,
        ],
        ready: Ready { members: 3, ..READY },
        ..ROW
    },
    Row {
        name: "bridge",
        family: 8,
        what: "stand-in in Node: a server on a port, with a child",
        needs: &["node"],
        starts: &[bridge!("server")],
        ready: Ready { members: 3, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "app server",
        family: 9,
        what: "stand-in: a server on a port, a worker, a helper of the worker with a session of its own",
        starts: &[
            r#"tool="$SERVICE" --port "$PORT" & sh -c 'setsid "$SERVICE" --lock "$DIR/lock"; :' & wait"#,
        ],
        ready: Ready { members: 4, port: true, lock: true, ..READY },
        ..ROW
    },
    Row {
        name: "speech",
        family: 10,
        what: "stand-in: two services that ignore TERM",
        starts: &[
            r#"tool=trap "" TERM; "$SERVICE" --port "$PORT" & "$SERVICE" --lock "$DIR/lock" & wait"#,
        ],
        ready: Ready { members: 3, port: true, lock: true, ..READY },
        ..ROW
    },
    Row {
        name: "screen driver",
        family: 11,
        what: "stand-in: a daemon (double fork, own session) with a socket",
        starts: &[
            r#"done=(setsid "$SERVICE" --socket "$DIR/socket" --lock "$DIR/lock" </dev/null >/dev/null 2>&1 &)"#,
        ],
        ready: Ready { members: 1, lock: true, ..READY },
        ..ROW
    },
    Row {
        name: "pairing bridge",
        family: 12,
        what: "stand-in in Node: as the bridge, with a session of its own",
        needs: &["node"],
        starts: &[bridge!("tool")],
        ready: Ready { members: 3, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "git maintenance",
        family: 13,
        what: "git maintenance in the background, over a remote that never answers",
        needs: &["git"],
        starts: &[MAINTENANCE],
        ready: Ready { members: 3, ..READY },
        ..ROW
    },
    Row {
        name: "stdio MCP server",
        family: 14,
        what: "@modelcontextprotocol/server-everything through npx",
        needs: &["npx", "mcp-server-everything"],
        starts: &[r#"server=cd "$PROGRAMS/npm" && npx --no-install mcp-server-everything; :"#],
        input: MCP,
        ready: Ready { members: 3, says: "serverInfo", ..READY },
        // It leaves at the end of its input.
        leaves: false,
        ..ROW
    },
    Row {
        name: "redis",
        what: "redis-server --daemonize yes",
        needs: &["redis-server"],
        starts: &[
            r#"done=redis-server --port "$PORT" --bind 127.0.0.1 --dir "$DIR" --save '' --daemonize yes >"$DIR/log""#,
        ],
        ready: Ready { members: 1, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "ssh-agent",
        what: "ssh-agent",
        needs: &["ssh-agent"],
        starts: &[r#"done=ssh-agent -a "$DIR/socket" >"$DIR/log""#],
        ..ROW
    },
    Row {
        name: "tmux",
        what: "a tmux server with two windows",
        needs: &["tmux"],
        starts: &[
            r#"done=export TERM=xterm; tmux -S "$DIR/socket" -f /dev/null new-session -d 'sleep 600' \; new-window 'sleep 600'"#,
        ],
        ready: Ready { members: 3, ..READY },
        ..ROW
    },
    Row {
        name: "uvicorn",
        what: "uvicorn --reload",
        needs: &["uvicorn"],
        starts: &[r#"tool=printf 'async def app(scope, receive, send):\n    pass\n' >served.py
            "$PROGRAMS/python/bin/uvicorn" served:app --reload --lifespan off --port "$PORT"; :"#],
        ready: Ready { members: 3, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "vite",
        what: "the vite dev server through npx",
        needs: &["npx", "vite"],
        starts: &[r#"tool=mkdir site && echo '<p>' >site/index.html && cd "$PROGRAMS/npm" &&
            npx --no-install vite "$DIR/site" --host 127.0.0.1 --port "$PORT" --strictPort; :"#],
        ready: Ready { members: 3, port: true, ..READY },
        ..ROW
    },
    Row {
        name: "postgres",
        what: "PostgreSQL through pg_ctl",
        needs: &["postgres"],
        starts: &[POSTGRES],
        ready: Ready { members: 4, port: true, ..READY },
        ..ROW
    },
];
