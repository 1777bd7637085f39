// Shims with sequence numbers for packets that have none that an edge can read (UDP, QUIC,
// fragments), so that they can be split and put in order like TCP. Only if the remote edge asks for
// them, and the frame stays within the outside device's MTU.
#ifndef BRAID_EDGE_SHIM_H
#define BRAID_EDGE_SHIM_H

#include "slot.h"

static __always_inline int can_add_shim(struct __sk_buff *skb, __be16 protocol,
					struct slot_table *table, struct settings *settings)
{
	if (!table->shim || skb->gso_segs > 1)
		return 0;
	if (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	// bpf_check_mtu() came with Linux 5.12, so the limit is a setting.
	if (skb->len + SHIM_BYTES > settings->max_frame_bytes) {
		count(REASON_no_shim_room);
		return 0;
	}
	return 1;
}

// Nonzero: the packet is damaged and must be dropped.
static __always_inline int add_shim(struct __sk_buff *skb, __be16 protocol, __u32 target,
				    __u32 epoch)
{
	__u32 lane = bpf_get_hash_recalc(skb) & (LANES - 1);
	__u32 key = target * LANES + lane;
	struct lane *counter = bpf_map_lookup_elem(&lanes, &key);
	__u32 number;
	struct {
		__be16 protocol;
		struct shim shim;
	} words = {.protocol = bpf_htons(ETH_P_SHIM)};

	if (!counter)
		return -1;
	bpf_spin_lock(&counter->lock);
	number = counter->next++;
	bpf_spin_unlock(&counter->lock);
	words.shim.epoch = epoch;
	words.shim.lane = lane;
	words.shim.protocol = protocol;
	words.shim.number = bpf_htonl(number);
	// Behind the Ethernet header, whose EtherType then announces the shim.
	if (bpf_skb_adjust_room(skb, SHIM_BYTES, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &words.protocol, sizeof(words.protocol), 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &words.shim, sizeof(words.shim), 0);
}

#endif
