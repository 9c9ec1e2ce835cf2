//! Outputs of the access log: files, pipes and full disks, across reloads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, Wrk, binary, fetch, run, wait_for, whole_lines,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use super::{log, path};

pub(super) fn access_log_follows_reloads_and_is_reopened_on_sigusr1() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &without);
    fetch(lab.vip(), "/").unwrap();
    balancer.save(&without.clone().and("[access_log]\noutput = '/nowhere/access.log'"));
    let why = "cannot log to /nowhere/access.log (access_log.output): No such file or directory";
    balancer.wait_for_log(why);
    let check = run(binary().args(["check", "--config"]).arg(balancer.config()));
    assert!(check.stderr.contains(why) && check.code != Some(0), "{}", check.stderr);
    balancer.save(&without.clone().and(&log(&lab, "format = 'one {server}'")));
    balancer.wait_for_log("access_log.output none -> ");
    fetch(lab.vip(), "/").unwrap();
    wait_for("a line", || (whole_lines(&path(&lab)) == "one pool/a\n").then_some(()));
    balancer.save(&without.clone().and(&log(&lab, "format = 'two {termination}'")));
    balancer.wait_for_log("access_log.format one {server} -> two {termination}");
    let old = lab.directory().join("access.log.1");
    fs::rename(path(&lab), &old).unwrap();
    balancer.signal(Signal::USR1);
    balancer.wait_for_log("access log file reopened");
    fetch(lab.vip(), "/").unwrap();
    wait_for("a line in the new file", || (whole_lines(&path(&lab)) == "two closed\n").then_some(()));
    assert_eq!(whole_lines(&old), "one pool/a\n");
    balancer.save(&without);
    balancer.wait_for_log(" -> none");
    fetch(lab.vip(), "/").unwrap();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopped");
    assert_eq!(whole_lines(&path(&lab)), "two closed\n");
}

pub(super) fn a_sample_is_one_line_in_so_many() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut balancer = BalancerProcess::start(&lab, &setup.and(&log(&lab, "sample = 4")));
    (0..400).for_each(|_| drop(fetch(lab.vip(), "/").unwrap()));
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
    let lines = fs::read_to_string(path(&lab)).unwrap().lines().count();
    // About a hundred; off by seven standard deviations at most.
    assert!((40..160).contains(&lines), "{lines}");
}

pub(super) fn full_disk_loses_access_log_lines_but_no_clients() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let full = without.clone().and("[access_log]\noutput = '/dev/full'\n");
    let balancer = BalancerProcess::start(&lab, &full);
    (0..9).for_each(|_| assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned())));
    balancer.wait_for_stat("/access_log_lines_dropped", 9);
    balancer.wait_for_log("cannot write the access log: No space left on device");
    balancer.save(&without.and(&log(&lab, "format = '{server}'")));
    balancer.wait_for_log("access_log.output /dev/full -> ");
    // The writer thread may apply the change a little later.
    let lines = || fs::read_to_string(path(&lab)).unwrap_or_default().matches("pool/a\n").count();
    wait_for("a line", || {
        fetch(lab.vip(), "/").unwrap();
        (lines() > 0).then_some(())
    });
    let (lost, before) = (balancer.stat("/access_log_lines_dropped"), lines());
    (0..9).for_each(|_| drop(fetch(lab.vip(), "/").unwrap()));
    wait_for("nine more", || (lines() >= before + 9).then_some(()));
    assert_eq!(balancer.stat("/access_log_lines_dropped"), lost);
}

pub(super) fn a_log_that_nobody_reads_costs_lines_and_no_client() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let fifo = lab.directory().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Opened for both, so that opening does not wait for a writer.
    let reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).unwrap();
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let to_fifo = format!("[access_log]\noutput = {fifo:?}\nformat = 'json'\n");
    let balancer = BalancerProcess::start(&lab, &without.clone().and(&to_fifo));
    let load = Wrk::start(&lab, lab.vip(), 8);
    let lost = || balancer.stat("/access_log_lines_dropped").as_u64().unwrap();
    // A queue of 16,384 lines fills first, quarter by quarter.
    for quarter in 1..=4 {
        wait_for("connections, or lines to be lost", || {
            let total = balancer.stat("/total_connections").as_u64()?;
            (lost() > 0 || total > quarter * 4_096).then_some(())
        });
    }
    let before = wait_for("lines to be lost", || Some(lost()).filter(|lost| *lost > 0));
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    let reading = thread::spawn(move || {
        let mut lines = BufReader::new(&reader).lines().map_while(Result::ok);
        (lines.by_ref().take(1_000).all(|line| serde_json::from_str::<Value>(&line).is_ok()), reader)
    });
    let (is_whole, reader) = reading.join().unwrap();
    assert!(is_whole, "each line is whole");
    wait_for("lines to be lost again", || Some(lost()).filter(|lost| *lost > before));

    // A stalled reader does not block the log.
    balancer.save(&without.and(&log(&lab, "format = '{server}'")));
    wait_for("a line", || fs::read_to_string(path(&lab)).ok()?.starts_with("pool/a\n").then_some(()));
    let summary = load.stop();
    assert_eq!(summary.failed, 0, "{}", summary.text);
    let (_, metrics) = balancer.page("/metrics");
    assert!(metrics.contains("\nconvey_access_log_lines_dropped_total "), "{metrics}");
    drop(reader);
}
