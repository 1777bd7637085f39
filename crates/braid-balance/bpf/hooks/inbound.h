// Uplink ingress: recognise replies, restore the inner address, deliver.
#ifndef BRAID_INBOUND_H
#define BRAID_INBOUND_H

#include "packet/fragment.h"
#include "flow/quic.h"
#include "nat/icmp_error.h"
#include "egress.h"
#include "packet/mss.h"
#include "upcall.h"
#include "path_cache/race.h"
#include "shape/virtual_queue.h"

static __always_inline int lookup_reply(struct tuple *reverse, __u64 now, struct reply *reply)
{
	int result = lookup_reverse(reverse, reply);

	if (!result || reverse->protocol != IPPROTO_UDP)
		return result;
	if (!lookup_late_reply(reverse, now, reply))
		return 0;
	// A datagram from port 443 is a reply to QUIC, or to a mapping that serves every remote.
	if (!reverse->remote_port)
		return -1;
	forget_remote(reverse);
	if (!lookup_reverse(reverse, reply))
		return 0;
	return lookup_late_reply(reverse, now, reply);
}

static __always_inline int is_syn_ack(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK);
}

// Returns 1 if the outside sends nothing after this packet.
static __always_inline int is_last(const struct flow *flow, const struct packet *packet)
{
	return flow->state >= STATE_CLOSING || (packet->tcp_flags & (TCP_FIN | TCP_RST));
}

// Updates the flow from its reply. A late reply says nothing about the new mapping.
static __always_inline void track_reply(const struct __sk_buff *skb, const struct packet *packet,
					struct reply *reply, __u64 now)
{
	struct flow *flow = reply->found.flow;

	if (reply->late) {
		count(REASON_in_late_reply);
		return;
	}
	if (packet->protocol == IPPROTO_TCP) {
		if (!is_in_window(packet, flow)) {
			count(REASON_in_out_of_window);
			return;
		}
		if (flow->state == STATE_NEW) {
			note_answer(flow, is_syn_ack(packet) ? &reply->key.remote : NULL, now);
			if ((packet->tcp_flags & TCP_RST) && is_by_path_cache(flow))
				forget_path(&reply->key.remote, flow->uplink, 0);
		}
		note_arrival(packet, flow, packets_in(skb));
		note_echo(skb, packet, flow, reply->silence, now);
		// Before the flow ends: it is busy no longer then.
		if (flow->seen >= LOSS_BATCH_PACKETS || (flow->seen && is_last(flow, packet)))
			update_losses(&reply->key.remote, flow);
		advance_tcp(flow, reply->found.assured, packet->tcp_flags, FIN_OUTSIDE);
		return;
	}
	if (flow->state == STATE_NEW) {
		flow->state = STATE_ESTABLISHED;
		if (packet->source_port == bpf_htons(QUIC_PORT))
			note_initial_answer(&reply->key.remote, flow, now);
	} else if (packet->source_port == bpf_htons(QUIC_PORT) && packet->protocol == IPPROTO_UDP) {
		note_spin_answer(skb, packet, flow, reply->silence, now);
	}
	// An answered echo does not promote a flow.
	if (!reply->found.assured && !is_icmp(packet))
		promote(&reply->key, flow, now);
}

// Returns 1 if the packet may go straight to the LAN device that the flow came from.
static __always_inline int takes_fast_path(const struct __sk_buff *skb, const struct packet *packet,
					   const struct flow *flow)
{
	if (!(flow->flags & FLOW_FAST_PATH) || packet->fragment != WHOLE || packet->hops <= 1 ||
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
		// It may also be for this machine, so the stack gets it all the same.
		if (!hold_fragment(skb, packet, now, UPCALL_INBOUND))
			count(REASON_in_held);
		return pass_local(packet);
	}
	rewrite.to = first->translated;
	if (rewrite_packet(skb, packet, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_fragment, PASS);
}

static __always_inline enum socket_kind receiver_of(struct __sk_buff *skb,
						    const struct packet *packet)
{
	struct tuple ends = {
		.local = packet->dest,
		.remote = packet->source,
		.local_port = packet->dest_port,
		.remote_port = packet->source_port,
	};

	return socket_of(skb, packet, &ends);
}

// Returns 1 if a datagram to a mapping that serves every remote is for a socket of this machine
// that is bound to the uplink's address: the kernel knows nothing of mappings when it gives a
// socket its port. Datagrams from the remote that the mapping's inside last sent to are never for a
// socket.
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

// Returns the reason for passing on a packet of no flow. Counts it on the uplink if it is for this
// machine's own address and no socket here: most of these are for forwarded and published ports,
// whose answers outbound_unclaimed() counts. Without both counts such an uplink would look as if
// nobody answered. Sockets here, the probes' among them, account for their own packets.
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
		counters->rx_bytes += bytes_in(skb, packet);
	}
	return REASON_in_no_flow;
}

