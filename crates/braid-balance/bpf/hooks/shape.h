// Uplink egress: keep the line's own queue short. Only attached while shaping is on.
#ifndef BRAID_SHAPE_H
#define BRAID_SHAPE_H

#include "egress.h"
#include "shape/virtual_queue.h"

// Lets a small packet go first in the device's queue, unless others of its flow wait there: a flow
// whose packets overtake each other takes them for lost.
static __always_inline void choose_class(struct __sk_buff *skb, __u32 uplink, __u32 bytes,
					 __u64 now)
{
	__u32 index = shape_index(uplink, SHAPED_TX);
	struct shape_rate *rate = bpf_map_lookup_elem(&shape_rates, &index);
	struct virtual_queue *queue;
	__u64 *until;
	__u32 place;

	if (!rate || !rate->first_class)
		return;
	place = uplink_index(uplink) * QUEUED_GROUPS +
		(bpf_get_hash_recalc(skb) & (QUEUED_GROUPS - 1));
	queue = bpf_map_lookup_elem(&virtual_queues, &index);
	until = bpf_map_lookup_elem(&queued_until, &place);
	if (!queue || !until)
		return;
	if (bytes <= SHAPE_SMALL_BYTES && *until <= now)
		skb->priority = rate->first_class;
	else
		*until = queue->empty_at;
}

static __always_inline int shape(struct __sk_buff *skb, __u64 now)
{
	__u32 number = uplink_number_of(skb->ifindex);
	struct uplink *uplink = number ? uplink_at(number - 1) : NULL;
	__u32 bytes = skb->wire_len;

	if (!uplink)
		return PASS;
	// The kernel counts every packet that this sk_buff becomes, with its link-layer header.
	if (uplink->layer == LAYER_L2)
		bytes -= packets_in(skb) * ETH_HLEN;
	if (is_over_rate(skb, shape_index(number - 1, SHAPED_TX), bytes, now))
		return leave(REASON_out_over_rate, DROP);
	choose_class(skb, number - 1, bytes, now);
	return PASS;
}

#endif
