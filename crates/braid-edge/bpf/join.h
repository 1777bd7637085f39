// Ingress of the outside device: from the switch to hosts, tags taken off. What has an order that
// its paths may have disturbed goes by way of the resequencer, with its tag: that names the path.
#ifndef BRAID_EDGE_JOIN_H
#define BRAID_EDGE_JOIN_H

#include "segment.h"

static __always_inline int join(struct __sk_buff *skb, struct settings *device)
{
	__u32 tag, *what;
	__be16 protocol;

	if (bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)))
		return leave(REASON_untagged, bpf_redirect(device->inside, 0));
	if (protocol == bpf_htons(ETH_P_PROBE))
		return leave(REASON_probe, bpf_redirect(device->outside, 0));
	if (!skb->vlan_present)
		return leave(REASON_untagged, bpf_redirect(device->inside, 0));
	tag = skb->vlan_tci & (VLANS - 1);
	what = bpf_map_lookup_elem(&inward, &tag);
	if (!what || *what == TAG_UNKNOWN)
		return leave(REASON_unknown_tag, TC_ACT_SHOT);
	account(&came, tag, skb->len);
	// Whatever its order is worth, the number has to come off.
	if (protocol == bpf_htons(ETH_P_SHIM) && !device->numbers)
		return leave(REASON_unasked_number, TC_ACT_SHOT);
	if (protocol == bpf_htons(ETH_P_SHIM))
		return leave(REASON_to_lane, bpf_redirect(device->hold, 0));
	if (*what == TAG_IN_ORDER && segment_of(skb, protocol) == SEQUENCED_SEGMENT)
		return leave(REASON_to_order, bpf_redirect(device->hold, 0));
	if (bpf_skb_vlan_pop(skb))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	return leave(REASON_as_came, bpf_redirect(device->inside, 0));
}

#endif
