//! What is hidden and what is shown: a table, and that no planted secret survives.

use proptest::prelude::*;

use super::*;

fn shown(argv: &[&str]) -> Vec<String> {
    redact(&argv.iter().map(OsString::from).collect::<Vec<_>>())
}

#[test]
fn secrets_are_hidden() {
    let table: &[(&[&str], &[&str])] = &[
        (&["x", "--api-key", "abc", "y"], &["x", "--api-key", "***", "y"]),
        (&["x", "--api-key=abc"], &["x", "--api-key=***"]),
        (&["x", "-token", "-abc"], &["x", "-token", "***"]),
        (&["env", "OPENAI_API_KEY=abc", "run"], &["env", "OPENAI_API_KEY=***", "run"]),
        (&["env", "DB_PWD=abc"], &["env", "DB_PWD=***"]),
        (&["x", "--awsKey", "abc"], &["x", "--awsKey", "***"]),
        (&["curl", "-H", "Authorization: Bearer abc"], &["curl", "-H", "Authorization: ***"]),
        (
            &["x", "Authorization:", "Bearer", "abc", "y"],
            &["x", "Authorization:", "Bearer", "***", "y"],
        ),
        (&["curl", "-u", "me:hunter2"], &["curl", "-u", "me:***"]),
        (&["curl", "https://me:hunter2@host/a"], &["curl", "https://***@host/a"]),
        (&["curl", "https://host/a?b=c&token=abc"], &["curl", "https://host/a?b=c&token=***"]),
        (&["x", r#"{"apiKey": "abc", "b": 1}"#], &["x", r#"{"apiKey": "***"#]),
        (&["sh", "-c", "PASSWORD='a b' run --fast"], &["sh", "-c", "PASSWORD='***"]),
        (&["sh", "-c", "login --password abc"], &["sh", "-c", "login --password ***"]),
        (&["x", "sk-proj-abcdefgh"], &["x", "***"]),
        (&["x", "--with=ghp_abcdefghijkl"], &["x", "***"]),
        (&["x", "eyJhbGciOi.eyJzdWIi.c2ln"], &["x", "***"]),
        (&["x", "0b9a7c2e41d84f0f9a3c77d1e5b2a6f8"], &["x", "***"]),
        (&["redis", "AUTH", "hunter2"], &["redis", "AUTH", "***"]),
    ];
    for (argv, expected) in table {
        assert_eq!(&shown(argv), expected, "{argv:?}");
    }
}

#[test]
fn what_is_no_secret_is_shown() {
    for argv in [
        &["sleep", "600"][..],
        &["/usr/bin/python3", "-m", "http.server", "8080"],
        &["cargo", "build", "--target", "x86_64-unknown-linux-gnu", "--release"],
        &["sh", "-c", "(setsid sleep 1000 &) ; exit 7"],
        &["git", "log", "--author", "somebody", "--pretty=%h"],
        &[
            "/usr/lib/x86_64-linux-gnu/libexec/some-long-name/program",
            "--a-very-long-flag-with-words",
        ],
        &["find", ".", "-name", "internationalization.txt"],
        &["curl", "https://host:8080/path"],
    ] {
        assert_eq!(shown(argv), argv, "{argv:?}");
    }
}

#[test]
fn it_is_bounded_and_on_one_line() {
    let many: Vec<_> = (0..25).map(|_| "a").collect();
    let list = shown(&many);
    assert_eq!((list.len(), list.last().map(String::as_str)), (11, Some("… 15 more")));
    let long = "a".repeat(5000);
    assert_eq!(shown(&[&long])[0].chars().count(), MAX_CHARS + 1);
    assert_eq!(shown(&["a\nb\u{1f}c"]), ["a b c"]);
}

/// An argument list with a secret in it that has a name.
fn named(form: usize, name: &str, secret: &str) -> Vec<String> {
    let list = |list: &[String]| list.to_vec();
    match form {
        0 => list(&[format!("--{name}={secret}")]),
        1 => list(&[format!("--{name}"), secret.to_owned()]),
        2 => list(&[format!("{}={secret}", name.to_uppercase().replace('-', "_"))]),
        3 => list(&[format!("Authorization: Bearer {secret}")]),
        4 => list(&["Authorization:".into(), "Bearer".into(), secret.to_owned()]),
        5 => list(&[format!("{{\"a\": 1, \"{name}\": \"{secret}\"}}")]),
        6 => list(&[format!("export X_{name}='{secret}'; run")]),
        7 => list(&[format!("https://host/?a=b&{name}={secret}&c=d")]),
        _ => list(&["-c".into(), format!("curl --{name} {secret} https://host")]),
    }
}

const NAMES: [&str; 10] = [
    "api-key",
    "token",
    "access-token",
    "client-secret",
    "password",
    "db-passwd",
    "auth",
    "ssh-private-key",
    "credentials",
    "session_cookie",
];

fn assert_hidden(argv: &[String], secret: &str) -> Result<(), TestCaseError> {
    let list = redact(&argv.iter().map(OsString::from).collect::<Vec<_>>());
    prop_assert!(!list.iter().any(|token| token.contains(secret)), "{argv:?} became {list:?}");
    Ok(())
}

proptest! {
    #[test]
    fn no_named_secret_survives(
        form in 0..9_usize,
        name in prop::sample::select(&NAMES[..]),
        secret in "[!-)+-~]{8,60}",
        before in prop::collection::vec("[a-z]{1,8}", 0..4),
        after in prop::collection::vec("[a-z]{1,8}", 0..4),
    ) {
        let argv = [before, named(form, name, &secret), after].concat();
        assert_hidden(&argv, &secret)?;
    }

    #[test]
    fn no_secret_without_a_name_survives(
        form in 0..5_usize,
        alnum in "[A-Za-z0-9]{28,64}",
        hex in "[0-9a-f]{32,64}",
        base64 in "[A-Za-z0-9+/]{40,64}",
        known in prop::sample::select(&PREFIXES[..]),
    ) {
        let (text, secret) = match form {
            0 => (alnum.clone(), alnum),
            1 => (format!("--header={hex}"), hex),
            2 => (format!("x={base64}=="), base64),
            3 => (format!("{known}{alnum}"), alnum),
            _ => (format!("postgres://u:{alnum}@host/db"), alnum),
        };
        assert_hidden(&["run".into(), text], &secret)?;
    }

    #[test]
    fn it_is_total(argv in prop::collection::vec(".{0,80}", 0..14)) {
        let list = redact(&argv.iter().map(OsString::from).collect::<Vec<_>>());
        prop_assert!(list.len() <= MAX_TOKENS + 1);
    }
}
