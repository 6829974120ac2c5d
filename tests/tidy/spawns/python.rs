//! Starts in Python files.
//!
//! Comments and string literals are not code. Limits, known and kept: code inside strings is not seen
//! (f-string fields, `exec`, `getattr(os, "fork")`), nor what a library starts under a name of its own.
//! A watched module under another name, or imported as a whole, is a finding by itself.

use super::script::{Cursor, Scan};

/// What starts or detaches, by module. `*` at the end stands for any rest.
const MODULES: [(&str, &[&str]); 8] = [
    (
        "os",
        &[
            "fork*",
            "forkpty",
            "vfork",
            "setsid",
            "setpgrp",
            "setpgid",
            "system",
            "popen*",
            "spawn*",
            "exec*",
            "posix_spawn*",
            "startfile",
        ],
    ),
    ("posix", &["fork*", "setsid", "setpgrp", "setpgid", "system", "exec*", "posix_spawn*"]),
    (
        "subprocess",
        &["Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"],
    ),
    ("pty", &["fork", "spawn"]),
    ("multiprocessing", &["Process", "Pool", "Manager", "get_context", "context"]),
    ("asyncio", &["create_subprocess_*", "subprocess"]),
    ("daemon", &["*"]),
    ("ctypes", &["CDLL", "PyDLL", "cdll", "pydll"]),
];

/// Names that mean the same wherever they come from.
const NAMES: [&str; 14] = [
    "Popen",
    "ProcessPoolExecutor",
    "DaemonContext",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "subprocess_exec",
    "subprocess_shell",
    "posix_spawn",
    "posix_spawnp",
    "forkpty",
    "daemonize",
    "setsid",
    "setpgrp",
    "setpgid",
];

/// Arguments of a start that detach it.
const ARGUMENTS: [&str; 4] = ["start_new_session", "preexec_fn", "process_group", "creationflags"];

/// A piece of code: an identifier, a string literal, or one character of punctuation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    kind: Kind,
    text: String,
    line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Text,
    Punct,
}

/// Everything in `text` that starts or detaches.
pub(super) fn scan(text: &str) -> Scan {
    let mut scan = Scan::default();
    let tokens = tokens(text, &mut scan.comments);
    for at in 0..tokens.len() {
        if let Some(what) = start_at(&tokens, at) {
            scan.sites.push((tokens[at].line, what));
        }
    }
    scan.sites.dedup_by_key(|(line, _)| *line);
    scan
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.kind != Kind::Text && token.text == text)
}

fn before(tokens: &[Token], at: usize, text: &str) -> bool {
    at.checked_sub(1).is_some_and(|at| is(tokens, at, text))
}

fn start_at(tokens: &[Token], at: usize) -> Option<String> {
    let token = &tokens[at];
    let name = token.text.as_str();
    let key = is(tokens, at + 1, ":") && token.kind == Kind::Text;
    let argument = is(tokens, at + 1, "=") && !is(tokens, at + 2, "=") && token.kind == Kind::Name;
    if (key || argument) && ARGUMENTS.contains(&name) {
        return Some(format!("`{name}` detaches what is started here"));
    }
    if token.kind != Kind::Name || before(tokens, at, "def") || before(tokens, at, "class") {
        return None;
    }
    let starts = match name {
        "import" => imports(tokens, at),
        _ if is(tokens, at + 1, ".") && !before(tokens, at, ".") => {
            tokens.get(at + 2).is_some_and(|member| watched(name, &member.text))
        }
        // After a dot only with a call: an attribute of this name may be anything.
        _ if before(tokens, at, ".") => NAMES.contains(&name) && is(tokens, at + 1, "("),
        "fork" => is(tokens, at + 1, "("),
        _ => NAMES.contains(&name),
    };
    starts.then(|| format!("`{name}` starts or detaches a process here"))
}

fn watched(module: &str, member: &str) -> bool {
    MODULES.iter().filter(|(known, _)| *known == module).any(|(_, members)| {
        members.iter().any(|known| match known.strip_suffix('*') {
            Some(head) => member.starts_with(head),
            None => *known == member,
        })
    })
}

/// `import os as o`, `from os import fork`, `from os import *`, `import daemon`.
fn imports(tokens: &[Token], at: usize) -> bool {
    let from = at
        .checked_sub(2)
        .filter(|from| is(tokens, *from, "from"))
        .map(|from| tokens[from + 1].text.as_str());
    let open = is(tokens, at + 1, "(");
    let line = tokens[at].line;
    let names = tokens[at + 1..]
        .iter()
        .take_while(|token| if open { token.text != ")" } else { token.line == line });
    let names: Vec<_> = names.map(|token| token.text.as_str()).collect();
    let Some(module) = from else {
        let renamed =
            |pair: &[&str]| pair[1] == "as" && MODULES.iter().any(|(known, _)| *known == pair[0]);
        return names.windows(2).any(renamed) || names.contains(&"daemon");
    };
    let watches = MODULES.iter().any(|(known, _)| *known == module);
    watches && names.iter().any(|name| *name == "*" || watched(module, name))
}

