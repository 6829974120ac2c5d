//! What a Rust program does not do to itself: `_exit`, fork without exec, an end of its main thread alone.
//! A library in C that is loaded into an owner before it starts and does these on a signal.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

/// `_exit(5)`: nothing of the process's own runs any more.
pub(crate) const EXIT: Signal = Signal::USR1;
/// A copy by fork that executes nothing, keeps every descriptor, and waits. It writes its number into
/// `$TREE_DIR/copy`.
pub(crate) const COPY: Signal = Signal::USR2;
/// The main thread ends as pthread_exit ends it; the others go on.
pub(crate) const END_MAIN: Signal = Signal::PROF;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char copy[4096], copy_new[4100];

static void leave(int number) { (void)number; _exit(5); }

static void copy_itself(int number) {
    (void)number;
    if (fork() != 0) return;
    char text[32];
    int length = snprintf(text, sizeof text, "%d\n", getpid());
    int file = open(copy_new, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (write(file, text, length) == length) rename(copy_new, copy);
    close(file);
    signal(SIGTERM, SIG_DFL);
    for (;;) pause();
}

static void end_main(int number) {
    if (gettid() != getpid()) { syscall(SYS_tgkill, getpid(), getpid(), number); return; }
    syscall(SYS_exit, 0);
}

__attribute__((constructor)) static void load(void) {
    const char *dir = getenv("TREE_DIR");
    unsetenv("LD_PRELOAD"); /* in the owner alone, in nothing that it starts */
    if (!dir || strlen(dir) > 4000) return;
    snprintf(copy, sizeof copy, "%s/copy", dir);
    snprintf(copy_new, sizeof copy_new, "%s.new", copy);
    signal(SIGUSR1, leave);
    signal(SIGUSR2, copy_itself);
    signal(SIGPROF, end_main);
}
"#;

/// Compiles the library into `dir`.
pub(crate) fn library(dir: &Path) -> PathBuf {
    let (code, library) = (dir.join("mayhem.c"), dir.join("mayhem.so"));
    std::fs::write(&code, SOURCE).expect("write");
    let mut command = std::process::Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code);
    assert!(command.status().expect("cc, which links Rust programs too").success());
    library
}
