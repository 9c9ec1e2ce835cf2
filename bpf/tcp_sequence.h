/*
 * Sequence numbers of TCP connections: the part of `forward::tcp_sequence` that the cache needs, in
 * C.
 */
#pragma once

#include "maps.h"
#include "parse.h"

/* As in `forward::tcp_sequence`. */
enum sequence_limit {
	/* Largest distance of a genuine number from the known one; the same during a handshake. */
	WINDOW = 16 << 20,
	FIRST_WINDOW = 64 << 10,
	/*
	 * In DSR, how far after a gap a client's segment may advance its number, and how much more
	 * it may acknowledge.
	 */
	MAX_GAP = 4 << 20,
	MAX_GAP_ACK = 1 << 20,
	/* Packets up to this length, in bytes, fit every path. */
	MAX_UNSUSPECTED = 1280,
};

/*
 * How long the sender has to be silent before a retransmitted large segment is left to userspace,
 * in ns. The filter of the packet sockets runs first: it accepts such a segment a tick of the clock
 * (at most 10 ms) earlier, so that one of the two always handles it.
 */
enum { REPEATED_AFTER = 100000000, FILTER_REPEATED_AFTER = 90000000 };

/* How far the known number of a sender may lag behind its segments. */
enum { LAG = 1 << 20 };

static ALWAYS_INLINE int is_near(__u32 number, __u32 known)
{
	return number - known + WINDOW <= 2 * WINDOW;
}

static ALWAYS_INLINE int is_next(__u32 number, __u32 expected)
{
	return number - expected <= FIRST_WINDOW;
}

/*
 * Segments with a client's address can be forged: one whose numbers do not fit is forwarded, and
 * changes no state.
 */
static ALWAYS_INLINE int is_believed(const struct packet *packet, const struct flow_entry *entry)
{
	return packet->flags & TCP_ACK && is_near(ntohl(packet->seq), entry->sent) &&
	       is_near(ntohl(packet->ack), entry->ack);
}

/* Whether the segment answers the SYN of its receiver. */
static ALWAYS_INLINE int answers(const struct packet *packet, const struct flow_entry *entry)
{
	return (packet->flags & (TCP_SYN | TCP_ACK | TCP_FIN)) == (TCP_SYN | TCP_ACK) &&
	       is_next(ntohl(packet->ack), entry->ack) &&
	       /* A repetition has the same number: a segment with another number may be forged. */
	       (!entry->last_seen || ntohl(packet->seq) + 1 == entry->sent);
}

/* The entry of the opposite direction. */
static ALWAYS_INLINE struct flow_entry *opposite(const struct packet *packet, const struct flow_entry *entry)
{
	struct flow_key key = {
		.src = entry->dst,
		.dst = entry->src,
		.src_port = entry->dst_port,
		.dst_port = entry->src_port,
		.protocol = packet->key.protocol,
	};

	return bpf_map_lookup_elem(&flows, &key);
}

/*
 * Whether the segment completes the handshake of its sender: it acknowledges the number of the
 * answer.
 */
static ALWAYS_INLINE int completes(const struct packet *packet, const struct flow_entry *entry)
{
	const struct flow_entry *answer;

	if ((packet->flags & (TCP_SYN | TCP_ACK | TCP_FIN)) != TCP_ACK || !is_next(ntohl(packet->seq), entry->sent))
		return 0;
	if (entry->flags & FLOW_ALONE)
		return 1;
	answer = opposite(packet, entry);
	return answer && answer->last_seen && is_next(ntohl(packet->ack), answer->sent);
}

/* How far a segment advances the sequence. */
static ALWAYS_INLINE __u32 length(const struct packet *packet)
{
	return packet->len - packet->headers_len + (packet->flags & TCP_FIN ? 1 : 0);
}

static ALWAYS_INLINE void advance(__u32 *known, __u32 number)
{
	if ((__s32)(number - *known) > 0)
		*known = number;
}

/*
 * The position of the sender: its receiver may have acknowledged more than has passed here without
 * a gap.
 */
static ALWAYS_INLINE __u32 confirmed(const struct packet *packet, const struct flow_entry *entry)
{
	__u32 sent = entry->sent;
	const struct flow_entry *answer;

	if (entry->flags & FLOW_ALONE)
		return sent;
	answer = opposite(packet, entry);
	if (answer)
		advance(&sent, answer->ack);
	return sent;
}

/*
 * Whether a FIN is exactly at the position of its sender, with nothing missing before it, or has
 * already counted. Its receiver ignores any other FIN that ends there (RFC 9293, section 3.10.7.4).
 */
static ALWAYS_INLINE int finishes(const struct packet *packet, const struct flow_entry *entry)
{
	__u32 behind, len = length(packet);

	if (!is_believed(packet, entry))
		return 0;
	behind = confirmed(packet, entry) - ntohl(packet->seq);
	if (behind == len)
		return entry->flags & FLOW_FINISHED;
	return !behind || behind + 1 == len;
}

