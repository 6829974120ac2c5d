//! An argument list as it may be written down: at most [`MAX_TOKENS`] tokens, short, and without secrets.
//!
//! A pure function that errs on the side of hiding: what a secret looks like is a guess, and a `***` too
//! many costs nothing. The environment is never written down at all.

use std::ffi::{OsStr, OsString};

/// Most tokens that are kept.
pub(super) const MAX_TOKENS: usize = 10;
/// Most characters that are kept of a token.
const MAX_CHARS: usize = 200;
/// What stands for something hidden.
const HIDDEN: &str = "***";

/// Parts of names of secrets, wherever they stand in the name.
const PARTS: [&str; 13] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "apikey",
    "api_key",
    "api-key",
    "authorization",
    "bearer",
    "credential",
    "cookie",
    "signature",
    "private",
];
/// Names that are words of their own (`db-pwd`, `awsKey`).
const WORDS: [&str; 9] = ["auth", "basic", "key", "keys", "pass", "passwd", "pwd", "sig", "pat"];
/// Flags whose value is `user:password`.
const USER_FLAGS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];
/// How well-known secrets begin.
const PREFIXES: [&str; 17] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "hf_",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
];
/// Fewest characters of something without a name that is taken for a secret.
const LONG: usize = 20;

/// Digits of a number of base 16 from which on it is a key.
const LONG_HEX: usize = 32;

/// An argument list as it may be shown and kept: at most 10 tokens of at most 200 characters, secrets as `***`.
#[must_use]
pub fn redact(argv: &[OsString]) -> Vec<String> {
    let mut shown = Vec::new();
    let mut next = Next::Shown;
    for token in argv.iter().take(MAX_TOKENS) {
        let text = plain(token);
        let (kept, after) = match next {
            Next::Hidden if is_scheme(&text) => (text, Next::Hidden),
            Next::Hidden => (HIDDEN.to_owned(), Next::Shown),
            Next::User => (hide_password(&text), Next::Shown),
            Next::Shown => token_kept(&text),
        };
        shown.push(cut(kept));
        next = after;
    }
    if argv.len() > MAX_TOKENS {
        shown.push(format!("… {} more", argv.len() - MAX_TOKENS));
    }
    shown
}

/// Readable, on one line, and not longer than is kept.
pub(super) fn line(text: &OsStr) -> String {
    cut(plain(text))
}

/// What becomes of the next token.
enum Next {
    Shown,
    Hidden,
    User,
}

