// The flow tables: finding, promoting and deleting flows, and their states.
#ifndef BRAID_FLOW_H
#define BRAID_FLOW_H

#include "flow/timestamps.h"
#include "nat/ports.h"
#include "select/slots.h"

// Returns 1 if one mapping serves every remote: UDP other than QUIC has one mapping per inner
// address and port (RFC 4787 REQ-1), so that hole punching and STUN work.
static __always_inline int any_remote(__u8 protocol, __be16 remote_port)
{
	return protocol == IPPROTO_UDP && remote_port != bpf_htons(QUIC_PORT);
}

static __always_inline void forget_remote(struct tuple *tuple)
{
	__builtin_memset(&tuple->remote, 0, sizeof(tuple->remote));
	tuple->remote_port = 0;
}

static __always_inline int is_echo_request(const struct packet *packet)
{
	__u16 type = bpf_ntohs(packet->source_port) >> 8;

	return packet->family == FAMILY_V4 ? type == ICMP_V4_ECHO : type == ICMP_V6_ECHO;
}

static __always_inline int is_echo_reply(const struct packet *packet)
{
	__u16 type = bpf_ntohs(packet->source_port) >> 8;

	return packet->family == FAMILY_V4 ? type == ICMP_V4_ECHO_REPLY
					   : type == ICMP_V6_ECHO_REPLY;
}

static __always_inline int is_icmp(const struct packet *packet)
{
	return packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6;
}

// Fills a key from a packet's two ends. Returns non-zero if its protocol cannot be translated.
static __always_inline int fill_key(const struct packet *packet, const struct address *local,
				    const struct address *remote, __be16 local_port,
				    __be16 remote_port, struct tuple *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->local = *local;
	key->remote = *remote;
	key->protocol = packet->protocol;
	switch (packet->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		key->local_port = local_port;
		key->remote_port = remote_port;
		if (any_remote(packet->protocol, remote_port))
			forget_remote(key);
		return 0;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		key->local_port = packet->dest_port;
		return 0;
	case IPPROTO_GRE:
	case IPPROTO_ESP:
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
	case IPPROTO_SCTP:
		return 0;
	default:
		return -1;
	}
}

// Fills the forward key of an outbound packet. Returns non-zero if it cannot be translated.
static __always_inline int forward_key(const struct packet *packet, struct tuple *key)
{
	if (fill_key(packet, &packet->source, &packet->dest, packet->source_port, packet->dest_port,
		     key))
		return -1;
	return is_icmp(packet) && !is_echo_request(packet);
}

// Fills the key of a packet towards the inside: the reverse key of a packet as received, the
// forward key of one as the inside sees it. Returns non-zero if it belongs to no flow.
static __always_inline int reverse_key(const struct packet *packet, struct tuple *key)
{
	if (fill_key(packet, &packet->dest, &packet->source, packet->dest_port, packet->source_port,
		     key))
		return -1;
	key->realm = packet->realm;
	return is_icmp(packet) && !is_echo_reply(packet);
}

// Returns 1 if the destination is a neighbour on the uplink's own link: the packet needs no
// gateway.
static __always_inline int is_on_link(const struct packet *packet, const struct next_hop *next_hop)
{
	__u32 bits = next_hop->on_link, differing = 0;

	if (!bits)
		return 0;
	if (packet->family == FAMILY_V4)
		return !(bpf_ntohl(packet->dest.word[3] ^ next_hop->address.word[3]) >>
			 ((32 - bits) & 31));
	for (__u32 word = 0; word < 4; word++) {
		__u32 apart = bpf_ntohl(packet->dest.word[word] ^ next_hop->address.word[word]);
		__u32 here = bits > 32 ? 32 : bits;

		if (here)
			differing |= apart >> ((32 - here) & 31);
		bits -= here;
	}
	return !differing;
}

