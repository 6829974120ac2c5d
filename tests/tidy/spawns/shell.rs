//! Starts in shell files: programs that detach, background lists (`&`), and `coproc`. A plain command is
//! waited for by its shell and is no finding.
//!
//! Comments, quoted text and here-documents are not code; command substitutions are, in double quotes
//! too. Limits, known and kept: code inside quotes (`sh -c '…'`, `eval`, `trap`), here-documents and
//! `${…}` is not seen, aliases and names made of variables are not resolved, a `case` inside `$(…)` needs
//! both brackets of its patterns, and dialects are not told apart.

use super::script::{Cursor, Scan};

/// Programs and builtins that detach.
const DETACH: [&str; 11] = [
    "nohup",
    "setsid",
    "disown",
    "daemonize",
    "daemon",
    "start-stop-daemon",
    "systemd-run",
    "at",
    "batch",
    "dtach",
    "coproc",
];

/// Programs that run the command among their arguments.
const WRAPPERS: [&str; 17] = [
    "builtin", "chroot", "command", "doas", "env", "exec", "flock", "ionice", "nice", "nsenter",
    "runuser", "stdbuf", "sudo", "taskset", "timeout", "unshare", "xargs",
];

/// After these the next word is a command again.
const KEYWORDS: [&str; 11] =
    ["!", "{", "}", "do", "elif", "else", "if", "then", "time", "until", "while"];

/// Everything in `text` that detaches.
pub(super) fn scan(text: &str) -> Scan {
    let mut lexer = Lexer {
        cursor: Cursor::new(text),
        tokens: Vec::new(),
        comments: Vec::new(),
        pending: Vec::new(),
        backquoted: false,
    };
    lexer.commands(None);
    let mut scan = Scan { sites: Vec::new(), comments: lexer.comments };
    find(&lexer.tokens, &mut scan.sites);
    scan.sites.dedup_by_key(|(line, _)| *line);
    scan
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A word, its quotes removed.
    Word(String),
    /// Ends a command: newline, `;`, `;;`, `|`, `||`, `&&`.
    Separator,
    /// `&`.
    Background,
    /// The next word is a file.
    Redirection,
    /// `(`.
    Open,
    /// `$(`, `` ` `` or `<(`: afterwards the command around it goes on.
    OpenInside,
    /// `)`.
    Close,
}

/// The command that is being read.
#[derive(Debug, Default)]
struct Command {
    /// Of a command that was named; empty where the next word names one.
    words: Vec<String>,
    redirected: bool,
}

fn find(tokens: &[(usize, Token)], sites: &mut Vec<(usize, String)>) {
    let mut command = Command::default();
    // The commands around; `None` for a subshell, which is one by itself.
    let mut around: Vec<Option<Command>> = Vec::new();
    for (at, (line, token)) in tokens.iter().enumerate() {
        match token {
            Token::Word(word) => {
                let pattern = around.is_empty() && follows(tokens, at, &Token::Close);
                let defined = follows(tokens, at, &Token::Open);
                if let Some(what) = command.take(word).filter(|_| !pattern && !defined) {
                    sites.push((*line, what));
                }
            }
            Token::Redirection => command.redirected = true,
            Token::Separator => command = Command::default(),
            Token::Background => {
                sites.push((*line, "`&` leaves a process in the background here".to_owned()));
                command = Command::default();
            }
            Token::Open => {
                around.push(None);
                command = Command::default();
            }
            Token::OpenInside => around.push(Some(std::mem::take(&mut command))),
            Token::Close => command = around.pop().flatten().unwrap_or_default(),
        }
    }
}

fn follows(tokens: &[(usize, Token)], at: usize, expected: &Token) -> bool {
    tokens.get(at + 1).is_some_and(|(_, token)| token == expected)
}

