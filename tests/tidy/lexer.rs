//! Rust source as tokens, coarse but honest: comments are gone, the text of literals is kept apart
//! from code, and every token knows its line and whether it is test code.
//!
//! Used by every rule of this suite. It reads text that the compiler accepts; on other text it gives
//! some tokens and never fails.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Ident,
    /// A string literal; the text is without quotes, escapes as written.
    Text,
    /// Punctuation; `::` is one token, everything else one character.
    Punct,
    /// Numbers, characters and lifetimes: of no interest here.
    Other,
}

/// One token.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Inside an item under `#[cfg(test)]`.
    pub(crate) test: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// All tokens of `source`, test code marked.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, line: 1, tokens: Vec::new() };
    while lexer.step() {}
    let mut tokens = lexer.tokens;
    mark_tests(&mut tokens);
    tokens
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    /// Takes one token, comment or space; `false` at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.skip(block_comment(self.rest));
        } else if let Some((open, body, close)) = string_literal(self.rest) {
            let text = self.rest[open..open + body].to_owned();
            self.push(Kind::Text, text, open + body + close);
        } else if first == '_' || first.is_alphabetic() {
            let from = if self.rest.starts_with("r#") { 2 } else { 0 };
            let len = from + word(&self.rest[from..]);
            self.push(Kind::Ident, self.rest[from..len].to_owned(), len);
        } else if first == '\'' {
            self.push(Kind::Other, String::new(), character_or_lifetime(self.rest));
        } else if first.is_ascii_digit() {
            self.push(Kind::Other, String::new(), word(self.rest));
        } else if self.rest.starts_with("::") {
            self.push(Kind::Punct, "::".to_owned(), 2);
        } else if first.is_whitespace() {
            self.skip(first.len_utf8());
        } else {
            self.push(Kind::Punct, first.to_string(), first.len_utf8());
        }
        true
    }

    fn push(&mut self, kind: Kind, text: String, len: usize) {
        self.tokens.push(Token { kind, text, line: self.line, test: false });
        self.skip(len);
    }

    fn skip(&mut self, len: usize) {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count();
        self.rest = rest;
    }
}

/// Length of the word at the start.
fn word(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

/// Length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// Lengths of what opens a string literal, its body, and what closes it.
fn string_literal(text: &str) -> Option<(usize, usize, usize)> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(['"', '#']))
    })?;
    let rest = &text[prefix.len()..];
    if !prefix.ends_with('r') {
        let body = rest.strip_prefix('"')?;
        let mut escaped = false;
        let end = body.find(|c| match c {
            _ if escaped => {
                escaped = false;
                false
            }
            '\\' => {
                escaped = true;
                false
            }
            other => other == '"',
        });
        let len = end.unwrap_or(body.len());
        return Some((prefix.len() + 1, len, body.len().min(len + 1) - len));
    }
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &rest[..hashes]);
    let len = body.find(&close).unwrap_or(body.len());
    Some((prefix.len() + hashes + 1, len, close.len().min(body.len() - len)))
}

/// Length of `'x'`, `'\n'`, or of the tick and name of a lifetime.
fn character_or_lifetime(text: &str) -> usize {
    let body = &text[1..];
    if let Some(escape) = body.strip_prefix('\\') {
        let skip = escape.chars().next().map_or(0, char::len_utf8);
        return escape[skip..].find('\'').map_or(text.len(), |end| 2 + skip + end + 1);
    }
    let Some(first) = body.chars().next() else { return text.len() };
    if body[first.len_utf8()..].starts_with('\'') { 2 + first.len_utf8() } else { 1 + word(body) }
}

/// Marks every item under an attribute that asks for `cfg(test)`.
fn mark_tests(tokens: &mut [Token]) {
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = attribute_end(tokens, at) else {
            at += 1;
            continue;
        };
        let attribute = &tokens[at..end];
        let has = |word| attribute.iter().any(|token| token.is(word));
        let inner = attribute[1].is("!");
        if !(has("cfg") && has("test")) || has("not") {
            at = end;
            continue;
        }
        let stop = if inner { tokens.len() } else { item_end(tokens, end) };
        tokens[at..stop].iter_mut().for_each(|token| token.test = true);
        at = stop;
    }
}

/// Where the attribute that starts at `at` ends, when one does.
fn attribute_end(tokens: &[Token], at: usize) -> Option<usize> {
    let open = at + 1 + usize::from(tokens.get(at + 1)?.is("!"));
    (tokens[at].is("#") && tokens.get(open)?.is("[")).then(|| close_of(tokens, open))
}

/// Where the item that starts at `at` ends: after its `;`, or after its first braces.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        if tokens[at].is(";") {
            return at + 1;
        }
        if tokens[at].is("{") {
            return close_of(tokens, at);
        }
        at = if tokens[at].is("(") || tokens[at].is("[") { close_of(tokens, at) } else { at + 1 };
    }
    at
}

/// The position after the bracket that closes the one at `open`.
pub(crate) fn close_of(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if ["(", "[", "{"].iter().any(|text| token.is(text)) {
            depth += 1;
        } else if [")", "]", "}"].iter().any(|text| token.is(text)) {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at + 1;
            }
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let code = tokens(source).into_iter().filter(|token| token.kind == Kind::Ident);
        code.map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let source = r##"a /* b /* c */ d */ e // f
            "g \" h" r#"i " j"# b"k" 'l' '\'' '\u{41}' &'m n r#o"##;
        assert_eq!(words(source), ["a", "e", "n", "o"]);
    }

    #[test]
    fn the_text_of_a_literal_is_kept() {
        let found = tokens("x(\"one two\", r#\"three\"#)");
        let texts: Vec<_> = found.iter().filter(|token| token.kind == Kind::Text).collect();
        assert_eq!(texts.iter().map(|t| t.text.as_str()).collect::<Vec<_>>(), ["one two", "three"]);
    }

    #[test]
    fn lines_count_through_every_kind_of_token() {
        let found = tokens("/* 1\n2 */ \"3\n4\"\n// 5\nhere");
        assert_eq!(found.last().map(|token| token.line), Some(5));
    }

    #[test]
    fn test_items_are_marked_and_the_rest_is_not() {
        let source = "#[cfg(test)] #[x] mod t { fn inner() {} } fn a() {}
            #[cfg(all(test, unix))] use b; #[cfg(not(test))] fn c() {} #[test_case] fn d() {}";
        let live: Vec<_> = tokens(source)
            .into_iter()
            .filter(|token| token.kind == Kind::Ident && !token.test)
            .map(|token| token.text)
            .filter(|text| text.len() == 1)
            .collect();
        assert_eq!(live, ["a", "c", "d"]);
        assert!(tokens("#![cfg(test)] fn a() {}").iter().all(|token| token.test));
    }
}
