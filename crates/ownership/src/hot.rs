//! What is counted in instructions (`.ci/instructions`) and stands behind no public name. No part of the interface.

use std::time::Duration;

use crate::containment::Containment;
use crate::protocol::{Image, Order, Request};
use crate::ration::Ration;
use crate::spawn::Leftovers;

/// Encodes so many requests for a worker, as a spawn does; their bytes.
#[must_use]
pub fn requests(count: usize) -> usize {
    let text = |number: usize, length: usize| format!("{number:0>length$}").into_bytes();
    let order = |id: u64| Order {
        id,
        image: Image::Open,
        argv: vec![b"delegate".to_vec(), b"@delegate-worker".to_vec()],
        env: (0..30).map(|number| text(number, 40)).collect(),
        dir: None,
        fds: vec![1, 2, 3, 6],
        line: Some(4),
        template: None,
        grace: Duration::from_secs(3),
        leftovers: Leftovers::Kill,
        release: None,
        containment: Containment::Auto,
        ration: Ration::default(),
        joins: None,
    };
    let request = Request::Spawn(Box::new(order(1)));
    (0..count).map(|_| std::hint::black_box(&request).encode().len()).sum()
}
