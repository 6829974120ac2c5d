//! One program, many roles: the program that delegates executes itself again as supervisor or worker.
//!
//! [`workers`] is the first expression of `main`; [`crate::test_support`] is its stand-in where
//! `main` is not ours. Talks to `ownership` and `delegate-child`, which run the roles, and tells
//! `delegate_core::launch::program` that this program has them.

use std::process::{ExitCode, Termination};

use delegate_child::{Agent, Registry, worker};
use delegate_core::launch::program;

/// Agents that this program can run, to be declared before anything else happens in `main`.
#[derive(Debug)]
#[must_use = "begin main with workers().agent(…).or_else(host)"]
pub struct Workers {
    registry: Registry,
}

/// The first expression of `main`. The agents that ship are there already.
pub fn workers() -> Workers {
    Workers { registry: Registry::shipped() }
}

impl Workers {
    /// Adds an agent; the factory makes one object per child.
    pub fn agent<A: Agent>(mut self, factory: impl Fn() -> A + Send + Sync + 'static) -> Self {
        self.registry = self.registry.with(factory);
        self
    }

    /// Runs the role that this process was started for; without one, runs `host`.
    ///
    /// No thread exists before `host` runs, and a worker starts no runtime.
    pub fn or_else<T: Termination>(self, host: impl FnOnce() -> T) -> ExitCode {
        if let Some(code) = run_role(&self.registry) {
            return code;
        }
        program::declare(self.registry);
        host().report()
    }
}

fn run_role(registry: &Registry) -> Option<ExitCode> {
    ownership::owner::run_if_asked().or_else(|| worker::run_if_asked(registry))
}

/// The body of the test that [`crate::test_support`] makes: ends the process when it was started for
/// a role, and is a test that passes otherwise.
#[doc(hidden)]
pub fn run_role_in_test(registry: &Registry) {
    if let Some(code) = run_role(registry) {
        end_process(code);
    }
}

#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "a role inside a test binary must not run the rest of the suite"
)]
fn end_process(code: ExitCode) {
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// Makes the agents of a test binary run in processes of their own: put it once at the top level of
/// the binary, with factories of agents where there are any.
///
/// The binary executes itself again with libtest's own filter, so that a worker runs this one test
/// and not the suite.
///
/// ```ignore
/// delegate_runtime::test_support!(|| Primes);
/// ```
#[macro_export]
macro_rules! test_support {
    ($($agent:expr),* $(,)?) => {
        fn delegate_registry() -> $crate::Registry {
            $crate::Registry::shipped()$(.with($agent))*
        }

        #[test]
        fn delegate_roles() {
            $crate::internal::run_role_in_test(&delegate_registry());
        }

        $crate::internal::submit! {
            $crate::internal::TestRoles {
                path: concat!(module_path!(), "::delegate_roles"),
                registry: delegate_registry,
            }
        }
    };
}
