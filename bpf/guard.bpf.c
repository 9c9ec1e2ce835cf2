/*
 * The guard: hides the packets that convey forwards from the host's own stack, which would answer
 * with RST or "port unreachable". `guard` is attached to tcx ingress, which a frame passes after
 * the packet sockets have got their copy, and disappears with the process. `dsr_guard` is a filter
 * of clsact, behind it, which stays after the process has ended, until it expires.
 */
#include "kernel.h"
#include "fragments.h"
#include "head.h"
#include "selection.h"

/* Deadlines of `dsr_guard` (CLOCK_MONOTONIC, ns). Mirrors `kernel_types::LeaseEntry`. */
struct lease {
	__u64 serves_until; /* as long as convey may still be there, or come back at once */
	__u64 ends;	    /* until then what begins at a frontend is the host's, and what is under way is not */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct lease);
} lease SEC(".maps");

/* Current state of frontends for `dsr_guard`: SERVING, DRAINING or, after it has expired, 0. */
static ALWAYS_INLINE int of_lease(void)
{
	__u32 only = 0;
	struct lease *held = bpf_map_lookup_elem(&lease, &only);
	__u64 now = bpf_ktime_get_ns();

	if (!held || now >= held->ends)
		return 0;
	return now < held->serves_until ? SERVING : DRAINING;
}

/* Converts the key for a lookup of sockets; returns its size. */
static ALWAYS_INLINE __u32 socket_tuple(const struct __sk_buff *skb, const struct flow_key *key,
					struct bpf_sock_tuple *tuple)
{
	*tuple = (struct bpf_sock_tuple){};
	if (skb->protocol == htons(ETH_P_IP)) {
		tuple->ipv4.saddr = key->src.words[3];
		tuple->ipv4.daddr = key->dst.words[3];
		tuple->ipv4.sport = htons(key->src_port);
		tuple->ipv4.dport = htons(key->dst_port);
		return sizeof(tuple->ipv4);
	}
	for (int i = 0; i < 4; i++) {
		tuple->ipv6.saddr[i] = key->src.words[i];
		tuple->ipv6.daddr[i] = key->dst.words[i];
	}
	tuple->ipv6.sport = htons(key->src_port);
	tuple->ipv6.dport = htons(key->dst_port);
	return sizeof(tuple->ipv6);
}

/*
 * Whether a connection of this host has the key. A listening socket does not count: it would answer
 * with RST, like the stack.
 */
static ALWAYS_INLINE int connected_here(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *sock = bpf_skc_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	int connected;

	if (!sock)
		return 0;
	connected = sock->state != BPF_TCP_LISTEN;
	bpf_sk_release(sock);
	return connected;
}

/*
 * Whether a UDP socket of this host accepts the key, connected or not. Most clients (resolvers,
 * QUIC) never connect theirs, and a program ignores unexpected datagrams; the stack answers only
 * for an unused port.
 */
static ALWAYS_INLINE int bound_here(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *sock = bpf_sk_lookup_udp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!sock)
		return 0;
	bpf_sk_release(sock);
	return 1;
}

/*
 * Whether a program of this host waits for this packet: it may contact a server from one of
 * convey's ports.
 */
static ALWAYS_INLINE int owned_here(struct __sk_buff *skb, const struct flow_key *key)
{
	struct bpf_sock_tuple tuple;
	__u32 size = socket_tuple(skb, key, &tuple);

	return key->protocol == IPPROTO_TCP ? connected_here(skb, &tuple, size) : bound_here(skb, &tuple, size);
}

/* Whether a segment is a SYN that opens a connection. */
static ALWAYS_INLINE int opens(const struct __sk_buff *skb, const struct head *head)
{
	__u8 flags;

	if (head->key.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, head->transport + TCP_FLAGS, &flags, 1))
		return 0;
	return is_opening(flags);
}

/* Decision on a packet that contains its ports; `at_most` limits the state of frontends. */
static ALWAYS_INLINE int judge(struct __sk_buff *skb, const struct head *head, int at_most)
{
	const struct flow_key *key = &head->key;
	int frontend;

	/* The host's stack parses any number of extension headers. */
	if (head->is_beyond && at_most == SERVING && (has_frontend(&key->dst) || bpf_map_lookup_elem(&snat, &key->dst)))
		return TCX_DROP;
	if (!head->transport)
		return TCX_NEXT;
	frontend = to_frontend(key);
	if (frontend && at_most == DRAINING)
		frontend = DRAINING;
	if (frontend == DRAINING && (opens(skb, head) || owned_here(skb, key)))
		return TCX_NEXT;
	if (frontend)
		return TCX_DROP;
	if (reply_of_server(key) && !owned_here(skb, key))
		return TCX_DROP;
	return TCX_NEXT;
}

/* Frames dropped because of a second priority tag: no worker gets them. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} stacked_tags SEC(".maps");

static ALWAYS_INLINE int drop_stacked(void)
{
	__u32 only = 0;
	__u64 *count = bpf_map_lookup_elem(&stacked_tags, &only);

	if (count)
		*count += 1;
	return TCX_DROP;
}

/*
 * Whether a frame has a second priority tag after its first. The host's stack skips any number of
 * them.
 */
static ALWAYS_INLINE int is_stacked(struct __sk_buff *skb)
{
	__be16 tag;

	if (!skb->vlan_present || !is_untagged(skb) || !is_vlan_tag(skb->protocol))
		return 0;
	return !bpf_skb_load_bytes(skb, ETH_HLEN, &tag, sizeof(tag)) && !(tag & htons(VLAN_VID_MASK));
}

/* Fragments are treated like the first one, because only the first one contains the ports. */
static ALWAYS_INLINE int keep_away(struct __sk_buff *skb, int at_most)
{
	struct fragment_key fragment;
	struct head head;
	int verdict;

	if (is_stacked(skb))
		return drop_stacked();
	read_head(skb, &head);
	if (head.part != WHOLE)
		fragment = fragment_of(skb, &head);
	if (head.part == LATER)
		return is_dropped(&fragment) ? TCX_DROP : TCX_NEXT;
	verdict = judge(skb, &head, at_most);
	if (head.part == FIRST)
		remember(&fragment, verdict == TCX_DROP);
	return verdict;
}

SEC("classifier")
int guard(struct __sk_buff *skb)
{
	return keep_away(skb, SERVING);
}

SEC("classifier")
int dsr_guard(struct __sk_buff *skb)
{
	int at_most = of_lease();

	return at_most ? keep_away(skb, at_most) : TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
