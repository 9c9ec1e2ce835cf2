//! Tables of slices, with the servers that result from them.

use super::*;
use crate::objects::ObjectReference;

/// Parses an endpoint of a table: `web-1 10.0.0.1`, followed by its conditions as words.
fn endpoint(text: &str) -> SliceEndpoint {
    let mut words = text.split(' ');
    let (pod, address) = (words.next().unwrap(), words.next().unwrap());
    let (mut conditions, mut zone) = (EndpointConditions::default(), None);
    for word in words {
        match word {
            "ready" => conditions.ready = Some(true),
            "unready" => conditions.ready = Some(false),
            "serving" => conditions.serving = Some(true),
            "silent" => conditions.serving = Some(false),
            "terminating" => conditions.terminating = Some(true),
            other => zone = other.strip_prefix("zone=").map(str::to_owned),
        }
    }
    let pod = ObjectReference { kind: Some("Pod".into()), name: Some(pod.into()) };
    SliceEndpoint {
        addresses: vec![address.into()],
        conditions: Some(conditions),
        target_ref: pod.name.as_deref().is_some_and(|name| name != "-").then_some(pod),
        zone,
    }
}

fn slice(name: &str, port: (&str, i32), endpoints: &[&str]) -> EndpointSlice {
    let is_v6 = endpoints.iter().any(|endpoint| endpoint.contains("::"));
    let mut slice = EndpointSlice {
        address_type: if is_v6 { "IPv6" } else { "IPv4" }.into(),
        endpoints: endpoints.iter().map(|text| endpoint(text)).collect(),
        ports: Some(vec![EndpointPort {
            name: Some(port.0.into()),
            port: Some(port.1),
            ..EndpointPort::default()
        }]),
        ..EndpointSlice::default()
    };
    slice.metadata.name = Some(name.into());
    slice
}

fn all(slices: &[EndpointSlice], port: ServicePort) -> Endpoints {
    let mut all = Endpoints::new(port, None);
    all.begin_list();
    slices.iter().for_each(|slice| all.apply(slice));
    all.end_list();
    all
}

fn http() -> ServicePort {
    ServicePort::Name("http".into())
}

/// Formats servers such as `web-1 10.0.0.1:80`, with `drains` and the zone.
fn shown(all: &Endpoints) -> Vec<String> {
    let servers = all.servers().into_iter().map(|server| {
        let drains = if server.is_draining { " drains" } else { "" };
        let zone = server.zone.map(|zone| format!(" in {zone}")).unwrap_or_default();
        format!("{} {}{drains}{zone}", server.name, server.addr)
    });
    servers.collect()
}

fn servers(slices: &[EndpointSlice]) -> Vec<String> {
    shown(&all(slices, http()))
}

#[test]
fn a_port_of_another_protocol_is_no_port_of_the_backend() {
    let mut dns = slice("a", ("dns", 53), &["web-1 10.0.0.1 ready"]);
    for (has, meant, expected) in [
        (None, Some(Protocol::Tcp), 1),
        (Some("TCP"), Some(Protocol::Tcp), 1),
        (Some("UDP"), Some(Protocol::Tcp), 0),
        (Some("UDP"), Some(Protocol::Udp), 1),
        (Some("TCP"), Some(Protocol::Udp), 0),
        (Some("UDP"), None, 1),
        (Some("SCTP"), None, 0),
    ] {
        dns.ports.as_mut().unwrap()[0].protocol = has.map(str::to_owned);
        let mut found = Endpoints::new(ServicePort::Number(53), meant);
        found.apply(&dns);
        assert_eq!(found.servers().len(), expected, "{has:?} {meant:?}");
        assert_eq!(found.notes().len(), 1 - expected);
    }
    let mut found = Endpoints::new(ServicePort::Number(53), Some(Protocol::Tcp));
    dns.ports.as_mut().unwrap()[0].protocol = Some("UDP".into());
    found.apply(&dns);
    let note = "EndpointSlice a has no port 53 (its ports: dns 53/UDP)";
    assert_eq!(found.notes().first().unwrap(), note);
}

