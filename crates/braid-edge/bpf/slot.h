// The slot table advances by bytes, one slot for every SLOT_BYTES: full frames take one slot each,
// small packets share one, so that paths get their shares of bytes whatever the mix of sizes. A
// table that repeats a tag in adjacent slots sends bursts.
#ifndef BRAID_EDGE_SLOT_H
#define BRAID_EDGE_SLOT_H

#include "arrival.h"

// NEXT_SLOT takes the path of the earliest arrival, or slots in turn where rates and delays are not
// known; FLOW_SLOT takes the slot of the flow's hash, for packets that cannot be put back in order.
enum slot_choice { NEXT_SLOT, FLOW_SLOT };

static __always_inline struct slot_table *table_of(__u32 target)
{
	return target < MAX_TARGETS ? bpf_map_lookup_elem(&tables, &target) : 0;
}

// Returns the tag of the next packet's path to a target; 0: there is none. `queue_us` is set to the
// estimated queue in front of the path of the earliest arrival.
static __always_inline __u32 next_tag(struct __sk_buff *skb, struct slot_table *table, __u32 target,
				      enum slot_choice choice, __u32 *queue_us)
{
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	__u32 slot, length = skb->len;
	__u64 sent, now = bpf_ktime_get_ns();

	if (!cursor)
		return 0;
	if (choice == FLOW_SLOT) {
		slot = bpf_get_hash_recalc(skb);
		if (table->path_count)
			add_to_line(cursor, table, table->tags[slot & (SLOTS - 1)], length, now);
	} else if (table->path_count) {
		return earliest_arrival(cursor, table, length + TAG_BYTES, now, queue_us);
	} else {
		bpf_spin_lock(&cursor->lock);
		sent = cursor->bytes;
		cursor->bytes += length;
		bpf_spin_unlock(&cursor->lock);
		slot = sent / SLOT_BYTES;
	}
	return table->tags[slot & (SLOTS - 1)];
}

#endif