impl Command {
    /// Takes the next word; what it starts, if anything.
    fn take(&mut self, word: &str) -> Option<String> {
        if std::mem::take(&mut self.redirected) {
            return None;
        }
        let name = word.rsplit('/').next().unwrap_or(word);
        if self.words.is_empty() && (KEYWORDS.contains(&word) || is_assignment(word)) {
            return None;
        }
        let wrapped = self.words.first().is_some_and(|first| WRAPPERS.contains(&first.as_str()));
        let asks = self.words.first().is_some_and(|first| first == "command")
            && self.words.get(1).is_some_and(|option| option == "-v" || option == "-V");
        let named = self.words.is_empty() || (wrapped && !asks);
        self.words.push(name.to_owned());
        let starts = (named && DETACH.contains(&name)) || self.opens_session(word);
        starts.then(|| format!("`{name}` detaches a process here"))
    }

    /// `tmux new -d …`, `screen -dm …`, in any order of their options.
    fn opens_session(&self, last: &str) -> bool {
        let has = |test: &dyn Fn(&str) -> bool| self.words.iter().any(|word| test(word));
        let option = |word: &str, letter| {
            word.starts_with('-') && !word.starts_with("--") && word.contains(letter)
        };
        let opens = |word: &str| word.starts_with("new") || word == "run-shell";
        // Told once: by the word that completes it.
        let completes = last.starts_with('-') || opens(last);
        let runs = |name: &str| {
            let first = self.words.first().map_or("", String::as_str);
            first == name || WRAPPERS.contains(&first) && has(&|word| word == name)
        };
        completes
            && (runs("tmux") && has(&|word| option(word, 'd')) && has(&opens)
                || runs("screen")
                    && has(&|word| option(word, 'd') || option(word, 'D'))
                    && has(&|word| option(word, 'm')))
    }
}

/// `NAME=…`, also of an array's element.
fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.trim_end_matches('+').split('[').next().unwrap_or(name);
    !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

struct Lexer<'a> {
    cursor: Cursor<'a>,
    tokens: Vec<(usize, Token)>,
    comments: Vec<(usize, String)>,
    /// Here-documents that begin with the next line: what ends each, and whether tabs are stripped.
    pending: Vec<(String, bool)>,
    /// Inside backquotes, where the next one closes.
    backquoted: bool,
}

