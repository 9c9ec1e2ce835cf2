/* Rewriting of packets: `wire::rewrite` in C. */
#pragma once

#include "checksum.h"
#include "maps.h"
#include "parse.h"

static ALWAYS_INLINE int is_ipv4(const struct packet *packet)
{
	return packet->ip_len == sizeof(struct ipv4_header);
}

/* Link-layer addresses, hop count, and what is in the IP header; its own checksum too. */
static ALWAYS_INLINE void rewrite_headers(void *ethernet, const struct packet *packet, const struct flow_entry *entry,
					  const struct next_hop *hop)
{
	__u32 change = TTL_SUM;

	*(struct macs *)ethernet = hop->macs;
	if (is_ipv4(packet)) {
		struct ipv4_header *ip = packet->ip;

		ip->ttl--;
		if (!(entry->flags & FLOW_L2_DSR)) {
			ip->src = entry->src.words[3];
			ip->dst = entry->dst.words[3];
			change += entry->address_sum;
		}
		ip->checksum = changed(ip->checksum, change);
	} else {
		struct ipv6_header *ip = packet->ip;

		ip->hop_limit--;
		if (!(entry->flags & FLOW_L2_DSR)) {
			ip->src = entry->src;
			ip->dst = entry->dst;
		}
	}
	if (!(entry->flags & FLOW_L2_DSR)) {
		packet->ports->src = htons(entry->src_port);
		packet->ports->dst = htons(entry->dst_port);
	}
}

/* Updates a complete checksum of TCP or UDP. */
static ALWAYS_INLINE void rewrite_checksum(const struct packet *packet, const struct flow_entry *entry)
{
	__u32 change = entry->address_sum + entry->port_sum;

	if (entry->flags & FLOW_L2_DSR)
		return;
	/*
	 * For UDP 0 means that there is no checksum, and stays; a computed 0 is written as the
	 * other zero (RFC 768).
	 */
	if (packet->key.protocol == IPPROTO_TCP)
		*packet->checksum = changed(*packet->checksum, change);
	else if (*packet->checksum)
		*packet->checksum = changed(*packet->checksum, change) ?: 0xffff;
}

/*
 * Updates a checksum that the kernel may have left to the network card to complete. Only the kernel
 * knows that; it also updates the sum over the whole packet that a card may have provided, given
 * the changes that it cannot see. Pointers into the packet are invalid afterwards.
 */
static ALWAYS_INLINE void rewrite_checksum_in_kernel(struct __sk_buff *skb, const struct packet *packet,
						     const struct flow_entry *entry)
{
	__u32 at = ETH_HLEN + packet->ip_len;
	__u64 flags = 0;
	__u32 addresses = entry->address_sum, unseen = 0;

	if (!is_ipv4(packet))
		unseen = HOP_LIMIT_SUM;
	if (!(entry->flags & FLOW_L2_DSR)) {
		if (packet->key.protocol == IPPROTO_TCP) {
			at += __builtin_offsetof(struct tcp_header, checksum);
		} else {
			at += __builtin_offsetof(struct udp_header, checksum);
			flags = BPF_F_MARK_MANGLED_0;
		}
		bpf_l4_csum_replace(skb, at, 0, addresses, flags | BPF_F_PSEUDO_HDR);
		bpf_l4_csum_replace(skb, at, 0, entry->port_sum, flags);
		/*
		 * With the first, the kernel removes the addresses from its sum, which is right for
		 * IPv4, whose header has its own checksum to compensate for them. In IPv6 the
		 * checksum of TCP or UDP does this.
		 */
		if (!is_ipv4(packet))
			unseen += addresses;
	}
	if (unseen)
		bpf_csum_update(skb, unseen);
}
