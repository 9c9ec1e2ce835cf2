//! Health of a server, decided by consecutive outcomes of probes. Pure: the input is outcomes, the
//! output is changes of health.

use std::time::Duration;

use convey_model::{HealthCheck, ProbeKind};

/// Health of one server.
///
/// A server starts as up, but unproven, and its first probe alone decides the health, regardless of
/// `rise` and `fall`. So a dead server gets traffic only until its first probe, and a live server
/// gets traffic from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthState {
    up: bool,
    proven: bool,
    /// Number of consecutive probes that contradict the current health.
    against: u32,
    /// Whether to ignore the next success of a probe after clients' failures took the server down.
    /// Over UDP, a server without a response passes the probe, but may have refused clients.
    deaf: bool,
    /// Whether the next probe alone decides the health, like the first probe.
    next_decides: bool,
}

/// Change of a server's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthTransition {
    /// The server is up and gets new connections.
    Up,
    /// The server is down and gets no new connections.
    Down,
    /// The server stays down, but fails for another reason.
    StillDown,
    /// The server is ejected, because connections of clients to it failed. It gets no new
    /// connections for this time.
    Ejected(Duration),
    /// The ejection is over.
    Returned,
}

impl Default for HealthState {
    fn default() -> Self {
        HealthState { up: true, proven: false, against: 0, deaf: false, next_decides: false }
    }
}

impl HealthState {
    /// Whether the server gets new connections.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Whether any outcome has confirmed the current health.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// Number of consecutive probes that contradict the current health.
    pub fn against(&self) -> u32 {
        self.against
    }

    /// Health that another process handed over, with the values of [`HealthState::is_up`],
    /// [`HealthState::is_proven`] and [`HealthState::against`].
    pub fn known(up: bool, proven: bool, against: u32) -> HealthState {
        HealthState { up, proven, against, deaf: false, next_decides: false }
    }

    /// Lets the first probe of a new check alone decide the health, regardless of `rise` and
    /// `fall`. The health does not change before that probe.
    pub(crate) fn begin_other_check(&mut self) {
        self.next_decides = true;
    }

    /// Applies the outcome of a probe. Returns the change of health, if any.
    pub(crate) fn on_probe(&mut self, success: bool, check: &HealthCheck) -> Option<HealthTransition> {
        if std::mem::take(&mut self.next_decides) || !self.proven {
            self.proven = true;
            return self.turn(success);
        }
        let was_deaf = std::mem::take(&mut self.deaf);
        if success == self.up {
            self.against = 0;
            return None;
        }
        if was_deaf {
            return None;
        }
        self.against += 1;
        let needed = if success { check.rise } else { check.fall };
        if self.against < needed { None } else { self.turn(success) }
    }

    /// Takes a server down after consecutive failures of clients that a probe has confirmed: see
    /// [`Doubt`](super::Doubt). Returns `None` if the server was down already.
    pub(crate) fn on_confirmed_failures(&mut self, check: &HealthCheck) -> Option<HealthTransition> {
        if !self.up {
            return None;
        }
        self.proven = true;
        // Datagrams of clients had used up the server's rate limit of ICMP errors. Without these
        // clients, the next probes receive errors again.
        self.deaf = check.kind == ProbeKind::Udp;
        self.turn(false)
    }

    fn turn(&mut self, up: bool) -> Option<HealthTransition> {
        let first_good_news = up && self.up;
        self.up = up;
        self.against = 0;
        match up {
            _ if first_good_news => None,
            true => Some(HealthTransition::Up),
            false => Some(HealthTransition::Down),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use convey_model::fixture;

    fn check(rise: u32, fall: u32) -> HealthCheck {
        HealthCheck { rise, fall, ..fixture::health_check(ProbeKind::Tcp) }
    }

    fn proven() -> HealthState {
        let mut state = HealthState::default();
        assert_eq!(state.on_probe(true, &check(1, 1)), None);
        state
    }

    #[test]
    fn a_new_server_takes_traffic_until_its_first_probe_says_otherwise() {
        let mut state = HealthState::default();
        assert!(state.is_up());
        assert_eq!(state.on_probe(false, &check(2, 3)), Some(HealthTransition::Down));
        assert!(!state.is_up());
    }

    #[test]
    fn proven_server_goes_down_after_fall_failures_in_a_row() {
        let mut state = proven();
        let check = check(2, 3);
        assert_eq!(state.on_probe(false, &check), None);
        assert_eq!(state.on_probe(false, &check), None);
        assert_eq!(state.on_probe(true, &check), None, "one success ends the row");
        assert_eq!(state.on_probe(false, &check), None);
        assert_eq!(state.on_probe(false, &check), None);
        assert_eq!(state.on_probe(false, &check), Some(HealthTransition::Down));
    }

    #[test]
    fn a_server_that_is_down_returns_after_rise_successes_in_a_row() {
        let mut state = HealthState::default();
        let check = check(2, 3);
        state.on_probe(false, &check);
        assert_eq!(state.on_probe(true, &check), None);
        assert_eq!(state.on_probe(true, &check), Some(HealthTransition::Up));
    }

    #[test]
    fn failed_connects_take_a_server_down_until_a_probe_succeeds() {
        let mut state = proven();
        let check = check(1, 3);
        assert_eq!(state.on_confirmed_failures(&check), Some(HealthTransition::Down));
        assert_eq!(state.on_confirmed_failures(&check), None, "it is down already");
        assert_eq!(state.on_probe(true, &check), Some(HealthTransition::Up));
    }

    #[test]
    fn udp_server_stays_down_despite_a_probe_already_in_flight() {
        let check = HealthCheck { kind: ProbeKind::Udp, ..check(1, 3) };
        let mut state = proven();
        assert_eq!(state.on_confirmed_failures(&check), Some(HealthTransition::Down));
        assert_eq!(
            state.on_probe(true, &check),
            None,
            "it was sent when clients used up what the server tells"
        );
        assert_eq!(state.on_probe(true, &check), Some(HealthTransition::Up));
        assert_eq!(state.on_confirmed_failures(&check), Some(HealthTransition::Down));
        assert_eq!(state.on_probe(false, &check), None);
        assert_eq!(
            state.on_probe(true, &check),
            Some(HealthTransition::Up),
            "after a refusal silence is news again"
        );
    }

    proptest! {
        #[test]
        fn changes_alternate_and_never_come_sooner_than_the_thresholds_allow(
            outcomes in proptest::collection::vec(any::<bool>(), 0..200),
            rise in 1u32..5,
            fall in 1u32..5,
        ) {
            let check = check(rise, fall);
            let mut state = proven();
            let mut row = (true, 0u32);
            for success in outcomes {
                row = if row.0 == success { (success, row.1 + 1) } else { (success, 1) };
                let was_up = state.is_up();
                match state.on_probe(success, &check) {
                    Some(HealthTransition::Up) => prop_assert!(!was_up && row.0 && row.1 >= rise),
                    Some(HealthTransition::Down) => prop_assert!(was_up && !row.0 && row.1 >= fall),
                    Some(other) => prop_assert!(false, "{:?} is not what a probe decides", other),
                    None => prop_assert_eq!(state.is_up(), was_up),
                }
                if !row.0 && row.1 >= fall { prop_assert!(!state.is_up()); }
                if row.0 && row.1 >= rise { prop_assert!(state.is_up()); }
            }
        }
    }
}