fn plain(text: &OsStr) -> String {
    text.to_string_lossy().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn cut(text: String) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn token_kept(text: &str) -> (String, Next) {
    if USER_FLAGS.contains(&text) {
        return (text.to_owned(), Next::User);
    }
    let (shown, next) = match named_secret(text) {
        Some(end) if text[end..].is_empty() => (text, Next::Hidden),
        Some(end) => return (format!("{}{HIDDEN}", bare(&text[..end])), Next::Shown),
        None => (text, Next::Shown),
    };
    (bare(shown), next)
}

/// Hides what needs no name: known beginnings, passwords in addresses, long random text.
fn bare(text: &str) -> String {
    hide_runs(&hide_userinfo(text))
}

/// Whether a token says how the next one is to be read (`Authorization: Bearer …`).
fn is_scheme(text: &str) -> bool {
    let word = text.trim_matches(|c: char| !c.is_alphanumeric());
    ["bearer", "basic", "token", "digest"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// Where the value of the first named secret of a token begins; all from there on is hidden, since
/// where it ends depends on a syntax that is not known here.
fn named_secret(text: &str) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let skipped = rest.find(is_name_char).unwrap_or(rest.len());
        let start = at + skipped;
        let name = &text[start..];
        let name = &name[..name.find(|c| !is_name_char(c)).unwrap_or(name.len())];
        at = start + name.len();
        if !name.is_empty()
            && is_secret_name(name)
            && let Some(begin) = value_after(text, name, at)
        {
            return Some(begin);
        }
    }
    None
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// Where the value of `name`, which ends at `end`, begins: behind `=` or `:` (with quotes and spaces
/// around it, as in JSON), or behind a space if the name is a flag or announces one.
fn value_after(text: &str, name: &str, end: usize) -> Option<usize> {
    let rest = &text[end..];
    if rest.is_empty() {
        // The whole token is the name: its value is the next token.
        let whole = name.len() == text.len();
        return (whole || name.starts_with('-')).then_some(end);
    }
    let filler = |c: char| c.is_whitespace() || "\"'\\]".contains(c);
    let sign = rest.trim_start_matches(filler);
    let spaced = sign.len() < rest.len();
    if let Some(value) = sign.strip_prefix(['=', ':']) {
        let value = value.trim_start_matches(['=', ':']).trim_start_matches(filler);
        return Some(text.len() - value.len());
    }
    let announces =
        name.starts_with('-') || is_scheme(name) || name.eq_ignore_ascii_case("authorization");
    (spaced && announces).then_some(text.len() - sign.len())
}

fn is_secret_name(name: &str) -> bool {
    let lower = name.to_lowercase();
    let ends = lower.ends_with("key") || lower.ends_with("keys");
    ends || PARTS.iter().any(|part| lower.contains(part))
        || words(name).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// Words of a name: at `-`, `_` and where a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small = false;
    for c in name.chars() {
        let separator = !c.is_alphanumeric();
        if separator || (small && c.is_uppercase()) {
            words.push(String::new());
        }
        if !separator && let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
        small = c.is_lowercase();
    }
    words
}

/// `user:password` → `user:***`.
fn hide_password(text: &str) -> String {
    match text.split_once(':') {
        Some((user, _)) => format!("{}:{HIDDEN}", bare(user)),
        None => bare(text),
    }
}

/// `scheme://user:password@host` → `scheme://***@host`.
fn hide_userinfo(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str(HIDDEN);
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

/// Hides each run of characters of which keys are made, if it looks like one.
fn hide_runs(text: &str) -> String {
    let is_run = |c: char| c.is_ascii_alphanumeric() || "_-+/=.~".contains(c);
    let mut shown = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let other = rest.find(is_run).unwrap_or(rest.len());
        shown.push_str(&rest[..other]);
        rest = &rest[other..];
        let run = &rest[..rest.find(|c| !is_run(c)).unwrap_or(rest.len())];
        if is_random(run) || run.split('/').any(has_known_start) {
            shown.push_str(HIDDEN);
        } else {
            let parts: Vec<_> =
                run.split('/').map(|part| if is_key(part) { HIDDEN } else { part }).collect();
            shown.push_str(&parts.join("/"));
        }
        rest = &rest[run.len()..];
    }
    shown
}

/// Behind a known beginning comes something of some length.
fn has_known_start(part: &str) -> bool {
    let starts = part.split(['=', '.', '+']).chain([part]);
    starts.into_iter().any(|start| {
        PREFIXES.iter().any(|prefix| start.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 8))
    })
}

/// Random, or a long number of base 16, in which chance may let digits and letters change seldom.
fn is_key(part: &str) -> bool {
    let is_number = |word: &str| {
        word.len() >= LONG_HEX
            && word.chars().all(|c| c.is_ascii_hexdigit())
            && word.contains(|c: char| c.is_ascii_digit())
    };
    is_random(part) || part.split(|c: char| !c.is_ascii_alphanumeric()).any(is_number)
}

/// Long, and small letters, capitals and digits change as often as chance makes them, which no word or
/// path does.
fn is_random(run: &str) -> bool {
    let class = |c: char| match c {
        'a'..='z' => 1,
        'A'..='Z' => 2,
        '0'..='9' => 3,
        _ => 0,
    };
    let classes: Vec<u8> = run.chars().map(class).filter(|class| *class > 0).collect();
    let changes = classes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    classes.len() >= LONG && changes * 5 >= classes.len()
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
