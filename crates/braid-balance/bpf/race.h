// The race: a SYN goes out by several uplinks at once, and the first whose SYN/ACK is back carries
// the connection ([ofrp] section 3.2; the pending state is that of its section 3.4). No flow exists
// before that: to insert it is to win, and the table lets one do that.
#ifndef BRAID_RACE_H
#define BRAID_RACE_H

#include "answer.h"
#include "inside.h"
#include "mss.h"
#include "tell.h"

#define NO_RACE	  (-1) // of meet_race(): the packet is not a race's
#define RACE_ENDS (-3) // of functions that leave the packet to race_end()

// What hear() makes of a packet.
enum race_result { RACE_GOES_ON, RACE_SILENT, RACE_RESET };

// Fills the outer end that the workbench's connection has on an uplink, all but the port.
static __always_inline int reverse_on(__u32 id)
{
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);
	struct exit *exit;

	if (!work || !uplink)
		return -1;
	exit = &uplink->exits[is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6];
	work->race.flow.outer = exit->address;
	work->race.flow.realm = exit->realm;
	reverse_of(&work->key, &work->race.flow, &work->reverse);
	return 0;
}

// Gives back the outer end that the workbench's race has on an uplink.
__noinline int release_runner(__u32 id)
{
	struct workbench *work = workbench();

	if (!work || id >= MAX_UPLINKS || !work->race.fates[place_of(id)] || reverse_on(id))
		return 0;
	work->reverse.near_port = work->race.ports[place_of(id)];
	give_back(work);
	return 0;
}

// Forgets the race of the workbench's connection.
__noinline int end_race(void)
{
	struct workbench *work = workbench();
	struct race *race;

	if (!work)
		return 0;
	race = bpf_map_lookup_elem(&races, &work->key);
	if (!race)
		return 0;
	work->race = *race;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		release_runner(id);
	bpf_map_delete_elem(&races, &work->key);
	return 0;
}

// Takes a port on an uplink for the workbench's race.
__noinline int enter_runner(__u32 id)
{
	struct workbench *work = workbench();

	if (!work || id >= MAX_UPLINKS || reverse_on(id))
		return -1;
	work->uplink = id;
	if (take_port(1))
		return -1;
	work->race.ports[place_of(id)] = work->reverse.near_port;
	work->race.fates[place_of(id)] = FATE_ASKED;
	work->entered |= 1u << id;
	return 0;
}

// Puts the outer end that a runner has on the workbench.
__noinline int recall_runner(__u32 id)
{
	struct workbench *work = workbench();

	if (!work || id >= MAX_UPLINKS || reverse_on(id))
		return -1;
	work->reverse.near_port = work->race.ports[place_of(id)];
	return 0;
}

// Takes a runner out of the workbench's race.
__noinline int withdraw_runner(__u32 id)
{
	struct workbench *work = workbench();

	if (!work || id >= MAX_UPLINKS)
		return 0;
	release_runner(id);
	work->race.fates[place_of(id)] = 0;
	work->entered &= ~(1u << id);
	return 0;
}

// Enters the workbench's packet, a SYN, for a race. Not 0: fewer than two uplinks have a port for
// it, so the one that the slots have chosen takes it.
__noinline int begin_race(struct __sk_buff *skb, __u64 now)
{
	struct workbench *work = workbench();
	__u32 chosen;
	struct flow *flow;

	if (!work)
		return -1;
	chosen = work->uplink;
	__builtin_memset(&work->race, 0, sizeof(work->race));
	flow = &work->race.flow;
	flow->inside_ifindex = work->flow.inside_ifindex;
	flow->inside_mtu = work->flow.inside_mtu;
	flow->next_hop = work->flow.next_hop;
	flow->flags = work->flow.flags;
	flow->created = now;
	flow->last_seen = now;
	flow->choice = CHOICE_RACED;
	flow->class = work->class;
	flow->rule = work->rule;
	flow->state = STATE_NEW;
	flow->inside_next = work->packet.sequence + 1;
	work->entered = 0;
	work->race.touched = now;
	work->race.sequence = work->packet.sequence;
	work->race.favourite = work->favourite;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (work->racers & (1u << id))
			enter_runner(id);
	}
	// What takes the packet is verified once for each runner on some kernels (ports.h), so it
	// is apart, and a runner whose port a socket has gets no other.
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if ((work->entered & (1u << id)) && !recall_runner(id) &&
		    socket_in_the_way(skb, &work->packet, &work->reverse))
			withdraw_runner(id);
	}
	work->racers = work->entered;
	if (several(work->entered) &&
	    !bpf_map_update_elem(&races, &work->key, &work->race, BPF_NOEXIST))
		return 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		release_runner(id);
	work->uplink = chosen;
	work->racers = 0;
	return -1;
}

