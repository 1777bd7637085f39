// Ingress of the inside device: packets from hosts to the switch are tagged with their path.
#ifndef BRAID_EDGE_SPLIT_H
#define BRAID_EDGE_SPLIT_H

#include "fair_drop.h"
#include "merged.h"
#include "shim.h"

// Gives the edge's process a copy of a packet that it may have to send again. A copy that is lost
// on the way repairs nothing.
static __always_inline void copy_to_process(struct __sk_buff *skb, struct settings *settings,
					    __u32 tag)
{
	__u32 *copied = bpf_map_lookup_elem(&copied_tags, &tag);

	if (copied && *copied && !bpf_clone_redirect(skb, settings->hold, 0))
		count(REASON_copied);
}

static __always_inline int split(struct __sk_buff *skb, struct settings *settings)
{
	struct slot_table *table;
	struct host host = {};
	__u32 *target, tag, packets, seq = 0, queue_us = 0;
	__be16 protocol;
	enum segment segment;
	struct lane *lane = 0;

	if (skb->vlan_present)
		return leave(REASON_host_vlan, TC_ACT_SHOT);
	if (bpf_skb_load_bytes(skb, 0, host.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)))
		return leave(REASON_single_path, bpf_redirect(settings->outside, 0));
	// The remote edge would trust it.
	if (protocol == bpf_htons(ETH_P_SHIM))
		return leave(REASON_host_shim, TC_ACT_SHOT);
	if (host.mac[0] & 1)
		return leave(REASON_multicast, bpf_redirect(settings->outside, 0));
	target = bpf_map_lookup_elem(&hosts, &host);
	table = target ? table_of(*target) : 0;
	if (!table)
		return leave(REASON_single_path, bpf_redirect(settings->outside, 0));
	segment = numbered_segment_of(skb, protocol, &seq);
	if (fair_drop(skb, table, *target, segment))
		return leave(REASON_fair_drop, TC_ACT_SHOT);
	packets = packets_of(skb, protocol);
	if (segment == NO_SEGMENT && table->shim)
		lane = lane_of(skb, *target);
	if (lane && !is_numbered(skb, protocol, packets, table, *target, settings, lane))
		lane = 0;
	if (lane)
		tag = next_lane_tag(skb, table, *target, lane, &queue_us);
	else
		tag = next_tag(skb, table, *target, segment == NO_SEGMENT ? FLOW_SLOT : NEXT_SLOT,
			       &queue_us);
	// A table without paths.
	if (!tag)
		return leave(REASON_single_path, bpf_redirect(settings->outside, 0));
	// Small segments may be sent again without a loss: keepalives, probes of a window.
	if (table->path_count && segment == SEQUENCED_SEGMENT && skb->len >= SLOT_BYTES / 2)
		account_loss(bpf_get_hash_recalc(skb), seq, tag, queue_us, skb->len,
			     bpf_ktime_get_ns());
	if (packets > 1)
		count(REASON_gso_packet);
	if (lane && add_shim(skb, protocol, lane, settings->epoch))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	account(&tx_traffic, tag, packets, skb->len);
	if (segment == NO_SEGMENT && !lane)
		account(&kept_traffic, tag, packets, skb->len);
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	if (lane || segment == SEQUENCED_SEGMENT)
		copy_to_process(skb, settings, tag);
	if (lane)
		return leave(REASON_shim_added, bpf_redirect(settings->outside, 0));
	return leave(segment == NO_SEGMENT ? REASON_sticky : REASON_split,
		     bpf_redirect(settings->outside, 0));
}

#endif
