// Sending a packet out of an uplink.
#ifndef BRAID_EGRESS_H
#define BRAID_EGRESS_H

#include "flow/flow.h"
#include "nat/rewrite.h"

#define AF_INET	 2
#define AF_INET6 10

// The verdict for packets that a hook does not decide: next program, then the stack.
#define PASS	(-1) // TC_ACT_UNSPEC
#define NO_FLOW (-2) // of functions that leave the packet to their caller
#define DROP	2    // TC_ACT_SHOT

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
// kernel removes the Ethernet header by itself.
static __always_inline int redirect_out(const struct packet *packet, const struct uplink *uplink)
{
	const struct next_hop *next_hop = &uplink->next_hops[packet->family & 1];
	int direct = !next_hop->has_gateway || is_on_link(packet, next_hop);
	const struct address *next = direct ? &packet->dest : &next_hop->gateway;
	struct bpf_redir_neigh hop = {};

	if (uplink->layer == LAYER_L3)
		return bpf_redirect(uplink->ifindex, 0);
	if (packet->family == FAMILY_V4)
		next_hop_v4(&hop, next->word[3]);
	else
		next_hop_v6(&hop, next);
	return bpf_redirect_neigh(uplink->ifindex, &hop, sizeof(hop), 0);
}

// Redirects a packet by the route to its rewritten addresses, which the kernel looks up. Routing
// must have a rule "from <uplink's address>".
static __always_inline int redirect_by_route(const struct uplink *uplink)
{
	if (uplink->layer == LAYER_L3)
		return bpf_redirect(uplink->ifindex, 0);
	return bpf_redirect_neigh(uplink->ifindex, 0, 0, 0);
}

// Detaches the route of a packet that came through the stack: the one into braid0. While the
// uplink's neighbour is unknown, the kernel queues the packet and finally sends it to the neighbour
// of *that* route, with a wrong MAC address. No helper removes a route, but tunnel metadata takes
// its place and has no neighbour. It takes 80 ns, so busy flows skip it: if their neighbour entry
// expires, the packets in flight are lost and retransmitted after a pause. Eight bytes are the
// structure's first version, which every kernel takes.
static __always_inline void detach_route(struct __sk_buff *skb)
{
	__u64 nothing = 0;

	bpf_skb_set_tunnel_key(skb, (struct bpf_tunnel_key *)&nothing, sizeof(nothing), 0);
}

// Passes to the stack a packet that came in by an uplink and belongs to no flow. Routing would take
// a packet whose source is an address of this machine for a local one, and forward it by the uplink
// that has the address. IPv4's stack drops such packets, IPv6's does not.
static __noinline int pass_unclaimed(const struct packet *packet, __u32 reason)
{
	if (packet && packet->family == FAMILY_V6 &&
	    (packet->dest.word[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000) &&
	    bpf_map_lookup_elem(&own_addresses, &packet->source))
		return leave(REASON_in_spoofed, DROP);
	return leave(reason, PASS);
}

// Passes on a packet that may be for a socket of this machine and cannot be looked up by a program:
// an ICMP error, a fragment, a protocol without ports.
static __noinline int pass_local(const struct packet *packet)
{
	if (!packet || !bpf_map_lookup_elem(&own_addresses, &packet->dest))
		return pass_unclaimed(packet, REASON_in_not_addressed);
	return pass_unclaimed(packet, REASON_in_local);
}

// Returns the size of the largest IP packet that this sk_buff becomes on the wire.
static __always_inline __u32 wire_size(const struct __sk_buff *skb, const struct packet *packet)
{
	if (skb->gso_size)
		return packet->l4 - packet->l3 + packet->l4_header + skb->gso_size;
	return skb->len - packet->l3;
}

#endif
