//! What may live on when everything else of a wrapped program is ended: rules that a person names ([`crate::wrap`]'s
//! `--keep`), and the judgement of one process by one of them. Pure: facts are read in `look`, a guard acts
//! (`supervisor_loop`).
//!
//! A name alone never keeps anybody: each rule needs facts that the kernel tells.

pub(crate) mod look;

use std::fmt;

/// The rules that ship.
pub const SHIPPED: &str = include_str!("keep/rules.txt");

/// Longest name of a rule: as much as a journal's record has room for.
pub const MAX_NAME: usize = 12;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Its name: small letters, digits and hyphens, at most [`MAX_NAME`].
    pub name: String,
    /// Names of executable files; one of them is the process's.
    pub programs: Vec<String>,
    /// It must lead a session of its own.
    pub session: bool,
    /// It must listen on a unix socket that has a path.
    pub socket: bool,
    /// Patterns of that socket's name; any name where there is none.
    pub sockets: Vec<String>,
    /// Why it may live.
    pub why: String,
}

/// A text that holds no rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRules {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for BadRules {}

/// Rules, the later of two with one name counting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The rules that ship.
    #[must_use]
    pub fn shipped() -> Self {
        // A test reads them.
        Self::parse(SHIPPED).unwrap_or_default()
    }

    /// Reads rules in the form of [`SHIPPED`].
    ///
    /// # Errors
    /// When a line is no line of a rule, or a rule would keep by name alone.
    pub fn parse(text: &str) -> Result<Self, BadRules> {
        let mut rules: Vec<(usize, Rule)> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let bad = |what: String| BadRules { line, what };
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let fine = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
                if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(fine) {
                    let rule = "small letters, digits and hyphens, at most 12";
                    return Err(bad(format!("[{name}] is no name for a rule: {rule}")));
                }
                rules.push((line, Rule::named(name)));
                continue;
            }
            let (key, value) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
            let Some((_, rule)) = rules.last_mut() else {
                return Err(bad("a rule begins with its name, such as [tmux]".into()));
            };
            rule.take(key, value.trim()).map_err(bad)?;
        }
        for (line, rule) in &rules {
            if let Some(what) = rule.fault() {
                return Err(BadRules { line: *line, what: format!("[{}] {what}", rule.name) });
            }
        }
        Ok(Self::default().and(Self(rules.into_iter().map(|(_, rule)| rule).collect())))
    }

    /// These, and `others`, which count where both have a name.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        for rule in others.0 {
            self.0.retain(|known| known.name != rule.name);
            self.0.push(rule);
        }
        self
    }

    /// Those with these names.
    ///
    /// # Errors
    /// The first name that there is no rule for.
    pub fn named<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut named = Self::default();
        for name in names {
            let rule = self.0.iter().find(|rule| rule.name == name).ok_or(name)?;
            named = named.and(Self(vec![rule.clone()]));
        }
        Ok(named)
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule for this process, and what it says. One that keeps comes before one that may.
    pub(crate) fn judge(&self, facts: &Facts) -> (Verdict, Option<&Rule>) {
        let judged = self.0.iter().map(|rule| (rule.judge(facts), Some(rule)));
        judged.max_by_key(|(verdict, _)| *verdict).unwrap_or((Verdict::End, None))
    }

    /// The rule whose program has this name: what could keep such a one.
    pub(crate) fn for_program(&self, program: &str) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.programs.iter().any(|known| known == program))
    }
}

impl fmt::Display for Rules {
    /// As [`Rules::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|rule| write!(f, "{rule}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs = [(self.session, "session"), (self.socket, "socket")];
        let needs: Vec<_> = needs.into_iter().filter_map(|(on, word)| on.then_some(word)).collect();
        writeln!(f, "[{}]", self.name)?;
        writeln!(f, "program  {}", self.programs.join(" "))?;
        writeln!(f, "needs    {}", needs.join(" "))?;
        if !self.sockets.is_empty() {
            writeln!(f, "socket   {}", self.sockets.join(" "))?;
        }
        writeln!(f, "why      {}\n", self.why)
    }
}

impl Rule {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            programs: Vec::new(),
            session: false,
            socket: false,
            sockets: Vec::new(),
            why: String::new(),
        }
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        let words = || value.split_whitespace().map(str::to_owned);
        match key {
            "program" => self.programs.extend(words()),
            "socket" => self.sockets.extend(words()),
            "why" => self.why = value.to_owned(),
            "needs" => {
                for word in value.split_whitespace() {
                    match word {
                        "session" => self.session = true,
                        "socket" => self.socket = true,
                        other => {
                            return Err(format!("no fact is called {other:?}: session or socket"));
                        }
                    }
                }
            }
            other => {
                return Err(format!(
                    "no line begins with {other:?}: program, needs, socket or why"
                ));
            }
        }
        Ok(())
    }

    fn fault(&self) -> Option<&'static str> {
        if self.programs.is_empty() {
            Some("names no program")
        } else if !self.session && !self.socket {
            Some("would keep by name alone: say what it needs, session or socket")
        } else if !self.sockets.is_empty() && !self.socket {
            Some("has patterns for a socket and does not need one: write `needs socket`")
        } else if self.why.is_empty() {
            Some("does not say why")
        } else {
            None
        }
    }

    /// What this rule says of a process.
    pub(crate) fn judge(&self, facts: &Facts) -> Verdict {
        let program = facts.program.as_ref();
        if !program.is_some_and(|program| self.programs.contains(program)) {
            return Verdict::End;
        }
        let named = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or(path);
            self.sockets.is_empty() || self.sockets.iter().any(|pattern| fits(pattern, name))
        };
        let session = !self.session || facts.session;
        let socket = !self.socket || facts.sockets.iter().any(named);
        if session && socket && facts.left { Verdict::Keep } else { Verdict::Wait }
    }
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// Name of its executable file; `None` where that may not be read.
    pub(crate) program: Option<String>,
    /// It leads a session.
    pub(crate) session: bool,
    /// Whoever started it is dead.
    pub(crate) left: bool,
    /// Paths of unix sockets that it listens on.
    pub(crate) sockets: Vec<String>,
}

