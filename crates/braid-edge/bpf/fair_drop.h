// Fair dropping (as AFD, approximate fair dropping) among flows that fill the paths to an edge. A
// full queue drops arrivals whatever flow they belong to: a flow that is hit twice in a row gets
// half of another's rate for seconds. So before the queues are full, one packet of the heaviest
// flow is dropped now and then; that flow slows down and the others catch up.
//
// The queue is estimated: bytes sent minus the configured capacity of the paths. Such an estimate
// loses sight of a standing queue within seconds, since other packets take a part of the lines:
// this edge's probes take a hundredth of slow ones. So while this edge sends nearly the capacity,
// the queue is at least what its probes measure, on the way there and back. If others fill the
// lines too, or they carry less than configured by a sixteenth or more, the real queue is longer
// and drops packets first, as it would without this. A flow that carries nearly everything is
// spared: no other would gain.
//
// A race of two processors may miscount a packet, which does not matter.
#ifndef BRAID_EDGE_FAIR_DROP_H
#define BRAID_EDGE_FAIR_DROP_H

#include "load.h"
#include "slot.h"

// Queue at which packets of a flow with all of the load would be dropped: us of the paths' rate,
// and frames for bursts. A flow with a part of the load is dropped at that part of it. With this
// much, a flow that halves its window does not empty the queue, up to a round trip of some 300 ms.
#define FAIR_QUEUE_US	  200000ULL
#define FAIR_QUEUE_FRAMES 8
// Upper bound of the estimated queue, in multiples of that.
#define FAIR_MAX_QUEUE_FACTOR 4
// Interval of drops at that queue, us, times the flow's part of the load, so that each flow has the
// same time to grow. The interval is inversely proportional to the queue.
#define FAIR_DROP_INTERVAL_US 3000000ULL
// Least load at which an edge takes the queue on the lines for its own, in sixteenths of their
// capacity.
#define FAIR_MIN_LOAD_SIXTEENTHS 15

// Drains the estimated queue at the paths' rate (bytes a second) since the last call, in whole us;
// the remainder counts the next time.
static __always_inline void drain(struct queue *queue, __u64 rate, __u64 now)
{
	__u64 us = (now - queue->at) / 1000, gone;

	// At most a second, also for the first packet.
	gone = us < 1000000 ? us * rate / 1000000 : rate;
	queue->at = us < 1000000 ? queue->at + us * 1000 : now;
	queue->bytes = queue->bytes > gone ? queue->bytes - gone : 0;
}

// Returns true if what this edge sent to the target within the window, a second, is nearly all that
// the paths carry.
static __always_inline int fills(const struct queue *queue, __u64 rate)
{
	return 16 * queue->sent.bytes >= FAIR_MIN_LOAD_SIXTEENTHS * rate;
}

// Returns the bytes in the queues of those paths to a target of which this edge's probes tell them.
static __always_inline __u64 measured_queue(const struct slot_table *table, __u64 now)
{
	__u64 bytes = 0;

#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		const struct path *path = &table->paths[i];
		__u32 tag = path->tag;
		struct path_queue *queue;
		__u64 ns;

		if (i >= table->path_count || !path->ns_per_kib)
			continue;
		queue = bpf_map_lookup_elem(&path_queues, &tag);
		if (!queue || now >= queue->end_ns)
			continue;
		ns = queue->ns < MAX_QUEUE_NS ? queue->ns : MAX_QUEUE_NS;
		bytes += (ns << 10) / path->ns_per_kib;
	}
	return bytes;
}

// Returns true if a packet of the heaviest flow is to be dropped now.
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

// Accounts a packet to a target; returns true if it is to be dropped instead. `rate`: bytes a
// second; `measured`: bytes in the queue by probes, while this edge fills the paths; else 0.
static __always_inline int should_drop(struct queue *queue, struct flow_load *flow,
				       __u32 flow_index, __u32 bytes, __u64 rate, __u64 measured,
				       __u64 now)
{
	drain(queue, rate, now);
	add_load(&queue->all, bytes, now);
	if (queue->bytes < measured)
		queue->bytes = measured;
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
	// As CUBIC reduces its window (RFC 9438, 4.6).
	flow->bytes -= flow->bytes * 3 / 10;
	queue->heaviest = *flow;
	return 1;
}

// Returns the bytes in the queue by probes; 0 unless this edge fills the paths.
static __always_inline __u64 own_queue(const struct queue *queue, const struct slot_table *table,
				       __u64 rate, __u64 now)
{
	return fills(queue, rate) ? measured_queue(table, now) : 0;
}

// should_drop() for a packet. Small and merged segments, and all but sequenced TCP segments, are
// spared.
static __always_inline int fair_drop(struct __sk_buff *skb, struct slot_table *table, __u32 target,
				     enum segment segment)
{
	__u64 now, measured;
	__u32 flow_index;
	struct queue *queue;
	struct flow_load *flow;

	if (!table->rate)
		return 0;
	flow_index = bpf_get_hash_recalc(skb) & (FLOWS - 1);
	queue = bpf_map_lookup_elem(&queues, &target);
	flow = bpf_map_lookup_elem(&flows, &flow_index);
	if (!queue || !flow)
		return 0;
	now = bpf_ktime_get_ns();
	add_load(&queue->sent, skb->len + TAG_BYTES, now);
	if (segment != SEQUENCED_SEGMENT || skb->len < SLOT_BYTES / 2 || skb->gso_segs > 1)
		return 0;
	measured = own_queue(queue, table, table->rate, now);
	return should_drop(queue, flow, flow_index, skb->len + TAG_BYTES, table->rate, measured,
			   now);
}

#endif
