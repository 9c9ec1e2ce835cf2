//! Checks that answers conform to `openapi.json`.

use std::collections::BTreeSet;

use convey_api::{ExplainedFlow, FlowsOfServer, OpenFlows};
use convey_control::{Done, EventKind, EventLevel, RemovedOverlays, RequestRefusal, Requested};
use convey_model::{
    AddedServer, AdminState, FlowActivity, FlowAnswer, FlowGroup, FlowKind, HttpOverlay, HttpOverlayValue,
    HttpTarget, ListedFlow, ListedFlowId, Maintenance, Mode, Overlay, OverlayValue, Protocol, SaidLogLevel,
    ServerSettings, Target,
};
use hyper::header::CONTENT_TYPE;
use jsonschema::Validator;
use serde_json::{Value, json};

use super::*;
use crate::flows::flow_list_report;

pub(super) fn description() -> Value {
    serde_json::from_str(convey_api::OPENAPI).unwrap()
}

/// Validator for a schema of the API description.
pub(super) fn validator(schema: &Value) -> Validator {
    let whole = json!({ "allOf": [schema], "components": description()["components"] });
    jsonschema::options().build(&whole).unwrap()
}

pub(super) fn schema_of<'a>(description: &'a Value, path: &str, method: &str, status: u16) -> &'a Value {
    let response = &description["paths"][path][method]["responses"][status.to_string()];
    let schema = &response["content"]["application/json"]["schema"];
    assert!(!schema.is_null(), "{method} {path} {status} is not described");
    schema
}

/// Sends a request as a requester who may change things.
async fn exchange(admin: &Admin, method: &Method, path: &str, body: Option<&Value>) -> (u16, Value) {
    let who = Requester { name: "root".to_owned(), address: None, may_change: true };
    let request = Request::builder().method(method).uri(path);
    let request = request.body(body.map(Value::to_string).unwrap_or_default());
    exchange_as(admin, who, request.unwrap()).await
}

/// Sends a request on behalf of this requester. Returns the status and the JSON of the answer.
pub(super) async fn exchange_as(admin: &Admin, who: Requester, request: Request<String>) -> (u16, Value) {
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let routes = admin.routes.clone().layer(axum::Extension(who));
    let service = hyper_util::service::TowerToHyperService::new(routes);
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service));
    let (mut client, connection) = handshake(TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    let (method, path) = (request.method().clone(), request.uri().clone());
    let request = request.map(http_body_util::Full::<Bytes>::from);
    let (head, body) = client.send_request(request).await.unwrap().into_parts();
    assert_eq!(head.headers[CONTENT_TYPE], "application/json", "{method} {path}");
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), serde_json::from_slice(&body).unwrap())
}

fn added() -> AddedServer {
    let settings = ServerSettings { max_connections: Some(3), ..ServerSettings::default() };
    AddedServer { addr: "10.0.0.9:80".to_owned(), settings }
}

