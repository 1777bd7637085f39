// braid0 egress: choose an uplink, remember the flow, translate, send. Everything that routing puts
// into braid0 ends here; nobody listens at the veth's other end.
#ifndef BRAID_OUTBOUND_H
#define BRAID_OUTBOUND_H

#include "clients.h"
#include "fragment.h"
#include "hairpin.h"
#include "icmp.h"
#include "inside.h"
#include "last_words.h"
#include "leave.h"
#include "mss.h"
#include "notice.h"
#include "race.h"
#include "rules.h"
#include "tell.h"

// Addresses that mean something on one link only, or more than one receiver.
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

// What a flow that has moved keeps. Its first packet may be its last words, which the daemon has
// sent, so they do not tell where it came in.
static __always_inline void inherit(const struct __sk_buff *skb, struct flow *flow,
				    const struct flow *left)
{
	flow->came_from = left->uplink + 1;
	flow->choice = left->flags & FLOW_LEAVES ? CHOICE_FAILBACK : CHOICE_MOVED;
	if (skb->ingress_ifindex || !left->inside_ifindex)
		return;
	flow->inside_ifindex = left->inside_ifindex;
	flow->inside_mtu = left->inside_mtu;
	flow->next_hop = left->next_hop;
	flow->flags = left->flags & (FLOW_FAST | FLOW_NEXT_HOP_V6);
}

// Takes the uplink if the workbench's packet is for a neighbour on its own link: no other uplink
// reaches that host. Not 0: it is not.
__noinline int take_neighbour(__u32 id)
{
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);
	struct exit *exit;

	if (!work || !uplink || !uplink->ifindex)
		return -1;
	exit = &uplink->exits[work->packet.family & 1];
	if (!exit->present || !is_on_link(&work->packet, exit))
		return -1;
	work->uplink = id;
	work->choice = CHOICE_ON_LINK;
	return 0;
}

// Looks for the uplink that has the receiver of the workbench's packet on its own link. An uplink
// that takes no new flows will do: a user opens the modem's page because the line is dead. Not 0:
// there is none.
__noinline int choose_neighbour(void)
{
	struct workbench *work = workbench();

	if (!work)
		return -1;
	work->sticky = 0;
	work->racers = 0;
	work->class = 0;
	work->rule = 0;
	work->choice = CHOICE_NEXT_SLOT;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (!take_neighbour(id))
			return 0;
	}
	return -1;
}

// Opens the workbench's flow: uplink, port, both entries. Returns the reason to count.
__noinline int open_flow(struct __sk_buff *skb, __u64 now)
{
	struct workbench *work = workbench();
	struct uplink_counters *counters;
	struct uplink *uplink;
	struct flow *flow;
	int midstream;

	if (!work)
		return REASON_out_table_failed;
	if (bpf_map_lookup_elem(&own_addresses, &work->packet.source))
		return REASON_out_own_address;
	if (!work->moves && is_over_limit(&work->key.near))
		return REASON_client_over_limit;
	midstream = is_midstream(&work->packet);
	if (choose_neighbour()) {
		// A moved flow keeps its class. The daemon may have sent this packet, and rules
		// would look at the daemon's socket.
		if (work->moves) {
			work->class = work->left.class;
			work->rule = work->left.rule;
		} else {
			classify(skb, now);
		}
		if (choose_uplink(midstream, now))
			return work->class ? REASON_class_blocked : REASON_no_uplink;
		if (work->racers)
			choose_way(now);
	}
	flow = &work->flow;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->uplink = work->uplink;
	if (learn_inside(skb))
		return REASON_lan_spoofed;
	if (work->racers && !begin_race(skb, now))
		return REASON_race_begun;
	if (work->sticky)
		stick(now);
	uplink = uplink_at(work->uplink);
	if (!uplink)
		return REASON_no_uplink;

	flow->outer = uplink->exits[work->packet.family & 1].address;
	flow->realm = uplink->exits[work->packet.family & 1].realm;
	reverse_of(&work->key, flow, &work->reverse);
	if (claim_port(skb))
		return has_ports(work->key.protocol) ? REASON_nat_ports_exhausted
						     : REASON_nat_address_taken;

	flow->outer_port = work->reverse.near_port;
	flow->created = now;
	flow->last_seen = now;
	flow->uplink = work->uplink;
	flow->choice = work->choice;
	flow->class = work->class;
	flow->rule = work->rule;
	flow->state = STATE_NEW;
	flow->inside_next = work->packet.sequence;
	// No DNS question has been asked yet (notice.h).
	if (work->key.protocol == IPPROTO_UDP)
		flow->inside_next = flow->inside_ack = flow->outside_next = flow->lost = 0;
	if (work->moves)
		inherit(skb, flow, &work->left);

	// Another CPU may have opened the same flow meanwhile (two datagrams of one socket). The
	// first to insert wins, here and in the table it may have been promoted to.
	if (bpf_map_update_elem(&embryos, &work->key, flow, BPF_NOEXIST)) {
		bpf_map_delete_elem(&embryos_reverse, &work->reverse);
		return bpf_map_lookup_elem(&embryos, &work->key) ? REASON_out_new
								 : REASON_out_table_failed;
	}
	if (bpf_map_lookup_elem(&flows, &work->key)) {
		bpf_map_delete_elem(&embryos, &work->key);
		bpf_map_delete_elem(&embryos_reverse, &work->reverse);
		return REASON_out_new;
	}
	counters = bpf_map_lookup_elem(&traffic, &work->uplink);
	if (counters)
		counters->flows_opened++;
	note_opened(work->uplink);
	return midstream ? REASON_tcp_midstream : REASON_out_new;
}

