// The race: a SYN goes out by several uplinks at once, and the first whose SYN/ACK returns carries
// the connection ([ofrp] section 3.2; the pending state is that of its section 3.4). No flow exists
// before that: the attempt that inserts it wins, and the table lets only one do so.
#ifndef BRAID_RACE_H
#define BRAID_RACE_H

#include "copy.h"
#include "flow/reply.h"
#include "flow/inside.h"
#include "packet/mss.h"
#include "flow/tcp_reset.h"

#define RACE_NONE    (-1) // of handle_race_packet(): the packet belongs to no race
#define RACE_REJECTS (-3) // of functions that leave the packet to reject_race_reply()

// Outcome for a packet that arrives for a race.
enum race_result { RACE_PASS, RACE_DROP, RACE_RESET };

// Fills the reverse key that the context's connection has on an uplink, all but the port.
static __always_inline int attempt_reverse(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	struct next_hop *next_hop;

	if (!ctx || !uplink)
		return -1;
	next_hop = &uplink->next_hops[is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6];
	ctx->race.flow.outer = next_hop->address;
	ctx->race.flow.realm = next_hop->realm;
	reverse_of(&ctx->key, &ctx->race.flow, &ctx->reverse);
	return 0;
}

// Releases the port that the context's race has on an uplink.
__noinline int release_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || id >= MAX_UPLINKS || !ctx->race.attempts[uplink_index(id)] ||
	    attempt_reverse(id))
		return 0;
	ctx->reverse.local_port = ctx->race.ports[uplink_index(id)];
	release_port(ctx);
	return 0;
}

// Ends the race of the context's connection.
__noinline int end_race(void)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct race *race;

	if (!ctx)
		return 0;
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (!race)
		return 0;
	ctx->race = *race;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		release_attempt(id);
	bpf_map_delete_elem(&races, &ctx->key);
	return 0;
}

// Claims a port on an uplink for the context's race.
__noinline int add_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || id >= MAX_UPLINKS || attempt_reverse(id))
		return -1;
	ctx->uplink = id;
	if (take_port(1))
		return -1;
	ctx->race.ports[uplink_index(id)] = ctx->reverse.local_port;
	ctx->race.attempts[uplink_index(id)] = ATTEMPT_SENT;
	ctx->attempts |= 1u << id;
	return 0;
}

// Loads the reverse key of an attempt into the context.
__noinline int load_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || id >= MAX_UPLINKS || attempt_reverse(id))
		return -1;
	ctx->reverse.local_port = ctx->race.ports[uplink_index(id)];
	return 0;
}

// Takes an attempt out of the context's race.
__noinline int withdraw_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || id >= MAX_UPLINKS)
		return 0;
	release_attempt(id);
	ctx->race.attempts[uplink_index(id)] = 0;
	ctx->attempts &= ~(1u << id);
	return 0;
}

// Starts a race for the context's packet, a SYN. Returns 0, or -1 if fewer than two uplinks have a
// port for it; then the uplink that the slot table chose takes it.
__noinline int start_race(struct __sk_buff *skb, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 chosen;
	struct flow *flow;

	if (!ctx)
		return -1;
	chosen = ctx->uplink;
	__builtin_memset(&ctx->race, 0, sizeof(ctx->race));
	flow = &ctx->race.flow;
	flow->inside_ifindex = ctx->flow.inside_ifindex;
	flow->inside_mtu = ctx->flow.inside_mtu;
	flow->next_hop = ctx->flow.next_hop;
	flow->flags = ctx->flow.flags;
	flow->created = now;
	flow->last_seen = now;
	flow->choice = CHOICE_RACED;
	flow->class = ctx->class;
	flow->rule = ctx->rule;
	flow->state = STATE_NEW;
	flow->inside_next = ctx->packet.sequence + 1;
	ctx->attempts = 0;
	ctx->race.last_syn = now;
	ctx->race.sequence = ctx->packet.sequence;
	ctx->race.preferred = ctx->preferred;
	// Before its outer ends: a sweep at this moment removes ends that belong to nobody.
	if (bpf_map_update_elem(&races, &ctx->key, &ctx->race, BPF_NOEXIST)) {
		ctx->candidates = 0;
		return -1;
	}
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (ctx->candidates & (1u << id))
			add_attempt(id);
	}
	// Some kernels verify a function that takes the packet once for each attempt (nat/ports.h),
	// so this is a loop of its own. An attempt whose port conflicts with a socket gets no other
	// port.
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if ((ctx->attempts & (1u << id)) && !load_attempt(id) && socket_in_the_way(skb))
			withdraw_attempt(id);
	}
	ctx->candidates = ctx->attempts;
	if (has_several(ctx->attempts) &&
	    !bpf_map_update_elem(&races, &ctx->key, &ctx->race, BPF_ANY))
		return 0;
	bpf_map_delete_elem(&races, &ctx->key);
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		release_attempt(id);
	ctx->uplink = chosen;
	ctx->candidates = 0;
	return -1;
}

