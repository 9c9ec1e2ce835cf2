//! Valid files, and the settings that result from them.

use std::time::Duration;

use super::super::{Config, DnsConfig, Stats, parse};
use super::{GOOD, errors, warnings};
use convey_model::{
    Algorithm, BackendConfig, BodyPattern, DsrKind, FlowTimeouts, FrontendConfig, HashKey, HashOn,
    HealthCheck, HttpCheck, HttpVersion, Listen, Mode, Offload, OnDown, OutlierDetection, PacketSettings,
    ProbeKind, ProbeVia, Protocol, ServerConfig, ServerSettings, Timeouts, TunnelConfig,
};

#[test]
fn a_small_file_is_filled_up_with_defaults() {
    let loaded = parse("config.toml", GOOD).expect("valid");
    assert_eq!(loaded.warnings, []);
    let expected = Config {
        frontends: vec![FrontendConfig {
            name: "web".into(),
            mode: Mode::Proxy,
            protocol: Protocol::Tcp,
            listen: vec!["10.0.0.1:80".parse().unwrap()],
            backend: Some("web".into()),
            ready_needs: vec![],
            max_connections: None,
            max_connections_per_client: None,
            trusted_clients: vec![],
            accept_proxy: false,
            trusted_proxies: Default::default(),
            timeouts: Default::default(),
            access: Default::default(),
            limits: Default::default(),
            tls: None,
            sni_routes: Vec::new(),
            http: None,
        }],
        workers: None,
        backends: vec![BackendConfig {
            name: "web".into(),
            algorithm: Algorithm::RoundRobin,
            hash: HashOn::Source,
            quic: None,
            hash_request: None,
            affinity: None,
            hash_key: HashKey::AddrPort,
            health_check: HealthCheck {
                kind: ProbeKind::Tcp,
                port: None,
                interval: Duration::from_secs(2),
                timeout: Duration::from_secs(1),
                rise: 2,
                fall: 3,
                via: ProbeVia::Server,
                send_proxy: None,
                source: vec![],
                tls: None,
                requests: None,
            },
            outlier_detection: None,
            slow_start: Duration::ZERO,
            on_down: None,
            timeouts: Default::default(),
            dsr: DsrKind::L3,
            tunnel: TunnelConfig { gue_port: 6_080, source: None },
            send_proxy: None,
            source: vec![],
            files: None,
            total: None,
            protocol: HttpVersion::H1,
            tls: None,
            servers: vec![ServerConfig {
                name: "a".into(),
                addr: "10.0.0.2:80".parse().unwrap(),
                settings: ServerSettings { weight: 1, backup: false, max_connections: None },
            }],
            named: vec![],
            discovery: None,
            maintenance: None,
        }],
        log: Default::default(),
        access_log: Default::default(),
        privileges: Default::default(),
        acme: None,
        announce: None,
        stats: Stats { listen: "127.0.0.1:7000".parse().unwrap(), token: None },
        timeouts: Timeouts {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            response: Duration::from_secs(60),
            request: None,
            send: Duration::from_secs(60),
            tcp_user_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        },
        passthrough: PacketSettings {
            max_flows: 1_000_000,
            workers: None,
            capture_stats_interval: Duration::from_secs(5),
            interfaces: vec![],
            guard: true,
            offload: Offload::Auto,
            snat_ports: 33_768..=61_000,
            snat_addresses: vec![],
            min_path_mtu: None,
            timeouts: FlowTimeouts::default(),
        },
        dns: DnsConfig { name_servers: vec![], allow_local: false },
    };
    assert_eq!(loaded.config, expected);
}

