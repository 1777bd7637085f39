// Chooses the path on which a packet arrives first. In front of each path stands an estimated
// queue: the bytes sent by it minus what its rate has carried since. A path's packets take this
// queue and the path's delay, so a flow takes the quickest path alone until the queue there is as
// long as the next path is slower. It is never behind the quickest path, its packets arrive nearly
// in order, and while all paths are busy each gets its share by rate.
//
// A path that loses packets gets a penalty: the time for which the queue of a better path keeps
// that busy while a flow that lost a packet has a smaller window. Losses are counted by the edge's
// process (src/path_loss.rs). Where the far edge does not tell its counts, lost is what the host
// sends again; the path that a segment took is remembered by its flow and sequence number. Losses
// that the paths together have alike are the flow's own, or lie behind the far edge, and count for
// none.
//
// A race of two processors may miscount a packet, which does not matter.
#ifndef BRAID_EDGE_ARRIVAL_H
#define BRAID_EDGE_ARRIVAL_H

#include "segment.h"

// Part of a path's delay beyond the quickest one's that counts, in quarters: while the far edge
// waits for the rest of it, the queue keeps the quickest path busy, and there is room left in front
// of that for bursts.
#define SKEW_QUARTERS 3
// Longer queues than this are not waited for, ns, unless they are shorter than half of that delay.
#define MAX_SKEW_NS 50000000ULL
// Longest estimated queue, ns. Where more is sent than the rates say, all queues are cut alike.
#define MAX_QUEUE_NS 500000000ULL
// Window over which the losses of a path count, ns.
#define LOSS_WINDOW_NS 8000000000ULL
// Estimated queue from which on it may be the flow itself that fills a path, us.
#define OWN_QUEUE_US 50000
// Time after a loss within which more of them belong to it, ns.
#define LOSS_EVENT_NS 50000000ULL
// Bytes without loss that are added to those of each path: few packets prove little.
#define LOSS_PRIOR_BYTES 524288ULL
// The penalty is this many times the loss ratio of a round trip, at most MAX_LOSS_PENALTY round
// trips. At 0.4 % it is one round trip: after two losses in a row CUBIC's window is half of what it
// was, and that still fills a path whose queue was as long.
#define LOSS_PENALTY_FACTOR 256
#define MAX_LOSS_PENALTY    4
// Added to twice the quickest path's delay for a round trip: processing, and the way back.
#define MIN_ROUND_TRIP_NS 10000000ULL
// Losses behind the far edge hit all paths alike, and by chance one of them up to this many times
// as often as the others.
#define LOSS_MARGIN 2
// The loss ratio is counted in parts of this many.
#define LOSS_SCALE 65536

static __always_inline __u64 remaining(__u64 bytes, __u64 past)
{
	if (past >= LOSS_WINDOW_NS)
		return 0;
	return bytes - bytes * (past >> 20) / (LOSS_WINDOW_NS >> 20);
}

// Returns the queue on the quickest path that brings packets to one that is slower by `skew`, ns.
static __always_inline __u64 counted_skew(__u64 skew)
{
	__u64 most = skew / 2 > MAX_SKEW_NS ? skew / 2 : MAX_SKEW_NS;
	__u64 counted = skew * SKEW_QUARTERS / 4;

	return counted < most ? counted : most;
}

static __always_inline void decay(struct path_loss *loss, __u64 now)
{
	__u64 past = now > loss->at ? now - loss->at : 0;

	// Shorter times would be rounded away.
	if (past < 1 << 24)
		return;
	loss->sent = remaining(loss->sent, past);
	loss->lost = remaining(loss->lost, past);
	loss->at = now;
}

static __always_inline int is_measured(const struct path_loss *loss, __u64 now)
{
	return now < loss->measured_end_ns;
}

// Accounts a segment that was sent into a queue of `queue_us` to a path, and to the path that it
// took before if it was sent already.
static __always_inline void account_loss(__u32 flow, __u32 seq, __u32 tag, __u32 queue_us,
					 __u32 bytes, __u64 now)
{
	__u32 key = (flow ^ (seq * 2654435761U >> 7)) & (SENT_SEGMENTS - 1);
	struct sent_segment *segment = bpf_map_lookup_elem(&sent_segments, &key);
	struct path_loss *loss;
	__u32 before;

	if (!segment)
		return;
	before = segment->tag;
	if (before && segment->flow == flow && segment->seq == seq) {
		loss = bpf_map_lookup_elem(&path_losses, &before);
		if (loss)
			loss->resent += 1;
		if (loss && !is_measured(loss, now)) {
			decay(loss, now);
			if (segment->queue_us < OWN_QUEUE_US &&
			    now - loss->event_at > LOSS_EVENT_NS) {
				loss->event_at = now;
				loss->lost += bytes;
			}
		}
	}
	segment->flow = flow;
	segment->seq = seq;
	segment->tag = tag;
	segment->queue_us = queue_us;
	loss = bpf_map_lookup_elem(&path_losses, &tag);
	if (loss && !is_measured(loss, now)) {
		decay(loss, now);
		loss->sent += bytes;
	}
}

