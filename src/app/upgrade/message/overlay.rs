//! Messages for operators' overrides in an upgrade. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use convey_config::parse_log_level;
use convey_model::{
    AddedServer, AdminState, HttpOverlay, HttpOverlayValue, HttpTarget, Maintenance, MaintenancePage,
    Overlay, OverlayValue, SaidLogLevel, ServerSettings, Target, Timestamp,
};
use serde::{Deserialize, Serialize};

/// Message form of an [`Overlay`]. Exactly one of its values is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct OverlayMessage {
    backend: String,
    #[serde(default)]
    server: Option<String>,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    weight: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    added: Option<AddedMessage>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
    /// Log level. An override of the log level has no backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_level: Option<String>,
    /// Frontend of an override in mode http. Such an override has no backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frontend: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maintenance: Option<MaintenanceMessage>,
    /// Part of the page of the maintenance that was sent last. Messages have a limited length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page: Option<String>,
    since: u64,
    #[serde(default)]
    by: String,
}

/// Message form of a [`Maintenance`]. Messages with the parts of its page follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct MaintenanceMessage {
    status: u16,
    retry_after: u32,
    /// Type of the page; `None`: it has no page.
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    allow: Vec<String>,
}

/// Length of a part of a page, in bytes. In JSON, a byte of the page may take six.
const PAGE_PART: usize = 8 << 10;

/// Message form of an [`AddedServer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct AddedMessage {
    addr: String,
    weight: u16,
    #[serde(default)]
    backup: bool,
    #[serde(default)]
    max_connections: Option<u32>,
}

