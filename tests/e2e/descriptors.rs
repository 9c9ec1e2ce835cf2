//! Open files: the limit, and convey's behaviour at it.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread::available_parallelism;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, connect, connect_from, ping, run, tests, wait_for,
};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::explain::explained;
use crate::limits::{serve_all, vec_of};
use crate::shares::limited;

tests!("descriptors":
    the_limit_of_open_files_is_raised_to_what_is_allowed [Need::PRLIMIT],
    without_descriptors_accepting_pauses_until_there_are_some_again [Need::PRLIMIT],
    reload_takes_no_descriptors_from_open_connections [Need::PRLIMIT],
    check_says_where_a_start_lacks_descriptors_and_which_limit_it_assumes [Need::PRLIMIT],
);

fn the_limit_of_open_files_is_raised_to_what_is_allowed() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("256:1000"));
    let limits = fs::read_to_string(balancer.proc("limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1000"), "{line}");
}

fn without_descriptors_accepting_pauses_until_there_are_some_again() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let few = 60 + 10 * available_parallelism().unwrap().get();
    let balancer = BalancerProcess::start_with(&lab, &setup, limited(&format!("{few}:{few}")));
    let base = balancer.fds_at_rest();
    // Each connection takes two descriptors: there are none for more than half of these.
    let mut clients = vec_of(few, || connect(lab.vip()));
    clients.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.wait_for_log(&format!("cannot accept connections on {}", lab.vip()));
    let explanation = explained(lab.stats(), SocketAddr::new(lab.ip(50), 4_242));
    assert_eq!(
        (explanation["verdict"].as_str(), explanation["reason"].as_str()),
        (Some("waits"), Some("no_resources"))
    );
    let spun = Duration::from_millis(400);
    let cpu_time = used_beside(&balancer, spun);
    assert!(cpu_time < spun / 4, "busy for {cpu_time:?} with nothing to do, while a loop was for {spun:?}");

    serve_all(clients);
    assert!(balancer.stat("/frontends/web/accept_backoffs").as_u64().unwrap() > 0);
    balancer.wait_for_stat("/current_connections", 0);
    wait_for("the descriptors to be given back", || (balancer.fds() == base).then_some(()));
}

fn reload_takes_no_descriptors_from_open_connections() {
    let workers = available_parallelism().unwrap().get();
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let listening = |last: u16| {
        Setup::new(&lab).listen_on(&[format!("{}:9000-{last}", lab.ip(1))]).server("a", lab.server(1), "")
    };
    let at = |port| SocketAddr::new(lab.ip(1), port);
    let limit = 300 * workers;
    let balancer = BalancerProcess::start_with(&lab, &listening(9_001), limited(&format!("{limit}:{limit}")));
    // About two thirds of the limit.
    let some = 60 * workers;
    let open = || -> Vec<TcpStream> {
        let client = |n: usize| connect_from(lab.ip(50 + (n % 200) as u8), at(9_000)).unwrap();
        (0..some).map(client).collect()
    };
    let mut clients = open();
    clients.iter_mut().for_each(|client| ping(client).unwrap());
    balancer.save(&listening(9_101));
    balancer.wait_for_log(&format!(
        "the new ports need {} descriptors, but {some} open connections leave ",
        100 * workers
    ));
    assert!(TcpStream::connect(at(9_101)).is_err());
    clients.iter_mut().for_each(|client| ping(client).unwrap());

    drop(clients);
    balancer.wait_for_stat("/current_connections", 0);
    balancer.signal(Signal::HUP);
    balancer.wait_for_log("9000-9101");
    ping(&mut connect(at(9_101))).unwrap();
    // The limit of connections is lower now: the others wait, and statistics and the file have
    // enough descriptors.
    let _clients = open();
    wait_for("connections to have what is left", || {
        (balancer.stat("/frontends/web/accept_backoffs").as_u64() > Some(0)).then_some(())
    });
    balancer.save(&listening(9_001));
    balancer.wait_for_log("reload: frontend web: - ");
    wait_for("the ports to be given back", || {
        let served = balancer.stat("/current_connections").as_u64().unwrap();
        (served == some as u64).then_some(())
    });
}

fn check_says_where_a_start_lacks_descriptors_and_which_limit_it_assumes() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).listen_on(&[format!("{}:20000-20199", lab.ip(1))]);
    let setup = setup.server("a", lab.server(1), "");
    fs::write(lab.directory().join("config.toml"), setup.to_string()).unwrap();
    let ran = |open_files: &str, command: &str| {
        let mut convey = limited(open_files);
        run(convey.current_dir(lab.directory()).args(command.split_whitespace()))
    };
    let (check, start) = ("check --config config.toml", "--config config.toml");
    let few = ran("100:200", check);
    let refusal = format!(
        "the 200 ports of frontends in proxy mode need {} descriptors, more than half of the limit of 200; ",
        200 * available_parallelism().unwrap().get()
    );
    let obstacle = format!("error: under this shell's limit of open files, {refusal}");
    assert_eq!(few.code, Some(1), "nor would it start");
    assert!(few.stderr.contains(&obstacle), "{few:?}");
    let syntax = ran("100:200", "check --syntax --config config.toml");
    assert_eq!((syntax.code, syntax.stderr.as_str()), (Some(0), ""), "a service may have another limit");
    let refused = ran("100:200", start);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!((refused.stderr + &refused.stdout).contains(&refusal));
    let enough = ran(&format!("100:{}", 500 * available_parallelism().unwrap().get()), check);
    assert_eq!((enough.code, enough.stderr.as_str()), (Some(0), ""));
}

/// CPU time that the balancer uses while this thread, which does not pause, uses this much: on a
/// busy machine, both wait alike.
fn used_beside(balancer: &BalancerProcess, spun: Duration) -> Duration {
    let used = || {
        let stat = fs::read_to_string(balancer.proc("stat")).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        let ticks = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap());
        Duration::from_millis(10) * ticks.sum::<u32>()
    };
    let own = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let (began, before) = (own(), used());
    while own() - began < spun {}
    used() - before
}
