//! Commands that change the running convey: servers, backends, log level, reload.

mod http;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use convey_api::{
    AdditionReport, BackendReport, ChangeReport, LogLevelChange, LogLevelReport, MaintenanceChange,
    NewServer, ReloadReport, ResetReport, ServerChange, ServerReport,
};
use convey_explain::AskedRequest;
use convey_model::{AddedServer, AdminState, HttpTarget, LogLevel, ServerSettings, Target};
use humantime::format_duration;
use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{Client, Refused};

/// Characters of a path segment that are not percent-encoded, besides letters and digits.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Interval between two counts of a target's connections.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Change or query for the running convey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Sets the administrative state of servers.
    State(Target, AdminState),
    /// Sets the weight of a server.
    Weight(Target, u16),
    /// Adds a server that is not in the file.
    Add(Target, AddedServer),
    /// Removes a server.
    Remove(Target),
    /// Sets weights of a route's backends.
    RouteWeights(HttpTarget, Vec<(String, u32)>),
    /// Puts a frontend, a route or a backend into maintenance.
    Maintenance(HttpTarget, MaintenanceChange),
    /// Ends a maintenance.
    EndMaintenance(HttpTarget),
    /// Sets the log level.
    LogLevel(LogLevel),
    /// Prints the log level.
    ShowLogLevel,
    /// Restores the log level of the command line and the file.
    ResetLogLevel,
    /// Undoes runtime overrides of a target; `None` undoes all.
    Reset(Option<Target>),
    /// Undoes runtime overrides of a route, or of a frontend with its routes.
    ResetHttp(HttpTarget),
    /// Reloads the file.
    Reload,
}

/// A change of the running convey, and whether it may withdraw announced addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The change itself.
    pub wanted: Wanted,
    /// Whether the change may withdraw announced addresses.
    pub is_forced: bool,
}

impl From<Wanted> for Change {
    /// Returns a change that may not withdraw an announced address.
    fn from(wanted: Wanted) -> Change {
        Change { wanted, is_forced: false }
    }
}

/// Path of the log level in the control API.
const LOG_LEVEL: &str = "/v1/log-level";

/// Sends the change to the running convey, and returns the text to print.
///
/// # Errors
/// convey refused the change, or did not respond.
pub async fn carry_out(client: &Client, change: &Change) -> Result<String, Refused> {
    let Change { wanted, is_forced } = change;
    let is_forced = *is_forced;
    match wanted {
        Wanted::State(target, state) => {
            let change = ServerChange { state: Some(state.name().into()), weight: None, force: is_forced };
            steer(client, target, &change, state.name()).await
        }
        Wanted::Weight(target, weight) => {
            let change = ServerChange { state: None, weight: Some(*weight), force: is_forced };
            steer(client, target, &change, &format!("weight {weight}")).await
        }
        Wanted::Add(target, server) => add(client, target, server).await,
        Wanted::Remove(target) => {
            let of = path(target) + if is_forced { "?force=true" } else { "" };
            let ChangeReport { warnings, .. } = client.change(Method::DELETE, &of, None).await?;
            Ok(format!("{}{target}: removed\n", printed(&warnings)))
        }
        Wanted::RouteWeights(target, weights) => http::set_weights(client, target, weights).await,
        Wanted::Maintenance(target, change) => http::begin_maintenance(client, target, change).await,
        Wanted::EndMaintenance(target) => http::end_maintenance(client, target).await,
        Wanted::LogLevel(level) => {
            let body = json(&LogLevelChange { level: level.name().into() })?;
            let ChangeReport { changed, .. } = client.change(Method::PUT, LOG_LEVEL, Some(&body)).await?;
            Ok(format!("log level: {}{}\n", level.name(), if changed { "" } else { " already" }))
        }
        Wanted::ShowLogLevel => {
            let LogLevelReport { level, .. } = client.get(LOG_LEVEL).await?;
            Ok(format!("{level}\n"))
        }
        Wanted::ResetLogLevel => {
            let ChangeReport { .. } = client.change(Method::DELETE, LOG_LEVEL, None).await?;
            let LogLevelReport { level, .. } = client.get(LOG_LEVEL).await?;
            Ok(format!("log level: {level}, from the command line or the file\n"))
        }
        Wanted::Reset(target) => {
            let of = overlays(target.as_ref());
            let ResetReport { reset } = client.change(Method::DELETE, &of, None).await?;
            if let Some(target) = target.as_ref().filter(|_| reset.is_empty()) {
                // A misspelled name has no overrides, either: it is an error.
                servers_of(client, target).await?;
            }
            let of = target.as_ref().map_or_else(|| "everything".to_owned(), Target::to_string);
            Ok(undone(&of, reset.len()))
        }
        Wanted::ResetHttp(target) => http::reset(client, target).await,
        Wanted::Reload => {
            let reloaded: ReloadReport = client.change(Method::POST, "/v1/reload", None).await?;
            Ok(changes_text(reloaded))
        }
    }
}

/// Text about the number of changes that were undone.
fn undone(of: &str, changes: usize) -> String {
    match changes {
        0 => format!("{of}: no change to undo, the file applies\n"),
        1 => format!("{of}: 1 change undone, the file applies again\n"),
        some => format!("{of}: {some} changes undone, the file applies again\n"),
    }
}

/// Text about the changes of a reload, and about parts of the file that are not in force.
fn changes_text(ReloadReport { changes, needs_restart, refused_certificates }: ReloadReport) -> String {
    let needs_restart = needs_restart.iter().map(|change| format!("{change} needs restart"));
    let changed: String =
        changes.into_iter().chain(needs_restart).map(|line| format!("reload: {line}\n")).collect();
    let refused = refused_certificates
        .iter()
        .map(|chain| format!("reload: {chain} is refused; the log has the reason\n"));
    let said = changed + &refused.collect::<String>();
    if said.is_empty() { "reloaded: no effective changes\n".to_owned() } else { said }
}

