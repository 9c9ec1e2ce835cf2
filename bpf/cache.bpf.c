/*
 * The flow cache: forwards the packets of flows that userspace has decided on, so that they never
 * leave the kernel.
 *
 *   cache_tc      on tc ingress, before the guard: rewrites and forwards hits, passes all other
 *                 packets
 *   cache_xdp     the same on XDP, if the driver supports it
 *   cache_filter  the filter of the packet sockets: accepts convey's packets, except those that
 *                 cache_tc will forward
 *
 * The filter runs before cache_tc, and one function decides in both whether a packet is a hit.
 */
#include "kernel.h"
#include "limit.h"
#include "maps.h"
#include "packet.h"
#include "parse.h"
#include "rewrite.h"
#include "selection.h"
#include "tcp_sequence.h"
#include "tunnel.h"
#include "verify.h"

enum { IPPROTO_ICMP = 1, IPPROTO_ICMPV6 = 58 };

struct ethernet_header {
	struct macs macs;
	__be16 protocol;
};

/* Whether userspace gets an event for a forwarded packet. A repeated FIN causes none. */
static ALWAYS_INLINE int makes_event(const struct packet *packet, const struct flow_entry *entry)
{
	return entry->flags & FLOW_OPENING || (packet->flags & TCP_FIN && !(entry->flags & FLOW_FINISHED));
}

/*
 * Puts a segment into the ring of events, without waking userspace. Fails if there is no room for a
 * FIN, which its sender then repeats. The end of a handshake need not be repeated: userspace reads
 * the entry before it expires the flow.
 */
static ALWAYS_INLINE int push_event(const struct packet *packet)
{
	struct segment_event event = {
		.key = packet->key,
		.seq = ntohl(packet->seq),
		.ack = ntohl(packet->ack),
		.len = length(packet),
		.flags = packet->flags,
	};

	return bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_NO_WAKEUP) && packet->flags & TCP_FIN;
}

/* Whether a packet is left to userspace because of its effect on its connection. */
static ALWAYS_INLINE int changes_state(const struct packet *packet, const struct flow_entry *entry)
{
	if (packet->flags & TCP_RST)
		return 1;
	if (entry->flags & FLOW_OPENING && entry->flags & FLOW_TO_CLIENT)
		return !answers(packet, entry);
	if (entry->flags & FLOW_OPENING)
		return !completes(packet, entry);
	return packet->flags & TCP_SYN || (packet->flags & TCP_FIN && !finishes(packet, entry));
}

/*
 * Whether a packet arrived on the right interface; clients may use any. A server's address can be
 * forged; from another interface a packet may be forged, or take another one of several equal
 * routes: a worker decides.
 */
static ALWAYS_INLINE int comes_as_usual(const struct packet *packet, const struct flow_entry *entry)
{
	return !(entry->flags & FLOW_TO_CLIENT) || entry->from == (__u16)packet->interface;
}

/*
 * FORWARDED for a hit. `gso_size` is 0 except for a super-frame, for which the length of its
 * packets counts. A large segment that is retransmitted after a pause of `after` ns is not a hit.
 */
static ALWAYS_INLINE enum outcome judge(const struct packet *packet, __u32 gso_size, __u64 after,
					struct flow_entry **entry, struct next_hop **hop)
{
	__u32 next_hop, len, added;

	/* A SYN has no flow yet, and there may be very many. */
	if (is_opening(packet->flags))
		return UNKNOWN;
	*entry = bpf_map_lookup_elem(&flows, &packet->key);
	if (!*entry)
		return UNKNOWN;
	if (!comes_as_usual(packet, *entry))
		return OTHER_INTERFACE;
	if (changes_state(packet, *entry))
		return CHANGES_STATE;
	if (packet->hops <= 1)
		return EXPIRED;
	next_hop = (*entry)->next_hop;
	*hop = bpf_map_lookup_elem(&next_hops, &next_hop);
	if (!*hop || !(*hop)->ifindex)
		return NO_NEXT_HOP;
	if (needs_checksum(*entry) && !has_checksum(packet, gso_size))
		return UNUSUAL;
	len = gso_size ? packet->headers_len + gso_size : packet->len;
	added = overhead(*entry);
	/* A super-frame may have the maximum length of the field. */
	if (len + added > (*hop)->mtu || packet->len + added > 0xffff)
		return TOO_BIG;
	if (is_repeated(packet, len, *entry, after))
		return REPEATED;
	return FORWARDED;
}

