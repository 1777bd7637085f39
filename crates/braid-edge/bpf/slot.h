// The slot table advances by bytes, one slot for every SLOT_BYTES: full frames take one slot each,
// small packets share one, so that paths get their shares of bytes whatever the mix of sizes. A
// table that repeats a tag in adjacent slots sends bursts.
#ifndef BRAID_EDGE_SLOT_H
#define BRAID_EDGE_SLOT_H

#include "arrival.h"

// Slots that are tried for a lane whose own path is avoided, and the way from one to the next:
// prime, so that it meets the turns of a table in any order.
#define MAX_SLOTS_TRIED 16
#define SLOT_STEP	389

// NEXT_SLOT takes the path of the earliest arrival, or slots in turn where rates and delays are not
// known; FLOW_SLOT takes flow_tag(), for packets that cannot be put back in order.
enum slot_choice { NEXT_SLOT, FLOW_SLOT };

static __always_inline struct slot_table *table_of(__u32 target)
{
	return target < MAX_TARGETS ? bpf_map_lookup_elem(&tables, &target) : 0;
}

// Returns the lane of a packet's flow. The flows of a lane have one path while they keep to one,
// and one order while they are numbered.
static __always_inline __u32 lane_number(struct __sk_buff *skb)
{
	return bpf_get_hash_recalc(skb) & (LANES - 1);
}

static __always_inline int is_avoided(__u32 tag)
{
	__u32 *avoided = bpf_map_lookup_elem(&avoided_tags, &tag);

	return avoided && *avoided;
}

// Returns the tag of a lane's path: that of the first slot whose path is not avoided.
static __always_inline __u32 flow_tag(const struct slot_table *table, __u32 slot)
{
	__u32 tag;

#pragma unroll
	for (int i = 0; i < MAX_SLOTS_TRIED; i++) {
		tag = table->tags[(slot + i * SLOT_STEP) & (SLOTS - 1)];
		if (!is_avoided(tag))
			return tag;
	}
	// Another path has few slots.
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		if (i >= table->path_count)
			continue;
		tag = table->paths[i].tag;
		if (!is_avoided(tag))
			return tag;
	}
	return table->tags[slot & (SLOTS - 1)];
}

// Returns the tag of the next packet's path to a target; 0: there is none. `queue_us` is set to the
// estimated queue in front of the path of the earliest arrival.
static __always_inline __u32 next_tag(struct __sk_buff *skb, struct slot_table *table, __u32 target,
				      enum slot_choice choice, __u32 *queue_us)
{
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	__u32 slot, tag, length = skb->len;
	__u64 sent, now = bpf_ktime_get_ns();

	if (!cursor)
		return 0;
	if (choice == FLOW_SLOT) {
		tag = flow_tag(table, lane_number(skb));
		if (table->path_count)
			add_to_line(cursor, table, tag, length, now);
		return tag;
	}
	if (table->path_count)
		return earliest_arrival(cursor, table, length + TAG_BYTES, now, queue_us);
	bpf_spin_lock(&cursor->lock);
	sent = cursor->bytes;
	cursor->bytes += length;
	bpf_spin_unlock(&cursor->lock);
	slot = sent / SLOT_BYTES;
	return table->tags[slot & (SLOTS - 1)];
}

#endif