// Has a runner of the workbench's race asked again, if that is of use. What the race has is on the
// workbench meanwhile.
__noinline int ask_again(__u32 id)
{
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);

	if (!work || !uplink || id >= MAX_UPLINKS || !work->race.fates[place_of(id)])
		return 0;
	if (work->race.fates[place_of(id)] == FATE_REFUSED) {
		work->refused = 1;
		return 0;
	}
	if (!takes_flows(uplink, is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6))
		return 0;
	work->race.fates[place_of(id)] = FATE_ASKED;
	work->racers |= 1u << id;
	return 0;
}

// Notes that the uplink whose answer the workbench's race has waited for is silent, if so it is.
static __always_inline void note_silence(__u64 now)
{
	struct workbench *work = workbench();
	__u32 id;

	if (!work || !(work->race.favourite & FAVOURITE_AWAITED))
		return;
	id = (work->race.favourite & FAVOURITE) - 1;
	if (id < MAX_UPLINKS && work->race.fates[place_of(id)] == FATE_ASKED)
		remember_silence(id, now);
}

// A packet from inside whose connection has been raced. If it `has_flow`, that is over, or goes
// elsewhere, and so is the race.
__noinline int meet_race(__u32 has_flow, __u64 now)
{
	struct workbench *work = workbench();
	struct race *race;

	if (!work)
		return NO_RACE;
	race = bpf_map_lookup_elem(&races, &work->key);
	if (!race)
		return NO_RACE;
	if ((work->packet.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		if (!has_flow && race->touched + RACE_PATIENCE * NANOSECONDS > now)
			return REASON_race_undecided;
		end_race();
		return NO_RACE;
	}
	if (has_flow || race->sequence != work->packet.sequence) {
		end_race();
		return NO_RACE;
	}
	work->race = *race;
	note_silence(now);
	work->racers = 0;
	work->refused = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		ask_again(id);
	if (!work->racers) {
		end_race();
		return work->refused ? REASON_race_none_left : NO_RACE;
	}
	work->race.flow.tx_packets++; // so that its RTT is not believed
	work->race.favourite = 0;
	work->race.touched = now;
	bpf_map_update_elem(&races, &work->key, &work->race, BPF_EXIST);
	return REASON_race_repeated;
}

static __always_inline int is_copy(const struct __sk_buff *skb)
{
	return (skb->mark & ~0xffu) == MARK_COPY;
}

// A copy comes by the hook once more, addressed and all: its uplink is in the mark.
static __always_inline int send_copy(struct __sk_buff *skb, const struct packet *packet)
{
	struct uplink *uplink = uplink_at(skb->mark & 0xff);

	skb->mark = 0;
	if (!uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	return leave(REASON_race_copy, through(packet, uplink));
}

// Addresses the SYN, which may be another uplink's copy already, for an uplink, and counts it as
// sent there.
__noinline int address_copy(struct __sk_buff *skb, __u32 id)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &id);
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);
	struct rewrite rewrite = {.side = SOURCE};
	__u32 headers, most;

	if (!work || !uplink || id >= MAX_UPLINKS)
		return -1;
	rewrite.from = work->packet.source;
	rewrite.from_port = work->copy_port;
	rewrite.to = uplink->exits[work->packet.family & 1].address;
	rewrite.to_port = work->race.ports[place_of(id)];
	if (apply(skb, &work->packet, &rewrite))
		return -1;
	work->packet.source = rewrite.to;
	work->copy_port = rewrite.to_port;
	headers = work->packet.l4 - work->packet.l3 + sizeof(struct tcphdr);
	most = uplink->mtu > headers ? uplink->mtu - headers : work->mss;
	if (most > work->mss)
		most = work->mss;
	if (work->mss && write_mss(skb, work->packet.l4, work->mss_offset, most))
		return -1;
	if (counters) {
		counters->tx_packets++;
		counters->tx_bytes += skb->len - work->packet.l3;
		if (work->race.flow.tx_packets)
			counters->syn_repeats++;
		else
			counters->syns++;
	}
	return 0;
}

