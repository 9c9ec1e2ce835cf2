//! Servers of a Kubernetes Service.

use super::{errors, parse, warnings};
use crate::describe;
use convey_model::{DiscoverySource, KubernetesService, Protocol, ServicePort};

const FILE: &str =
    "[frontends.web]\nlisten_addr = '10.0.0.1:80'\nbackend = 'web'\n[backends.web.kubernetes]\n";

fn with(lines: &str) -> String {
    format!("{FILE}{lines}\n")
}

#[test]
fn a_backend_with_a_service_needs_no_servers() {
    let text =
        with("service = 'shop/web'\nport = 'http'\nzone = 'eu-1a'\nkubeconfig = 'kube/config'\nweight = 3");
    assert!(warnings(&text).is_empty());
    let config = parse("config.toml", &text).unwrap().config;
    let discovery = config.backends[0].discovery.as_ref().unwrap();
    let DiscoverySource::Kubernetes(KubernetesService { port, cluster, .. }) = &discovery.source;
    assert_eq!(*port, ServicePort::Name("http".into()));
    assert!(cluster.kubeconfig.as_ref().unwrap().ends_with("kube/config"));
    let described = describe(&config);
    let line = "weight 3, for each endpoint; endpoints outside of zone eu-1a are backups";
    assert!(described.contains("kubernetes shop/web:http") && described.contains(line), "{described}");
}

#[test]
fn the_port_has_the_protocol_of_the_frontends() {
    let protocol = |frontends: &str| {
        let text = format!("{frontends}[backends.dns.kubernetes]\nservice = 'kube-system/dns'\nport = 53\n");
        let config = parse("config.toml", &text).unwrap().config;
        let DiscoverySource::Kubernetes(service) = &config.backends[0].discovery.as_ref().unwrap().source;
        service.protocol
    };
    let tcp = "[frontends.tcp]\nlisten_addr = '10.0.0.1:53'\nbackend = 'dns'\n";
    let udp = "[frontends.udp]\nlisten_addr = '10.0.0.1:53'\nprotocol = 'udp'\nbackend = 'dns'\n";
    assert_eq!((protocol(tcp), protocol(udp)), (Some(Protocol::Tcp), Some(Protocol::Udp)));
    assert_eq!(protocol(&format!("{tcp}{udp}")), None);
}

#[test]
fn a_service_has_a_namespace_and_a_port() {
    let service = "config.toml:5:11: backends.web.kubernetes.service: found";
    let allowed = "allowed: \"NAMESPACE/NAME\" of a Service, such as \"default/web\"";
    for name in ["web", "shop/", "/web", "Shop/web", "shop/web/http", "shop/web."] {
        let text = with(&format!("service = '{name}'\nport = 80"));
        assert_eq!(errors(&text), [format!("{service} {name:?}; {allowed}")]);
    }
    let missing = errors(&with("service = 'shop/web'"));
    assert_eq!(missing, ["config.toml:4:1: backends.web.kubernetes.port: required, but missing"]);
    for port in ["0", "65536", "'80'", "'HTTP'", "''"] {
        let error = errors(&with(&format!("service = 'shop/web'\nport = {port}"))).remove(0);
        assert!(error.contains("backends.web.kubernetes.port: found"), "{error}");
    }
}

#[test]
fn packet_modes_have_servers_with_addresses() {
    let text = format!("mode = 'passthrough'\n{}", with("service = 'shop/web'\nport = 80"));
    let loaded = parse("config.toml", &text).unwrap();
    let own = std::collections::BTreeSet::from(["10.0.0.1".parse().unwrap()]);
    let network = crate::HostNetwork { interfaces: &[], own: &own, hop_to: &|_| None, refusal: &|_| None };
    let problems = crate::validate_mode(&loaded, &network).unwrap_err();
    let diagnostics: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(
        diagnostics.iter().any(|line| line.contains("Services work only in modes proxy and http")),
        "{diagnostics:?}"
    );
}

#[test]
fn a_reload_tells_what_has_changed() {
    let file = |lines: &str| parse("config.toml", &with(lines)).unwrap();
    let before = file("service = 'shop/web'\nport = 'http'");
    let after = file("service = 'shop/web'\nport = 'grpc'\nmax_connections = 7");
    let (_, diff) = after.reload(&before.config);
    let line = "backend web: kubernetes shop/web:http -> shop/web:grpc, kubernetes.max_connections none -> 7";
    assert_eq!(diff.changes, [line]);
}
