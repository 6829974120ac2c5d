//! How the worker processes of a batch are started: one pure function of the setting, the size of the batch and
//! what the worker program can do. [`crate::launch`] carries it out, and falls back where it turns out otherwise.

use crate::config::{LauncherWish, Pool};

/// From so many tasks on a template pays by itself: it costs one more start of the program, and a copy saves most
/// of one. An agent that prepares something gains from the second task on; that is known only when it was prepared.
pub(super) const MANY: usize = 8;

/// A way to start worker processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launching {
    /// The program is executed for each child.
    Exec,
    /// Each child is a copy of a template.
    Zygote,
    /// Workers are started ahead, and wait.
    Pool,
}

impl Launching {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Zygote => "zygote",
            Self::Pool => "pool",
        }
    }
}

/// What the decision depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub(super) wish: LauncherWish,
    pub(super) pool: Pool,
    pub(super) tasks: usize,
    /// Whether the worker program can be a template: one of another make (`worker.command`) cannot.
    pub(super) own_program: bool,
    /// Each child is to have a pid namespace of its own, which a copy of a template outside of it cannot get.
    pub(super) namespace: bool,
}

/// Decides, with one sentence on why.
pub(super) fn decide(question: Question) -> (Launching, String) {
    let Question { wish, pool, tasks, own_program, namespace } = question;
    let foreign = "worker.command is a program of another make, which is no template";
    match wish {
        LauncherWish::Exec => (Launching::Exec, "the setting launcher is exec".to_owned()),
        _ if namespace => {
            let text =
                "the setting containment is pid-namespace, and a copy of a template stands outside";
            (Launching::Exec, text.to_owned())
        }
        LauncherWish::Zygote if own_program => {
            (Launching::Zygote, "the setting launcher is zygote".to_owned())
        }
        LauncherWish::Zygote => {
            (Launching::Exec, format!("the setting launcher is zygote, but {foreign}"))
        }
        LauncherWish::Pool => (Launching::Pool, "the setting launcher is pool".to_owned()),
        LauncherWish::Auto if pool.min_idle > 0 => {
            (Launching::Pool, format!("pool.min_idle is {}", pool.min_idle))
        }
        LauncherWish::Auto if !own_program => (Launching::Exec, foreign.to_owned()),
        LauncherWish::Auto if tasks >= MANY => {
            (Launching::Zygote, format!("for {MANY} tasks or more a template pays"))
        }
        LauncherWish::Auto => (Launching::Exec, format!("there are fewer than {MANY} tasks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: few tasks, many tasks; the same for a program of another make.
    #[test]
    fn every_combination_is_decided_as_the_page_says() {
        let table = [
            (LauncherWish::Auto, 0, ["exec", "zygote", "exec", "exec"]),
            (LauncherWish::Auto, 1, ["pool", "pool", "pool", "pool"]),
            (LauncherWish::Exec, 0, ["exec", "exec", "exec", "exec"]),
            (LauncherWish::Exec, 1, ["exec", "exec", "exec", "exec"]),
            (LauncherWish::Zygote, 0, ["zygote", "zygote", "exec", "exec"]),
            (LauncherWish::Zygote, 1, ["zygote", "zygote", "exec", "exec"]),
            (LauncherWish::Pool, 0, ["pool", "pool", "pool", "pool"]),
            (LauncherWish::Pool, 1, ["pool", "pool", "pool", "pool"]),
        ];
        for (wish, min_idle, expected) in table {
            let pool = Pool { min_idle, ..Pool::default() };
            let cases = [(1, true), (MANY, true), (1, false), (MANY, false)];
            let found = cases.map(|(tasks, own_program)| {
                let (launching, why) =
                    decide(Question { wish, pool, tasks, own_program, namespace: false });
                let inside = decide(Question { wish, pool, tasks, own_program, namespace: true });
                assert_eq!(inside.0, Launching::Exec);
                assert!(!why.is_empty());
                launching.word()
            });
            assert_eq!(found, expected, "{wish:?} min_idle {min_idle}");
        }
    }
}
