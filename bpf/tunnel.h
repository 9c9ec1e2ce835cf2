/* Putting packets into tunnels: `wire::tunnel` in C, but for GUE over IPv6, whose checksum covers the whole packet. */
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

/* What it takes to put a packet into a tunnel. Read once: the verifier takes a second look for another value. */
struct tunnel {
	__u32 overhead;
	int is_v4;
	int is_gue;
};

/* Of an entry that has FLOW_TUNNELED. */
static ALWAYS_INLINE struct tunnel tunnel_of(const struct flow_entry *entry)
{
	struct tunnel tunnel = { .is_v4 = is_v4(&entry->dst) };

	tunnel.is_gue = tunnel.is_v4 && entry->dst_port;
	tunnel.overhead = tunnel.is_v4 ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header);
	if (tunnel.is_gue)
		tunnel.overhead += sizeof(struct gue_header);
	return tunnel;
}

/* How much longer packets become. */
static ALWAYS_INLINE __u32 overhead(const struct flow_entry *entry)
{
	return entry->flags & FLOW_TUNNELED ? tunnel_of(entry).overhead : 0;
}

/* The sum of so many words, as a checksum has it. */
static ALWAYS_INLINE __u32 sum_of(const void *bytes, int words)
{
	const __u16 *word = bytes;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* One hop less for the inner packet. Returns its traffic class, with the ECN bits. */
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

/* Writes the header of IPv4, and that of GUE if there is one. Returns what they add to a sum over the packet: the former nothing. */
static ALWAYS_INLINE __u32 put_v4(void *at, const struct tunnel *tunnel, const struct packet *packet,
				  const struct flow_entry *entry, __u8 class)
{
	__u8 inside = is_ipv4(packet) ? IPV4_INSIDE : IPV6_INSIDE;
	struct ipv4_header *ip = at;
	struct gue_header *gue = (void *)(ip + 1);

	*ip = (struct ipv4_header){
		.version_ihl = 0x45,
		.tos = class,
		.total_len = htons(tunnel->overhead + packet->len),
		.fragment = htons(IPV4_DONT_FRAGMENT),
		.ttl = OUTER_HOPS,
		.protocol = tunnel->is_gue ? IPPROTO_UDP : inside,
		.src = entry->src.words[3],
		.dst = entry->dst.words[3],
	};
	ip->checksum = ~fold(sum_of(ip, sizeof(*ip) / 2));
	if (!tunnel->is_gue)
		return 0;
	*gue = (struct gue_header){
		.udp.src_port = htons(entry->src_port),
		.udp.dst_port = htons(entry->dst_port),
		.udp.len = htons(sizeof(*gue) + packet->len),
		.protocol = inside,
	};
	return sum_of(gue, sizeof(*gue) / 2);
}

/* The same of IPv6. */
static ALWAYS_INLINE __u32 put_v6(void *at, const struct packet *packet, const struct flow_entry *entry, __u8 class)
{
	struct ipv6_header *ip = at;

	*ip = (struct ipv6_header){
		.version_class_flow = htonl(6 << 28 | class << 20 | (__u32)entry->src_port << 16 | entry->dst_port),
		.payload_len = htons(packet->len),
		.next = is_ipv4(packet) ? IPV4_INSIDE : IPV6_INSIDE,
		.hop_limit = OUTER_HOPS,
		.src = entry->src,
		.dst = entry->dst,
	};
	return sum_of(ip, sizeof(*ip) / 2);
}

/*
 * Writes the headers of a frame that has room for the outer ones before its packet. Returns what that changes in a sum over the
 * frame's contents; negative if there is no such room.
 */
static ALWAYS_INLINE long enclose(void *ethernet, const void *end, const struct tunnel *tunnel,
				  const struct packet *packet, const struct flow_entry *entry,
				  const struct next_hop *hop)
{
	void *outer = ethernet + ETH_HLEN, *inner = outer + tunnel->overhead;
	__be16 *type = ethernet + sizeof(struct macs);
	__u32 sum;
	__u8 class;

	/* The least that both headers are takes as much as that of IPv6. */
	if (outer + sizeof(struct ipv6_header) > end)
		return -1;
	if (inner + (is_ipv4(packet) ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header)) > end)
		return -1;
	class = pass_inner(packet, inner);
	*(struct macs *)ethernet = hop->macs;
	*type = tunnel->is_v4 ? htons(ETH_P_IP) : htons(ETH_P_IPV6);
	sum = tunnel->is_v4 ? put_v4(outer, tunnel, packet, entry, class) : put_v6(outer, packet, entry, class);
	return is_ipv4(packet) ? sum : sum + HOP_LIMIT_SUM;
}

/* Puts a packet into its flow's tunnel. Fails if the kernel cannot, and it is as it was then but for padding. */
static ALWAYS_INLINE long enclose_in_kernel(struct __sk_buff *skb, const struct packet *packet,
					    const struct flow_entry *entry, const struct next_hop *hop)
{
	struct tunnel tunnel = tunnel_of(entry);
	/* Each packet of a super-frame is as long as its sender made it: they fit. */
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
	/* Of the sum over the whole packet that a card may have given it. */
	if (change)
		bpf_csum_update(skb, change);
	return 0;
}

/* The same in a driver. */
static ALWAYS_INLINE long enclose_in_driver(struct xdp_md *ctx, const struct packet *packet,
					    const struct flow_entry *entry, const struct next_hop *hop)
{
	struct tunnel tunnel = tunnel_of(entry);
	void *packet_at = (void *)(long)ctx->data + ETH_HLEN;
	long padding = (void *)(long)ctx->data_end - packet_at - packet->len;

	if (padding > 0 && bpf_xdp_adjust_tail(ctx, -padding))
		return -1;
	if (bpf_xdp_adjust_head(ctx, -(int)tunnel.overhead))
		return -1;
	return enclose((void *)(long)ctx->data, (void *)(long)ctx->data_end, &tunnel, packet, entry, hop) < 0;
}
