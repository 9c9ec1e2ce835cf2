/*
 * Incremental updates of the Internet checksum (RFC 1624, equation 3). A change is the ones'
 * complement sum of the complemented old value and the new value, in network byte order, like the
 * checksum itself.
 */
#pragma once

#include "kernel.h"

/*
 * The change by one hop: the TTL of IPv4 is the upper byte of a word, the hop limit of IPv6 the
 * lower.
 */
#define TTL_SUM htons(0xfeff)
#define HOP_LIMIT_SUM htons(0xfffe)

static ALWAYS_INLINE __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum of 16-bit words, from one of 64 bits. */
static ALWAYS_INLINE __u16 fold_long(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return fold(sum);
}

/* The checksum after a change. */
static ALWAYS_INLINE __u16 changed(__u16 checksum, __u32 change)
{
	return ~fold((__u16)~checksum + change);
}