#[test]
fn conditions_decide_as_they_do_for_kube_proxy() {
    let beside_a_ready_one = |said: &str| {
        let endpoint = format!("web-1 10.0.0.1 {said}");
        let mut found = servers(&[slice("a", ("http", 80), &["web-0 10.0.0.9 ready", endpoint.trim_end()])]);
        assert_eq!(found.remove(0), "web-0 10.0.0.9:80");
        found.pop().unwrap_or_default()
    };
    let table = [
        ("", "web-1 10.0.0.1:80"),
        ("ready", "web-1 10.0.0.1:80"),
        ("ready serving", "web-1 10.0.0.1:80"),
        ("unready", ""),
        ("unready silent", ""),
        ("unready serving", ""),
        ("unready serving terminating", "web-1 10.0.0.1:80 drains"),
        ("unready silent terminating", ""),
        ("unready terminating", ""),
        ("ready serving terminating", "web-1 10.0.0.1:80 drains"),
        ("zone=eu-1a", "web-1 10.0.0.1:80 in eu-1a"),
    ];
    for (said, expected) in table {
        assert_eq!(beside_a_ready_one(said), expected, "{said:?}");
    }
}

#[test]
fn if_no_endpoint_is_ready_those_that_terminate_serve() {
    let found = servers(&[slice(
        "a",
        ("http", 80),
        &["web-1 10.0.0.1 unready serving terminating", "web-2 10.0.0.2 unready"],
    )]);
    assert_eq!(found, ["web-1 10.0.0.1:80"]);
}

#[test]
fn endpoint_in_several_slices_is_one_server() {
    let found = servers(&[
        slice("a", ("http", 80), &["web-1 10.0.0.1", "web-2 10.0.0.2 unready serving terminating"]),
        slice("b", ("http", 80), &["web-3 10.0.0.3", "web-2 10.0.0.2 ready", "web-1 10.0.0.1 unready"]),
    ]);
    assert_eq!(found, ["web-1 10.0.0.1:80", "web-2 10.0.0.2:80", "web-3 10.0.0.3:80"]);
}

#[test]
fn dual_stack_pod_is_one_ipv4_server_and_ipv6_only_pods_work() {
    let found = servers(&[
        slice("v6", ("http", 80), &["web-1 2001:db8::1", "web-2 2001:db8::2"]),
        slice("v4", ("http", 80), &["web-1 10.0.0.1"]),
    ]);
    assert_eq!(found, ["web-1 10.0.0.1:80", "web-2 [2001:db8::2]:80"]);
}

#[test]
fn named_port_may_differ_by_slice_and_a_numeric_port_is_exact() {
    let slices = [
        slice("a", ("http", 8080), &["web-1 10.0.0.1"]),
        slice("b", ("http", 9090), &["web-2 10.0.0.2"]),
        slice("c", ("metrics", 9100), &["web-3 10.0.0.3"]),
    ];
    let by_name = all(&slices, http());
    assert_eq!(shown(&by_name), ["web-1 10.0.0.1:8080", "web-2 10.0.0.2:9090"]);
    let note = "EndpointSlice c has no port http (its ports: metrics 9100)";
    assert_eq!(by_name.notes(), BTreeSet::from([note.to_owned()]));
    assert_eq!(shown(&all(&slices, ServicePort::Number(9100))), ["web-3 10.0.0.3:9100"]);
}

#[test]
fn an_endpoint_that_is_no_pod_is_called_after_its_address() {
    let found = servers(&[
        slice("a", ("http", 80), &["- 10.0.0.1", "- 10.0.0.2"]),
        slice("b", ("http", 81), &["- 10.0.0.1"]),
    ]);
    assert_eq!(found, ["10.0.0.1:80 10.0.0.1:80", "10.0.0.1:81 10.0.0.1:81", "10.0.0.2:80 10.0.0.2:80"]);
}

