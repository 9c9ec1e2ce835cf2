//! Why a packet goes no further.

/// Makes the reasons, all of them, and their labels of one list: reason, label.
macro_rules! drop_reasons {
    ($($(#[$about:meta])* $reason:ident = $label:literal,)+) => {
        /// The reason a packet was dropped. Its label is that of the metric.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$about])* $reason,)+
        }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: [DropReason; [$($label),+].len()] = [$(DropReason::$reason),+];

            /// The label; lower case with underscores.
            pub const fn label(self) -> &'static str {
                match self {
                    $(DropReason::$reason => $label,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Frame with two priority tags (802.1Q with VID 0), which the host's stack would step over. Dropped in the kernel by the guard.
    StackedTags = "stacked_tags",
    /// The frame ends before its headers do.
    Truncated = "truncated",
    /// An IP version other than the EtherType says.
    BadVersion = "bad_version",
    /// A header length that cannot be: IPv4 below 20 bytes, TCP below 20, or beyond the packet.
    BadHeaderLength = "bad_header_length",
    /// The IP total length is shorter than its headers or longer than the frame.
    BadTotalLength = "bad_total_length",
    /// The checksum of the IPv4 header is wrong (RFC 1812, section 5.2.2); or that of a TCP segment or ICMP error that would
    /// change the state of a flow, or of a segment that would have to be cut.
    BadChecksum = "bad_checksum",
    /// An IPv6 address that stands for one of IPv4, which no packet on a wire has (RFC 4942, section 2.2).
    MappedAddress = "mapped_address",
    /// It says itself by which routers it goes: a routing header of IPv6 with stops to come (RFC 5095), an IPv4 option
    /// for a loose or strict source route (RFC 7126, section 4.3).
    SourceRouted = "source_routed",
    /// A fragment whose first did not come in time, or is not remembered.
    FragmentUnmatched = "fragment_unmatched",
    /// Too many fragments wait for their first.
    FragmentQueueFull = "fragment_queue_full",
    /// An ICMP error that quotes too little of the packet it is about, or somebody else's.
    IcmpInvalid = "icmp_invalid",
    /// An ICMP error about a segment that cannot be on its way: somebody made it up (RFC 5927, section 4.1).
    IcmpOutOfWindow = "icmp_out_of_window",
    /// A source that nothing sent on has: loopback, multicast, broadcast (of a link's network too),
    /// unspecified (RFC 1122, section 3.2.1.3), link-local in IPv6 (RFC 4291, section 2.5.6).
    Martian = "martian",
    /// Passthrough: as if from a server, or an ICMP error about a packet to it, by an interface that other addresses are
    /// routed by and the server is not; or that a server refuses a datagram, from another link-layer address than leads to
    /// it. Somebody else has sent it.
    WrongInterface = "wrong_interface",
    /// From one of our own VIPs or SNAT addresses: it would loop.
    VipLoop = "vip_loop",
    /// It has been here before, with more hops left: another balancer has us as its server, and we have it as ours.
    ForwardingLoop = "forwarding_loop",
    /// From the address and port of a server: answers would be answered without end. In DSR also from the address of the
    /// server that was chosen; its answer would not leave it.
    ClientIsServer = "client_is_server",
    /// TTL or hop limit 1: it may go no further (RFC 791). The sender is told by ICMP, as with what is too big.
    TtlExceeded = "ttl_exceeded",
    /// Longer than the next hop's MTU.
    TooBig = "too_big",
    /// Passthrough: an ICMP error that would have told a server of a client's path MTU. Packets of its flow are cut instead.
    PathMtuTooSmall = "path_mtu_too_small",
    /// The next hop's link-layer address was not found out while the packet waited for it.
    NextHopUnresolved = "next_hop_unresolved",
    /// No route leads there.
    NoRoute = "no_route",
    /// DSR on the link layer: routes no longer have the server on the link, and a router would send the packet back.
    ServerNotOnLink = "server_not_on_link",
    /// No flow, and not one that may begin one.
    NoFlow = "no_flow",
    /// No server is up. The client was told by a reset, unless too many had to be.
    NoServer = "no_server",
    /// The connection table is full of flows that must not be evicted.
    TableFull = "table_full",
    /// The part of the connection table that its mode and protocol may take is full of flows that must not be evicted.
    TableShareFull = "table_share_full",
    /// No SNAT port is free for the server.
    SnatExhausted = "snat_exhausted",
    /// The frontend, or every server that could be chosen, has as many connections as it may.
    MaxConnections = "max_connections",
    /// Passthrough: its client has its share of connections already, or as many as one may have.
    ClientLimit = "client_limit",
    /// Its client may not come in. Nobody is told, as with a firewall.
    AccessDenied = "access_denied",
    /// Its source has as many open connections as it may have.
    SourceConnections = "source_connections",
    /// Its source has begun too many connections of late.
    SourceRate = "source_rate",
    /// We are stopping and begin no new connections.
    Stopping = "stopping",
    /// It would begin a connection while a flood of SYNs is on: the first of a network that none has been completed from,
    /// or one too many. Dropped in the kernel.
    SynLimited = "syn_limited",
    /// The queue to a worker was full; or the packet has waited for too long for the flows of another process.
    WorkerQueueFull = "worker_queue_full",
    /// There was no room to tell a worker of a FIN that the flow cache was to send on. Dropped in the kernel; its sender
    /// repeats it.
    FinQueueFull = "fin_queue_full",
    /// The kernel could not change a packet as its flow needs it: make room for a tunnel's headers. Dropped in the kernel; the flow's next
    /// packets go through a worker.
    RewriteFailed = "rewrite_failed",
    /// The queue to the transmit thread was full.
    TransmitQueueFull = "transmit_queue_full",
    /// As much waits already to be sent by the interface as may wait: it is slow.
    SendBufferFull = "send_buffer_full",
    /// The interface's queueing discipline refused it, or the other end of a virtual link: it is slow.
    InterfaceRefused = "interface_refused",
    /// The interface is down, or gone.
    InterfaceDown = "interface_down",
    /// The kernel did not send it for another reason, which the log tells.
    TransmitFailed = "transmit_failed",
    /// The kernel's capture buffer was full.
    CaptureOverrun = "capture_overrun",
}
