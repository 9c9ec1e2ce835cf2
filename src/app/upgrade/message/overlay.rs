//! Messages for operators' overrides in an upgrade. Pure.

use std::collections::BTreeMap;

use convey_config::parse_log_level;
use convey_model::{
    AddedServer, AdminState, HttpOverlay, HttpOverlayValue, HttpTarget, Overlay, OverlayValue, SaidLogLevel,
    ServerSettings, Target, Timestamp,
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
    since: u64,
    #[serde(default)]
    by: String,
}

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
    /// Messages of an override in mode http. Each has one weight, because the length of a message is
    /// limited.
    pub(in crate::app::upgrade) fn of_http(overlay: &HttpOverlay) -> Vec<OverlayMessage> {
        let HttpOverlay { target, value, since, by } = overlay.clone();
        let (frontend, route) = match target {
            HttpTarget::Frontend(frontend) => (frontend, None),
            HttpTarget::Route { frontend, route } => (frontend, Some(route)),
        };
        let since = since.0;
        let message =
            OverlayMessage { frontend: Some(frontend), route, since, by, ..OverlayMessage::default() };
        let HttpOverlayValue::Weights(weights) = value;
        let of = |weight| OverlayMessage { weights: [weight].into(), ..message.clone() };
        weights.into_iter().map(of).collect()
    }

    /// Override in mode http, or a part of it. `None` if the message contains another override, or
    /// if this version does not know the kind.
    pub(in crate::app::upgrade) fn http(&self) -> Option<HttpOverlay> {
        let frontend = self.frontend.clone()?;
        let target = match self.route.clone() {
            Some(route) => HttpTarget::Route { frontend, route },
            None => HttpTarget::Frontend(frontend),
        };
        if self.weights.is_empty() {
            return None;
        }
        let value = HttpOverlayValue::Weights(self.weights.clone());
        Some(HttpOverlay { target, value, since: Timestamp(self.since), by: self.by.clone() })
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
        let read = messages.into_iter().map(|message| {
            let text = serde_json::to_string(&Message::Overlay(message)).unwrap();
            let Ok(Message::Overlay(message)) = serde_json::from_str(&text) else { panic!("{text}") };
            assert_eq!(message.clone().into_overlay(), None);
            message.http().unwrap()
        });
        assert_eq!(read.collect::<Vec<_>>(), weights.map(|weight| overlay(&[weight])));
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
