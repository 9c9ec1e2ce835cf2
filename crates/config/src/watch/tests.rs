//! Files saved in every way that editors and programs use.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tempfile::TempDir;

use super::schedule::LOOK_EVERY;
use super::*;
use crate::files::ReadFile;

/// A configuration in a directory of its own, and the notifications about its changes.
struct Scenario {
    directory: TempDir,
    notifications: Receiver<Option<String>>,
    _watch: Watch,
}

/// Time within which a notification about a change would arrive.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// Maximum wait on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(20);

/// Path of the configuration in the directory of a test.
const CONFIG: &str = "etc/config.toml";

impl Scenario {
    /// Starts a watch with the files that `prepare` writes into the directory.
    fn begin(prepare: impl FnOnce(&Path)) -> Scenario {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(directory.path().join("etc")).expect("writable");
        prepare(directory.path());
        let (tell, notifications) = channel();
        let path = directory.path().join(CONFIG);
        let read = path.clone();
        let first = FirstLook::new(&path).expect("a directory");
        let watch = watch(first, NamedFiles::default(), None, move || {
            let _ = tell.send(fs::read_to_string(&read).ok());
        });
        Scenario { directory, notifications, _watch: watch.expect("the directory can be watched") }
    }

    fn with_file() -> Scenario {
        Scenario::begin(|root| fs::write(root.join(CONFIG), "one").expect("writable"))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).expect("writable");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).expect("writable");
    }

    /// Waits for the next notification, and checks that the content at its time is `text`; `None`
    /// means no file.
    fn assert_notified_of(&self, text: Option<&str>) {
        let found = self.notifications.recv_timeout(PATIENCE).expect("told");
        assert_eq!(found.as_deref(), text);
    }

    /// Checks that no notification arrives in this time.
    fn assert_silent_for(&self, time: Duration) {
        assert_eq!(self.notifications.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    }

    /// Saves `text`, and checks that the next notification is about it.
    fn save_and_assert_notified(&self, text: &str) {
        self.write(CONFIG, text);
        self.assert_notified_of(Some(text));
    }
}

#[test]
fn a_file_written_in_place_is_noticed() {
    let scenario = Scenario::with_file();
    scenario.write(CONFIG, "two");
    scenario.assert_notified_of(Some("two"));
    scenario.save_and_assert_notified("three");
}

#[test]
fn a_file_replaced_by_a_rename_is_noticed_every_time() {
    let scenario = Scenario::with_file();
    for text in ["two", "three"] {
        scenario.write("etc/.config.toml.swp", text);
        scenario.rename("etc/.config.toml.swp", CONFIG);
        scenario.assert_notified_of(Some(text));
    }
}

#[test]
fn an_editor_that_moves_the_old_file_away_first_reloads_once() {
    let scenario = Scenario::with_file();
    scenario.rename(CONFIG, "etc/config.toml~");
    scenario.assert_silent_for(LOOK_EVERY + LOOK_EVERY / 2);
    scenario.write(CONFIG, "two");
    scenario.assert_notified_of(Some("two"));
    scenario.save_and_assert_notified("three");
}

#[test]
fn a_program_that_truncates_before_it_writes_reloads_once() {
    let scenario = Scenario::with_file();
    scenario.write(CONFIG, "");
    scenario.assert_silent_for(LOOK_EVERY + LOOK_EVERY / 2);
    scenario.save_and_assert_notified("two");
}

#[test]
fn kubernetes_volume_swap_is_noticed_every_time() {
    let scenario = Scenario::begin(|root| {
        fs::create_dir(root.join("etc/v1")).expect("writable");
        fs::write(root.join("etc/v1/config.toml"), "one").expect("writable");
        symlink("v1", root.join("etc/..data")).expect("writable");
        symlink("..data/config.toml", root.join(CONFIG)).expect("writable");
    });
    for version in ["v2", "v3"] {
        fs::create_dir(scenario.at(&format!("etc/{version}"))).expect("writable");
        scenario.write(&format!("etc/{version}/config.toml"), version);
        symlink(version, scenario.at("etc/..tmp")).expect("writable");
        scenario.rename("etc/..tmp", "etc/..data");
        scenario.assert_notified_of(Some(version));
    }
    scenario.write("etc/v3/config.toml", "four");
    scenario.assert_notified_of(Some("four"));
}

