// Uplink ingress: recognise answers, put the inner address back, deliver.
#ifndef BRAID_INBOUND_H
#define BRAID_INBOUND_H

#include "fragment.h"
#include "icmp.h"
#include "leave.h"
#include "mss.h"
#include "notice.h"
#include "race.h"

static __always_inline int find_answered(struct tuple *reverse, __u64 now, struct answer *answer)
{
	int result = follow(reverse, answer);

	if (!result || reverse->protocol != IPPROTO_UDP)
		return result;
	if (!follow_late(reverse, now, answer))
		return 0;
	// A datagram from port 443 is an answer to QUIC, or to a mapping that serves every remote.
	if (!reverse->far_port)
		return -1;
	forget_remote(reverse);
	if (!follow(reverse, answer))
		return 0;
	return follow_late(reverse, now, answer);
}

static __always_inline int is_syn_ack(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK);
}

// What an answer says about its flow. A late one says nothing about the mapping that is new.
static __always_inline void heed(const struct packet *packet, struct answer *answer, __u32 packets,
				 __u64 now)
{
	struct flow *flow = answer->found.flow;

	if (answer->late) {
		count(REASON_in_late);
		return;
	}
	if (packet->protocol == IPPROTO_TCP) {
		if (flow->state == STATE_NEW) {
			note_answer(flow, is_syn_ack(packet) ? &answer->key.far : NULL, now);
			if ((packet->tcp_flags & TCP_RST) && is_by_way(flow))
				forget_way(&answer->key.far, flow->uplink);
		}
		note_arrival(packet, flow, packets);
		advance_tcp(flow, answer->found.kept, packet->tcp_flags, FIN_OUTSIDE);
		if (flow->seen >= LOSS_BATCH || (flow->seen && flow->state >= STATE_FIN_WAIT))
			learn_losses(&answer->key.far, flow);
		return;
	}
	if (flow->state == STATE_NEW)
		flow->state = STATE_ESTABLISHED;
	// Whatever answers an echo proves nothing that needs to last.
	if (!answer->found.kept && !is_icmp(packet))
		promote(&answer->key, flow, now);
}

// Whether the packet may go straight to the LAN device that the flow came from.
static __always_inline int is_short(const struct __sk_buff *skb, const struct packet *packet,
				    const struct flow *flow)
{
	if (!(flow->flags & FLOW_FAST) || packet->fragment != WHOLE || packet->hops <= 1 ||
	    wire_size(skb, packet) > flow->inside_mtu)
		return 0;
	return packet->protocol == IPPROTO_TCP || (flow->remote_port == packet->source_port &&
						   same_address(&flow->remote, &packet->source));
}

static __noinline int inbound_fragment(struct __sk_buff *skb, const struct packet *packet,
				       __u64 now)
{
	struct rewrite rewrite = {.from = packet->dest, .side = DEST};
	struct fragment_key key;
	struct fragment *first;

	if (!packet)
		return leave(REASON_in_malformed, PASS);
	fragment_key_of(packet, 1, &key);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first) {
		// It may also be the machine's own, so the stack gets it all the same.
		if (!hold_fragment(skb, packet, now, NOTICE_INBOUND))
			count(REASON_in_held);
		return pass_local(packet);
	}
	rewrite.to = first->translated;
	if (apply(skb, packet, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_fragment, PASS);
}

static __always_inline enum socket_kind receiver_of(struct __sk_buff *skb,
						    const struct packet *packet)
{
	struct tuple ends = {
		.near = packet->dest,
		.far = packet->source,
		.near_port = packet->dest_port,
		.far_port = packet->source_port,
	};

	return socket_of(skb, packet, &ends);
}

// Whether a datagram to a mapping that serves every remote is for a socket of the machine's that is
// bound to the uplink's address: the kernel knows nothing of mappings when it gives a socket its
// port. Asked only where the datagram is not from whom the mapping's inside has spoken to last.
static __noinline int is_for_socket(struct __sk_buff *skb, const struct packet *packet,
				    const struct flow *flow)
{
	if (!packet || !flow || packet->protocol != IPPROTO_UDP)
		return 0;
	if (flow->remote_port == packet->source_port &&
	    same_address(&flow->remote, &packet->source))
		return 0;
	return receiver_of(skb, packet) == BOUND_SOCKET;
}