// Returns 1 if the flow stays on its uplink. The uplink must have the flow's address, and must be
// up or have no alternative: without one, moving the flow gains nothing if the uplink is wrongly
// taken for dead. Answered flows other than TCP also wait for an uplink that may return in a
// moment.
static __always_inline int holds_uplink(const struct packet *packet, const struct flow *flow,
					const struct uplink *uplink)
{
	__u32 family = packet->family & 1;
	const struct next_hop *next_hop;

	if (!uplink || !uplink->ifindex || (flow->flags & FLOW_REASSIGN))
		return 0;
	next_hop = &uplink->next_hops[family];
	if (!next_hop->present || next_hop->realm != flow->realm ||
	    !same_address(&next_hop->address, &flow->outer))
		return 0;
	if (!(uplink->others & (1 << family)) || is_up(uplink) || flow->choice == CHOICE_ON_LINK)
		return 1;
	return packet->protocol != IPPROTO_TCP && flow->state != STATE_NEW &&
	       ((uplink->others & UPLINK_HOLDS_UDP) || is_awaited(uplink));
}

static __always_inline void reverse_of(const struct tuple *key, const struct flow *flow,
				       struct tuple *reverse)
{
	__builtin_memset(reverse, 0, sizeof(*reverse));
	reverse->local = flow->outer;
	reverse->remote = key->remote;
	reverse->local_port = flow->outer_port;
	reverse->remote_port = key->remote_port;
	reverse->protocol = key->protocol;
	reverse->realm = flow->realm;
}

struct found {
	struct flow *flow;
	int assured; // in the tables that nothing is evicted from
};

static __always_inline struct found find(const struct tuple *key)
{
	struct found found = {.flow = bpf_map_lookup_elem(&flows, key), .assured = 1};

	if (!found.flow) {
		found.flow = bpf_map_lookup_elem(&embryos, key);
		found.assured = 0;
	}
	return found;
}

static __noinline int delete_flow(const struct tuple *key, const struct flow *flow, __u32 assured)
{
	struct tuple reverse;

	if (!key || !flow)
		return -1;
	reverse_of(key, flow, &reverse);
	if (assured) {
		bpf_map_delete_elem(&flows, key);
		bpf_map_delete_elem(&flows_reverse, &reverse);
	} else {
		bpf_map_delete_elem(&embryos, key);
		bpf_map_delete_elem(&embryos_reverse, &reverse);
	}
	return 0;
}

// Restores an embryo's reverse entry: its two entries are evicted one by one, and its port may be
// taken over. Returns non-zero if the reverse entry belongs to another flow by now.
static __noinline int ensure_reverse(const struct tuple *key, const struct flow *flow)
{
	struct tuple reverse, *owner;

	reverse_of(key, flow, &reverse);
	owner = bpf_map_lookup_elem(&embryos_reverse, &reverse);
	if (owner)
		return !is_owner(owner, key);
	count(REASON_half_pair);
	return claim(&reverse, key);
}

// Counts why a table of assured flows refuses an entry; lack of memory passes by itself.
static __always_inline int refuse(long error)
{
	if (error == TABLE_FULL)
		count(REASON_flow_table_full);
	return -1;
}

// Moves an embryo to the tables that nothing is evicted from. The new entries are written first and
// the old ones deleted after; in between both exist and agree. A full table leaves the embryo where
// it is; it still works. Another CPU may recycle the embryo for another flow meanwhile, so a copy
// is used that its reverse entry confirms.
static __noinline int promote(const struct tuple *key, const struct flow *embryo, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct tuple *reverse, *owner;
	long error;

	if (!ctx)
		return -1;
	ctx->key = *key;
	ctx->flow = *embryo;
	reverse = &ctx->reverse;
	reverse_of(key, &ctx->flow, reverse);
	owner = bpf_map_lookup_elem(&embryos_reverse, reverse);
	if (!owner || !is_owner(owner, key)) {
		count(REASON_half_pair);
		return -1;
	}
	error = bpf_map_update_elem(&flows, key, &ctx->flow, BPF_NOEXIST);
	if (error == EXISTS) // another CPU was faster
		return 0;
	if (error)
		return refuse(error);
	error = bpf_map_update_elem(&flows_reverse, reverse, key, BPF_NOEXIST);
	if (error) {
		bpf_map_delete_elem(&flows, key);
		return refuse(error);
	}
	bpf_map_delete_elem(&embryos, key);
	bpf_map_delete_elem(&embryos_reverse, reverse);
	keep_sticky(now);
	count(REASON_flow_promoted);
	return 0;
}

