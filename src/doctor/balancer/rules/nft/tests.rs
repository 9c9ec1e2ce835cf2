use std::collections::BTreeSet;

use serde_json::json;

use super::super::packet::Purpose;
use super::*;
use crate::model::Protocol;

fn client() -> Packet {
    Packet {
        purpose: Purpose::Client,
        hooks: &["ingress", "prerouting", "input"],
        is_ipv4: true,
        protocol: Protocol::Tcp,
        source: None,
        destination: Some("10.0.0.100".parse().unwrap()),
        source_port: None,
        destination_port: Some(80),
        is_new: true,
        interfaces: BTreeSet::from(["eth0".to_owned()]),
    }
}

/// What comes of rules in the chain `input` of a table, with this policy.
fn followed(policy: &str, rules: &[Value]) -> Option<String> {
    let chain = |name: &str, hook: Option<&str>| match hook {
        Some(hook) => json!({ "chain": { "family": "inet", "table": "filter", "name": name, "handle": 1,
            "type": "filter", "hook": hook, "prio": 0, "policy": policy } }),
        None => json!({ "chain": { "family": "inet", "table": "filter", "name": name, "handle": 2 } }),
    };
    let mut list = vec![chain("input", Some("input")), chain("web", None)];
    for (n, expr) in rules.iter().enumerate() {
        let chain = if expr.get(0) == Some(&json!("web")) { "web" } else { "input" };
        let expr: Vec<Value> =
            expr.as_array().unwrap().iter().filter(|part| part.is_object()).cloned().collect();
        list.push(json!({ "rule": { "family": "inet", "table": "filter", "chain": chain, "handle": n + 10,
            "expr": expr } }));
    }
    let text = json!({ "nftables": list }).to_string();
    NftRuleset::read(&text).follow(&client()).map(|culprit| culprit.mend)
}

fn payload(protocol: &str, field: &str, right: Value) -> Value {
    json!({ "match": { "op": "==", "left": { "payload": { "protocol": protocol, "field": field } }, "right": right } })
}

fn state(right: Value) -> Value {
    json!({ "match": { "op": "in", "left": { "ct": { "key": "state" } }, "right": right } })
}

const DELETE: &str = "nft delete rule inet filter input handle 10";

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
        vec![json!({ "counter": { "packets": 1, "bytes": 2 } })],
        vec![],
    ] {
        let rule = Value::Array([matching.clone(), vec![drop.clone()]].concat());
        assert_eq!(followed("accept", &[rule]).as_deref(), Some(DELETE), "{matching:?}");
    }
    let redirect = json!([payload("tcp", "dport", json!(80)), { "redirect": { "port": 8080 } }]);
    assert_eq!(followed("accept", &[redirect]).as_deref(), Some(DELETE));
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
    assert_eq!(
        followed("drop", &[old, others]).as_deref(),
        Some("nft insert rule inet filter input ip daddr 10.0.0.100 tcp dport 80 accept")
    );
}

#[test]
fn jumps_are_followed() {
    let jump = json!([payload("tcp", "dport", json!(80)), { "jump": { "target": "web" } }]);
    let in_web = json!(["web", { "drop": null }]);
    assert_eq!(
        followed("accept", &[jump.clone(), in_web]).as_deref(),
        Some("nft delete rule inet filter web handle 11")
    );
    let some = json!(["web", payload("ip", "saddr", json!("198.51.100.7")), { "drop": null }]);
    assert_eq!(followed("accept", &[jump.clone(), some]), None);
    let around = json!(["web", { "jump": { "target": "web" } }]);
    assert_eq!(followed("accept", &[jump, around]), None, "a circle ends");
}

#[test]
fn the_tables_of_convey_are_its_own_and_no_json_is_no_rule() {
    let chain = json!({ "nftables": [{ "chain": { "family": "inet", "table": "convey_77", "name": "c",
        "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": "drop" } }] });
    assert_eq!(NftRuleset::read(&chain.to_string()).follow(&client()), None);
    assert_eq!(NftRuleset::read("").follow(&client()), None);
}
