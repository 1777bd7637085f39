// Copies of a flow's first packet: of a raced SYN for each uplink, and a second one for an uplink
// that loses packets. A lost SYN, or its lost answer, costs a second, and a lost question to a name
// server five.
#ifndef BRAID_COPY_H
#define BRAID_COPY_H

#include "egress.h"

// Brings a copy of a translated packet to the outbound hook again, with a mark that names the
// uplink.
static __always_inline void copy_for(struct __sk_buff *skb, __u32 id, __u32 flag)
{
	__u32 mark = skb->mark;

	skb->mark = MARK_COPY | flag | (id & MARK_COPY_UPLINK);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = mark;
}

static __always_inline int is_copy(const struct __sk_buff *skb)
{
	return (skb->mark & ~0xffu) == MARK_COPY;
}

// Sends a second copy of a translated packet. The packet itself follows it.
static __noinline int send_second_copy(struct __sk_buff *skb, __u32 id)
{
	copy_for(skb, id, MARK_SECOND_COPY);
	return 0;
}

// Sends a copy. A raced SYN's is counted as sent already.
static __noinline int send_copy(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 id = skb->mark & MARK_COPY_UPLINK, second = skb->mark & MARK_SECOND_COPY;
	struct uplink *uplink = uplink_at(id);
	struct uplink_counters *counters;

	skb->mark = 0;
	if (!packet || !uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	if (!second) {
		if (uplink->sends_twice)
			send_second_copy(skb, id);
		return leave(REASON_race_copy, redirect_out(packet, uplink));
	}
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (counters) {
		counters->tx_packets++;
		counters->tx_bytes += skb->len - packet->l3;
	}
	return leave(REASON_out_second_copy, redirect_out(packet, uplink));
}

// Returns 1 if a packet goes twice: its loss would be noticed late, and its receiver does not mind
// a second one. That is a SYN, and what a QUIC client or a resolver sends before the first answer.
static __always_inline int goes_twice(const struct __sk_buff *skb, const struct packet *packet,
				      const struct flow *flow, const struct uplink *uplink)
{
	if (!uplink->sends_twice || packet->fragment != WHOLE || skb->gso_size)
		return 0;
	if (packet->protocol == IPPROTO_TCP)
		return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	return packet->protocol == IPPROTO_UDP && flow->state == STATE_NEW &&
	       flow->tx_packets < MAX_FIRST_DATAGRAMS &&
	       (is_quic(packet) || packet->dest_port == bpf_htons(DNS_PORT));
}

#endif
