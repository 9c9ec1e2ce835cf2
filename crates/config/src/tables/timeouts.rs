//! `[timeouts]`, `[frontends.NAME.timeouts]` and `[backends.NAME.timeouts]`: time limits of
//! connections.

use std::time::Duration;

use crate::diff::below;
use crate::keys::{OnlyIn, keys};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{MILLISECOND, seconds};
use convey_model::{Mode, OwnTimeouts, Protocol, Timeouts};

/// `[timeouts]` and the tables of frontends and backends in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[timeouts]", docs: TimeoutKeys::DOCS };
pub(crate) const OF_FRONTENDS: TableDoc =
    TableDoc { name: "[frontends.NAME.timeouts]", docs: OwnLimits::DOCS };
pub(crate) const OF_BACKENDS: TableDoc = TableDoc { name: "[backends.NAME.timeouts]", docs: BACKEND_DOCS };

keys! {
    /// The keys of `[timeouts]`.
    pub(crate) struct TimeoutKeys => Timeouts, from (_unused: (), default);

    key "connect" => connect: Duration {
        read: seconds(MILLISECOND),
        only_in: ProxiedTcp,
        kind: "seconds from 0.001, proxy and http: an attempt to connect to a server",
        default: "5",
        sample: "#connect = 5                            # proxy, http: an attempt to connect to a server, before convey tries another one",
        example: "7",
    };

    key "idle" => idle: Duration {
        read: seconds(MILLISECOND),
        only_in: ProxiedTcp,
        kind: "seconds from 0.001, proxy and http: a connection without a byte",
        default: "600",
        sample: "#idle = 600                             # proxy, http: a connection without a byte in either direction",
        example: "7",
    };

    key "response" => response: Duration {
        read: seconds(MILLISECOND),
        only_in: Http,
        kind: "seconds from 0.001, http: a server does not send the whole head of its response; `idle` may lower it",
        default: "60",
        sample: "#response = 60                          # http: time for the head of a server's response",
        example: "7",
    };

    key "request" => request: Duration {
        read: seconds(MILLISECOND),
        unset: "none",
        only_in: Http,
        describe: |timeouts, _| timeouts.request.map_or(String::new(), |time| format!("request {time:?}, ")),
        kind: "seconds from 0.001, http: a whole request, from the first byte of its head to the end of its response. Not for upgrades such as WebSocket",
        default: "no limit",
        sample: "#request = 300                          # example; http: a whole request, from its first byte to the end of its response",
        example: "7",
    };

    key "send" => send: Duration {
        read: seconds(MILLISECOND),
        only_in: Http,
        kind: "seconds from 0.001, http: a client takes nothing of a response that waits for it; `idle` may lower it",
        default: "60",
        sample: "#send = 60                              # http: a client takes nothing of a response that waits for it",
        example: "7",
    };

    key "tcp_user_timeout" => tcp_user_timeout: Duration {
        read: seconds(MILLISECOND),
        only_in: ProxiedTcp,
        kind: "seconds from 0.001, proxy and http: a server's host acknowledges nothing",
        default: "30",
        sample: r##"
#tcp_user_timeout = 30                  # proxy, http: a server's host leaves bytes or keep-alive probes unacknowledged. convey
                                        # ends the connection at most 15 seconds later
"##,
        example: "7",
    };

    key "udp_idle" => udp_idle: Duration {
        read: seconds(MILLISECOND),
        only_in: ProxiedUdp,
        kind: "seconds from 0.001, proxy: a UDP session without a datagram",
        default: "60",
        sample: "#udp_idle = 60                          # proxy, UDP: a session without a datagram in either direction",
        example: "7",
    };

    key "drain" => drain: Duration {
        read: seconds(Duration::ZERO),
        describe: |timeouts, _| format!("drain {:?}", timeouts.drain),
        kind: "seconds from 0: how long open connections may finish",
        default: "30",
        sample: r##"
#drain = 30                             # time for open connections when convey stops. passthrough, dsr: also when their server
                                        # or frontend leaves this file
"##,
        example: "7",
    };

    key "drain_delay" => drain_delay: Duration {
        read: seconds(Duration::ZERO),
        describe: |timeouts, _| match timeouts.drain_delay {
            Duration::ZERO => String::new(),
            time => format!(", drain_delay {time:?}"),
        },
        kind: "seconds from 0: how long convey still serves after SIGTERM, while `/readyz` answers 503 and responses over HTTP/1.1 have `Connection: close`",
        default: "0",
        sample: "#drain_delay = 0                        # time for which convey still serves after SIGTERM, while /readyz answers 503",
        example: "5",
    };
}

