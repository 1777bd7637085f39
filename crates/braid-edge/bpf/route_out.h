// Ingress of the inside device with layer-3 paths: packets from hosts get the addresses of their
// path. Packets to nobody behind another edge are left to the machine.
#ifndef BRAID_EDGE_ROUTE_OUT_H
#define BRAID_EDGE_ROUTE_OUT_H

#include "slot.h"
#include "l3_path.h"
#include "merged.h"

static __always_inline int route_out(struct __sk_buff *skb)
{
	struct bpf_fib_lookup next_hop = {};
	struct address source, dest;
	struct ip_packet ip = {};
	struct slot_table *table;
	enum segment segment;
	struct l3_path *path;
	__be16 protocol;
	__u32 target, tag, packets, queue_us;
	int found;

	if (skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    parse_ip(skb, protocol, ETH_HLEN, &ip))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	target = prefix_of(ROLE_TARGET, &ip.dest);
	table = table_of(target);
	if (!table)
		return leave(REASON_no_l3_path, TC_ACT_OK);
	segment = segment_of(skb, protocol);
	tag = next_tag(skb, table, target, segment == NO_SEGMENT ? FLOW_SLOT : NEXT_SLOT,
		       &queue_us);
	path = l3_path_of(tag);
	if (!tag || !path || !has_prefix(&ip.source, &path->inner_local, &path->local_host_mask))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	translate(&source, &ip.source, &path->local, &path->local_host_mask);
	translate(&dest, &ip.dest, &path->remote, &path->remote_host_mask);
	found = find_next_hop(skb, &ip, &source, &dest, &next_hop);
	// The stack tells the sender, if it routes the packet as it is.
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return leave(REASON_too_long, TC_ACT_OK);
	if (found)
		return leave(REASON_no_route, TC_ACT_SHOT);
	packets = packets_of(skb, protocol);
	if (packets > 1)
		count(REASON_gso_packet);
	account(&tx_traffic, tag, packets, skb->len);
	if (rewrite_addresses(skb, &ip, &source, &dest))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	return leave(segment == NO_SEGMENT ? REASON_sticky : REASON_split, redirect_to(&next_hop));
}

#endif