#[test]
fn a_link_into_another_directory_is_followed() {
    let scenario = Scenario::begin(|root| {
        for release in ["1", "2"] {
            fs::create_dir_all(root.join("releases").join(release)).expect("writable");
            fs::write(root.join("releases").join(release).join("c.toml"), release).expect("writable");
        }
        symlink("releases/1", root.join("current")).expect("writable");
        symlink("../current/c.toml", root.join(CONFIG)).expect("writable");
    });
    scenario.write("releases/1/c.toml", "edited");
    scenario.assert_notified_of(Some("edited"));
    symlink("releases/2", scenario.at("next")).expect("writable");
    scenario.rename("next", "current");
    scenario.assert_notified_of(Some("2"));
    scenario.write("releases/2/c.toml", "edited too");
    scenario.assert_notified_of(Some("edited too"));
}

#[test]
fn writes_without_changed_content_are_not_reported() {
    let scenario = Scenario::with_file();
    scenario.write("etc/other.toml", "unrelated");
    scenario.write(CONFIG, "one");
    scenario.assert_silent_for(LONG_ENOUGH);
    let file = fs::File::options().append(true).open(scenario.at(CONFIG)).expect("there");
    file.set_modified(std::time::UNIX_EPOCH).expect("writable");
    scenario.assert_silent_for(LONG_ENOUGH);
    scenario.save_and_assert_notified("two");
}

#[test]
fn a_slow_save_is_told_once_it_is_over() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("config.toml");
    let mut watched = WatchedFile::unseen(&path);
    let mut file = fs::File::create(&path).expect("writable");
    for part in ["a", "slow", "save"] {
        file.write_all(part.as_bytes()).expect("writable");
        assert!(!watched.poll(), "it has just changed");
    }
    assert!(watched.poll());
    assert_eq!(watched.known, [(path, Some(b"aslowsave".to_vec()))]);
    assert!(!watched.poll() && !watched.poll(), "once");
}

#[test]
fn a_save_that_changes_no_metadata_is_told() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("config.toml");
    fs::write(&path, "one").expect("writable");
    let mut watched = WatchedFile::unseen(&path);
    assert!(!watched.poll() && watched.poll());
    fs::write(&path, "two").expect("writable");
    // Simulates a file system whose times have a resolution of one second: the metadata do not show
    // the change.
    watched.stamps = watched.stamps_now();
    assert!(watched.poll());
    assert_eq!(watched.known, [(path, Some(b"two".to_vec()))]);
}

#[test]
fn a_file_that_changes_at_each_look_is_read_all_the_same() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("config.toml");
    let mut watched = WatchedFile::unseen(&path);
    let notifications = (1..=20).filter(|n| {
        fs::write(&path, "x".repeat(*n)).expect("writable");
        watched.poll()
    });
    assert_eq!(notifications.collect::<Vec<_>>(), [5, 10, 15, 20]);
}

#[test]
fn access_list_changed_between_load_and_watch_is_noticed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [config, list] = ["config.toml", "list.txt"].map(|name| directory.path().join(name));
    fs::write(&config, "same").expect("writable");
    let (lists, (tell, notifications)) = (NamedFiles::default(), channel());
    let first = FirstLook::new(&config).expect("a directory");
    let _watch = watch(first, lists.clone(), None, move || _ = tell.send(())).expect("it can be watched");
    fs::write(&list, "newer").expect("writable");
    lists.set(vec![ReadFile {
        path: list.clone(),
        content: Some(b"older".to_vec()),
        is_access_list: false,
        is_secret: false,
    }]);
    notifications.recv_timeout(PATIENCE).expect("told of what came between");
    fs::write(&list, "newest").expect("writable");
    notifications.recv_timeout(PATIENCE).expect("told of a save");
    lists.set(vec![]);
    std::thread::sleep(LOOK_EVERY + LOOK_EVERY / 2);
    fs::write(&list, "nobody's").expect("writable");
    assert_eq!(notifications.recv_timeout(LONG_ENOUGH), Err(RecvTimeoutError::Timeout));
}

