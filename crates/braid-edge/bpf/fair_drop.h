// Who gives way when several flows fill the paths to an edge. Left to themselves the lines' queues
// fill up and drop what comes next, whosever it is: a flow that is hit twice in a row has half of
// what another has for seconds. So before they are full one packet is dropped now and then of the
// flow that carries most, which slows down and lets the others come up.
//
// The queue is reckoned: what was sent, less what the paths' lines carry at the most. If others
// fill them as well, or they carry less than was said, it is longer than that: then nothing is
// dropped here, and queues decide as they would without us. Nothing is dropped of a flow that
// carries nearly everything: nobody would gain by it.
//
// Two processors at once may miscount a packet, which decides nothing.
#ifndef BRAID_EDGE_FAIR_DROP_H
#define BRAID_EDGE_FAIR_DROP_H

#include "slot.h"

// What a flow carries is taken over about this long, ns.
#define FAIR_LOAD_WINDOW_NS 1000000000ULL
// The queue from which on a flow that carried everything would give way, us of the paths' rate, and
// frames for bursts; one that carries a part does at that part of it. A flow that halves empties no
// queue so, up to a round trip of some 300 ms.
#define FAIR_QUEUE_US	  200000ULL
#define FAIR_QUEUE_FRAMES 8
// The longest queue that is reckoned with, in multiples of that.
#define FAIR_MAX_QUEUE_FACTOR 4
// At that queue one packet is dropped in so many us, times the part that the flow carries: that
// each flow in its turn has the same time to grow. Of a queue twice as long, in half the time.
#define FAIR_DROP_INTERVAL_US 3000000ULL

static __always_inline __u64 decayed(const struct flow_load *flow, __u64 now)
{
	__u64 past = now - flow->at;

	if (past >= FAIR_LOAD_WINDOW_NS)
		return 0;
	return flow->bytes - flow->bytes * (past >> 10) / (FAIR_LOAD_WINDOW_NS >> 10);
}

static __always_inline void add_load(struct flow_load *flow, __u32 bytes, __u64 now)
{
	flow->bytes = decayed(flow, now) + bytes;
	flow->at = now;
}

// A while of the paths' rate (bytes a second) makes room in the queue; whole us, so that the rest
// of one counts the next time.
static __always_inline void drain(struct queue *queue, __u64 rate, __u64 now)
{
	__u64 us = (now - queue->at) / 1000, gone;

	// A second, or it is the first packet.
	gone = us < 1000000 ? us * rate / 1000000 : rate;
	queue->at = us < 1000000 ? queue->at + us * 1000 : now;
	queue->bytes = queue->bytes > gone ? queue->bytes - gone : 0;
}

// Whether the flow that carries most has to give way now.
static __always_inline int heaviest_must_yield(struct queue *queue, __u64 rate, __u64 now)
{
	__u64 most = queue->heaviest.bytes, all = queue->all.bytes, limit, pace;

	if (4 * most > 3 * all)
		return 0;
	limit = rate * FAIR_QUEUE_US / 1000000 * most / all + FAIR_QUEUE_FRAMES * SLOT_BYTES;
	if (queue->bytes < limit)
		return 0;
	if (queue->bytes > FAIR_MAX_QUEUE_FACTOR * limit)
		queue->bytes = FAIR_MAX_QUEUE_FACTOR * limit;
	pace = FAIR_DROP_INTERVAL_US * most / all * limit / queue->bytes;
	return now - queue->dropped >= pace * 1000;
}

// Takes in what is sent to a target; whether it has to be dropped instead. `rate`: bytes a second.
static __always_inline int should_drop(struct queue *queue, struct flow_load *flow,
				       __u32 flow_index, __u32 bytes, __u64 rate, __u64 now)
{
	drain(queue, rate, now);
	add_load(&queue->all, bytes, now);
	add_load(flow, bytes, now);
	if (queue->heaviest_flow != flow_index && flow->bytes < decayed(&queue->heaviest, now)) {
		queue->bytes += bytes;
		return 0;
	}
	queue->heaviest_flow = flow_index;
	queue->heaviest = *flow;
	if (!heaviest_must_yield(queue, rate, now)) {
		queue->bytes += bytes;
		return 0;
	}
	queue->dropped = now;
	// What CUBIC does (RFC 9438, 4.6).
	flow->bytes -= flow->bytes * 3 / 10;
	queue->heaviest = *flow;
	return 1;
}

// The same for a packet. Segments that end or begin something, and merged ones, are spared.
static __always_inline int fair_drop(struct __sk_buff *skb, struct slot_table *table, __u32 target,
				     enum segment segment)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &target);
	__u32 flow_index = bpf_get_hash_recalc(skb) & (FLOWS - 1);
	struct flow_load *flow = bpf_map_lookup_elem(&flows, &flow_index);

	if (!table->rate || !queue || !flow || segment != SEQUENCED_SEGMENT ||
	    skb->len < SLOT_BYTES / 2 || skb->gso_segs > 1)
		return 0;
	return should_drop(queue, flow, flow_index, skb->len + TAG_BYTES, table->rate,
			   bpf_ktime_get_ns());
}

#endif
