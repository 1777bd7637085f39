// The route back to a LAN's client, and whether answers may take the fast path.
#ifndef BRAID_INSIDE_H
#define BRAID_INSIDE_H

#include "egress.h"

// Looks up the route back to the sender of the context's packet, as for a packet that comes in by
// `device`.
static __always_inline long route_back(struct __sk_buff *skb, const struct pkt_ctx *ctx,
				       __u32 device, struct bpf_fib_lookup *route)
{
	__builtin_memset(route, 0, sizeof(*route));
	route->ifindex = device;
	route->l4_protocol = ctx->packet.protocol;
	if (ctx->packet.family == FAMILY_V4) {
		route->family = AF_INET;
		route->ipv4_src = ctx->packet.dest.word[3];
		route->ipv4_dst = ctx->packet.source.word[3];
	} else {
		route->family = AF_INET6;
		__builtin_memcpy(route->ipv6_src, &ctx->packet.dest, 16);
		__builtin_memcpy(route->ipv6_dst, &ctx->packet.source, 16);
	}
	return bpf_fib_lookup(skb, route, sizeof(*route), 0);
}

// Returns 1 if no host behind a LAN device has this source: the route back leads outside, nowhere,
// or to this machine. IPv4's stack lets no other host claim to be this machine, so there it is a
// masqueraded client, such as a container. Before Linux 5.13 `route->ifindex` keeps the
// device asked for where the neighbour is unknown, so an uplink found there must also be found from
// the LAN device.
static __always_inline int is_spoofed(struct __sk_buff *skb, const struct pkt_ctx *ctx, long result,
				      struct bpf_fib_lookup *route)
{
	if (result == BPF_FIB_LKUP_RET_NOT_FWDED)
		return ctx->packet.family != FAMILY_V4;
	if (result == BPF_FIB_LKUP_RET_BLACKHOLE || result == BPF_FIB_LKUP_RET_UNREACHABLE ||
	    result == BPF_FIB_LKUP_RET_PROHIBIT)
		return 1;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH && uplink_of(route->ifindex))
		result = route_back(skb, ctx, skb->ingress_ifindex, route);
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	return route->ifindex == skb->ifindex || uplink_of(route->ifindex);
}

// Learns how answers to the context's packet reach a LAN's client, so that they can take the fast
// path. Only if the route back leads to the device that the packet came from: otherwise the stack
// would see one direction of the connection only. Returns non-zero if the LAN has no such client.
__noinline int learn_inside(struct __sk_buff *skb)
{
	__u32 device = skb->ingress_ifindex;
	struct lan_device *lan = bpf_map_lookup_elem(&lan_devices, &device);
	struct pkt_ctx *ctx = pkt_ctx();
	struct bpf_fib_lookup route;
	struct uplink *uplink;
	long result;

	if (!ctx)
		return 0;
	ctx->flow.inside_ifindex = device;
	ctx->flow.flags = 0;
	uplink = uplink_at(ctx->flow.uplink);
	if (!lan || !uplink)
		return 0;
	// An unknown neighbour is fine: the kernel resolves it when it is needed.
	result = route_back(skb, ctx, uplink->ifindex, &route);
	if ((result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH) ||
	    route.ifindex != device)
		return is_spoofed(skb, ctx, result, &route);
	if (ctx->packet.protocol != IPPROTO_TCP && ctx->packet.protocol != IPPROTO_UDP)
		return 0;
	ctx->flow.inside_mtu = lan->mtu;
	if (route.family == AF_INET) {
		map_v4(&ctx->flow.next_hop, route.ipv4_dst);
		ctx->flow.flags = FLOW_FAST_PATH;
	} else {
		copy_v6(&ctx->flow.next_hop, route.ipv6_dst);
		ctx->flow.flags = FLOW_FAST_PATH | FLOW_NEXT_HOP_V6;
	}
	return 0;
}

// A roaming client comes in by another device: its old route back must not be used.
static __noinline int relearn_inside(struct __sk_buff *skb, const struct packet *packet,
				     struct flow *flow)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || !packet || !flow)
		return -1;
	ctx->packet = *packet;
	ctx->flow.uplink = flow->uplink;
	learn_inside(skb);
	flow->inside_ifindex = ctx->flow.inside_ifindex;
	flow->inside_mtu = ctx->flow.inside_mtu;
	flow->next_hop = ctx->flow.next_hop;
	flow->flags = (flow->flags & ~(FLOW_FAST_PATH | FLOW_NEXT_HOP_V6)) | ctx->flow.flags;
	return 0;
}

#endif
