// braid0 egress: choose an uplink, store the flow, translate, send. Every packet that routing sends
// into braid0 ends here; nobody listens at the veth's other end.
#ifndef BRAID_OUTBOUND_H
#define BRAID_OUTBOUND_H

#include "select/connlimit.h"
#include "packet/fragment.h"
#include "nat/hairpin.h"
#include "nat/icmp_error.h"
#include "flow/inside.h"
#include "flow/quic.h"
#include "flow/replay_buffer.h"
#include "egress.h"
#include "packet/mss.h"
#include "upcall.h"
#include "path_cache/race.h"
#include "select/rules.h"
#include "flow/tcp_reset.h"

// Returns 0 for addresses that are valid on one link only, or that have more than one receiver.
static __always_inline int is_unicast(const struct packet *packet)
{
	if (packet->family == FAMILY_V4) {
		__u32 address = bpf_ntohl(packet->dest.word[3]);

		return address < 0xe0000000 && (address >> 24) != 0 && (address >> 24) != 127 &&
		       (address >> 16) != 0xa9fe;
	}
	if ((packet->dest.word[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000))
		return 0;
	if ((packet->dest.word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return 0;
	return packet->dest.word[0] | packet->dest.word[1];
}

static __always_inline int is_midstream(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP &&
	       (packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN;
}

// Copies what a moved flow keeps. Its first packet may be a replayed one, which the daemon has
// sent, so its ingress device is not the inside's.
static __always_inline void inherit_moved(const struct __sk_buff *skb, struct flow *flow,
					  const struct flow *left)
{
	flow->came_from = left->uplink + 1;
	flow->choice = left->flags & FLOW_REASSIGN ? CHOICE_FAILBACK : CHOICE_MOVED;
	if (skb->ingress_ifindex || !left->inside_ifindex)
		return;
	flow->inside_ifindex = left->inside_ifindex;
	flow->inside_mtu = left->inside_mtu;
	flow->next_hop = left->next_hop;
	flow->flags = left->flags & (FLOW_FAST_PATH | FLOW_NEXT_HOP_V6);
}

// Takes the uplink if the context's packet is for a neighbour on its own link: no other uplink
// reaches that host. Returns non-zero if it is not.
__noinline int take_neighbour(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	struct next_hop *next_hop;

	if (!ctx || !uplink || !uplink->ifindex)
		return -1;
	next_hop = &uplink->next_hops[ctx->packet.family & 1];
	if (!next_hop->present || !is_on_link(&ctx->packet, next_hop))
		return -1;
	ctx->uplink = id;
	ctx->choice = CHOICE_ON_LINK;
	return 0;
}

// Looks for the uplink that has the receiver of the context's packet on its own link. The uplink
// need not take new flows: a user opens the modem's page because the line is dead. Returns non-zero
// if there is none.
__noinline int choose_neighbour(void)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return -1;
	ctx->sticky = 0;
	ctx->candidates = 0;
	ctx->class = 0;
	ctx->rule = 0;
	ctx->choice = CHOICE_NEXT_SLOT;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (!take_neighbour(id))
			return 0;
	}
	return -1;
}

// Opens the context's flow: uplink, port, both entries. Returns the reason to count.
__noinline int open_flow(struct __sk_buff *skb, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_counters *counters;
	struct uplink *uplink;
	struct flow *flow;
	int midstream;

	if (!ctx)
		return REASON_out_table_failed;
	if (bpf_map_lookup_elem(&own_addresses, &ctx->packet.source))
		return REASON_out_own_address;
	if (!ctx->is_moving && is_over_limit(&ctx->key.local))
		return REASON_client_over_limit;
	midstream = is_midstream(&ctx->packet);
	if (choose_neighbour()) {
		// A moved flow keeps its class. The daemon may have sent this packet, and rules
		// would match the daemon's socket.
		if (ctx->is_moving) {
			ctx->class = ctx->moved_flow.class;
			ctx->rule = ctx->moved_flow.rule;
		} else {
			classify(skb, now);
		}
		if (choose_uplink(midstream, now))
			return ctx->class ? REASON_class_blocked : REASON_no_uplink;
		if (ctx->candidates)
			choose_path(now);
	}
	flow = &ctx->flow;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->uplink = ctx->uplink;
	if (learn_inside(skb))
		return REASON_lan_spoofed;
	if (ctx->candidates && !start_race(skb, now))
		return REASON_race_begun;
	if (ctx->sticky)
		note_sticky(now);
	uplink = uplink_at(ctx->uplink);
	if (!uplink)
		return REASON_no_uplink;

	flow->outer = uplink->next_hops[ctx->packet.family & 1].address;
	flow->realm = uplink->next_hops[ctx->packet.family & 1].realm;
	reverse_of(&ctx->key, flow, &ctx->reverse);
	if (claim_port(skb))
		return has_ports(ctx->key.protocol) ? REASON_nat_ports_exhausted
						    : REASON_nat_address_taken;

	flow->outer_port = ctx->reverse.local_port;
	flow->created = now;
	flow->last_seen = now;
	flow->uplink = ctx->uplink;
	flow->choice = ctx->choice;
	flow->class = ctx->class;
	flow->rule = ctx->rule;
	flow->state = STATE_NEW;
	flow->inside_next = ctx->packet.sequence;
	// No DNS question has been asked yet (upcall.h).
	if (ctx->key.protocol == IPPROTO_UDP)
		flow->inside_next = flow->inside_ack = flow->outside_next = flow->lost = 0;
	if (ctx->is_moving)
		inherit_moved(skb, flow, &ctx->moved_flow);

	// Another CPU may have opened the same flow meanwhile (two datagrams of one socket). The
	// first to insert wins, here and in the table it may have been promoted to.
	if (bpf_map_update_elem(&embryos, &ctx->key, flow, BPF_NOEXIST)) {
		bpf_map_delete_elem(&embryos_reverse, &ctx->reverse);
		return bpf_map_lookup_elem(&embryos, &ctx->key) ? REASON_out_new
								: REASON_out_table_failed;
	}
	if (bpf_map_lookup_elem(&flows, &ctx->key)) {
		bpf_map_delete_elem(&embryos, &ctx->key);
		bpf_map_delete_elem(&embryos_reverse, &ctx->reverse);
		return REASON_out_new;
	}
	counters = bpf_map_lookup_elem(&traffic, &ctx->uplink);
	if (counters)
		counters->flows_opened++;
	count_opened(ctx->uplink, now);
	return midstream ? REASON_tcp_midstream : REASON_out_new;
}

// Returns 1 if a SYN opens a new connection: the old one was reset, or its client has closed it,
// and the port is reused.
static __always_inline int is_over(const struct packet *packet, const struct flow *flow)
{
	return packet->protocol == IPPROTO_TCP &&
	       (flow->state == STATE_CLOSING || flow->state == STATE_RESET ||
		(flow->fins & FIN_INSIDE));
}

// Returns 1 if a SYN is sent again because it was not answered on the uplink chosen from the path
// cache. It is raced then.
static __always_inline int is_syn_retry(const struct packet *packet, const struct flow *flow)
{
	return packet->protocol == IPPROTO_TCP && flow->state == STATE_NEW &&
	       is_by_path_cache(flow);
}

// Returns 1 if the packet uses the flow as it is. Packets that can begin anew leave an uplink that
// is down or has another address by now. That is all but TCP after its SYN, which the remote knows
// by that address only.
static __always_inline int stays_on_flow(const struct packet *packet, const struct flow *flow,
					 const struct uplink *uplink)
{
	if (packet->protocol == IPPROTO_TCP && (packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return 1;
	return !is_over(packet, flow) && !is_syn_retry(packet, flow) &&
	       holds_uplink(packet, flow, uplink);
}

// Saves the flow in the context before it moves. Replies to a datagram may be in flight to its old
// address; the stack would not accept them there.
static __always_inline void start_move(struct pkt_ctx *ctx, const struct flow *flow, __u64 now)
{
	struct late_reply moved = {};

	ctx->moved_flow = *flow;
	ctx->is_moving = 1;
	if (ctx->key.protocol != IPPROTO_UDP)
		return;
	moved.key = ctx->key;
	moved.until = now + LATE_REPLY_SECONDS * 1000000000ull;
	reverse_of(&ctx->key, &ctx->moved_flow, &ctx->reverse);
	bpf_map_update_elem(&late_replies, &ctx->reverse, &moved, BPF_ANY);
}

// Deletes the flow that the context's packet cannot use: one that is over, that moves or that has
// lost its port. Returns non-zero if it can be used after all, as another CPU has opened it anew.
__noinline int evict_flow(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct found found;

	if (!ctx)
		return 0;
	found = find(&ctx->key);
	if (!found.flow)
		return 0;
	if (stays_on_flow(&ctx->packet, found.flow, uplink_at(found.flow->uplink))) {
		if (found.assured || !ensure_reverse(&ctx->key, found.flow))
			return 1;
		bpf_map_delete_elem(&embryos, &ctx->key);
		return 0;
	}
	if (is_over(&ctx->packet, found.flow)) {
		count(REASON_flow_replaced);
	} else if (is_syn_retry(&ctx->packet, found.flow)) {
		count(REASON_path_silent);
		forget_path(&ctx->key.remote, found.flow->uplink, 0);
		ctx->retried = found.flow->uplink + 1;
	} else {
		count(REASON_flow_moved);
		start_move(ctx, found.flow, now);
	}
	delete_flow(&ctx->key, found.flow, found.assured);
	return 0;
}

// Finds the flow of a packet, or opens it, and its uplink.
static __always_inline int find_or_open(struct __sk_buff *skb, const struct packet *packet,
					struct tuple *key, __u64 now, struct found *found,
					struct uplink **uplink)
{
	struct pkt_ctx *ctx;
	int reason, known = 0;

	*found = find(key);
	if (found->flow) {
		*uplink = uplink_at(found->flow->uplink);
		if (stays_on_flow(packet, found->flow, *uplink) &&
		    (found->assured || !ensure_reverse(key, found->flow)))
			return REASON_out_flow;
		found->flow = NULL;
		known = 1;
	}
	ctx = pkt_ctx();
	if (!ctx)
		return REASON_out_table_failed;
	ctx->packet = *packet;
	ctx->key = *key;
	ctx->is_moving = 0;
	ctx->retried = 0;
	if (packet->protocol == IPPROTO_TCP && bpf_map_lookup_elem(&races, key)) {
		reason = handle_race_packet(known, now);
		if (reason != RACE_NONE)
			return reason;
	}
	if (known && evict_flow(now)) {
		reason = REASON_out_flow;
	} else {
		// The verifier must see the same state on every way to this place: some kernels go
		// through all of open_flow() for each.
		*uplink = NULL;
		found->flow = NULL;
		found->assured = 0;
		asm volatile("" ::: "memory");
		*key = ctx->key;
		reason = open_flow(skb, now);
	}
	if (reason != REASON_out_flow && reason != REASON_out_new && reason != REASON_tcp_midstream)
		return reason;
	*found = find(key);
	if (!found->flow)
		return REASON_out_table_failed;
	*uplink = uplink_at(found->flow->uplink);
	return reason;
}

// Handles a packet that belongs to no flow. Its source may be an uplink's own address already:
// connection tracking has put it there, because the packet answers one that came to a forwarded or
// published port. It leaves by that uplink unchanged; any change would break the connection.
static __noinline int outbound_unclaimed(struct __sk_buff *skb, const struct packet *packet,
					 __u64 now, __u32 otherwise)
{
	struct uplink_counters *counters;
	struct uplink *uplink;
	__u32 *known, id;

	if (!packet)
		return leave(REASON_out_malformed, DROP);
	known = bpf_map_lookup_elem(&own_addresses, &packet->source);
	if (!known) {
		if (otherwise == REASON_out_protocol || otherwise == REASON_nat_address_taken)
			upcall_refused(skb, packet, now);
		return leave(otherwise, DROP);
	}
	id = *known;
	uplink = uplink_at(id);
	if (!uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (counters) {
		counters->tx_packets += packets_in(skb);
		counters->tx_bytes += skb->len - packet->l3;
	}
	return leave(REASON_out_own_address, redirect_by_route(uplink));
}

static __noinline int outbound_fragment(struct __sk_buff *skb, const struct packet *packet,
					__u64 now)
{
	struct rewrite rewrite = {.from = packet->source, .side = SOURCE};
	struct uplink_counters *counters;
	struct fragment_key key;
	struct fragment *first;
	struct uplink *uplink;
	__u32 id;

	if (!packet)
		return leave(REASON_out_malformed, DROP);
	fragment_key_of(packet, 0, &key);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first) {
		if (bpf_map_lookup_elem(&own_addresses, &packet->source) ||
		    hold_fragment(skb, packet, now, 0))
			return outbound_unclaimed(skb, packet, now, REASON_out_fragment_orphan);
		return leave(REASON_out_held, DROP);
	}
	id = first->uplink;
	rewrite.to = first->translated;
	uplink = uplink_at(id);
	if (!uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	if (rewrite_packet(skb, packet, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (counters) {
		counters->tx_packets++;
		counters->tx_bytes += skb->len - packet->l3;
	}
	return leave(REASON_out_fragment, redirect_by_route(uplink));
}

// Puts the arguments of send_hairpin() into the context, and calls it.
static __always_inline int try_hairpin(struct __sk_buff *skb, const struct packet *packet,
				       const struct tuple *key, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return NO_FLOW;
	ctx->packet = *packet;
	ctx->key = *key;
	return send_hairpin(skb, now);
}

// Translates a packet for its uplink. Returns non-zero if that fails.
static __noinline int translate(struct __sk_buff *skb, const struct packet *packet,
				const struct rewrite *rewrite, const struct uplink *uplink)
{
	if (!packet || !rewrite || !uplink || clamp_segments(skb, packet, uplink->mtu))
		return -1;
	return rewrite_packet(skb, packet, rewrite);
}

static __noinline int send(const struct packet *packet, const struct uplink *uplink, __u32 reason)
{
	if (!packet || !uplink)
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(reason, redirect_out(packet, uplink));
}

// Returns 1 if the packet was forwarded from an uplink. Its sender is a host on that uplink's
// segment and no client of ours: nothing is translated for it.
static __noinline int is_from_uplink(struct __sk_buff *skb)
{
	return skb->ingress_ifindex && uplink_of(skb->ingress_ifindex);
}

static __always_inline int outbound(struct __sk_buff *skb, __u64 now)
{
	struct packet packet = {};
	struct rewrite rewrite = {};
	struct uplink *uplink = NULL;
	struct found found;
	struct tuple key;
	int reason = parse(skb, ETH_HLEN, &packet), twice;
	__u32 id;

	if (reason == PARSE_NOT_IP)
		return leave(REASON_out_not_ip, DROP);
	if (reason == PARSE_MALFORMED)
		return leave(REASON_out_malformed, DROP);
	if (!is_unicast(&packet))
		return leave(REASON_out_not_unicast, DROP);
	if (is_from_uplink(skb))
		return outbound_unclaimed(skb, &packet, now, REASON_out_from_uplink);
	if (packet.fragment == LATER_FRAGMENT)
		return outbound_fragment(skb, &packet, now);
	if (is_icmp_error(&packet)) {
		reason = outbound_error(skb, &packet);
		return reason == NO_FLOW
			       ? outbound_unclaimed(skb, &packet, now, REASON_out_icmp_orphan)
			       : reason;
	}
	if (is_copy(skb))
		return send_copy(skb, &packet);
	if (forward_key(&packet, &key))
		return outbound_unclaimed(skb, &packet, now, REASON_out_protocol);

	reason = find_or_open(skb, &packet, &key, now, &found, &uplink);
	if (reason == REASON_race_begun || reason == REASON_race_repeated) {
		// The daemon repeats the SYN if the race's preferred uplink dies before it answers.
		store_for_replay(skb, &packet, &key, now, &found);
		return send_copies(skb, reason);
	}
	if (reason == REASON_race_none_left)
		return refuse_inside(skb, &packet);
	if (!found.flow)
		return outbound_unclaimed(skb, &packet, now, reason);
	if (packet.protocol == IPPROTO_TCP && needs_reset(&packet, found.flow, uplink)) {
		mark_reset(found.flow, now);
		if (make_reset(skb, &packet))
			return leave(REASON_out_rewrite_failed, DROP);
		return leave(REASON_out_reset, redirect_to_stack(skb));
	}
	if (!uplink || !uplink->ifindex || !uplink->next_hops[packet.family & 1].present)
		return leave(REASON_uplink_gone, DROP);

	// A packet without an ingress device may be a LAN client's, replayed by the daemon.
	if (reason == REASON_out_flow && skb->ingress_ifindex &&
	    found.flow->inside_ifindex != skb->ingress_ifindex)
		relearn_inside(skb, &packet, found.flow);
	if (skb->mark == MARK_HAIRPIN && packet.protocol == IPPROTO_UDP) {
		int turned = try_hairpin(skb, &packet, &key, now);

		if (turned != NO_FLOW)
			return turned;
	}
	if (is_replayable(skb, &packet, &found))
		store_for_replay(skb, &packet, &key, now, &found);
	if (packet.protocol == IPPROTO_UDP) {
		found.flow->remote = packet.dest;
		found.flow->remote_port = packet.dest_port;
		if (packet.dest_port == bpf_htons(DNS_PORT))
			note_dns_question(skb, &packet, found.flow, now);
		else if (is_quic(&packet) && found.flow->state == STATE_NEW)
			note_initial(skb, &packet, found.flow, now);
		else if (is_quic(&packet))
			note_spin(skb, &packet, found.flow, now);
	}
	twice = goes_twice(skb, &packet, found.flow, uplink);
	if (twice || !found.assured || now - found.flow->last_seen > NEIGHBOUR_TRUST_NS)
		detach_route(skb);
	// Once it is promoted, another flow may have the embryo's place.
	id = found.flow->uplink;
	note_sent(skb, &packet, found.flow, id, now);
	rewrite.from = packet.source;
	rewrite.to = found.flow->outer;
	rewrite.from_port = key.local_port;
	rewrite.to_port = found.flow->outer_port;
	rewrite.side = SOURCE;
	if (packet.fragment == FIRST_FRAGMENT)
		remember_fragment(&packet, 0, &found.flow->outer, id);
	if (packet.protocol == IPPROTO_TCP) {
		advance_tcp(found.flow, found.assured, packet.tcp_flags, FIN_INSIDE);
		if (!found.assured && can_be_assured(found.flow))
			promote(&key, found.flow, now);
	}
	if (translate(skb, &packet, &rewrite, uplink))
		return leave(REASON_out_rewrite_failed, DROP);
	if (twice)
		send_second_copy(skb, id);
	return send(&packet, uplink, reason);
}

#endif
