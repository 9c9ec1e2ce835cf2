//! `[passthrough]` and `[passthrough.timeouts]`: settings of the packet modes.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::table;
use crate::diff::{below, list, or};
use crate::keys::{keys, unreported};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{
    MILLISECOND, SECOND, boolean, choice, integer, seconds, snat_address, snat_ports, string,
};
use convey_model::{FlowTimeouts, Offload, PacketSettings};

/// `[passthrough]` and `[passthrough.timeouts]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[passthrough]", docs: PassthroughKeys::DOCS };
pub(crate) const TIMEOUTS: TableDoc =
    TableDoc { name: "[passthrough.timeouts]", docs: FlowTimeoutKeys::DOCS };

/// Parsed `[passthrough]`, with the places of its values.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedPassthrough {
    pub(crate) keys: PassthroughKeys,
    timeouts: FlowTimeoutKeys,
}

keys! {
    /// The keys of `[passthrough]`.
    pub(crate) struct PassthroughKeys => PacketSettings, from (timeouts: &FlowTimeoutKeys, default);

    key "max_flows" => max_flows: u32 {
        read: integer(1..=PacketSettings::MAX_FLOWS),
        renamed: "connection_tracker_capacity",
        kind: "1 to 1073741824 flows, 160 bytes each; fewer where a [memory limit](../operate/tuning.md#a-memory-limit) leaves less room",
        default: "1000000",
        change: Restart,
        sample: r##"
#max_flows = 1000000                    # tracked connections at once. convey divides half of them evenly among the modes and
                                        # protocols in use; each may also use the other half
"##,
        example: "7",
    };

    key "workers" => workers: u16 {
        read: integer(1..=1024),
        unset: "automatic",
        kind: "1 to 1024 threads",
        default: "one less than cores; fewer if frontends at the SNAT addresses leave too few `snat_ports` for these",
        change: Restart,
        sample: "#workers = 4                            # example; threads; by default one less than cores",
        example: "7",
    };

    key "capture_stats_interval" => capture_stats_interval: Duration {
        read: seconds(SECOND),
        renamed: "stats_update_frequency",
        kind: "seconds from 1 between two counts of frames that the kernel dropped (`capture_overrun`)",
        default: "5",
        change: Restart,
        sample: "#capture_stats_interval = 5             # seconds between two counts of frames that the kernel dropped (capture_overrun)",
        example: "7",
    };

    list "interfaces" => interfaces: String {
        read: string,
        unset: "automatic",
        kind: "names of interfaces that convey uses",
        default: "the interfaces that hold a frontend or lead to a server",
        change: Restart,
        sample: r#"#interfaces = ["eth0", "eth1"]          # example; only these; by default those that hold a frontend or lead to a server"#,
        example: "'eth7'",
    };

    key "guard" => guard: bool {
        read: boolean,
        kind: "`true` or `false`",
        default: "`true`",
        change: Restart,
        sample: "#guard = true                           # keeps forwarded packets from this host's own network stack; dsr: 5 minutes longer",
        example: "false",
    };

    key "offload" => offload: Offload {
        read: choice(&Offload::ALL, Offload::name),
        kind: r#"`"auto"`, `"tc"`, `"xdp"` or `"off"`; see [Offload](../operate/offload.md)"#,
        default: r#"`"auto"`"#,
        change: Restart,
        sample: r#"#offload = "auto"                       # the kernel forwards open connections: "tc", "xdp" (in the driver), "off" (never)"#,
        example: "'off'",
    };

    key "snat_ports" => snat_ports: RangeInclusive<u16> {
        read: snat_ports,
        kind: "a range of ports, passthrough",
        default: r#"`"33768-61000"`"#,
        change: Restart,
        sample: r##"
#snat_ports = "33768-61000"             # passthrough: source ports towards servers, without the ports of frontends. If /proc/sys
                                        # is read-only, convey uses ports outside of ip_local_port_range
"##,
        example: "'40000-40007'",
    };

    list "snat_addresses" => snat_addresses: IpAddr {
        read: snat_address,
        unset: "automatic",
        kind: "addresses of this host, passthrough; a server sees those that fit its route, and [others](../guides/packet-modes.md#what-servers-see) once their ports are in use",
        default: "for each server the kernel's choice",
        change: Restart,
        sample: r#"#snat_addresses = ["10.0.0.1"]          # example; source addresses for them; by default the kernel's choice for each server"#,
        example: "'10.0.0.7'",
    };

    key "min_path_mtu" => min_path_mtu: u32 {
        read: integer(PacketSettings::MIN_PATH_MTU..=PacketSettings::MAX_PATH_MTU),
        unset: "none",
        kind: "576 to 65535 bytes, passthrough: the smallest path MTU to a client that convey reports to servers",
        default: "none",
        change: Restart,
        sample: r##"
#min_path_mtu = 1400                    # example; passthrough: convey reports clients' path MTUs of this size and more to
                                        # servers. By default it reports none, and cuts packets that are too long for a client
"##,
        example: "700",
    };

    also timeouts = timeouts.model((), default.timeouts); {
        // Timeouts have a log line of their own.
        changes: unreported,
        docs: &[table("timeouts", "table", "see below")],
    };
}

