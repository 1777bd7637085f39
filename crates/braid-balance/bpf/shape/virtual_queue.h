// Virtual queues: one for each uplink and direction, served at a little less than the line's rate.
// No packet waits in it. CoDel (RFC 8289) drops by the time that a packet would have waited, so
// that senders slow down before the line's own queue grows.
#ifndef BRAID_VIRTUAL_QUEUE_H
#define BRAID_VIRTUAL_QUEUE_H

#include "flow/flow.h"

// Returns the index of a direction of an uplink. The mask gives the verifier a bound.
static __always_inline __u32 shape_index(__u32 uplink, __u32 direction)
{
	return uplink_index(uplink) * SHAPED_DIRECTIONS + direction;
}

// Returns the time until the next drop: the pause divided by the square root of the drops. One
// step of Newton's method for each drop follows it closely enough, as in the kernel's CoDel.
static __always_inline __u64 pause_of(struct virtual_queue *queue)
{
	__u64 inverse = queue->inverse_sqrt;
	__u64 squared = (inverse * inverse) >> 32;
	__u64 next = ((3ull << 32) - queue->drops * squared) >> 2;

	queue->inverse_sqrt = (next * inverse) >> 31;
	return ((__u64)SHAPE_PAUSE_NS * queue->inverse_sqrt) >> 32;
}

// Returns 1 if the delay has been above the target for an interval.
static __always_inline int is_persistent(struct virtual_queue *queue, __u64 delay, __u64 target,
					 __u64 now)
{
	if (delay < target) {
		queue->first_above = 0;
		return 0;
	}
	if (!queue->first_above) {
		queue->first_above = now + SHAPE_INTERVAL_NS;
		return 0;
	}
	return now >= queue->first_above;
}

// Returns 1 if CoDel drops the packet that would wait for `delay`.
static __always_inline int codel_drops(struct virtual_queue *queue, __u64 delay, __u64 target,
				       __u64 now)
{
	__u32 more = queue->drops - queue->last_drops;

	if (!is_persistent(queue, delay, target, now)) {
		queue->is_dropping = 0;
		return 0;
	}
	if (queue->is_dropping) {
		if (now < queue->drop_next)
			return 0;
		queue->drops++;
		// One packet comes at a time, so a pause in arrivals must not become a burst of
		// drops.
		if (now - queue->drop_next > SHAPE_INTERVAL_NS)
			queue->drop_next = now;
		queue->drop_next += pause_of(queue);
		return 1;
	}
	queue->is_dropping = 1;
	if (more > 1 && now < queue->drop_next + SHAPE_PAUSE_NS) {
		queue->drops = more;
	} else {
		queue->drops = 1;
		queue->inverse_sqrt = ~0u;
	}
	queue->last_drops = queue->drops;
	queue->drop_next = now + pause_of(queue);
	return 1;
}

// Takes a packet into the virtual queue of a direction, marks it if its sender understands marks,
// and returns 1 if it is to be dropped. What CoDel drops of the packets received has crossed the
// line, so it takes its time in the queue as well.
static __noinline int is_over_rate(struct __sk_buff *skb, __u32 index, __u32 bytes, __u64 now)
{
	struct shape_rate *rate = bpf_map_lookup_elem(&shape_rates, &index);
	struct shape_counters *counters;
	struct virtual_queue *queue;
	__u64 delay, limit, target;
	int drops = 0;

	if (!rate || !rate->is_shaped)
		return 0;
	counters = bpf_map_lookup_elem(&shape_counters, &index);
	queue = bpf_map_lookup_elem(&virtual_queues, &index);
	if (!counters || !queue)
		return 0;
	if (rate->cost) {
		// Not exact where CPUs meet: one packet's time may be lost.
		if (queue->empty_at < now)
			queue->empty_at = now;
		delay = queue->empty_at - now;
		limit = rate->limit;
		// Less than a packet of full size is no queue.
		target = rate->target + rate->cost * 2ull;
		if (bytes <= SHAPE_SMALL_BYTES)
			limit *= 2;
		else
			drops = codel_drops(queue, delay, target, now);
		if (drops && bpf_skb_ecn_set_ce(skb) > 0) {
			counters->marked_packets++;
			drops = 0;
		}
		if (delay > limit + rate->cost)
			drops = 1;
		else if (!drops || index % SHAPED_DIRECTIONS == SHAPED_RX)
			__sync_fetch_and_add(&queue->empty_at, (__u64)rate->cost * bytes >> 10);
	}
	if (drops) {
		counters->dropped_packets += packets_in(skb);
		counters->dropped_bytes += bytes;
	} else {
		counters->packets += packets_in(skb);
		counters->bytes += bytes;
	}
	return drops;
}

#endif