// Sends a copy of the SYN by the uplink that it has been addressed for last, and addresses it for
// the next one.
__noinline int send_copy_and_go_on(struct __sk_buff *skb, __u32 id)
{
	struct workbench *work = workbench();

	if (!work || id >= MAX_UPLINKS || !work->race.fates[place_of(id)] || work->spoilt)
		return 0;
	if (work->addressed) {
		skb->mark = MARK_COPY | ((work->addressed - 1) & 0xff);
		bpf_clone_redirect(skb, skb->ifindex, 0);
	}
	work->spoilt = !!address_copy(skb, id);
	work->addressed = id + 1;
	return 0;
}

// Sends the workbench's SYN by all of its racers: copies by all but one, itself by that one, since
// a dropped SYN makes its sender's window shrink.
__noinline int send_copies(struct __sk_buff *skb, __u32 reason)
{
	struct workbench *work = workbench();
	struct uplink *uplink;
	struct race *race;

	if (!work)
		return leave(REASON_out_table_failed, DROP);
	work->mss_offset = find_mss(skb, work->packet.l4, work->packet.l4_header);
	work->mss = read_mss(skb, work->mss_offset);
	work->copy_port = work->packet.source_port;
	work->addressed = 0;
	work->spoilt = 0;
	put_route_aside(skb);
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (work->racers & (1u << id))
			send_copy_and_go_on(skb, id);
	}
	if (work->spoilt)
		return leave(REASON_out_rewrite_failed, DROP);
	skb->mark = 0;
	uplink = uplink_at(work->addressed - 1);
	if (!uplink || !uplink->ifindex)
		return leave(REASON_uplink_gone, DROP);
	race = bpf_map_lookup_elem(&races, &work->key);
	if (race && !race->flow.tx_packets) {
		race->flow.tx_packets = 1;
		race->flow.tx_bytes = skb->len - work->packet.l3;
	}
	return leave(reason, through(&work->packet, uplink));
}

// All uplinks have refused the connection, but the inside has not been told: the refusals came at
// one moment, or some died.
static __noinline int refuse_inside(struct __sk_buff *skb, const struct packet *packet)
{
	if (!packet || turn_into_reset(skb, packet))
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(REASON_race_none_left, back_inside(skb));
}

// Looks whether an outer end is a runner's of the workbench's race: notes who it is, and whether
// others may still answer.
__noinline int look_at_runner(__u32 id)
{
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);
	struct exit *exit;

	if (!work || !uplink || id >= MAX_UPLINKS || !work->race.fates[place_of(id)])
		return 0;
	exit = &uplink->exits[is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6];
	if (work->race.ports[place_of(id)] == work->reverse.near_port &&
	    exit->realm == work->reverse.realm && same_address(&exit->address, &work->reverse.near))
		work->uplink = id;
	else if (work->race.fates[place_of(id)] == FATE_ANSWERED)
		work->answered = 1;
	else if (work->race.fates[place_of(id)] == FATE_ASKED && uplink->ifindex &&
		 uplink->accepts_new && exit->present)
		work->live |= 1u << id;
	return 0;
}

// The uplink whose answer is waited for although others came first: the predicted best, or the one
// that the client has been given for the same site meanwhile.
static __always_inline __u32 favourite_of(struct workbench *work, __u64 now)
{
	struct sticky *entry;

	set_site(work, &work->key.far, work->race.flow.class, now);
	if (work->race.favourite)
		return work->race.favourite & FAVOURITE;
	if (!work->sticky || work->race.flow.tx_packets > 1)
		return 0;
	entry = recall(work, now);
	return entry ? entry->uplink + 1 : 0;
}