static __always_inline __u8 open_state(const struct flow *flow)
{
	if (flow->fins == (FIN_INSIDE | FIN_OUTSIDE))
		return STATE_CLOSING;
	return flow->fins ? STATE_FIN_WAIT : STATE_ESTABLISHED;
}

// Returns 1 if an embryo has been answered and, for TCP, confirmed.
static __always_inline int can_be_assured(const struct flow *flow)
{
	return flow->state >= STATE_ESTABLISHED && flow->state != STATE_RESET;
}

// Advances the TCP state as seen from the middle. `side` is the sender's FIN bit. A RST from
// outside may be forged blindly, so any later segment reopens an assured flow; only silence ends
// it. A RST from inside is trusted: after it, or after any RST that follows the inside's FIN, the
// inside has no connection left. An embryo that was refused must be answered first.
// The first FIN ends what the flow carries, as a rule. The other side's may be lost in the queue
// that the flow itself has left, and come a second later.
static __always_inline void advance_tcp(struct flow *flow, int assured, __u8 tcp_flags, __u8 side)
{
	__u8 state = flow->state, fins = flow->fins;

	if (state == STATE_CLOSING)
		return;
	if ((tcp_flags & TCP_FIN) && !(fins & side))
		flow->fins |= side;
	if (tcp_flags & TCP_RST) {
		state = (assured || can_be_assured(flow)) &&
					(side == FIN_INSIDE || (flow->fins & FIN_INSIDE))
				? STATE_CLOSING
				: STATE_RESET;
	} else if (state == STATE_NEW || (state == STATE_RESET && !assured)) {
		if (side == FIN_OUTSIDE)
			state = STATE_ANSWERED;
	} else if (state != STATE_ANSWERED || (side == FIN_INSIDE && !(tcp_flags & TCP_SYN))) {
		state = open_state(flow);
	}
	// Most packets change nothing: do not dirty the cache line for them.
	if (state == flow->state)
		return;
	flow->state = state;
	if (state == STATE_FIN_WAIT || state == STATE_CLOSING)
		flow->tick = count_closed(flow->uplink, flow->tick,
					  !fins && flow->last_seen - flow->created <
							   OPENED_SECONDS * NS_PER_SECOND);
}

static __always_inline __u32 packets_in(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

// Returns the IP bytes of the packets on the wire that this sk_buff stands for, each with its
// headers.
static __always_inline __u32 bytes_in(const struct __sk_buff *skb, const struct packet *packet)
{
	__u32 headers = packet->l4 - packet->l3 + packet->l4_header;

	return skb->len - packet->l3 + (packets_in(skb) - 1) * headers;
}

// Reads the inside's sequence numbers. A segment sent again has not been acknowledged.
static __always_inline void note_segment(const struct packet *packet, struct flow *flow,
					 struct uplink_counters *counters, __u32 packets)
{
	__u32 syn = packet->tcp_flags & TCP_SYN, fin = packet->tcp_flags & TCP_FIN;
	__u32 length = packet->payload + !!syn + !!fin;

	if ((packet->tcp_flags & TCP_ACK) && flow->inside_ack != packet->ack)
		flow->inside_ack = packet->ack;
	if (!length)
		return;
	if (packet->payload)
		flow->seen += packets;
	if ((__s32)(packet->sequence + length - flow->inside_next) > 0 ||
	    (syn && flow->state == STATE_NEW && packet->sequence + length != flow->inside_next)) {
		flow->inside_next = packet->sequence + length;
		if (syn && counters)
			counters->syns++;
	} else if (syn) {
		if (counters)
			counters->syn_repeats++;
	} else {
		flow->lost += packets;
		if (counters)
			counters->repeats++;
	}
}

// Reads the outside's sequence numbers. A gap before a segment is a packet that is lost or late;
// the packet that fills it is not counted. Loss and reordering look the same here, so links that
// reorder look worse than they are.
static __always_inline void note_arrival(const struct packet *packet, struct flow *flow,
					 __u32 packets)
{
	__u32 length = packet->payload + !!(packet->tcp_flags & TCP_SYN);
	__u32 next = packet->sequence + length;

	if (!length)
		return;
	if (packet->payload) {
		flow->seen += packets;
		if (flow->outside_next && (__s32)(packet->sequence - flow->outside_next) > 0)
			flow->lost++;
	}
	if (!flow->outside_next || (__s32)(next - flow->outside_next) > 0)
		flow->outside_next = next ? next : 1;
}

// Returns 1 if a segment from outside may be the remote's: it acknowledges what the inside has
// sent, and lies near what the inside has acknowledged. A sender who sees nothing of the connection
// has to guess both. The inside refuses such a segment itself, by narrower windows (RFC 5961); here
// it must neither look like loss nor end the flow.
static __always_inline int is_in_window(const struct packet *packet, const struct flow *flow)
{
	__u32 flags = packet->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK);
	__u32 window = flags & TCP_RST ? RESET_WINDOW : SEGMENT_WINDOW;
	__u32 unacknowledged = flow->inside_next - packet->ack;
	__u32 offset = packet->sequence - flow->inside_ack + window;

	// Both ends open at once (RFC 5382 REQ-2a).
	if (flags == TCP_SYN)
		return flow->state == STATE_NEW;
	if (!(flags & TCP_ACK))
		return (flags & TCP_RST) && flow->inside_ack && offset <= 2 * window;
	// The inside has acknowledged nothing yet, so only its SYN can be answered.
	if (!flow->inside_ack)
		return unacknowledged <= SYN_WINDOW;
	return unacknowledged <= SEGMENT_WINDOW && offset <= 2 * window;
}

