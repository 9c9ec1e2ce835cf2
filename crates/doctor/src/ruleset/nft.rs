//! Parses the JSON of `nft -j list ruleset` into [`Table`]s. Pure.

use serde_json::Value as Json;

use super::{Action, Base, Chain, Condition, NewSource, Rule, Subject, Table, Tool, Value, Values};

/// Parses the tables in the JSON of nft; `None` if the text is not such JSON.
pub fn read_json(text: &str) -> Option<Vec<Table>> {
    let json: Json = serde_json::from_str(text).ok()?;
    let mut tables: Vec<Table> = Vec::new();
    for object in json.get("nftables")?.as_array()? {
        let Some((kind, it)) = object.as_object().and_then(|object| object.iter().next()) else { continue };
        let family = word(it, "family");
        if kind == "table" {
            let (name, tool) = (word(it, "name"), Tool::Nft);
            tables.push(Table { tool, family, name, chains: Vec::new(), sets: Vec::new() });
            continue;
        }
        let of = word(it, "table");
        let Some(table) = tables.iter_mut().find(|table| table.family == family && table.name == of) else {
            continue;
        };
        match kind.as_str() {
            "chain" => table.chains.push(chain(it)),
            "set" => table.sets.push((word(it, "name"), values(&it["elem"]))),
            "rule" => {
                let of = word(it, "chain");
                let chain = table.chains.iter_mut().find(|chain| chain.name == of);
                chain.into_iter().for_each(|chain| chain.rules.push(rule(it)));
            }
            _ => {}
        }
    }
    Some(tables)
}

fn chain(it: &Json) -> Chain {
    let base = it.get("hook").and_then(Json::as_str).map(|hook| Base {
        hook: hook.to_owned(),
        priority: it["prio"].as_i64().unwrap_or(0),
        drops: it["policy"] == "drop",
        devices: match &it["dev"] {
            Json::Array(names) => names.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
            name => name.as_str().map(str::to_owned).into_iter().collect(),
        },
    });
    Chain { name: word(it, "name"), base, rules: Vec::new() }
}

fn rule(it: &Json) -> Rule {
    let mut rule =
        Rule { number: it["handle"].as_u64().unwrap_or(0), conditions: Vec::new(), actions: Vec::new() };
    for expression in it["expr"].as_array().into_iter().flatten() {
        let Some((kind, it)) = expression.as_object().and_then(|object| object.iter().next()) else {
            continue;
        };
        match kind.as_str() {
            "match" => rule.conditions.extend(conditions(it)),
            "vmap" => match map(it) {
                Some((needed, action)) => {
                    rule.conditions.extend(needed);
                    rule.actions.push(action);
                }
                None => may_accept(&mut rule),
            },
            // A program in user space decides about the packet.
            "queue" => may_accept(&mut rule),
            "mangle" => rule.actions.extend(set_source(it)),
            // These statements let every packet pass.
            "counter" | "log" | "comment" | "notrack" | "meter" | "set" | "ct helper" => {}
            _ => match action(kind, it) {
                Some(action) => rule.actions.push(action),
                None => rule.conditions.push(Condition::Unknown),
            },
        }
    }
    rule
}

fn may_accept(rule: &mut Rule) {
    rule.conditions.push(Condition::Unknown);
    rule.actions.push(Action::Accept);
}

fn action(kind: &str, it: &Json) -> Option<Action> {
    match kind {
        "accept" => Some(Action::Accept),
        "drop" => Some(Action::Drop),
        "reject" => Some(Action::Reject),
        // An iptables target that has no nft equivalent.
        "xt" if it["type"] == "target" && it["name"] == "REJECT" => Some(Action::Reject),
        "redirect" | "dnat" | "tproxy" | "fwd" => Some(Action::Redirect),
        "masquerade" | "snat" => Some(Action::SourceNat(new_source(it))),
        "xt" if it["type"] == "target" && it["name"] == "MASQUERADE" => {
            Some(Action::SourceNat(NewSource::default()))
        }
        "return" => Some(Action::Return),
        "jump" => Some(Action::Jump(word(it, "target"))),
        "goto" => Some(Action::Goto(word(it, "target"))),
        _ => None,
    }
}

/// Parses `masquerade to :1024-33767` and `snat to 10.0.0.1:1024-33767`. An address from a map or a
/// range is treated as any address.
fn new_source(it: &Json) -> NewSource {
    let port = |json: &Json| json.as_u64().and_then(|port| port.try_into().ok());
    let range = |json: &Json| Some((port(json.get(0)?)?, port(json.get(1)?)?));
    let ports = it
        .get("port")
        .and_then(|it| it.get("range").and_then(range).or_else(|| port(it).map(|port| (port, port))));
    let address = it.get("addr").and_then(Json::as_str).and_then(|text| text.parse().ok());
    NewSource { address, ports }
}

/// Parses `ip saddr set 10.0.0.100`.
fn set_source(it: &Json) -> Option<Action> {
    let field = it.pointer("/key/payload/field")?;
    let vip = it["value"].as_str()?.parse().ok()?;
    (field == "saddr").then_some(Action::SetSource(vip))
}

