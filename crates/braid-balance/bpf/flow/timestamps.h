// Round trips inside flows: TCP's by timestamps (RFC 7323), of which the remote echoes the
// inside's; QUIC's by the spin bit (flow/quic.h). A queue on the uplink shows as their growth in
// those flows alone that fill it; see braid_core::capacity.
#ifndef BRAID_TIMESTAMPS_H
#define BRAID_TIMESTAMPS_H

#include "packet/parse.h"

// Two NOPs, then the option: all but odd stacks send it this way.
#define TCP_TIMESTAMPS 0x0101080a

struct tcp_timestamps {
	__be32 kind;
	__be32 value;
	__be32 echo;
};

// Returns 0 if the segment has timestamps, and reads them.
static __always_inline int read_timestamps(const struct __sk_buff *skb, const struct packet *packet,
					   struct tcp_timestamps *timestamps)
{
	if (packet->l4_header < sizeof(struct tcphdr) + sizeof(*timestamps) ||
	    (packet->tcp_flags & TCP_SYN))
		return -1;
	if (bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct tcphdr), timestamps,
			       sizeof(*timestamps)))
		return -1;
	return timestamps->kind == bpf_htonl(TCP_TIMESTAMPS) ? 0 : -1;
}

static __always_inline __u32 packets_of(const struct flow *flow)
{
	return flow->tx_packets + flow->rx_packets;
}

// Returns the time that a packet to an uplink will wait in the queue that Braid has there, which is
// none of the line's; small packets go first.
static __always_inline __u64 egress_wait(const struct __sk_buff *skb, __u32 uplink, __u64 now)
{
	__u32 index = shape_index(uplink, SHAPED_TX);
	struct shape_rate *rate = bpf_map_lookup_elem(&shape_rates, &index);
	struct virtual_queue *queue = bpf_map_lookup_elem(&virtual_queues, &index);

	if (!rate || !queue || !rate->first_class || skb->len <= SHAPE_SMALL_BYTES ||
	    queue->empty_at <= now)
		return 0;
	return queue->empty_at - now;
}

// Notes when a packet from inside leaves whose answer will show the round trip.
static __always_inline void await_round_trip(const struct __sk_buff *skb, struct flow *flow,
					     __u64 now)
{
	// It may not have left yet.
	__u32 at = (now + egress_wait(skb, flow->uplink, now)) / 1000;

	flow->stamp_at = at ? at : 1;
	flow->stamp_packets = packets_of(flow);
}

// Counts for how long a queue was there: a packet that came `waited` us later than it could has met
// one for as long, or a line that carried nothing. What two CPUs see in the same moment may count
// twice.
static __always_inline void count_queued(struct uplink_counters *counters, __u32 uplink,
					 __u32 waited, __u64 now)
{
	__u64 *seen = bpf_map_lookup_elem(&queue_seen, &uplink);
	__u64 since;

	if (!seen || now <= *seen)
		return;
	since = (now - *seen) / 1000;
	*seen = now;
	counters->queue_seen = now;
	counters->queued_us += waited < since ? waited : since;
}

// Takes the awaited round trip, which ends now. In the `silence` us before, the uplink's senders
// may have had nothing to send.
static __always_inline void take_round_trip(struct flow *flow, __u32 rtt, __u32 silence, __u64 now)
{
	__u32 uplink = flow->uplink, growth;
	struct uplink_counters *counters;

	flow->stamp_at = 0;
	if (rtt > MAX_STAMP_RTT_US)
		return;
	if (!flow->min_rtt || rtt < flow->min_rtt)
		flow->min_rtt = rtt ? rtt : 1;
	counters = bpf_map_lookup_elem(&traffic, &uplink);
	if (!counters || packets_of(flow) - flow->stamp_packets < MIN_STAMP_PACKETS)
		return;
	growth = rtt - flow->min_rtt;
	counters->queueing_us_sum += growth;
	counters->queueing_samples++;
	if (growth > silence)
		count_queued(counters, uplink, growth - silence, now);
	counters->flow_rtt_us_sum += rtt;
	if (flow->last_rtt) {
		__s32 change = rtt - flow->last_rtt;

		counters->jitter_us_sum += change < 0 ? -change : change;
		counters->jitter_samples++;
	}
	flow->last_rtt = rtt ? rtt : 1;
}

// Notes a segment from inside whose timestamp will be echoed, unless another echo is awaited. A
// function of its own, as is note_echo(): what they read has no room in their callers' frames.
static __noinline void note_stamp(const struct __sk_buff *skb, const struct packet *packet,
				  struct flow *flow, __u64 now)
{
	struct tcp_timestamps timestamps;

	if (flow->stamp_at && (__s32)(now / 1000 - flow->stamp_at) <= MAX_STAMP_RTT_US)
		return;
	if (read_timestamps(skb, packet, &timestamps))
		return;
	flow->stamp = timestamps.value;
	await_round_trip(skb, flow, now);
}

// Takes the round trip if a segment from outside echoes the awaited timestamp.
static __noinline void note_echo(const struct __sk_buff *skb, const struct packet *packet,
				 struct flow *flow, __u32 silence, __u64 now)
{
	struct tcp_timestamps timestamps;

	if (!flow->stamp_at || read_timestamps(skb, packet, &timestamps))
		return;
	if (timestamps.echo != flow->stamp) {
		// The echo was lost, or its segment did not advance the remote's window.
		if ((__s32)(bpf_ntohl(timestamps.echo) - bpf_ntohl(flow->stamp)) > 0)
			flow->stamp_at = 0;
		return;
	}
	take_round_trip(flow, (__u32)(now / 1000) - flow->stamp_at, silence, now);
}

#endif
