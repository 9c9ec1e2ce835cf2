//! `convey check`, and configuration files of all versions.

use std::fs;
use std::net::TcpListener;

use convey_testkit::{BalancerProcess, Loopback, Ran, Setup, TcpServer, binary, fetch, run, tests};

tests!("config":
    a_valid_file_is_described,
    every_mistake_is_reported_at_once_with_its_place,
    check_fails_where_a_start_would_and_says_whose_port_it_is,
    syntax_check_reads_named_files_and_not_the_host,
    values_come_from_the_environment_and_from_included_files,
    a_file_written_for_the_original_loads_unchanged,
    a_file_written_for_the_original_runs_unchanged,
);

fn a_valid_file_is_described() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab)
        .frontend("max_connections = 1000")
        .backend("algorithm = \"maglev\"")
        .health("kind = \"http\"\npath = \"/health\"\ninterval = 3")
        .server("a", lab.server(1), "weight = 7")
        .server("b", lab.server(2), "backup = true");
    let ran = check(&lab, &setup.to_string());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    for line in [
        "is valid; convey would run:".to_owned(),
        format!("frontend web proxy tcp {} -> backend pool, at most 1000 connections", lab.vip()),
        "backend pool (maglev by source; http check of /health (status 200-399) every 3s, ".to_owned(),
        format!("server a {} weight 7", lab.server(1)),
        format!("server b {} weight 1, backup", lab.server(2)),
        format!("statistics http://{}/stats", lab.stats()),
    ] {
        assert!(described(&ran).contains(&line), "no {line:?} in\n{}", ran.stdout);
    }
}

fn every_mistake_is_reported_at_once_with_its_place() {
    let lab = Loopback::new();
    let ran = check(
        &lab,
        r#"[frontends.web]
listen_adr = "127.0.0.1:8080"
backend = "app"

[frontends.api]
listen_addr = "127.0.0.1:8081"
backend = "ap"

[frontends.admin]
listen_addr = "127.0.0.1:8081"
backend = "app"

[backends.app.servers.a]
addr = "127.0.0.1:9000"
weight = 70000

[backends.empty.servers]

[frontends.more]
listen_addr = "127.0.0.1:8082"
backend = "empty"
"#,
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    for (place, words) in [
        ("check.toml:2:1", "did you mean `listen_addr`?"),
        ("check.toml:7:11", "did you mean `app`?"),
        ("check.toml:10:15", "127.0.0.1:8081 is taken by frontends.api"),
        ("check.toml:15:10", "found 70000; allowed: an integer from 0 to 65535"),
        ("check.toml:17:", "no servers"),
    ] {
        let found = ran
            .stderr
            .lines()
            .any(|line| line.starts_with("error: ") && line.contains(place) && line.contains(words));
        assert!(found, "no error at {place} with {words:?} in\n{}", ran.stderr);
    }
}

fn check_fails_where_a_start_would_and_says_whose_port_it_is() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    assert_eq!(check(&lab, &setup.to_string()).code, Some(0));
    let _busy = TcpListener::bind(lab.vip()).unwrap();
    let _busy_statistics = TcpListener::bind(lab.stats()).unwrap();
    let owner = format!("(process {}) uses it", std::process::id());
    let port = lab.vip().port();
    let message = [
        format!(
            "frontend web: cannot listen on {}: Address already in use (os error 98) (`sudo ss -tlnp 'sport = :{port}'` shows \
             by which process); ",
            lab.vip()
        ),
        format!(
            "cannot serve statistics on {} (stats.port): Address already in use (os error 98) (`sudo ss -tlnp 'sport = :{}'` \
             shows by which process); ",
            lab.stats(),
            lab.stats().port()
        ),
    ];
    let checked = check(&lab, &setup.to_string());
    let lines: Vec<&str> = checked.stderr.lines().collect();
    assert_eq!((checked.code, checked.stdout.as_str(), lines.len()), (Some(1), "", 3), "{checked:?}");
    for (line, message) in lines.iter().zip(&message) {
        assert!(line.starts_with(&format!("error: {message}")) && line.ends_with(&owner), "{line}");
    }
    assert!(
        lines[2].ends_with("would not start here now (`check --syntax` does not look at this host)"),
        "{checked:?}"
    );
    // A start reports the first of these errors. By then, it may lack the privilege to inspect
    // other processes.
    let message = message.map(|message| message.trim_end_matches("; ").to_owned());
    let started = run(binary().current_dir(lab.directory()).args(["--config", "check.toml"]));
    assert_eq!(started.code, Some(1), "{started:?}");
    assert!(started.stderr.contains(&message[1]) || started.stderr.contains(&message[0]), "{started:?}");

    let nowhere = setup.listen(&["192.0.2.77:8080".parse().unwrap()]).to_string();
    drop(_busy_statistics);
    let checked = check(&lab, &nowhere);
    assert_eq!(checked.code, Some(0), "a standby starts before it has its address: {checked:?}");
    assert!(
        checked.stderr.starts_with("warning: frontend web: no interface has 192.0.2.77 yet"),
        "{checked:?}"
    );
    assert!(checked.stderr.contains("`ip addr add 192.0.2.77/32 dev INTERFACE`"), "{checked:?}");

    fs::write(lab.directory().join("hosts.txt"), format!("{}\n", lab.server(1))).unwrap();
    let mut statistics = binary();
    statistics.current_dir(lab.directory()).args(["check", "--listen", &lab.second_vip().to_string()]);
    let checked = run(statistics.args(["--stats", "192.0.2.77:7000", "--servers", "hosts.txt"]));
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.stderr.contains("(`ip addr add 192.0.2.77/32 dev INTERFACE`)"), "{checked:?}");
}

