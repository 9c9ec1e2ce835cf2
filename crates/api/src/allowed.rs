//! Words that fields of the description may contain.

use convey_model::{AdminState, FlowGrouping, FlowSort, LogLevel, Mode, Protocol};

pub(crate) const EVENT_KINDS: [&str; 10] = [
    "health",
    "ejection",
    "backend",
    "name",
    "reload",
    "operator",
    "flood",
    "upgrade",
    "certificate",
    "announcement",
];

pub(crate) const EVENT_LEVELS: [&str; 3] = ["info", "warn", "error"];

pub(crate) const VERDICTS: [&str; 5] = ["forwarded", "answered", "dropped", "waits_for_next_hop", "not_sent"];

pub(crate) const ROLES: [&str; 5] =
    ["new_flow", "existing_flow", "servers_answer", "servers_refusal", "by_hash"];

pub(crate) const REQUEST_STEPS: [&str; 12] = [
    "received",
    "routed",
    "admitted",
    "chosen",
    "connect_failed",
    "connected",
    "retried",
    "responded",
    "file",
    "local_reply",
    "refused",
    "ended",
];

pub(crate) const PACKET_KINDS: [&str; 4] = ["whole", "first_fragment", "later_fragment", "icmp_error"];

pub(crate) fn states() -> [&'static str; 3] {
    AdminState::ALL.map(AdminState::name)
}

pub(crate) fn log_levels() -> [&'static str; 5] {
    LogLevel::ALL.map(LogLevel::name)
}

pub(crate) fn modes() -> [&'static str; 4] {
    Mode::ALL.map(Mode::name)
}

pub(crate) fn protocols() -> [&'static str; 2] {
    Protocol::ALL.map(Protocol::name)
}

pub(crate) fn sorts() -> [&'static str; 3] {
    FlowSort::ALL.map(FlowSort::name)
}

pub(crate) fn groupings() -> [&'static str; 5] {
    FlowGrouping::ALL.map(FlowGrouping::name)
}