// Says by what reason a packet of no flow is passed on, and counts one to the machine's own address
// that belongs to no socket here either. Most of these are for forwarded and published ports, whose
// answers outbound_unclaimed() counts: without both, such traffic would look as if nobody answered.
// Sockets here, the probes' among them, account for their own packets.
static __noinline int note_unclaimed(struct __sk_buff *skb, const struct packet *packet)
{
	struct uplink_counters *counters;
	__u32 *known, id;

	if (!packet)
		return REASON_in_malformed;
	known = bpf_map_lookup_elem(&own_addresses, &packet->dest);
	if (!known)
		return REASON_in_not_addressed;
	id = *known;
	if ((packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP) ||
	    receiver_of(skb, packet) != NO_SOCKET)
		return REASON_in_local;
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (counters) {
		counters->rx_packets += packets_in(skb);
		counters->rx_bytes += skb->len - packet->l3;
	}
	return REASON_in_no_flow;
}

// A packet that may be an answer. A function of its own, as the others that inbound() calls: the
// stack of 512 bytes is for all that are active at once.
static __noinline int inbound_whole(struct __sk_buff *skb, const struct packet *packet, __u64 now,
				    __u32 mtu)
{
	struct bpf_redir_neigh hop = {};
	struct rewrite rewrite = {.side = DEST};
	struct answer answer;
	struct tuple reverse;
	struct flow *flow;
	__u32 device;
	int result;

	if (!packet)
		return leave(REASON_in_malformed, PASS);
	if (reverse_key(packet, &reverse))
		return pass_unclaimed(packet, REASON_in_protocol);
	result = find_answered(&reverse, now, &answer);
	if (result == OF_RACE) {
		if (hear(packet, &reverse, &answer.key, now) == RACE_GOES_ON)
			result = follow(&reverse, &answer);
		if (result)
			return RACE_ENDS;
	}
	if (result)
		return pass_unclaimed(packet, note_unclaimed(skb, packet));

	flow = answer.found.flow;
	if (is_for_socket(skb, packet, flow))
		return leave(REASON_in_local, PASS);
	note_received(skb, packet, flow, answer.late ? flow->came_from - 1 : flow->uplink, now);
	rewrite.from = packet->dest;
	rewrite.to = answer.key.near;
	rewrite.from_port = reverse.near_port;
	rewrite.to_port = answer.key.near_port;
	rewrite.hop = is_short(skb, packet, flow);
	if (rewrite.hop) {
		if (flow->flags & FLOW_NEXT_HOP_V6)
			next_hop_v6(&hop, &flow->next_hop);
		else
			next_hop_v4(&hop, flow->next_hop.word[3]);
	}
	device = flow->inside_ifindex;
	if (packet->fragment == FIRST_FRAGMENT)
		remember_fragment(packet, 1, &answer.key.near, flow->uplink);
	if (packet->protocol == IPPROTO_UDP && packet->source_port == bpf_htons(DNS_PORT))
		note_names(skb, packet, flow, &answer.key.near, now);
	heed(packet, &answer, packets_in(skb), now);

	if (fit_segments(skb, packet, mtu))
		return leave(REASON_in_rewrite_failed, DROP);
	if (apply(skb, packet, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	if (!rewrite.hop)
		return leave(REASON_in_stack, PASS);
	if (!packet->l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_lan, bpf_redirect_neigh(device, &hop, sizeof(hop), 0));
}

// The answer's address may be another uplink's: on one network, any device answers for all of the
// machine's addresses.
static __always_inline __u8 realm_of(const struct uplink *uplink, const struct packet *packet)
{
	const struct exit *exit = &uplink->exits[packet->family & 1];

	return same_address(&exit->address, &packet->dest) ? exit->realm : 0;
}

static __always_inline int inbound(struct __sk_buff *skb, __u64 now)
{
	struct uplink *uplink = uplink_of(skb->ifindex);
	struct packet packet = {};
	int result;

	if (!uplink)
		return leave(REASON_in_not_uplink, PASS);
	if (is_tagged(skb))
		return leave(REASON_in_vlan, PASS);
	result = parse(skb, uplink->layer == LAYER_L3 ? 0 : ETH_HLEN, &packet);
	if (result == PARSE_NOT_IP)
		return leave(REASON_in_not_ip, PASS);
	if (result == PARSE_MALFORMED)
		return leave(REASON_in_malformed, PASS);
	packet.realm = realm_of(uplink, &packet);
	if (packet.fragment == LATER_FRAGMENT)
		return inbound_fragment(skb, &packet, now);
	if (is_icmp_error(&packet))
		return icmp_error(skb, &packet, now);
	result = inbound_whole(skb, &packet, now, uplink->mtu);
	return result == RACE_ENDS ? race_end(skb, &packet) : result;
}

#endif
