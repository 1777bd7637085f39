// The slot table, walked by bytes, a slot for every SLOT_BYTES: full frames take one slot each,
// small packets share one, so the paths carry what their slots say whatever sizes are mixed. A
// table that repeats a tag in adjacent slots sends bursts.
#ifndef BRAID_EDGE_SLOT_H
#define BRAID_EDGE_SLOT_H

#include "segment.h"

// The tag of the path that the next packet to a target goes by; 0: there is none. What has no place
// in an order keeps to the path that its hash says.
static __always_inline __u32 next_tag(struct __sk_buff *skb, __u32 target, enum segment segment)
{
	struct slot_table *table;
	__u64 *cursor;
	__u32 slot;

	if (target >= MAX_TARGETS)
		return 0;
	table = bpf_map_lookup_elem(&tables, &target);
	cursor = bpf_map_lookup_elem(&cursors, &target);
	if (!table || !cursor)
		return 0;
	if (segment == NO_SEGMENT)
		slot = bpf_get_hash_recalc(skb);
	else
		slot = __sync_fetch_and_add(cursor, skb->len) / SLOT_BYTES;
	return table->tags[slot & (SLOTS - 1)];
}

#endif
