//! Starting: arguments, environment, directory, descriptors, failures.
#![expect(clippy::disallowed_methods, reason = "tests wait for facts, with deadlines")]

mod support;

use std::time::Duration;

use ownership::{ChildEvent, ExitStatus};
use support::{owner, shell, start};

#[test]
fn exit_codes_come_back() {
    let owner = owner();
    let (child, events) = start(&owner, shell("exit 7"));
    let exit = child.wait().expect("exit");
    assert_eq!(exit.status, ExitStatus::Code(7));
    let empty = child.wait_empty().expect("empty");
    assert_eq!(empty, ownership::Emptied::default());
    let events: Vec<_> = events.iter().take(2).collect();
    assert_eq!(events, [ChildEvent::Exited(exit), ChildEvent::Emptied(empty)]);
}