/*
 * Whether a forwarded packet may change the state of its flow: `forwarder::changes_state` in C.
 * Workers get packets with RST.
 */
static ALWAYS_INLINE int is_verified(const struct packet *packet)
{
	return packet->flags & (TCP_SYN | TCP_FIN);
}

/* Records a forwarded packet; `len` includes its Ethernet header. */
static ALWAYS_INLINE void note(const struct packet *packet, struct flow_entry *entry, __u32 len)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 counter_id = entry->counter_id;
	struct flow_counters *sum = bpf_map_lookup_elem(&flow_counters, &counter_id);
	/* The client has received the server's answer. */
	int completes = (entry->flags & (FLOW_OPENING | FLOW_TO_CLIENT | FLOW_ALONE)) == FLOW_OPENING;

	follow(packet, entry);
	/* Only one of many packets in a tick writes. */
	if (entry->last_seen != now) {
		entry->last_seen = now;
		/*
		 * In a flood also servers: their packets with IP options may arrive at an address
		 * of frontends.
		 */
		if (packet->key.protocol == IPPROTO_TCP && (completes || limit_now()))
			know(&packet->key.src);
	}
	if (sum && entry->flags & FLOW_TO_CLIENT) {
		sum->packets_to_client++;
		sum->bytes_to_client += len;
	} else if (sum) {
		sum->packets_to_server++;
		sum->bytes_to_server += len;
	}
	count(FORWARDED);
}

/*
 * Counts packets that are left to userspace. If a sender keeps retransmitting, the next ones are
 * forwarded.
 */
static ALWAYS_INLINE void note_miss(enum shape shape, const struct packet *packet, enum outcome outcome,
				    struct flow_entry *entry)
{
	if (outcome == REPEATED)
		entry->last_seen = bpf_ktime_get_coarse_ns();
	if (shape == WHOLE && outcome != UNKNOWN)
		count(outcome);
	if (shape == FANCY && is_ours(&packet->key.dst))
		count(UNUSUAL);
}

/* Whether a packet begins a connection of convey; at a draining frontend it belongs to the host. */
static ALWAYS_INLINE int begins(const struct packet *packet)
{
	return is_opening(packet->flags) && to_frontend(&packet->key) == SERVING;
}

/* Whether a packet begins a connection beyond the limit. */
static ALWAYS_INLINE int is_refused(const struct packet *packet)
{
	struct syn_limit *limit = limit_now();

	if (!limit || !begins(packet) || is_heard(packet, limit))
		return 0;
	count(SYN_LIMITED);
	return 1;
}

/* Whether packets with this protocol in their first header may be TCP. */
static ALWAYS_INLINE int may_be_tcp(__u8 protocol)
{
	return protocol == IPPROTO_TCP || is_extension(protocol);
}

/*
 * The same for packets with options and for fragments: any TCP to a frontend's address may begin a
 * connection.
 */
static ALWAYS_INLINE int is_unread_refused(const struct packet *packet)
{
	struct syn_limit *limit = limit_now();

	if (!limit || !may_be_tcp(packet->key.protocol) || !has_frontends(&packet->key.dst))
		return 0;
	if (is_unread_heard(packet, limit))
		return 0;
	count(SYN_LIMITED);
	return 1;
}

/* The part of a packet that is read: bytes after it may not be contiguous, and take longer. */
static ALWAYS_INLINE __u32 headers_of(const struct __sk_buff *skb)
{
	__u32 ip_len = skb->protocol == htons(ETH_P_IP) ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header);

	return ip_len + sizeof(struct tcp_header);
}

/* Makes the headers accessible. */
static ALWAYS_INLINE int pull(struct __sk_buff *skb)
{
	__u32 wanted = ETH_HLEN + headers_of(skb);

	if ((void *)(long)skb->data + wanted <= (void *)(long)skb->data_end)
		return 0;
	return bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted);
}

/*
 * Leaves a flow to workers whose packet the kernel could not encapsulate. The entry keeps
 * the numbers of the connection. This packet is lost: no packet socket has a copy.
 */
static ALWAYS_INLINE int give_up(struct flow_entry *entry)
{
	entry->next_hop = NOWHERE;
	count(REWRITE_FAILED);
	return TCX_DROP;
}

