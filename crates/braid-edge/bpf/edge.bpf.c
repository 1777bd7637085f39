// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The edge's packet path, one object: what the hooks do is in the headers named after them.
#include "join.h"
#include "route_in.h"
#include "route_out.h"
#include "split.h"

// The same for every hook: the machine does what it would do without us.
#define UNLESS_ORPHANED()                                                                          \
	do {                                                                                       \
		if (is_orphaned())                                                                 \
			return leave(REASON_orphaned, TC_ACT_UNSPEC);                              \
	} while (0)

SEC("classifier")
int braid_split(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	UNLESS_ORPHANED();
	return settings ? split(skb, settings) : leave(REASON_not_set_up, TC_ACT_SHOT);
}

SEC("classifier")
int braid_join(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	UNLESS_ORPHANED();
	return settings ? join(skb, settings) : leave(REASON_not_set_up, TC_ACT_SHOT);
}

// Ingress of the resequencer's device: what it hands on.
SEC("classifier")
int braid_ordered(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	UNLESS_ORPHANED();
	return settings ? leave(REASON_resequenced, bpf_redirect(settings->inside, 0))
			: leave(REASON_not_set_up, TC_ACT_SHOT);
}

// The same for layer-3 paths.
SEC("classifier")
int braid_route_out(struct __sk_buff *skb)
{
	UNLESS_ORPHANED();
	return route_out(skb);
}

SEC("classifier")
int braid_route_in(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	UNLESS_ORPHANED();
	return settings ? route_in(skb, settings) : leave(REASON_not_set_up, TC_ACT_SHOT);
}

SEC("classifier")
int braid_route_ord(struct __sk_buff *skb)
{
	UNLESS_ORPHANED();
	return route_ordered(skb);
}

// A packet that is none, of a time that is none: what gives_way() decides, for tests alone.
SEC("classifier")
int braid_fair(struct __sk_buff *skb)
{
	struct {
		__u64 now;
		__u64 rate;
		__u32 flow_index;
		__u32 bytes;
	} step;
	__u32 target = 0;
	struct queue *queue = bpf_map_lookup_elem(&queues, &target);
	struct flow_load *flow;

	if (!queue || bpf_skb_load_bytes(skb, ETH_HLEN, &step, sizeof(step)))
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	flow = bpf_map_lookup_elem(&flows, &step.flow_index);
	if (!flow)
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	if (should_drop(queue, flow, step.flow_index, step.bytes, step.rate, step.now))
		return leave(REASON_fair_drop, TC_ACT_SHOT);
	return leave(REASON_split, TC_ACT_REDIRECT);
}

char _license[] SEC("license") = "GPL";