fn tokens(text: &str, comments: &mut Vec<(usize, String)>) -> Vec<Token> {
    let mut cursor = Cursor::new(text);
    let mut tokens = Vec::new();
    while let Some(first) = cursor.peek() {
        let line = cursor.line;
        let mut push = |kind, text: &str| tokens.push(Token { kind, text: text.to_owned(), line });
        if first == '#' {
            comments.push((line, cursor.line_end().to_owned()));
        } else if let Some(quote) = quote_at(cursor.rest) {
            let body = string(&mut cursor, quote);
            push(Kind::Text, body);
        } else if first == '_' || first.is_alphanumeric() {
            push(Kind::Name, cursor.take(word(cursor.rest)));
        } else {
            let taken = cursor.take(first.len_utf8());
            if !first.is_whitespace() && first != '\\' {
                push(Kind::Punct, taken);
            }
        }
    }
    tokens
}

fn word(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

/// Where the quotes of a literal that starts here begin: after a prefix of at most two letters.
fn quote_at(text: &str) -> Option<usize> {
    let prefix = word(text);
    let letters = &text[..prefix];
    let fits = prefix <= 2 && letters.chars().all(|c| "rRbBuUfFtT".contains(c));
    (fits && text[prefix..].starts_with(['"', '\''])).then_some(prefix)
}

/// Takes a literal and gives its body. In raw ones too a backslash keeps the next quote from ending it.
fn string<'a>(cursor: &mut Cursor<'a>, quote: usize) -> &'a str {
    cursor.take(quote);
    let mark = &cursor.rest[..1];
    let triple = mark.repeat(3);
    let long = cursor.rest.starts_with(&triple);
    let close = if long { triple.as_str() } else { mark };
    cursor.take(close.len());
    let body = cursor.rest;
    let mut len = 0;
    while let Some(next) = cursor.peek() {
        // A short literal ends with its line: without that a stray quote would hide the rest.
        if cursor.eat(close) || (!long && next == '\n') {
            break;
        }
        if next == '\\' {
            cursor.skip();
            len += 1;
        }
        len += cursor.pop().map_or(0, char::len_utf8);
    }
    &body[..len]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_comes_to_an_end(text in "[abrf \n'\"(){}.=#\\\\]{0,60}") {
            scan(&text);
        }
    }

    fn lines(text: &str) -> Vec<usize> {
        scan(text).sites.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn every_way_of_starting_is_found() {
        for text in [
            "subprocess.Popen(['x'])",
            "subprocess.run(['x'], check=True)",
            "subprocess.call(['x'])",
            "subprocess.check_call(['x'])",
            "subprocess.check_output(['x'])",
            "subprocess.getoutput('x')",
            "pid = os.fork()",
            "if not os . fork ( ): pass",
            "os.forkpty()",
            "os.setsid()",
            "os.setpgrp()",
            "os.setpgid(0, 0)",
            "os.spawnl(os.P_NOWAIT, 'x')",
            "os.spawnvpe(os.P_NOWAIT, 'x', [], {})",
            "os.posix_spawn('x', [], {})",
            "os.posix_spawnp('x', [], {})",
            "os.system('x')",
            "os.popen('x')",
            "os.execv('x', [])",
            "pty.fork()",
            "pty.spawn('x')",
            "multiprocessing.Process(target=f)",
            "multiprocessing.get_context('fork')",
            "futures.ProcessPoolExecutor()",
            "await asyncio.create_subprocess_exec('x')",
            "await asyncio.create_subprocess_shell('x')",
            "loop.subprocess_exec(f, 'x')",
            "with daemon.DaemonContext(): pass",
            "import daemon",
            "run(x, start_new_session=True)",
            "run(x, preexec_fn=f)",
            "run(x, process_group=0)",
            "options = {'start_new_session': True}",
            "psutil.Popen(['x'])",
            "import subprocess as sp",
            "import os as o, sys",
            "from os import fork",
            "from os import (path,\n    fork as s)",
            "from subprocess import *",
            "from subprocess import run",
            "ctypes.CDLL(None).daemon(1, 0)",
        ] {
            assert_eq!(lines(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn what_starts_nothing_is_not_found() {
        for text in [
            "# os.fork() and subprocess.run",
            "x = 'os.fork()'",
            "x = \"\"\"\nos.fork()\nsubprocess.run(x)\n\"\"\"",
            "x = rb'\\' + os.fork()'",
            "x = 'it\\'s os.fork()'",
            "def fork(): pass\nclass Popen: pass",
            "import os, subprocess\nfrom os import path",
            "threading.Thread(target=f, daemon=True).start()",
            "app.run(); call(); x.system; x.fork",
            "start_new_session == True",
            "os.path.join('a', 'fork')",
            "asyncio.run(main())",
        ] {
            assert_eq!(lines(text), [], "{text}");
        }
    }

    #[test]
    fn lines_are_those_of_the_site() {
        let text = "'''\n\n'''\nx = 1  # a\n\nos.fork()\n";
        assert_eq!(lines(text), [6]);
        assert_eq!(scan(text).comments, [(4, "# a".to_owned())]);
        assert_eq!(lines("x = 'open\nos.fork()"), [2], "a stray quote hides its line only");
    }
}
