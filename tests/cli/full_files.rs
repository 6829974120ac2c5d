//! The limit of file sizes (`ulimit -f`): what cannot be written is an error of that write, and ends nobody. Without care
//! the kernel ends whoever writes, by SIGXFSZ.

use std::fs;

use crate::rig::{DELEGATE, Rig, Said};

/// This script in a shell, below a limit of so many blocks. (Of 512 or 1,024 bytes, as the shell has it.)
fn limited(rig: &Rig, blocks: u32, script: &str) -> Said {
    let mut command = rig.program("sh");
    command.arg("-c").arg(format!("ulimit -f {blocks}; {script}"));
    command.env("D", DELEGATE);
    Said::of(command.output().unwrap())
}

#[test]
fn a_run_that_can_write_nothing_goes_to_its_end_and_says_so() {
    // With the first, the database cannot be made; with the last, it cannot grow.
    for blocks in [16, 64, 256] {
        let rig = Rig::new();
        let file = rig.batch("b.yaml", &["echo answered; grep Sig /proc/self/status"]);
        let said =
            limited(&rig, blocks, &format!("exec \"$D\" run {file} --json --isolation process"));
        assert!(matches!(said.code, Some(0 | 3)), "{blocks}: {said:?}");
        assert!(said.out.contains("answered"), "{blocks}: {said:?}");
        // Nothing of it comes to what is started.
        let status = |name: &str| {
            let at = said.out.find(name).unwrap_or_else(|| panic!("{name}: {said:?}")) + name.len();
            let digits = said.out[at..].trim_start_matches(|c: char| !c.is_ascii_hexdigit());
            let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
            u64::from_str_radix(&digits, 16).unwrap()
        };
        let full = 1 << (25 - 1);
        assert_eq!((status("SigBlk:\\t") & full, status("SigIgn:\\t") & full), (0, 0), "{said:?}");
        rig.wait_for_nobody();
    }
}

#[test]
fn without_care_the_owner_dies_of_it() {
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: NOTHING CAN BE SWITCHED OFF IN A RELEASE BUILD");
        return;
    }
    let rig = Rig::new();
    let file = rig.batch("b.yaml", &["true"]);
    let off = "OWNERSHIP_TEST_OFF=file-size";
    let said =
        limited(&rig, 16, &format!("{off} \"$D\" run {file} --isolation process; echo code $?"));
    said.says("code 153");
    rig.wait_for_nobody();
}

/// Guards share memory, for which the limit holds too. Where it is too low even for that, nothing is started.
#[test]
fn a_limit_that_is_too_low_for_guards_is_an_error_with_a_remedy() {
    let rig = Rig::new();
    let said = limited(&rig, 0, "\"$D\" own -q -- true; echo code $?");
    said.says("code 125");
    for part in ["nothing was started", "files may have 0 bytes here", "raise `ulimit -f`"] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    let file = rig.batch("b.yaml", &["true"]);
    let said = limited(&rig, 0, &format!("\"$D\" run {file} --isolation process"));
    said.expect(3).says("raise `ulimit -f`");
}

#[test]
fn own_and_its_guards_outlive_it_and_the_program_finds_what_it_would_find_without() {
    let rig = Rig::new();
    let said = limited(&rig, 8, "\"$D\" own -q -- sh -c 'sleep 0.1; exit 7'; echo code $?");
    said.says("code 7");
    // The report has no room.
    fs::write(rig.path("r"), "x".repeat(1 << 20)).unwrap();
    let script = "\"$D\" own -q --report /dev/fd/3 -- sh -c 'exit 7' 3>>r; echo code $?";
    limited(&rig, 8, script).says("code 7");
    assert_eq!(fs::metadata(rig.path("r")).unwrap().len(), 1 << 20);
    // Who writes too much itself is ended as ever.
    let big = "dd if=/dev/zero of=big bs=64k count=1 2>/dev/null";
    let plain = limited(&rig, 8, &format!("{big}; echo code $?"));
    let owned = limited(&rig, 8, &format!("\"$D\" own -q -- {big}; echo code $?"));
    let code = |said: &Said| said.out.lines().last().unwrap_or_default().to_owned();
    assert!(code(&plain).starts_with("code "), "{plain:?}");
    assert_eq!(code(&owned), code(&plain), "{owned:?}");
    rig.wait_for_nobody();
}
