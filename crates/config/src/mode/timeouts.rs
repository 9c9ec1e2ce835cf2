//! Timeouts that have no effect in the modes and protocols of their frontends.

use std::time::Duration;

use super::HostCheck;
use crate::file::OwnLimits;
use crate::problem::Placed;
use crate::tables::ParsedFrontend;
use convey_model::{self as model, Mode, Protocol};

impl HostCheck<'_> {
    /// Checks timeouts of the file, of frontends and of backends.
    pub(super) fn timeouts(&self) {
        self.without_effect(&self.file.timeouts.own, "", |_| true);
        for (frontend, mode) in &self.frontends {
            self.of_frontend(frontend, *mode);
        }
        for backend in &self.file.backends {
            let uses_it = |frontend: &model::FrontendConfig| frontend.uses(&backend.name);
            self.without_effect(&backend.timeouts, " of this backend", uses_it);
        }
    }

    fn of_frontend(&self, frontend: &ParsedFrontend, mode: Mode) {
        let warn = |limit: &Placed<Duration>, why: &str| {
            self.report.warning(&limit.place, format!("has no effect {why}"));
        };
        let limits = &frontend.timeouts;
        if !mode.is_proxied() {
            let why = format!("in {} mode", mode.name());
            let all = limits.of_tcp().chain(limits.of_http()).chain(limits.of_udp());
            return all.for_each(|limit| warn(limit, &why));
        }
        if !mode.is_http() {
            let why = format!("in {} mode: it is for mode = \"http\"", mode.name());
            limits.of_http().for_each(|limit| warn(limit, &why));
        }
        match frontend.protocol() {
            Protocol::Tcp => limits.of_udp().for_each(|limit| warn(limit, "with protocol = \"tcp\"")),
            Protocol::Udp => limits.of_tcp().for_each(|limit| warn(limit, "with protocol = \"udp\"")),
        }
    }

    /// Warns of timeouts for proxied connections of one protocol, if no frontend that `has_them`
    /// selects has such connections.
    fn without_effect(
        &self,
        limits: &OwnLimits,
        whose: &str,
        has_them: impl Fn(&model::FrontendConfig) -> bool,
    ) {
        let all: Vec<_> = self.config.frontends.iter().filter(|frontend| has_them(frontend)).collect();
        if all.is_empty() {
            // Another warning covers this.
            return;
        }
        if !all.iter().any(|frontend| frontend.mode.is_http()) {
            let why = format!("has no effect: no frontend{whose} is in http mode");
            limits.of_http().for_each(|limit| self.report.warning(&limit.place, why.clone()));
        }
        let proxied: Vec<Protocol> = all
            .iter()
            .filter(|frontend| frontend.mode.is_proxied())
            .map(|frontend| frontend.protocol)
            .collect();
        let why = |protocol: Protocol| match proxied.is_empty() {
            true => Some(format!("has no effect: no frontend{whose} is in proxy mode")),
            false => (!proxied.contains(&protocol)).then(|| {
                let name = protocol.name();
                format!("has no effect: no frontend{whose} in proxy mode has protocol = {name:?}")
            }),
        };
        let warn = |limit: &Placed<Duration>, why: &str| self.report.warning(&limit.place, why);
        if let Some(why) = why(Protocol::Tcp) {
            limits.of_tcp().for_each(|limit| warn(limit, &why));
        }
        if let Some(why) = why(Protocol::Udp) {
            limits.of_udp().for_each(|limit| warn(limit, &why));
        }
    }
}