#[test]
fn everything_that_can_be_set_arrives() {
    let loaded = parse(
        "config.toml",
        r#"
        mode = "dsr"
        frontends.api = { listen_addr = ["[2001:db8::1]:443", "10.0.0.1:443"], backend = "b", max_connections = 7 }
        frontends.dns = { mode = "passthrough", protocol = "udp", listen_addr = "10.0.0.1:53", backend = "b" }
        [backends.b]
        algorithm = "maglev"
        hash = "tuple"
        hash_key = "name"
        on_down = "keep"
        dsr = "l2"
        slow_start = 7.5
        outlier_detection = { consecutive_failures = 2, base_ejection_time = 0.5, max_ejection_time = 0.5, max_ejection_percent = 10 }
        health_check = { kind = "http", port = 81, path = "/up?deep=1", expected_status = 204, expected_body = "^up$", interval = 0.25, timeout = 0.125, rise = 1, fall = 5 }
        [backends.b.servers]
        z = { addr = "[2001:db8::2]:443", weight = 0 }
        y = { addr = "10.0.0.9:443", weight = 65535, max_connections = 3, backup = true }
        [timeouts]
        connect = 1.5
        idle = 60
        udp_idle = 0.25
        drain = 0
        drain_delay = "5s"
        [stats]
        port = 9100
        listen_addr = "::1"
        [passthrough]
        max_flows = 20000
        workers = 3
        capture_stats_interval = 1
        interfaces = ["eth0", "eth1"]
        guard = false
        offload = "tc"
        snat_ports = "40000-41000"
        snat_addresses = "10.0.0.5"
        min_path_mtu = 576
        [passthrough.timeouts]
        half_open = 1
        handshake_only = 1.5
        established = 2.5
        half_closed = 3
        closing = 4
        time_wait = 5
        closed = 6
        udp_single = 7
        udp_stream = 8
        "#,
    )
    .expect("valid");
    let config = loaded.config;
    let modes = config.frontends.iter().map(|frontend| (frontend.mode, frontend.protocol));
    let expected = [(Mode::Dsr, Protocol::Tcp), (Mode::Passthrough, Protocol::Udp)];
    assert_eq!(modes.collect::<Vec<_>>(), expected);
    let listen: Vec<Listen> = vec!["10.0.0.1:443".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()];
    assert_eq!(config.frontends[0].listen, listen);
    assert_eq!(config.frontends[0].max_connections, Some(7));
    let backend = &config.backends[0];
    assert_eq!((backend.algorithm, backend.hash), (Algorithm::Maglev, HashOn::Tuple));
    assert_eq!(backend.hash_key, HashKey::Name);
    assert_eq!((backend.on_down, backend.dsr), (Some(OnDown::Keep), DsrKind::L2));
    assert_eq!(backend.slow_start, Duration::from_millis(7500));
    let outlier = OutlierDetection {
        consecutive_failures: 2,
        base_ejection_time: Duration::from_millis(500),
        max_ejection_time: Duration::from_millis(500),
        max_ejection_percent: 10,
    };
    assert_eq!(backend.outlier_detection, Some(outlier));
    let check = HealthCheck {
        kind: ProbeKind::Http(HttpCheck {
            path: "/up?deep=1".into(),
            expected_status: vec![204..=204],
            expected_body: Some(BodyPattern::parse("^up$").unwrap()),
            ..HttpCheck::default()
        }),
        port: Some(81),
        interval: Duration::from_millis(250),
        timeout: Duration::from_millis(125),
        rise: 1,
        fall: 5,
        via: ProbeVia::default(),
        send_proxy: None,
        source: vec![],
        tls: None,
        requests: None,
    };
    assert_eq!(backend.health_check, check);
    assert_eq!(backend.servers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["y", "z"]);
    assert!(backend.servers[0].settings.backup);
    assert_eq!(
        (backend.servers[0].settings.weight, backend.servers[0].settings.max_connections),
        (65535, Some(3))
    );
    assert_eq!(config.stats.listen, "[::1]:9100".parse().unwrap());
    let [response, send, tcp_user_timeout] = [60, 60, 30].map(Duration::from_secs);
    let [connect, idle, udp_idle, drain, drain_delay] =
        [1500, 60_000, 250, 0, 5000].map(Duration::from_millis);
    assert_eq!(
        config.timeouts,
        Timeouts {
            connect,
            idle,
            response,
            request: None,
            send,
            tcp_user_timeout,
            udp_idle,
            drain,
            drain_delay
        }
    );
    let [
        half_open,
        handshake_only,
        established,
        half_closed,
        closing,
        time_wait,
        closed,
        udp_single,
        udp_stream,
    ] = [1000, 1500, 2500, 3000, 4000, 5000, 6000, 7000, 8000].map(Duration::from_millis);
    let passthrough = PacketSettings {
        max_flows: 20_000,
        workers: Some(3),
        capture_stats_interval: Duration::from_secs(1),
        interfaces: vec!["eth0".into(), "eth1".into()],
        guard: false,
        offload: Offload::Tc,
        snat_ports: 40_000..=41_000,
        snat_addresses: vec!["10.0.0.5".parse().unwrap()],
        min_path_mtu: Some(576),
        timeouts: FlowTimeouts {
            half_open,
            handshake_only,
            established,
            half_closed,
            closing,
            time_wait,
            closed,
            udp_single,
            udp_stream,
        },
    };
    assert_eq!(config.passthrough, passthrough);
}

