/*
 * Who may begin connections while a flood of forged SYNs is on. Who makes up addresses hears no answer: so networks from
 * which a connection has been completed are heard at once, and others when they ask again, as every TCP does after a second
 * (RFC 6298, section 2.1). Neither is heard more often than userspace says.
 */
#pragma once

#include "maps.h"
#include "packet.h"
#include "parse.h"

/* Nobody is limited as long as there is no interval. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct syn_limit);
} syn_limit SEC(".maps");

/* A /24 or /48 that a connection has been completed from. */
struct network {
	__u64 due; /* when its next SYN is, ns */
};

/* No SYN enters anything here, heard or not: a flood would push out everybody else. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, struct addr);
	MAP_TYPE(value, struct network);
} networks SEC(".maps");

/* When the next SYN of any network that is not known is due, ns. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} strangers_due SEC(".maps");

/* A SYN that was not heard, at first. */
struct refused {
	__u32 digest; /* but for TIMES_HEARD of it */
	__u32 at;     /* ms: when it first came, or was last heard, or came in vain */
};

/* The last that were, by their digests: 8 MiB. At 300,000 a second three in four of them are still there after one. */
enum { REFUSED_SLOTS = 1 << 20 };

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, REFUSED_SLOTS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct refused);
} refused SEC(".maps");

/* How long after the first a SYN comes again, ms: a TCP waits for a second, and twice as long every other time. */
enum { AGAIN_FIRST = 500, AGAIN_LAST = 20000 };

/*
 * How often the same SYN is heard, and how long after the first time, ms: on its way to the server it may be lost. Who sends the same
 * ones again and again takes no more than that from others, until they have not come for AGAIN_LAST.
 */
enum { TIMES_HEARD = 3, MAX_HEARD = 2, AGAIN_SECOND = 1500 };

/* NULL in peace. */
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

/* A client has completed a connection, or an end of an open one has spoken in a flood. */
static ALWAYS_INLINE void know(const struct addr *client)
{
	struct addr name = network_of(client);
	struct network *network = bpf_map_lookup_elem(&networks, &name);
	struct network known = {};

	if (!network)
		bpf_map_update_elem(&networks, &name, &known, BPF_ANY);
}

/*
 * Takes a token from a bucket, if there is one. Programs on several cores may miss each other's; that lets a few more
 * through.
 */
static ALWAYS_INLINE int take(__u64 *due, __u64 now, const struct rate *rate)
{
	__u64 from = *due > now ? *due : now;

	if (from - now > rate->burst)
		return 0;
	*due = from + rate->interval;
	return 1;
}

/* What a SYN has in common with its repetition and with no other. It need not be a secret: a SYN can be repeated anyway. */
static ALWAYS_INLINE __u64 digest(const struct packet *packet)
{
	__u64 digest = (__u64)packet->key.src_port << 48 | (__u64)packet->key.dst_port << 32 | packet->seq;

	for (int i = 0; i < 4; i++) {
		digest = (digest ^ packet->key.src.words[i]) * 0x9e3779b97f4a7c15;
		digest ^= digest >> 32;
	}
	return digest;
}

/* What is remembered of a SYN if it is due to be heard, as it has come before; else remembers it. */
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

/* Whether a SYN of a network that is not known is heard. */
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

/* Whether a SYN is heard while there is a limit. */
static ALWAYS_INLINE int is_heard(const struct packet *packet, const struct syn_limit *limit)
{
	struct addr name = network_of(&packet->key.src);
	struct network *network = bpf_map_lookup_elem(&networks, &name);
	__u64 now = bpf_ktime_get_coarse_ns();

	return network ? take(&network->due, now, &limit->network) : is_stranger_heard(packet, limit, now);
}

/* The same of TCP whose ports and numbers were not read: nobody could tell when it comes again. */
static ALWAYS_INLINE int is_unread_heard(const struct packet *packet, const struct syn_limit *limit)
{
	struct addr name = network_of(&packet->key.src);
	struct network *network = bpf_map_lookup_elem(&networks, &name);

	return network && take(&network->due, bpf_ktime_get_coarse_ns(), &limit->network);
}
