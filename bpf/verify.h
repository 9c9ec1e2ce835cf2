/*
 * Verifies the checksums of TCP segments: `wire::is_intact` in C, for segments that change the
 * state of a flow.
 */
#pragma once

#include "checksum.h"
#include "packet.h"
#include "parse.h"

/*
 * Longest verified segment, in bytes; only a loopback carries longer ones. The headers before it:
 * Ethernet with a priority tag, and IPv6.
 */
enum { MAX_VERIFIED = 9216, CHUNK = 64, MAX_HEADERS = 58 };

/* The sum over the pseudo-header of TCP (RFC 9293, section 3.1; RFC 8200, section 8.1). */
static ALWAYS_INLINE __u64 pseudo_header(const struct packet *packet)
{
	__u64 sum = (__u64)htonl(packet->len - packet->ip_len) + htonl(IPPROTO_TCP);

	for (int i = is_v4(&packet->key.src) ? 3 : 0; i < 4; i++)
		sum += (__u64)packet->key.src.words[i] + packet->key.dst.words[i];
	return sum;
}

/*
 * The sum over `len` bytes of a packet on tc, from `at` on: the bytes may not be contiguous.
 * Negative if there are fewer. A separate function, like the next one, so that the kernel verifies
 * it once, and not for each path that leads to it.
 */
__attribute__((noinline)) int sum_in_kernel(struct __sk_buff *skb, __u32 at, __u32 len)
{
	__u32 end = at + len;
	__u32 words[CHUNK / 4];
	__u64 sum = 0;

	if (at > MAX_HEADERS || len > MAX_VERIFIED)
		return -1;
	for (int i = 0; i < MAX_VERIFIED / CHUNK && at + CHUNK <= end; i++, at += CHUNK) {
		if (bpf_skb_load_bytes(skb, at, words, CHUNK))
			return -1;
		for (int n = 0; n < CHUNK / 4; n++)
			sum += words[n];
	}
	for (int i = 0; i < CHUNK / 4 && at + 4 <= end; i++, at += 4) {
		if (bpf_skb_load_bytes(skb, at, words, 4))
			return -1;
		sum += words[0];
	}
	for (int i = 0; i < 3 && at < end; i++, at++) {
		__u8 byte;

		if (bpf_skb_load_bytes(skb, at, &byte, 1))
			return -1;
		sum += htons(i & 1 ? byte : byte << 8);
	}
	return fold_long(sum);
}

/* The same on XDP, where a packet is contiguous. */
__attribute__((noinline)) int sum_in_driver(struct xdp_md *ctx, __u32 from, __u32 len)
{
	const void *segment = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *piece;
	__u32 at = 0;
	__u64 sum = 0;

	if (from > MAX_HEADERS || len > MAX_VERIFIED)
		return -1;
	segment += from;
	for (int i = 0; i < MAX_VERIFIED / CHUNK && at + CHUNK <= len; i++, at += CHUNK) {
		piece = segment + at;
		/* The compiler would compute from the end, which programs must not. */
		asm volatile("" : "+r"(piece));
		if (piece + CHUNK > end)
			return -1;
		for (int n = 0; n < CHUNK / 4; n++)
			sum += ((const __u32 *)piece)[n];
	}
	for (int i = 0; i < CHUNK && at < len; i += 2, at += 2) {
		piece = segment + at;
		asm volatile("" : "+r"(piece));
		if (at + 1 == len) {
			if (piece + 1 > end)
				return -1;
			sum += htons(*(const __u8 *)piece << 8);
			break;
		}
		if (piece + 2 > end)
			return -1;
		sum += *(const __u16 *)piece;
	}
	return fold_long(sum);
}

/*
 * On tc. The kernel makes super-frames of verified segments. A partial checksum (only the
 * pseudo-header) is right, too: a sender on this machine has left the rest to its interface, and on
 * a virtual link nothing completes it.
 */
static ALWAYS_INLINE int is_intact_in_kernel(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 len = packet->len - packet->ip_len;
	__u64 pseudo = pseudo_header(packet);
	int sum;

	if (skb->gso_size || len > MAX_VERIFIED || *packet->checksum == fold_long(pseudo))
		return 1;
	sum = sum_in_kernel(skb, ETH_HLEN + packet->ip_len, len);
	return sum >= 0 && fold_long(pseudo + sum) == 0xffff;
}

/* On XDP; the IP header is `l3` bytes behind the beginning of the frame. */
static ALWAYS_INLINE int is_intact_in_driver(struct xdp_md *ctx, const struct packet *packet, __u32 l3)
{
	__u32 len = packet->len - packet->ip_len;
	int sum;

	if (len > MAX_VERIFIED)
		return 1;
	sum = sum_in_driver(ctx, l3 + packet->ip_len, len);
	return sum >= 0 && fold_long(pseudo_header(packet) + sum) == 0xffff;
}
