// Ingress of the outside device: from the switch to hosts, tags removed. Packets whose order
// several paths may have changed go to the resequencer with their tag, which names the path.
// Probes of paths are answered here.
#ifndef BRAID_EDGE_JOIN_H
#define BRAID_EDGE_JOIN_H

#include "merged.h"
#include "path_probe.h"

static __always_inline int join(struct __sk_buff *skb, struct settings *settings)
{
	__u32 tag, packets, *action;
	__be16 protocol;

	if (bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)))
		return leave(REASON_untagged, bpf_redirect(settings->inside, 0));
	if (protocol == bpf_htons(ETH_P_PROBE))
		return leave(REASON_probe, bpf_redirect(settings->outside, 0));
	if (!skb->vlan_present)
		return leave(REASON_untagged, bpf_redirect(settings->inside, 0));
	tag = skb->vlan_tci & (VLANS - 1);
	action = bpf_map_lookup_elem(&tag_actions, &tag);
	if (!action || *action == TAG_DROP)
		return leave(REASON_unknown_tag, TC_ACT_SHOT);
	if (protocol == bpf_htons(ETH_P_SHIM) && is_path_probe(skb))
		return handle_path_probe(skb, settings, tag);
	packets = packets_of(skb, protocol);
	account(&rx_traffic, tag, packets, skb->len);
	note_data(tag, packets);
	// The shim must be removed in any case.
	if (protocol == bpf_htons(ETH_P_SHIM) && !settings->shim)
		return leave(REASON_unexpected_shim, TC_ACT_SHOT);
	if (protocol == bpf_htons(ETH_P_SHIM))
		return leave(REASON_to_lane_resequencer, bpf_redirect(settings->hold, 0));
	if (*action == TAG_RESEQUENCE && segment_of(skb, protocol) == SEQUENCED_SEGMENT)
		return leave(REASON_to_resequencer, bpf_redirect(settings->hold, 0));
	if (bpf_skb_vlan_pop(skb))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	return leave(REASON_forwarded, bpf_redirect(settings->inside, 0));
}

#endif
