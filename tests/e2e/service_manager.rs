//! Notifications for systemd, or another service manager at `NOTIFY_SOCKET`.

use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, PATIENCE, Setup, TcpServer, binary, connect, fetch, ping, tests,
    wait_for, was_reset,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};

tests!("service_manager":
    service_manager_is_notified_of_start_reloads_and_stop,
    watchdog_notifications_are_sent_while_convey_runs,
    main_pid_is_notified_after_an_upgrade,
    stored_sockets_survive_a_restart_without_refused_clients [Need::Tool("taskset", "util-linux")],
    stored_socket_of_a_removed_address_is_closed [Need::Tool("taskset", "util-linux")],
    notify_socket_may_have_an_abstract_address,
    service_manager_that_does_not_read_blocks_nothing,
    stop_notification_waits_for_room_in_the_queue,
);

fn service_manager_is_notified_of_start_reloads_and_stop() {
    let lab = Loopback::new();
    let server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).health("interval = 0.1").server("a", lab.server(1), "");
    let mut balancer = manager.start(&lab, &setup, None);
    manager.message_beginning("READY=1\n");
    // The notification is accurate: clients are served.
    let mut client = connect(lab.vip());
    ping(&mut client).unwrap();

    balancer.signal(Signal::HUP);
    let reloading = manager.message_beginning("RELOADING=1\nMONOTONIC_USEC=");
    let since = reloading.trim_end().rsplit('=').next().unwrap().parse::<u64>().unwrap();
    assert!(since > 0, "{reloading}");
    manager.message_beginning("READY=1\n");
    balancer.save(&"nonsense");
    manager.message_beginning("RELOADING=1\nMONOTONIC_USEC=");
    manager.message_beginning("READY=1\n");

    drop(server);
    manager.message_beginning("STATUS=1 frontend, 0 of 1 server up; backend pool has no usable server");
    balancer.signal(Signal::TERM);
    let stopping = manager.message_beginning("STOPPING=1\nSTATUS=stopping: ");
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC="), "{stopping}");
    drop(client);
    assert_eq!(balancer.wait(), 0);
}

fn watchdog_notifications_are_sent_while_convey_runs() {
    let lab = Loopback::new();
    let manager = Manager::new(&lab);
    let balancer = manager.start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), Some("200000"));
    for _ in 0..5 {
        manager.message_beginning("WATCHDOG=1\n");
    }
    balancer.signal(Signal::STOP);
    wait_for("silence of a process that is stopped", || {
        // Longer than the limit after which systemd considers it hung.
        manager.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        manager.next_message().is_none().then_some(())
    });
    balancer.signal(Signal::CONT);
    manager.message_beginning("WATCHDOG=1\n");
}

fn main_pid_is_notified_after_an_upgrade() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).health("interval = 3600").server("a", lab.server(1), "");
    let mut balancer = manager.start(&lab, &setup, None);
    manager.message_beginning("READY=1\n");
    let held = connect(lab.vip());
    balancer.wait_for_stat("/frontends/web/current_connections", 1);
    balancer.signal(Signal::USR2);
    // A process sends no notification until the manager accepts it as the service.
    let main = manager.next_message().unwrap();
    let process = main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}"));
    let process = Pid::from_raw(process.trim_end().parse().unwrap()).unwrap();
    assert_eq!(manager.next_message().unwrap(), "READY=1\nSTATUS=1 frontend, 1 of 1 server up\n");
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections have 30s to finish");
    drop(held);
    assert_eq!(balancer.wait(), 0);
    kill_process(process, Signal::TERM).unwrap();
    // The first process has sent no other notification.
    assert!(manager.next_message().unwrap().starts_with("STOPPING=1\n"));
}

fn stored_sockets_survive_a_restart_without_refused_clients() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut first = BalancerProcess::start_with(&lab, &setup, manager.unit(&lab, "", None));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = thread::scope(|scope| {
        let load = scope.spawn(|| ping_until(&stop, lab.vip(), &asked));
        wait_for("clients", || (asked.load(Ordering::Relaxed) > 10).then_some(()));
        let mark = lab.directory().join("restart");
        fs::write(&mark, "").unwrap();
        first.signal(Signal::TERM);
        let mut kept = manager.stored_descriptors("FDSTORE=1\nFDNAME=convey\n").into_iter();
        first.wait_for_log("the service manager keeps 2 listening sockets, so new clients wait");
        ping(&mut held).unwrap();
        drop(held);
        assert_eq!(first.wait(), 0);
        assert!(!mark.exists());

        // The socket of statistics may be bound anew.
        let before = asked.load(Ordering::Relaxed);
        let elsewhere = Loopback::new();
        let log = elsewhere.directory().join("log");
        let command = manager.unit(&lab, "LISTEN_FDS=1", kept.next());
        assert_eq!(kept.count(), 1);
        let second = convey_testkit::start(command, &log);
        wait_for("clients after it", || (asked.load(Ordering::Relaxed) > before + 10).then_some(()));
        assert_eq!(fetch(lab.stats(), "/healthz").unwrap(), (200, "ok\n".to_owned()));
        manager.message_beginning("FDSTOREREMOVE=1\nFDNAME=convey\n");
        stop.store(true, Ordering::Relaxed);
        let failed = load.join().unwrap();
        // Without the mark it stops for good: new clients are refused at once.
        second.signal(Signal::TERM);
        wait_for("its listener to be closed", || TcpStream::connect(lab.vip()).err());
        failed
    });
    assert!(failed.is_empty(), "{} of {asked:?} failed: {failed:?}", failed.len());
}

