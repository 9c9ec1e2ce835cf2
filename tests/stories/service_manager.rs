//! What convey tells systemd, or whoever else listens at `NOTIFY_SOCKET`.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use convey_testkit::{Balancer, Loopback, PATIENCE, Server, Setup, binary, connect, ping, stories, wait_for};
use rustix::process::{Pid, Signal, kill_process};

stories!("service_manager":
    it_hears_of_the_start_of_reloads_and_of_the_stop,
    it_hears_signs_of_life_while_convey_lives,
    it_hears_which_process_is_the_service_after_an_upgrade,
    it_may_be_named_by_an_abstract_address,
    one_that_does_not_read_stops_nothing,
    what_it_must_know_waits_for_room_in_its_queue,
);

fn it_hears_of_the_start_of_reloads_and_of_the_stop() {
    let lab = Loopback::new();
    let server = Server::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).health("interval = 0.1").server("a", lab.server(1), "");
    let mut balancer = manager.start(&lab, &setup, None);
    manager.hears("READY=1\n");
    // It is no promise: clients are served.
    let mut client = connect(lab.vip());
    ping(&mut client).unwrap();

    balancer.signal(Signal::HUP);
    let reloading = manager.hears("RELOADING=1\nMONOTONIC_USEC=");
    let since = reloading.trim_end().rsplit('=').next().unwrap().parse::<u64>().unwrap();
    assert!(since > 0, "{reloading}");
    manager.hears("READY=1\n");
    balancer.save(&"nonsense");
    manager.hears("RELOADING=1\nMONOTONIC_USEC=");
    manager.hears("READY=1\n");

    drop(server);
    manager.hears("STATUS=1 frontend, 0 of 1 server up; backend pool has no server");
    balancer.signal(Signal::TERM);
    let stopping = manager.hears("STOPPING=1\nSTATUS=stopping: ");
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC="), "{stopping}");
    drop(client);
    assert_eq!(balancer.wait(), 0);
}

fn it_hears_signs_of_life_while_convey_lives() {
    let lab = Loopback::new();
    let manager = Manager::new(&lab);
    let balancer = manager.start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), Some("200000"));
    for _ in 0..5 {
        manager.hears("WATCHDOG=1\n");
    }
    balancer.signal(Signal::STOP);
    wait_for("silence of a process that is stopped", || {
        // Longer than the limit after which systemd takes it for hung.
        manager.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        manager.hear().is_none().then_some(())
    });
    balancer.signal(Signal::CONT);
    manager.hears("WATCHDOG=1\n");
}

fn it_hears_which_process_is_the_service_after_an_upgrade() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).health("interval = 3600").server("a", lab.server(1), "");
    let mut balancer = manager.start(&lab, &setup, None);
    manager.hears("READY=1\n");
    let held = connect(lab.vip());
    balancer.wait_for_stat("/frontends/web/current_connections", 1);
    balancer.signal(Signal::USR2);
    // One that it does not take for the service yet says nothing.
    let main = manager.hear().unwrap();
    let process = main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}"));
    let process = Pid::from_raw(process.trim_end().parse().unwrap()).unwrap();
    assert_eq!(manager.hear().unwrap(), "READY=1\nSTATUS=1 frontend, 1 of 1 server up\n");
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections have 30s to finish");
    drop(held);
    assert_eq!(balancer.wait(), 0);
    kill_process(process, Signal::TERM).unwrap();
    // The first one has said nothing more.
    assert!(manager.hear().unwrap().starts_with("STOPPING=1\n"));
}

fn it_may_be_named_by_an_abstract_address() {
    let lab = Loopback::new();
    let name = format!("convey-test-{}", lab.vip());
    let addr = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager(UnixDatagram::bind_addr(&addr).unwrap());
    let mut command = binary();
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let _balancer = Balancer::start_with(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), command);
    manager.hears("READY=1\n");
}

fn one_that_does_not_read_stops_nothing() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = manager.start(&lab, &setup, Some("20000"));
    manager.fill_queue();
    balancer.save(&setup.timeouts("idle = 77"));
    balancer.wait_for_log("reload: ");
    ping(&mut connect(lab.vip())).unwrap();
}

fn what_it_must_know_waits_for_room_in_its_queue() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let manager = Manager::new(&lab);
    let mut balancer = manager.start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), None);
    manager.fill_queue();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: ");
    // Only now it reads.
    manager.hears("STOPPING=1\nSTATUS=stopping: ");
    assert_eq!(balancer.wait(), 0);
}

/// A service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn new(lab: &Loopback) -> Manager {
        Manager(UnixDatagram::bind(lab.directory().join("notify")).unwrap())
    }

    /// Starts convey, which it takes for hung after so many microseconds of silence.
    fn start(&self, lab: &Loopback, setup: &Setup, watchdog: Option<&str>) -> Balancer {
        let mut command = binary();
        command.env("NOTIFY_SOCKET", lab.directory().join("notify"));
        if let Some(microseconds) = watchdog {
            command.env("WATCHDOG_USEC", microseconds);
        }
        Balancer::start_with(lab, setup, command)
    }

    /// Has it take no more until it reads.
    fn fill_queue(&self) {
        wait_for("its queue to be full", || {
            let filler = UnixDatagram::unbound().unwrap();
            filler.set_nonblocking(true).unwrap();
            filler.connect_addr(&self.0.local_addr().unwrap()).unwrap();
            let sent = (0..10_000).map(|_| filler.send(b"X=1")).find_map(Result::err);
            sent.filter(|error| error.kind() == ErrorKind::WouldBlock)
        });
    }

    /// Reads until a message begins so; returns it.
    fn hears(&self, begin: &str) -> String {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        loop {
            let message = self.hear().unwrap_or_else(|| panic!("in vain for {begin:?}"));
            if message.starts_with(begin) {
                return message;
            }
        }
    }

    /// The next message, if it comes in time.
    fn hear(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