#[test]
fn a_file_that_is_brought_is_not_watched() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [config, list, brought] =
        ["brought/config.toml", "list.txt", "brought/list.txt"].map(|name| directory.path().join(name));
    let folder = config.parent().expect("a folder").to_owned();
    fs::create_dir(&folder).expect("writable");
    fs::write(&config, "one").expect("writable");
    let (lists, (tell, notifications)) = (NamedFiles::default(), channel());
    let first = FirstLook::new(&config).expect("a directory");
    let read = [&list, &brought].map(|path| ReadFile {
        path: path.clone(),
        content: Some(b"old".to_vec()),
        is_access_list: false,
        is_secret: false,
    });
    [&list, &brought].iter().for_each(|path| fs::write(path, "old").expect("writable"));
    lists.set(read.into());
    let _watch = watch(first, lists, Some(folder), move || _ = tell.send(())).expect("it can be watched");
    fs::write(&config, "two").expect("writable");
    fs::write(&brought, "new").expect("writable");
    assert_eq!(notifications.recv_timeout(LONG_ENOUGH), Err(RecvTimeoutError::Timeout));
    fs::write(&list, "new").expect("writable");
    notifications.recv_timeout(PATIENCE).expect("told of a file elsewhere");
}

#[test]
fn emptied_access_list_is_reported_with_its_former_size() {
    let file = |text: &str, is_access_list| {
        vec![ReadFile {
            path: "list.txt".into(),
            content: Some(text.into()),
            is_access_list,
            is_secret: false,
        }]
    };
    let read = |text: &str| file(text, true);
    let lists = NamedFiles::default();
    assert!(lists.set(read("# nobody yet\n")).is_empty() && lists.set(read("10.0.0.1\n::1\n")).is_empty());
    assert_eq!(lists.set(read("# nobody\n")), BTreeMap::from([("list.txt".into(), 2)]));
    assert!(lists.set(read("")).is_empty(), "once");
    lists.set(read("::1"));
    assert!(lists.set(vec![]).is_empty(), "nobody names it any more");
    lists.set(file("-----BEGIN PRIVATE KEY-----\n", false));
    assert!(lists.set(file("", false)).is_empty(), "a key has no networks");
}

#[test]
fn missing_file_and_its_return_are_reported_once() {
    let scenario = Scenario::with_file();
    fs::remove_file(scenario.at(CONFIG)).expect("there");
    scenario.assert_notified_of(None);
    scenario.write("etc/other.toml", "unrelated");
    scenario.assert_silent_for(LONG_ENOUGH);
    scenario.save_and_assert_notified("one");
}

#[test]
fn a_directory_that_is_replaced_is_found_again() {
    let scenario = Scenario::with_file();
    fs::remove_dir_all(scenario.at("etc")).expect("there");
    scenario.assert_notified_of(None);
    fs::create_dir(scenario.at("etc")).expect("writable");
    scenario.save_and_assert_notified("two");
    scenario.save_and_assert_notified("three");
}