SEC("classifier")
int cache_tc(struct __sk_buff *skb)
{
	enum outcome outcome = UNKNOWN;
	struct packet packet = { .interface = skb->ifindex };
	struct flow_entry *entry = NULL;
	struct next_hop *hop;
	enum shape shape;
	void *ethernet;
	__u32 len;

	if (skb->pkt_type != PACKET_HOST || !is_untagged(skb) || pull(skb))
		return TCX_NEXT;
	ethernet = (void *)(long)skb->data;
	struct source from = {
		.at = ethernet + ETH_HLEN, .end = (void *)(long)skb->data_end, .len = skb->len - ETH_HLEN
	};

	shape = parse_whole(skb->protocol, &from, &packet);
	if (shape == WHOLE)
		outcome = judge(&packet, skb->gso_size, REPEATED_AFTER, &entry, &hop);
	if (outcome != FORWARDED) {
		note_miss(shape, &packet, outcome, entry);
		return TCX_NEXT;
	}
	if (is_verified(&packet) && !is_intact_in_kernel(skb, &packet)) {
		count(BAD_CHECKSUM);
		return TCX_DROP;
	}
	len = skb->len;
	/* First, because a packet that the kernel cannot encapsulate is not forwarded. */
	if (entry->flags & FLOW_TUNNELED) {
		if (enclose_in_kernel(skb, &packet, entry, hop))
			return give_up(entry);
	} else {
		rewrite_headers(ethernet, &packet, entry, hop);
		rewrite_checksum_in_kernel(skb, &packet, entry);
	}
	if (makes_event(&packet, entry) && push_event(&packet)) {
		count(FIN_QUEUE_FULL);
		return TCX_DROP;
	}
	note(&packet, entry, len);
	/* A priority tag is not part of the bytes, but would be sent with them. */
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	/* The redirect to the peer avoids the queue between the ends of a veth. */
	return hop->redirect_peer ? bpf_redirect_peer(hop->ifindex, 0) : bpf_redirect(hop->ifindex, 0);
}

/* Whether a frame was sent to this host. */
static ALWAYS_INLINE int is_to_host(struct xdp_md *ctx, const struct ethernet_header *ethernet)
{
	__u32 interface = ctx->ingress_ifindex;
	struct mac *mac = bpf_map_lookup_elem(&interfaces, &interface);
	const struct mac *dst = &ethernet->macs.dst;

	return mac && mac->words[0] == dst->words[0] && mac->words[1] == dst->words[1] && mac->words[2] == dst->words[2];
}

/*
 * Length of the priority tag of a frame, 0 without one. A card that strips tags hides them from
 * XDP.
 */
static ALWAYS_INLINE __u32 priority_tag(const struct ethernet_header *ethernet, const void *end)
{
	const __be16 *tag = (const void *)(ethernet + 1);

	if (!is_vlan_tag(ethernet->protocol) || (void *)(tag + 1) > end || *tag & htons(VLAN_VID_MASK))
		return 0;
	return VLAN_HLEN;
}

/*
 * Removes a priority tag: the addresses move to the bytes after it. Pointers into the packet are
 * invalid afterwards.
 */
static ALWAYS_INLINE long strip_priority_tag(struct xdp_md *ctx, struct ethernet_header *ethernet)
{
	const struct ethernet_header *outer = (void *)ethernet - VLAN_HLEN;
	const struct macs macs = outer->macs;

	ethernet->macs = macs;
	return bpf_xdp_adjust_head(ctx, VLAN_HLEN);
}

