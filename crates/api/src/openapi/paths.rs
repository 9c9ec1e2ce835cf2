//! Paths of the API.

use serde_json::{Value, json};

use super::operation::{BAD, Describe, Operation};
use super::schemas::Schemas;
use crate::{
    AccessReport, AdditionReport, BackendReport, ChangeReport, EventParameters, EventReport,
    ExplainParameters, Explanation, FlowListReport, FlowParameters, KilledFlow, LogLevelChange,
    LogLevelReport, MaintenanceChange, NewServer, OverlayParameters, OverlayReport, ReloadReport,
    RemovalParameters, ResetReport, RouteChange, ServerChange, ServerReport, StatsReport, TraceParameters,
};

const BACKEND: &str = "/v1/backends/{backend}";
const SERVER: &str = "/v1/backends/{backend}/servers/{server}";
const ROUTE: &str = "/v1/frontends/{frontend}/routes/{route}";
/// Paths of maintenance, each with the object that it applies to.
const MAINTENANCE: [(&str, &str); 3] = [
    ("/v1/frontends/{frontend}/maintenance", "a frontend"),
    ("/v1/frontends/{frontend}/routes/{route}/maintenance", "a route"),
    ("/v1/backends/{backend}/maintenance", "a backend"),
];
const FLOW: &str = "/v1/flows/{id}";
const OVERLAYS: &str = "/v1/overlays";
const LOG_LEVEL: &str = "/v1/log-level";

const UNKNOWN: &str = "There is no backend or server of this name.";
const CONFLICT: &str = "The change is not possible.";
const DONE: &str = "The change has taken effect.";

/// Description of each path and method.
pub(super) fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let mut all = read(schemas);
    all.extend(servers(schemas));
    all.extend(routes(schemas));
    all.extend(maintenance(schemas));
    all.extend(flows(schemas));
    all.extend(program(schemas));
    all
}

/// Parameters within a path.
pub(super) fn parameters(path: &str) -> Vec<Value> {
    let names = [
        ("backend", "Name of the backend."),
        (
            "server",
            "Name of the server. If the server has a host name, NAME/ADDRESS selects one of its addresses.",
        ),
        ("frontend", "Name of the frontend."),
        ("route", "Name of the route."),
        ("id", "Identifier of the flow, from the list."),
    ];
    let in_path = names.into_iter().filter(|(name, _)| path.contains(&format!("{{{name}}}")));
    let parameter = |(name, description): (&str, &str)| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "path", "required": true, "schema": schema, "description": description })
    };
    in_path.map(parameter).collect()
}

fn read(schemas: &mut Schemas) -> Vec<Operation> {
    let any = json!({ "application/json": { "schema": { "type": "object" } } });
    vec![
        Describe::read(schemas, "/v1/openapi.json", "This description.").ok_with("OpenAPI 3.1.", any).end(),
        Describe::read(schemas, "/v1/access", "Rights of the requester.")
            .ok::<AccessReport>(200, "The requester, and its rights.")
            .end(),
        Describe::read(schemas, "/v1/status", "Complete status.")
            .ok::<StatsReport>(200, "The status.")
            .end(),
        Describe::read(schemas, "/v1/events", "Recent events.")
            .query::<EventParameters>()
            .ok::<Vec<EventReport>>(200, "The last 1,000 events, the oldest first.")
            .or(400, BAD)
            .end(),
        Describe::read_clients(
            schemas,
            "/v1/explain",
            "Which server a client of a frontend gets now, and why. The query does not advance round robin, occupies no slot, \
             and does not count toward limits.",
        )
        .query::<ExplainParameters>()
        .ok::<Explanation>(200, "Explanation of the client's treatment.")
        .or(400, BAD)
        .or(404, "There is no such frontend.")
        .end(),
    ]
}

fn servers(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        Describe::read(schemas, BACKEND, "One backend.")
            .ok::<BackendReport>(200, "The backend.")
            .or(404, UNKNOWN)
            .end(),
        Describe::change(schemas, ("patch", BACKEND), "Change the state of all servers of a backend.")
            .body::<ServerChange>()
            .ok::<ChangeReport>(200, DONE)
            .or(400, BAD)
            .or(404, UNKNOWN)
            .or(409, CONFLICT)
            .end(),
        Describe::read(schemas, SERVER, "One server.")
            .ok::<ServerReport>(200, "The server.")
            .or(404, UNKNOWN)
            .end(),
        Describe::change(schemas, ("patch", SERVER), "Change the state or the weight of a server.")
            .body::<ServerChange>()
            .ok::<ChangeReport>(200, DONE)
            .or(400, BAD)
            .or(404, UNKNOWN)
            .or(409, CONFLICT)
            .end(),
        Describe::change(
            schemas,
            ("put", SERVER),
            "Add a server that is not in the file, or change a server that was added this way.",
        )
        .body::<NewServer>()
        .ok::<AdditionReport>(200, "The server replaces an earlier addition or removal.")
        .ok::<AdditionReport>(201, "The server is new.")
        .or(400, BAD)
        .or(404, UNKNOWN)
        .or(409, CONFLICT)
        .end(),
        Describe::change(
            schemas,
            ("delete", SERVER),
            "Remove a server. Its open connections continue, in packet modes for at most timeouts.drain.",
        )
        .query::<RemovalParameters>()
        .ok::<ChangeReport>(200, "The server gets no new connections.")
        .or(400, BAD)
        .or(404, UNKNOWN)
        .or(409, CONFLICT)
        .end(),
    ]
}

