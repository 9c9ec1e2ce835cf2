//! Formats an explanation for a terminal. Pure.

use convey_api::{ClientVerdict, Explanation, ServerNote};

/// Formats an explanation as text.
pub fn as_text(answer: &Explanation) -> String {
    let mut lines = format!("{}\n\n", headline(answer));
    for (number, step) in (1..).zip(&answer.steps) {
        let mark = if step.ends { "  <-- ends here" } else { "" };
        let phase = step.phase.as_ref().map_or_else(String::new, |phase| format!(" (phase {phase})"));
        lines += &format!("{number:>3}. {:<10} {}{phase}{mark}\n", step.subject, step.message);
    }
    if answer.servers.is_empty() {
        return lines;
    }
    lines += &format!("\nservers of backend {}:\n", answer.backend);
    let width = |of: fn(&ServerNote) -> usize| answer.servers.iter().map(of).max().unwrap_or(0);
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
    lines
}

fn headline(answer: &Explanation) -> String {
    let Explanation { client, frontend, vip, mode, protocol, backend, .. } = answer;
    let at = format!("{client} at frontend {frontend} ({vip}, {mode} {protocol})");
    let reason = answer.reason.as_deref().unwrap_or("?");
    let address = answer.address.as_deref().unwrap_or("?");
    let stays = answer.flow.as_ref().filter(|flow| !flow.over).and_then(|flow| flow.server.as_ref());
    if let Some(server) = stays {
        return format!("{at} has a flow with {server} at {address}");
    }
    match (answer.verdict, &answer.server) {
        (ClientVerdict::Server, Some(server)) => {
            let moment = if answer.depends_on.is_some() { ", as things are now" } else { "" };
            format!("{at} gets {backend}/{server} at {address}{moment}")
        }
        (ClientVerdict::OneOfThem, _) => {
            format!("{at} gets a server of {backend}; the choice depends on the client's port")
        }
        (ClientVerdict::Answered, _) => format!("{at} gets an answer from convey itself: {reason}"),
        (ClientVerdict::Waits, _) => format!("{at} has to wait: {reason}"),
        (ClientVerdict::Refused | ClientVerdict::Server, _) => format!("{at} is refused: {reason}"),
    }
}
