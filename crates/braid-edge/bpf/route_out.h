// Ingress of the inside device where paths are of layer 3: from hosts, each packet by the addresses
// of its path. What is for nobody behind another edge is the machine's own business, as without us.
#ifndef BRAID_EDGE_ROUTE_OUT_H
#define BRAID_EDGE_ROUTE_OUT_H

#include "slot.h"
#include "way.h"

static __always_inline int route_out(struct __sk_buff *skb)
{
	struct bpf_fib_lookup exit = {};
	struct address source, dest;
	struct ends ends = {};
	struct slot_table *table;
	enum segment segment;
	struct way *way;
	__be16 protocol;
	__u32 target, tag;
	int found;

	if (skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    read_ends(skb, protocol, ETH_HLEN, &ends))
		return leave(REASON_elsewhere, TC_ACT_OK);
	target = prefix_of(ROLE_TARGET, &ends.dest);
	table = table_of(target);
	if (!table)
		return leave(REASON_elsewhere, TC_ACT_OK);
	segment = segment_of(skb, protocol);
	tag = next_tag(skb, table, target, segment == NO_SEGMENT ? STAY : WALK);
	way = way_of(tag);
	if (!tag || !way || !is_in(&ends.source, &way->inner_near, &way->near_kept))
		return leave(REASON_elsewhere, TC_ACT_OK);
	moved(&source, &ends.source, &way->near, &way->near_kept);
	moved(&dest, &ends.dest, &way->far, &way->far_kept);
	found = find_exit(skb, &ends, &source, &dest, &exit);
	// The stack says so to the sender, if it routes the packet as it is.
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return leave(REASON_too_long, TC_ACT_OK);
	if (found)
		return leave(REASON_no_route, TC_ACT_SHOT);
	if (skb->gso_segs > 1)
		count(REASON_super_packet);
	account(&sent, tag, skb->len);
	if (put_ends(skb, &ends, &source, &dest))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	return leave(segment == NO_SEGMENT ? REASON_sticky : REASON_split, send_by(&exit));
}

#endif
