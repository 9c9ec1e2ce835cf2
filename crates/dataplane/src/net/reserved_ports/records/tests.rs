use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;

fn ports(text: &str) -> PortRanges {
    text.parse().unwrap()
}

#[test]
fn a_record_is_live_while_it_is_held_and_told_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("convey");
    let records = PortRecords::open(&place).unwrap();
    assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o700);
    let record = records.create(&ports("40-50"), &ports("41-50")).unwrap();
    drop(records);
    let records = PortRecords::open(&place).unwrap();
    assert_eq!((records.wanted(), records.orphans(&ports("41-50"))), (vec![ports("40-50")], ports("")));
    drop(records);
    // Simulates that the process of the record is killed.
    drop(record);
    // If another test starts a child process at this moment, the child also holds the lock until it
    // executes its program, so the records are opened repeatedly.
    let looks = std::iter::repeat_with(|| PortRecords::open(&place).unwrap());
    let mut records = looks.take(1_000).find(|records| records.wanted().is_empty()).expect("it is stale");
    assert_eq!(records.orphans(&ports("40-60")), ports("41-50"));
    assert_eq!(records.orphans(&ports("45-60")), ports(""), "another's, or not added yet");
    records.pass_on_ports(&[]).unwrap();
    drop(records);
    let records = PortRecords::open(&place).unwrap();
    assert_eq!((records.wanted(), records.orphans(&ports("41-50"))), (vec![], ports("")));
}

/// Environment variable with the directory of the records, for the child process that is killed.
const KILLED: &str = "CONVEY_TEST_RECORDS";

#[test]
fn process_killed_while_it_hands_ports_on_loses_none() {
    if let Some(place) = std::env::var_os(KILLED) {
        let mut records = PortRecords::open(Path::new(&place)).unwrap();
        // From now on, the kernel kills this process when it writes to a file.
        setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        let _ = records.pass_on_ports(&[ports("50-60")]);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("convey");
    let record = PortRecords::open(&place).unwrap().create(&ports("40-70"), &ports("40-50")).unwrap();
    let added = || {
        let records = PortRecords::open(&place).unwrap();
        records.live.iter().map(|record| record.added.to_string()).collect::<Vec<_>>()
    };
    let name = "process_killed_while_it_hands_ports_on_loses_none";
    let mut killed = Command::new(std::env::current_exe().unwrap());
    killed.args([&format!("net::reserved_ports::records::tests::{name}"), "--exact"]);
    killed.env(KILLED, &place).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(killed.status().unwrap().signal(), Some(libc::SIGXFSZ));
    assert_eq!(added(), ["40-50"]);

    PortRecords::open(&place).unwrap().pass_on_ports(&[ports("50-60")]).unwrap();
    assert_eq!(added(), ["40-60"]);
    let mut records = PortRecords::open(&place).unwrap();
    records.abandon(&record).unwrap();
    assert_eq!(records.orphans(&ports("1-99")), ports("40-60"));
    records.pass_on_ports(&[]).unwrap();
    drop(records);
    let left = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["reserved-ports.lock"]);
}

#[test]
fn records_of_other_network_namespaces_are_bounded_and_the_newest_stay() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("convey");
    let boot = PortRecords::open(&place).unwrap().boot.clone();
    let text = |added| format!("boot {boot}\nwanted 40-50\nadded {added}\n");
    let held = options().create_new(true).open(place.join(format!("{RECORD}9999.1.held"))).unwrap();
    assert!(try_lock(&held).unwrap());
    let at = |second| UNIX_EPOCH + Duration::from_secs(second);
    held.set_modified(at(0)).unwrap();
    for number in 0..MAX_STALE as u64 + 10 {
        let name = format!("{RECORD}9999{number}.1.00000000");
        fs::write(place.join(&name), text("40-50")).unwrap();
        fs::set_permissions(place.join(&name), Permissions::from_mode(0o600)).unwrap();
        options().open(place.join(name)).unwrap().set_modified(at(number)).unwrap();
    }
    drop(PortRecords::open(&place).unwrap());
    let name = |number| place.join(format!("{RECORD}9999{number}.1.00000000"));
    assert!(place.join(format!("{RECORD}9999.1.held")).exists(), "its process runs");
    assert!((0..10).all(|number| !name(number).exists()));
    assert!((10..MAX_STALE as u64 + 10).all(|number| name(number).exists()));
}

#[test]
fn records_of_other_network_namespaces_without_ports_to_give_back_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("convey");
    let boot = PortRecords::open(&place).unwrap().boot.clone();
    let record = |name: &str, boot: &str, added: &str| {
        let path = place.join(format!("{RECORD}9999.1.{name}"));
        let mut file = options().create_new(true).open(&path).unwrap();
        file.write_all(format!("boot {boot}\nwanted 40-50\nadded {added}\n").as_bytes()).unwrap();
        (path, file)
    };
    let (other_boot, _) = record("other", "an-earlier-one", "40-50");
    let (nothing, _) = record("nothing", &boot, "");
    let (ports, _) = record("ports", &boot, "40-50");
    let (held, file) = record("held", &boot, "");
    assert!(try_lock(&file).unwrap());
    fs::write(beside(&other_boot, HANDED), "").unwrap();
    drop(PortRecords::open(&place).unwrap());
    let gone = [&other_boot, &nothing, &beside(&other_boot, HANDED)];
    assert!(gone.iter().all(|path| !path.exists()));
    assert!(ports.exists() && held.exists(), "the namespace or the process may be there");
}

#[test]
fn a_network_namespace_has_the_same_number_each_time() {
    assert_eq!(namespace().unwrap(), namespace().unwrap());
}

#[test]
fn record_of_another_boot_is_ignored() {
    let recorded = RecordedPorts { wanted: ports("40-50"), added: ports("41-50") };
    assert_eq!(parse("boot a\nwanted 40-50\nadded 41-50\n", "a"), Some(recorded));
    for text in
        ["boot b\nwanted 40-50\nadded 41-50\n", "", "boot a\nwanted 40-50", "boot a\nwanted x\nadded \n"]
    {
        assert_eq!(parse(text, "a"), None, "{text:?}");
    }
}

#[test]
fn records_in_an_unsafe_directory_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    symlink(directory.path(), place("link")).unwrap();
    fs::create_dir(place("open")).unwrap();
    fs::set_permissions(place("open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(place("file"), "").unwrap();
    for name in ["link", "open", "file", "missing/convey"] {
        assert!(PortRecords::open(&place(name)).is_err(), "{name}");
    }
    // A symbolic link takes the place of the lock file.
    fs::create_dir(place("ours")).unwrap();
    fs::set_permissions(place("ours"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(place("file"), place("ours/reserved-ports.lock")).unwrap();
    assert!(PortRecords::open(&place("ours")).is_err());
}
