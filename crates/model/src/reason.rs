//! Why a packet goes no further.

/// The reason a packet was dropped. Its label is the metric, the trace text and what tests look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The frame ends before its headers do.
    Truncated,
    /// An IP version other than the EtherType says.
    BadVersion,
    /// A header length that cannot be: IPv4 below 20 bytes, TCP below 20, or beyond the packet.
    BadHeaderLength,
    /// The IP total length is shorter than its headers or longer than the frame.
    BadTotalLength,
    /// An IPv6 address that stands for one of IPv4, which no packet on a wire has (RFC 4942, section 2.2).
    MappedAddress,
    /// It says itself by which routers it goes: a routing header of IPv6 with stops to come (RFC 5095), an IPv4 option
    /// for a loose or strict source route (RFC 7126, section 4.3).
    SourceRouted,
    /// A fragment whose first did not come in time, or is not remembered.
    FragmentUnmatched,
    /// Too many fragments wait for their first.
    FragmentQueueFull,
    /// An ICMP error that quotes too little of the packet it is about, or somebody else's.
    IcmpInvalid,
    /// An ICMP error about a segment that cannot be on its way: somebody made it up (RFC 5927, section 4.1).
    IcmpOutOfWindow,
    /// A source that nothing sent on has: loopback, multicast, broadcast, unspecified (RFC 1122, section 3.2.1.3),
    /// link-local in IPv6 (RFC 4291, section 2.5.6).
    Martian,
    /// Passthrough: as if from a server, or an ICMP error about a packet to it, by an interface that other addresses are
    /// routed by and the server is not; or that a server refuses a datagram, from another link-layer address than leads to
    /// it. Somebody else has sent it.
    WrongInterface,
    /// From one of our own VIPs or SNAT addresses: it would loop.
    VipLoop,
    /// It has been here before, with more hops left: another balancer has us as its server, and we have it as ours.
    ForwardingLoop,
    /// From the address and port of a server: answers would be answered without end. In DSR also from the address of the
    /// server that was chosen; its answer would not leave it.
    ClientIsServer,
    /// TTL or hop limit 1: it may go no further (RFC 791). The sender is told by ICMP, as with what is too big.
    TtlExceeded,
    /// Longer than the next hop's MTU.
    TooBig,
    /// Passthrough: an ICMP error that would have told a server of a client's path MTU. Packets of its flow are cut instead.
    PathMtuTooSmall,
    /// The next hop's link-layer address was not found out while the packet waited for it.
    NextHopUnresolved,
    /// No route leads there.
    NoRoute,
    /// DSR on the link layer: routes no longer have the server on the link, and a router would send the packet back.
    ServerNotOnLink,
    /// No flow, and not one that may begin one.
    NoFlow,
    /// No server is up. The client was told by a reset, unless too many had to be.
    NoServer,
    /// The connection table is full of flows that must not be evicted.
    TableFull,
    /// The part of the connection table that its mode and protocol may take is full of flows that must not be evicted.
    TableShareFull,
    /// No SNAT port is free for the server.
    SnatExhausted,
    /// The frontend, or every server that could be chosen, has as many connections as it may.
    MaxConnections,
    /// Passthrough: its client has its share of connections already, or as many as one may have.
    ClientLimit,
    /// We are stopping and begin no new connections.
    Stopping,
    /// It would begin a connection while a flood of SYNs is on: the first of a network that none has been completed from,
    /// or one too many. Dropped in the kernel.
    SynLimited,
    /// The queue to a worker was full.
    WorkerQueueFull,
    /// There was no room to tell a worker of a FIN that the flow cache was to send on. Dropped in the kernel; its sender
    /// repeats it.
    FinQueueFull,
    /// The queue to the transmit thread was full.
    TransmitQueueFull,
    /// As much waits already to be sent by the interface as may wait: it is slow.
    SendBufferFull,
    /// The interface's queueing discipline refused it, or the other end of a virtual link: it is slow.
    InterfaceRefused,
    /// The interface is down, or gone.
    InterfaceDown,
    /// The kernel did not send it for another reason, which the log tells.
    TransmitFailed,
    /// The kernel's capture buffer was full.
    CaptureOverrun,
}

