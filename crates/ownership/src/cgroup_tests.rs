//! Names of places, and who may remove one.

use super::*;

/// A look for what dead owners left takes it for empty, which it is.
#[test]
fn a_place_that_is_removed_as_it_is_made_is_made_again() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("place");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let lock = lock_alone(&path);
                    if lock.is_some() {
                        drop(fs::remove_dir(&path));
                    }
                }
            });
        }
        for round in 0..200 {
            let made = Place::make(path.clone());
            let kept = made.and_then(|place| make_dir(&place.path.join("cell")).map(|()| place));
            let kept = kept.unwrap_or_else(|error| {
                over.store(true, Ordering::Relaxed);
                panic!("round {round}: {error}")
            });
            fs::remove_dir(kept.path.join("cell")).expect("its own");
            drop(kept);
            while path.exists() {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Whoever holds what was removed holds nothing, whatever has its name now.
#[test]
fn a_place_that_was_removed_is_not_there() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("place");
    let place = Place::make(path.clone()).expect("made");
    assert!(place.is_there());
    fs::remove_dir(&path).expect("a lock does not keep it");
    assert!(!place.is_there());
    let again = Place::make(path).expect("made again");
    assert!(again.is_there() && !place.is_there());
}

#[test]
fn names_say_whose_it_is() {
    let owner = Owner { pid: 12, start: 345, namespace: 4_026_531_836 };
    assert_eq!(Owner::parse("12.345.0-4026531836"), Some(owner));
    for other in ["", "12.345.0", "12.345-1", "0.1.0-1", "-1.1.0-1", "12.345.0.1-1", "look-12"] {
        assert_eq!(Owner::parse(other), None, "{other}");
    }
    let path = Place::path(Path::new("/m"), "12.345.0");
    let name = path.file_name().and_then(|name| name.to_str()).expect("name");
    let own = Owner::parse(name.strip_prefix(PREFIX).expect("ours")).expect("parsed");
    assert_eq!((own.pid, own.start, own.namespace), (12, 345, namespace()));
}

#[test]
fn the_innermost_place_counts_and_those_around_it_are_told() {
    let (place, around) = place_in("/a/ownership-7.8.0-9/3/ownership-17.18.0-9/4/x").expect("one");
    assert_eq!((place.pid, place.start, place.namespace), (17, 18, 9));
    assert_eq!(place.path, "/a/ownership-7.8.0-9/3/ownership-17.18.0-9");
    assert_eq!(around, ["/a/ownership-7.8.0-9"]);
    for none in ["", "/", "/ownership-look-12", "/ownership-7.8-9/1", "/x/yownership-7.8.0-9"] {
        assert_eq!(place_in(none), None, "{none}");
    }
}

#[test]
fn only_who_is_known_to_be_dead_is() {
    let own = Pid::try_from(std::process::id()).expect("a number");
    let start = Stat::read(own).expect("stat").start;
    let owner = |start, namespace| Owner { pid: own, start, namespace };
    assert!(owner(start, namespace()).lives());
    assert!(!owner(start + 1, namespace()).lives());
    assert!(!owner(start, namespace() + 1).lives(), "its dirs are only removed when empty");
}