keys! {
    /// The keys of `[passthrough.timeouts]`.
    pub(crate) struct FlowTimeoutKeys => FlowTimeouts, from (_unused: (), default);

    key "half_open" => half_open: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", half_open {:?}", times.half_open),
        kind: "seconds from 0.001: the handshake is not complete",
        default: "60",
        sample: "#half_open = 60                         # the handshake is not complete; dsr: first seen in the middle, by a single packet",
        example: "7",
    };

    key "handshake_only" => handshake_only: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", handshake_only {:?}", times.handshake_only),
        kind: "seconds from 0.001, dsr: a handshake without data",
        default: "240",
        sample: "#handshake_only = 240                   # dsr: the handshake is complete, and neither side has sent data since",
        example: "7",
    };

    key "established" => established: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", established {:?}", times.established),
        kind: "seconds from 0.001",
        default: "7440",
        sample: "#established = 7440                     # both sides may send; longer than keepalives, mostly every two hours",
        example: "7",
    };

    key "half_closed" => half_closed: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", half_closed {:?}", times.half_closed),
        kind: "seconds from 0.001: one side has finished",
        default: "240",
        sample: "#half_closed = 240                      # one side has finished",
        example: "7",
    };

    key "closing" => closing: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", closing {:?}", times.closing),
        kind: "seconds from 0.001: both sides have finished, the last acknowledgement is missing",
        default: "60",
        sample: "#closing = 60                           # both sides have finished, but convey has not seen the last acknowledgement",
        example: "7",
    };

    key "time_wait" => time_wait: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", time_wait {:?}", times.time_wait),
        kind: "seconds from 0.001: both sides have finished",
        default: "60",
        sample: "#time_wait = 60                         # both sides have finished; servers refuse the same ports for this time",
        example: "7",
    };

    key "closed" => closed: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", closed {:?}", times.closed),
        kind: "seconds from 0.001: one side has reset the connection",
        default: "10",
        sample: "#closed = 10                            # one side has reset the connection",
        example: "7",
    };

    key "udp_single" => udp_single: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", udp_single {:?}", times.udp_single),
        kind: "seconds from 0.001: UDP, no answer or the first one (dsr: one datagram of the client)",
        default: "30",
        sample: "#udp_single = 30                        # UDP: no answer or the first one (dsr: one datagram of the client)",
        example: "7",
    };

    key "udp_stream" => udp_stream: Duration {
        read: seconds(MILLISECOND),
        describe: |times, _| format!(", udp_stream {:?}", times.udp_stream),
        kind: "seconds from 0.001: UDP, the client has sent again after an answer (dsr: has sent a second datagram)",
        default: "300",
        sample: "#udp_stream = 300                       # UDP: the client has sent again after an answer (dsr: has sent a second datagram)",
        example: "7",
    };
}

impl ParsedPassthrough {
    /// Reads `[passthrough]`.
    pub(crate) fn read(mut table: TomlTable<'_>) -> ParsedPassthrough {
        let keys = PassthroughKeys::read(&mut table);
        let mut of_flows = table.table("timeouts");
        let timeouts = FlowTimeoutKeys::read(&mut of_flows);
        of_flows.finish();
        table.finish();
        ParsedPassthrough { keys, timeouts }
    }

    /// Model of `[passthrough]`.
    pub(crate) fn model(&self) -> PacketSettings {
        self.keys.model(&self.timeouts, PacketSettings::default())
    }
}

/// Changes of `[passthrough]` for the log of a reload, without changes of timeouts.
pub(crate) fn changes(old: &PacketSettings, new: &PacketSettings) -> Vec<String> {
    below("passthrough", PassthroughKeys::changes(old, new))
}

/// Lines of `convey check` about packet modes.
pub(crate) fn describe(settings: &PacketSettings) -> String {
    let timeouts = FlowTimeoutKeys::describe(&settings.timeouts, &[]);
    let timeouts = timeouts.trim_start_matches(", ");
    let (interfaces, workers) = (list(&settings.interfaces), or(settings.workers, "automatic"));
    let (guard, capacity) = (if settings.guard { "on" } else { "off" }, settings.max_flows);
    format!(
        "packets interfaces {interfaces}; workers {workers}; guard {guard}; offload {}\n\
         flows at most {capacity}; timeouts {timeouts}\n",
        settings.offload
    )
}

/// Line of `convey check` about source NAT.
pub(crate) fn describe_snat(settings: &PacketSettings) -> String {
    let (first, last) = (settings.snat_ports.start(), settings.snat_ports.end());
    format!("snat ports {first}-{last}; addresses {}\n", list(&settings.snat_addresses))
}