/// Answers requests of operators as the control task does.
fn grant(mut requests: mpsc::Receiver<OperatorRequest>) {
    tokio::spawn(async move {
        while let Some(OperatorRequest { what, by, answer }) = requests.recv().await {
            let overlay = |target, value| {
                let (since, by) = (Timestamp(7), by.clone());
                Overlay { target, value, since, by, superseded: true }
            };
            let outcome = match what {
                Requested::Set(target, _) if target.backend != "app" => {
                    Err(RequestRefusal::Unknown(format!("there is no {target}")))
                }
                Requested::Set(_, OverlayValue::Weight(_)) => Err(RequestRefusal::Refused("full".into())),
                Requested::SetWeights(target, _) if target != HttpTarget::route("web", "a") => {
                    Err(RequestRefusal::Unknown(format!("there is no {target}")))
                }
                Requested::SetWeights(_, weights) if weights.contains_key("single") => {
                    Err(RequestRefusal::Refused("one backend".into()))
                }
                Requested::SetWeights(..) => Ok(Done::Set { has_changed: true }),
                Requested::SetMaintenance(HttpTarget::Backend(name), _) if name == "tcp" => {
                    Err(RequestRefusal::Refused("no mode http".into()))
                }
                Requested::EndMaintenance(HttpTarget::Frontend(name)) if name != "web" => {
                    Err(RequestRefusal::Unknown(format!("there is no {name}")))
                }
                Requested::SetMaintenance(..) | Requested::EndMaintenance(_) => {
                    Ok(Done::Set { has_changed: true })
                }
                Requested::Set(..) => Ok(Done::Set { has_changed: true }),
                Requested::Add(target, _) if target.server.as_deref() == Some("a") => {
                    Err(RequestRefusal::Refused("the file has it".into()))
                }
                Requested::Add(target, _) => {
                    let is_new = target.server.as_deref() == Some("new");
                    Ok(Done::Added { is_new, warnings: vec!["odd".into()] })
                }
                Requested::Remove(target) if target.server.as_deref() == Some("b") => {
                    Err(RequestRefusal::Unknown("there is none".into()))
                }
                Requested::Remove(_) => Ok(Done::Set { has_changed: true }),
                Requested::LogLevel(_) => Ok(Done::Set { has_changed: true }),
                Requested::Reset(_) => {
                    let state = OverlayValue::State(AdminState::Maint);
                    let all = [
                        (Target::backend("app"), state),
                        (Target::server("app", "a"), OverlayValue::Weight(3)),
                        (Target::server("app", "b"), OverlayValue::Removed),
                        (Target::server("app", "c"), OverlayValue::Added(added())),
                    ];
                    let log_level =
                        Some(SaidLogLevel { level: LogLevel::Debug, since: Timestamp(8), by: by.clone() });
                    let servers = all.map(|(target, value)| overlay(target, value)).into();
                    let value = HttpOverlayValue::Weights([("v2".to_owned(), 5)].into());
                    let target = HttpTarget::route("web", "a");
                    let weights = HttpOverlay { target, value, since: Timestamp(9), by };
                    let target = HttpTarget::Backend("app".into());
                    let maintenance =
                        Maintenance { allow: vec!["10.0.0.0/8".parse().unwrap()], ..Maintenance::default() };
                    let value = HttpOverlayValue::Maintenance(Arc::new(maintenance));
                    let http = vec![HttpOverlay { target, value, ..weights.clone() }, weights];
                    Ok(Done::Reset(RemovedOverlays { servers, http, log_level }))
                }
                Requested::Reload => Err(RequestRefusal::Invalid(vec!["line 3: no".to_owned()])),
            };
            let _ = answer.send(outcome);
        }
    });
}