// Adds the round trip of a handshake, in us. Without a `remote` it does not go into the path cache.
// Returns the path's, if that is shorter: many connections begin behind a queue.
static __always_inline __u32 note_handshake(struct uplink_counters *counters,
					    const struct address *remote, __u32 uplink, __u32 rtt,
					    __u64 now)
{
	__u32 known = remote ? update_rtt(remote, uplink, rtt, now) : 0;

	counters->rtt_us_sum += rtt;
	counters->rtt_samples++;
	return known && known < rtt ? known : rtt;
}

// Notes the first answer to a SYN. It gives the RTT if the SYN was sent once. Without a `remote`
// the RTT does not go into the path cache: any router may have sent the refusal.
static __always_inline void note_answer(struct flow *flow, const struct address *remote, __u64 now)
{
	__u32 rtt = (now - flow->created) / 1000;
	__u32 uplink = flow->uplink;
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &uplink);

	if (!counters || flow->choice == CHOICE_MIDSTREAM)
		return;
	counters->syn_answers++;
	if (flow->tx_packets == 1)
		flow->min_rtt = note_handshake(counters, remote, uplink, rtt, now) + FULL_PACKET_US;
}

// Returns 1 if the flow's uplink was chosen from the path cache.
static __always_inline int is_by_path_cache(const struct flow *flow)
{
	return flow->choice == CHOICE_REMEMBERED || flow->choice == CHOICE_PREDICTED;
}

static __always_inline void note_sent(struct __sk_buff *skb, const struct packet *packet,
				      struct flow *flow, __u32 uplink, __u64 now)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &uplink);
	__u32 packets = packets_in(skb), bytes = bytes_in(skb, packet);

	flow->last_seen = now;
	__sync_fetch_and_add(&flow->tx_packets, packets);
	__sync_fetch_and_add(&flow->tx_bytes, bytes);
	if (counters) {
		counters->tx_packets += packets;
		counters->tx_bytes += bytes;
	}
	if (packet->protocol == IPPROTO_TCP) {
		note_segment(packet, flow, counters, packets);
		note_stamp(skb, packet, flow, now);
	}
}

// Returns for how many us this CPU had received nothing by the uplink, as far as it fits.
static __always_inline __u32 note_received(struct __sk_buff *skb, const struct packet *packet,
					   struct flow *flow, __u32 uplink, __u64 now)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &uplink);
	__u32 packets = packets_in(skb), bytes = bytes_in(skb, packet);
	__u64 silence = 0;

	flow->last_seen = now;
	__sync_fetch_and_add(&flow->rx_packets, packets);
	__sync_fetch_and_add(&flow->rx_bytes, bytes);
	if (counters) {
		silence = (now - counters->last_rx) / 1000;
		counters->last_rx = now;
		counters->rx_packets += packets;
		counters->rx_bytes += bytes;
	}
	return silence < ~0U ? silence : ~0U;
}

#endif
