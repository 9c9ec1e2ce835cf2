/* The forwarded traffic: the maps of a `dataplane::Selection`. */
#pragma once

#include "packet.h"

/* One end of a flow. Mirrors `kernel_types::EndpointKey`. */
struct endpoint {
	struct addr addr;
	__u16 port;
	__u8 protocol;
	__u8 reserved;
};

/* Mirrors `kernel_types::PortRange`. */
struct port_range {
	__u16 first;
	__u16 last;
};

/* State of a frontend. Mirrors `selection_maps::SERVING` and `selection_maps::DRAINING`. */
enum frontend_state { SERVING = 1, DRAINING = 2 };

/* Addresses and ports of frontends; with port and protocol 0 the addresses of serving frontends. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 131072);
	MAP_TYPE(key, struct endpoint);
	MAP_TYPE(value, __u8);
} frontends SEC(".maps");

/* Servers whose replies arrive at the SNAT addresses; with port 0, from any port. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 262144);
	MAP_TYPE(key, struct endpoint);
	MAP_TYPE(value, __u8);
} servers SEC(".maps");

/* The SNAT addresses, and the ports on them that belong to convey, of TCP and UDP. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, struct port_range);
} snat SEC(".maps");

/* SERVING or DRAINING for a packet to a frontend, otherwise 0. */
static ALWAYS_INLINE int to_frontend(const struct flow_key *key)
{
	struct endpoint dst = { key->dst, key->dst_port, key->protocol, 0 };
	__u8 *frontend = bpf_map_lookup_elem(&frontends, &dst);

	return frontend ? *frontend : 0;
}

/* Whether a serving frontend has this address. */
static ALWAYS_INLINE int has_frontend(const struct addr *addr)
{
	struct endpoint dst = { *addr, 0, 0, 0 };

	return bpf_map_lookup_elem(&frontends, &dst) != NULL;
}

static ALWAYS_INLINE int reply_of_server(const struct flow_key *key)
{
	struct endpoint src = { key->src, key->src_port, key->protocol, 0 };
	struct port_range *range = bpf_map_lookup_elem(&snat, &key->dst);

	if (!range || key->dst_port < range->first || range->last < key->dst_port)
		return 0;
	if (bpf_map_lookup_elem(&servers, &src))
		return 1;
	/* A server without a port, which keeps the clients' destination ports. */
	src.port = 0;
	return bpf_map_lookup_elem(&servers, &src) != NULL;
}
