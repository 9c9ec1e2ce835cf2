/*
 * Only for benchmarks. For pps: makes packets of many flows from one frame that the kernel sends
 * repeatedly, and handles them with minimal work. For peers: decapsulates packets of tunnels.
 */
#include "parse.h"

/* Minimum Ethernet frame, without its checksum. */
enum { FRAME = 60 };

struct writer {
	__u32 flows;
	__u32 random;
	__u32 words[FRAME / 4]; /* the frame, but for who sent it */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct writer);
} writer SEC(".maps");

/* Purpose of the frames. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_PROG_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(key_size, sizeof(__u32));
	MAP_UINT(value_size, sizeof(__u32));
} next SEC(".maps");

/* Writes the whole frame, because it may have passed here before, and been rewritten. */
SEC("xdp")
int bench_write(struct xdp_md *ctx)
{
	__u32 *words = (void *)(long)ctx->data;
	__u32 first = 0, flow;
	struct writer *from = bpf_map_lookup_elem(&writer, &first);

	if (!from || (void *)words + FRAME > (void *)(long)ctx->data_end)
		return XDP_DROP;
	/* A flow at random, by a linear congruential generator, whose upper bits are the better ones. */
	from->random = from->random * 1664525 + 1013904223;
	flow = (__u64)from->random * from->flows >> 32;
#pragma unroll
	for (int i = 0; i < FRAME / 4; i++)
		words[i] = from->words[i];
	struct ipv4_header *ip = (void *)words + ETH_HLEN;
	struct ports *ports = (void *)(ip + 1);

	ip->src = htonl(20 << 24 | flow);
	ports->src = htons(1024 + flow % 60000);
	ip->checksum = 0;
	ip->checksum = ~fold_long(header_sum(ip));
	bpf_tail_call(ctx, &next, 0);
	return XDP_DROP;
}

/* Sends the frame back to its origin. */
SEC("xdp")
int bench_echo(struct xdp_md *ctx)
{
	struct macs {
		__u16 dst[3];
		__u16 src[3];
	} *macs = (void *)(long)ctx->data, old;

	if ((void *)(macs + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	old = *macs;
	for (int i = 0; i < 3; i++) {
		macs->dst[i] = old.src[i];
		macs->src[i] = old.dst[i];
	}
	return XDP_TX;
}

/* The other end. */
SEC("xdp")
int bench_drop(struct xdp_md *ctx)
{
	return ctx ? XDP_DROP : XDP_PASS;
}

/* Port of GUE in the configuration of the benchmark. */
enum { GUE_PORT = 6080, GUE_HEADER = 4, IPV4_INSIDE = 4 };

/*
 * A server's end of tunnels, if its kernel has no device for them: IP in IP and GUE, IPv4 in IPv4.
 */
SEC("classifier")
int bench_open(struct __sk_buff *skb)
{
	struct ipv4_header *ip = (void *)(long)skb->data + ETH_HLEN;
	struct udp_header *udp = (void *)(ip + 1);
	int outer = sizeof(*ip);

	if (skb->protocol != htons(ETH_P_IP) || (void *)(udp + 1) > (void *)(long)skb->data_end)
		return TCX_NEXT;
	if (ip->protocol == IPPROTO_UDP && udp->dst_port == htons(GUE_PORT))
		outer += sizeof(*udp) + GUE_HEADER;
	else if (ip->protocol != IPV4_INSIDE)
		return TCX_NEXT;
	/* The packets of a super-frame keep their length. */
	bpf_skb_adjust_room(skb, -outer, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
