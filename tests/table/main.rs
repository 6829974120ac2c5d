//! What the table of `benches/table` says of its figures, and that the bare C program that it asks answers each request.
//! Neither looks at how long anything takes.
#![expect(clippy::disallowed_methods, reason = "it builds and asks a program")]

#[path = "../../benches/table/judge.rs"]
mod judge;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use judge::{Bound, Figures, judge, number};

fn of(values: &[f64]) -> Option<Figures> {
    Figures::of(values.to_vec())
}

#[test]
fn figures_are_medians_and_extremes_of_all_rounds() {
    let figures = of(&[5.0, 1.0, 3.0]).unwrap();
    assert_eq!((figures.rounds, figures.median, figures.least, figures.most), (3, 3.0, 1.0, 5.0));
    assert_eq!(of(&[4.0, 2.0]).unwrap().median, 4.0, "the upper one of two");
    assert_eq!(of(&[]), None, "no round has no figure");
}

#[test]
fn a_ratio_is_judged_by_medians_and_tells_the_minima() {
    let (ours, other) = (of(&[10.0, 30.0, 20.0]), of(&[8.0, 10.0, 12.0]));
    let verdict = judge(Bound::Times(2.0), ours, other).unwrap();
    assert_eq!((verdict.met, verdict.found, verdict.beside), (true, 2.0, 1.25));
    assert!(!judge(Bound::Times(1.99), ours, other).unwrap().met);
    let turned = judge(Bound::Faster(0.5), ours, other).unwrap();
    assert_eq!((turned.met, turned.found, turned.beside), (true, 0.5, 0.8));
    assert!(!judge(Bound::Faster(0.51), ours, other).unwrap().met);
}

#[test]
fn what_compares_with_nobody_is_judged_by_its_worst_round() {
    let ours = of(&[1.0, 2.0, 9.0]);
    let most = judge(Bound::AtMost(8.0), ours, None).unwrap();
    assert_eq!((most.met, most.found, most.beside), (false, 9.0, 2.0));
    assert!(judge(Bound::AtMost(9.0), ours, None).unwrap().met);
    let least = judge(Bound::AtLeast(1.0), ours, None).unwrap();
    assert_eq!((least.met, least.found), (true, 1.0));
    assert!(!judge(Bound::AtLeast(1.1), ours, None).unwrap().met);
}

#[test]
fn where_a_figure_is_missing_or_nothing_nothing_is_said() {
    let some = of(&[1.0]);
    for bound in [Bound::Times(1.0), Bound::Faster(1.0)] {
        assert_eq!(judge(bound, some, None), None);
        assert_eq!(judge(bound, None, some), None);
        assert_eq!(judge(bound, some, of(&[0.0])), None);
        assert_eq!(judge(bound, of(&[0.0]), some), None);
    }
    assert_eq!(judge(Bound::AtMost(0.0), None, None), None);
    assert!(
        judge(Bound::AtMost(0.0), of(&[0.0]), None).unwrap().met,
        "none at all can be asked for"
    );
}

#[test]
fn numbers_have_digits_that_say_something() {
    let numbers = [0.0, 0.00421, 0.123, 1.234, 12.34, 123.4, 12345.6].map(number);
    assert_eq!(numbers, ["0", "0.0042", "0.12", "1.23", "12.3", "123", "12346"]);
    assert_eq!(Bound::Times(1.5).words(), "≤ 1.5 ×");
}

/// Each request has as many numbers as its rows read, and an unknown one is refused and not the end.
#[cfg(target_os = "linux")]
#[test]
fn the_bare_program_answers_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bare");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/bare.c");
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    if !compile.status().is_ok_and(|status| status.success()) {
        assert!(Command::new("cc").arg("--version").output().is_err(), "it compiles");
        eprintln!("!! no C compiler here: SKIPPED");
        return;
    }
    let mut bare = Command::new(&program);
    bare.args(["2", "/bin/echo", "h"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bare = bare.spawn().unwrap();
    let mut input = bare.stdin.take().unwrap();
    let mut lines = BufReader::new(bare.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    for (request, numbers) in [
        ("fork", 2),
        ("exec", 2),
        ("zygote", 2),
        ("worker", 1),
        ("workers 10", 1),
        ("zygotes 10 4", 1),
        ("messages 1000 200", 1),
        ("kill", 1),
        ("futex", 1),
        ("eventfd", 1),
    ] {
        writeln!(input, "{request}").unwrap();
        let said = lines.next().unwrap();
        let mut words = said.split(' ');
        assert_eq!(words.next(), Some("ok"), "{request}: {said}");
        let got: Vec<i64> = words.map(|word| word.parse().unwrap()).collect();
        assert_eq!(got.len(), numbers, "{request}: {said}");
        assert!(got.iter().all(|took| *took > 0), "{request}: {said}");
    }
    writeln!(input, "nothing").unwrap();
    assert_eq!(lines.next().as_deref(), Some("failed no such round: nothing"));
    drop(input);
    assert_eq!(lines.next(), None);
    assert!(bare.wait().unwrap().success());
}
