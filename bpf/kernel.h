/*
 * The part of the kernel's BPF interface that our programs use, as include/uapi/linux/bpf.h defines it.
 * Declared here so that building takes clang alone, and the object is the same whatever headers a machine has.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ntohs(value) __builtin_bswap16(value)
#define htonl(value) __builtin_bswap32(value)
#else
#define ntohs(value) (value)
#define htonl(value) (value)
#endif
#define htons(value) ntohs(value)

/* Maps describe themselves by the types of these members (BTF). */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

enum { BPF_MAP_TYPE_HASH = 1 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { TCX_NEXT = -1, TCX_DROP = 2 };
enum { PACKET_HOST = 0 };
enum { BPF_TCP_LISTEN = 10 };
#define BPF_F_CURRENT_NETNS ((__u64)-1)

/* What a tc program is given; only the beginning, which is all we read. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
};

struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;
	__be16 dst_port;
	__u16 : 16;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
};

/* The two ends of a packet; the kernel tells the families apart by the size it is given. */
struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
			__be16 sport;
			__be16 dport;
		} ipv4;
		struct {
			__be32 saddr[4];
			__be32 daddr[4];
			__be16 sport;
			__be16 dport;
		} ipv6;
	};
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static struct bpf_sock *(*bpf_sk_lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size, __u64 netns,
					     __u64 flags) = (void *)85;
static long (*bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size, __u64 netns,
					      __u64 flags) = (void *)99;
