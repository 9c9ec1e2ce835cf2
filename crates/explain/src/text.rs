//! Explanation as lines for a terminal. Pure.

use serde::Deserialize;

/// Shown part of an answer. Fields that another version lacks or adds are tolerated.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    client: String,
    frontend: String,
    vip: String,
    mode: String,
    protocol: String,
    backend: String,
    verdict: String,
    reason: Option<String>,
    server: Option<String>,
    address: Option<String>,
    depends_on: Option<String>,
    flow: Option<ShownFlow>,
    steps: Vec<ShownStep>,
    servers: Vec<ShownServer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShownFlow {
    over: bool,
    server: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShownStep {
    about: String,
    ends: bool,
    says: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShownServer {
    name: String,
    addr: String,
    weight: u16,
    weight_from: String,
    percent: u8,
    share: f64,
    why: String,
}

/// Formats an answer of `/v1/explain` as text.
///
/// # Errors
/// The text is not an answer of `/v1/explain`.
pub fn as_text(json: &str) -> Result<String, serde_json::Error> {
    let answer: Answer = serde_json::from_str(json)?;
    let mut lines = format!("{}\n\n", headline(&answer));
    for (number, step) in (1..).zip(&answer.steps) {
        let mark = if step.ends { "  <-- ends here" } else { "" };
        lines += &format!("{number:>3}. {:<10} {}{mark}\n", step.about, step.says);
    }
    if answer.servers.is_empty() {
        return Ok(lines);
    }
    lines += &format!("\nservers of backend {}:\n", answer.backend);
    let width = |of: fn(&ShownServer) -> usize| answer.servers.iter().map(of).max().unwrap_or(0);
    let (names, addrs) = (width(|server| server.name.len()), width(|server| server.addr.len()));
    for server in &answer.servers {
        let weight = match (&*server.weight_from, server.percent) {
            ("overlay", _) => format!("weight {} (overlay)", server.weight),
            (_, 100) => format!("weight {}", server.weight),
            (_, percent) => format!("weight {}, {percent} % of it", server.weight),
        };
        lines += &format!(
            "  {:names$}  {:addrs$}  {weight}, share {} %: {}\n",
            server.name, server.addr, server.share, server.why
        );
    }
    Ok(lines)
}

fn headline(answer: &Answer) -> String {
    let Answer { client, frontend, vip, mode, protocol, backend, .. } = answer;
    let at = format!("{client} at frontend {frontend} ({vip}, {mode} {protocol})");
    let reason = answer.reason.as_deref().unwrap_or("?");
    let stays = answer.flow.as_ref().filter(|flow| !flow.over).and_then(|flow| flow.server.as_ref());
    if let Some(server) = stays {
        return format!("{at} has a flow, with {server} at {}", answer.address.as_deref().unwrap_or("?"));
    }
    match (&*answer.verdict, &answer.server) {
        ("server", Some(server)) => {
            let moment = if answer.depends_on.is_some() { ", as things are now" } else { "" };
            let address = answer.address.as_deref().unwrap_or("?");
            format!("{at} gets {backend}/{server} at {address}{moment}")
        }
        ("one_of_them", _) => format!("{at} gets a server of {backend}; which one depends on its port"),
        ("answered", _) => format!("{at} gets an answer of convey itself: {reason}"),
        ("waits", _) => format!("{at} waits; in vain: {reason}"),
        _ => format!("{at} is refused: {reason}"),
    }
}
