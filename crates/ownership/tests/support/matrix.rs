//! Rows of the death matrix: run beside each other, printed as a table when one fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use super::{Stranger, TreeOwner, wait_for_nobody};

/// What the member that ignores TERM costs each case.
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// Cases at the same time: most of their time they wait.
const ABREAST: usize = 4;

pub(crate) struct Case<'a> {
    name: String,
    run: Box<dyn Fn() + Send + Sync + 'a>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(name: &str, run: impl Fn() + Send + Sync + 'a) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }
}

/// Runs all of them, then fails with a table if any has failed.
pub(crate) fn run(cases: Vec<Case<'_>>) {
    let next = Mutex::new(cases.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..ABREAST {
            scope.spawn(|| {
                loop {
                    let taken = next.lock().expect("no case panics with it").next();
                    let Some((at, case)) = taken else { return };
                    let result = catch_unwind(AssertUnwindSafe(|| (case.run)())).map_err(words);
                    rows.lock().expect("no case panics with it").push((at, &case.name, result));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no case panics with it");
    rows.sort_by_key(|(at, _, _)| *at);
    let line = |(_, name, result): &(usize, &String, Result<(), String>)| {
        format!("  {name:<44} {}", result.as_ref().err().map_or("ok", |words| words))
    };
    let table: Vec<_> = rows.iter().map(line).collect();
    assert!(rows.iter().all(|(_, _, result)| result.is_ok()), "\n{}\n", table.join("\n"));
}

fn words(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Who stands beside a case and must not be touched.
pub(crate) struct Bystanders {
    pub(crate) stranger: Stranger,
    pub(crate) control: TreeOwner,
}

impl Bystanders {
    pub(crate) fn start() -> Self {
        Self { stranger: Stranger::start(), control: TreeOwner::start(GRACE, "") }
    }

    pub(crate) fn assert_untouched(&self) {
        assert!(self.stranger.is_untouched(), "the stranger was touched");
        assert!(self.control.is_whole(), "the other owner keeps {:?}", self.control.living());
        assert!(self.control.supervisor.lives(), "the other owner has lost its supervisor");
    }

    /// Nothing is left of an owner that has ended, its guards have left too, and nobody else was hit.
    pub(crate) fn assert_all_gone(&self, owner: &TreeOwner) {
        wait_for_nobody(|| owner.left());
        self.assert_untouched();
    }
}
