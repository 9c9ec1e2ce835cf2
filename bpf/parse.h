/*
 * Packets that the cache may forward: unfragmented TCP segments and UDP datagrams with consistent
 * lengths, as in `wire::parse`.
 */
#pragma once

#include "checksum.h"
#include "packet.h"

struct tcp_header {
	__be16 src_port;
	__be16 dst_port;
	__be32 seq;
	__be32 ack;
	__u8 len; /* in words of 32 bits: the upper half */
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
};

struct udp_header {
	__be16 src_port;
	__be16 dst_port;
	__be16 len;
	__u16 checksum;
};

/* The readable part of a packet: from the IP header to `end`. */
struct source {
	void *at;
	void *end;
	__u32 len; /* from the IP header on, with what is beyond `end` and padding */
};

/* Result of parsing a packet. */
enum { HEADERS = sizeof(struct ipv6_header) + sizeof(struct tcp_header) };

struct packet {
	struct flow_key key;
	__u32 ip_len; /* of the IP header */
	/* Only if it is WHOLE: */
	void *ip;
	struct ports *ports;
	__u16 *checksum; /* of TCP or UDP */
	__u32 headers_len;
	__u32 len; /* from the IP header to the end of what it carries */
	__u8 hops;
	__u8 flags; /* of TCP */
	__be32 seq; /* of TCP */
	__be32 ack;
	/*
	 * The ingress interface. Last, because the verifier loses the bounds of `ip_len` if both
	 * share 8 bytes.
	 */
	__u32 interface;
};

enum shape {
	/*
	 * Not for the cache, and not for convey unless it is ICMP: only the addresses of an IP
	 * packet are known.
	 */
	OTHER,
	/*
	 * TCP or UDP with options, extension headers, wrong lengths, a wrong checksum of the IPv4
	 * header, or in fragments: only the addresses are known, and the protocol, if not more than
	 * one header is before it.
	 */
	FANCY,
	/* All fields are known. */
	WHOLE,
};

/* Bytes of the packet; NULL if they are missing. */
static ALWAYS_INLINE void *look(const struct source *from, __u32 offset, __u32 len)
{
	return from->at + offset + len > from->end ? NULL : from->at + offset;
}

/* Parses the payload of the IP header. */
static ALWAYS_INLINE enum shape parse_transport(const struct source *from, struct packet *packet)
{
	__u32 len;

	if (packet->len > from->len)
		return FANCY;
	if (packet->key.protocol == IPPROTO_TCP) {
		struct tcp_header *tcp = look(from, packet->ip_len, sizeof(*tcp));

		if (!tcp)
			return FANCY;
		len = (tcp->len >> 4) * 4;
		if (len < sizeof(*tcp) || packet->len < packet->ip_len + len)
			return FANCY;
		packet->ports = (struct ports *)tcp;
		packet->checksum = &tcp->checksum;
		packet->headers_len = packet->ip_len + len;
		packet->key.src_port = ntohs(tcp->src_port);
		packet->key.dst_port = ntohs(tcp->dst_port);
		packet->flags = tcp->flags;
		packet->seq = tcp->seq;
		packet->ack = tcp->ack;
	} else {
		struct udp_header *udp = look(from, packet->ip_len, sizeof(*udp));

		if (!udp)
			return FANCY;
		len = ntohs(udp->len);
		if (len < sizeof(*udp) || packet->len < packet->ip_len + len)
			return FANCY;
		packet->ports = (struct ports *)udp;
		packet->checksum = &udp->checksum;
		packet->headers_len = packet->ip_len + sizeof(*udp);
		packet->key.src_port = ntohs(udp->src_port);
		packet->key.dst_port = ntohs(udp->dst_port);
		packet->flags = 0;
		packet->seq = 0;
		packet->ack = 0;
	}
	return WHOLE;
}

/* The sum over an IPv4 header without options (RFC 1071). */
static ALWAYS_INLINE __u64 header_sum(const struct ipv4_header *ip)
{
	const __u32 *words = (const void *)ip;

	return (__u64)words[0] + words[1] + words[2] + words[3] + words[4];
}

static ALWAYS_INLINE enum shape parse_whole_v4(const struct source *from, struct packet *packet)
{
	struct ipv4_header *ip = look(from, 0, sizeof(*ip));

	if (!ip || ip->version_ihl >> 4 != 4)
		return OTHER;
	packet->key = (struct flow_key){ .src = v4_mapped(ip->src), .dst = v4_mapped(ip->dst), .protocol = ip->protocol };
	packet->ip_len = (ip->version_ihl & 0xf) * 4;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return OTHER;
	if (ip->version_ihl != 0x45 || ip->fragment & htons(IPV4_OFFSET | IPV4_MORE) || fold_long(header_sum(ip)) != 0xffff)
		return FANCY;
	packet->ip = ip;
	packet->ip_len = sizeof(*ip);
	packet->len = ntohs(ip->total_len);
	packet->hops = ip->ttl;
	return parse_transport(from, packet);
}

static ALWAYS_INLINE enum shape parse_whole_v6(const struct source *from, struct packet *packet)
{
	struct ipv6_header *ip = look(from, 0, sizeof(*ip));

	if (!ip || !is_version_6(ip->version_class_flow))
		return OTHER;
	packet->key = (struct flow_key){ .src = ip->src, .dst = ip->dst, .protocol = ip->next };
	packet->ip_len = sizeof(*ip);
	if (is_extension(ip->next)) {
		struct extension *first = look(from, sizeof(*ip), sizeof(*first));

		packet->key.protocol = first ? first->next : IPPROTO_TCP;
		return FANCY;
	}
	if (ip->next != IPPROTO_TCP && ip->next != IPPROTO_UDP)
		return OTHER;
	/* An IPv4-mapped address is not allowed on the wire; as a key it would match another flow. */
	if (is_v4(&ip->src) || is_v4(&ip->dst))
		return FANCY;
	packet->ip = ip;
	packet->len = sizeof(*ip) + ntohs(ip->payload_len);
	packet->hops = ip->hop_limit;
	return parse_transport(from, packet);
}

/* `protocol` is the one of the Ethernet header. */
static ALWAYS_INLINE enum shape parse_whole(__be16 protocol, const struct source *from, struct packet *packet)
{
	if (protocol == htons(ETH_P_IP))
		return parse_whole_v4(from, packet);
	if (protocol == htons(ETH_P_IPV6))
		return parse_whole_v6(from, packet);
	return OTHER;
}
