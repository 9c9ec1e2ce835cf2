//! A log without a reader.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use convey_testkit::{
    Loopback, PATIENCE, Process, Setup, TcpServer, binary, fetch, tests, wait_for, whole_lines,
};
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::Signal;

tests!("log":
    unread_log_stalls_no_client_and_counts_dropped_lines,
    unread_log_does_not_delay_the_stop,
    the_log_is_whole_at_the_end,
    a_start_that_fails_ends_although_nobody_reads_why,
    lines_lost_to_a_full_disk_are_reported_on_stderr_and_logged,
);

fn unread_log_stalls_no_client_and_counts_dropped_lines() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let (balancer, log) = start(&lab);
    let dropped = fill(&lab, &balancer);
    for _ in 0..20 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
        assert_eq!(fetch(lab.stats(), "/healthz").unwrap().0, 200);
    }

    let lines = read(log);
    let message = lines.iter().find_map(|line| {
        let (before, _) = line
            .split_once(" lines of the log were dropped here, because the reader of the log was too slow")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    let message = message.expect("a line tells how many were dropped");
    assert!(message >= dropped, "told of {message}, {dropped} were dropped");
    fs::write(lab.directory().join("config.toml"), setup(&lab).to_string()).unwrap();
    balancer.signal(Signal::HUP);
    assert!(lines.iter().any(|line| line.contains("no effective changes")), "the log goes on");
}

fn unread_log_does_not_delay_the_stop() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let (mut balancer, _log) = start(&lab);
    fill(&lab, &balancer);
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait().code(), Some(0));
}

fn the_log_is_whole_at_the_end() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let (mut balancer, log) = start(&lab);
    let lines = read(log);
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait().code(), Some(0));
    let last = lines.iter().last().unwrap();
    assert!(last.contains("stopped: every connection had ended"), "{last}");
}

fn a_start_that_fails_ends_although_nobody_reads_why() {
    let lab = Loopback::new();
    let _taken = TcpListener::bind(lab.stats()).unwrap();
    let invalid = "frontends = 1\n".to_owned();
    for (config, signal) in
        [(setup(&lab).to_string(), None), (setup(&lab).to_string(), Some(Signal::TERM)), (invalid, None)]
    {
        fs::write(lab.directory().join("config.toml"), config).unwrap();
        let (_reader, mut writer) = pipe().unwrap();
        writer.write_all(&vec![0; fcntl_getpipe_size(&writer).unwrap()]).unwrap();
        let mut balancer = Process::spawn(binary().current_dir(lab.directory()).stderr(writer));
        if let Some(signal) = signal {
            wait_for("the signal to be its own affair", || catches(&balancer, signal).then_some(()));
            balancer.signal(signal);
        }
        assert_eq!(balancer.wait().code(), Some(1));
    }
}

fn lines_lost_to_a_full_disk_are_reported_on_stderr_and_logged() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let save = |output: &Path| {
        let log = format!("[log]\noutput = {output:?}");
        fs::write(lab.directory().join("config.toml"), setup(&lab).and(&log).to_string()).unwrap();
    };
    save(Path::new("/dev/full"));
    let (reader, writer) = pipe().unwrap();
    let mut balancer = Process::spawn(binary().current_dir(lab.directory()).stderr(writer));
    let stderr = read(reader);
    let message = |line: &String| line.contains("cannot write the log to /dev/full: No space left on device");
    while !message(&stderr.recv_timeout(PATIENCE).expect("a line that tells of the full disk")) {}
    wait_for("the balancer to serve", || fetch(lab.vip(), "/").ok());
    let lost = wait_for("lines to be counted", || dropped(&lab).filter(|dropped| *dropped > 0));

    let path = lab.directory().join("convey.log");
    save(&path);
    let line = wait_for("a line of those that are lost", || {
        whole_lines(&path).lines().find(|line| line.contains("lines of the log are lost")).map(str::to_owned)
    });
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = words.iter().position(|word| *word == "lines").map(|at| words[at - 1].parse::<u64>());
    assert!(number.unwrap().unwrap() >= lost, "{line}");
    assert!(words.contains(&"ERROR") && line.ends_with("No space left on device (os error 28)"), "{line}");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait().code(), Some(0));
    assert!(!stderr.iter().any(|line| message(&line)), "once");
}

/// Whether the process handles the signal itself.
fn catches(process: &Process, signal: Signal) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{}/status", process.id())) else { return false };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
    caught
        .and_then(|caught| u64::from_str_radix(caught, 16).ok())
        .is_some_and(|caught| caught >> (signal.as_raw() - 1) & 1 == 1)
}

/// A balancer that serves, and the reading end of its log pipe.
fn start(lab: &Loopback) -> (Process, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    fs::write(lab.directory().join("config.toml"), setup(lab).to_string()).unwrap();
    let balancer = Process::spawn(binary().current_dir(lab.directory()).stderr(writer));
    wait_for("the balancer to serve", || fetch(lab.vip(), "/").ok());
    (balancer, reader)
}

fn setup(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "")
}

/// Causes more log lines than all buffers hold. Returns the number of dropped lines once there are
/// some.
fn fill(lab: &Loopback, balancer: &Process) -> u64 {
    let wrong = format!("{} = 1\n", "a".repeat(100_000));
    fs::write(lab.directory().join("config.toml"), wrong).unwrap();
    wait_for("lines to be dropped", || {
        balancer.signal(Signal::HUP);
        dropped(lab).filter(|dropped| *dropped > 0)
    })
}

/// Number of dropped log lines so far.
fn dropped(lab: &Loopback) -> Option<u64> {
    let metrics = fetch(lab.stats(), "/metrics").ok()?.1;
    metrics.lines().find_map(|line| line.strip_prefix("convey_log_lines_dropped_total "))?.parse().ok()
}

/// Lines as they arrive.
fn read(log: PipeReader) -> Receiver<String> {
    let (line, lines) = channel();
    thread::spawn(move || {
        BufReader::new(log).lines().map_while(Result::ok).try_for_each(|read| line.send(read))
    });
    lines
}
