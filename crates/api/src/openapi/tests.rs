//! Comparison of `openapi.json` with the types, and of the types with themselves.

use std::path::Path;
use std::{env, fs};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::PrettyFormatter;
use serde_json::{Serializer, Value};

use super::description;
use crate::*;

#[test]
fn openapi_file_is_generated_from_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/openapi.json");
    let mut wanted = Vec::new();
    let formatter = PrettyFormatter::with_indent(b" ");
    description().serialize(&mut Serializer::with_formatter(&mut wanted, formatter)).unwrap();
    let wanted = String::from_utf8(wanted).unwrap() + "\n";
    if env::var_os("UPDATE_REFERENCE").is_some() {
        return fs::write(path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    let other = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    let how = "run UPDATE_REFERENCE=1 cargo test -p convey-api";
    assert!(found == wanted, "{} is old ({how}): {other:?}", path.display());
}

/// Fields without a description would leave readers of the API without one.
#[test]
fn every_field_of_the_description_is_described() {
    let description = description();
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].is_string(), "{name}.{field}");
        }
    }
}

/// Removes each required field in turn: reading the rest must fail with the name of the field.
fn check_required<T: Default + Serialize + DeserializeOwned>(name: &str, description: &Value) {
    let whole = serde_json::to_value(T::default()).unwrap();
    let required = &description["components"]["schemas"][name]["required"];
    let required: Vec<&str> =
        required.as_array().unwrap().iter().map(|field| field.as_str().unwrap()).collect();
    assert!(serde_json::from_value::<T>(whole.clone()).is_ok(), "{name}");
    for field in required {
        let mut rest = whole.clone();
        rest.as_object_mut().unwrap().remove(field).unwrap_or_else(|| panic!("{name} has no {field}"));
        let error = serde_json::from_value::<T>(rest)
            .err()
            .unwrap_or_else(|| panic!("{name}.{field} is not required"));
        assert!(error.to_string().contains(&format!("`{field}`")), "{name}.{field}: {error}");
    }
}

#[test]
fn missing_required_field_is_an_error_with_its_name() {
    let description = description();
    macro_rules! check {
        ($($name:literal: $report:ty),+ $(,)?) => { $(check_required::<$report>($name, &description);)+ };
    }
    check! {
        "Access": AccessReport, "Acme": AcmeReport, "AcmeName": AcmeNameReport, "Added": AdditionReport,
        "AddedServer": AddedReport, "AnnouncedAddress": AnnouncedReport, "Backend": BackendReport,
        "Certificate": CertificateReport, "Changed": ChangeReport, "Compression": CompressionReport,
        "Config": ConfigReport, "Discovery": DiscoveryReport, "Ejected": EjectedReport, "Error": ErrorReport,
        "Etcd": EtcdReport, "Event": EventReport, "FileCache": FileCacheReport, "Flow": FlowReport,
        "FlowGroup": FlowGroupReport, "FlowList": FlowListReport, "Frontend": FrontendReport,
        "Handshakes": HandshakeReport, "Health": HealthReport, "KilledFlow": KilledFlow,
        "LogLevel": LogLevelReport, "Name": NameReport, "Overlay": OverlayReport, "Packets": PacketReport,
        "PathMtuSuspicions": PathMtuReport, "Reloaded": ReloadReport, "Requests": RequestReport,
        "Route": RouteReport, "Server": ServerReport, "Status": StatsReport, "TakenBack": ResetReport,
        "Times": TimesReport, "Tls": TlsReport,
    }
}