#[test]
fn a_file_written_for_the_original_loads_unchanged() {
    let text = r#"
[frontends]

  [frontends.shop]
    listen_addr = "0.0.0.0:3000"
    backend = "shop"

  [frontends.mail]
    listen_addr = "0.0.0.0:2525"
    backend = "mail"

    [frontends.mail.xdp]
      bpf_program_path = "/opt/xdp_lb.o"
      progsec_name = "xdp_sock"
      xsks_map_name = "xsks_map"

[backends]

  [backends.shop]
    health_check_interval = 3

    [backends.shop.servers]

      [backends.shop.servers.first]
        addr = "10.0.2.10:8080"
        weight = 10000

      [backends.shop.servers.second]
        addr = "10.0.2.11:8080"

  [backends.mail]
    health_check_interval = 3

    [backends.mail.servers]

      [backends.mail.servers.only]
        addr = "10.0.2.20:25"

  [backends.attic]

    [backends.attic.servers]

[stats]
  port = "7000"

[passthrough]
  connection_tracker_capacity = 3
  workers = 2
  stats_update_frequency = 5
"#;
    assert_eq!(
        warnings(text),
        [
            "config.toml:12:5: frontends.mail.xdp: has no effect",
            "config.toml:20:29: backends.shop.health_check_interval: is now called `health_check.interval`",
            "config.toml:32:29: backends.mail.health_check_interval: is now called `health_check.interval`",
            "config.toml:39:3: backends.attic: no frontend uses this backend",
            "config.toml:39:3: backends.attic: no servers; write [backends.NAME.servers.NAME] with addr",
            "config.toml:47:33: passthrough.connection_tracker_capacity: is now called `max_flows`",
            "config.toml:49:28: passthrough.stats_update_frequency: is now called `capture_stats_interval`",
        ]
    );
    let config = parse("config.toml", text).expect("valid").config;
    let shop = config.backends.iter().find(|b| b.name == "shop").expect("backend shop");
    assert_eq!(shop.health_check.interval, Duration::from_secs(3));
    assert_eq!(shop.servers.iter().map(|s| s.settings.weight).collect::<Vec<_>>(), [10_000, 1]);
    assert_eq!(config.stats.listen.port(), 7000);
    assert_eq!(config.passthrough.max_flows, 3);
}

#[test]
fn dsr_nat_is_an_alias_of_l3_with_a_warning() {
    let with = |dsr: &str| format!("{GOOD}[backends.web]\ndsr = \"{dsr}\"");
    let config = |text: &str| parse("config.toml", text).expect("valid").config;
    assert_eq!(config(&with("nat")), config(&with("l3")));
    assert_eq!(warnings(&with("nat")), ["config.toml:8:7: backends.web.dsr: \"nat\" is now called \"l3\""]);
    assert_eq!(warnings(&with("l3")), [""; 0]);
}

