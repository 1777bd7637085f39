// Uplink egress: keep the line's own queue short. Only attached while shaping is on.
#ifndef BRAID_SHAPE_H
#define BRAID_SHAPE_H

#include "egress.h"
#include "shape/virtual_queue.h"

#define ETHERNET_HEADER 14

static __always_inline int shape(struct __sk_buff *skb, __u64 now)
{
	__u32 number = uplink_number_of(skb->ifindex);
	struct uplink *uplink = number ? uplink_at(number - 1) : NULL;
	__u32 bytes = skb->wire_len;

	if (!uplink)
		return PASS;
	// The kernel counts every packet that this sk_buff becomes, with its link-layer header.
	if (uplink->layer == LAYER_L2)
		bytes -= packets_in(skb) * ETHERNET_HEADER;
	if (is_over_rate(skb, shape_index(number - 1, SHAPED_TX), bytes, now))
		return leave(REASON_out_over_rate, DROP);
	return PASS;
}

#endif