/*
 * Whether a segment advances the numbers of its sender. A client's segment has to begin at the
 * client's position, or before it and end after it, because an attacker may guess a close number.
 * In DSR, where the server's segments do not pass, there is no sign that a gap is closed, so the
 * segment may be close after a gap.
 */
static ALWAYS_INLINE int goes_on(const struct packet *packet, struct flow_entry *entry)
{
	__u32 seq = ntohl(packet->seq), len = length(packet);

	if (entry->flags & FLOW_TO_CLIENT || entry->sent - seq <= len)
		return 1;
	if (entry->flags & FLOW_ALONE)
		return seq - entry->sent <= MAX_GAP && ntohl(packet->ack) - entry->ack <= MAX_GAP_ACK;
	/*
	 * While bulk data continues after a loss, the entry of the other side is not looked up for
	 * each packet.
	 */
	if (len && !(packet->flags & TCP_FIN) && seq - entry->sent <= LAG)
		return 0;
	entry->sent = confirmed(packet, entry);
	return entry->sent - seq <= len;
}

/*
 * After a gap a client counts as expecting everything that the server has sent: with gaps on both
 * sides, each would wait for the other to continue. The entry of the other side is looked up
 * rarely, as above.
 */
static ALWAYS_INLINE void acknowledge(const struct packet *packet, struct flow_entry *entry)
{
	__u32 ack = ntohl(packet->ack);
	const struct flow_entry *answer;

	if (entry->flags & FLOW_ALONE || ack - entry->ack - LAG > WINDOW)
		return;
	answer = opposite(packet, entry);
	if (answer && (__s32)(answer->sent - ack) >= 0)
		entry->ack = ack;
}

/*
 * Whether the sender retransmits a large segment after a pause: on a path that silently drops large
 * packets, none of them arrives. `len` is the final length of the packet, `after` the length of a
 * pause. The first segment of a series is left to userspace.
 */
static ALWAYS_INLINE int is_repeated(const struct packet *packet, __u32 len, const struct flow_entry *entry, __u64 after)
{
	__u32 behind;

	if (len <= MAX_UNSUSPECTED)
		return 0;
	behind = entry->sent - ntohl(packet->seq);
	if (behind < length(packet) || behind > WINDOW || packet->key.protocol != IPPROTO_TCP)
		return 0;
	return bpf_ktime_get_coarse_ns() - entry->last_seen > after;
}

/*
 * For a flow from another process: takes the numbers of a segment that does not follow from the
 * known ones. The server's segments arrive on its interface, and the client's have to agree with
 * them. In DSR, the next segment has to agree.
 */
static ALWAYS_INLINE void take_up(const struct packet *packet, struct flow_entry *entry)
{
	__u32 seq = ntohl(packet->seq), ack = ntohl(packet->ack);
	const struct flow_entry *answer;

	if ((packet->flags & (TCP_SYN | TCP_ACK | TCP_FIN)) != TCP_ACK)
		return;
	if (entry->flags & (FLOW_TO_CLIENT | FLOW_ALONE)) {
		if (!is_believed(packet, entry)) {
			entry->sent = seq;
			entry->ack = ack;
		} else if (goes_on(packet, entry)) {
			entry->flags &= ~FLOW_RESTORED;
		} else if (entry->sent - seq > WINDOW) {
			/* The segment is not late. */
			entry->sent = seq;
			entry->ack = ack;
		}
		return;
	}
	answer = opposite(packet, entry);
	if (!answer || answer->flags & FLOW_RESTORED || !is_near(seq, answer->ack) || answer->sent - ack > WINDOW)
		return;
	entry->flags &= ~FLOW_RESTORED;
	if (!is_believed(packet, entry)) {
		entry->sent = answer->ack;
		entry->ack = ack;
	}
}

/* Updates the connection's numbers from a forwarded segment. */
static ALWAYS_INLINE void follow(const struct packet *packet, struct flow_entry *entry)
{
	__u32 seq = ntohl(packet->seq), ack = ntohl(packet->ack), len = length(packet);
	struct flow_entry *answer;

	if (entry->flags & FLOW_OPENING) {
		entry->flags &= ~FLOW_RESTORED;
		/* An acknowledgement may follow a FIN that was lost. */
		if (packet->flags & TCP_SYN)
			entry->sent = seq + 1;
		else if (len || entry->flags & FLOW_ALONE)
			entry->sent = seq + len;
		entry->ack = ack;
		if (entry->flags & FLOW_TO_CLIENT)
			return;
		entry->flags &= ~FLOW_OPENING;
		answer = entry->flags & FLOW_ALONE ? NULL : opposite(packet, entry);
		if (answer)
			answer->flags &= ~FLOW_OPENING;
		return;
	}
	if (entry->flags & FLOW_RESTORED)
		take_up(packet, entry);
	if (is_believed(packet, entry)) {
		if (!goes_on(packet, entry)) {
			acknowledge(packet, entry);
			return;
		}
		advance(&entry->sent, seq + len);
		advance(&entry->ack, ack);
		if (packet->flags & TCP_FIN)
			entry->flags |= FLOW_FINISHED;
	}
}
