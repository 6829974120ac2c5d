//! The status of a key: ok, exhausted (comes back after a cooldown) or dead (comes back when it is
//! changed). [`Record`] is the machine; what a failure means is decided by [`judge`]. Pure. Used by `pool`.

use std::time::Duration;

use delegate_protocol::KeyFailure;
use serde::{Deserialize, Serialize};

use super::moment::{Moment, Until};
use super::reset::reset_time;

/// After 429, 402, 403, an error of the provider, and what nobody knows.
pub const COOLDOWN: Duration = Duration::from_secs(3600);

/// After 401: the key may have been refreshed meanwhile.
pub const UNAUTHORIZED: Duration = Duration::from_secs(300);

/// For the only key that is not dead, where it is not a matter of money.
pub const SOLE: Duration = Duration::from_secs(60);

/// Reasons of a 401 after which a key never works again.
const TERMINAL: [&str; 6] = [
    "token_invalidated",
    "token_revoked",
    "invalid_token",
    "invalid_grant",
    "unauthorized_client",
    "refresh_token_reused",
];

/// The reason that means money, whatever the status.
const BILLING: &str = "billing";

/// What a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// 401: it may work again.
    Unauthorized,
    /// 401 with a reason that is final.
    Revoked,
    /// 402, or the reason `billing`.
    Billing,
    /// 403.
    Forbidden,
    /// 429.
    RateLimited,
    /// 500 to 599.
    Provider,
    /// Anything else.
    Unknown,
}

impl Cause {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Unauthorized,
        Self::Revoked,
        Self::Billing,
        Self::Forbidden,
        Self::RateLimited,
        Self::Provider,
        Self::Unknown,
    ];

    /// What a failure is.
    #[must_use]
    pub fn of(failure: &KeyFailure) -> Self {
        let reason = failure.reason.as_deref().unwrap_or_default().trim().to_ascii_lowercase();
        match failure.status {
            Some(401) if TERMINAL.contains(&reason.as_str()) => Self::Revoked,
            _ if reason == BILLING => Self::Billing,
            Some(402) => Self::Billing,
            Some(401) => Self::Unauthorized,
            Some(403) => Self::Forbidden,
            Some(429) => Self::RateLimited,
            Some(500..=599) => Self::Provider,
            Some(_) | None => Self::Unknown,
        }
    }

    /// For lists.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Revoked => "revoked",
            Self::Billing => "billing",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
            Self::Provider => "provider_error",
            Self::Unknown => "unknown",
        }
    }
}

/// What a failure does to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It never comes back by itself.
    Dead,
    /// It rests.
    Rests(Until),
}

/// Decides what a failure does. `sole`: no other key of the pool is alive. A time that the provider gave
/// wins over every cooldown.
#[must_use]
pub fn judge(cause: Cause, sole: bool, reset: Option<Moment>, now: Moment) -> Verdict {
    let cooldown = match cause {
        Cause::Revoked => return Verdict::Dead,
        Cause::Unauthorized => UNAUTHORIZED,
        Cause::Billing => COOLDOWN,
        Cause::Forbidden | Cause::RateLimited | Cause::Provider | Cause::Unknown if sole => SOLE,
        Cause::Forbidden | Cause::RateLimited | Cause::Provider | Cause::Unknown => COOLDOWN,
    };
    Verdict::Rests(match reset {
        Some(until) => Until::ending(now, until),
        None => Until::lasting(now, cooldown),
    })
}

/// Whether a key may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It may.
    #[default]
    Ok,
    /// Not before its cooldown is over.
    Exhausted,
    /// Not before it is changed.
    Dead,
}

impl State {
    /// For lists.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Exhausted => "exhausted",
            Self::Dead => "dead",
        }
    }
}

/// What is known of one key. Kept by its fingerprint, so that a changed key begins anew and entries with
/// the same key share it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Whether it may be used.
    pub state: State,
    /// Its cooldown; of a dead key when it died.
    pub rest: Option<Until>,
    /// Why it may not.
    pub cause: Option<Cause>,
    /// Status of the answer.
    pub code: Option<u16>,
    /// The provider's word. Its text is not kept: it may repeat the key.
    pub reason: Option<String>,
    /// How often it was marked.
    #[serde(default)]
    pub marked: u64,
}