// Makes the workbench's race a flow by its runner `work->uplink`. Not 0: there is one already.
__noinline int win(__u64 now)
{
	struct workbench *work = workbench();
	struct uplink_counters *counters;

	if (!work || work->uplink >= MAX_UPLINKS || reverse_on(work->uplink))
		return -1;
	work->flow = work->race.flow;
	work->flow.uplink = work->uplink;
	work->flow.outer_port = work->race.ports[place_of(work->uplink)];
	work->flow.last_seen = now;
	if (bpf_map_update_elem(&embryos, &work->key, &work->flow, BPF_NOEXIST))
		return -1;
	if (bpf_map_lookup_elem(&flows, &work->key)) {
		bpf_map_delete_elem(&embryos, &work->key);
		return -1;
	}
	counters = bpf_map_lookup_elem(&traffic, &work->uplink);
	if (counters)
		counters->flows_opened++;
	if (work->race.favourite != (FAVOURITE_AWAITED | (work->uplink + 1)))
		note_opened(work->uplink);
	count(REASON_race_won);
	return 0;
}

// The stickiness and the walk of the workbench's race's class.
__noinline int read_class(void)
{
	struct workbench *work = workbench();
	struct slot_bank *table;
	__u32 bank;

	if (!work)
		return 0;
	table = walked_bank(work->race.flow.class * FAMILIES +
				    (is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6),
			    &bank);
	work->sticky = kept_for(work, table);
	work->walk = table ? table->walk : 0;
	return 0;
}

// Finds whose outer end on which uplink the workbench's packet is for, and how the race stands. Not
// 0: it is no runner's.
__noinline int find_runner(void)
{
	struct workbench *work = workbench();
	struct race *race;

	if (!work)
		return -1;
	work->uplink = MAX_UPLINKS;
	race = bpf_map_lookup_elem(&races, &work->key);
	if (!race)
		return -1;
	work->race = *race;
	work->live = 0;
	work->answered = 0;
	for (__u32 runner = 0; runner < MAX_UPLINKS; runner++)
		look_at_runner(runner);
	work->decided = find(&work->key).flow != NULL;
	return work->uplink < MAX_UPLINKS ? 0 : -1;
}

// Has the workbench's race wait for another uplink than the one whose answer has come first, if the
// flow fares better there: it counts there as opened from now on. Only where flows were opened on
// the first one a moment ago and others are raced to the same network: of connections that are
// begun at once none knows of the others before the first answer, and all are answered first by the
// nearest. What a client keeps to stays together.
__noinline int wait_for_better(__u64 now)
{
	struct workbench *work = workbench();
	struct outlook *outlook;
	struct path *path;
	struct race *race;
	__u32 id, waited;

	if (!work || work->walk != WALK_FASTEST || work->sticky || work->decided ||
	    work->race.favourite || work->race.flow.tx_packets > 1)
		return 0;
	id = work->uplink;
	outlook = bpf_map_lookup_elem(&outlooks, &id);
	if (!outlook || !outlook->opened)
		return 0;
	waited = (now - work->race.flow.created) / 1000;
	path_key_of(&work->key.far, &work->prefix);
	path = bpf_map_lookup_elem(&paths, &work->prefix);
	if (!path || path->races < 2)
		return 0;
	work->promising = id;
	work->best_prospect = time_in(outlook, waited);
	for (__u32 other = 0; other < MAX_UPLINKS; other++)
		weigh_silent(other, waited, now);
	if (work->promising == id)
		return 0;
	race = bpf_map_lookup_elem(&races, &work->key);
	if (!race)
		return 0;
	work->race.favourite = race->favourite = FAVOURITE_AWAITED | (work->promising + 1);
	note_opened(work->promising);
	return 0;
}