fn syntax_check_reads_named_files_and_not_the_host() {
    let lab = Loopback::new();
    let elsewhere = "192.0.2.77:80".parse().unwrap();
    let setup = Setup::new(&lab).listen(&[elsewhere]).server("a", "no-such-host.invalid:80", "");
    let ran = convey_check(&lab, &["--syntax"], &setup.to_string());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(described(&ran).contains("frontend web proxy tcp 192.0.2.77:80 -> backend pool"), "{ran:?}");
    let named = convey_check(&lab, &["--syntax", "--dsr"], &setup.to_string());
    assert_eq!(named.code, Some(1), "{named:?}");
    assert!(named.stderr.contains("servers.a.addr: in dsr mode a server needs an IP address"), "{named:?}");
    let setup = Setup::new(&lab).listen(&[elsewhere]).server("a", "192.0.2.78:80", "");
    let dsr = convey_check(&lab, &["--syntax", "--dsr"], &setup.to_string());
    assert_eq!(dsr.code, Some(0), "no address of this host is asked for: {dsr:?}");
    let key = setup.frontend("tls = { certificate = \"c.pem\", key = \"k.pem\" }").to_string();
    let missing = convey_check(&lab, &["--syntax"], &key);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("frontends.web.tls.key: cannot read k.pem"), "{missing:?}");
    let help = run(binary().args(["check", "--help"]));
    assert!(help.stdout.contains("files that it names"), "{}", help.stdout);
    let wrong = convey_check(&lab, &["--syntax"], "mode = \"prxy\"");
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("error: check.toml:1:8: mode: found \"prxy\"; "), "{wrong:?}");
}

