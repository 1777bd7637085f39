// Ingress of the inside device: from hosts to the switch, each packet under the tag of its path.
#ifndef BRAID_EDGE_SPLIT_H
#define BRAID_EDGE_SPLIT_H

#include "fair.h"
#include "number.h"

static __always_inline int split(struct __sk_buff *skb, struct settings *device)
{
	struct slot_table *table;
	struct host host = {};
	__u32 *target, tag;
	__be16 protocol;
	enum segment segment;
	int numbered;

	if (skb->vlan_present)
		return leave(REASON_own_vlan, TC_ACT_SHOT);
	if (bpf_skb_load_bytes(skb, 0, host.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)))
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	// The far edge would believe it.
	if (protocol == bpf_htons(ETH_P_SHIM))
		return leave(REASON_own_number, TC_ACT_SHOT);
	if (host.mac[0] & 1)
		return leave(REASON_group, bpf_redirect(device->outside, 0));
	target = bpf_map_lookup_elem(&hosts, &host);
	table = target ? table_of(*target) : 0;
	if (!table)
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	segment = segment_of(skb, protocol);
	if (is_unfair(skb, table, *target, segment))
		return leave(REASON_gave_way, TC_ACT_SHOT);
	numbered = segment == NO_SEGMENT && can_number(skb, protocol, table, device);
	tag = next_tag(skb, table, *target, segment == NO_SEGMENT && !numbered ? STAY : WALK);
	// A table without paths.
	if (!tag)
		return leave(REASON_single, bpf_redirect(device->outside, 0));
	if (skb->gso_segs > 1)
		count(REASON_super_packet);
	if (numbered && put_number(skb, protocol, *target, device->epoch))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	account(&sent, tag, skb->len);
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	if (numbered)
		return leave(REASON_numbered, bpf_redirect(device->outside, 0));
	return leave(segment == NO_SEGMENT ? REASON_sticky : REASON_split,
		     bpf_redirect(device->outside, 0));
}

#endif