// Sets the bytes of a path that were sent and lost within the window.
static __always_inline void recent_loss(__u32 tag, __u64 now, __u64 *sent, __u64 *lost)
{
	struct path_loss *loss = bpf_map_lookup_elem(&path_losses, &tag);
	__u64 past;

	*sent = 0;
	*lost = 0;
	if (!loss)
		return;
	past = now > loss->at ? now - loss->at : 0;
	*sent = remaining(loss->sent, past);
	*lost = remaining(loss->lost, past);
}

// Returns the share of bytes that was lost, in parts of LOSS_SCALE.
static __always_inline __u64 loss_ratio(__u64 lost, __u64 sent)
{
	return lost * LOSS_SCALE / (sent + LOSS_PRIOR_BYTES);
}

// Returns a path's delay apart from the queue of this edge's own packets, ns: while this edge's
// probes tell the queue, its latency. `excess` is set to the queue that the estimate does not have.
static __always_inline __u64 delay_of(const struct path *path, __u64 now, __u64 *excess)
{
	__u32 tag = path->tag;
	struct path_queue *queue = bpf_map_lookup_elem(&path_queues, &tag);

	*excess = 0;
	if (!queue || now >= queue->end_ns)
		return path->delay_us * 1000ULL;
	*excess = queue->excess_ns < MAX_QUEUE_NS ? queue->excess_ns : MAX_QUEUE_NS;
	return path->latency_us * 1000ULL;
}

// Sets the delay of each path with its penalty, and with the queue that the estimate does not have,
// ns.
static __always_inline void penalised_delays(const struct slot_table *table, __u64 now,
					     __u64 delays[MAX_PATHS])
{
	// Verifiers before Linux 6.12 do not know that those read have been set.
	__u64 sent[MAX_PATHS] = {}, lost[MAX_PATHS] = {}, queues[MAX_PATHS] = {};
	__u64 all_sent = 0, all_lost = 0;
	__u64 quickest = ~0ULL, round_trip, own, others, excess;

#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		delays[i] = 0;
		if (i >= table->path_count)
			continue;
		recent_loss(table->paths[i].tag, now, &sent[i], &lost[i]);
		all_sent += sent[i];
		all_lost += lost[i];
		delays[i] = delay_of(&table->paths[i], now, &queues[i]);
		quickest = delays[i] < quickest ? delays[i] : quickest;
	}
	round_trip = 2 * quickest + MIN_ROUND_TRIP_NS;
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		if (i >= table->path_count)
			continue;
		own = loss_ratio(lost[i], sent[i]);
		others = loss_ratio(all_lost - lost[i], all_sent - sent[i]) * LOSS_MARGIN;
		excess = own > others ? (own - others) * LOSS_PENALTY_FACTOR : 0;
		if (excess > MAX_LOSS_PENALTY * LOSS_SCALE)
			excess = MAX_LOSS_PENALTY * LOSS_SCALE;
		delays[i] = quickest + counted_skew(delays[i] - quickest) +
			    round_trip * excess / LOSS_SCALE + queues[i];
	}
}

static __always_inline __u64 sending_time(const struct path *path, __u32 bytes)
{
	return (__u64)bytes * path->ns_per_kib >> 10;
}

// Has a line stand for a path.
static __always_inline void use_line(struct line *line, __u32 tag)
{
	if (line->tag != tag) {
		line->tag = tag;
		line->idle_at = 0;
	}
}

// Adds a packet to the queue of a path that was chosen otherwise.
static __always_inline void add_to_line(struct cursor *cursor, const struct slot_table *table,
					__u32 tag, __u32 bytes, __u64 now)
{
	bpf_spin_lock(&cursor->lock);
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		struct line *line = &cursor->lines[i];

		if (i >= table->path_count || table->paths[i].tag != tag)
			continue;
		use_line(line, tag);
		if (line->idle_at < now + MAX_QUEUE_NS)
			line->idle_at = (line->idle_at > now ? line->idle_at : now) +
					sending_time(&table->paths[i], bytes);
	}
	bpf_spin_unlock(&cursor->lock);
}

// Returns the tag of the path on which a packet arrives first, and adds the packet to its queue.
// `queue_us` is set to the queue in front of it.
static __always_inline __u32 earliest_arrival(struct cursor *cursor, const struct slot_table *table,
					      __u32 bytes, __u64 now, __u32 *queue_us)
{
	__u64 delays[MAX_PATHS], first = ~0ULL, end = 0, over;
	__u32 tag = 0;

	penalised_delays(table, now, delays);
	bpf_spin_lock(&cursor->lock);
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		struct line *line = &cursor->lines[i];
		const struct path *path = &table->paths[i];
		__u64 sent;

		if (i >= table->path_count)
			continue;
		use_line(line, path->tag);
		sent = (line->idle_at > now ? line->idle_at : now) + sending_time(path, bytes);
		if (sent + delays[i] < first) {
			first = sent + delays[i];
			tag = path->tag;
			end = sent;
		}
	}
	over = end > now + MAX_QUEUE_NS ? end - now - MAX_QUEUE_NS : 0;
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		struct line *line = &cursor->lines[i];

		if (i >= table->path_count)
			continue;
		if (line->tag == tag)
			line->idle_at = end;
		line->idle_at = line->idle_at > over ? line->idle_at - over : 0;
	}
	bpf_spin_unlock(&cursor->lock);
	*queue_us = end > now ? (end - now) / 1000 : 0;
	return tag;
}

#endif
