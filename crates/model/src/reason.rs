//! Drop reasons of packets.

/// Defines all drop reasons and their labels in one list: reason, label.
macro_rules! drop_reasons {
    ($($(#[$about:meta])* $reason:ident = $label:literal,)+) => {
        /// Reason why convey dropped a packet. Its label is used in metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$about])* $reason,)+
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: [DropReason; [$($label),+].len()] = [$(DropReason::$reason),+];

            /// Label of the reason; lower case with underscores.
            pub const fn label(self) -> &'static str {
                match self {
                    $(DropReason::$reason => $label,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Frame with two priority tags (802.1Q with VID 0). The host's network stack would skip the
    /// tags. The guard drops the frame in the kernel.
    StackedTags = "stacked_tags",
    /// The frame is shorter than its headers.
    Truncated = "truncated",
    /// The IP version differs from the EtherType.
    BadVersion = "bad_version",
    /// Invalid header length: an IPv4 or TCP header below 20 bytes, or a header that ends beyond
    /// the packet.
    BadHeaderLength = "bad_header_length",
    /// The IP total length is shorter than the headers or longer than the frame.
    BadTotalLength = "bad_total_length",
    /// Wrong checksum: of the IPv4 header (RFC 1812, section 5.2.2), of a TCP segment or ICMP error
    /// that would change the state of a flow, or of a segment that needs to be fragmented.
    BadChecksum = "bad_checksum",
    /// IPv4-mapped IPv6 address, which no packet on a wire has (RFC 4942, section 2.2).
    MappedAddress = "mapped_address",
    /// Source-routed packet: an IPv6 routing header with segments left (RFC 5095), or an IPv4
    /// option for a loose or strict source route (RFC 7126, section 4.3).
    SourceRouted = "source_routed",
    /// Fragment of a packet whose first fragment did not arrive in time, or whose record convey has
    /// already removed.
    FragmentUnmatched = "fragment_unmatched",
    /// Too many fragments are waiting for their first fragment.
    FragmentQueueFull = "fragment_queue_full",
    /// ICMP error that quotes too little of the original packet, or that quotes a packet that
    /// convey did not send.
    IcmpInvalid = "icmp_invalid",
    /// ICMP error about a segment that cannot be in flight. The error must be forged (RFC 5927,
    /// section 4.1).
    IcmpOutOfWindow = "icmp_out_of_window",
    /// Invalid source: loopback, multicast, broadcast (also of a link's network), unspecified (RFC
    /// 1122, section 3.2.1.3), IPv6 link-local (RFC 4291, section 2.5.6).
    Martian = "martian",
    /// Passthrough: a packet that claims to be from a server, or an ICMP error about a packet to
    /// the server. It arrived on an interface with routes to other addresses but not to the server.
    /// Also an ICMP error by which a server refuses a datagram, if its link-layer source is not the
    /// next hop to the server.
    WrongInterface = "wrong_interface",
    /// The source is one of convey's own VIPs or SNAT addresses. A forwarded packet would loop.
    VipLoop = "vip_loop",
    /// The packet returned with a lower TTL, because two balancers have each other as servers.
    ForwardingLoop = "forwarding_loop",
    /// The source is the address and port of a server. The servers would answer each other
    /// endlessly. In DSR, also a packet whose source address is that of the chosen server: the
    /// server would send the answer to itself.
    ClientIsServer = "client_is_server",
    /// The TTL or hop limit is 1, so convey must not forward the packet (RFC 791). convey notifies
    /// the sender by ICMP, as for packets that are too big.
    TtlExceeded = "ttl_exceeded",
    /// Packet exceeds the next hop's MTU.
    TooBig = "too_big",
    /// Passthrough: ICMP error that would report a client's path MTU to a server. convey fragments
    /// packets of the flow instead.
    PathMtuTooSmall = "path_mtu_too_small",
    /// The next hop's link-layer address was not resolved while the packet waited for it.
    NextHopUnresolved = "next_hop_unresolved",
    /// No route leads to the destination.
    NoRoute = "no_route",
    /// L2 DSR: according to the routes, the server is no longer on the link. A router would send
    /// the packet back.
    ServerNotOnLink = "server_not_on_link",
    /// The packet belongs to no flow, and cannot begin one.
    NoFlow = "no_flow",
    /// No server is up. convey reset the client's connection, unless the limit of resets was
    /// reached.
    NoServer = "no_server",
    /// The connection table is full of flows that must not be evicted.
    TableFull = "table_full",
    /// The share of the connection table for the packet's mode and protocol is full of flows that
    /// must not be evicted.
    TableShareFull = "table_share_full",
    /// No SNAT port is free for the server.
    SnatExhausted = "snat_exhausted",
    /// The frontend, or every available server, is at its connection limit.
    MaxConnections = "max_connections",
    /// Passthrough: the client holds its full share of connections, or is at its limit.
    ClientLimit = "client_limit",
    /// The access lists deny the client. convey sends no notice, like a firewall.
    AccessDenied = "access_denied",
    /// The source is at its limit of open connections.
    SourceConnections = "source_connections",
    /// The source has exceeded its rate of new connections.
    SourceRate = "source_rate",
    /// convey is stopping and accepts no new connections.
    Stopping = "stopping",
    /// SYN dropped by the kernel in a SYN flood: the first SYN of a network without a completed
    /// handshake, or a SYN beyond the limit.
    SynLimited = "syn_limited",
    /// The queue to a worker was full, or the packet waited too long for the flows of another
    /// process.
    WorkerQueueFull = "worker_queue_full",
    /// The kernel had no space left to notify a worker of a FIN that the flow cache was about to
    /// forward. The kernel dropped the packet; the sender retransmits it.
    FinQueueFull = "fin_queue_full",
    /// The kernel could not rewrite the packet, because it had no space for the headers of a
    /// tunnel. The kernel dropped the packet; the flow's next packets go through a worker.
    RewriteFailed = "rewrite_failed",
    /// The queue to the transmit thread was full.
    TransmitQueueFull = "transmit_queue_full",
    /// The send buffer of the interface is full, because the interface is slow.
    SendBufferFull = "send_buffer_full",
    /// The queueing discipline of the interface, or the other end of a virtual link, refused the
    /// packet, because too many packets were waiting already.
    InterfaceRefused = "interface_refused",
    /// The interface is down, or was removed.
    InterfaceDown = "interface_down",
    /// The kernel failed to send the packet for another reason, which is in the log.
    TransmitFailed = "transmit_failed",
    /// The kernel's capture buffer was full.
    CaptureOverrun = "capture_overrun",
}
