/* How many connections may begin: a bucket of tokens for each network of clients. */
#pragma once

#include "packet.h"
#include "maps.h"

/* What the limit is; nothing is limited as long as it is 0. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct syn_limit);
} syn_limit SEC(".maps");

/*
 * When each network's next SYN is due, ns. A bucket that is full is not to be told from one that is forgotten, as long as
 * there are fewer networks than this about.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, __u64);
} syn_due SEC(".maps");

/* The /24 or /48 of an address. */
static ALWAYS_INLINE struct addr network_of(const struct addr *addr)
{
	if (is_v4(addr))
		return v4_mapped(addr->words[3] & htonl(0xffffff00));
	return (struct addr){ { addr->words[0], addr->words[1] & htonl(0xffff0000), 0, 0 } };
}

/*
 * Whether a SYN comes too early: its network's others have used up the burst. Programs on several cores may miss each
 * other's tokens; that lets a few more through.
 */
static ALWAYS_INLINE int is_too_early(const struct addr *from)
{
	__u32 only = 0;
	struct syn_limit *limit = bpf_map_lookup_elem(&syn_limit, &only);
	struct addr network;
	__u64 now, due, *known;

	if (!limit || !limit->interval)
		return 0;
	now = bpf_ktime_get_ns();
	network = network_of(from);
	known = bpf_map_lookup_elem(&syn_due, &network);
	due = known && *known > now ? *known : now;
	if (due - now > limit->burst)
		return 1;
	due += limit->interval;
	if (known)
		*known = due;
	else
		bpf_map_update_elem(&syn_due, &network, &due, BPF_ANY);
	return 0;
}