/// What becomes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    End,
    /// It is the program of a rule, and may be about to become what that keeps: a daemon calls `setsid` and listens
    /// after it was left.
    Wait,
    Keep,
}

/// Whether a name fits a pattern in which `*` is anything.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let mut rest = rest;
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_read_and_written_the_same() {
        let rules = Rules::parse(SHIPPED).expect("rules");
        assert!(rules.iter().count() > 5);
        assert_eq!(Rules::parse(&rules.to_string()), Ok(rules.clone()));
        assert!(
            rules.iter().all(|rule| rule.session && rule.socket),
            "the ones that ship are strict"
        );
    }

    #[test]
    fn what_is_wrong_says_where_and_what() {
        for (text, line, said) in [
            ("program x", 1, "begins with its name"),
            ("\n[Tmux]", 2, "no name for a rule"),
            ("[]", 1, "no name for a rule"),
            ("[a-name-that-is-long]", 1, "at most 12"),
            ("[a]\nprogramm x", 2, "no line begins with \"programm\""),
            ("[a]\nneeds root", 2, "no fact is called \"root\""),
            ("[a]\nneeds session\nwhy x", 1, "names no program"),
            ("[a]\nprogram a\nwhy x", 1, "by name alone"),
            ("[a]\nprogram a\nneeds session", 1, "does not say why"),
            ("[a]\nprogram a\nneeds session\nsocket s\nwhy x", 1, "does not need one"),
        ] {
            let bad = Rules::parse(text).expect_err(text);
            assert_eq!(bad.line, line, "{text}");
            assert!(bad.to_string().contains(said), "{text}: {bad}");
        }
    }

    #[test]
    fn later_rules_count_and_unknown_ones_are_named() {
        let own =
            "[tmux]\nprogram tmux\nneeds socket\nwhy mine\n[x]\nprogram x\nneeds session\nwhy y";
        let rules = Rules::shipped().and(Rules::parse(own).expect("rules"));
        let named = rules.named(["tmux", "x", "tmux"]).expect("named");
        assert_eq!(named.iter().map(|rule| &*rule.why).collect::<Vec<_>>(), ["y", "mine"]);
        assert_eq!(rules.named(["tmux", "nothing"]), Err("nothing".to_owned()));
        assert!(rules.named([]).expect("none").is_empty());
    }

    /// Every combination of what a rule needs and what is so.
    #[test]
    fn all_facts_must_hold() {
        const BOTH: [bool; 2] = [false, true];
        let all = BOTH.iter().flat_map(|a| BOTH.map(|b| (*a, b)));
        for ((needs_session, needs_socket), pattern) in
            all.flat_map(|needs| BOTH.map(|pattern| (needs, pattern)))
        {
            let rule = Rule {
                programs: vec!["srv".into()],
                session: needs_session,
                socket: needs_socket,
                sockets: if pattern { vec!["s-*".into()] } else { Vec::new() },
                ..Rule::named("srv")
            };
            for program in [None, Some("srv"), Some("srv2"), Some("sr")] {
                for (session, left) in BOTH.into_iter().flat_map(|a| BOTH.map(|b| (a, b))) {
                    for sockets in [vec![], vec!["/t/s-1"], vec!["/t/other"], vec!["/o", "/t/s-"]] {
                        let facts = Facts {
                            program: program.map(str::to_owned),
                            session,
                            left,
                            sockets: sockets.iter().map(|path| (*path).to_owned()).collect(),
                        };
                        let listens = sockets.iter().any(|path| !pattern || path.contains("/s-"));
                        let holds =
                            left && (session || !needs_session) && (listens || !needs_socket);
                        let expected = match (program == Some("srv"), holds) {
                            (false, _) => Verdict::End,
                            (true, false) => Verdict::Wait,
                            (true, true) => Verdict::Keep,
                        };
                        assert_eq!(rule.judge(&facts), expected, "{rule:?} {facts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_that_keeps_comes_before_one_that_may() {
        let text = "[a]\nprogram p\nneeds socket\nwhy a\n[b]\nprogram p\nneeds session\nwhy b";
        let rules = Rules::parse(text).expect("rules");
        let facts =
            |session| Facts { program: Some("p".into()), session, left: true, ..Facts::default() };
        let judged = |session| {
            let facts = facts(session);
            let (verdict, rule) = rules.judge(&facts);
            (verdict, rule.map(|rule| rule.name.clone()))
        };
        assert_eq!(judged(true), (Verdict::Keep, Some("b".into())));
        assert_eq!(judged(false).0, Verdict::Wait);
        assert_eq!(Rules::default().judge(&facts(true)), (Verdict::End, None));
    }

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxc", false),
            ("ab*ba", "aba", false),
            ("agent.*", "agent.123", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
