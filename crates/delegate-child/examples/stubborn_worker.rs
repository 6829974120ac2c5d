//! A worker whose agent never looks at its session: what `tests/suite/worker.rs` ends.

use std::process::ExitCode;
use std::thread;

use delegate_child::{Agent, Failure, Registry, Session};

struct Stubborn;

impl Agent for Stubborn {
    const NAME: &'static str = "stubborn";
    type Params = ();
    type Answer = ();

    fn run(&mut self, _params: (), session: &mut Session) -> Result<(), Failure> {
        session.progress("at work");
        loop {
            thread::park();
        }
    }
}

fn main() -> ExitCode {
    let registry = Registry::default().with(|| Stubborn);
    delegate_child::worker::run_if_asked(&registry).unwrap_or(ExitCode::from(2))
}