// Sends the SYN by this attempt's uplink once more, unless the attempt was refused or the uplink is
// down. The context holds a copy of the race.
__noinline int retry_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);

	if (!ctx || !uplink || id >= MAX_UPLINKS || !ctx->race.attempts[uplink_index(id)])
		return 0;
	if (ctx->race.attempts[uplink_index(id)] == ATTEMPT_REFUSED) {
		ctx->refused = 1;
		return 0;
	}
	if (!takes_flows(uplink, is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6))
		return 0;
	ctx->race.attempts[uplink_index(id)] = ATTEMPT_SENT;
	ctx->candidates |= 1u << id;
	return 0;
}

// Notes the preferred uplink of the context's race as silent if the race has waited for it in vain.
static __always_inline void note_unanswered(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 id;

	if (!ctx || !(ctx->race.preferred & PREFERRED_AWAITED))
		return;
	id = (ctx->race.preferred & PREFERRED_CANDIDATE) - 1;
	if (id < MAX_UPLINKS && ctx->race.attempts[uplink_index(id)] == ATTEMPT_SENT)
		store_stand_in(id, RTT_UNANSWERED_US, now);
}

// Handles a packet from inside whose connection is being raced. If it `has_flow`, that flow is over
// or moves, and the race ends.
__noinline int handle_race_packet(__u32 has_flow, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct race *race;

	if (!ctx)
		return RACE_NONE;
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (!race)
		return RACE_NONE;
	if ((ctx->packet.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		if (!has_flow && race->last_syn + RACE_TIMEOUT_SECONDS * NS_PER_SECOND > now)
			return REASON_race_undecided;
		end_race();
		return RACE_NONE;
	}
	if (has_flow || race->sequence != ctx->packet.sequence) {
		end_race();
		return RACE_NONE;
	}
	ctx->race = *race;
	note_unanswered(now);
	ctx->candidates = 0;
	ctx->refused = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		retry_attempt(id);
	if (!ctx->candidates) {
		end_race();
		return ctx->refused ? REASON_race_none_left : RACE_NONE;
	}
	ctx->race.flow.tx_packets++; // so that its RTT is not used
	ctx->race.preferred = 0;
	ctx->race.last_syn = now;
	bpf_map_update_elem(&races, &ctx->key, &ctx->race, BPF_EXIST);
	return REASON_race_repeated;
}

// Translates the SYN, which may be another uplink's copy already, for an uplink, and counts it as
// sent there.
__noinline int address_copy(struct __sk_buff *skb, __u32 id)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &id);
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	struct rewrite rewrite = {.side = SOURCE};
	__u32 headers, most;

	if (!ctx || !uplink || id >= MAX_UPLINKS)
		return -1;
	rewrite.from = ctx->packet.source;
	rewrite.from_port = ctx->copy_port;
	rewrite.to = uplink->next_hops[ctx->packet.family & 1].address;
	rewrite.to_port = ctx->race.ports[uplink_index(id)];
	if (rewrite_packet(skb, &ctx->packet, &rewrite))
		return -1;
	ctx->packet.source = rewrite.to;
	ctx->copy_port = rewrite.to_port;
	headers = ctx->packet.l4 - ctx->packet.l3 + sizeof(struct tcphdr);
	most = uplink->mtu > headers ? uplink->mtu - headers : ctx->mss;
	if (most > ctx->mss)
		most = ctx->mss;
	if (ctx->mss && write_mss(skb, ctx->packet.l4, ctx->mss_offset, most))
		return -1;
	if (counters) {
		counters->tx_packets++;
		counters->tx_bytes += skb->len - ctx->packet.l3;
		if (ctx->race.flow.tx_packets)
			counters->syn_repeats++;
		else
			counters->syns++;
	}
	return 0;
}

