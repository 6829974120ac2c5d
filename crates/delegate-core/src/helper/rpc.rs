//! One JSON-RPC message, taken apart only as far as [`super::mux`] needs: its id, its method, and the few fields
//! that name other messages. The rest stays the bytes that they were (<https://www.jsonrpc.org/specification>).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Codes of errors that we answer with ourselves; the last is ours (the range -32000 to -32099 is free).
pub(super) const PARSE: i32 = -32700;
pub(super) const INVALID: i32 = -32600;
pub(super) const NO_METHOD: i32 = -32601;
pub(super) const HELPER: i32 = -32000;

/// An object with its fields unread.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Message(BTreeMap<String, Box<RawValue>>);

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Notification,
    Response,
}

/// Where the name of another message stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Named {
    /// A request that is to be cancelled.
    Request,
    /// The request whose progress is told.
    Progress,
    /// What a request wants to be told its progress under.
    Meta,
}

impl Named {
    const fn path(self) -> &'static [&'static str] {
        match self {
            Self::Request => &["requestId"],
            Self::Progress => &["progressToken"],
            Self::Meta => &["_meta", "progressToken"],
        }
    }
}

impl Message {
    /// Reads one line.
    pub(super) fn parse(line: &[u8]) -> Result<Self, &'static str> {
        serde_json::from_slice(line).map_err(|_| "it is no JSON object on one line")
    }

    pub(super) fn kind(&self) -> Kind {
        match (self.0.contains_key("method"), self.id().is_some()) {
            (true, true) => Kind::Request,
            (true, false) => Kind::Notification,
            (false, _) => Kind::Response,
        }
    }

    /// Its id, as it was written; none when it is null.
    pub(super) fn id(&self) -> Option<&RawValue> {
        self.0.get("id").map(|id| &**id).filter(|id| id.get() != "null")
    }

    pub(super) fn with_id(mut self, id: &RawValue) -> Self {
        self.0.insert("id".to_owned(), id.to_owned());
        self
    }

    pub(super) fn method(&self) -> Option<String> {
        self.0.get("method").and_then(|method| serde_json::from_str(method.get()).ok())
    }

    pub(super) fn is_error(&self) -> bool {
        self.0.contains_key("error")
    }

    /// The name in its parameters, if there is one.
    pub(super) fn named(&self, named: Named) -> Option<Box<RawValue>> {
        let params = self.params()?;
        let found = named.path().iter().try_fold(&params, |value, field| value.get(field))?;
        to_raw_value(found).ok()
    }

    /// With another name there.
    pub(super) fn renamed(mut self, named: Named, name: &RawValue) -> Self {
        let (Some(mut params), Ok(name)) = (self.params(), serde_json::from_str(name.get())) else {
            return self;
        };
        let place = named.path().iter().try_fold(&mut params, |value, field| value.get_mut(*field));
        if let Some(place) = place {
            *place = name;
            if let Ok(params) = to_raw_value(&params) {
                self.0.insert("params".to_owned(), params);
            }
        }
        self
    }

    fn params(&self) -> Option<Value> {
        let params = self.0.get("params")?;
        // Most have no such name, and are not read for it.
        let mentioned =
            params.get().contains("progressToken") || params.get().contains("requestId");
        mentioned.then(|| serde_json::from_str(params.get()).ok())?
    }

    /// One line, with its newline.
    pub(super) fn line(&self) -> Vec<u8> {
        // A map of JSON texts is a JSON text.
        let mut line = serde_json::to_vec(&self.0).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// An id of ours.
pub(super) fn number(number: u64) -> Box<RawValue> {
    to_raw_value(&number).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The number that an id of ours holds.
pub(super) fn numbered(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

/// An error as the answer to `id`.
pub(super) fn error(id: Option<&RawValue>, code: i32, text: &str) -> Vec<u8> {
    let answer = json!({"jsonrpc": "2.0", "error": {"code": code, "message": text}});
    fields(answer, id)
}

/// An empty result as the answer to `id`.
pub(super) fn done(id: &RawValue) -> Vec<u8> {
    fields(json!({"jsonrpc": "2.0", "result": {}}), Some(id))
}

/// A notification.
pub(super) fn notification(method: &str, params: Value) -> Vec<u8> {
    let mut line = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
    line.push('\n');
    line.into_bytes()
}

fn fields(answer: Value, id: Option<&RawValue>) -> Vec<u8> {
    let id = id.and_then(|id| serde_json::from_str(id.get()).ok()).unwrap_or(Value::Null);
    let mut answer = answer;
    answer["id"] = id;
    let mut line = answer.to_string();
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_not_looked_at_stays_as_it_was() {
        let text = r#"{"id":"a","jsonrpc":"2.0","method":"m","params":{"n":1.10,"big":123456789012345678901234567890}}"#;
        let line = message(text).with_id(&number(7)).line();
        let wanted = text.replace(r#""a""#, "7") + "\n";
        assert_eq!(String::from_utf8(line).unwrap(), wanted);
    }

    #[test]
    fn kinds() {
        for (text, kind) in [
            (r#"{"id":1,"method":"m"}"#, Kind::Request),
            (r#"{"id":null,"method":"m"}"#, Kind::Notification),
            (r#"{"method":"m"}"#, Kind::Notification),
            (r#"{"id":1,"result":{}}"#, Kind::Response),
            (r#"{"error":{}}"#, Kind::Response),
        ] {
            assert_eq!(message(text).kind(), kind, "{text}");
        }
        for bad in ["", "[]", "1", "{", "[{\"id\":1}]"] {
            assert!(Message::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_found_and_replaced() {
        let ask =
            message(r#"{"id":1,"method":"m","params":{"_meta":{"progressToken":"t"},"x":1}}"#);
        assert_eq!(ask.named(Named::Meta).unwrap().get(), "\"t\"");
        let ask = ask.renamed(Named::Meta, &number(9));
        assert_eq!(ask.named(Named::Meta).unwrap().get(), "9");
        let cancel = message(r#"{"method":"c","params":{"requestId":3}}"#);
        assert_eq!(cancel.named(Named::Request).unwrap().get(), "3");
        assert!(cancel.named(Named::Progress).is_none());
        assert!(message(r#"{"method":"c","params":[1]}"#).named(Named::Request).is_none());
    }

    #[test]
    fn an_error_has_the_id_or_null() {
        let line = error(Some(&number(3)), HELPER, "no");
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&value["id"], &value["error"]["code"]), (&json!(3), &json!(HELPER)));
        assert!(serde_json::from_slice::<Value>(&error(None, PARSE, "x")).unwrap()["id"].is_null());
    }
}