#[test]
fn names_and_texts_that_are_no_addresses_are_no_servers() {
    let mut names = slice("a", ("http", 80), &["- www.example.com"]);
    assert_eq!(servers(&[names.clone()]), [""; 0]);
    names.address_type = "FQDN".into();
    let note = "EndpointSlice a has addresses of type \"FQDN\", which cannot be servers";
    assert_eq!(all(&[names], http()).notes(), BTreeSet::from([note.to_owned()]));
}

#[test]
fn a_service_without_slices_is_told_and_one_without_pods_is_not() {
    assert_eq!(all(&[], http()).notes().len(), 1);
    let mut empty = slice("a", ("http", 80), &[]);
    empty.ports = None;
    assert_eq!(all(&[empty], http()).notes(), BTreeSet::new());
}

#[test]
fn slices_are_replaced_only_when_a_new_list_is_complete() {
    let mut all = all(
        &[slice("a", ("http", 80), &["web-1 10.0.0.1"]), slice("b", ("http", 80), &["web-2 10.0.0.2"])],
        http(),
    );
    all.apply(&slice("a", ("http", 80), &["web-4 10.0.0.4"]));
    assert_eq!(shown(&all), ["web-2 10.0.0.2:80", "web-4 10.0.0.4:80"]);
    all.remove(&slice("b", ("http", 80), &[]));
    assert_eq!(shown(&all), ["web-4 10.0.0.4:80"]);
    all.begin_list();
    all.apply(&slice("c", ("http", 80), &["web-5 10.0.0.5"]));
    assert_eq!(shown(&all), ["web-4 10.0.0.4:80"]);
    all.end_list();
    assert_eq!(shown(&all), ["web-5 10.0.0.5:80"]);
}

#[test]
fn slices_and_their_endpoints_are_bounded() {
    let many: Vec<String> = (0..2_000).map(|n| format!("web-{n} 10.0.{}.{}", n / 256, n % 256)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(servers(&[slice("a", ("http", 80), &many)]).len(), MAX_ENDPOINTS);
    let slices: Vec<EndpointSlice> = (0..=MAX_SLICES)
        .map(|n| slice(&format!("s{n}"), ("http", 80), &[&format!("web-{n} 10.0.0.1")]))
        .collect();
    let mut cut = all(&slices, http());
    assert_eq!(cut.servers().len(), MAX_SLICES);
    assert!(cut.notes().first().unwrap().contains("more than 256 EndpointSlices"));
    assert!(!cut.has_room());
    cut.remove(&slices[0]);
    assert!(cut.has_room(), "a list finds the one that was left out");
    cut.begin_list();
    slices[1..].iter().for_each(|slice| cut.apply(slice));
    cut.end_list();
    assert_eq!((cut.servers().len(), cut.has_room(), cut.notes().len()), (MAX_SLICES, false, 0));
}

#[test]
fn names_and_notes_of_any_api_server_are_short_and_printable() {
    let long = "x".repeat(MAX_NAME + 1);
    for name in ["", "a/b", "a\nb", "\u{e9}", &long] {
        let mut odd = slice("a", ("http", 80), &["web-1 10.0.0.1 zone=z"]);
        odd.endpoints[0].target_ref.as_mut().unwrap().name = Some(name.into());
        odd.endpoints[0].zone = Some(name.into());
        assert_eq!(servers(&[odd]), ["10.0.0.1:80 10.0.0.1:80"], "{name:?}");
    }
    let name = "a\nb".repeat(1_000);
    let notes = all(&[slice(&name, ("other", 80), &["web-1 10.0.0.1"])], http()).notes();
    assert!(notes.iter().all(|note| note.len() < 400 && !note.contains('\n')), "{notes:?}");
}
