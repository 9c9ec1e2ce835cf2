/*
 * Fragmented packets whose first fragment was dropped: the host could not reassemble the rest, and
 * would keep it for long.
 */
#pragma once

#include "head.h"

/* What all fragments of a packet have in common (RFC 791, section 3.2; RFC 8200, section 4.5). */
struct fragment_key {
	struct addr src;
	struct addr dst;
	__be32 id;
	__u8 protocol; /* 0 in IPv6 */
	__u8 reserved[3];
};

/*
 * The fragments of a packet follow each other closely, so few packets are enough; but each CPU
 * takes 128 places of such a map at once.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct fragment_key);
	MAP_TYPE(value, __u8);
} dropped SEC(".maps");

static ALWAYS_INLINE struct fragment_key fragment_of(const struct __sk_buff *skb, const struct head *head)
{
	__u8 protocol = skb->protocol == htons(ETH_P_IP) ? head->key.protocol : 0;

	return (struct fragment_key){ .src = head->key.src, .dst = head->key.dst, .id = head->id, .protocol = protocol };
}

/*
 * Records the decision on a first fragment. A passing one may have the number of an older, dropped
 * packet.
 */
static ALWAYS_INLINE void remember(const struct fragment_key *key, int is_dropped)
{
	__u8 yes = 1;

	if (is_dropped)
		bpf_map_update_elem(&dropped, key, &yes, 0);
	else
		bpf_map_delete_elem(&dropped, key);
}

static ALWAYS_INLINE int is_dropped(const struct fragment_key *key)
{
	return bpf_map_lookup_elem(&dropped, key) != NULL;
}