/// What a report did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// The key was usable and is not any more.
    Fresh,
    /// It was marked before; this report made it worse.
    Worse,
    /// It was marked before; nothing changed.
    Known,
}

impl Record {
    /// As it stands now: a cooldown that is over is forgotten, one of a clock that was set back begins
    /// anew. Whether something changed.
    pub fn look(&mut self, now: Moment) -> bool {
        let Some(rest) = self.rest else { return false };
        match self.state {
            State::Exhausted if rest.is_over(now) => {
                *self = Self { marked: self.marked, ..Self::default() };
                true
            }
            State::Exhausted | State::Dead => {
                self.rest = Some(rest.seen(now));
                self.rest != Some(rest)
            }
            State::Ok => false,
        }
    }

    /// Takes a report in. Many children report one failure: only the first marks the key. A later one
    /// changes it where it says more: the key is dead, the account is out of money, or the provider named
    /// a later time.
    pub fn fail(&mut self, failure: &KeyFailure, sole: bool, now: Moment) -> Marked {
        self.look(now);
        let cause = Cause::of(failure);
        let reset = failure.reset.as_deref().or(failure.message.as_deref());
        let reset = reset.and_then(|text| reset_time(text, now));
        let verdict = judge(cause, sole, reset, now);
        let marked = match (self.state, verdict) {
            (State::Ok, _) => Marked::Fresh,
            (State::Dead, _) => return Marked::Known,
            (State::Exhausted, Verdict::Dead) => Marked::Worse,
            (State::Exhausted, Verdict::Rests(rest)) => {
                let worse_cause = cause == Cause::Billing && self.cause != Some(Cause::Billing);
                let says_more = self.rest.is_none_or(|known| match (worse_cause, reset) {
                    (true, _) => rest.until >= known.until,
                    (false, Some(_)) => rest.until > known.until,
                    (false, None) => false,
                });
                if !says_more {
                    return Marked::Known;
                }
                Marked::Worse
            }
        };
        let (state, rest) = match verdict {
            Verdict::Dead => (State::Dead, Until::ending(now, now)),
            Verdict::Rests(rest) => (State::Exhausted, rest),
        };
        *self = Self {
            state,
            rest: Some(rest),
            cause: Some(cause),
            code: failure.status,
            reason: failure.reason.clone(),
            marked: self.marked + u64::from(marked == Marked::Fresh),
        };
        marked
    }

    /// The one of two that knows more, of a key that two parents have looked at: a dead one, then the one
    /// that was marked later.
    #[must_use]
    pub fn newer(self, other: Self) -> Self {
        let weight = |record: &Self| {
            let marked_at = record.rest.map(|rest| rest.at);
            (record.state == State::Dead, marked_at, record.marked)
        };
        if weight(&other) > weight(&self) { other } else { self }
    }