#[test]
fn included_files_are_watched_when_added_changed_or_removed() {
    const MAIN: &str = "include = ['conf.d/*.toml']";
    let scenario = Scenario::begin(|root| {
        fs::create_dir(root.join("etc/conf.d")).expect("writable");
        fs::write(root.join("etc/conf.d/a.toml"), "one").expect("writable");
        fs::write(root.join(CONFIG), MAIN).expect("writable");
    });
    for (path, text) in [("a", "two"), ("b", "new"), ("b", "newer")] {
        scenario.write(&format!("etc/conf.d/{path}.toml"), text);
        scenario.assert_notified_of(Some(MAIN));
    }
    scenario.write("etc/conf.d/.a.toml.swp", "an editor's");
    scenario.assert_silent_for(LONG_ENOUGH);
    fs::remove_file(scenario.at("etc/conf.d/b.toml")).expect("there");
    scenario.assert_notified_of(Some(MAIN));
    fs::create_dir(scenario.at("etc/other")).expect("writable");
    scenario.save_and_assert_notified("include = 'other/*'");
    scenario.write("etc/other/c", "three");
    scenario.assert_notified_of(Some("include = 'other/*'"));
}

#[test]
fn an_included_file_that_is_truncated_before_it_is_written_reloads_once() {
    let scenario = Scenario::begin(|root| {
        fs::write(root.join("etc/a.toml"), "one").expect("writable");
        fs::write(root.join(CONFIG), "include = 'a.toml'").expect("writable");
    });
    scenario.write("etc/a.toml", "");
    scenario.assert_silent_for(LOOK_EVERY + LOOK_EVERY / 2);
    scenario.write("etc/a.toml", "two");
    scenario.assert_notified_of(Some("include = 'a.toml'"));
    scenario.assert_silent_for(LONG_ENOUGH);
}

#[test]
fn dropped_watch_ends_its_thread() {
    let Scenario { directory, notifications, _watch: watch } = Scenario::with_file();
    drop(watch);
    fs::write(directory.path().join(CONFIG), "two").expect("writable");
    assert!(notifications.recv().is_err(), "the thread is gone, and what it would tell with");
}

#[test]
fn file_written_in_pieces_is_told_when_it_is_closed() {
    let scenario = Scenario::with_file();
    scenario.save_and_assert_notified("watched");
    let mut file = fs::File::create(scenario.at(CONFIG)).expect("writable");
    for part in ["a", " slow", " save"] {
        file.write_all(part.as_bytes()).expect("writable");
        scenario.assert_silent_for(3 * LOOK_EVERY);
    }
    drop(file);
    scenario.assert_notified_of(Some("a slow save"));
    scenario.save_and_assert_notified("three");
}

#[test]
fn file_that_its_writer_keeps_open_is_told_once_it_is_quiet() {
    let scenario = Scenario::with_file();
    scenario.save_and_assert_notified("watched");
    let mut file = fs::File::create(scenario.at(CONFIG)).expect("writable");
    file.write_all(b"two").expect("writable");
    scenario.assert_silent_for(LONG_ENOUGH);
    scenario.assert_notified_of(Some("two"));
    drop(file);
    scenario.save_and_assert_notified("three");
}

#[test]
fn hard_link_in_place_of_the_file_is_told() {
    let scenario = Scenario::with_file();
    scenario.write("etc/other", "two");
    fs::remove_file(scenario.at(CONFIG)).expect("there");
    fs::hard_link(scenario.at("etc/other"), scenario.at(CONFIG)).expect("writable");
    scenario.assert_notified_of(Some("two"));
}

#[test]
fn included_links_into_another_directory_are_followed() {
    const MAIN: &str = "include = 'enabled/*'";
    let scenario = Scenario::begin(|root| {
        for folder in ["etc/enabled", "available/v1"] {
            fs::create_dir_all(root.join(folder)).expect("writable");
        }
        fs::write(root.join("available/v1/a"), "one").expect("writable");
        symlink("../../available/v1/a", root.join("etc/enabled/a")).expect("writable");
        fs::write(root.join(CONFIG), MAIN).expect("writable");
    });
    scenario.write("available/v1/a", "two");
    scenario.assert_notified_of(Some(MAIN));
    scenario.rename("available/v1", "available/old");
    fs::create_dir(scenario.at("available/v1")).expect("writable");
    scenario.write("available/v1/a", "three");
    scenario.assert_notified_of(Some(MAIN));
    scenario.write("available/v1/a", "four");
    scenario.assert_notified_of(Some(MAIN));
}