SEC("xdp")
int cache_xdp(struct xdp_md *ctx)
{
	struct ethernet_header *ethernet = (void *)(long)ctx->data;
	struct source from = { .end = (void *)(long)ctx->data_end, .len = ~0 };
	__u32 tag_len;
	enum outcome outcome = UNKNOWN;
	struct packet packet = { .interface = ctx->ingress_ifindex };
	struct flow_entry *entry = NULL;
	struct next_hop *hop;
	enum shape shape;

	if ((void *)(ethernet + 1) > from.end || !is_to_host(ctx, ethernet))
		return XDP_PASS;
	tag_len = priority_tag(ethernet, from.end);
	ethernet = (void *)ethernet + tag_len;
	if ((void *)(ethernet + 1) > from.end)
		return XDP_PASS;
	from.at = ethernet + 1;
	shape = parse_whole(ethernet->protocol, &from, &packet);
	if (shape == WHOLE && packet.ip + packet.len > from.end)
		shape = FANCY;
	if ((shape == WHOLE && is_refused(&packet)) || (shape == FANCY && is_unread_refused(&packet)))
		return XDP_DROP;
	if (shape == WHOLE)
		outcome = judge(&packet, 0, REPEATED_AFTER, &entry, &hop);
	if (outcome != FORWARDED) {
		note_miss(shape, &packet, outcome, entry);
		return XDP_PASS;
	}
	if (is_verified(&packet) && !is_intact_in_driver(ctx, &packet, ETH_HLEN + tag_len)) {
		count(BAD_CHECKSUM);
		return XDP_DROP;
	}
	/* First, because without room in the driver a worker forwards the packet, and counts it. */
	if (entry->flags & FLOW_TUNNELED) {
		if ((tag_len && strip_priority_tag(ctx, ethernet)) || enclose_in_driver(ctx, &packet, entry, hop)) {
			count(UNUSUAL);
			return XDP_PASS;
		}
	} else {
		rewrite_headers(ethernet, &packet, entry, hop);
		rewrite_checksum(&packet, entry);
		/* Removing bytes from the front always succeeds. */
		if (tag_len && bpf_xdp_adjust_head(ctx, VLAN_HLEN)) {
			count(REWRITE_FAILED);
			return XDP_DROP;
		}
	}
	if (makes_event(&packet, entry) && push_event(&packet)) {
		count(FIN_QUEUE_FULL);
		return XDP_DROP;
	}
	note(&packet, entry, ETH_HLEN + packet.len);
	return hop->ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(hop->ifindex, 0);
}

/* Whether a packet is an ICMP error, which may be about a flow. */
static ALWAYS_INLINE int is_icmp_error(const struct source *from, struct __sk_buff *skb, const struct packet *packet)
{
	int is_ipv4 = skb->protocol == htons(ETH_P_IP);
	struct ipv4_header *ip = from->at;
	__u8 type;

	if (packet->key.protocol != (is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return 0;
	if (is_ipv4 && ip->fragment & htons(IPV4_OFFSET))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + packet->ip_len, &type, sizeof(type)))
		return 0;
	if (is_ipv4)
		return type == 3 || type == 11 || type == 12; /* RFC 792: unreachable, time exceeded, parameter problem */
	return 1 <= type && type <= 4; /* RFC 4443: the same and packet too big */
}

/* Whether a packet is left to userspace and accepted by the filter. */
static ALWAYS_INLINE int is_for_us(const struct source *from, struct __sk_buff *skb)
{
	struct packet packet = { .interface = skb->ifindex };
	struct flow_entry *entry;
	struct next_hop *hop;

	switch (parse_whole(skb->protocol, from, &packet)) {
	case WHOLE:
		if (judge(&packet, skb->gso_size, FILTER_REPEATED_AFTER, &entry, &hop) == FORWARDED || is_refused(&packet))
			return 0;
		return to_frontend(&packet.key) || reply_of_server(&packet.key);
	case FANCY:
		return is_ours(&packet.key.dst) && !is_unread_refused(&packet);
	default:
		return is_icmp_error(from, skb, &packet) && is_ours(&packet.key.dst);
	}
}

SEC("socket")
int cache_filter(struct __sk_buff *skb)
{
	/* A filter cannot read in place. Missing bytes are zero, and never make a packet WHOLE. */
	__u8 headers[HEADERS] __attribute__((aligned(8))) = {};
	__u32 len = skb->len - ETH_HLEN, wanted = headers_of(skb);
	struct source from = { .at = headers, .end = headers + HEADERS, .len = len };

	if (skb->pkt_type != PACKET_HOST || !is_untagged(skb) || skb->len < ETH_HLEN)
		return 0;
	wanted = len < wanted ? len : wanted;
	/* The verifier of Linux 6.1 needs both bounds separately. */
	asm volatile("" : "+r"(wanted));
	if (wanted < sizeof(struct ipv4_header))
		return 0;
	asm volatile("" : "+r"(wanted));
	if (wanted > HEADERS)
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, headers, wanted))
		return 0;
	return is_for_us(&from, skb) ? ~0 : 0;
}

/* Unused: keeps the types in the object's BTF that userspace mirrors and no map holds. */
const struct {
	struct segment_event event;
	enum flow_flag flow_flag;
	enum outcome outcome;
	enum frontend_state frontend_state;
	enum own_address own_address;
	enum sequence_limit sequence_limit;
	enum extension_limit extension_limit;
} mirrored SEC(".mirrored") = {};

char LICENSE[] SEC("license") = "Dual MIT/GPL";