// Handles a packet that may be a reply. A function of its own, like the others that inbound()
// calls: all active functions share the stack of 512 bytes.
static __noinline int inbound_whole(struct __sk_buff *skb, const struct packet *packet, __u64 now,
				    __u32 mtu)
{
	struct bpf_redir_neigh hop = {};
	struct rewrite rewrite = {.side = DEST};
	struct reply reply;
	struct tuple reverse;
	struct flow *flow;
	__u32 device;
	int result;

	if (!packet)
		return leave(REASON_in_malformed, PASS);
	if (reverse_key(packet, &reverse))
		return pass_unclaimed(packet, REASON_in_protocol);
	result = lookup_reply(&reverse, now, &reply);
	if (result == REVERSE_OF_RACE) {
		if (handle_race_reply(packet, &reverse, &reply.key, now) == RACE_PASS)
			result = lookup_reverse(&reverse, &reply);
		if (result)
			return RACE_REJECTS;
	}
	if (result)
		return pass_unclaimed(packet, note_unclaimed(skb, packet));

	flow = reply.found.flow;
	if (is_for_socket(skb, packet, flow))
		return leave(REASON_in_local, PASS);
	reply.silence = note_received(skb, packet, flow,
				      reply.late ? flow->came_from - 1 : flow->uplink, now);
	rewrite.from = packet->dest;
	rewrite.to = reply.key.local;
	rewrite.from_port = reverse.local_port;
	rewrite.to_port = reply.key.local_port;
	rewrite.hop = takes_fast_path(skb, packet, flow);
	if (rewrite.hop) {
		if (flow->flags & FLOW_NEXT_HOP_V6)
			next_hop_v6(&hop, &flow->next_hop);
		else
			next_hop_v4(&hop, flow->next_hop.word[3]);
	}
	device = flow->inside_ifindex;
	if (packet->fragment == FIRST_FRAGMENT)
		remember_fragment(packet, 1, &reply.key.local, flow->uplink);
	if (packet->protocol == IPPROTO_UDP && packet->source_port == bpf_htons(DNS_PORT))
		snoop_dns_answer(skb, packet, flow, &reply.key.local, now);
	track_reply(skb, packet, &reply, now);

	if (clamp_segments(skb, packet, mtu))
		return leave(REASON_in_rewrite_failed, DROP);
	if (rewrite_packet(skb, packet, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	if (!rewrite.hop)
		return leave(REASON_in_stack, PASS);
	if (!packet->l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_lan, bpf_redirect_neigh(device, &hop, sizeof(hop), 0));
}

// Returns the realm of the reply's address. The address may be another uplink's: on one network,
// any device answers for all of this machine's addresses.
static __always_inline __u8 realm_of(const struct uplink *uplink, const struct packet *packet)
{
	const struct next_hop *next_hop = &uplink->next_hops[packet->family & 1];

	return same_address(&next_hop->address, &packet->dest) ? next_hop->realm : 0;
}

static __always_inline int inbound(struct __sk_buff *skb, __u64 now)
{
	__u32 number = uplink_number_of(skb->ifindex);
	struct uplink *uplink = number ? uplink_at(number - 1) : NULL;
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
	if (is_over_rate(skb, shape_index(number - 1, SHAPED_RX), bytes_in(skb, &packet), now))
		return leave(REASON_in_over_rate, DROP);
	packet.realm = realm_of(uplink, &packet);
	if (packet.fragment == LATER_FRAGMENT)
		return inbound_fragment(skb, &packet, now);
	if (is_icmp_error(&packet))
		return icmp_error(skb, &packet, now);
	result = inbound_whole(skb, &packet, now, uplink->mtu);
	return result == RACE_REJECTS ? reject_race_reply(skb, &packet) : result;
}

#endif