#[tokio::test]
async fn each_answer_is_as_the_description_says_and_each_path_is_described() {
    let mut admin = admin();
    let (_, none) = mpsc::channel(1);
    grant(std::mem::replace(&mut admin.requests, none));
    for kind in EventKind::ALL {
        admin.events.record(kind, EventLevel::Warn, Timestamp(3), "server app/a is down");
    }
    let description = description();
    let server = "/v1/backends/{backend}/servers/{server}";
    let route = "/v1/frontends/{frontend}/routes/{route}";
    let [weights, single] = ["v2", "single"].map(|name| json!({ "weights": { name: 5 } }));
    let (of_frontend, of_backend) =
        ("/v1/frontends/{frontend}/maintenance", "/v1/backends/{backend}/maintenance");
    let of_route = "/v1/frontends/{frontend}/routes/{route}/maintenance";
    let page =
        json!({ "status": 500, "retry_after": 60, "page": "\u{1}".repeat(65_536), "allow": ["10.0.0.0/8"] });
    let too_long = json!({ "page": "a".repeat(600_000) });
    let (drain, weight, typo) = (json!({"state": "drain"}), json!({"weight": 5}), json!({"state": "dran"}));
    let new = json!({"addr": "10.0.0.9:80", "weight": 3, "backup": true, "max_connections": 7});
    let (nowhere, debug) = (json!({"addr": "10.0.0:80"}), json!({"level": "debug"}));
    let asked = [
        ("get", "/v1/openapi.json", "/v1/openapi.json", None, 200),
        ("get", "/v1/access", "/v1/access", None, 200),
        ("get", "/v1/status", "/v1/status", None, 200),
        ("get", "/v1/backends/{backend}", "/v1/backends/app", None, 200),
        ("get", "/v1/backends/{backend}", "/v1/backends/ap", None, 404),
        ("patch", "/v1/backends/{backend}", "/v1/backends/app", Some(&drain), 200),
        ("patch", "/v1/backends/{backend}", "/v1/backends/ap", Some(&drain), 404),
        ("patch", "/v1/backends/{backend}", "/v1/backends/app", Some(&typo), 400),
        ("get", server, "/v1/backends/app/servers/a", None, 200),
        ("get", server, "/v1/backends/app/servers/b%2F10.0.0.1", None, 404),
        ("patch", server, "/v1/backends/app/servers/a", Some(&drain), 200),
        ("patch", server, "/v1/backends/app/servers/a", Some(&weight), 409),
        ("patch", server, "/v1/backends/app/servers/a", None, 400),
        ("put", server, "/v1/backends/app/servers/new", Some(&new), 201),
        ("put", server, "/v1/backends/app/servers/c", Some(&new), 200),
        ("put", server, "/v1/backends/app/servers/a", Some(&new), 409),
        ("put", server, "/v1/backends/app/servers/a", Some(&nowhere), 400),
        ("delete", server, "/v1/backends/app/servers/a", None, 200),
        ("delete", server, "/v1/backends/app/servers/b", None, 404),
        ("patch", route, "/v1/frontends/web/routes/a", Some(&weights), 200),
        ("patch", route, "/v1/frontends/web/routes/b%2Fv1", Some(&weights), 404),
        ("patch", route, "/v1/frontends/web/routes/a", Some(&single), 409),
        ("patch", route, "/v1/frontends/web/routes/a", Some(&drain), 400),
        ("put", of_frontend, "/v1/frontends/web/maintenance", Some(&page), 200),
        ("put", of_frontend, "/v1/frontends/web/maintenance", Some(&weights), 400),
        ("put", of_frontend, "/v1/frontends/web/maintenance", Some(&too_long), 413),
        ("delete", of_frontend, "/v1/frontends/web/maintenance", None, 200),
        ("delete", of_frontend, "/v1/frontends/wbe/maintenance", None, 404),
        ("put", of_route, "/v1/frontends/web/routes/a%2Fb/maintenance", Some(&page), 200),
        ("delete", of_route, "/v1/frontends/web/routes/a%2Fb/maintenance", None, 200),
        ("put", of_backend, "/v1/backends/app/maintenance", Some(&page), 200),
        ("put", of_backend, "/v1/backends/tcp/maintenance", Some(&page), 409),
        ("delete", of_backend, "/v1/backends/app/maintenance", None, 200),
        ("get", "/v1/log-level", "/v1/log-level", None, 200),
        ("put", "/v1/log-level", "/v1/log-level", Some(&debug), 200),
        ("put", "/v1/log-level", "/v1/log-level", Some(&typo), 400),
        ("delete", "/v1/log-level", "/v1/log-level", None, 200),
        ("get", "/v1/overlays", "/v1/overlays", None, 200),
        ("delete", "/v1/overlays", "/v1/overlays?backend=app", None, 200),
        ("delete", "/v1/overlays", "/v1/overlays?frontend=web&route=a", None, 200),
        ("delete", "/v1/overlays", "/v1/overlays?server=a", None, 400),
        ("delete", "/v1/overlays", "/v1/overlays?route=a", None, 400),
        ("delete", "/v1/overlays", "/v1/overlays?backend=app&frontend=web", None, 400),
        ("get", "/v1/events", "/v1/events?since=2", None, 200),
        ("get", "/v1/events", "/v1/events?since=yesterday", None, 400),
        ("get", "/v1/explain", "/v1/explain?client=127.0.0.9:4242&frontend=web", None, 200),
        ("get", "/v1/explain", "/v1/explain?client=127.0.0.9&frontend=web", None, 200),
        ("get", "/v1/explain", "/v1/explain?client=127.0.0.9&frontend=wep", None, 404),
        ("get", "/v1/explain", "/v1/explain?client=somebody&frontend=web", None, 400),
        ("post", "/v1/reload", "/v1/reload", None, 422),
        ("get", "/v1/trace", "/v1/trace?rate=0", None, 400),
        ("get", "/v1/flows", "/v1/flows?client=10.0.0.0%2F8&state=established&older_than=90s", None, 200),
        ("get", "/v1/flows", "/v1/flows?count_by=client&limit=3", None, 200),
        ("get", "/v1/flows", "/v1/flows?frontend=wbe", None, 404),
        ("get", "/v1/flows", "/v1/flows?stat=established", None, 400),
        ("delete", "/v1/flows/{id}", "/v1/flows/p0.1.2", None, 404),
        ("delete", "/v1/flows/{id}", "/v1/flows/p0", None, 400),
    ];
    for (method, described, path, body, status) in asked {
        let verb = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let (got, answer) = exchange(&admin, &verb, path, body).await;
        assert_eq!(got, status, "{method} {path}: {answer}");
        let validator = validator(schema_of(&description, described, method, status));
        let wrong: Vec<String> = validator.iter_errors(&answer).map(|wrong| wrong.to_string()).collect();
        assert!(wrong.is_empty(), "{method} {path}: {wrong:?}\n{answer:#}");
    }
    let asked: BTreeSet<_> = asked.map(|(method, path, ..)| (method, path)).into();
    let all = description["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys().map(String::as_str);
        methods.filter(|method| *method != "parameters").map(move |method| (method, path.as_str()))
    });
    assert_eq!(asked, all.collect(), "asked above, and described");
}

