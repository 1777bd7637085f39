// Resetting TCP connections towards the inside when their uplink has died; otherwise they would
// hang until their own timers expire. A segment is turned into the reset that a host without such a
// connection would answer it with (RFC 9293 §3.10.7.1), and goes back where it came from.
#ifndef BRAID_TCP_RESET_H
#define BRAID_TCP_RESET_H

#include "flow/flow.h"
#include "egress.h"

#define TCP_CHECKSUM_OFFSET 16 // offset in its header
#define RESET_TTL	    64

// Returns 1 if the packet belongs to a connection that is over and must be answered with a reset. A
// SYN opens a new connection, and a reset needs no answer. Hosts on the uplink's own link are
// reachable even if the uplink leads nowhere.
static __always_inline int needs_reset(const struct packet *packet, const struct flow *flow,
				       const struct uplink *uplink)
{
	if (packet->tcp_flags & (TCP_SYN | TCP_RST))
		return 0;
	return (flow->flags & FLOW_RESET_SENT) ||
	       (uplink && uplink->resets_tcp & (1 << packet->family) &&
		flow->choice != CHOICE_ON_LINK);
}

// Returns 1 if the device is to complete the checksum. The sk_buff does not show this to a program,
// but the helper that updates a checksum for a changed word knows, and leaves a partial one as it
// is.
static __always_inline int is_partial(struct __sk_buff *skb, __u32 offset)
{
	__sum16 *check = at(skb, offset, sizeof(*check)), before;

	if (!check)
		return 0;
	before = *check;
	if (bpf_l4_csum_replace(skb, offset, 0, bpf_htons(1), 2))
		return 0;
	check = at(skb, offset, sizeof(*check));
	if (check && *check == before)
		return 1;
	bpf_l4_csum_replace(skb, offset, bpf_htons(1), 0, 2);
	return 0;
}

// Returns the sum of a reset's pseudo-header and, unless the device will add it, its header.
static __always_inline __u16 reset_checksum(const struct packet *packet, const struct tcphdr *tcp,
					    int partial)
{
	const __u16 *half = (const __u16 *)tcp;
	__u64 sum = bpf_htons(sizeof(*tcp)) + bpf_htons(IPPROTO_TCP);

	for (int i = packet->family == FAMILY_V4 ? 3 : 0; i < 4; i++)
		sum += (__u64)packet->source.word[i] + packet->dest.word[i];
	for (int i = 0; !partial && i < sizeof(*tcp) / 2; i++)
		sum += half[i];
	return fold16(sum);
}

static __always_inline int swap_ip_ends(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = at(skb, packet->l3, sizeof(*ip));
	__u16 length = packet->l4 - packet->l3 + sizeof(struct tcphdr);
	struct {
		__be16 length;
		__u8 next;
		__u8 hops;
		struct address source;
		struct address dest;
	} v6 = {
		.length = bpf_htons(length - sizeof(struct ipv6hdr)),
		.hops = RESET_TTL,
		.source = packet->dest,
		.dest = packet->source,
	};

	if (!ip)
		return -1;
	if (packet->family == FAMILY_V6) {
		v6.next = ((__u8 *)ip)[6];
		return bpf_skb_store_bytes(skb, packet->l3 + 4, &v6, sizeof(v6),
					   BPF_F_RECOMPUTE_CSUM);
	}
	ip->check = replace32(ip->check, ip->tot_len, bpf_htons(length));
	ip->check = replace32(ip->check, ip->frag_off, 0);
	ip->check = replace32(ip->check, bpf_htons(ip->ttl << 8), bpf_htons(RESET_TTL << 8));
	ip->tot_len = bpf_htons(length);
	ip->frag_off = 0;
	ip->ttl = RESET_TTL;
	ip->saddr = packet->dest.word[3];
	ip->daddr = packet->source.word[3];
	return 0;
}

// Turns the segment into the reset that answers it; its sequence number is the one that the sender
// expects. Returns non-zero if the packet is damaged and must be dropped.
static __noinline int make_reset(struct __sk_buff *skb, const struct packet *packet)
{
	struct tcphdr tcp = {.doff = sizeof(tcp) / 4, .rst = 1};
	int partial;

	if (!packet)
		return -1;
	tcp.source = packet->dest_port;
	tcp.dest = packet->source_port;
	if (packet->tcp_flags & TCP_ACK) {
		tcp.seq = bpf_htonl(packet->ack);
	} else {
		__u32 fin = packet->tcp_flags & TCP_FIN;

		tcp.ack = 1;
		tcp.ack_seq = bpf_htonl(packet->sequence + packet->payload + fin);
	}
	partial = is_partial(skb, packet->l4 + TCP_CHECKSUM_OFFSET);
	tcp.check = reset_checksum(packet, &tcp, partial);
	if (!partial)
		tcp.check = ~tcp.check;
	if (bpf_skb_change_tail(skb, packet->l4 + sizeof(tcp), 0) ||
	    bpf_skb_store_bytes(skb, packet->l4, &tcp, sizeof(tcp),
				BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		return -1;
	return swap_ip_ends(skb, packet);
}

static __always_inline void mark_reset(struct flow *flow, __u64 now)
{
	flow->flags |= FLOW_RESET_SENT;
	flow->state = STATE_CLOSING;
	flow->last_seen = now;
}

// Redirects the packet back into the stack, which it was leaving by `skb->ifindex`. The device's
// link-layer address is the frame's source.
static __always_inline int redirect_to_stack(struct __sk_buff *skb)
{
	__u8 mac[ETH_ALEN];

	if (bpf_skb_load_bytes(skb, ETH_ALEN, mac, sizeof(mac)) ||
	    bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0))
		return DROP;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

// Redirects the frame back to the station that sent it.
static __always_inline int back_to_sender(struct __sk_buff *skb)
{
	__u8 macs[2 * ETH_ALEN], turned[2 * ETH_ALEN];

	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return DROP;
	__builtin_memcpy(turned, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(turned + ETH_ALEN, macs, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0))
		return DROP;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
