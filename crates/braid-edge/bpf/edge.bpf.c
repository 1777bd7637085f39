// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The edge's datapath in one object; each hook is implemented in the header named after it.
#include "join.h"
#include "route_in.h"
#include "route_out.h"
#include "split.h"

// Every hook lets all packets pass once the edge's process is gone.
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

// Ingress of the resequencer's device: packets that it delivers.
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

// For tests alone: takes a packet for a probe by the path that its priority names, since a
// test cannot give it a tag.
SEC("classifier")
int braid_probed(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	if (!settings || !is_path_probe(skb))
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	return handle_path_probe(skb, settings, skb->priority);
}

// For tests alone: takes a packet for one that came with the tag that its priority names.
SEC("classifier")
int braid_tagged(struct __sk_buff *skb)
{
	struct settings *settings = active_settings();

	if (!settings || bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), skb->priority))
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	return join(skb, settings);
}

// For tests alone: accounts a packet to the first target, and calls should_drop(), with the time,
// rate, flow and size in a made-up packet.
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
	struct slot_table *table = table_of(target);
	struct flow_load *flow;
	__u64 measured;

	if (!queue || !table || bpf_skb_load_bytes(skb, ETH_HLEN, &step, sizeof(step)))
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	flow = bpf_map_lookup_elem(&flows, &step.flow_index);
	if (!flow)
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	add_load(&queue->sent, step.bytes, step.now);
	measured = own_queue(queue, table, step.rate, step.now);
	if (should_drop(queue, flow, step.flow_index, step.bytes, step.rate, measured, step.now))
		return leave(REASON_fair_drop, TC_ACT_SHOT);
	return leave(REASON_split, TC_ACT_REDIRECT);
}

// For tests alone: sends a segment to the first target, with the time, flow, number and size in a
// made-up packet.
SEC("classifier")
int braid_arrival(struct __sk_buff *skb)
{
	struct {
		__u64 now;
		__u32 flow;
		__u32 seq;
		__u32 bytes;
		__u32 zero;
	} step;
	__u32 target = 0, tag, queue_us = 0;
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	struct slot_table *table = table_of(target);

	if (!cursor || !table || bpf_skb_load_bytes(skb, ETH_HLEN, &step, sizeof(step)))
		return leave(REASON_not_set_up, TC_ACT_SHOT);
	tag = earliest_arrival(cursor, table, step.bytes, step.now, &queue_us);
	account_loss(step.flow, step.seq, tag, queue_us, step.bytes, step.now);
	account(&tx_traffic, tag, 1, step.bytes);
	return leave(REASON_split, TC_ACT_REDIRECT);
}

char _license[] SEC("license") = "GPL";