    /// When it comes back; `None` when it is usable, or never by itself.
    #[must_use]
    pub fn back_at(&self) -> Option<Moment> {
        self.rest.filter(|_| self.state == State::Exhausted).map(|rest| rest.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_ms(1_800_000_000_000);

    /// One failure per cause.
    fn failure(cause: Cause) -> KeyFailure {
        match cause {
            Cause::Unauthorized => KeyFailure::status(401),
            Cause::Revoked => KeyFailure::status(401).reason("token_revoked"),
            Cause::Billing => KeyFailure::status(402),
            Cause::Forbidden => KeyFailure::status(403),
            Cause::RateLimited => KeyFailure::status(429),
            Cause::Provider => KeyFailure::status(503),
            Cause::Unknown => KeyFailure::default(),
        }
    }

    fn seconds(record: &Record) -> Option<u64> {
        record.back_at().map(|at| at.since(NOW).as_secs())
    }

    fn after(cause: Cause, sole: bool) -> Record {
        let mut record = Record::default();
        assert_eq!(record.fail(&failure(cause), sole, NOW), Marked::Fresh);
        record
    }

    #[test]
    fn c37_the_table_of_cooldowns() {
        for (cause, many, sole) in [
            (Cause::Unauthorized, Some(300), Some(300)),
            (Cause::Revoked, None, None),
            (Cause::Billing, Some(3600), Some(3600)),
            (Cause::Forbidden, Some(3600), Some(60)),
            (Cause::RateLimited, Some(3600), Some(60)),
            (Cause::Provider, Some(3600), Some(60)),
            (Cause::Unknown, Some(3600), Some(60)),
        ] {
            assert_eq!(Cause::of(&failure(cause)), cause);
            assert_eq!(seconds(&after(cause, false)), many, "{cause:?}");
            assert_eq!(seconds(&after(cause, true)), sole, "{cause:?} of the only key");
        }
        let billing = KeyFailure::status(403).reason(" Billing ");
        let mut record = Record::default();
        record.fail(&billing, true, NOW);
        assert_eq!((record.cause, seconds(&record)), (Some(Cause::Billing), Some(3600)));
    }

    #[test]
    fn c37_a_time_of_the_provider_wins_over_every_cooldown() {
        for cause in Cause::ALL {
            for sole in [false, true] {
                let mut record = Record::default();
                record.fail(&failure(cause).reset("17"), sole, NOW);
                let expected = (cause != Cause::Revoked).then_some(17);
                assert_eq!(seconds(&record), expected, "{cause:?}");
                let mut told = Record::default();
                told.fail(&failure(cause).message("retry after 17 seconds"), sole, NOW);
                assert_eq!(told.rest, record.rest, "{cause:?}, in its text");
            }
        }
    }

    #[test]
    fn c38_the_reasons_that_are_final_are_final_with_401_only() {
        for reason in TERMINAL {
            let dead = |status| Cause::of(&KeyFailure::status(status).reason(reason));
            assert_eq!(dead(401), Cause::Revoked);
            assert_ne!(dead(403), Cause::Revoked);
            assert_ne!(dead(429), Cause::Revoked);
        }
    }

    /// Every state, met by every cause, in time and after the cooldown.
    #[test]
    fn every_state_meets_every_cause() {
        for first in Cause::ALL {
            for second in Cause::ALL {
                let mut record = after(first, false);
                let before = record.clone();
                let marked =
                    record.fail(&failure(second), false, NOW.after(Duration::from_secs(1)));
                let expected = match (first, second) {
                    (Cause::Revoked, _) => Marked::Known,
                    (_, Cause::Revoked) => Marked::Worse,
                    (Cause::Billing, _) => Marked::Known,
                    // A second later, so the hour ends later.
                    (_, Cause::Billing) => Marked::Worse,
                    _ => Marked::Known,
                };
                assert_eq!(marked, expected, "{first:?} then {second:?}");
                assert_eq!(record.marked, 1, "one failure is marked once");
                match marked {
                    Marked::Known => assert_eq!(record, before, "{first:?} then {second:?}"),
                    Marked::Fresh | Marked::Worse => {
                        assert_eq!(record.cause, Some(second));
                    }
                }
                // When the first is over it is a new one, unless the key is dead.
                let mut record = after(first, false);
                let marked = record.fail(&failure(second), false, NOW.after(COOLDOWN));
                let dead = first == Cause::Revoked;
                let expected = if dead { Marked::Known } else { Marked::Fresh };
                assert_eq!(marked, expected, "{first:?}, over, then {second:?}");
            }
        }
    }

    #[test]
    fn a_cooldown_ends_and_a_dead_key_does_not_come_back() {
        for cause in Cause::ALL {
            let mut record = after(cause, false);
            let end = record.back_at().unwrap_or(NOW.after(COOLDOWN));
            assert!(!record.look(Moment::from_ms(end.as_ms() - 1)), "{cause:?}");
            assert_ne!(record.state, State::Ok, "{cause:?}");
            let back = record.look(end);
            assert_eq!(back, cause != Cause::Revoked, "{cause:?}");
            let state = if back { State::Ok } else { State::Dead };
            assert_eq!((record.state, record.marked), (state, 1), "{cause:?}");
            record.look(Moment::from_ms(u64::MAX));
            assert_eq!(record.state, state);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_cooldown() {
        let mut record = after(Cause::Unauthorized, false);
        let earlier = Moment::from_ms(NOW.as_ms() - 86_400_000);
        assert!(record.look(earlier));
        assert_eq!(record.back_at(), Some(earlier.after(UNAUTHORIZED)));
        assert!(record.look(earlier.after(UNAUTHORIZED)));
        assert_eq!(record.state, State::Ok);
    }
}
