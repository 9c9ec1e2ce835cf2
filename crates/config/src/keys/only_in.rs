//! Modes and protocols in which a key has an effect. Pure.

use convey_model::{Mode, Protocol};

/// Modes and protocols in which a key has an effect. In other modes or protocols, the checks of the
/// key's table report the key as an error or a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlyIn {
    /// Mode http.
    Http,
    /// Mode proxy.
    Proxy,
    /// Modes proxy and http.
    Proxied,
    /// Modes proxy and http, with TCP.
    ProxiedTcp,
    /// Mode proxy, with UDP.
    ProxiedUdp,
}

impl OnlyIn {
    /// Message about a key that has no effect in a frontend with this mode and protocol; `None` if
    /// it has an effect.
    pub(crate) fn fault(self, mode: Mode, protocol: Protocol) -> Option<String> {
        if self.fits(mode, protocol) {
            return None;
        }
        let (mode_name, protocol_name) = (mode.name(), protocol.name());
        Some(match self {
            OnlyIn::ProxiedTcp | OnlyIn::ProxiedUdp if mode.is_proxied() => {
                format!("has no effect with protocol = {protocol_name:?}")
            }
            OnlyIn::Http if mode.is_proxied() => {
                format!("has no effect in {mode_name} mode; it needs mode = \"http\"")
            }
            OnlyIn::Http | OnlyIn::Proxy | OnlyIn::Proxied | OnlyIn::ProxiedTcp | OnlyIn::ProxiedUdp => {
                format!("has no effect in {mode_name} mode")
            }
        })
    }

    /// Message about a key that has no effect in any of these frontends; `None` if it has an effect
    /// in one. `whose` is a text such as ` that uses this backend`. Without frontends the result is
    /// `None`, because another warning covers that case.
    pub(crate) fn common_fault(self, whose: &str, frontends: &[(Mode, Protocol)]) -> Option<String> {
        if frontends.is_empty() || frontends.iter().any(|(mode, protocol)| self.fits(*mode, *protocol)) {
            return None;
        }
        let is_proxied = frontends.iter().any(|(mode, _)| mode.is_proxied());
        let wanted = match self {
            OnlyIn::Http => " is in http mode",
            OnlyIn::ProxiedTcp if is_proxied => " is in proxy mode with protocol = \"tcp\"",
            OnlyIn::ProxiedUdp if is_proxied => " is in proxy mode with protocol = \"udp\"",
            OnlyIn::Proxy | OnlyIn::Proxied | OnlyIn::ProxiedTcp | OnlyIn::ProxiedUdp => " is in proxy mode",
        };
        Some(format!("has no effect: no frontend{whose}{wanted}"))
    }

    /// Whether the key has an effect in frontends with this mode and protocol.
    pub(crate) fn fits(self, mode: Mode, protocol: Protocol) -> bool {
        match self {
            OnlyIn::Http => mode.is_http(),
            OnlyIn::Proxy => mode.is_proxied() && !mode.is_http(),
            OnlyIn::Proxied => mode.is_proxied(),
            OnlyIn::ProxiedTcp => mode.is_proxied() && protocol == Protocol::Tcp,
            OnlyIn::ProxiedUdp => mode.is_proxied() && protocol == Protocol::Udp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Protocol = Protocol::Tcp;
    const UDP: Protocol = Protocol::Udp;

    #[test]
    fn key_for_other_modes_has_no_effect() {
        for (only, mode, protocol, expected) in [
            (OnlyIn::Http, Mode::Http, TCP, ""),
            (OnlyIn::Http, Mode::Proxy, TCP, "has no effect in proxy mode; it needs mode = \"http\""),
            (OnlyIn::Http, Mode::Dsr, TCP, "has no effect in dsr mode"),
            (OnlyIn::Proxy, Mode::Proxy, UDP, ""),
            (OnlyIn::Proxy, Mode::Http, TCP, "has no effect in http mode"),
            (OnlyIn::Proxied, Mode::Proxy, UDP, ""),
            (OnlyIn::Proxied, Mode::Http, TCP, ""),
            (OnlyIn::Proxied, Mode::Passthrough, TCP, "has no effect in passthrough mode"),
            (OnlyIn::ProxiedTcp, Mode::Http, TCP, ""),
            (OnlyIn::ProxiedTcp, Mode::Proxy, UDP, "has no effect with protocol = \"udp\""),
            (OnlyIn::ProxiedUdp, Mode::Proxy, UDP, ""),
            (OnlyIn::ProxiedUdp, Mode::Proxy, TCP, "has no effect with protocol = \"tcp\""),
            (OnlyIn::ProxiedUdp, Mode::Dsr, UDP, "has no effect in dsr mode"),
        ] {
            let fault = only.fault(mode, protocol).unwrap_or_default();
            assert_eq!(fault, expected, "{only:?} {mode:?} {protocol:?}");
        }
    }

    #[test]
    fn key_of_a_backend_has_an_effect_if_one_frontend_supports_it() {
        let packets = (Mode::Dsr, TCP);
        for (only, frontends, expected) in [
            (OnlyIn::Proxied, &[][..], ""),
            (
                OnlyIn::Proxied,
                &[packets],
                "has no effect: no frontend that uses this backend is in proxy mode",
            ),
            (OnlyIn::Proxied, &[packets, (Mode::Http, TCP)], ""),
            (
                OnlyIn::Proxy,
                &[(Mode::Http, TCP)],
                "has no effect: no frontend that uses this backend is in proxy mode",
            ),
            (
                OnlyIn::Http,
                &[(Mode::Proxy, TCP)],
                "has no effect: no frontend that uses this backend is in http mode",
            ),
            (
                OnlyIn::ProxiedTcp,
                &[packets],
                "has no effect: no frontend that uses this backend is in proxy mode",
            ),
            (
                OnlyIn::ProxiedTcp,
                &[packets, (Mode::Proxy, UDP)],
                "has no effect: no frontend that uses this backend is in proxy mode with protocol = \"tcp\"",
            ),
            (OnlyIn::ProxiedUdp, &[(Mode::Proxy, TCP), (Mode::Proxy, UDP)], ""),
        ] {
            let fault = only.common_fault(" that uses this backend", frontends).unwrap_or_default();
            assert_eq!(fault, expected, "{only:?} {frontends:?}");
        }
    }
}