// Sends a copy of the SYN by the uplink that it was last translated for, and translates it for the
// next one.
__noinline int send_copy_then_address(struct __sk_buff *skb, __u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || id >= MAX_UPLINKS || !ctx->race.attempts[uplink_index(id)] || ctx->copy_failed)
		return 0;
	if (ctx->addressed)
		copy_for(skb, ctx->addressed - 1, 0);
	ctx->copy_failed = !!address_copy(skb, id);
	ctx->addressed = id + 1;
	return 0;
}

// Sends the context's SYN by all candidates: copies by all but the last, the packet itself by that
// one, since dropping a SYN makes its sender's window shrink.
__noinline int send_copies(struct __sk_buff *skb, __u32 reason)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink;
	struct race *race;

	if (!ctx)
		return leave(REASON_out_table_failed, DROP);
	ctx->mss_offset = find_mss(skb, ctx->packet.l4, ctx->packet.l4_header);
	ctx->mss = read_mss(skb, ctx->mss_offset);
	ctx->copy_port = ctx->packet.source_port;
	ctx->addressed = 0;
	ctx->copy_failed = 0;
	detach_route(skb);
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (ctx->candidates & (1u << id))
			send_copy_then_address(skb, id);
	}
	if (ctx->copy_failed)
		return leave(REASON_out_rewrite_failed, DROP);
	skb->mark = 0;
	uplink = uplink_at(ctx->addressed - 1);
	if (!uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (race && !race->flow.tx_packets) {
		race->flow.tx_packets = 1;
		race->flow.tx_bytes = skb->len - ctx->packet.l3;
	}
	if (uplink->sends_twice)
		send_second_copy(skb, ctx->addressed - 1);
	return leave(reason, redirect_out(&ctx->packet, uplink));
}

// Answers a SYN that every uplink has refused. The inside was not told before because the refusals
// came at the same moment, or because some uplinks died.
static __noinline int refuse_inside(struct __sk_buff *skb, const struct packet *packet)
{
	if (!packet || make_reset(skb, packet))
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(REASON_race_none_left, redirect_to_stack(skb));
}

// Compares the context's reverse key with an attempt's. Notes the uplink if they match, else
// whether that attempt may still be answered.
__noinline int inspect_attempt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	struct next_hop *next_hop;

	if (!ctx || !uplink || id >= MAX_UPLINKS || !ctx->race.attempts[uplink_index(id)])
		return 0;
	next_hop = &uplink->next_hops[is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6];
	if (ctx->race.ports[uplink_index(id)] == ctx->reverse.local_port &&
	    next_hop->realm == ctx->reverse.realm &&
	    same_address(&next_hop->address, &ctx->reverse.local))
		ctx->uplink = id;
	else if (ctx->race.attempts[uplink_index(id)] == ATTEMPT_ANSWERED)
		ctx->answered = 1;
	else if (ctx->race.attempts[uplink_index(id)] == ATTEMPT_SENT && uplink->ifindex &&
		 uplink->accepts_new && next_hop->present)
		ctx->usable |= 1u << id;
	return 0;
}

// Returns the uplink whose answer the race waits for although others came first, + 1: the best
// predicted one, or the one that the client has been given for the same site meanwhile.
static __always_inline __u32 preferred_of(struct pkt_ctx *ctx, __u64 now)
{
	struct sticky *entry;

	set_site(ctx, &ctx->key.remote, ctx->race.flow.class, now);
	if (ctx->race.preferred)
		return ctx->race.preferred & PREFERRED_CANDIDATE;
	if (!ctx->sticky || ctx->race.flow.tx_packets > 1)
		return 0;
	entry = lookup_sticky(ctx, now);
	return entry ? entry->uplink + 1 : 0;
}

