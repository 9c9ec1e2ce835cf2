/*
 * The guard: keeps from the host's own stack what convey forwards, or the stack would answer it with RST or "port
 * unreachable".
 * `guard` is attached to tcx ingress, which a frame passes after the packet sockets have had their copy of it, and goes
 * with the process. `dsr_guard` is a filter of clsact, behind it, which stays when the process ends: until its time is over.
 */
#include "kernel.h"
#include "fragments.h"
#include "head.h"
#include "selection.h"

/* How long `dsr_guard` does what (CLOCK_MONOTONIC, ns). Mirrors `kernel_types::LeaseEntry`. */
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

/* What `dsr_guard` takes frontends for by now: SERVING, DRAINING or, when its time is over, 0. */
static ALWAYS_INLINE int of_lease(void)
{
	__u32 only = 0;
	struct lease *held = bpf_map_lookup_elem(&lease, &only);
	__u64 now = bpf_ktime_get_ns();

	if (!held || now >= held->ends)
		return 0;
	return now < held->serves_until ? SERVING : DRAINING;
}

/* The key as sockets are looked up by; its size. */
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

/* Whether a connection of this host has the key. A listening socket would answer with RST as the stack does. */
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
 * Whether a UDP socket of this host takes the key, connected or not. Most clients (resolvers, QUIC) never connect
 * theirs, and a program ignores what does not concern it; the stack answers only for a port that nobody has.
 */
static ALWAYS_INLINE int bound_here(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *sock = bpf_sk_lookup_udp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!sock)
		return 0;
	bpf_sk_release(sock);
	return 1;
}

/* Whether a program of this host waits for this packet: it may talk to a server from a port of ours. */
static ALWAYS_INLINE int owned_here(struct __sk_buff *skb, const struct flow_key *key)
{
	struct bpf_sock_tuple tuple;
	__u32 size = socket_tuple(skb, key, &tuple);

	return key->protocol == IPPROTO_TCP ? connected_here(skb, &tuple, size) : bound_here(skb, &tuple, size);
}

/* Whether it is a SYN that opens a connection. */
static ALWAYS_INLINE int opens(const struct __sk_buff *skb, const struct head *head)
{
	__u8 flags;

	if (head->key.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, head->transport + TCP_FLAGS, &flags, 1))
		return 0;
	return is_opening(flags);
}

/* What becomes of a packet that has its ports in it, where frontends serve at most as `at_most` says. */
static ALWAYS_INLINE int judge(struct __sk_buff *skb, const struct head *head, int at_most)
{
	const struct flow_key *key = &head->key;
	int frontend;

	/* The host's stack reads any number of extension headers. */
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

/* Frames that were dropped for a second priority tag: no worker gets them. */
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

/* Whether a frame has a second priority tag behind its first. The host's stack steps over any number of them. */
static ALWAYS_INLINE int is_stacked(struct __sk_buff *skb)
{
	__be16 tag;

	if (!skb->vlan_present || !is_untagged(skb) || !is_vlan_tag(skb->protocol))
		return 0;
	return !bpf_skb_load_bytes(skb, ETH_HLEN, &tag, sizeof(tag)) && !(tag & htons(VLAN_VID_MASK));
}

/* Fragments share the fate of their first, which alone says whose they are. */
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