/// Defines the keys that frontends and backends may override. For each key, the list has the
/// connections to which the key applies, and its lines of the sample in both tables.
macro_rules! own_timeouts {
    ($($name:literal => $field:ident, for $modes:literal, $only_in:ident: $frontend:literal, $backend:literal;)+) => {
        keys! {
            /// The keys of `[frontends.NAME.timeouts]` and `[backends.NAME.timeouts]`.
            pub(crate) struct OwnLimits => OwnTimeouts, from (_unused: (), default);
            $(
                key $name => $field: Duration {
                    read: seconds(MILLISECOND),
                    unset: "unset",
                    only_in: $only_in,
                    describe: |own, _| {
                        own.$field.map_or(String::new(), |time| format!(concat!(", ", $name, " {:?}"), time))
                    },
                    kind: concat!("as in `[timeouts]`, ", $modes),
                    default: "the backend's",
                    sample: $frontend,
                    example: "7",
                };
            )+
        }

        const BACKEND_DOCS: &[Docs] = &[$(Docs::Key(KeyDoc {
            name: $name,
            kind: concat!("as in `[timeouts]`, ", $modes),
            default: "those of `[timeouts]`",
            only_in: Some(OnlyIn::$only_in),
            sample: $backend,
            example: "7",
            ..KeyDoc::USUAL
        }),)+];
    };
}

own_timeouts! {
    "connect" => connect, for "proxy and http", ProxiedTcp:
        "#connect = 2                            # example",
        r##"#connect = "500ms"                      # example"##;
    "idle" => idle, for "proxy and http", ProxiedTcp:
        "#idle = 60                              # example",
        "#idle = 300                             # example";
    "response" => response, for "http", Http:
        "#response = 120                         # example; http",
        "#response = 120                         # example; http";
    "request" => request, for "http", Http:
        "#request = 300                          # example; http",
        "#request = 300                          # example; http";
    "send" => send, for "http", Http:
        "#send = 20                              # example; http",
        "#send = 20                              # example; http";
    "tcp_user_timeout" => tcp_user_timeout, for "proxy and http", ProxiedTcp:
        "#tcp_user_timeout = 20                  # example",
        "#tcp_user_timeout = 20                  # example";
    "udp_idle" => udp_idle, for "proxy", ProxiedUdp:
        "#udp_idle = 30                          # example",
        "#udp_idle = 30                          # example";
}

/// Reads `[timeouts]`.
pub(crate) fn read(mut table: TomlTable<'_>) -> TimeoutKeys {
    let keys = TimeoutKeys::read(&mut table);
    table.finish();
    keys
}

/// Reads `[frontends.NAME.timeouts]` or `[backends.NAME.timeouts]`.
pub(super) fn read_own(mut table: TomlTable<'_>) -> OwnLimits {
    let keys = OwnLimits::read(&mut table);
    table.finish();
    keys
}

/// Changes of the timeouts of a frontend or backend, for the log of a reload.
pub(super) fn own_changes(old: &OwnTimeouts, new: &OwnTimeouts) -> Vec<String> {
    below("timeouts", OwnLimits::changes(old, new))
}

/// Text of `convey check` about the timeouts of a frontend or backend, after the text `before`;
/// empty if none is set.
pub(super) fn describe_own(before: &str, own: &OwnTimeouts) -> String {
    let text = OwnLimits::describe(own, &[]);
    text.strip_prefix(", ").map_or(String::new(), |set| format!("{before}{set}"))
}

/// Line of `convey check` about timeouts that have an effect in one of these frontends.
pub(crate) fn describe(timeouts: &Timeouts, frontends: &[(Mode, Protocol)]) -> String {
    let Timeouts { connect, idle, response, send, tcp_user_timeout, udp_idle, .. } = timeouts;
    let is_for = |only: OnlyIn| frontends.iter().any(|(mode, protocol)| only.fits(*mode, *protocol));
    let mut text = String::from("timeouts ");
    if is_for(OnlyIn::ProxiedTcp) {
        text.push_str(&format!(
            "connect {connect:?}, idle {idle:?}, tcp_user_timeout {tcp_user_timeout:?}, "
        ));
    }
    if is_for(OnlyIn::Http) {
        text.push_str(&format!("response {response:?}, send {send:?}, "));
    }
    if is_for(OnlyIn::ProxiedUdp) {
        text.push_str(&format!("udp_idle {udp_idle:?}, "));
    }
    text + &TimeoutKeys::describe(timeouts, &[]) + "\n"
}
