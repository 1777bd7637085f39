// Round trips of QUIC handshakes: from a client's first Initial to the first answer, which every
// server sends at once, be it an Initial, a Retry or a Version Negotiation (RFC 9000 section 17).
#ifndef BRAID_QUIC_H
#define BRAID_QUIC_H

#include "flow/flow.h"

// The first byte of a long header with the fixed bit: 0-RTT, Initial or, in version 2, Retry by the
// lower bit of its type (RFC 9000 section 17.2, RFC 9369 section 3.2).
#define QUIC_LONG_TYPE_MASK 0xe0
#define QUIC_EARLY_PACKET   0xc0

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

	if (!flow->stamp_at) {
		forget_path(remote, uplink, RTT_TRIED_US);
		return;
	}
	flow->stamp_at = 0;
	if (counters)
		note_handshake(counters, remote, uplink, rtt, now);
}

#endif
