/*
 * The maps between userspace and the cache. A test compares their types with Rust's
 * (`dataplane::kernel_types`).
 */
#pragma once

#include "packet.h"

/* Mirrored by `cache::entry`. */
enum flow_flag {
	/* Only hop count and link-layer addresses change. */
	FLOW_L2_DSR = 1,
	/* Packets to the client; otherwise to the server. */
	FLOW_TO_CLIENT = 2,
	/* The sender has finished. Written by the program. */
	FLOW_FINISHED = 4,
	/* Only the SYN of the connection has passed. Cleared by the program. */
	FLOW_OPENING = 8,
	/* The answers of the receiver do not pass here (DSR). */
	FLOW_ALONE = 16,
	/*
	 * Packets are encapsulated, unchanged except for the hop count. The entry has the outer
	 * addresses and ports.
	 */
	FLOW_TUNNELED = 32,
	/*
	 * The numbers come from another process, which may have forwarded more since. Cleared by
	 * the program.
	 */
	FLOW_RESTORED = 64,
};

/* Index that no next hop has. */
enum { NOWHERE = 0xffff };

/*
 * Rewriting of the packets of a flow in one direction, in a cache line. Mirrors `cache::FlowEntry`.
 */
struct flow_entry {
	struct addr src;
	struct addr dst;
	__u16 src_port; /* in the machine's order, as in the key. With FLOW_TUNNELED 0 if there is no UDP */
	__u16 dst_port;
	__u16 next_hop; /* index into next_hops; NOWHERE: its packets are left to userspace */
	__u16 from;	/* what packets of a server come in on: the lower half of that interface's index */
	/*
	 * Checksum differences of the new addresses and of the new ports: see checksum.h. With
	 * FLOW_TUNNELED the halves of the flow label.
	 */
	__u16 address_sum;
	__u16 port_sum;
	__u16 counter_id; /* index into flow_counters */
	__u16 flags;
	/* Written by userspace, and updated by the program: */
	__u32 sent;	 /* TCP: what comes after the last byte; nothing while its sender has not been heard */
	__u32 ack;	 /* TCP: what its sender expects next; the same, but for who answers a SYN */
	__u64 last_seen; /* when the last packet passed, to a tick: CLOCK_MONOTONIC, ns */
};

/* An Ethernet address. */
struct mac {
	__u16 words[3];
};

/* First part of an Ethernet header. */
struct macs {
	struct mac dst;
	struct mac src;
};

/* A neighbour. Mirrors `kernel_types::NextHopEntry`. */
struct next_hop {
	struct macs macs; /* its address and ours */
	__u32 ifindex; /* 0: leads nowhere */
	__u32 mtu;
	__u32 redirect_peer; /* whether the other end of that interface takes frames: see model::Interface */
};

/*
 * Packets and bytes from clients to a server and back, including the Ethernet header. Mirrors
 * `cache::FlowCounters`.
 */
struct flow_counters {
	__u64 packets_to_server;
	__u64 bytes_to_server;
	__u64 packets_to_client;
	__u64 bytes_to_client;
};

/*
 * Outcome for a packet; userspace gets packets that are neither forwarded nor dropped. Mirrors
 * `model::CacheOutcome`.
 */
enum outcome {
	FORWARDED,
	/* Known flow: TCP with SYN or RST, or a FIN or part of the handshake that does not fit. */
	CHANGES_STATE,
	/* Known flow: the TTL has expired. */
	EXPIRED,
	/* Known flow: longer than the MTU of the next hop. */
	TOO_BIG,
	/* Known flow: the next hop is unusable. */
	NO_NEXT_HOP,
	/* Known flow: a server's packet from another interface than the server's. */
	OTHER_INTERFACE,
	/* A large TCP segment that its sender retransmits after a pause. */
	REPEATED,
	/*
	 * TCP or UDP to an address of ours with IP options, extension headers, wrong lengths or a
	 * wrong checksum of its IPv4 header, or in fragments; or a packet that only a worker can
	 * encapsulate.
	 */
	UNUSUAL,
	/* A SYN to a frontend that was dropped before: see limit.h. */
	CAME_AGAIN,
	/* A SYN to a frontend in a flood, or a possible one: dropped. */
	SYN_LIMITED,
	/* A FIN without room for its event in the ring: dropped, and retransmitted. */
	FIN_QUEUE_FULL,
	/* A segment with a wrong checksum that would have changed the state of its flow: dropped. */
	BAD_CHECKSUM,
	/* A packet that the kernel could not make room in, or remove a tag from: dropped. */
	REWRITE_FAILED,
	OUTCOMES,
	/* Not a known flow: not counted. */
	UNKNOWN,
};

/*
 * A forwarded segment that is part of a handshake or has a FIN. Mirrors
 * `cache::events::SegmentEvent`.
 */
struct segment_event {
	struct flow_key key;
	__u32 seq;
	__u32 ack;
	__u32 len; /* of its payload, and one for a FIN */
	__u32 flags;
};

/* Mirrors `kernel_types::RateEntry`. */
struct rate {
	__u64 interval; /* ns from one to the next */
	__u64 burst;	/* ns by which they may come too early: so many intervals at once */
};

/* Rate limits for new connections. Mirrors `kernel_types::SynLimitEntry`. */
struct syn_limit {
	struct rate network;   /* those of one network; no interval: no limit */
	struct rate strangers; /* those of all networks together that are not known */
};

/* The size is set when the map is loaded. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, struct flow_key);
	MAP_TYPE(value, struct flow_entry);
} flows SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct next_hop);
} next_hops SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct flow_counters);
} flow_counters SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_UINT(max_entries, OUTCOMES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} outcomes SEC(".maps");

/* Userspace polls it: 1 MiB is enough for 100 ms at 150,000 events a second. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, 1 << 20);
} events SEC(".maps");

/*
 * Use of one of convey's addresses. Mirrors `selection_maps::WITH_FRONTENDS` and
 * `selection_maps::SNAT_ALONE`.
 */
enum own_address { WITH_FRONTENDS = 1, SNAT_ALONE = 2 };

/* All of convey's addresses: VIPs and SNAT addresses, each with its `enum own_address`. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, __u8);
} ours SEC(".maps");

/* The addresses of the interfaces with XDP. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct mac);
} interfaces SEC(".maps");

static ALWAYS_INLINE void count(__u32 outcome)
{
	__u64 *counter = bpf_map_lookup_elem(&outcomes, &outcome);

	if (counter)
		*counter += 1;
}

static ALWAYS_INLINE int is_ours(const struct addr *addr)
{
	return bpf_map_lookup_elem(&ours, addr) != NULL;
}

static ALWAYS_INLINE int has_frontends(const struct addr *addr)
{
	__u8 *own = bpf_map_lookup_elem(&ours, addr);

	return own && *own == WITH_FRONTENDS;
}