impl Lexer<'_> {
    fn push(&mut self, token: Token) {
        self.tokens.push((self.cursor.line, token));
    }

    /// Commands up to this character, or to the end.
    fn commands(&mut self, until: Option<char>) {
        let mut depth = 0_usize;
        while let Some(first) = self.cursor.peek() {
            if until == Some(first) && (depth == 0 || self.backquoted) {
                return;
            }
            match first {
                '\n' => {
                    self.push(Token::Separator);
                    self.cursor.skip();
                    self.here_documents();
                }
                '#' => {
                    let line = self.cursor.line;
                    self.comments.push((line, self.cursor.line_end().to_owned()));
                }
                '(' if self.arithmetic("((") => {}
                '(' => {
                    self.push(Token::Open);
                    self.cursor.skip();
                    depth += 1;
                }
                ')' => {
                    self.push(Token::Close);
                    self.cursor.skip();
                    depth = depth.saturating_sub(1);
                }
                ';' | '|' | '&' => self.operator(),
                '<' | '>' => self.redirection(),
                c if c.is_whitespace() => self.cursor.skip(),
                _ => self.word(),
            }
        }
    }

    fn operator(&mut self) {
        if self.cursor.eat("&>") {
            return self.push(Token::Redirection);
        }
        // The longest first; `;&` and `;;&` belong to `case`, `|&` is a pipe.
        let known = [";;&", ";;", ";&", ";", "||", "|&", "|", "&&"];
        if known.iter().any(|operator| self.cursor.eat(operator)) {
            self.push(Token::Separator);
        } else {
            self.push(Token::Background);
            self.cursor.skip();
        }
    }

    fn redirection(&mut self) {
        if self.cursor.rest.starts_with("<(") || self.cursor.rest.starts_with(">(") {
            return self.inside(2, ')');
        }
        if self.cursor.rest.starts_with("<<") && !self.cursor.rest.starts_with("<<<") {
            self.cursor.take(2);
            let tabs = self.cursor.eat("-");
            while self.cursor.eat(" ") || self.cursor.eat("\t") {}
            let end = self.literal();
            self.pending.push((end, tabs));
            return;
        }
        let known = ["<<<", "<&", "<>", ">>", ">&", ">|", "<", ">"];
        let taken = known.iter().any(|operator| self.cursor.eat(operator));
        debug_assert!(taken, "one of them comes next");
        self.push(Token::Redirection);
    }

    /// Takes `len` bytes that open commands inside a word, those, and what closes them.
    fn inside(&mut self, len: usize, close: char) {
        self.push(Token::OpenInside);
        self.cursor.take(len);
        let around = std::mem::replace(&mut self.backquoted, close == '`');
        self.commands(Some(close));
        self.backquoted = around;
        self.push(Token::Close);
        self.cursor.skip();
    }

    /// Takes `((…))` or `$((…))`, where it is that and not two subshells.
    fn arithmetic(&mut self, open: &str) -> bool {
        let Some(body) = self.cursor.rest.strip_prefix(open) else { return false };
        let mut depth = 0_usize;
        let close = body.find(|c| {
            depth += usize::from(c == '(');
            let closes = c == ')' && depth == 0;
            depth -= usize::from(c == ')' && depth > 0);
            closes
        });
        let Some(close) = close.filter(|close| body[*close..].starts_with("))")) else {
            return false;
        };
        self.cursor.take(open.len() + close + 2);
        true
    }

    fn word(&mut self) {
        let line = self.cursor.line;
        let word = self.literal();
        self.tokens.push((line, Token::Word(word)));
    }

    /// A word without its quotes; commands inside it become tokens before it.
    fn literal(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.cursor.peek() {
            match next {
                '\'' => {
                    self.cursor.skip();
                    word.push_str(self.single(false));
                }
                '"' => {
                    self.cursor.skip();
                    self.double(&mut word);
                }
                '$' if self.cursor.eat("$'") => word.push_str(self.single(true)),
                '`' if self.backquoted => break,
                '$' | '`' if self.substitution() => {}
                '(' if is_assignment(&word) && word.ends_with('=') => self.array(),
                '\\' => {
                    self.cursor.skip();
                    word.extend(self.cursor.pop().filter(|c| *c != '\n'));
                }
                c if c.is_whitespace() || ";|&<>()".contains(c) => break,
                c => {
                    self.cursor.skip();
                    word.push(c);
                }
            }
        }
        word
    }

    /// The elements of `NAME=(…)`: words, and no commands.
    fn array(&mut self) {
        self.cursor.skip();
        while let Some(next) = self.cursor.peek() {
            match next {
                ')' => return self.cursor.skip(),
                '#' => {
                    self.cursor.line_end();
                }
                '`' if self.backquoted => return,
                c if c.is_whitespace() || ";|&<>(".contains(c) => self.cursor.skip(),
                _ => drop(self.literal()),
            }
        }
    }

    fn single(&mut self, escapes: bool) -> &str {
        let mut escaped = false;
        let end = self.cursor.rest.find(|c| {
            let ends = c == '\'' && !escaped;
            escaped = escapes && c == '\\' && !escaped;
            ends
        });
        let body = self.cursor.take(end.unwrap_or(self.cursor.rest.len()));
        self.cursor.skip();
        body
    }

    fn double(&mut self, word: &mut String) {
        while let Some(next) = self.cursor.peek() {
            match next {
                '"' => {
                    self.cursor.skip();
                    return;
                }
                '$' | '`' if self.substitution() => {}
                _ => {
                    if next == '\\' {
                        self.cursor.skip();
                    }
                    word.extend(self.cursor.pop());
                }
            }
        }
    }

    /// `$((…))`, `$(…)`, `${…}` or backquotes; whether it was one of them.
    fn substitution(&mut self) -> bool {
        if self.arithmetic("$((") {
        } else if self.cursor.rest.starts_with("$(") {
            self.inside(2, ')');
        } else if self.cursor.rest.starts_with('`') {
            self.inside(1, '`');
        } else if self.cursor.eat("${") {
            self.parameter();
        } else {
            return false;
        }
        true
    }

    /// The rest of a `${…}`.
    fn parameter(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.cursor.pop() {
                Some('{') => depth += 1,
                Some('}') => depth -= 1,
                Some('\\') => self.cursor.skip(),
                Some(_) => {}
                None => return,
            }
        }
    }

    fn here_documents(&mut self) {
        for (end, tabs) in std::mem::take(&mut self.pending) {
            while !self.cursor.rest.is_empty() {
                let line = self.cursor.line_end();
                self.cursor.skip();
                let line = if tabs { line.trim_start_matches('\t') } else { line };
                if line == end {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_comes_to_an_end(text in "[ab \t\n'\"`$(){}<>&|;#=\\\\-]{0,60}") {
            scan(&text);
        }
    }

    fn lines(text: &str) -> Vec<usize> {
        scan(text).sites.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn every_way_of_detaching_is_found() {
        for text in [
            "nohup server",
            "setsid server",
            "/usr/bin/setsid -f server",
            "'setsid' server",
            "disown %1",
            "daemonize /bin/server",
            "daemon -- server",
            "start-stop-daemon --start --exec server",
            "systemd-run --user server",
            "echo server | at now",
            "batch < jobs",
            "server &",
            "server & wait",
            "server > log 2>&1 &",
            "( server & )",
            "{ server & }",
            "coproc server { cat; }",
            "tmux new -d server",
            "tmux new-session -s name -d",
            "tmux -L x new-session -ds name",
            "screen -dm server",
            "screen -dmS name server",
            "screen -S name -d -m server",
            "sudo -u me nohup server",
            "env A=b setsid server",
            "A=b nohup server",
            "A=$(date) nohup server",
            "exec setsid server",
            "if true; then nohup server; fi",
            "while true; do server & done",
            "x=$(nohup server)",
            "x=\"a $(server &) b\"",
            "x=`setsid server`",
            "cat <(server &)",
            "! setsid server",
            "> log nohup server",
            "case $x in a) nohup server;; esac",
            "f() { setsid server; }",
            "cat <<EOF\ntext\nEOF\nserver &",
            "cat <<-'E F' | nohup server\n\ttext\n\tE F\n",
            "(( a & b )) && server &",
        ] {
            assert_eq!(lines(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn what_detaches_nothing_is_not_found() {
        for text in [
            "# nohup server &",
            "true # server &",
            "echo 'nohup server &' \"setsid server &\" $'it\\'s &' a\\&b nohup",
            "a && b || c; d |& e",
            "a > log 2>&1; b &> log; c &>> log; d >&2; e <&3; f >&-",
            "x=$((a & b)); y=\"$((a & 1))\"; ((a & b)); (( (a & b) | c ))",
            "case $x in a) b;& c) d;;& nohup) e;; f|setsid) g;; esac",
            "command -v setsid >/dev/null; type nohup; for x in nohup setsid; do true; done",
            "declare -A of=([ps]=procps [setsid]=util-linux)",
            "cat <<EOF\nnohup server &\nEOF\ntrue",
            "cat <<'E' <<-F\nserver &\nE\nserver &\n\tF\ntrue",
            "cat <<< nohup; x=${y#nohup &}; x=${#y}; echo a#b",
            "at_end; batch_size=1; ls at; (cd at; ls)",
            "screen -r name; tmux attach -d; screen -d name",
            "echo x > nohup; daemonize() { true; }",
            "x=(at 'b &' # &\n nohup); y+=(setsid); echo tmux new -d",
            "trap 'kill 0' EXIT",
        ] {
            assert_eq!(lines(text), [], "{text}");
        }
    }

    #[test]
    fn lines_are_those_of_the_site() {
        let text = "a 'b\n\nc' \\\n d\n# why\nserver \\\n  &\n";
        assert_eq!(lines(text), [7]);
        assert_eq!(scan(text).comments, [(5, "# why".to_owned())]);
    }
}
