use serde_json::{Value, json};

use super::*;
use crate::ruleset::{HOOKS_IN, JudgedPacket, PacketEnd, Tool, read_json, read_save};

fn client() -> Packet {
    let judged = JudgedPacket {
        protocol: "tcp",
        destination: PacketEnd::Host("10.0.0.100".parse().unwrap()),
        destination_port: Some(80),
        in_interface: Some("eth0".to_owned()),
        state: "new",
        ..JudgedPacket::default()
    };
    Packet { purpose: Purpose::Client, hooks: HOOKS_IN, judged }
}

/// First command of the finding; `None` if there is no finding.
fn mended(tables: Vec<crate::ruleset::Table>) -> Option<String> {
    let mut found = diagnose(Ruleset { tables }, &[client()]).findings;
    found.pop().map(|mut finding| finding.fix.remove(0))
}

/// First command of the finding about a table whose chain `input` has this policy and these rules;
/// `None` if there is no finding.
fn followed(policy: &str, rules: &[Value]) -> Option<String> {
    let chain = |name: &str, hook: Option<&str>| match hook {
        Some(hook) => json!({ "chain": { "family": "inet", "table": "filter", "name": name, "handle": 1,
            "type": "filter", "hook": hook, "prio": 0, "policy": policy } }),
        None => json!({ "chain": { "family": "inet", "table": "filter", "name": name, "handle": 2 } }),
    };
    let table = json!({ "table": { "family": "inet", "name": "filter", "handle": 1 } });
    let mut list = vec![table, chain("input", Some("input")), chain("web", None)];
    for (n, expr) in rules.iter().enumerate() {
        let chain = if expr.get(0) == Some(&json!("web")) { "web" } else { "input" };
        let expr: Vec<Value> =
            expr.as_array().unwrap().iter().filter(|part| part.is_object()).cloned().collect();
        list.push(json!({ "rule": { "family": "inet", "table": "filter", "chain": chain, "handle": n + 10,
            "expr": expr } }));
    }
    let text = json!({ "nftables": list }).to_string();
    mended(read_json(&text).unwrap())
}

fn payload(protocol: &str, field: &str, right: Value) -> Value {
    json!({ "match": { "op": "==", "left": { "payload": { "protocol": protocol, "field": field } }, "right": right } })
}

fn state(right: Value) -> Value {
    json!({ "match": { "op": "in", "left": { "ct": { "key": "state" } }, "right": right } })
}

const BEFORE: &str = "nft insert rule inet filter input handle 10 ip daddr 10.0.0.100 tcp dport 80 accept";

#[test]
fn a_rule_that_matches_every_packet_of_clients_is_named() {
    let drop = json!({ "drop": null });
    for matching in [
        vec![payload("tcp", "dport", json!(80))],
        vec![payload("tcp", "dport", json!({ "set": [22, 80] }))],
        vec![payload("tcp", "dport", json!({ "set": [{ "range": [1, 100] }] }))],
        vec![payload("ip", "daddr", json!("10.0.0.100")), payload("th", "dport", json!(80))],
        vec![payload("ip", "daddr", json!({ "prefix": { "addr": "10.0.0.0", "len": 8 } }))],
        vec![state(json!(["new", "related"]))],
        vec![json!({ "match": { "op": "==", "left": { "meta": { "key": "protocol" } }, "right": "ip" } })],
        vec![json!({ "counter": { "packets": 1, "bytes": 2 } })],
        vec![],
    ] {
        let rule = Value::Array([matching.clone(), vec![drop.clone()]].concat());
        assert_eq!(followed("accept", &[rule]).as_deref(), Some(BEFORE), "{matching:?}");
    }
    for verdict in
        [json!({ "redirect": { "port": 8080 } }), json!({ "xt": { "type": "target", "name": "REJECT" } })]
    {
        let rule = json!([payload("tcp", "dport", json!(80)), verdict]);
        assert_eq!(followed("accept", &[rule]).as_deref(), Some(BEFORE));
    }
}

#[test]
fn a_rule_that_may_be_meant_is_not() {
    let drop = json!({ "drop": null });
    for matching in [
        payload("tcp", "dport", json!(443)),
        payload("udp", "dport", json!(80)),
        payload("ip", "saddr", json!("198.51.100.7")),
        payload("ip6", "daddr", json!("fd00::1")),
        payload("ip", "daddr", json!({ "prefix": { "addr": "192.0.2.0", "len": 24 } })),
        payload("ip", "daddr", json!("@banned")),
        state(json!("invalid")),
        json!({ "limit": { "rate": 10, "per": "second", "inv": true } }),
        json!({ "xt": { "type": "match", "name": "recent" } }),
    ] {
        assert_eq!(followed("accept", &[json!([matching, drop])]), None, "{matching}");
    }
}