// Turns the context's race into a flow by the uplink `ctx->uplink`. Returns 0, or -1 if the
// connection has a flow already.
__noinline int win_race(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_counters *counters;

	if (!ctx || ctx->uplink >= MAX_UPLINKS || attempt_reverse(ctx->uplink))
		return -1;
	ctx->flow = ctx->race.flow;
	ctx->flow.uplink = ctx->uplink;
	ctx->flow.outer_port = ctx->race.ports[uplink_index(ctx->uplink)];
	ctx->flow.last_seen = now;
	if (bpf_map_update_elem(&embryos, &ctx->key, &ctx->flow, BPF_NOEXIST))
		return -1;
	if (bpf_map_lookup_elem(&flows, &ctx->key)) {
		bpf_map_delete_elem(&embryos, &ctx->key);
		return -1;
	}
	counters = bpf_map_lookup_elem(&traffic, &ctx->uplink);
	if (counters)
		counters->flows_opened++;
	if (ctx->race.preferred != (PREFERRED_AWAITED | (ctx->uplink + 1)))
		count_opened(ctx->uplink, now);
	count(REASON_race_won);
	return 0;
}

// Reads the stickiness and the method of the class of the context's race.
__noinline int read_class(void)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct slot_bank *table;
	__u32 bank;

	if (!ctx)
		return 0;
	table = walked_bank(ctx->race.flow.class * FAMILIES +
				    (is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6),
			    &bank);
	ctx->sticky = sticky_seconds(ctx, table);
	ctx->lb_method = table ? table->lb_method : 0;
	return 0;
}

// Finds the uplink whose attempt the context's packet answers, and the state of the race. Returns
// 0, or -1 if it answers no attempt.
__noinline int find_attempt(void)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct race *race;

	if (!ctx)
		return -1;
	ctx->uplink = MAX_UPLINKS;
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (!race)
		return -1;
	ctx->race = *race;
	ctx->usable = 0;
	ctx->answered = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		inspect_attempt(id);
	ctx->decided = find(&ctx->key).flow != NULL;
	return ctx->uplink < MAX_UPLINKS ? 0 : -1;
}

// Makes the context's race wait for another uplink than the one that answered first, if the flow is
// expected to do better there; from then on the flow counts as opened on that uplink.
//
// The reason: connections opened at the same time do not know of each other before the first
// answer, and the nearest uplink answers all of them first. So this applies only while flows were
// opened on the first uplink a moment ago and others are being raced to the same network. Sticky
// flows stay together.
__noinline int prefer_unanswered(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_forecast *forecast;
	struct path_entry *entry;
	struct race *race;
	__u32 id, waited;

	if (!ctx || ctx->lb_method != LB_FASTEST || ctx->sticky || ctx->decided ||
	    ctx->race.preferred || ctx->race.flow.tx_packets > 1)
		return 0;
	id = ctx->uplink;
	forecast = bpf_map_lookup_elem(&forecasts, &id);
	if (!forecast || !forecast->opened)
		return 0;
	waited = (now - ctx->race.flow.created) / 1000;
	path_key_of(&ctx->key.remote, &ctx->prefix);
	entry = bpf_map_lookup_elem(&path_cache, &ctx->prefix);
	if (!entry || entry->races < 2)
		return 0;
	ctx->best_default = id;
	ctx->best_default_time = lossless_score(forecast, waited);
	for (__u32 other = 0; other < MAX_UPLINKS; other++)
		score_unanswered(other, waited, now);
	if (ctx->best_default == id)
		return 0;
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (!race)
		return 0;
	ctx->race.preferred = race->preferred = PREFERRED_AWAITED | (ctx->best_default + 1);
	count_opened(ctx->best_default, now);
	return 0;
}