impl From<&Maintenance> for MaintenanceMessage {
    fn from(maintenance: &Maintenance) -> MaintenanceMessage {
        let Maintenance { status, retry_after, page, allow } = maintenance;
        MaintenanceMessage {
            status: *status,
            retry_after: *retry_after,
            content_type: page.as_ref().map(|page| page.content_type.clone()),
            allow: allow.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&MaintenanceMessage> for Maintenance {
    fn from(message: &MaintenanceMessage) -> Maintenance {
        let MaintenanceMessage { status, retry_after, content_type, allow } = message;
        let page = |content_type: &String| MaintenancePage {
            content_type: content_type.clone(),
            body: Default::default(),
        };
        Maintenance {
            status: *status,
            retry_after: *retry_after,
            page: content_type.as_ref().map(page),
            allow: allow.iter().filter_map(|network| network.parse().ok()).collect(),
        }
    }
}

/// Parts of a page, which is UTF-8.
fn parts(page: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(page);
    let (mut rest, mut parts) = (&*text, Vec::new());
    while !rest.is_empty() {
        let mut end = PAGE_PART.min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, later) = rest.split_at(end);
        parts.push(part.to_owned());
        rest = later;
    }
    parts
}

fn append(maintenance: &mut Maintenance, part: &str) {
    if let Some(page) = &mut maintenance.page {
        page.body = [&page.body, part.as_bytes()].concat().into();
    }
}

impl From<&Overlay> for OverlayMessage {
    fn from(overlay: &Overlay) -> OverlayMessage {
        let Target { backend, server } = overlay.target.clone();
        let (since, by) = (overlay.since.0, overlay.by.clone());
        let message = OverlayMessage { backend, server, since, by, ..OverlayMessage::default() };
        match &overlay.value {
            OverlayValue::State(state) => OverlayMessage { state: Some(state.name().to_owned()), ..message },
            OverlayValue::Weight(weight) => OverlayMessage { weight: Some(*weight), ..message },
            OverlayValue::Added(AddedServer { addr, settings }) => {
                let ServerSettings { weight, backup, max_connections } = *settings;
                let added = AddedMessage { addr: addr.clone(), weight, backup, max_connections };
                OverlayMessage { added: Some(added), ..message }
            }
            OverlayValue::Removed => OverlayMessage { removed: true, ..message },
        }
    }
}

impl From<&SaidLogLevel> for OverlayMessage {
    fn from(said: &SaidLogLevel) -> OverlayMessage {
        let SaidLogLevel { level, since, by } = said.clone();
        let log_level = Some(level.name().to_owned());
        OverlayMessage { log_level, since: since.0, by, ..OverlayMessage::default() }
    }
}

impl OverlayMessage {
    /// Messages of an override in mode http. Each has one weight or one part of a page, because the
    /// length of a message is limited.
    pub(in crate::app::upgrade) fn of_http(overlay: &HttpOverlay) -> Vec<OverlayMessage> {
        let HttpOverlay { target, value, since, by } = overlay.clone();
        let message = OverlayMessage { since: since.0, by, ..OverlayMessage::default() };
        let message = match target {
            HttpTarget::Frontend(frontend) => OverlayMessage { frontend: Some(frontend), ..message },
            HttpTarget::Route { frontend, route } => {
                OverlayMessage { frontend: Some(frontend), route: Some(route), ..message }
            }
            HttpTarget::Backend(backend) => OverlayMessage { backend, ..message },
        };
        match value {
            HttpOverlayValue::Weights(weights) => {
                let of = |weight| OverlayMessage { weights: [weight].into(), ..message.clone() };
                weights.into_iter().map(of).collect()
            }
            HttpOverlayValue::Maintenance(maintenance) => {
                let parts = maintenance.page.iter().flat_map(|page| parts(&page.body));
                let parts =
                    parts.map(|part| OverlayMessage { page: Some(part), ..OverlayMessage::default() });
                let first = OverlayMessage { maintenance: Some((&*maintenance).into()), ..message };
                [first].into_iter().chain(parts).collect()
            }
        }
    }

    /// Adds the override in mode http that the message contains, or a part of it, to `overlays`.
    /// Returns whether the message contains one that this version knows.
    pub(in crate::app::upgrade) fn add_to(&self, overlays: &mut Vec<HttpOverlay>) -> bool {
        if let Some(part) = &self.page {
            let last = overlays.last_mut().map(|overlay| &mut overlay.value);
            if let Some(HttpOverlayValue::Maintenance(maintenance)) = last {
                append(Arc::make_mut(maintenance), part);
            }
            return true;
        }
        let value = match &self.maintenance {
            Some(maintenance) => HttpOverlayValue::Maintenance(Arc::new(maintenance.into())),
            None if self.weights.is_empty() => return false,
            None => HttpOverlayValue::Weights(self.weights.clone()),
        };
        let target = match (self.frontend.clone(), self.route.clone()) {
            (Some(frontend), Some(route)) => HttpTarget::Route { frontend, route },
            (Some(frontend), None) => HttpTarget::Frontend(frontend),
            (None, _) => HttpTarget::Backend(self.backend.clone()),
        };
        overlays.push(HttpOverlay { target, value, since: Timestamp(self.since), by: self.by.clone() });
        true
    }

    /// Override of the log level. `None` if the message contains another override.
    pub(in crate::app::upgrade) fn log_level(&self) -> Option<SaidLogLevel> {
        let level = parse_log_level(self.log_level.as_ref()?).ok()?;
        Some(SaidLogLevel { level, since: Timestamp(self.since), by: self.by.clone() })
    }

    /// Converts the message to an override. `None` if this version does not know the kind.
    pub(in crate::app::upgrade) fn into_overlay(self) -> Option<Overlay> {
        let state = |name: String| AdminState::ALL.into_iter().find(|state| state.name() == name);
        let value = match (self.state, self.weight, self.added) {
            (Some(name), ..) => OverlayValue::State(state(name)?),
            (None, Some(weight), _) => OverlayValue::Weight(weight),
            (None, None, Some(AddedMessage { addr, weight, backup, max_connections })) => {
                let settings = ServerSettings { weight, backup, max_connections };
                OverlayValue::Added(AddedServer { addr, settings })
            }
            (None, None, None) if self.removed => OverlayValue::Removed,
            (None, None, None) => return None,
        };
        let target = Target { backend: self.backend, server: self.server };
        Some(Overlay { target, value, since: Timestamp(self.since), by: self.by, superseded: false })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;
    use convey_model::LogLevel;

    #[test]
    fn overlay_message_round_trips_without_unknown_values() {
        let settings = ServerSettings { weight: 3, backup: true, max_connections: Some(9) };
        let values = [
            OverlayValue::State(AdminState::Maint),
            OverlayValue::Weight(7),
            OverlayValue::Added(AddedServer { addr: "10.0.0.9:80".into(), settings }),
            OverlayValue::Removed,
        ];
        for value in values {
            let target = Target::server("web", "a");
            let said = Overlay { target, value, since: Timestamp(9), by: "root".into(), superseded: false };
            let text = serde_json::to_string(&Message::Overlay((&said).into())).unwrap();
            let Ok(Message::Overlay(overlay)) = serde_json::from_str(&text) else { panic!("{text}") };
            assert_eq!(overlay.into_overlay(), Some(said));
        }
        let text = r#"{"Overlay":{"backend":"web","state":"asleep","since":1}}"#;
        let Ok(Message::Overlay(overlay)) = serde_json::from_str(text) else { panic!("{text}") };
        assert_eq!(overlay.into_overlay(), None);
    }

    #[test]
    fn weights_of_a_route_are_sent_one_by_one() {
        let weights = [("v1".to_owned(), 0), ("v2".to_owned(), 5)];
        let overlay = |weights: &[(String, u32)]| HttpOverlay {
            target: HttpTarget::route("web", "checkout"),
            value: HttpOverlayValue::Weights(weights.iter().cloned().collect()),
            since: Timestamp(9),
            by: "root".into(),
        };
        let messages = OverlayMessage::of_http(&overlay(&weights));
        assert_eq!(received(messages), weights.map(|weight| overlay(&[weight])));
    }

    /// Overrides of mode http that the next process gets.
    fn received(messages: Vec<OverlayMessage>) -> Vec<HttpOverlay> {
        let mut overlays = Vec::new();
        for message in messages {
            let text = serde_json::to_string(&Message::Overlay(message)).unwrap();
            assert!(text.len() < 60 << 10, "{}", text.len());
            let Ok(Message::Overlay(message)) = serde_json::from_str(&text) else { panic!("{text}") };
            assert_eq!(message.clone().into_overlay(), None);
            assert!(message.add_to(&mut overlays));
        }
        overlays
    }

    #[test]
    fn maintenance_with_the_longest_page_is_sent_in_parts() {
        for page in
            ["\u{1}".repeat(Maintenance::MAX_PAGE), "ö".repeat(Maintenance::MAX_PAGE / 2), String::new()]
        {
            let page = MaintenancePage { content_type: "text/html".into(), body: page.into() };
            let allow = vec!["2001:db8::/32".parse().unwrap()];
            let maintenance = Maintenance { status: 500, retry_after: 7, page: Some(page), allow };
            let value = HttpOverlayValue::Maintenance(Arc::new(maintenance));
            let targets = [
                HttpTarget::Frontend("web".into()),
                HttpTarget::Backend("app".into()),
                HttpTarget::route("web", "a"),
            ];
            for target in targets {
                let overlay =
                    HttpOverlay { target, value: value.clone(), since: Timestamp(9), by: "root".into() };
                assert_eq!(received(OverlayMessage::of_http(&overlay)), [overlay]);
            }
        }
    }

    #[test]
    fn log_level_message_round_trips_and_older_versions_ignore_it() {
        let level = LogLevel::Debug;
        let said = SaidLogLevel { level, since: Timestamp(9), by: "root".into() };
        let text = serde_json::to_string(&Message::Overlay((&said).into())).unwrap();
        let Ok(Message::Overlay(overlay)) = serde_json::from_str(&text) else { panic!("{text}") };
        assert_eq!((overlay.log_level(), overlay.into_overlay()), (Some(said), None));
    }
}