fn values_come_from_the_environment_and_from_included_files() {
    let lab = Loopback::new();
    let _servers = [("1", 1), ("2", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let main = format!(
        "include = \"conf.d/*.toml\"\n{}",
        Setup::new(&lab).server("a", "${A}", "weight = \"${W:-1}\"")
    );
    fs::create_dir(lab.directory().join("conf.d")).unwrap();
    let mut command = binary();
    command.env("A", lab.server(1).to_string());
    let balancer = BalancerProcess::start_with(&lab, &main, command);
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "1");

    // A new file adds a server, an invalid file is reported by its name, and removing a file
    // removes its server.
    let included = balancer.config().parent().unwrap().join("conf.d/b.toml");
    fs::create_dir_all(included.parent().unwrap()).unwrap();
    fs::write(&included, format!("[backends.pool.servers.b]\naddr = \"{}\"\n", lab.server(2))).unwrap();
    balancer.wait_for_log(&format!("reload: backend pool: + pool/b ({})", lab.server(2)));
    fs::write(&included, "[backends.pool.servers.b]\naddr = \"nowhere\"\nwieght = 1\n").unwrap();
    balancer.wait_for_log("b.toml:3:1: backends.pool.servers.b.wieght: unknown key; did you mean `weight`?");
    fs::remove_file(&included).unwrap();
    balancer.wait_for_log(&format!("reload: backend pool: - pool/b ({})", lab.server(2)));
}

fn a_file_written_for_the_original_loads_unchanged() {
    let lab = Loopback::new();
    let ran = convey_check(&lab, &["--syntax"], ORIGINAL);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("warning: ") && ran.stderr.contains("backends.tcp_3001"), "{}", ran.stderr);
    let old_names = [
        ("check.toml:11:29: ", "`health_check.interval`"),
        ("check.toml:24:29: ", "`health_check.interval`"),
        ("check.toml:36:31: ", "`max_flows`"),
        ("check.toml:38:26: ", "`capture_stats_interval`"),
    ];
    for (place, new) in old_names {
        let tells = |line: &&str| line.contains(place) && line.ends_with(&format!("is now called {new}"));
        assert_eq!(ran.stderr.lines().filter(tells).count(), 1, "{place}{new} in\n{}", ran.stderr);
    }
    assert!(ran.stderr.lines().count() == 1 + old_names.len(), "{}", ran.stderr);
    for line in
        ["frontend tcp_3000 proxy tcp 0.0.0.0:3000 -> backend tcp_3000", "tcp check every 5s", "weight 10"]
    {
        assert!(described(&ran).contains(line), "no {line:?} in\n{}", ran.stdout);
    }
}

fn a_file_written_for_the_original_runs_unchanged() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::named("old", lab.server(n)));
    // The original with other addresses; it served its statistics on all of them.
    let file = ORIGINAL
        .replace("0.0.0.0:3000", &lab.vip().to_string())
        .replace("127.0.0.1:8080", &lab.server(1).to_string())
        .replace("127.0.0.1:8081", &lab.server(2).to_string())
        .replace("[stats]", &format!("[stats]\nlisten_addr = \"{}\"", lab.stats().ip()));
    let balancer = BalancerProcess::start(&lab, &file);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "old".to_owned()));
    assert_eq!(balancer.stat("/backends/tcp_3000/servers/server2/weight"), 20);
    let message = || balancer.log().matches("is now called `max_flows`").count();
    assert_eq!(message(), 1, "{}", balancer.log());
    balancer.save(&file.replace("weight = 20", "weight = 30"));
    balancer.wait_for_log("reload: ");
    assert_eq!(message(), 2, "{}", balancer.log());
}

const ORIGINAL: &str = r#"
[frontends]

    [frontends.tcp_3000]
    listen_addr = "0.0.0.0:3000"
    backend = "tcp_3000"

[backends]

    [backends.tcp_3000]
    health_check_interval = 5

        [backends.tcp_3000.servers]

            [backends.tcp_3000.servers.server1]
            addr = "127.0.0.1:8080"
            weight = 10

            [backends.tcp_3000.servers.server2]
            addr = "127.0.0.1:8081"
            weight = 20

    [backends.tcp_3001]
    health_check_interval = 5

        [backends.tcp_3001.servers]

            [backends.tcp_3001.servers.server1]
            addr = "127.0.0.1:8082"
            weight = 10

[stats]
port = "7000"

[passthrough]
connection_tracker_capacity = 1000000
workers = 4
stats_update_frequency = 5
"#;

fn check(lab: &Loopback, text: &str) -> Ran {
    convey_check(lab, &[], text)
}

fn convey_check(lab: &Loopback, options: &[&str], text: &str) -> Ran {
    fs::write(lab.directory().join("check.toml"), text).unwrap();
    run(binary().current_dir(lab.directory()).args(["check", "--config", "check.toml"]).args(options))
}

/// The output, without the padding between columns.
fn described(ran: &Ran) -> String {
    ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}
