//! D-Bus messages as bytes: what is said to a systemd, and of its answers as much as is read (D-Bus specification,
//! "Message Protocol"). Pure and total; [`super`] moves them. It needs nothing else of this crate, so that the
//! stand-in of the tests can compile it too.

/// The largest message that is read: answers are a name and a sentence.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024;

/// What stands before the fields: kind, length and number.
pub(crate) const HEAD: usize = 16;

/// Kinds of messages.
pub(crate) const CALL: u8 = 1;
pub(crate) const ANSWER: u8 = 2;
pub(crate) const ERROR: u8 = 3;

/// Fields of a header.
pub(crate) const PATH: u8 = 1;
pub(crate) const INTERFACE: u8 = 2;
pub(crate) const MEMBER: u8 = 3;
pub(crate) const ERROR_NAME: u8 = 4;
pub(crate) const REPLY_TO: u8 = 5;
pub(crate) const DESTINATION: u8 = 6;
pub(crate) const SIGNATURE: u8 = 8;

/// Nobody is to be started for the call.
const NO_AUTO_START: u8 = 2;

/// A message or a body while it is written, little-endian.
#[derive(Debug, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    pub(crate) fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn word(&mut self, value: u32) -> &mut Self {
        self.align(4);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A string or the path of an object. What follows a NUL byte is left out: no string has one.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let text = text.split('\0').next().unwrap_or_default();
        self.word(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.byte(0)
    }

    /// One of ours: shorter than 256 bytes.
    pub(crate) fn signature(&mut self, signature: &str) -> &mut Self {
        self.byte(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend(signature.as_bytes());
        self.byte(0)
    }

    /// Elements that are aligned so.
    pub(crate) fn array(&mut self, align: usize, elements: impl FnOnce(&mut Self)) -> &mut Self {
        self.word(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let first = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - first).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        self
    }

    /// A structure begins.
    pub(crate) fn part(&mut self) -> &mut Self {
        self.align(8);
        self
    }
}

/// A text in the header of a message; its signature is the one with the code [`SIGNATURE`].
pub(crate) struct Field<'a>(pub(crate) u8, pub(crate) &'a str);

/// A whole message. `answers` is the number of the call that it answers.
#[must_use]
pub(crate) fn message(
    kind: u8,
    number: u32,
    fields: &[Field<'_>],
    answers: Option<u32>,
    body: &[u8],
) -> Vec<u8> {
    let mut to = Bytes::default();
    to.byte(b'l').byte(kind).byte(NO_AUTO_START).byte(1);
    to.word(u32::try_from(body.len()).unwrap_or(u32::MAX)).word(number);
    to.array(8, |to| {
        for Field(code, text) in fields {
            to.part().byte(*code);
            match *code {
                PATH => to.signature("o").text(text),
                SIGNATURE => to.signature("g").signature(text),
                _ => to.signature("s").text(text),
            };
        }
        if let Some(number) = answers {
            to.part().byte(REPLY_TO).signature("u").word(number);
        }
    });
    to.align(8);
    to.0.extend(body);
    to.0
}

/// What was read of a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) number: u32,
    /// Of the call that it answers.
    pub(crate) answers: Option<u32>,
    pub(crate) texts: Vec<(u8, String)>,
    /// The first text of its body, if it begins with one.
    pub(crate) says: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The text with this code in the header; empty where there is none.
    #[must_use]
    pub(crate) fn text(&self, code: u8) -> &str {
        let found = self.texts.iter().find(|(known, _)| *known == code);
        found.map_or("", |(_, text)| text)
    }
}

/// The length of the message that begins so. `None` for what is none, or is too long.
#[must_use]
pub(crate) fn length(head: &[u8; HEAD]) -> Option<usize> {
    let mut from = Reader { all: head, at: 0 };
    let (order, kind) = (from.byte()?, from.byte()?);
    from.at += 1;
    // A bus hands on what a process of this machine wrote.
    if order != b'l' || !(1..=4).contains(&kind) || from.byte()? != 1 {
        return None;
    }
    let body = usize::try_from(from.word()?).ok()?;
    from.word().filter(|number| *number != 0)?;
    let fields = usize::try_from(from.word()?).ok()?;
    let fields = HEAD.checked_add(fields)?.checked_next_multiple_of(8)?;
    fields.checked_add(body).filter(|length| *length <= MAX_MESSAGE)
}

/// A whole message.
#[must_use]
pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
    let whole = length(bytes.first_chunk()?)?;
    if bytes.len() != whole {
        return None;
    }
    let mut from = Reader { all: bytes, at: 1 };
    let mut message = Message { kind: from.byte()?, ..Message::default() };
    from.at = 8;
    message.number = from.word()?;
    let end = HEAD + usize::try_from(from.word()?).ok()?;
    let mut signature = String::new();
    while from.at < end {
        from.align(8)?;
        let code = from.byte()?;
        match from.signature()?.as_str() {
            "s" | "o" => message.texts.push((code, from.text()?)),
            "g" => signature = from.signature()?,
            "u" if code == REPLY_TO => message.answers = Some(from.word()?),
            "u" => drop(from.word()?),
            // No field that there is has another.
            _ => return None,
        }
    }
    if from.at != end {
        return None;
    }
    from.align(8)?;
    message.body = bytes.get(from.at..)?.to_vec();
    if signature.starts_with(['s', 'o']) {
        message.says = Some(from.text()?);
    }
    Some(message)
}

/// Reads by the rules of alignment.
struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to)?;
        (self.at <= self.all.len()).then_some(())
    }

    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let taken = self.all.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u32> {
        self.align(4)?;
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = self.word()?;
        self.ended(usize::try_from(length).ok()?)
    }

    fn signature(&mut self) -> Option<String> {
        let length = self.byte()?;
        self.ended(length.into())
    }

    /// So many bytes and a NUL.
    fn ended(&mut self, length: usize) -> Option<String> {
        let text = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        (self.byte()? == 0).then_some(text)
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
