/* Headers as they are on the wire, and the tuple they give. */
#pragma once

#include "kernel.h"

enum { ETH_HLEN = 14, ETH_P_IP = 0x0800 };
enum { IPPROTO_TCP = 6 };
enum { IP_OFFSET = 0x1fff };
/* Where the flags of the TCP header are. */
enum { TCP_FLAGS = 13 };
enum { TCP_SYN = 0x02, TCP_RST = 0x04, TCP_ACK = 0x10 };

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

struct ports {
	__be16 src;
	__be16 dst;
};

/* An address of either family: IPv4 as ::ffff:a.b.c.d. Mirrors `model::Addr`. */
struct addr {
	__u32 words[4];
};

/* One end of a flow. Mirrors `guard::Endpoint`. */
struct endpoint {
	struct addr addr;
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

/* Addresses and ports of one TCP packet over IPv4. */
struct tuple {
	__be32 src;
	__be32 dst;
	struct ports ports;
};

static ALWAYS_INLINE struct addr v4_mapped(__be32 address)
{
	return (struct addr){ { 0, 0, htonl(0xffff), address } };
}

/*
 * Fills `tuple` and says 1 if this is TCP over IPv4 that was sent to this host and has its ports in it: no VLAN tag
 * (the VLAN's own interface sees it untagged), no fragment but the first.
 */
static ALWAYS_INLINE int parse(const struct __sk_buff *skb, struct tuple *tuple)
{
	struct ipv4_header ip;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->protocol != htons(ETH_P_IP))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.protocol != IPPROTO_TCP || ip.fragment & htons(IP_OFFSET))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + (ip.version_ihl & 0xf) * 4, &tuple->ports, sizeof(tuple->ports)))
		return 0;
	tuple->src = ip.src;
	tuple->dst = ip.dst;
	return 1;
}
