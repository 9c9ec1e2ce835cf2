/*
 * The part of the kernel's BPF interface that our programs use, as include/uapi/linux/bpf.h defines
 * it. Declared here so that the build needs only clang, and the object does not depend on the
 * headers of a machine.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
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
#define ntohl(value) htonl(value)
#define NULL ((void *)0)

/* The types of these members describe a map (BTF). */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_ANY = 0 };
/* The same numbers as those of a classifier on clsact, which kernels without tcx have. */
enum { TCX_NEXT = -1, TCX_DROP = 2 };
enum { XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3 };
enum { PACKET_HOST = 0 };
enum { BPF_TCP_LISTEN = 10 };
#define BPF_F_CURRENT_NETNS ((__u64)-1)

/* Context of tc programs and socket filters. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 unused[3];
	__u32 ifindex; /* where it came in */
	__u32 unused_1[8];
	__u32 data; /* tc alone */
	__u32 data_end;
	__u32 unused_2[23];
	__u32 gso_size; /* of a super-frame: payload of each packet that it will be cut into */
};

/* Context of an XDP program. */
struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
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

/* The two ends of a packet; the kernel distinguishes the families by the size. */
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

/*
 * Flags of bpf_skb_adjust_room: position and type of the new headers. Packets of a super-frame keep
 * their length.
 */
enum { BPF_ADJ_ROOM_MAC = 1 };
enum {
	BPF_F_ADJ_ROOM_FIXED_GSO = 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 2,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 4,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 16,
};

/*
 * Flags of bpf_l4_csum_replace: what is replaced is part of the pseudo-header; 0 means none, and is
 * not computed.
 */
enum { BPF_F_PSEUDO_HDR = 1 << 4, BPF_F_MARK_MANGLED_0 = 1 << 5 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static long (*bpf_tail_call)(void *ctx, void *programs, __u32 index) = (void *)12;
static long (*bpf_skb_vlan_pop)(struct __sk_buff *skb) = (void *)19;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const struct __sk_buff *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*bpf_csum_update)(struct __sk_buff *skb, __u32 change) = (void *)40;
static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int by) = (void *)44;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 by, __u32 mode, __u64 flags) = (void *)50;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *ctx, int by) = (void *)65;
static struct bpf_sock *(*bpf_sk_lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size, __u64 netns,
					     __u64 flags) = (void *)85;
static long (*bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size, __u64 netns,
					      __u64 flags) = (void *)99;
static long (*bpf_ringbuf_output)(void *ringbuf, const void *data, __u64 size, __u64 flags) = (void *)130;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;