#[test]
fn default_check_timeout_is_lowered_to_a_shorter_interval() {
    let text = format!("{GOOD}[backends.web.health_check]\ninterval = 0.2\n");
    let check = &parse("config.toml", &text).expect("valid").config.backends[0].health_check;
    assert_eq!(check.timeout, Duration::from_millis(200));
}

#[test]
fn servers_that_only_udp_clients_reach_are_probed_by_udp() {
    let checks = |frontends: &str| {
        let text = format!("{GOOD}[frontends]\n{frontends}\n[backends.web.health_check]\nfall = 9");
        parse("config.toml", &text).expect("valid").config.backends[0].health_check.clone()
    };
    let dns = "dns = { protocol = 'udp', listen_addr = '10.0.0.1:80', backend = 'web' }";
    assert_eq!(checks(dns).kind, ProbeKind::Tcp, "a frontend for TCP uses them too");
    let only = GOOD.replace("backend = ", "protocol = 'udp'\nbackend = ");
    let check = |lines: &str| {
        let text = format!("{only}[backends.web.health_check]\n{lines}");
        parse("config.toml", &text).expect("valid").config.backends[0].health_check.clone()
    };
    let milliseconds =
        |check: HealthCheck| (check.kind, check.interval.as_millis(), check.timeout.as_millis());
    assert_eq!(milliseconds(check("")), (ProbeKind::Udp, 4000, 3500));
    assert_eq!(milliseconds(check("interval = 1")), (ProbeKind::Udp, 1000, 1000));
    assert_eq!(milliseconds(check("kind = 'tcp'\nport = 53")), (ProbeKind::Tcp, 2000, 1000));
}

#[test]
fn tcp_and_udp_share_a_port() {
    let both = "[frontends.dns]\nprotocol = 'udp'\nlisten_addr = ['10.0.0.1:80', '127.0.0.1:7000']\nbackend = 'web'\n";
    assert_eq!(warnings(&format!("{GOOD}{both}")), [""; 0], "not even the statistics are in the way");
}

#[test]
fn a_name_may_be_anything_that_can_be_shown() {
    let named = GOOD.replace("frontends.web", "frontends.\"Läden, 東京.1\"");
    assert_eq!(parse("config.toml", &named).expect("valid").config.frontends[0].name, "Läden, 東京.1");
    assert_eq!(
        errors(&GOOD.replace("servers.a", "servers.\"a\\nb\"")),
        [
            "config.toml:5:23: backends.web.servers.\"a\\nb\": a name must not be empty or contain control characters"
        ]
    );
    assert_eq!(
        errors(&GOOD.replace("servers.a", "servers.\"\"")),
        [
            "config.toml:5:23: backends.web.servers.\"\": a name must not be empty or contain control characters"
        ]
    );
}

#[test]
fn a_file_saved_by_another_system_reads_the_same() {
    let other = format!("\u{feff}{}", GOOD.replace('\n', "\r\n"));
    assert_eq!(parse("a", &other).unwrap().config, parse("a", GOOD).unwrap().config);
    assert_eq!(errors("\u{feff}x = 1\r\nfrontends = 3")[0].split(' ').next(), Some("config.toml:1:1:"));
}

#[test]
fn odd_but_valid_settings_are_warnings() {
    let backups =
        format!("{GOOD}backup = true\n[backends.web.servers.b]\naddr = \"10.0.0.2:80\"\nbackup = true\n");
    assert_eq!(
        warnings(&backups),
        [
            "config.toml:5:11: backends.web: all servers are backups, so the key `backup` has no effect",
            "config.toml:9:8: backends.web.servers.b.addr: 10.0.0.2:80 is also the value of backends.web.servers.a.addr (line 6)",
        ]
    );
    assert_eq!(
        warnings(&format!("{GOOD}[backends.web]\nalgorithm = \"round_robin\"\nhash = \"tuple\"")),
        [
            "config.toml:9:8: backends.web.hash: has no effect with algorithm \"round_robin\", which does not hash"
        ]
    );
}