/// Waits until a target has no open connection, and reports each change of their number.
///
/// # Errors
/// Connections are left after `patience`, the target is ready again or removed, or convey no longer
/// responds.
pub async fn wait_until_idle(
    client: &Client,
    target: &Target,
    patience: Duration,
    mut tell: impl FnMut(&str),
) -> Result<(), Refused> {
    let mut before = None;
    let idle = async {
        loop {
            let open = open_connections(client, target).await?;
            if before != Some(open) {
                tell(&format!("{target}: {}\n", left(open)));
            }
            before = Some(open);
            if open == 0 {
                return Ok(());
            }
            sleep(LOOK_EVERY).await;
        }
    };
    let ended = timeout(patience, idle).await;
    ended.unwrap_or_else(|_| {
        let (open, time) = (before.map_or_else(|| "no response".to_owned(), left), format_duration(patience));
        Err(Refused(format!("{target}: {open} after {time}")))
    })
}

/// Returns the number of open connections of a target.
///
/// # Errors
/// A server of the target is ready again and gets connections, or the target was removed, so that
/// the number is unknown.
async fn open_connections(client: &Client, target: &Target) -> Result<u64, Refused> {
    let servers = servers_of(client, target).await?;
    match servers.iter().find(|(_, server)| server.state == AdminState::Ready.name()) {
        Some((name, _)) => {
            let ready = Target::server(&target.backend, name);
            Err(Refused(format!("{ready} is ready again, so it gets new connections")))
        }
        None => Ok(servers.values().map(|server| server.traffic.current_connections).sum()),
    }
}

/// Servers that a target includes.
///
/// # Errors
/// The backend or the server does not exist.
async fn servers_of(client: &Client, target: &Target) -> Result<BTreeMap<String, ServerReport>, Refused> {
    let of = Target::backend(&target.backend);
    let BackendReport { mut servers, .. } = client.get(&path(&of)).await?;
    servers.retain(|name, _| target.includes(&target.backend, name));
    match &target.server {
        Some(server) if servers.is_empty() => {
            Err(Refused(format!("backend {} has no server {server}", target.backend)))
        }
        _ => Ok(servers),
    }
}

fn left(open: u64) -> String {
    match open {
        0 => "no connection is left".to_owned(),
        1 => "1 connection is left".to_owned(),
        some => format!("{some} connections are left"),
    }
}

async fn add(client: &Client, target: &Target, server: &AddedServer) -> Result<String, Refused> {
    let ServerSettings { weight, backup, max_connections } = server.settings;
    let body = json(&NewServer {
        addr: server.addr.clone(),
        weight: Some(weight),
        backup,
        max_connections: max_connections.and_then(NonZeroU32::new),
    })?;
    let AdditionReport { new, warnings } = client.change(Method::PUT, &path(target), Some(&body)).await?;
    let warnings = printed(&warnings);
    Ok(format!("{warnings}{target}: {} at {server}\n", if new { "added" } else { "now" }))
}

async fn steer(
    client: &Client,
    target: &Target,
    change: &ServerChange,
    what: &str,
) -> Result<String, Refused> {
    let body = json(change)?;
    let ChangeReport { changed, warnings } = client.change(Method::PATCH, &path(target), Some(&body)).await?;
    let warnings = printed(&warnings);
    Ok(format!("{warnings}{target}: {what}{}\n", if changed { "" } else { " already" }))
}

fn json(body: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(body).map_err(|error| Refused(error.to_string()))
}

/// Text of the warnings, one per line.
fn printed(warnings: &[String]) -> String {
    warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
}

/// Path of a target in the control API.
fn path(target: &Target) -> String {
    let backend = format!("/v1/backends/{}", escaped(&target.backend));
    match &target.server {
        Some(server) => format!("{backend}/servers/{}", escaped(server)),
        None => backend,
    }
}

fn overlays(target: Option<&Target>) -> String {
    match target {
        Some(Target { backend, server: Some(server) }) => {
            format!("/v1/overlays?backend={}&server={}", escaped(backend), escaped(server))
        }
        Some(Target { backend, server: None }) => format!("/v1/overlays?backend={}", escaped(backend)),
        None => "/v1/overlays".to_owned(),
    }
}

fn escaped(name: &str) -> String {
    utf8_percent_encode(name, IN_PATH).to_string()
}

/// Path of the control API that explains which server a client of a frontend gets.
pub fn explain_path(client: &str, frontend: &str, request: Option<&AskedRequest>) -> String {
    let [client, frontend] = [client, frontend].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    let path = format!("/v1/explain?client={client}&frontend={frontend}");
    let Some(request) = request else { return path };
    let (url, method, headers) = (request.to_string(), request.method(), request.headers().join("\n"));
    let [url, method, headers] =
        [&url, &*method, &headers].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
    format!("{path}&url={url}&method={method}&headers={headers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_is_escaped_as_one_path_segment() {
        let name = Target::server("web", "app.example/[2001:db8::1]:80?#");
        let escaped = "app.example%2F%5B2001%3Adb8%3A%3A1%5D%3A80%3F%23";
        assert_eq!(path(&name), format!("/v1/backends/web/servers/{escaped}"));
        assert_eq!(overlays(Some(&name)), format!("/v1/overlays?backend=web&server={escaped}"));
        assert_eq!(path(&Target::backend("web")), "/v1/backends/web");
    }
}
