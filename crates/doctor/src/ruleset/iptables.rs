//! Parses the output of `iptables-save` into [`Table`]s. Pure.

use std::net::IpAddr;

use super::{Action, Base, Chain, Condition, NewSource, Rule, Subject, Table, Tool, Value, Values};

/// Parses the tables in the output of `iptables-save`.
pub fn read_save(text: &str, tool: Tool) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            let family = if tool == Tool::Ip6tables { "ip6" } else { "ip" };
            let (family, name) = (family.to_owned(), name.to_owned());
            tables.push(Table { tool, family, name, chains: Vec::new(), sets: Vec::new() });
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':') {
            table.chains.extend(read_chain(chain, &table.name));
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some(chain) = table.chains.iter_mut().find(|chain| chain.name == name) {
                chain.rules.push(read_rule(rest, chain.rules.len() as u64 + 1));
            }
        }
    }
    tables
}

/// Parses a chain such as `INPUT DROP [0:0]`. User-defined chains have no policy.
fn read_chain(text: &str, table: &str) -> Option<Chain> {
    let mut words = text.split(' ');
    let (name, policy) = (words.next()?, words.next()?);
    let is_base = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"].contains(&name);
    let priority = match table {
        "raw" => -300,
        "mangle" => -150,
        "nat" if ["POSTROUTING", "INPUT"].contains(&name) => 100,
        "nat" => -100,
        _ => 0,
    };
    let base = is_base.then(|| Base {
        hook: name.to_lowercase(),
        priority,
        drops: policy == "DROP",
        devices: Vec::new(),
    });
    Some(Chain { name: name.to_owned(), base, rules: Vec::new() })
}

fn read_rule(text: &str, number: u64) -> Rule {
    let mut rule = Rule { number, conditions: Vec::new(), actions: Vec::new() };
    let (mut words, mut negated) = (text.split(' '), false);
    while let Some(word) = words.next() {
        if word == "!" {
            negated = true;
            continue;
        }
        let subject = match word {
            "-m" | "--comment" => {
                skip(&mut words);
                continue;
            }
            // Conditions end with `-j`; the options of the target follow.
            "-j" => {
                rule.actions.extend(words.next().and_then(|target| match target {
                    "MASQUERADE" | "SNAT" => Some(Action::SourceNat(new_source(words.clone()))),
                    _ => self::target(target),
                }));
                break;
            }
            "-g" => {
                rule.actions.extend(words.next().map(|chain| Action::Goto(chain.to_owned())));
                break;
            }
            "-p" => Subject::Protocol,
            "-s" => Subject::Source,
            "-d" => Subject::Destination,
            "-i" => Subject::InInterface,
            "-o" => Subject::OutInterface,
            "--dport" | "--dports" => Subject::DestinationPort,
            "--sport" | "--sports" => Subject::SourcePort,
            "--state" | "--ctstate" => Subject::State,
            _ => {
                rule.conditions.push(Condition::Unknown);
                negated = false;
                continue;
            }
        };
        let values = words.next().unwrap_or_default().split(',').map(|text| value(subject, text)).collect();
        rule.conditions.push(Condition::Is { subject, values: Values::These(values), negated });
        negated = false;
    }
    rule
}

/// Skips one word, or several words within quotes.
fn skip<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let Some(first) = words.next() else { return };
    if first.starts_with('"') && !(first.len() > 1 && first.ends_with('"')) {
        words.find(|word| word.ends_with('"'));
    }
}

fn target(word: &str) -> Option<Action> {
    match word {
        "ACCEPT" => Some(Action::Accept),
        "DROP" => Some(Action::Drop),
        "REJECT" => Some(Action::Reject),
        "RETURN" => Some(Action::Return),
        "REDIRECT" | "DNAT" | "TPROXY" => Some(Action::Redirect),
        // Targets of extensions change or count the packet. Evaluation continues with the next
        // rule.
        _ if word.chars().all(|letter| letter.is_ascii_uppercase()) && is_extension(word) => None,
        _ => Some(Action::Jump(word.to_owned())),
    }
}

/// Parses `--to-ports 1024-33767` and `--to-source 10.0.0.1:1024-33767`. A range of addresses is
/// treated as any address.
fn new_source<'a>(mut words: impl Iterator<Item = &'a str>) -> NewSource {
    let mut source = NewSource::default();
    while let Some(word) = words.next() {
        let text = match word {
            "--to-ports" | "--to-source" => words.next().unwrap_or_default(),
            _ => continue,
        };
        let is_bare_v6 = text.parse::<IpAddr>().is_ok();
        let (address, ports) = match text.rsplit_once(':') {
            _ if is_bare_v6 => (text, ""),
            Some(both) => both,
            None if word == "--to-ports" => ("", text),
            None => (text, ""),
        };
        source.address = address.trim_matches(['[', ']']).parse().ok();
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        source.ports = first.parse().ok().zip(last.parse().ok());
    }
    source
}

fn is_extension(word: &str) -> bool {
    ["LOG", "NFLOG", "MARK", "CONNMARK", "CT", "NOTRACK", "TCPMSS", "DSCP", "TRACE", "CLASSIFY"]
        .contains(&word)
}

fn value(subject: Subject, text: &str) -> Value {
    match subject {
        Subject::DestinationPort | Subject::SourcePort => match text.split_once(':') {
            Some((from, to)) => match (from.parse(), to.parse()) {
                (Ok(from), Ok(to)) => Value::Numbers(from, to),
                _ => Value::Unknown,
            },
            None => Value::read(text),
        },
        Subject::State => Value::Word(text.to_lowercase()),
        // At the end of a name, nft writes `*` where iptables writes `+`.
        Subject::InInterface | Subject::OutInterface => Value::Word(text.replace('+', "*")),
        _ => Value::read(text),
    }
}
