/* How far TCP connections are: `forward::tcp_sequence` in C, of what the cache has to know. */
#pragma once

#include "maps.h"
#include "parse.h"

/* As in `forward::tcp_sequence`. */
enum sequence_limit {
	/* How far from what is known a number can be that is true; while a connection begins. */
	WINDOW = 16 << 20,
	FIRST_WINDOW = 64 << 10,
	/* How far behind a gap a segment of a client whose server's do not pass moves its number, and how much more it may acknowledge. */
	MAX_GAP = 4 << 20,
	MAX_GAP_ACK = 1 << 20,
	/* Packets up to this length get through everywhere, in bytes. */
	MAX_UNSUSPECTED = 1280,
};

/*
 * How long its sender has to be silent before a large segment that comes again is left to userspace, in ns. The filter of the packet
 * sockets asks first: it lets in such a segment a tick of the clock (at most 10 ms) earlier, so that no segment is left by both.
 */
enum { REPEATED_AFTER = 100000000, FILTER_REPEATED_AFTER = 90000000 };

/* How far what is known of a sender may lag behind what it sends. */
enum { LAG = 1 << 20 };

static ALWAYS_INLINE int is_near(__u32 number, __u32 known)
{
	return number - known + WINDOW <= 2 * WINDOW;
}

static ALWAYS_INLINE int is_next(__u32 number, __u32 expected)
{
	return number - expected <= FIRST_WINDOW;
}

/* Anybody can send a segment in a client's name: one whose numbers do not fit is forwarded, and says nothing. */
static ALWAYS_INLINE int is_believed(const struct packet *packet, const struct flow_entry *entry)
{
	return packet->flags & TCP_ACK && is_near(ntohl(packet->seq), entry->sent) &&
	       is_near(ntohl(packet->ack), entry->ack);
}

/* Whether it answers the SYN of its receiver. */
static ALWAYS_INLINE int answers(const struct packet *packet, const struct flow_entry *entry)
{
	return (packet->flags & (TCP_SYN | TCP_ACK | TCP_FIN)) == (TCP_SYN | TCP_ACK) &&
	       is_next(ntohl(packet->ack), entry->ack) &&
	       /* Repeated, it has the same number: the next one may be somebody else's. */
	       (!entry->last_seen || ntohl(packet->seq) + 1 == entry->sent);
}

/* The entry of what the receiver of an entry's packets sends. */
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

/* Whether it completes the handshake that its sender has begun: it knows the number of who answered it. */
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

/* How far the sender has got: what its receiver has acknowledged may be more than what has passed here without a gap. */
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
 * Whether a FIN comes exactly where its sender has got to, with nothing missing before it; or has come already. Its receiver ignores
 * another one that ends there (RFC 9293, section 3.10.7.4).
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
 * Whether a segment moves the numbers of its sender. One of a client has to go on where it had got to, or repeat what ends there
 * or before and more: who does not see the connection may be lucky and near. Where the server's do not pass, nobody says that
 * a gap is closed, and it may be close behind one.
 */
static ALWAYS_INLINE int goes_on(const struct packet *packet, struct flow_entry *entry)
{
	__u32 seq = ntohl(packet->seq), len = length(packet);

	if (entry->flags & FLOW_TO_CLIENT || entry->sent - seq <= len)
		return 1;
	if (entry->flags & FLOW_ALONE)
		return seq - entry->sent <= MAX_GAP && ntohl(packet->ack) - entry->ack <= MAX_GAP_ACK;
	/* While bulk goes on behind what was lost on the way here, the other side is not asked of each packet. */
	if (len && !(packet->flags & TCP_FIN) && seq - entry->sent <= LAG)
		return 0;
	entry->sent = confirmed(packet, entry);
	return entry->sent - seq <= len;
}

/*
 * Behind a gap a client is believed to expect what the server has sent: with gaps on both sides, each would wait for the other
 * to go on. The other side is asked seldom, as above.
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
 * Whether its sender sends a large segment again after a pause: on a path that takes shorter packets only, and does not say so, none
 * of them arrives. `len` is what the packet will have, `after` how long a pause is. Of those that come in a row the first is left to
 * userspace.
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
 * Of a flow that another process had: takes the numbers of a segment that the known ones do not lead to. The server's segments come in
 * by its interface, and the client's have to agree with them. Where the server's do not pass, the next segment has to agree.
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
			/* It is not late. */
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

/* Takes note of what a segment that is forwarded says of its connection. */
static ALWAYS_INLINE void follow(const struct packet *packet, struct flow_entry *entry)
{
	__u32 seq = ntohl(packet->seq), ack = ntohl(packet->ack), len = length(packet);
	struct flow_entry *answer;

	if (entry->flags & FLOW_OPENING) {
		entry->flags &= ~FLOW_RESTORED;
		/* An acknowledgement may come behind a FIN that was lost. */
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