// An answer to the workbench's race, on a way that has not won: `flags`, `ack` and `size` are the
// packet's.
__noinline int hear_answer(__u32 flags, __u32 ack, __u32 size, __u64 now)
{
	struct workbench *work = workbench();
	struct uplink_counters *counters;
	struct race *race;
	__u32 id, first, favourite;

	if (!work)
		return RACE_SILENT;
	id = work->uplink;
	race = bpf_map_lookup_elem(&races, &work->key);
	if (!race || id >= MAX_UPLINKS)
		return RACE_SILENT;
	counters = bpf_map_lookup_elem(&traffic, &id);
	first = race->fates[place_of(id)] == FATE_ASKED;
	// Both ends open at once (RFC 5382 REQ-2a): whoever asks us by this way has chosen it.
	if ((flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN && !work->decided && !win(now))
		return RACE_GOES_ON;
	if (ack != race->sequence + 1 || !(flags & TCP_ACK) || !(flags & (TCP_SYN | TCP_RST))) {
		// No answer to this SYN. An earlier connection's segment is told that it is over.
		return work->decided || (flags & TCP_RST) ? RACE_SILENT : RACE_RESET;
	}
	if (flags & TCP_RST) {
		race->fates[place_of(id)] = FATE_REFUSED;
		if (!work->decided && !work->live && !work->answered && !win(now))
			return RACE_GOES_ON;
	} else {
		race->fates[place_of(id)] = FATE_ANSWERED;
		favourite = favourite_of(work, now);
		if (!work->decided &&
		    (!favourite || favourite - 1 == id ||
		     !(work->live & (1u << ((favourite - 1) & (MAX_UPLINKS - 1))))) &&
		    !win(now))
			return RACE_GOES_ON;
		if (first && work->race.flow.tx_packets == 1) {
			__u32 rtt = (now - work->race.flow.created) / 1000;

			learn_rtt(&work->key.far, id, rtt, now);
			if (counters) {
				counters->rtt_us_sum += rtt;
				counters->rtt_samples++;
			}
		}
	}
	// What goes on is counted as every answer is.
	if (counters) {
		counters->rx_packets++;
		counters->rx_bytes += size;
		counters->syn_answers += first;
	}
	return flags & TCP_RST ? RACE_SILENT : RACE_RESET;
}

// Puts on the workbench to whose race, and to which outer end of it, an answer has come.
static __always_inline void take_up(struct workbench *work, const struct tuple *reverse,
				    const struct tuple *key)
{
	work->reverse = *reverse;
	work->key = *key;
	work->sticky = 0;
}

// A packet to an outer end that a race has made. What is to be done with it, if it does not go on,
// is put on the workbench.
static __always_inline int hear(const struct packet *packet, const struct tuple *reverse,
				const struct tuple *key, __u64 now)
{
	struct workbench *work = workbench();

	if (!work)
		return RACE_SILENT;
	work->packet = *packet;
	take_up(work, reverse, key);
	if (find_runner())
		return work->heard = RACE_SILENT;
	if ((packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK) &&
	    packet->ack == work->race.sequence + 1) {
		read_class();
		wait_for_better(now);
	}
	work->heard =
		hear_answer(packet->tcp_flags, packet->ack,
			    packet->l4 - packet->l3 + packet->l4_header + packet->payload, now);
	if (work->heard == RACE_GOES_ON && work->sticky)
		stick(now);
	return work->heard;
}

// The same of an ICMP error about a SYN of a race, with that SYN's sequence number: it refuses as a
// reset does.
static __always_inline int hear_error(__u32 sequence, __u32 size, const struct tuple *reverse,
				      const struct tuple *key, __u64 now)
{
	struct workbench *work = workbench();

	if (!work)
		return RACE_SILENT;
	take_up(work, reverse, key);
	if (find_runner())
		return RACE_SILENT;
	return hear_answer(TCP_RST | TCP_ACK, sequence + 1, size, now);
}

// Does so: a SYN/ACK that came too late becomes the reset that answers it and goes back by the same
// device. Its server then holds no half of a connection.
static __noinline int race_end(struct __sk_buff *skb, const struct packet *packet)
{
	struct workbench *work = workbench();

	if (!packet || !work)
		return leave(REASON_in_malformed, PASS);
	if (work->heard != RACE_RESET)
		return leave(packet->tcp_flags & TCP_RST && !work->decided ? REASON_race_refused
									   : REASON_race_late,
			     DROP);
	if (turn_into_reset(skb, packet))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_race_lost,
		     packet->l3 ? back_to_sender(skb) : bpf_redirect(skb->ifindex, 0));
}

#endif