#[tokio::test]
async fn a_frontend_in_mode_http_is_as_the_description_says() {
    let admin = admin();
    let text = "frontends.web = { mode = 'http', listen_addr = '127.0.0.1:8080', redirect = 'https', routes = [\
                { path = '/api', backend = 'api' }, { path = '/old', redirect = 'https' }] }\n\
                backends.api.servers.a.addr = '127.0.0.1:8081'\n";
    let config = convey_config::parse("test.toml", text).unwrap().config;
    let up = (fixture::server("a", "127.0.0.1:8081"), fixture::up());
    let [none, api] = [("", vec![]), ("api", vec![up])].map(|(name, servers)| fixture::pool(name, servers));
    let frontend = fixture::http_frontend(config.frontends[0].clone(), &none, std::slice::from_ref(&api));
    admin.snapshot.publish(Arc::new(fixture::snapshot(vec![frontend], vec![api])));

    let (_, status) = exchange(&admin, &Method::GET, "/v1/status", None).await;
    let validator = validator(&json!({ "$ref": "#/components/schemas/Status" }));
    assert!(validator.is_valid(&status), "{status:#}");
    let frontend = &status["frontends"]["web"];
    let of = |n: usize, key: &str| &frontend["routes"][n][key];
    assert_eq!(
        (&frontend["backend"], of(0, "name"), of(0, "backend")),
        (&json!(""), &json!("*/api"), &json!("api"))
    );
    assert_eq!((of(1, "name"), of(1, "redirect")), (&json!("*/old"), &json!("https")));
    assert_eq!((of(2, "name"), of(2, "requests")["total"].as_u64()), (&json!("default"), Some(0)));
    assert_eq!(status["not_ready"], json!([]));
    assert!(status["backends"]["api"]["connect_seconds"].is_object(), "it is proxied");
    let path = "/v1/explain?client=127.0.0.9&frontend=web";
    let (_, answer) = exchange(&admin, &Method::GET, path, None).await;
    let message =
        "routes match the host and path of each request; a request without a route gets a redirect to https";
    assert!(answer["steps"].as_array().unwrap().iter().any(|step| step["message"] == message), "{answer:#}");
}

#[tokio::test]
async fn a_description_that_lacks_a_field_would_be_noticed() {
    let admin = admin();
    let (_, mut status) = exchange(&admin, &Method::GET, "/v1/status", None).await;
    let validator = validator(&json!({ "$ref": "#/components/schemas/Status" }));
    assert!(validator.is_valid(&status));
    status["backends"]["app"]["servers"]["a"]["mood"] = json!("good");
    assert!(!validator.is_valid(&status));
}

