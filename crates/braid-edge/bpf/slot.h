// The slot table, walked by bytes, a slot for every SLOT_BYTES: full frames take one slot each,
// small packets share one, so the paths carry what their slots say whatever sizes are mixed. A
// table that repeats a tag in adjacent slots sends bursts.
#ifndef BRAID_EDGE_SLOT_H
#define BRAID_EDGE_SLOT_H

#include "segment.h"

// By slots in turn, or, what has no place in an order, by the slot that its flow's hash says.
enum slot_choice { NEXT_SLOT, FLOW_SLOT };

static __always_inline struct slot_table *table_of(__u32 target)
{
	return target < MAX_TARGETS ? bpf_map_lookup_elem(&tables, &target) : 0;
}

// The tag of the path that the next packet to a target goes by; 0: there is none.
static __always_inline __u32 next_tag(struct __sk_buff *skb, struct slot_table *table, __u32 target,
				      enum slot_choice choice)
{
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	__u32 slot, length = skb->len;
	__u64 sent;

	if (!cursor)
		return 0;
	if (choice == FLOW_SLOT) {
		slot = bpf_get_hash_recalc(skb);
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