#[test]
fn a_policy_drops_what_no_rule_accepts() {
    let accept = json!([payload("tcp", "dport", json!(80)), { "accept": null }]);
    let others = json!([payload("tcp", "dport", json!(22)), { "accept": null }]);
    let old = json!([state(json!(["established", "related"])), { "accept": null }]);
    assert_eq!(followed("drop", &[old.clone(), others.clone(), accept]), None);
    let asked = json!([{ "queue": { "num": 1 } }]);
    assert_eq!(followed("drop", &[asked]), None, "a program may let it in");
    let pings = json!([payload("icmp", "type", json!("echo-request")), { "accept": null }]);
    assert_eq!(
        followed("drop", &[old, pings, others]).as_deref(),
        Some("nft insert rule inet filter input ip daddr 10.0.0.100 tcp dport 80 accept")
    );
}

#[test]
fn jumps_are_followed() {
    let jump = json!([payload("tcp", "dport", json!(80)), { "jump": { "target": "web" } }]);
    let in_web = json!(["web", { "drop": null }]);
    assert_eq!(
        followed("accept", &[jump.clone(), in_web]).as_deref(),
        Some("nft insert rule inet filter web handle 11 ip daddr 10.0.0.100 tcp dport 80 accept")
    );
    let some = json!(["web", payload("ip", "saddr", json!("198.51.100.7")), { "drop": null }]);
    assert_eq!(followed("accept", &[jump.clone(), some]), None);
    let of_some = json!([payload("ip", "saddr", json!("@known")), { "jump": { "target": "web" } }]);
    let web_drops = json!(["web", { "drop": null }]);
    let of_policy = "nft insert rule inet filter input ip daddr 10.0.0.100 tcp dport 80 accept";
    assert_eq!(followed("drop", &[of_some, web_drops]).as_deref(), Some(of_policy), "nothing there accepts");
    let around = json!(["web", { "jump": { "target": "web" } }]);
    assert_eq!(followed("accept", &[jump, around]), None, "a circle ends");
}

#[test]
fn tables_of_convey_are_not_reported() {
    let of_table = |name: &str| {
        let text = json!({ "nftables": [{ "table": { "family": "inet", "name": name, "handle": 1 } },
            { "chain": { "family": "inet", "table": name, "name": "c", "handle": 1, "type": "filter", "hook": "input",
                "prio": 0, "policy": "drop" } }] });
        mended(read_json(&text.to_string()).unwrap())
    };
    assert_eq!(of_table("convey_77"), None);
    assert!(of_table("fw").is_some());
}

#[test]
fn a_chain_of_devices_sees_their_packets_alone() {
    let on = |dev: Value| {
        let text = json!({ "nftables": [{ "table": { "family": "netdev", "name": "fw", "handle": 1 } },
            { "chain": { "family": "netdev", "table": "fw", "name": "c", "handle": 1, "type": "filter",
                "hook": "ingress", "prio": 0, "policy": "drop", "dev": dev } }] });
        mended(read_json(&text.to_string()).unwrap())
    };
    let fix = "nft insert rule netdev fw c ip daddr 10.0.0.100 tcp dport 80 accept";
    assert_eq!(on(json!("eth0")).as_deref(), Some(fix));
    assert_eq!(on(json!(["eth1", "eth0"])).as_deref(), Some(fix));
    assert_eq!(on(json!("eth1")), None);
}

#[test]
fn iptables_rule_is_reported_only_if_it_applies_to_all_clients() {
    let followed = |rules: &[&str]| {
        let text = format!("*filter\n:INPUT ACCEPT [0:0]\n{}\nCOMMIT\n", rules.join("\n"));
        mended(read_save(&text, Tool::Iptables))
    };
    let rule = "-A INPUT -d 10.0.0.100/32 -p tcp -m tcp --dport 80 -j DROP";
    let fix = "iptables -t filter -I INPUT 1 -d 10.0.0.100 -p tcp --dport 80 -j ACCEPT";
    assert_eq!(followed(&[rule]).as_deref(), Some(fix));
    let redirect = "-A INPUT -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080";
    assert_eq!(followed(&[redirect]).as_deref(), Some(fix));
    for other in [
        "-A INPUT -s 198.51.100.7/32 -p tcp -m tcp --dport 80 -j DROP",
        "-A INPUT -p tcp -m tcp --dport 81:90 -j DROP",
        "-A INPUT -p tcp -m recent --set -j DROP",
        "-A OUTPUT -p tcp -j DROP",
    ] {
        assert_eq!(followed(&[other]), None, "{other}");
    }
    assert_eq!(followed(&["-A INPUT -p tcp -m tcp --dport 80 -j ACCEPT", rule]), None);
}