fn stored_socket_of_a_removed_address_is_closed() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).server("a", lab.server(1), "").listen(&[lab.second_vip()]);
    let kept = TcpListener::bind(lab.vip()).unwrap();
    let mut waiting = connect(lab.vip());
    let command = manager.unit(&lab, "LISTEN_FDS=1", Some(kept.into()));
    let _balancer = BalancerProcess::start_with(&lab, &setup, command);
    manager.message_beginning("FDSTOREREMOVE=1\nFDNAME=convey\n");
    assert!(was_reset(&mut waiting));
    assert!(TcpStream::connect(lab.vip()).is_err());
    ping(&mut connect(lab.second_vip())).unwrap();
}

fn notify_socket_may_have_an_abstract_address() {
    let lab = Loopback::new();
    let name = format!("convey-test-{}", lab.vip());
    let addr = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager(UnixDatagram::bind_addr(&addr).unwrap());
    let mut command = binary();
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let _balancer =
        BalancerProcess::start_with(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), command);
    manager.message_beginning("READY=1\n");
}

fn service_manager_that_does_not_read_blocks_nothing() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = manager.start(&lab, &setup, Some("20000"));
    manager.fill_queue();
    balancer.save(&setup.timeouts("idle = 77"));
    balancer.wait_for_log("reload: ");
    ping(&mut connect(lab.vip())).unwrap();
}

fn stop_notification_waits_for_room_in_the_queue() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let mut balancer = manager.start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), None);
    manager.fill_queue();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: ");
    // The manager reads only now.
    manager.message_beginning("STOPPING=1\nSTATUS=stopping: ");
    assert_eq!(balancer.wait(), 0);
}

/// Connects and pings again and again. Returns the failures.
fn ping_until(stop: &AtomicBool, addr: std::net::SocketAddr, asked: &AtomicU64) -> Vec<String> {
    let mut failed = Vec::new();
    // If the test fails, this loop ends by itself.
    while !stop.load(Ordering::Relaxed) && failed.is_empty() && asked.load(Ordering::Relaxed) < 200_000 {
        let ping_once = || {
            let mut client = TcpStream::connect(addr)?;
            client.set_read_timeout(Some(PATIENCE))?;
            ping(&mut client)
        };
        failed.extend(ping_once().err().map(|error| error.to_string()));
        asked.fetch_add(1, Ordering::Relaxed);
    }
    failed
}

/// A service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn new(lab: &Loopback) -> Manager {
        Manager(UnixDatagram::bind(lab.directory().join("notify")).unwrap())
    }

    /// Starts convey, which the manager considers hung after so many microseconds of silence.
    fn start(&self, lab: &Loopback, setup: &Setup, watchdog: Option<&str>) -> BalancerProcess {
        let mut command = binary();
        command.env("NOTIFY_SOCKET", lab.directory().join("notify"));
        if let Some(microseconds) = watchdog {
            command.env("WATCHDOG_USEC", microseconds);
        }
        BalancerProcess::start_with(lab, setup, command)
    }

    /// A command that starts convey like systemd, with these variables and this socket, on one
    /// core, so that there is one listening socket for each address.
    fn unit(&self, lab: &Loopback, variables: &str, socket: Option<OwnedFd>) -> Command {
        let script = format!("LISTEN_PID=$$ {variables} exec taskset -c 0 \"$@\" 3<&0 </dev/null");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(binary().get_program());
        command.arg("--config").arg(lab.directory().join("config.toml"));
        command
            .env("NOTIFY_SOCKET", lab.directory().join("notify"))
            .env("RUNTIME_DIRECTORY", lab.directory());
        command.stdin(socket.map_or_else(Stdio::null, Stdio::from));
        command
    }

    /// Fills the manager's queue, which accepts no more messages until it reads.
    fn fill_queue(&self) {
        wait_for("its queue to be full", || {
            let filler = UnixDatagram::unbound().unwrap();
            filler.set_nonblocking(true).unwrap();
            filler.connect_addr(&self.0.local_addr().unwrap()).unwrap();
            let sent = (0..10_000).map(|_| filler.send(b"X=1")).find_map(Result::err);
            sent.filter(|error| error.kind() == ErrorKind::WouldBlock)
        });
    }

    /// Reads until a message begins with this text. Returns the message.
    fn message_beginning(&self, begin: &str) -> String {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        loop {
            let message = self.next_message().unwrap_or_else(|| panic!("in vain for {begin:?}"));
            if message.starts_with(begin) {
                return message;
            }
        }
    }

    /// Reads until a message begins with this text. Returns its descriptors.
    fn stored_descriptors(&self, begin: &str) -> Vec<OwnedFd> {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut room = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&self.0, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            let descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            let descriptors = descriptors.flatten().collect();
            if bytes[..received.bytes].starts_with(begin.as_bytes()) {
                return descriptors;
            }
        }
    }

    /// Returns the next message, if it arrives in time.
    fn next_message(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
