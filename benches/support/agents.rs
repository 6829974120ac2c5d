//! Agents of the table alone: one that may be used again, one that waits with many others, one that prepares a lot, one
//! that keeps a processor busy.

use std::fs::File;
use std::path::PathBuf;
use std::process::id;
use std::time::Duration;

use delegate_runtime::{Agent, Failure, Session};

/// Nothing but an answer, in a worker that may carry another task.
pub(crate) struct Empty;

impl Agent for Empty {
    const NAME: &'static str = "empty";
    const REUSABLE: bool = true;
    type Params = ();
    type Answer = String;

    fn run(&mut self, (): (), _: &mut Session) -> Result<String, Failure> {
        Ok("done".to_owned())
    }
}

/// Says one word, then waits until whoever holds the lock on a file lets go of it.
pub(crate) struct Held;

impl Agent for Held {
    const NAME: &'static str = "held";
    type Params = PathBuf;
    type Answer = String;

    fn run(&mut self, gate: PathBuf, session: &mut Session) -> Result<String, Failure> {
        session.text("here");
        File::open(gate)?.lock_shared()?;
        Ok("done".to_owned())
    }
}

/// What [`Large`] holds.
const LARGE: usize = 256 << 20;

/// As `Sender`, with 256 MiB.
#[derive(Default)]
pub(crate) struct Large(Vec<u8>);

impl Agent for Large {
    const NAME: &'static str = "large";
    type Params = ();
    type Answer = String;

    fn prepare(&mut self) -> Result<(), Failure> {
        self.0 = vec![1; LARGE];
        Ok(())
    }

    fn run(&mut self, (): (), session: &mut Session) -> Result<String, Failure> {
        session.text("here");
        Ok(self.0[..1].iter().map(|_| 'x').collect())
    }
}

/// What [`Costly`] takes to be built.
pub(crate) const CONSTRUCTION: Duration = Duration::from_millis(300);

/// Costly to build. Answers with the process in which it was built, and its own.
#[derive(Default)]
pub(crate) struct Costly(u32);

impl Agent for Costly {
    const NAME: &'static str = "costly";
    type Params = ();
    type Answer = (u32, u32);

    fn prepare(&mut self) -> Result<(), Failure> {
        std::thread::sleep(CONSTRUCTION);
        self.0 = id();
        Ok(())
    }

    fn run(&mut self, (): (), session: &mut Session) -> Result<(u32, u32), Failure> {
        session.text("here");
        Ok((self.0, id()))
    }
}

/// Nothing but CPU: counts primes below a number.
pub(crate) struct Hog;

impl Agent for Hog {
    const NAME: &'static str = "hog";
    type Params = u64;
    type Answer = u64;

    fn run(&mut self, limit: u64, session: &mut Session) -> Result<u64, Failure> {
        let mut found = 0;
        for n in 2..limit {
            session.checkpoint()?;
            found += u64::from((2..).take_while(|d| d * d <= n).all(|d| n % d != 0));
        }
        Ok(found)
    }
}
