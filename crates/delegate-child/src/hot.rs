//! What is counted in instructions (`.ci/instructions`) and stands behind no public name. No part of the interface.

use std::collections::VecDeque;

use delegate_protocol::frame::Encoder;
use delegate_protocol::{ChildEnd, ChildEvent, ChildMessage};

use crate::cancel::Token;
use crate::outbox::Outbox;

/// Events that wait together: as many as a writer finds that was busy for a moment.
const TOGETHER: usize = 100;

/// Sends an event so often on the way from an agent to the bytes on its line; those bytes.
#[must_use]
pub fn outbox(event: &ChildEvent, count: usize) -> usize {
    let (outbox, token, encoder) =
        (Outbox::default(), Token::default(), Encoder::<ChildEnd>::default());
    let (mut frames, mut taken, mut bytes) = (Vec::new(), VecDeque::new(), 0);
    for first in (0..count).step_by(TOGETHER) {
        for _ in first..count.min(first + TOGETHER) {
            outbox.put(event.clone(), &token);
        }
        while outbox.try_take(&mut taken) {
            for event in taken.drain(..) {
                // Events are small; one that has no frame counts for nothing.
                drop(encoder.frame(&ChildMessage::Event(event), &mut frames));
            }
        }
        bytes += frames.len();
        frames.clear();
    }
    bytes
}
