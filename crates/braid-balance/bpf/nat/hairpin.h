// Hairpinning: a LAN's client sends to the outer end of a mapping of the same LAN, as peers do that
// know only each other's outer address (RFC 4787 REQ-9, "external source IP address and port"). The
// LAN program passes such a datagram to the outbound one, which opens the sender's mapping if
// needed and sends the datagram back in. Within one LAN device only: traffic from one LAN to
// another is for the firewall's FORWARD rules to decide.
#ifndef BRAID_HAIRPIN_H
#define BRAID_HAIRPIN_H

#include "flow/reply.h"
#include "egress.h"

// Finds the mapping that the packet is for. Returns non-zero if no mapping has a fast path for it;
// packets for this machine's own servers go to the stack.
static __always_inline int find_hairpin(const struct packet *packet, struct reply *reply)
{
	__u32 *id = bpf_map_lookup_elem(&own_addresses, &packet->dest);
	struct uplink *uplink;
	struct tuple reverse;

	if (!id || packet->protocol != IPPROTO_UDP || packet->fragment != WHOLE)
		return -1;
	uplink = uplink_at(*id);
	if (!uplink)
		return -1;
	__builtin_memset(&reverse, 0, sizeof(reverse));
	reverse.local = packet->dest;
	reverse.local_port = packet->dest_port;
	reverse.protocol = packet->protocol;
	if (same_address(&uplink->next_hops[packet->family & 1].address, &packet->dest))
		reverse.realm = uplink->next_hops[packet->family & 1].realm;
	if (lookup_reverse(&reverse, reply))
		return -1;
	return reply->found.flow->flags & FLOW_FAST_PATH ? 0 : -1;
}

// Returns the device of the outbound program if the packet is to be hairpinned, else 0.
static __noinline __u32 hairpin_device(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 zero = 0;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);
	struct reply reply;

	if (!config || !packet || find_hairpin(packet, &reply))
		return 0;
	if (reply.found.flow->inside_ifindex != skb->ifindex) {
		count(REASON_hairpin_apart);
		return 0;
	}
	if (packet->hops <= 1 || wire_size(skb, packet) > reply.found.flow->inside_mtu)
		return 0;
	return config->steer;
}

// Sends a packet that is addressed to the flow's inside already.
static __noinline int redirect_inside(const struct flow *flow)
{
	struct bpf_redir_neigh hop = {};

	if (!flow)
		return DROP;
	if (flow->flags & FLOW_NEXT_HOP_V6)
		next_hop_v6(&hop, &flow->next_hop);
	else
		next_hop_v4(&hop, flow->next_hop.word[3]);
	return bpf_redirect_neigh(flow->inside_ifindex, &hop, sizeof(hop), 0);
}

// Sends the context's packet, whose flow has the context's key, from that flow's outer end to the
// inside of the mapping it is for. NO_FLOW: it is not for the LAN; nothing is done or counted.
__noinline int send_hairpin(struct __sk_buff *skb, __u64 now)
{
	struct rewrite rewrite = {.side = SOURCE};
	struct pkt_ctx *ctx = pkt_ctx();
	struct flow *flow, *target;
	struct reply reply;
	struct packet *packet;

	if (!ctx || find_hairpin(&ctx->packet, &reply))
		return NO_FLOW;
	packet = &ctx->packet;
	flow = find(&ctx->key).flow;
	if (!flow)
		return NO_FLOW;
	target = reply.found.flow;
	if (target->inside_ifindex != flow->inside_ifindex)
		return NO_FLOW;
	skb->mark = 0;
	flow->last_seen = now;
	target->last_seen = now;
	rewrite.from = packet->source;
	rewrite.to = flow->outer;
	rewrite.from_port = packet->source_port;
	rewrite.to_port = flow->outer_port;
	if (rewrite_packet(skb, packet, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	packet->source = flow->outer;
	rewrite.side = DEST;
	rewrite.hop = 1;
	rewrite.from = packet->dest;
	rewrite.to = reply.key.local;
	rewrite.from_port = packet->dest_port;
	rewrite.to_port = reply.key.local_port;
	if (rewrite_packet(skb, packet, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(REASON_out_hairpin, redirect_inside(target));
}

#endif
