// Ingress of the inside device: from hosts to the switch, each packet under the tag of its path.
//
// The table is walked by bytes, a slot for every SLOT_BYTES: full frames take one slot each, small
// packets share one, so the paths carry what their slots say whatever sizes are mixed. A table that
// repeats a tag in adjacent slots sends bursts.
#ifndef BRAID_EDGE_SPLIT_H
#define BRAID_EDGE_SPLIT_H

#include "segment.h"

static __always_inline int split(struct __sk_buff *skb, struct settings *device)
{
	struct slot_table *table;
	struct host host = {};
	__u32 *target, slot, key;
	__u64 *cursor;
	__be16 protocol;
	__u16 tag;
	enum segment segment;

	if (skb->vlan_present)
		return leave(REASON_own_vlan, TC_ACT_SHOT);
	if (bpf_skb_load_bytes(skb, 0, host.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)))
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	if (host.mac[0] & 1)
		return leave(REASON_group, bpf_redirect(device->outside, 0));
	target = bpf_map_lookup_elem(&hosts, &host);
	if (!target || *target >= MAX_TARGETS)
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	key = *target;
	table = bpf_map_lookup_elem(&tables, &key);
	cursor = bpf_map_lookup_elem(&cursors, &key);
	if (!table || !cursor)
		return leave(REASON_single, bpf_redirect(device->outside, 0));

	segment = segment_of(skb, protocol);
	if (segment == NO_SEGMENT)
		slot = bpf_get_hash_recalc(skb);
	else
		slot = __sync_fetch_and_add(cursor, skb->len) / SLOT_BYTES;
	tag = table->tags[slot & (SLOTS - 1)];
	// A table without paths.
	if (!tag)
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	if (skb->gso_segs > 1)
		count(REASON_super_packet);
	account(&sent, tag, skb->len);
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	return leave(segment == NO_SEGMENT ? REASON_sticky : REASON_split,
		     bpf_redirect(device->outside, 0));
}

#endif
