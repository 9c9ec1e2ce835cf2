/* Encapsulation of packets: `wire::tunnel` in C. */
#pragma once

#include "checksum.h"
#include "maps.h"
#include "parse.h"
#include "rewrite.h"

enum { IPV4_INSIDE = 4, IPV6_INSIDE = 41, OUTER_HOPS = 64 };

/* UDP and GUE, version 0. */
struct gue_header {
	struct udp_header udp;
	__u8 version;
	__u8 protocol;
	__be16 flags;
};

/*
 * Parameters of an encapsulation. Read once: for the verifier a second read returns another value.
 */
struct tunnel {
	__u32 overhead;
	int is_v4;
	int is_gue;
};

/* Parameters from an entry with FLOW_TUNNELED. */
static ALWAYS_INLINE struct tunnel tunnel_of(const struct flow_entry *entry)
{
	struct tunnel tunnel = { .is_v4 = is_v4(&entry->dst), .is_gue = entry->dst_port != 0 };

	tunnel.overhead = tunnel.is_v4 ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header);
	if (tunnel.is_gue)
		tunnel.overhead += sizeof(struct gue_header);
	return tunnel;
}

/* Length of the outer headers. */
static ALWAYS_INLINE __u32 overhead(const struct flow_entry *entry)
{
	return entry->flags & FLOW_TUNNELED ? tunnel_of(entry).overhead : 0;
}

/* Whether outer packets have a checksum over the whole inner packet. */
static ALWAYS_INLINE int needs_checksum(const struct flow_entry *entry)
{
	return entry->flags & FLOW_TUNNELED && entry->dst_port && !is_v4(&entry->dst);
}

/*
 * Whether the sum over a packet follows from a checksum in it. For a super-frame it would be
 * missing in each segment.
 */
static ALWAYS_INLINE int has_checksum(const struct packet *packet, __u32 gso_size)
{
	const struct udp_header *udp = (void *)packet->ports;

	if (gso_size)
		return 0;
	return packet->key.protocol == IPPROTO_TCP ||
	       (udp->checksum && ntohs(udp->len) == packet->len - packet->ip_len);
}

