// Sending a packet out of an uplink.
#ifndef BRAID_LEAVE_H
#define BRAID_LEAVE_H

#include "flow.h"
#include "nat.h"

#define AF_INET	 2
#define AF_INET6 10

// The answer that every hook gives for what it does not decide: next program, then the stack.
#define PASS (-1) // TC_ACT_UNSPEC
#define DROP 2	  // TC_ACT_SHOT

static __always_inline void next_hop_v6(struct bpf_redir_neigh *next, const struct address *address)
{
	next->nh_family = AF_INET6;
	__builtin_memcpy(next->ipv6_nh, address, 16);
}

static __always_inline void next_hop_v4(struct bpf_redir_neigh *next, __be32 address)
{
	next->nh_family = AF_INET;
	next->ipv4_nh = address;
}

// Redirects a rewritten packet. A device without link-layer addresses needs a plain redirect: the
// kernel takes the Ethernet header off by itself.
static __always_inline int through(const struct packet *packet, const struct uplink *uplink)
{
	const struct exit *exit = &uplink->exits[packet->family & 1];
	const struct address *next = exit->has_gateway ? &exit->gateway : &packet->dest;
	struct bpf_redir_neigh hop = {};

	if (uplink->layer == LAYER_L3)
		return bpf_redirect(uplink->ifindex, 0);
	if (packet->family == FAMILY_V4)
		next_hop_v4(&hop, next->word[3]);
	else
		next_hop_v6(&hop, next);
	return bpf_redirect_neigh(uplink->ifindex, &hop, sizeof(hop), 0);
}

// The same for a packet that came through the stack, and so has a route already (the one into
// braid0), while the uplink's neighbour may be unknown: the kernel keeps such a packet until the
// neighbour answers and then sends it to the neighbour of *that* route, with a wrong MAC address.
// Without a given hop the kernel looks up the route anew by the rewritten addresses, for which
// routing must have a rule "from <uplink's address>". A flow that was answered has a neighbour, so
// only the first packets of each pay for the lookup.
static __always_inline int through_route(const struct uplink *uplink)
{
	if (uplink->layer == LAYER_L3)
		return bpf_redirect(uplink->ifindex, 0);
	return bpf_redirect_neigh(uplink->ifindex, 0, 0, 0);
}

// Bytes of the largest IP packet that this sk_buff becomes on the wire.
static __always_inline __u32 wire_size(const struct __sk_buff *skb, const struct packet *packet)
{
	if (skb->gso_size)
		return packet->l4 - packet->l3 + packet->l4_header + skb->gso_size;
	return skb->len - packet->l3;
}

#endif
