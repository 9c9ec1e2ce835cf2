/*
 * The fields of a packet that the guard reads, once: its flow key, and which part of the packet the
 * frame contains.
 */
#pragma once

#include "packet.h"

enum part { WHOLE, FIRST, LATER };

struct head {
	struct flow_key key; /* with ports only where there is a transport header */
	__u32 transport;     /* where the header of TCP or UDP is, from the Ethernet header on; 0: it is not read */
	__be32 id;	     /* the number that the fragments of a packet have in common */
	enum part part;
	int is_beyond; /* it has more extension headers than are read */
};

/* Offset of the transport header, or 0 if this frame has none. */
static ALWAYS_INLINE __u32 read_v4(const struct __sk_buff *skb, struct head *head)
{
	struct ipv4_header ip;

	/* No worker gets a packet of another version, and the host drops it. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version_ihl >> 4 != 4)
		return 0;
	head->key.src = v4_mapped(ip.src);
	head->key.dst = v4_mapped(ip.dst);
	head->key.protocol = ip.protocol;
	if (ip.fragment & htons(IPV4_OFFSET | IPV4_MORE)) {
		head->id = ip.id;
		head->part = ip.fragment & htons(IPV4_OFFSET) ? LATER : FIRST;
	}
	return head->part == LATER ? 0 : ETH_HLEN + (ip.version_ihl & 0xf) * 4;
}

/* Reads the fragment header at `at`. An unfragmented packet may have one, too (RFC 6946). */
static ALWAYS_INLINE int read_fragment(const struct __sk_buff *skb, __u32 at, __be16 fragment, struct head *head)
{
	if (!(fragment & htons(IPV6_OFFSET | IPV6_MORE)))
		return 1;
	if (bpf_skb_load_bytes(skb, at + sizeof(struct extension), &head->id, sizeof(head->id)))
		return 0;
	head->part = fragment & htons(IPV6_OFFSET) ? LATER : FIRST;
	return 1;
}

/* As for IPv4. A packet with a source route has not reached its destination: also 0. */
static ALWAYS_INLINE __u32 read_v6(const struct __sk_buff *skb, struct head *head)
{
	__u32 at = ETH_HLEN + sizeof(struct ipv6_header);
	struct ipv6_header ip;
	struct extension header;
	int has_fragment = 0, is_on_its_way = 0;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || !is_version_6(ip.version_class_flow))
		return 0;
	head->key.src = ip.src;
	head->key.dst = ip.dst;
	head->key.protocol = ip.next;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		__u8 protocol = head->key.protocol;

		/* Hop-by-hop options must come first: the host refuses others, and no worker handles them. */
		if (!is_extension(protocol) || (protocol == HOP_BY_HOP && i))
			break;
		if (bpf_skb_load_bytes(skb, at, &header, sizeof(header)))
			return 0;
		if (protocol == FRAGMENT) {
			/* Hosts use the first of several fragment headers. */
			if (!has_fragment && !read_fragment(skb, at, header.fragment, head))
				return 0;
			if (header.fragment & htons(IPV6_OFFSET))
				return 0;
			has_fragment = 1;
		}
		if (protocol == ROUTING && header.segments_left)
			is_on_its_way = 1;
		at += protocol == FRAGMENT ? 8 : (header.len + 1) * 8;
		head->key.protocol = header.next;
	}
	head->is_beyond = !is_on_its_way && is_extension(head->key.protocol) && head->key.protocol != HOP_BY_HOP;
	return is_on_its_way || head->is_beyond ? 0 : at;
}

/*
 * Reads a packet that was sent to this host without a VLAN tag or with a priority tag (the
 * interface of a VLAN sees its packets untagged). There is a transport header if this is TCP or UDP
 * and contains its ports: unfragmented, or the first fragment.
 */
static ALWAYS_INLINE void read_head(const struct __sk_buff *skb, struct head *head)
{
	struct ports ports;
	__u32 at = 0;

	*head = (struct head){};
	if (skb->pkt_type != PACKET_HOST || !is_untagged(skb))
		return;
	if (skb->protocol == htons(ETH_P_IP))
		at = read_v4(skb, head);
	else if (skb->protocol == htons(ETH_P_IPV6))
		at = read_v6(skb, head);
	if (!at || (head->key.protocol != IPPROTO_TCP && head->key.protocol != IPPROTO_UDP))
		return;
	if (bpf_skb_load_bytes(skb, at, &ports, sizeof(ports)))
		return;
	head->key.src_port = ntohs(ports.src);
	head->key.dst_port = ntohs(ports.dst);
	head->transport = at;
}
