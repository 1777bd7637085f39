// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The edge's packet path, one object: what the hooks do is in the headers named after them.
#include "join.h"
#include "route_in.h"
#include "route_out.h"
#include "split.h"

// The same for every hook: the machine does what it would do without us.
#define UNLESS_LEFT_BEHIND()                                                                       \
	do {                                                                                       \
		if (is_left_behind())                                                              \
			return leave(REASON_left_behind, TC_ACT_UNSPEC);                           \
	} while (0)

SEC("classifier")
int braid_split(struct __sk_buff *skb)
{
	struct settings *device = devices();

	UNLESS_LEFT_BEHIND();
	return device ? split(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

SEC("classifier")
int braid_join(struct __sk_buff *skb)
{
	struct settings *device = devices();

	UNLESS_LEFT_BEHIND();
	return device ? join(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

// Ingress of the resequencer's device: what it hands on.
SEC("classifier")
int braid_ordered(struct __sk_buff *skb)
{
	struct settings *device = devices();

	UNLESS_LEFT_BEHIND();
	return device ? leave(REASON_ordered, bpf_redirect(device->inside, 0))
		      : leave(REASON_unset, TC_ACT_SHOT);
}

// The same for layer-3 paths.
SEC("classifier")
int braid_route_out(struct __sk_buff *skb)
{
	UNLESS_LEFT_BEHIND();
	return route_out(skb);
}

SEC("classifier")
int braid_route_in(struct __sk_buff *skb)
{
	struct settings *device = devices();

	UNLESS_LEFT_BEHIND();
	return device ? route_in(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

SEC("classifier")
int braid_route_ord(struct __sk_buff *skb)
{
	UNLESS_LEFT_BEHIND();
	return route_ordered(skb);
}

// A packet that is none, of a time that is none: what gives_way() decides, for tests alone.
SEC("classifier")
int braid_fair(struct __sk_buff *skb)
{
	struct {
		__u64 now;
		__u64 rate;
		__u32 who;
		__u32 bytes;
	} step;
	__u32 target = 0;
	struct queue *queue = bpf_map_lookup_elem(&queues, &target);
	struct carried *flow;

	if (!queue || bpf_skb_load_bytes(skb, ETH_HLEN, &step, sizeof(step)))
		return leave(REASON_unset, TC_ACT_SHOT);
	flow = bpf_map_lookup_elem(&flows, &step.who);
	if (!flow)
		return leave(REASON_unset, TC_ACT_SHOT);
	if (gives_way(queue, flow, step.who, step.bytes, step.rate, step.now))
		return leave(REASON_gave_way, TC_ACT_SHOT);
	return leave(REASON_split, TC_ACT_REDIRECT);
}

char _license[] SEC("license") = "GPL";
