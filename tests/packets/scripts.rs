//! The scripts that an operator runs by hand.

use std::path::Path;

use convey::demo::lab::{Role, VIP};
use convey::model::Mode;

use crate::host::{count_resets, resets};
use crate::network::{Config, Network, address, vip};
use crate::support::{ask, run};
use crate::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        the_guard_by_hand_keeps_traffic_from_the_host,
        replies_get_the_vip_until_the_script_takes_it_down,
        provisioning_says_what_it_takes,
    ]
}

fn the_guard_by_hand_keeps_traffic_from_the_host(mode: Mode) {
    let mut network = Network::new(mode, 1, 1);
    let _server = network.nginx(1);
    count_resets(&network.lab, mode);
    let name = format!("iptables/{}.sh", mode.name());
    // Twice each: the second time changes nothing.
    for action in ["up", "up"] {
        script(&network, Role::Balancer, &name, action);
    }
    network.balance(&Config { passthrough: "guard = false", ..Config::new(1) });
    network.wait_for_health(1, true);
    for _ in 0..50 {
        assert_eq!(network.ask(1).unwrap(), "s1");
    }
    let health = network.stat("/backends/pool/servers/s1/up");
    assert_eq!((resets(&network.lab), health), (0, true.into()));
    let url = format!("http://{}/", address(Role::Server(1)));
    let curl = run(network.lab.command(Role::Balancer, "curl").args(["-sS", "-m", "5", &url]));
    assert_eq!(curl.stdout, "s1\n", "{curl:?}");
    for action in ["down", "down"] {
        script(&network, Role::Balancer, &name, action);
    }
    let left = network.lab.run(Role::Balancer, "iptables-save", &[]).unwrap();
    assert!(!left.contains("CONVEY"), "{left}");
    let _ = network.inside(Role::Client(1), || ask(vip(), "/"));
    assert!(resets(&network.lab) > 0, "without the rules the host answers");
}

fn replies_get_the_vip_until_the_script_takes_it_down(mode: Mode) {
    if mode != Mode::Dsr {
        return;
    }
    let mut network = Network::new(mode, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    let asked = |network: &Network| {
        let url = format!("http://{VIP}/");
        let ran = run(network.client(1, "curl").args(["-s", "-m", "1", &url]));
        (ran.code == Some(0)).then_some(ran.stdout)
    };
    assert_eq!(asked(&network).as_deref(), Some("s1\n"));
    for _ in 0..2 {
        script(&network, Role::Server(1), "tc/dsr-server-nft.sh", "down");
        assert_eq!(asked(&network), None, "nobody waits for replies of the server's address");
    }
    for _ in 0..2 {
        script(&network, Role::Server(1), "tc/dsr-server-nft.sh", "up");
        assert_eq!(asked(&network).as_deref(), Some("s1\n"));
    }
    network.wait_for_health(1, true);
}

fn provisioning_says_what_it_takes(_: Mode) {
    for (script, code) in [("vagrant/provision.sh", 2), ("tc/dsr-server.sh", 2), ("iptables/dsr.sh", 2)] {
        let ran = run(std::process::Command::new("sh").arg(path(script)));
        assert_eq!(ran.code, Some(code));
        assert!(ran.stderr.starts_with("usage: "), "{}", ran.stderr);
    }
}

fn script(network: &Network, role: Role, name: &str, action: &str) {
    let mut command = network.lab.command(role, path(name));
    command.arg(action).env("VIP", VIP.to_string()).env("PORTS", "80");
    command.env("SERVERS", "10.77.0.11:80").env("SNAT_ADDRESSES", "10.77.0.1");
    command.env("SERVER", role.address().to_string()).env("BALANCERS", "10.77.0.1");
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{name} {action}: {ran:?}");
}

fn path(script: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(script)
}
