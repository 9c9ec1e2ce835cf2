/*
 * The guard: keeps from the host's own stack what convey forwards, or the stack would answer it with RST.
 * Attached to tcx ingress, which a frame passes after the packet sockets have had their copy of it.
 */
#include "kernel.h"
#include "packet.h"

struct port_range {
	__u16 first;
	__u16 last;
};

/* What is said of a frontend. Mirrors `guard::SERVING` and `guard::DRAINING`. */
enum { SERVING = 1, DRAINING = 2 };

/* Where clients connect to. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct endpoint);
	MAP_TYPE(value, __u8);
} frontends SEC(".maps");

/* Whose replies come to the SNAT addresses. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct endpoint);
	MAP_TYPE(value, __u8);
} servers SEC(".maps");

/* The SNAT addresses, and the ports on them that belong to convey. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, struct port_range);
} snat SEC(".maps");

/* SERVING or DRAINING if it goes to a frontend, else 0. */
static ALWAYS_INLINE int to_frontend(const struct tuple *tuple)
{
	struct endpoint dst = { v4_mapped(tuple->dst), tuple->ports.dst, IPPROTO_TCP, 0 };
	__u8 *frontend = bpf_map_lookup_elem(&frontends, &dst);

	return frontend ? *frontend : 0;
}

static ALWAYS_INLINE int reply_of_server(const struct tuple *tuple)
{
	struct endpoint src = { v4_mapped(tuple->src), tuple->ports.src, IPPROTO_TCP, 0 };
	struct addr dst = v4_mapped(tuple->dst);
	__u16 port = ntohs(tuple->ports.dst);
	struct port_range *range = bpf_map_lookup_elem(&snat, &dst);

	return range && range->first <= port && port <= range->last && bpf_map_lookup_elem(&servers, &src);
}

/*
 * Whether a connection of this host has the tuple: a program here may talk to a server from a port of ours. A
 * listening socket has no tuple; it would answer with RST as well.
 */
static ALWAYS_INLINE int owned_here(struct __sk_buff *skb, const struct tuple *tuple)
{
	struct bpf_sock_tuple_v4 key = { tuple->src, tuple->dst, tuple->ports.src, tuple->ports.dst };
	struct bpf_sock *sock = bpf_skc_lookup_tcp(skb, &key, sizeof(key), BPF_F_CURRENT_NETNS, 0);
	int owned;

	if (!sock)
		return 0;
	owned = sock->state != BPF_TCP_LISTEN;
	bpf_sk_release(sock);
	return owned;
}

/* Whether it is a SYN that opens a connection. */
static ALWAYS_INLINE int opens(const struct __sk_buff *skb)
{
	__u8 version_ihl, flags;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &version_ihl, 1))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + (version_ihl & 0xf) * 4 + TCP_FLAGS, &flags, 1))
		return 0;
	return (flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

SEC("classifier")
int guard(struct __sk_buff *skb)
{
	struct tuple tuple;
	int frontend;

	if (!parse(skb, &tuple))
		return TCX_NEXT;
	frontend = to_frontend(&tuple);
	if (frontend == DRAINING && (opens(skb) || owned_here(skb, &tuple)))
		return TCX_NEXT;
	if (frontend)
		return TCX_DROP;
	if (reply_of_server(&tuple) && !owned_here(skb, &tuple))
		return TCX_DROP;
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
