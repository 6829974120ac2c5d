//! `delegate config edit`: what an editor wrote takes the file's place when nothing is wrong with it, and only then.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::rig::{Rig, Said};
use crate::terminal::Terminal;

const FILE: &str = ".config/delegate/config.yaml";

/// Edits with an editor that is a shell script; `$1` is what it is to edit.
fn edit(rig: &Rig, script: &str, args: &[&str]) -> Said {
    let editor = rig.path("editor");
    fs::write(&editor, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = rig.command(["config", "edit"].iter().chain(args));
    // With an argument of its own, as people write it.
    command.env_remove("VISUAL").env("EDITOR", format!("{} --wait", editor.display()));
    Said::of(command.output().unwrap())
}

/// Replaces the text; the file is the last argument.
fn writes(text: &str) -> String {
    format!("test \"$1\" = --wait || exit 9; printf '%s' '{text}' > \"$2\"")
}

fn held(rig: &Rig) -> String {
    fs::read_to_string(rig.path(FILE)).unwrap()
}

const OLD: &str = "delegation:\n  max_iterations: 9\n";

#[test]
fn what_is_right_takes_the_place_of_the_file_and_keeps_its_mode() {
    let rig = Rig::new();
    rig.file(FILE, OLD);
    fs::set_permissions(rig.path(FILE), fs::Permissions::from_mode(0o640)).unwrap();
    let new = "delegation:\n  max_iterations: 7\n";
    edit(&rig, &writes(new), &[]).expect(0).says("checked, and put in place");
    assert_eq!(held(&rig), new);
    let mode = rig.path(FILE).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    assert!(!rig.path(&format!("{FILE}.edit")).exists());
    let json = edit(&rig, "true", &["--json"]).expect(0).json();
    assert_eq!(
        (&json["schema"], &json["changed"]),
        (&"delegate.config_edit/1".into(), &false.into())
    );
    rig.wait_for_nobody();
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_the_file_stays() {
    let rig = Rig::new();
    rig.file(FILE, OLD);
    let said = edit(&rig, &writes("delegation:\n  max_iteration: 7\n  max_batch_size: 0\n"), &[]);
    said.expect(2).says("unknown key `max_iteration`").says("did you mean `max_iterations`?");
    said.says("config.yaml.edit:2:3").says("config.yaml.edit:3:19").says("has 2 faults");
    said.says("stays as it was").says("delegate config edit --resume");
    assert_eq!(held(&rig), OLD);
    // What was written is not lost, and not written over.
    edit(&rig, &writes(OLD), &[]).expect(2).says("another edit goes on, or one was broken off");
    let repair =
        "sed -i 's/max_iteration:/max_iterations:/; s/max_batch_size: 0/max_batch_size: 2/' \"$2\"";
    edit(&rig, repair, &["--resume"]).expect(0);
    assert_eq!(held(&rig), "delegation:\n  max_iterations: 7\n  max_batch_size: 2\n");
    edit(&rig, "true", &["--resume"]).expect(2).says("no edit has left anything here");
    let json = edit(&rig, &writes("delegation:\n  nonsense: 1\n"), &["--json"]);
    let error = json.expect(2).json();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["line"]),
        (&"not_taken".into(), &2.into())
    );
}

#[test]
fn an_editor_that_fails_or_is_not_there_changes_nothing() {
    let rig = Rig::new();
    rig.file(FILE, OLD);
    let failed = edit(&rig, &format!("{}; exit 3", writes("delegation: {}\n")), &[]);
    failed.expect(2).says("failed; nothing was changed");
    assert_eq!(held(&rig), OLD);
    fs::remove_file(rig.path(&format!("{FILE}.edit"))).unwrap();
    let mut without = rig.command(["config", "edit"]);
    without.env_remove("VISUAL").env_remove("EDITOR");
    let said = Said::of(without.output().unwrap());
    said.expect(2).says("neither VISUAL nor EDITOR").says("EDITOR=vi delegate config edit");
    let mut missing = rig.command(["config", "edit"]);
    missing.env("VISUAL", "/nowhere/editor");
    Said::of(missing.output().unwrap()).expect(2).says("/nowhere/editor");
    assert_eq!(held(&rig), OLD);
}

/// Somebody else's change is not written over.
#[test]
fn a_file_that_changes_meanwhile_stays_as_it_is() {
    let rig = Rig::new();
    rig.file(FILE, OLD);
    let other = "delegation:\n  max_iterations: 1\n";
    let script = format!(
        "printf '{other}' > '{}'; {}",
        rig.path(FILE).display(),
        writes("delegation:\n  max_iterations: 2\n")
    );
    edit(&rig, &script, &[]).expect(2).says("changed meanwhile");
    assert_eq!(held(&rig), other);
}

#[test]
fn a_new_file_begins_with_every_key_as_a_comment_and_is_closed_to_others() {
    let rig = Rig::new();
    let script = "cp \"$2\" seen; printf 'delegation:\\n  max_iterations: 3\\n' >> \"$2\"";
    edit(&rig, script, &[]).expect(0);
    let seen = fs::read_to_string(rig.path("seen")).unwrap();
    assert!(seen.contains("#   max_iterations: 50") && seen.contains("# delegation:"), "{seen}");
    assert!(seen.lines().all(|line| line.is_empty() || line.trim_start().starts_with('#')));
    let mode = rig.path(FILE).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    rig.run(["config", "check"]).expect(0);
    assert!(rig.run(["config", "show"]).expect(0).out.contains("max_iterations: 3"));
    // One that is looked at and left alone is not made.
    let rig = Rig::new();
    edit(&rig, "true", &[]).expect(0).says("nothing was changed");
    assert!(!rig.path(FILE).exists() && !rig.path(&format!("{FILE}.edit")).exists());
}

#[test]
fn a_link_stays_and_a_file_of_the_tree_has_to_be_trusted_again() {
    let rig = Rig::new();
    rig.file("dotfiles/d.yaml", OLD);
    fs::create_dir_all(rig.path(".config/delegate")).unwrap();
    std::os::unix::fs::symlink(rig.path("dotfiles/d.yaml"), rig.path(FILE)).unwrap();
    edit(&rig, &writes("delegation:\n  max_iterations: 4\n"), &[]).expect(0);
    assert!(rig.path(FILE).symlink_metadata().unwrap().is_symlink());
    assert!(held(&rig).contains("max_iterations: 4"));
    rig.file("delegate.yaml", "delegation:\n  provider: p\n");
    rig.run(["trust", "delegate.yaml"]).expect(0);
    let said = edit(&rig, &writes("delegation:\n  provider: q\n"), &["delegate.yaml"]);
    said.expect(0).says("has to be trusted again: delegate trust");
}

/// On a terminal the editor has the keyboard, and the command goes on when it has ended.
#[test]
fn an_editor_has_the_terminal() {
    let rig = Rig::new();
    rig.file(FILE, OLD);
    let asks = "#!/bin/sh\nprintf 'new? '; read n; printf 'delegation:\\n  max_iterations: %s\\n' $n > \"$1\"\n";
    rig.file("asks", asks);
    fs::set_permissions(rig.path("asks"), fs::Permissions::from_mode(0o755)).unwrap();
    let editor = rig.path("asks").display().to_string();
    let mut terminal = Terminal::with(&rig, &["config", "edit"], &[("VISUAL", &editor)]);
    terminal.wait_for("new? ");
    for key in b"31\n" {
        terminal.press(*key);
    }
    let left = terminal.end();
    assert_eq!(left.code, Some(0), "{}", left.screen);
    assert!(held(&rig).contains("max_iterations: 31"), "{}", left.screen);
}
