// Round trips of QUIC handshakes: from a client's first Initial to the first answer, which every
// server sends at once, be it an Initial, a Retry or a Version Negotiation (RFC 9000 section 17).
//
// Round trips inside connections, by the spin bit (RFC 9000 section 17.4): the client turns it once
// in a round trip, when the server's packets show its own last value, and the server repeats it. An
// end without it may set it by chance or leave it as it is. So nothing counts before the
// handshake's round trip is known, and a connection has no spin bit for good once the inside has
// turned it without an answer, or one came in a fraction of the shortest round trip.
#ifndef BRAID_QUIC_H
#define BRAID_QUIC_H

#include "flow/flow.h"

// The first byte of a long header with the fixed bit: 0-RTT, Initial or, in version 2, Retry by the
// lower bit of its type (RFC 9000 section 17.2, RFC 9369 section 3.2).
#define QUIC_LONG_TYPE_MASK 0xe0
#define QUIC_EARLY_PACKET   0xc0

// Of a short header: its form with the fixed bit, and the spin bit.
#define QUIC_FORM_MASK	  0xc0
#define QUIC_SHORT_HEADER 0x40
#define QUIC_SPIN_BIT	  0x20

// Values of `stamp`: the spin bit that the inside sent last.
#define SPIN_ZERO 1
#define SPIN_ONE  2
#define SPIN_NONE 3

// Returns the spin bit of a packet with a short header, else 0.
static __always_inline __u32 spin_of(const struct __sk_buff *skb, const struct packet *packet)
{
	__u8 first;

	if (bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct udphdr), &first, sizeof(first)) ||
	    (first & QUIC_FORM_MASK) != QUIC_SHORT_HEADER)
		return 0;
	return first & QUIC_SPIN_BIT ? SPIN_ONE : SPIN_ZERO;
}

static __always_inline void ignore_spin(struct flow *flow)
{
	flow->stamp = SPIN_NONE;
	flow->stamp_at = 0;
}

// Notes a packet from inside that turns the spin bit.
static __noinline void note_spin(const struct __sk_buff *skb, const struct packet *packet,
				 struct flow *flow, __u64 now)
{
	__u32 spin;

	if (!flow->min_rtt || flow->stamp == SPIN_NONE)
		return;
	spin = spin_of(skb, packet);
	if (!spin || spin == flow->stamp)
		return;
	if (flow->stamp_at) {
		ignore_spin(flow);
		return;
	}
	// The first value says nothing about when it was turned.
	if (flow->stamp)
		await_round_trip(skb, flow, now);
	flow->stamp = spin;
}

// Takes the round trip if a packet from outside shows the awaited spin bit.
static __noinline void note_spin_answer(const struct __sk_buff *skb, const struct packet *packet,
					struct flow *flow, __u32 silence, __u64 now)
{
	__u32 rtt;

	if (!flow->stamp_at || spin_of(skb, packet) != flow->stamp)
		return;
	rtt = (__u32)(now / 1000) - flow->stamp_at;
	if (rtt < flow->min_rtt / MIN_SPIN_PART)
		ignore_spin(flow);
	else
		take_round_trip(flow, rtt, silence, now);
}

// Notes a datagram to QUIC's port that is sent before the first answer. A client that sends again
// has none yet, and the next one may be to either.
static __noinline void note_initial(const struct __sk_buff *skb, const struct packet *packet,
				    struct flow *flow, __u64 now)
{
	__u32 at = now / 1000;
	__u8 first;

	if (flow->tx_packets) {
		if (flow->stamp_at && at - flow->stamp_at > QUIC_FLIGHT_US)
			flow->stamp_at = 0;
		return;
	}
	// A connection that moved began elsewhere.
	if (flow->came_from ||
	    bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct udphdr), &first, sizeof(first)))
		return;
	if ((first & QUIC_LONG_TYPE_MASK) == QUIC_EARLY_PACKET)
		flow->stamp_at = at ? at : 1;
}

// Takes the round trip at the first answer. Without one the path is unknown again.
static __noinline void note_initial_answer(const struct address *remote, struct flow *flow,
					   __u64 now)
{
	__u32 rtt = (__u32)(now / 1000) - flow->stamp_at, uplink = flow->uplink;
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &uplink);
	__u32 known;

	if (!flow->stamp_at) {
		forget_path(remote, uplink, RTT_TRIED_US);
		return;
	}
	flow->stamp_at = 0;
	flow->min_rtt = rtt ? rtt : 1;
	if (!counters)
		return;
	known = note_handshake(counters, remote, uplink, rtt, now) + FULL_PACKET_US;
	if (known < flow->min_rtt)
		flow->min_rtt = known;
}

#endif