/* The sum of so many words, as in a checksum. */
static ALWAYS_INLINE __u32 sum_of(const void *bytes, int words)
{
	const __u16 *word = bytes;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/*
 * The sum over a packet that `has_checksum`: the covered bytes and the pseudo-header sum up to
 * zero.
 */
static ALWAYS_INLINE __u32 sum_of_inner(const struct packet *packet, const void *inner)
{
	__u32 pseudo = htons(packet->key.protocol) + htons(packet->len - packet->ip_len);

	if (is_ipv4(packet)) {
		const struct ipv4_header *ip = inner;

		pseudo += sum_of(&ip->src, 4);
		return sum_of(ip, sizeof(*ip) / 2) + (__u16)~fold(pseudo);
	} else {
		const struct ipv6_header *ip = inner;

		pseudo += sum_of(&ip->src, sizeof(struct addr));
		return sum_of(ip, sizeof(*ip) / 2) + (__u16)~fold(pseudo);
	}
}

/* Decrements the hop count of the inner packet. Returns its traffic class, with the ECN bits. */
static ALWAYS_INLINE __u8 pass_inner(const struct packet *packet, void *inner)
{
	if (is_ipv4(packet)) {
		struct ipv4_header *ip = inner;

		ip->ttl--;
		ip->checksum = changed(ip->checksum, TTL_SUM);
		return ip->tos;
	} else {
		struct ipv6_header *ip = inner;

		ip->hop_limit--;
		return ntohl(ip->version_class_flow) >> 20;
	}
}

/* The protocol number of the inner packet. */
static ALWAYS_INLINE __u8 inside(const struct packet *packet)
{
	return is_ipv4(packet) ? IPV4_INSIDE : IPV6_INSIDE;
}

/* Writes the header of GUE, without a checksum. Returns its sum. */
static ALWAYS_INLINE __u32 put_gue(struct gue_header *gue, const struct packet *packet, const struct flow_entry *entry)
{
	*gue = (struct gue_header){
		.udp.src_port = htons(entry->src_port),
		.udp.dst_port = htons(entry->dst_port),
		.udp.len = htons(sizeof(*gue) + packet->len),
		.protocol = inside(packet),
	};
	return sum_of(gue, sizeof(*gue) / 2);
}

/*
 * Writes outer IPv4 headers. Returns their sum for a sum over the packet: the IPv4 header adds
 * zero, because of its checksum.
 */
static ALWAYS_INLINE __u32 put_v4(struct ipv4_header *ip, const struct tunnel *tunnel, const struct packet *packet,
				  const struct flow_entry *entry, __u8 class)
{
	*ip = (struct ipv4_header){
		.version_ihl = 0x45,
		.tos = class,
		.total_len = htons(tunnel->overhead + packet->len),
		.fragment = htons(IPV4_DONT_FRAGMENT),
		.ttl = OUTER_HOPS,
		.protocol = tunnel->is_gue ? IPPROTO_UDP : inside(packet),
		.src = entry->src.words[3],
		.dst = entry->dst.words[3],
	};
	ip->checksum = ~fold(sum_of(ip, sizeof(*ip) / 2));
	return tunnel->is_gue ? put_gue((void *)(ip + 1), packet, entry) : 0;
}

/* Writes outer IPv6 headers, like the function above. */
static ALWAYS_INLINE __u32 put_v6(struct ipv6_header *ip, const struct tunnel *tunnel, const struct packet *packet,
				  const struct flow_entry *entry, __u8 class, const void *inner)
{
	__u32 label = (__u32)entry->address_sum << 16 | entry->port_sum, sum, pseudo;
	struct gue_header *gue = (void *)(ip + 1);

	*ip = (struct ipv6_header){
		.version_class_flow = htonl(6 << 28 | class << 20 | label),
		.payload_len = htons(tunnel->overhead - sizeof(*ip) + packet->len),
		.next = tunnel->is_gue ? IPPROTO_UDP : inside(packet),
		.hop_limit = OUTER_HOPS,
		.src = entry->src,
		.dst = entry->dst,
	};
	if (!tunnel->is_gue)
		return sum_of(ip, sizeof(*ip) / 2);
	sum = put_gue(gue, packet, entry);
	pseudo = sum_of(&ip->src, sizeof(struct addr)) + htons(IPPROTO_UDP) + gue->udp.len;
	gue->udp.checksum = ~fold(pseudo + sum + sum_of_inner(packet, inner));
	if (!gue->udp.checksum)
		gue->udp.checksum = 0xffff;
	return sum_of(ip, sizeof(*ip) / 2) + sum + gue->udp.checksum;
}

/*
 * Writes the headers of a frame with room for the outer ones before its packet. Returns the change
 * of a sum over the frame's contents; negative if there is no such room.
 */
static ALWAYS_INLINE long enclose(void *ethernet, const void *end, const struct tunnel *tunnel,
				  const struct packet *packet, const struct flow_entry *entry,
				  const struct next_hop *hop)
{
	void *outer = ethernet + ETH_HLEN, *inner = outer + tunnel->overhead;
	__be16 *type = ethernet + sizeof(struct macs);
	__u32 sum;
	__u8 class;

	if (inner + (is_ipv4(packet) ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header)) > end)
		return -1;
	class = pass_inner(packet, inner);
	/*
	 * The verifier has to see that there is room for outer headers: before an inner header of
	 * 20 bytes there is.
	 */
	if (tunnel->is_v4) {
		if (outer + sizeof(struct ipv4_header) + sizeof(struct gue_header) > end)
			return -1;
		sum = put_v4(outer, tunnel, packet, entry, class);
		*type = htons(ETH_P_IP);
	} else {
		if (outer + sizeof(struct ipv6_header) + sizeof(struct gue_header) > end)
			return -1;
		sum = put_v6(outer, tunnel, packet, entry, class, inner);
		*type = htons(ETH_P_IPV6);
	}
	*(struct macs *)ethernet = hop->macs;
	return is_ipv4(packet) ? sum : sum + HOP_LIMIT_SUM;
}

/*
 * Encapsulates a packet of a flow. If the kernel cannot, it fails, and the packet is unchanged
 * except for padding.
 */
static ALWAYS_INLINE long enclose_in_kernel(struct __sk_buff *skb, const struct packet *packet,
					    const struct flow_entry *entry, const struct next_hop *hop)
{
	struct tunnel tunnel = tunnel_of(entry);
	/* The packets of a super-frame keep the length that their sender chose, so they fit. */
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	long change;

	flags |= tunnel.is_v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	if (tunnel.is_gue)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (skb->len > ETH_HLEN + packet->len && bpf_skb_change_tail(skb, ETH_HLEN + packet->len, 0))
		return -1;
	if (bpf_skb_adjust_room(skb, tunnel.overhead, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	change = enclose((void *)(long)skb->data, (void *)(long)skb->data_end, &tunnel, packet, entry, hop);
	if (change < 0)
		return -1;
	/* Updates the sum over the whole packet that a card may have provided. */
	if (change)
		bpf_csum_update(skb, change);
	return 0;
}

/* Encapsulates a packet on XDP. */
static ALWAYS_INLINE long enclose_in_driver(struct xdp_md *ctx, const struct packet *packet,
					    const struct flow_entry *entry, const struct next_hop *hop)
{
	struct tunnel tunnel = tunnel_of(entry);
	void *at = (void *)(long)ctx->data + ETH_HLEN;
	long padding = (void *)(long)ctx->data_end - at - packet->len;

	if (padding > 0 && bpf_xdp_adjust_tail(ctx, -padding))
		return -1;
	if (bpf_xdp_adjust_head(ctx, -(int)tunnel.overhead))
		return -1;
	return enclose((void *)(long)ctx->data, (void *)(long)ctx->data_end, &tunnel, packet, entry, hop) < 0;
}
