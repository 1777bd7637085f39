// Ingress of a gateway's LAN devices: the fast path for packets of flows that the stack has let
// through and that have been answered since. All other packets pass to the stack, so that its
// FORWARD rules see every new connection.
#ifndef BRAID_LAN_H
#define BRAID_LAN_H

#include "nat/hairpin.h"
#include "flow/replay_buffer.h"
#include "egress.h"
#include "upcall.h"
#include "select/rules.h"
#include "flow/tcp_reset.h"

#define PACKET_HOST 0 // skb->pkt_type: addressed to us, as opposed to bridged or broadcast

// Passes a packet that may open a flow to the stack. A packet whose source is this machine's own
// address on an uplink would leave like an answer of a published port; IPv4's stack drops it,
// IPv6's does not.
static __always_inline int pass_to_stack(struct __sk_buff *skb, const struct packet *packet,
					 enum reason reason)
{
	__u32 device;

	if (bpf_map_lookup_elem(&own_addresses, &packet->source))
		return leave(REASON_lan_spoofed, DROP);
	learn_mac(skb, packet);
	device = hairpin_device(skb, packet);
	if (!device)
		return leave(reason, PASS);
	skb->mark = MARK_HAIRPIN;
	return leave(REASON_lan_hairpin, bpf_redirect(device, 0));
}

static __always_inline int lan(struct __sk_buff *skb, __u64 now)
{
	struct packet packet = {};
	struct rewrite rewrite = {};
	struct uplink *uplink;
	struct found found;
	struct tuple key;
	struct flow *flow;
	int result;

	if (skb->pkt_type != PACKET_HOST || is_tagged(skb))
		return leave(REASON_lan_not_fast, PASS);
	result = parse(skb, ETH_HLEN, &packet);
	if (result == PARSE_NOT_IP)
		return leave(REASON_lan_not_ip, PASS);
	if (result == PARSE_MALFORMED)
		return leave(REASON_lan_malformed, PASS);
	if (packet.fragment != WHOLE ||
	    (packet.protocol != IPPROTO_TCP && packet.protocol != IPPROTO_UDP) ||
	    (packet.tcp_flags & TCP_SYN))
		return pass_to_stack(skb, &packet, REASON_lan_not_fast);

	if (forward_key(&packet, &key))
		return leave(REASON_lan_not_fast, PASS);
	found = find(&key);
	flow = found.flow;
	if (!flow || flow->state == STATE_NEW)
		return pass_to_stack(skb, &packet, REASON_lan_no_flow);
	if (!found.assured && ensure_reverse(&key, flow)) {
		bpf_map_delete_elem(&embryos, &key);
		return leave(REASON_lan_no_flow, PASS);
	}
	if (!(flow->flags & FLOW_FAST_PATH) || flow->inside_ifindex != skb->ifindex)
		return leave(REASON_lan_not_fast, PASS);
	if (packet.protocol == IPPROTO_UDP &&
	    (flow->remote_port != packet.dest_port || !same_address(&flow->remote, &packet.dest)))
		return pass_to_stack(skb, &packet, REASON_lan_not_fast);
	uplink = uplink_at(flow->uplink);
	if (packet.protocol == IPPROTO_TCP && needs_reset(&packet, flow, uplink)) {
		mark_reset(flow, now);
		if (make_reset(skb, &packet))
			return leave(REASON_lan_rewrite_failed, DROP);
		return leave(REASON_lan_reset, back_to_sender(skb));
	}
	if (!uplink || !uplink->ifindex || !uplink->next_hops[packet.family & 1].present)
		return leave(REASON_lan_not_fast, PASS);
	// A mapping that must move does so in the outbound program.
	if (packet.protocol == IPPROTO_UDP && !holds_uplink(&packet, flow, uplink))
		return leave(REASON_lan_not_fast, PASS);
	if (packet.hops <= 1)
		return leave(REASON_lan_ttl, PASS);
	if (wire_size(skb, &packet) > uplink->mtu)
		return leave(REASON_lan_too_big, PASS);

	note_sent(skb, &packet, flow, flow->uplink, now);
	rewrite.from = packet.source;
	rewrite.to = flow->outer;
	rewrite.from_port = key.local_port;
	rewrite.to_port = flow->outer_port;
	rewrite.side = SOURCE;
	rewrite.hop = 1;
	if (packet.protocol == IPPROTO_TCP) {
		advance_tcp(flow, found.assured, packet.tcp_flags, FIN_INSIDE);
		if (!found.assured && can_be_assured(flow))
			promote(&key, flow, now);
	} else {
		if (is_replayable(skb, &packet, &found))
			store_for_replay(skb, &packet, &key, now, &found);
		if (packet.dest_port == bpf_htons(DNS_PORT))
			note_dns_question(skb, &packet, flow, now);
	}
	if (rewrite_packet(skb, &packet, &rewrite))
		return leave(REASON_lan_rewrite_failed, DROP);
	return leave(REASON_lan_fast, redirect_out(&packet, uplink));
}

#endif