#[test]
fn new_file_in_a_named_folder_is_told() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [config, folder] = ["config.toml", "certificates"].map(|name| directory.path().join(name));
    fs::write(&config, "same").expect("writable");
    fs::create_dir(&folder).expect("writable");
    let (lists, (tell, notifications)) = (NamedFiles::default(), channel());
    let content = Some(Vec::new());
    lists.set(vec![ReadFile { path: folder.clone(), content, is_access_list: false, is_secret: true }]);
    let first = FirstLook::new(&config).expect("a directory");
    let _watch = watch(first, lists, None, move || _ = tell.send(())).expect("it can be watched");
    for name in ["a.pem", "b.pem"] {
        fs::write(folder.join(name), name).expect("writable");
        notifications.recv_timeout(PATIENCE).expect("told of a new name");
    }
    fs::remove_file(folder.join("a.pem")).expect("there");
    notifications.recv_timeout(PATIENCE).expect("told of a name that is gone");
}

#[test]
fn half_read_file_is_told_though_its_content_is_known() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [config, included, list] =
        ["config.toml", "included.toml", "list.txt"].map(|name| directory.path().join(name));
    for path in [&included, &list] {
        fs::write(path, "whole").expect("writable");
    }
    fs::write(&config, "include = 'included.toml'").expect("writable");
    let (lists, (tell, notifications)) = (NamedFiles::default(), channel());
    let is_loaded_as = |text: &str| {
        let (path, content) = (list.clone(), Some(text.into()));
        lists.set(vec![ReadFile { path, content, is_access_list: true, is_secret: false }]);
    };
    is_loaded_as("whole");
    let first = FirstLook::new(&config).expect("a directory");
    let _watch = watch(first, lists.clone(), None, move || _ = tell.send(())).expect("it can be watched");
    fs::write(&list, "more").expect("writable");
    notifications.recv_timeout(PATIENCE).expect("told of a save");
    is_loaded_as("mo");
    notifications.recv_timeout(PATIENCE).expect("told of the other half");
    is_loaded_as("more");
    for path in [&config, &included] {
        lists.set_texts(vec![(path.clone(), b"in".to_vec())]);
        notifications.recv_timeout(PATIENCE).expect("told of the other half");
        lists.set_texts(vec![(path.clone(), fs::read(path).expect("there"))]);
    }
    assert_eq!(
        notifications.recv_timeout(LONG_ENOUGH),
        Err(RecvTimeoutError::Timeout),
        "all is as it was loaded"
    );
}

#[test]
fn idle_file_that_was_loaded_otherwise_is_read_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("list.txt");
    fs::write(&path, "whole").expect("writable");
    let mut watched = WatchedFile::named(&path, Some(b"whole".to_vec()));
    for _ in 0..20 {
        assert!(!watched.poll());
    }
    let loaded = |text: &str| BTreeMap::from([(path.clone(), text.into())]);
    assert!(!watched.set_loaded(&loaded("whole")) && !watched.poll());
    for text in ["wh", ""] {
        assert!(watched.set_loaded(&loaded(text)));
        assert!(watched.poll(), "it differs from {text:?}");
        assert!(!watched.poll(), "once");
    }
}

#[test]
fn file_that_one_load_has_read_twice_differs_from_both() {
    let lists = NamedFiles::default();
    let file = |text: &str| ReadFile {
        path: "a.pem".into(),
        content: Some(text.into()),
        is_access_list: false,
        is_secret: true,
    };
    for (texts, content) in [(["half", "whole"], ""), (["whole", "whole"], "whole")] {
        lists.set(texts.map(file).into());
        let loaded = lists.take_loaded();
        assert_eq!(loaded.contents, BTreeMap::from([("a.pem".into(), content.into())]));
        assert_eq!(loaded.named.len(), 1);
        assert!(lists.take_loaded().contents.is_empty(), "once");
    }
}