impl DropReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [DropReason; DropReason::CaptureOverrun as usize + 1] = [
        DropReason::Truncated,
        DropReason::BadVersion,
        DropReason::BadHeaderLength,
        DropReason::BadTotalLength,
        DropReason::MappedAddress,
        DropReason::SourceRouted,
        DropReason::FragmentUnmatched,
        DropReason::FragmentQueueFull,
        DropReason::IcmpInvalid,
        DropReason::IcmpOutOfWindow,
        DropReason::Martian,
        DropReason::WrongInterface,
        DropReason::VipLoop,
        DropReason::ForwardingLoop,
        DropReason::ClientIsServer,
        DropReason::TtlExceeded,
        DropReason::TooBig,
        DropReason::PathMtuTooSmall,
        DropReason::NextHopUnresolved,
        DropReason::NoRoute,
        DropReason::ServerNotOnLink,
        DropReason::NoFlow,
        DropReason::NoServer,
        DropReason::TableFull,
        DropReason::TableShareFull,
        DropReason::SnatExhausted,
        DropReason::MaxConnections,
        DropReason::ClientLimit,
        DropReason::Stopping,
        DropReason::SynLimited,
        DropReason::WorkerQueueFull,
        DropReason::FinQueueFull,
        DropReason::TransmitQueueFull,
        DropReason::SendBufferFull,
        DropReason::InterfaceRefused,
        DropReason::InterfaceDown,
        DropReason::TransmitFailed,
        DropReason::CaptureOverrun,
    ];

    /// The label; lower case with underscores.
    pub const fn label(self) -> &'static str {
        match self {
            DropReason::Truncated => "truncated",
            DropReason::BadVersion => "bad_version",
            DropReason::BadHeaderLength => "bad_header_length",
            DropReason::BadTotalLength => "bad_total_length",
            DropReason::MappedAddress => "mapped_address",
            DropReason::SourceRouted => "source_routed",
            DropReason::FragmentUnmatched => "fragment_unmatched",
            DropReason::FragmentQueueFull => "fragment_queue_full",
            DropReason::IcmpInvalid => "icmp_invalid",
            DropReason::IcmpOutOfWindow => "icmp_out_of_window",
            DropReason::Martian => "martian",
            DropReason::WrongInterface => "wrong_interface",
            DropReason::VipLoop => "vip_loop",
            DropReason::ForwardingLoop => "forwarding_loop",
            DropReason::ClientIsServer => "client_is_server",
            DropReason::TtlExceeded => "ttl_exceeded",
            DropReason::TooBig => "too_big",
            DropReason::PathMtuTooSmall => "path_mtu_too_small",
            DropReason::NextHopUnresolved => "next_hop_unresolved",
            DropReason::NoRoute => "no_route",
            DropReason::ServerNotOnLink => "server_not_on_link",
            DropReason::NoFlow => "no_flow",
            DropReason::NoServer => "no_server",
            DropReason::TableFull => "table_full",
            DropReason::TableShareFull => "table_share_full",
            DropReason::SnatExhausted => "snat_exhausted",
            DropReason::MaxConnections => "max_connections",
            DropReason::ClientLimit => "client_limit",
            DropReason::Stopping => "stopping",
            DropReason::SynLimited => "syn_limited",
            DropReason::WorkerQueueFull => "worker_queue_full",
            DropReason::FinQueueFull => "fin_queue_full",
            DropReason::TransmitQueueFull => "transmit_queue_full",
            DropReason::SendBufferFull => "send_buffer_full",
            DropReason::InterfaceRefused => "interface_refused",
            DropReason::InterfaceDown => "interface_down",
            DropReason::TransmitFailed => "transmit_failed",
            DropReason::CaptureOverrun => "capture_overrun",
        }
    }
}
