/* Headers as they are on the wire, and the key they give. */
#pragma once

#include "kernel.h"

enum { ETH_HLEN = 14, ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86dd };
enum { IPPROTO_TCP = 6, IPPROTO_UDP = 17 };
/* Where the flags of the TCP header are. */
enum { TCP_FLAGS = 13 };
enum { TCP_FIN = 0x01, TCP_SYN = 0x02, TCP_RST = 0x04, TCP_ACK = 0x10 };
enum { IPV4_MORE = 0x2000, IPV4_OFFSET = 0x1fff, IPV6_OFFSET = 0xfff8, IPV6_MORE = 1 };
/* Extension headers, by protocol number, and most of them that a packet may have (as in `wire`). */
enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, DESTINATION_OPTIONS = 60 };
enum extension_limit { MAX_EXTENSIONS = 8 };

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_len;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__be32 src;
	__be32 dst;
};

/* An address of either family: IPv4 as ::ffff:a.b.c.d. Mirrors `model::Addr`. */
struct addr {
	__be32 words[4];
};

struct ipv6_header {
	__be32 version_class_flow;
	__be16 payload_len;
	__u8 next;
	__u8 hop_limit;
	struct addr src;
	struct addr dst;
};

/* What every extension header begins with. */
struct extension {
	__u8 next;
	__u8 len; /* in units of 8 bytes, the first not counted; none in a fragment header */
	union {
		__be16 fragment;
		struct {
			__u8 routing_type;
			__u8 segments_left;
		};
	};
};

struct ports {
	__be16 src;
	__be16 dst;
};

/* What all packets of one direction of a flow have in common; ports in the machine's order. Mirrors `model::FlowKey`. */
struct flow_key {
	struct addr src;
	struct addr dst;
	__u16 src_port;
	__u16 dst_port;
	__u8 protocol;
	__u8 reserved[3];
};

static ALWAYS_INLINE struct addr v4_mapped(__be32 address)
{
	return (struct addr){ { 0, 0, htonl(0xffff), address } };
}

static ALWAYS_INLINE int is_v4(const struct addr *addr)
{
	return !(addr->words[0] | addr->words[1]) && addr->words[2] == htonl(0xffff);
}

static ALWAYS_INLINE int is_extension(__u8 protocol)
{
	return protocol == HOP_BY_HOP || protocol == ROUTING || protocol == FRAGMENT || protocol == DESTINATION_OPTIONS;
}

/* Whether TCP's flags are those of a SYN that opens a connection. */
static ALWAYS_INLINE int is_opening(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

/* Addresses and protocol; where the ports are, or 0 if this is a later fragment or cannot be read. */
static ALWAYS_INLINE __u32 parse_v4(const struct __sk_buff *skb, struct flow_key *key)
{
	struct ipv4_header ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.fragment & htons(IPV4_OFFSET))
		return 0;
	key->src = v4_mapped(ip.src);
	key->dst = v4_mapped(ip.dst);
	key->protocol = ip.protocol;
	return ETH_HLEN + (ip.version_ihl & 0xf) * 4;
}

/* The same. A packet whose source has chosen its way is not at its destination: 0 too. */
static ALWAYS_INLINE __u32 parse_v6(const struct __sk_buff *skb, struct flow_key *key)
{
	__u32 at = ETH_HLEN + sizeof(struct ipv6_header);
	struct ipv6_header ip;
	struct extension header;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	key->src = ip.src;
	key->dst = ip.dst;
	key->protocol = ip.next;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		__u8 protocol = key->protocol;

		if (!is_extension(protocol))
			break;
		if (bpf_skb_load_bytes(skb, at, &header, sizeof(header)))
			return 0;
		if (protocol == FRAGMENT && header.fragment & htons(IPV6_OFFSET))
			return 0;
		if (protocol == ROUTING && header.segments_left)
			return 0;
		at += protocol == FRAGMENT ? 8 : (header.len + 1) * 8;
		key->protocol = header.next;
	}
	return at;
}

/*
 * Fills `key` if this is TCP or UDP that was sent to this host and has its ports in it: no VLAN tag (the VLAN's own
 * interface sees it untagged), no fragment but the first. Where the header of TCP or UDP is then; else 0.
 */
static ALWAYS_INLINE __u32 parse(const struct __sk_buff *skb, struct flow_key *key)
{
	struct ports ports;
	__u32 at = 0;

	*key = (struct flow_key){};
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return 0;
	if (skb->protocol == htons(ETH_P_IP))
		at = parse_v4(skb, key);
	else if (skb->protocol == htons(ETH_P_IPV6))
		at = parse_v6(skb, key);
	if (!at || (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP))
		return 0;
	if (bpf_skb_load_bytes(skb, at, &ports, sizeof(ports)))
		return 0;
	key->src_port = ntohs(ports.src);
	key->dst_port = ntohs(ports.dst);
	return at;
}
