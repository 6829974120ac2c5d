//! Runs that nobody waits for: a place for each (`slots`), the handle of a dispatch ([`Dispatched`]), and the
//! completions that a consumer takes and settles ([`Completions`]). What a run owes is kept by
//! [`crate::run`], the claims by [`crate::store`]; [`crate::delegator`] hands all of it out.

mod completions;
mod dispatched;
mod slots;

pub use self::completions::{Announced, Completion, Completions};
pub use self::dispatched::{Dispatched, Unit};
pub(crate) use self::slots::Slots;
pub use crate::run::Notice;
pub use crate::store::delivery::{ClaimOver, Delivery, State};
