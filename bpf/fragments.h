/* Packets in fragments whose first was dropped: the host could not put the rest together, and would keep it for long. */
#pragma once

#include "packet.h"

/* What all fragments of a packet have in common (RFC 791, section 3.2; RFC 8200, section 4.5). */
struct fragment_key {
	struct addr src;
	struct addr dst;
	__be32 id;
	__u8 protocol; /* 0 in IPv6 */
	__u8 reserved[3];
};

enum part { WHOLE, FIRST, LATER };

/*
 * The fragments of a packet follow each other closely, so that few packets are enough; but each CPU takes 128 places of
 * such a map at once.
 */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct fragment_key);
	MAP_TYPE(value, __u8);
} dropped SEC(".maps");

static ALWAYS_INLINE enum part part_of_v4(const struct __sk_buff *skb, struct fragment_key *key)
{
	struct ipv4_header ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || !(ip.fragment & htons(IPV4_OFFSET | IPV4_MORE)))
		return WHOLE;
	key->src = v4_mapped(ip.src);
	key->dst = v4_mapped(ip.dst);
	key->id = ip.id;
	key->protocol = ip.protocol;
	return ip.fragment & htons(IPV4_OFFSET) ? LATER : FIRST;
}

static ALWAYS_INLINE enum part part_of_v6(const struct __sk_buff *skb, struct fragment_key *key)
{
	__u32 at = ETH_HLEN + sizeof(struct ipv6_header);
	struct ipv6_header ip;
	struct extension header;
	__u8 protocol;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return WHOLE;
	protocol = ip.next;
	for (int i = 0; i < MAX_EXTENSIONS && is_extension(protocol); i++) {
		if (bpf_skb_load_bytes(skb, at, &header, sizeof(header)))
			return WHOLE;
		if (protocol == FRAGMENT)
			break;
		at += (header.len + 1) * 8;
		protocol = header.next;
	}
	if (protocol != FRAGMENT || !(header.fragment & htons(IPV6_OFFSET | IPV6_MORE)))
		return WHOLE;
	if (bpf_skb_load_bytes(skb, at + sizeof(header), &key->id, sizeof(key->id)))
		return WHOLE;
	key->src = ip.src;
	key->dst = ip.dst;
	return header.fragment & htons(IPV6_OFFSET) ? LATER : FIRST;
}

/* Which part of a packet that was sent to this host this is; fills `key` if it is not all of it. */
static ALWAYS_INLINE enum part part_of(const struct __sk_buff *skb, struct fragment_key *key)
{
	*key = (struct fragment_key){};
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return WHOLE;
	if (skb->protocol == htons(ETH_P_IP))
		return part_of_v4(skb, key);
	if (skb->protocol == htons(ETH_P_IPV6))
		return part_of_v6(skb, key);
	return WHOLE;
}

/* What has become of a first fragment. One that passes may have the number of an older packet that did not. */
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