/// Parses a comparison into a condition, and adds the conditions that it implies.
fn conditions(it: &Json) -> Vec<Condition> {
    let (subject, mut conditions) = subject(&it["left"]);
    let values = match it["right"].as_str() {
        Some(set) if set.starts_with('@') => Values::Set(set[1..].to_owned()),
        _ => Values::These(values(&it["right"])),
    };
    conditions.push(match (subject, it["op"].as_str()) {
        (Some(subject), Some("==" | "in")) => Condition::Is { subject, values, negated: false },
        (Some(subject), Some("!=")) => Condition::Is { subject, values, negated: true },
        _ => Condition::Unknown,
    });
    conditions
}

/// Packet property on the left side of a comparison; `None` if doctor does not model it. Also
/// returns the conditions that the left side implies: `tcp dport` implies that the protocol is TCP.
fn subject(left: &Json) -> (Option<Subject>, Vec<Condition>) {
    if let Some(payload) = left.get("payload") {
        let (protocol, field) = (word(payload, "protocol"), word(payload, "field"));
        let taken = match protocol.as_str() {
            "ip" => Some((Subject::Family, "ipv4")),
            "ip6" => Some((Subject::Family, "ipv6")),
            "arp" => Some((Subject::EtherType, "arp")),
            "icmpv6" => Some((Subject::Protocol, "ipv6-icmp")),
            "tcp" | "udp" | "icmp" => Some((Subject::Protocol, protocol.as_str())),
            _ => None,
        };
        let subject = match (protocol.as_str(), field.as_str()) {
            ("ip" | "ip6", "saddr") => Some(Subject::Source),
            ("ip" | "ip6", "daddr") => Some(Subject::Destination),
            ("ip" | "ip6", "protocol" | "nexthdr") => Some(Subject::Protocol),
            ("tcp" | "udp" | "th", "sport") => Some(Subject::SourcePort),
            ("tcp" | "udp" | "th", "dport") => Some(Subject::DestinationPort),
            ("ether", "type") => Some(Subject::EtherType),
            _ => None,
        };
        let is = |(subject, word): (_, &str)| Condition::Is {
            subject,
            values: Values::These(vec![Value::Word(word.to_owned())]),
            negated: false,
        };
        return (subject, taken.map(is).into_iter().collect());
    }
    let key = |kind: &str| left.get(kind).and_then(|it| it["key"].as_str());
    let subject = match (key("meta"), key("ct")) {
        (Some("l4proto"), _) => Some(Subject::Protocol),
        (Some("iif" | "iifname"), _) => Some(Subject::InInterface),
        (Some("oif" | "oifname"), _) => Some(Subject::OutInterface),
        (Some("nfproto"), _) => Some(Subject::Family),
        (Some("protocol"), _) => Some(Subject::EtherType),
        (_, Some("state")) => Some(Subject::State),
        _ => None,
    };
    (subject, Vec::new())
}

/// Parses `ct state vmap { established : accept }`.
fn map(it: &Json) -> Option<(Vec<Condition>, Action)> {
    let (subject, taken) = subject(&it["key"]);
    let subject = subject?;
    let pairs = it.pointer("/data/set")?.as_array()?;
    let pair = |pair: &Json| {
        let (kind, verdict) = pair.get(1)?.as_object()?.iter().next()?;
        Some((value(pair.get(0)?), action(kind, verdict)?))
    };
    Some((taken, Action::Map(subject, pairs.iter().map(pair).collect::<Option<_>>()?)))
}

fn values(json: &Json) -> Vec<Value> {
    match (json.as_array(), json.get("set").and_then(Json::as_array)) {
        (Some(list), _) | (_, Some(list)) => list.iter().map(value).collect(),
        _ if json.is_null() => Vec::new(),
        _ => vec![value(json)],
    }
}

fn value(json: &Json) -> Value {
    let range = |range: &Json| match (value(range.get(0)?), value(range.get(1)?)) {
        (Value::Numbers(from, _), Value::Numbers(to, _)) => Some(Value::Numbers(from, to)),
        (Value::Network(from, _), Value::Network(to, _)) => Some(Value::Addresses(from, to)),
        _ => None,
    };
    let prefix = |prefix: &Json| {
        Some(Value::Network(prefix["addr"].as_str()?.parse().ok()?, prefix["len"].as_u64()?.try_into().ok()?))
    };
    let read = match json {
        Json::Number(number) => number.as_u64().map(|number| Value::Numbers(number, number)),
        Json::String(text) => Some(Value::read(text)),
        // The element has a timeout, a counter or a comment.
        _ => match (json.get("range"), json.get("prefix"), json.pointer("/elem/val")) {
            (Some(it), ..) => range(it),
            (_, Some(it), _) => prefix(it),
            (.., Some(it)) => Some(value(it)),
            _ => None,
        },
    };
    read.unwrap_or(Value::Unknown)
}

fn word(it: &Json, key: &str) -> String {
    it[key].as_str().unwrap_or_default().to_owned()
}