#[tokio::test]
async fn the_statistics_address_changes_nothing() {
    let admin = admin();
    let addr = start(LIMITS, &admin).await;
    let answer = ask(addr, Method::POST, "/v1/reload").await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(ask(addr, Method::DELETE, "/v1/flows/p0.1.2").await.status(), StatusCode::FORBIDDEN);
    let answer = ask(addr, Method::DELETE, "/v1/overlays").await;
    assert!(
        answer.body().contains("send changes to the control socket, or here with the header"),
        "{}",
        answer.body()
    );
    assert_eq!(ask(addr, Method::GET, "/v1/overlays").await.body(), "[]\n");
}

#[test]
fn a_flow_in_a_list_is_as_the_description_says() {
    let id = ListedFlowId { kind: FlowKind::Packets, worker: 1, place: 2, serial: 3 };
    let flow = |snat: Option<&str>, activity| ListedFlow {
        id,
        mode: Mode::Passthrough,
        protocol: Protocol::Tcp,
        frontend: "web".into(),
        server: snat.map(|_| ("app".into(), "a".into(), "10.0.0.1:80".parse().unwrap())),
        client: "192.0.2.1:4242".parse().unwrap(),
        listen: "192.0.2.9:80".parse().unwrap(),
        snat: snat.map(|snat| snat.parse().unwrap()),
        state: "established",
        is_offloaded: true,
        activity,
    };
    let second = Some(std::time::Duration::from_millis(1_500));
    let known = FlowActivity { age: second, idle: second, bytes_rx: Some(5), bytes_tx: Some(6) };
    let answer = FlowAnswer {
        flows: vec![flow(Some("10.0.0.9:4000"), known), flow(None, FlowActivity::default())],
        matching: 7,
        bytes_rx: Some(5),
        bytes_tx: None,
        groups: vec![FlowGroup { name: "192.0.2.1".to_owned(), flows: 2, bytes_rx: Some(1), bytes_tx: None }],
        more_groups: 1,
        more_flows: 3,
    };
    let report = serde_json::to_value(flow_list_report(answer, false)).unwrap();
    assert_eq!((&report["more"], &report["flows"][0]["age_seconds"]), (&json!(5), &json!(1.5)));
    let validator = validator(&json!({ "$ref": "#/components/schemas/FlowList" }));
    let wrong: Vec<String> = validator.iter_errors(&report).map(|wrong| wrong.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{report:#}");
}

#[test]
fn a_flow_that_is_explained_is_as_the_description_says() {
    let flow = |server: Option<&str>, addr: Option<std::net::SocketAddr>, seconds| ExplainedFlow {
        id: "p0.1.2".to_owned(),
        state: "established".into(),
        over: false,
        server: server.map(str::to_owned),
        address: addr.map(|addr| addr.to_string()),
        snat: addr,
        age_seconds: seconds,
        idle_seconds: seconds,
        kernel: true,
    };
    let addr = Some("10.0.0.1:80".parse().unwrap());
    let of_server = FlowsOfServer { server: "app/a".to_owned(), flows: 7 };
    let open = OpenFlows { open: 7, servers: vec![of_server] };
    for (schema, value) in [
        ("ExplainedFlow", json!(flow(Some("app/a"), addr, Some(1.5)))),
        ("ExplainedFlow", json!(flow(None, None, None))),
        ("OpenFlows", json!(open)),
    ] {
        let validator = validator(&json!({ "$ref": format!("#/components/schemas/{schema}") }));
        let wrong: Vec<String> = validator.iter_errors(&value).map(|wrong| wrong.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{value:#}");
    }
}

#[test]
fn modes_of_the_description_are_all_modes() {
    let description = description();
    let all: BTreeSet<&str> = Mode::ALL.into_iter().map(Mode::name).collect();
    for schema in ["Flow", "Explanation"] {
        let mode = &description["components"]["schemas"][schema]["properties"]["mode"]["enum"];
        let described: BTreeSet<&str> = mode.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(described, all, "{schema}");
    }
}