// Handles a reply to an attempt that has not won: `flags`, `ack` and `size` are the packet's.
__noinline int handle_race_answer(__u32 flags, __u32 ack, __u32 size, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_counters *counters;
	struct race *race;
	__u32 id, before, preferred;

	if (!ctx)
		return RACE_DROP;
	id = ctx->uplink;
	race = bpf_map_lookup_elem(&races, &ctx->key);
	if (!race || id >= MAX_UPLINKS)
		return RACE_DROP;
	counters = bpf_map_lookup_elem(&traffic, &id);
	before = race->attempts[uplink_index(id)];
	// Both ends open at once (RFC 5382 REQ-2a): the remote's SYN chooses this uplink.
	if ((flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN && !ctx->decided && !win_race(now))
		return RACE_PASS;
	if (ack != race->sequence + 1 || !(flags & TCP_ACK) || !(flags & (TCP_SYN | TCP_RST))) {
		// This does not answer the SYN. A segment of an earlier connection is answered with
		// a reset.
		return ctx->decided || (flags & TCP_RST) ? RACE_DROP : RACE_RESET;
	}
	if (flags & TCP_RST) {
		race->attempts[uplink_index(id)] = ATTEMPT_REFUSED;
		if (!ctx->decided && !ctx->usable && !ctx->answered && !win_race(now))
			return RACE_PASS;
	} else {
		race->attempts[uplink_index(id)] = ATTEMPT_ANSWERED;
		preferred = preferred_of(ctx, now);
		// An answer that comes again was reset before, so its server has no connection.
		if (!ctx->decided && before != ATTEMPT_ANSWERED &&
		    (!preferred || preferred - 1 == id ||
		     !(ctx->usable & (1u << ((preferred - 1) & (MAX_UPLINKS - 1))))) &&
		    !win_race(now))
			return RACE_PASS;
		if (before == ATTEMPT_SENT && ctx->race.flow.tx_packets == 1) {
			__u32 rtt = (now - ctx->race.flow.created) / 1000;

			if (counters)
				note_handshake(counters, &ctx->key.remote, id, rtt, now);
		}
	}
	// A packet that passes is counted as every other reply is.
	if (counters) {
		counters->rx_packets++;
		counters->rx_bytes += size;
		counters->syn_answers += before == ATTEMPT_SENT;
	}
	return flags & TCP_RST ? RACE_DROP : RACE_RESET;
}

// Loads the race of a reply, and the reverse key that the reply came to, into the context.
static __always_inline void load_race(struct pkt_ctx *ctx, const struct tuple *reverse,
				      const struct tuple *key)
{
	ctx->reverse = *reverse;
	ctx->key = *key;
	ctx->sticky = 0;
}

// Handles a packet for an attempt of a race. A result other than RACE_PASS is also left in the
// context.
static __always_inline int handle_race_reply(const struct packet *packet,
					     const struct tuple *reverse, const struct tuple *key,
					     __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return RACE_DROP;
	ctx->packet = *packet;
	load_race(ctx, reverse, key);
	if (find_attempt())
		return ctx->race_result = RACE_DROP;
	if ((packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK) &&
	    packet->ack == ctx->race.sequence + 1) {
		read_class();
		prefer_unanswered(now);
	}
	ctx->race_result = handle_race_answer(
		packet->tcp_flags, packet->ack,
		packet->l4 - packet->l3 + packet->l4_header + packet->payload, now);
	if (ctx->race_result == RACE_PASS && ctx->sticky)
		note_sticky(now);
	return ctx->race_result;
}

// Handles an ICMP error about a SYN of a race, with that SYN's sequence number: it refuses as a
// reset does.
static __always_inline int handle_race_error(__u32 sequence, __u32 size,
					     const struct tuple *reverse, const struct tuple *key,
					     __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return RACE_DROP;
	load_race(ctx, reverse, key);
	if (find_attempt())
		return RACE_DROP;
	return handle_race_answer(TCP_RST | TCP_ACK, sequence + 1, size, now);
}

// Ends the processing of a packet that the race rejects: a late SYN/ACK becomes the reset that
// answers it and goes back by the same device, so that the server does not keep half a connection.
static __noinline int reject_race_reply(struct __sk_buff *skb, const struct packet *packet)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!packet || !ctx)
		return leave(REASON_in_malformed, PASS);
	if (ctx->race_result != RACE_RESET)
		return leave(packet->tcp_flags & TCP_RST && !ctx->decided ? REASON_race_refused
									  : REASON_race_late,
			     DROP);
	if (make_reset(skb, packet))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_race_lost,
		     packet->l3 ? back_to_sender(skb) : bpf_redirect(skb->ifindex, 0));
}

#endif