// Whether a SYN opens a new connection: the old one was reset, or its client has closed it, and the
// port is reused.
static __always_inline int is_over(const struct packet *packet, const struct flow *flow)
{
	return packet->protocol == IPPROTO_TCP &&
	       (flow->state == STATE_CLOSING || flow->state == STATE_RESET ||
		(flow->fins & FIN_INSIDE));
}

// Whether a SYN is said again because nobody has answered where its flow was put by memory. It is
// raced then.
static __always_inline int asks_again(const struct packet *packet, const struct flow *flow)
{
	return packet->protocol == IPPROTO_TCP && flow->state == STATE_NEW && is_by_way(flow);
}

// Whether the packet goes where its flow is. What can begin anew leaves an uplink that is down or
// has another address by now: everything but TCP behind its SYN, which the remote knows by that
// address only.
static __always_inline int stays(const struct packet *packet, const struct flow *flow,
				 const struct uplink *uplink)
{
	if (packet->protocol == IPPROTO_TCP && (packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return 1;
	return !is_over(packet, flow) && !asks_again(packet, flow) && holds(packet, flow, uplink);
}

// Keeps on the workbench what its flow was before it moves. Answers to a datagram may be on their
// way to where it was; the stack would not take them for an answer there.
static __always_inline void depart(struct workbench *work, const struct flow *flow, __u64 now)
{
	struct late moved = {};

	work->left = *flow;
	work->moves = 1;
	if (work->key.protocol != IPPROTO_UDP)
		return;
	moved.key = work->key;
	moved.until = now + LATE_SECONDS * 1000000000ull;
	reverse_of(&work->key, &work->left, &work->reverse);
	bpf_map_update_elem(&late, &work->reverse, &moved, BPF_ANY);
}

// Takes away the flow that the workbench's packet does not go on with: one that is over, that moves
// or that has lost its port. Not 0: it goes on with it after all, as another CPU has opened it
// anew.
__noinline int clear_way(__u64 now)
{
	struct workbench *work = workbench();
	struct found found;

	if (!work)
		return 0;
	found = find(&work->key);
	if (!found.flow)
		return 0;
	if (stays(&work->packet, found.flow, uplink_at(found.flow->uplink))) {
		if (found.kept || !keep_pair(&work->key, found.flow))
			return 1;
		bpf_map_delete_elem(&embryos, &work->key);
		return 0;
	}
	if (is_over(&work->packet, found.flow)) {
		count(REASON_flow_replaced);
	} else if (asks_again(&work->packet, found.flow)) {
		count(REASON_path_silent);
		forget_way(&work->key.far, found.flow->uplink);
	} else {
		count(REASON_flow_moved);
		depart(work, found.flow, now);
	}
	forget(&work->key, found.flow, found.kept);
	return 0;
}

// The flow of a packet, opened if need be, and its uplink.
static __always_inline int find_or_open(struct __sk_buff *skb, const struct packet *packet,
					struct tuple *key, __u64 now, struct found *found,
					struct uplink **uplink)
{
	struct workbench *work;
	int reason, known = 0;

	*found = find(key);
	if (found->flow) {
		*uplink = uplink_at(found->flow->uplink);
		if (stays(packet, found->flow, *uplink) &&
		    (found->kept || !keep_pair(key, found->flow)))
			return REASON_out_flow;
		found->flow = NULL;
		known = 1;
	}
	work = workbench();
	if (!work)
		return REASON_out_table_failed;
	work->packet = *packet;
	work->key = *key;
	work->moves = 0;
	if (packet->protocol == IPPROTO_TCP && bpf_map_lookup_elem(&races, key)) {
		reason = meet_race(known, now);
		if (reason != NO_RACE)
			return reason;
	}
	if (known && clear_way(now)) {
		reason = REASON_out_flow;
	} else {
		// Whatever led here, the verifier is to see one and the same state: on some kernels
		// it goes through all of open_flow() for each.
		*uplink = NULL;
		found->flow = NULL;
		found->kept = 0;
		asm volatile("" ::: "memory");
		*key = work->key;
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

// A packet that no flow claims. Its source may be an uplink's own address already: connection
// tracking has put that there, because the packet answers one that came to a forwarded or published
// port. It leaves through that uplink as it is; anything else would break the connection.
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
			tell_refused(skb, packet, now);
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
	return leave(REASON_out_own_address, through_route(uplink));
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
	if (apply(skb, packet, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (counters) {
		counters->tx_packets++;
		counters->tx_bytes += skb->len - packet->l3;
	}
	return leave(REASON_out_fragment, through_route(uplink));
}

// What its function takes, put on the workbench.
static __always_inline int hand_round(struct __sk_buff *skb, const struct packet *packet,
				      const struct tuple *key, __u64 now)
{
	struct workbench *work = workbench();

	if (!work)
		return NO_FLOW;
	work->packet = *packet;
	work->key = *key;
	return turn_round(skb, now);
}

// Translates a packet and sends it by its uplink.
static __noinline int send_on(struct __sk_buff *skb, const struct packet *packet,
			      const struct rewrite *rewrite, const struct uplink *uplink,
			      __u32 reason)
{
	if (!packet || !rewrite || !uplink || fit_segments(skb, packet, uplink->mtu) ||
	    apply(skb, packet, rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(reason, through(packet, uplink));
}

// True if the packet was forwarded from an uplink. Its sender is a stranger on that uplink's
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
	int reason = parse(skb, ETH_HLEN, &packet);

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
		// The daemon repeats the SYN if the race's favourite dies before it answers.
		note_words(skb, &packet, &key, now, &found);
		return send_copies(skb, reason);
	}
	if (reason == REASON_race_none_left)
		return refuse_inside(skb, &packet);
	if (!found.flow)
		return outbound_unclaimed(skb, &packet, now, reason);
	if (packet.protocol == IPPROTO_TCP && is_told(&packet, found.flow, uplink)) {
		note_told(found.flow, now);
		if (turn_into_reset(skb, &packet))
			return leave(REASON_out_rewrite_failed, DROP);
		return leave(REASON_out_told, back_inside(skb));
	}
	if (!uplink || !uplink->ifindex || !uplink->exits[packet.family & 1].present)
		return leave(REASON_uplink_gone, DROP);

	// What comes from nowhere may be the daemon's repetition of a LAN client's words.
	if (reason == REASON_out_flow && skb->ingress_ifindex &&
	    found.flow->inside_ifindex != skb->ingress_ifindex)
		learn_again(skb, &packet, found.flow);
	if (skb->mark == MARK_HAIRPIN && packet.protocol == IPPROTO_UDP) {
		int turned = hand_round(skb, &packet, &key, now);

		if (turned != NO_FLOW)
			return turned;
	}
	if (worth_noting(skb, &packet, &found))
		note_words(skb, &packet, &key, now, &found);
	if (packet.protocol == IPPROTO_UDP) {
		found.flow->remote = packet.dest;
		found.flow->remote_port = packet.dest_port;
		if (packet.dest_port == bpf_htons(DNS_PORT))
			note_question(skb, &packet, found.flow, now);
	}
	if (!found.kept || now - found.flow->last_seen > NEIGHBOUR_TRUST)
		put_route_aside(skb);
	note_sent(skb, &packet, found.flow, found.flow->uplink, now);
	rewrite.from = packet.source;
	rewrite.to = found.flow->outer;
	rewrite.from_port = key.near_port;
	rewrite.to_port = found.flow->outer_port;
	rewrite.side = SOURCE;
	if (packet.fragment == FIRST_FRAGMENT)
		remember_fragment(&packet, 0, &found.flow->outer, found.flow->uplink);
	if (packet.protocol == IPPROTO_TCP) {
		advance_tcp(found.flow, found.kept, packet.tcp_flags, FIN_INSIDE);
		if (!found.kept && proven(found.flow))
			promote(&key, found.flow, now);
	}
	return send_on(skb, &packet, &rewrite, uplink, reason);
}

#endif
