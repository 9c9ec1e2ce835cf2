/*
 * The limit for new connections during a flood of forged SYNs. A sender of forged addresses
 * receives no answer. So SYNs from networks in which a client has completed a connection pass at
 * once, and others when they are repeated, as every TCP does after a second
 * (RFC 6298, section 2.1). Userspace sets the rate limit of both.
 */
#pragma once

#include "maps.h"
#include "packet.h"
#include "parse.h"

/* There is no limit while the interval is 0. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct syn_limit);
} syn_limit SEC(".maps");

/* A /24 or /48 in which a client has completed a connection. */
struct network {
	__u64 due; /* when its next SYN is, ns */
};

/* A SYN never adds an entry here, accepted or not: a flood would evict all other networks. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, struct network);
} networks SEC(".maps");

/* When the next SYN of an unknown network is due, ns. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} strangers_due SEC(".maps");

/* A SYN that was refused at first. */
struct refused {
	__u32 digest; /* but for TIMES_HEARD of it */
	__u32 at;     /* ms: when it first came, or was last heard, or came in vain */
};

/*
 * Digests of the last refused SYNs: 8 MiB. At 300,000 a second three in four of them are still
 * there after one second.
 */
enum { REFUSED_SLOTS = 1 << 20 };

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, REFUSED_SLOTS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct refused);
} refused SEC(".maps");

/*
 * Time between a SYN and its repetition, ms: a TCP waits for a second, and twice as long each
 * further time.
 */
enum { AGAIN_FIRST = 500, AGAIN_LAST = 20000 };

/*
 * How often the same SYN is accepted, and how long after the first time, ms: it may be lost on its
 * way to the server. A sender that repeats the same SYNs takes no more than that from others, until
 * the SYNs have been absent for AGAIN_LAST.
 */
enum { TIMES_HEARD = 3, MAX_HEARD = 2, AGAIN_SECOND = 1500 };

/* NULL without a flood. */
static ALWAYS_INLINE struct syn_limit *limit_now(void)
{
	__u32 only = 0;
	struct syn_limit *limit = bpf_map_lookup_elem(&syn_limit, &only);

	return limit && limit->network.interval ? limit : NULL;
}

/* The /24 or /48 of an address. */
static ALWAYS_INLINE struct addr network_of(const struct addr *addr)
{
	if (is_v4(addr))
		return v4_mapped(addr->words[3] & htonl(0xffffff00));
	return (struct addr){ { addr->words[0], addr->words[1] & htonl(0xffff0000), 0, 0 } };
}

/*
 * A client has completed a connection, or an end of an open connection has sent a packet in a
 * flood.
 */
static ALWAYS_INLINE void know(const struct addr *client)
{
	struct addr name = network_of(client);
	struct network *network = bpf_map_lookup_elem(&networks, &name);
	struct network known = {};

	if (!network)
		bpf_map_update_elem(&networks, &name, &known, BPF_ANY);
}

/*
 * Takes a token from a bucket, if there is one. Programs on several cores may miss each other's
 * update, so a few more SYNs pass.
 */
static ALWAYS_INLINE int take(__u64 *due, __u64 now, const struct rate *rate)
{
	__u64 from = *due > now ? *due : now;

	if (from - now > rate->burst)
		return 0;
	*due = from + rate->interval;
	return 1;
}

/*
 * Identifies a SYN and its repetitions. It need not be a secret, because a SYN can be repeated
 * anyway.
 */
static ALWAYS_INLINE __u64 digest(const struct packet *packet)
{
	__u64 digest = (__u64)packet->key.src_port << 48 | (__u64)packet->key.dst_port << 32 | packet->seq;

	for (int i = 0; i < 4; i++) {
		digest = (digest ^ packet->key.src.words[i]) * 0x9e3779b97f4a7c15;
		digest ^= digest >> 32;
	}
	return digest;
}

/*
 * The record of a SYN that has arrived before, if it is due to be accepted; otherwise records the
 * SYN.
 */
static ALWAYS_INLINE struct refused *comes_again(const struct packet *packet, __u32 now)
{
	__u64 all = digest(packet);
	__u32 slot = all % REFUSED_SLOTS;
	struct refused *last = bpf_map_lookup_elem(&refused, &slot);
	struct refused this = { .digest = (all >> 32) & ~TIMES_HEARD, .at = now };
	__u32 age, heard;

	if (!last)
		return NULL;
	age = now - last->at;
	heard = last->digest & TIMES_HEARD;
	if ((last->digest & ~TIMES_HEARD) != this.digest || age > AGAIN_LAST) {
		*last = this;
		return NULL;
	}
	if (heard >= MAX_HEARD) {
		last->at = now;
		return NULL;
	}
	return age >= (heard ? AGAIN_SECOND : AGAIN_FIRST) ? last : NULL;
}

/* Whether a SYN of an unknown network is accepted. */
static ALWAYS_INLINE int is_stranger_heard(const struct packet *packet, const struct syn_limit *limit, __u64 now)
{
	__u32 only = 0, ms = now / 1000000;
	__u64 *due = bpf_map_lookup_elem(&strangers_due, &only);
	struct refused *last = comes_again(packet, ms);

	if (!last || !due || !take(due, now, &limit->strangers))
		return 0;
	last->digest++;
	last->at = ms;
	count(CAME_AGAIN);
	return 1;
}

/* Whether a SYN is accepted while there is a limit. */
static ALWAYS_INLINE int is_heard(const struct packet *packet, const struct syn_limit *limit)
{
	struct addr name = network_of(&packet->key.src);
	struct network *network = bpf_map_lookup_elem(&networks, &name);
	__u64 now = bpf_ktime_get_coarse_ns();

	return network ? take(&network->due, now, &limit->network) : is_stranger_heard(packet, limit, now);
}

/*
 * Whether a TCP packet is accepted whose ports and numbers were not read, so that a repetition
 * cannot be recognised.
 */
static ALWAYS_INLINE int is_unread_heard(const struct packet *packet, const struct syn_limit *limit)
{
	struct addr name = network_of(&packet->key.src);
	struct network *network = bpf_map_lookup_elem(&networks, &name);

	return network && take(&network->due, bpf_ktime_get_coarse_ns(), &limit->network);
}