fn routes(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        Describe::change(schemas, ("patch", ROUTE), "Change the weights of a route's backends (mode http).")
            .body::<RouteChange>()
            .ok::<ChangeReport>(200, DONE)
            .or(400, BAD)
            .or(404, "There is no frontend, route or backend of this name.")
            .or(409, CONFLICT)
            .end(),
    ]
}

fn maintenance(schemas: &mut Schemas) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, object) in MAINTENANCE {
        let starts =
            format!("Put {object} into maintenance: convey answers its requests with a page (mode http).");
        let none = "There is no such object.";
        all.push(
            Describe::change(schemas, ("put", path), &starts)
                .body::<MaintenanceChange>()
                .or(413, "The body is longer than 524288 bytes.")
                .ok::<ChangeReport>(200, DONE)
                .or(400, BAD)
                .or(404, none)
                .or(409, CONFLICT)
                .end(),
        );
        all.push(
            Describe::change(schemas, ("delete", path), &format!("End the maintenance of {object}."))
                .ok::<ChangeReport>(200, DONE)
                .or(404, none)
                .or(409, CONFLICT)
                .end(),
        );
    }
    all
}

fn flows(schemas: &mut Schemas) -> Vec<Operation> {
    let lines = json!({ "application/x-ndjson": { "schema": { "$ref": "#/components/schemas/TraceLine" } } });
    vec![
        Describe::read_clients(
            schemas,
            "/v1/flows",
            "Open connections, sessions and packet flows. The workers list their flows in slices: a flow that stays open until \
             the list is complete is in it exactly once.",
        )
        .query::<FlowParameters>()
        .ok::<FlowListReport>(200, "The first matching flows, or groups.")
        .or(400, BAD)
        .or(404, "No flow matches, and there is no frontend, backend or server of this name.")
        .or(503, "convey is already making too many lists, or a worker did not answer in time.")
        .end(),
        Describe::change(schemas, ("delete", FLOW), "End a flow.")
            .ok::<KilledFlow>(200, "The flow that was ended.")
            .or(400, "This is not the identifier of a flow.")
            .or(404, "The flow has already ended.")
            .or(503, "A worker did not answer in time.")
            .end(),
        Describe::change(
            schemas,
            ("get", "/v1/trace"),
            "Live events of connections, requests and packets, one line of JSON each, until the client disconnects. A trace \
             requires the right to change the configuration, because its events contain clients' packets.",
        )
        .query::<TraceParameters>()
        .ok_with("Lines until the trace ends. The last line has the reason.", lines)
        .or(400, BAD)
        .or(404, "There is no frontend, backend or server of this name.")
        .or(429, "Four traces run already, or this client address has sent too many wrong tokens.")
        .end(),
    ]
}

fn program(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        Describe::read(schemas, OVERLAYS, "Runtime overrides, which take precedence over the file.")
            .ok::<Vec<OverlayReport>>(200, "The overrides.")
            .end(),
        Describe::change(
            schemas,
            ("delete", OVERLAYS),
            "Remove runtime overrides: the values in the file apply again.",
        )
        .query::<OverlayParameters>()
        .ok::<ResetReport>(200, "The removed overrides.")
        .or(400, BAD)
        .end(),
        Describe::change(schemas, ("post", "/v1/reload"), "Reload the file.")
            .ok::<ReloadReport>(
                200,
                "One line for each change, and for each refused certificate of a folder.",
            )
            .or(422, "convey refused the file, and keeps the running configuration.")
            .end(),
        Describe::read(schemas, LOG_LEVEL, "Level of the log.").ok::<LogLevelReport>(200, "The level.").end(),
        Describe::change(schemas, ("put", LOG_LEVEL), "Change the level of the log.")
            .body::<LogLevelChange>()
            .ok::<ChangeReport>(200, DONE)
            .or(400, BAD)
            .end(),
        Describe::change(
            schemas,
            ("delete", LOG_LEVEL),
            "Remove the override: the level from the command line, RUST_LOG or the file applies again.",
        )
        .ok::<ChangeReport>(200, DONE)
        .end(),
    ]
}
