// Virtual queues: one for each uplink and direction, served at a little less than the line's rate.
// No packet waits in it. CoDel (RFC 8289) drops by the time that a packet would have waited, so
// that senders slow down before the line's own queue grows.
#ifndef BRAID_VIRTUAL_QUEUE_H
#define BRAID_VIRTUAL_QUEUE_H

#include "flow/flow.h"

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

// Corrects the queue by what was seen of the device's.
static __always_inline void correct(struct virtual_queue *queue, const struct shape_rate *rate,
				    __u64 now)
{
	__u64 empty_at = queue->empty_at < now ? now : queue->empty_at;

	if (queue->look == rate->look)
		return;
	queue->look = rate->look;
	queue->empty_at = empty_at + rate->behind;
}

// Has what is in the queue take as long as it takes at another rate.
static __always_inline void follow_rate(struct virtual_queue *queue, __u32 cost, __u64 now)
{
	if (queue->cost == cost)
		return;
	if (queue->cost && queue->empty_at > now) {
		// Less than four seconds and a quarter, so that the product fits.
		__u64 waits = (__u32)(queue->empty_at - now);

		queue->empty_at = now + waits * cost / queue->cost;
	}
	queue->cost = cost;
}

// Returns the time that a packet takes. A queue on the device counts frames.
static __always_inline __u64 time_in_queue(const struct __sk_buff *skb,
					   const struct shape_rate *rate, __u32 bytes)
{
	__u64 counted = bytes;

	if (rate->first_class)
		counted = (__u64)skb->wire_len * FULL_PACKET / (FULL_PACKET + ETH_HLEN);
	return rate->cost * counted >> 10;
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
		follow_rate(queue, rate->cost, now);
		correct(queue, rate, now);
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
			__sync_fetch_and_add(&queue->empty_at, time_in_queue(skb, rate, bytes));
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
