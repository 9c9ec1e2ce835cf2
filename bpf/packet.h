/* Headers on the wire, and the flow key derived from them. */
#pragma once

#include "kernel.h"

enum { ETH_HLEN = 14, ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86dd };
/* VLAN tags: 802.1Q and 802.1ad. VID 0 is no VLAN: the tag has only a priority. */
enum { ETH_P_8021Q = 0x8100, ETH_P_8021AD = 0x88a8, VLAN_HLEN = 4, VLAN_VID_MASK = 0xfff };
enum { IPPROTO_TCP = 6, IPPROTO_UDP = 17 };
/* Offset of the flags in the TCP header. */
enum { TCP_FLAGS = 13 };
enum { TCP_FIN = 0x01, TCP_SYN = 0x02, TCP_RST = 0x04, TCP_ACK = 0x10 };
enum { IPV4_DONT_FRAGMENT = 0x4000, IPV4_MORE = 0x2000, IPV4_OFFSET = 0x1fff, IPV6_OFFSET = 0xfff8, IPV6_MORE = 1 };
/* Extension headers by protocol number, and the maximum number in a packet (as in `wire`). */
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

/* First part of every extension header. */
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

/*
 * Key of all packets of one direction of a flow; ports in host byte order. Mirrors
 * `model::FlowKey`.
 */
struct flow_key {
	struct addr src;
	struct addr dst;
	__u16 src_port;
	__u16 dst_port;
	__u8 protocol;
	__u8 reserved[3];
};

static ALWAYS_INLINE int is_vlan_tag(__be16 protocol)
{
	return protocol == htons(ETH_P_8021Q) || protocol == htons(ETH_P_8021AD);
}

/*
 * Whether the host's stack accepts a frame on this interface: without a VLAN tag, or with a
 * priority tag.
 */
static ALWAYS_INLINE int is_untagged(const struct __sk_buff *skb)
{
	return !skb->vlan_present || !(skb->vlan_tci & VLAN_VID_MASK);
}

/* Whether the first word of an IPv6 header has that version. */
static ALWAYS_INLINE int is_version_6(__be32 version_class_flow)
{
	return (version_class_flow & htonl(0xf0000000)) == htonl(0x60000000);
}

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

/* Whether the TCP flags are those of a SYN that opens a connection. */
static ALWAYS_INLINE int is_opening(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}
