// Reading headers: never beyond the packet, never trusting a length that the packet gives.
#ifndef BRAID_PARSE_H
#define BRAID_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

// Headers are aligned to 2 bytes only, so their words are read in halves: on processors that
// require alignment the kernel refuses programs that read them whole.
#pragma pack(push, 2)
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_MORE_FRAGMENTS  0x2000

#define VLAN_ID 0x0fff

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define ICMP_V4_ECHO_REPLY	  0
#define ICMP_V4_UNREACHABLE	  3
#define ICMP_V4_ECHO		  8
#define ICMP_V4_TIME_EXCEEDED	  11
#define ICMP_V4_PARAMETER_PROBLEM 12
#define ICMP_V6_UNREACHABLE	  1
#define ICMP_V6_PARAMETER_PROBLEM 4
#define ICMP_V6_ECHO		  128
#define ICMP_V6_ECHO_REPLY	  129

// IPv6 extension headers followed before giving up.
#define MAX_EXTENSION_HEADERS 6

enum parse_result { PARSED, PARSE_NOT_IP, PARSE_MALFORMED };

enum fragment_place { WHOLE, FIRST_FRAGMENT, LATER_FRAGMENT };

struct ports_header {
	__be16 source;
	__be16 dest;
};

struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be16 id;
	__be16 sequence;
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset_flags;
	__be32 id;
};
#pragma pack(pop)

// The parsed headers of a packet. Offsets count from the start of the frame.
struct packet {
	struct address source;
	struct address dest;
	__u32 l3;
	__u32 l4;
	__u32 l4_header; // bytes of the TCP or UDP header
	__u32 fragment_id;
	__u32 sequence;	    // TCP, host order
	__u32 ack;	    // TCP, host order
	__u32 payload;	    // bytes after the TCP or UDP header
	__be16 source_port; // ICMP: type and code instead
	__be16 dest_port;   // ICMP: id
	union {
		struct {
			__u8 family;
			__u8 protocol;
			__u8 fragment;
			__u8 tcp_flags;
		};
		__u32 kind; // all four
	};
	__u8 hops;  // TTL or hop limit
	__u8 realm; // of the outer address that an inbound packet is for
};

// Scratch space of one CPU for opening and promoting a flow. It is in a per-CPU map and not on the
// stack: functions that take it from there are verified once, on their own, instead of once per
// path that leads to them, and Linux 5.10 allows such functions no pointers but the context. The
// map is not pinned.
struct pkt_ctx {
	struct packet packet;
	struct tuple key;
	struct tuple reverse;
	struct flow flow;
	struct flow moved_flow; // the flow before it moved
	__u32 is_moving;	// not 0: the flow moves
	__u32 retried;		// uplink that has left the SYN unanswered, by a cached path, + 1
	struct replay_buffer replay;
	__u32 uplink;
	__u32 choice;
	__u32 class;
	__u32 rule; // that chose the class, + 1; 0: none
	struct sticky_key site;
	__u32 sticky; // s that the client keeps its uplink for the site; 0: it does not
	// Choice by the path cache.
	__u32 lb_method;
	struct path_key prefix;
	__u32 usable;	  // bits of the candidates that take flows
	__u32 silent;	  // those that have left a SYN to the prefix unanswered
	__u32 answered;	  // not 0: another attempt was answered, and its answer reset
	__u32 cached;	  // bits of the candidates with a cached RTT
	__u32 worthwhile; // bits of the candidates that a race is worthwhile on
	__u32 best;	  // of the cached ones
	__u64 best_time;
	__u64 best_last_opened;	   // when that uplink was last given a flow, ns
	__u64 scores[MAX_UPLINKS]; // of the cached ones, under LB_FASTEST
	__u64 best_default_time;
	__u32 best_default; // the uplink with that time
	__u32 candidates;   // bits of the uplinks that the flow is raced on; 0: none
	__u32 attempts;	    // bits of the uplinks that have a port for it
	__u32 preferred;
	__u32 refused; // not 0: some uplink has refused the repeated SYN
	struct race race;
	__u32 mss_offset; // of the SYN to be copied, and its MSS; 0: none
	__u32 mss;
	__u32 addressed;   // the uplink that it was last translated for, + 1; 0: none yet
	__u32 copy_failed; // not 0: a translation has failed
	__be16 copy_port;  // current source port of the SYN to be copied
	__u32 race_result; // of handle_race_reply()
	__u32 decided;	   // the reply's race has a winner
};

ARRAY_MAP(pkt_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, struct pkt_ctx);

static __always_inline struct pkt_ctx *pkt_ctx(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pkt_scratch, &zero);
}

// Returns 1 for a frame of a VLAN. It shows up on the parent device first, but belongs to the VLAN
// device. Tag 0 is priority.
static __always_inline int is_tagged(const struct __sk_buff *skb)
{
	return skb->vlan_present && (skb->vlan_tci & VLAN_ID);
}

// Returns a pointer to `size` bytes at `offset`, or NULL beyond the linear part. The mask gives the
// verifier a bound that survives spills to the stack; real offsets are below it. It also shows that
// the offset of anything longer than a byte is even.
static __always_inline void *at(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *data = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;

	if (size > 1)
		asm volatile("%0 &= 0x1fe" : "+r"(offset));
	else
		asm volatile("%0 &= 0x1ff" : "+r"(offset));
	if (data + offset + size > data_end)
		return NULL;
	return data + offset;
}

static __always_inline void map_v4(struct address *to, __be32 from)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = from;
}

static __always_inline void copy_v6(struct address *to, const void *from)
{
	__builtin_memcpy(to, from, sizeof(*to));
}

static __always_inline int same_address(const struct address *a, const struct address *b)
{
	return !((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1]) | (a->word[2] ^ b->word[2]) |
		 (a->word[3] ^ b->word[3]));
}

// Reads the transport header; `left` is the length after `packet->l4` that the IP header gives.
static __always_inline int parse_transport(struct __sk_buff *skb, struct packet *packet, __u32 left)
{
	packet->source_port = 0;
	packet->dest_port = 0;
	packet->tcp_flags = 0;
	packet->l4_header = 0;
	packet->payload = 0;
	if (packet->fragment == LATER_FRAGMENT)
		return PARSED;

	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = at(skb, packet->l4, sizeof(*tcp));

		if (!tcp || left < sizeof(*tcp))
			return PARSE_MALFORMED;
		packet->l4_header = tcp->doff * 4;
		if (packet->l4_header < sizeof(*tcp) || packet->l4_header > left)
			return PARSE_MALFORMED;
		packet->source_port = tcp->source;
		packet->dest_port = tcp->dest;
		packet->tcp_flags = ((__u8 *)tcp)[13];
		packet->sequence = bpf_ntohl(tcp->seq);
		packet->ack = bpf_ntohl(tcp->ack_seq);
		packet->payload = left - packet->l4_header;
	} else if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = at(skb, packet->l4, sizeof(*udp));

		if (!udp || left < sizeof(*udp) || bpf_ntohs(udp->len) < sizeof(*udp))
			return PARSE_MALFORMED;
		packet->l4_header = sizeof(*udp);
		packet->payload = left - sizeof(*udp);
		packet->source_port = udp->source;
		packet->dest_port = udp->dest;
	} else if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6) {
		struct icmp_header *icmp = at(skb, packet->l4, sizeof(*icmp));

		if (!icmp || left < sizeof(*icmp))
			return PARSE_MALFORMED;
		packet->source_port = bpf_htons(icmp->type << 8 | icmp->code);
		packet->dest_port = icmp->id;
	}
	return PARSED;
}

static __always_inline int parse_v4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr *ip = at(skb, packet->l3, sizeof(*ip));
	__u32 length, header, fragment;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return PARSE_MALFORMED;
	header = ip->ihl * 4;
	length = bpf_ntohs(ip->tot_len);
	if (!length && skb->gso_size) // "big TCP": the length does not fit its field
		length = skb->len - packet->l3;
	if (length < header || length > skb->len - packet->l3)
		return PARSE_MALFORMED;

	packet->family = FAMILY_V4;
	packet->protocol = ip->protocol;
	packet->hops = ip->ttl;
	packet->l4 = packet->l3 + header;
	packet->fragment_id = ip->id;
	map_v4(&packet->source, ip->saddr);
	map_v4(&packet->dest, ip->daddr);
	fragment = bpf_ntohs(ip->frag_off);
	packet->fragment = fragment & IP_FRAGMENT_OFFSET  ? LATER_FRAGMENT
			   : fragment & IP_MORE_FRAGMENTS ? FIRST_FRAGMENT
							  : WHOLE;
	if (packet->protocol == IPPROTO_ICMPV6)
		return PARSE_MALFORMED;
	return parse_transport(skb, packet, length - header);
}

static __always_inline int parse_v6(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr *ip = at(skb, packet->l3, sizeof(*ip));
	__u32 left, offset = packet->l3 + sizeof(*ip);
	__u8 next;

	if (!ip || ip->version != 6)
		return PARSE_MALFORMED;
	left = bpf_ntohs(ip->payload_len);
	if (!left && skb->gso_size)
		left = skb->len - offset;
	if (left > skb->len - offset)
		return PARSE_MALFORMED;

	packet->family = FAMILY_V6;
	packet->hops = ip->hop_limit;
	packet->fragment = WHOLE;
	packet->fragment_id = 0;
	copy_v6(&packet->source, &ip->saddr);
	copy_v6(&packet->dest, &ip->daddr);
	next = ip->nexthdr;

	for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
		struct fragment_header *header;
		__u32 size = 8;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		// Another header after a later fragment's header is payload, not a header.
		if (packet->fragment == LATER_FRAGMENT)
			break;
		header = at(skb, offset, sizeof(*header));
		if (!header || offset > HEADER_REACH)
			return PARSE_MALFORMED;
		if (next == IPPROTO_FRAGMENT) {
			__u32 place = bpf_ntohs(header->offset_flags);

			packet->fragment_id = header->id;
			if (place & ~7u)
				packet->fragment = LATER_FRAGMENT;
			else if (place & 1)
				packet->fragment = FIRST_FRAGMENT;
		} else {
			size = (header->reserved + 1) * 8;
		}
		if (size > left)
			return PARSE_MALFORMED;
		next = header->next;
		offset += size;
		left -= size;
	}
	if (offset > packet->l3 + HEADER_REACH || next == IPPROTO_ICMP)
		return PARSE_MALFORMED;
	packet->protocol = next;
	packet->l4 = offset;
	return parse_transport(skb, packet, left);
}

// Returns 1 if there are options or extension headers between the first IP header and the transport
// header.
static __always_inline int has_options(struct __sk_buff *skb, __u32 l3)
{
	__u8 *first = at(skb, l3, 1), *next = at(skb, l3 + 6, 1);

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return first && (*first & 0xf) > 5;
	return next && (*next == IPPROTO_HOPOPTS || *next == IPPROTO_ROUTING ||
			*next == IPPROTO_DSTOPTS || *next == IPPROTO_FRAGMENT);
}

// Makes the verifier forget the values it has tracked while parsing, or it would check all that
// follows once for each way through the headers: it knows nothing of a value read from the sk_buff,
// even a zero.
static __always_inline void forget_values(struct __sk_buff *skb, struct packet *packet)
{
	volatile __u32 *scratch = &skb->cb[0];
	__u32 zero;

	*scratch = 0;
	zero = *scratch;
	for (int i = 0; i < 3; i++) {
		packet->source.word[i] |= zero;
		packet->dest.word[i] |= zero;
	}
	packet->kind |= zero;
	packet->l4_header |= zero;
	packet->fragment_id |= zero;
	packet->sequence |= zero;
	packet->ack |= zero;
	packet->payload |= zero;
	packet->source_port |= zero;
	packet->dest_port |= zero;
}

// Fills `packet` from the frame, whose IP header begins at `l3`.
//
// A function of its own, so that the verifier forgets the many ways through the headers before it
// goes on: it then checks a twentieth of the states.
static __noinline int parse(struct __sk_buff *skb, __u32 l3, struct packet *packet)
{
	__u32 wanted = l3 + sizeof(struct ipv6hdr) + sizeof(struct tcphdr);

	packet->l3 = l3;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return PARSE_NOT_IP;
	if (skb->len < l3)
		return PARSE_MALFORMED;
	// Headers may lie in pages. The usual ones fit `wanted`; longer ones are rare and can be
	// recognised.
	if (has_options(skb, l3))
		wanted = 256;
	if (skb->data_end - skb->data < wanted && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < 256 ? skb->len : 256);
	if (skb->protocol == bpf_htons(ETH_P_IP) ? parse_v4(skb, packet) : parse_v6(skb, packet))
		return PARSE_MALFORMED;
	forget_values(skb, packet);
	return PARSED;
}

// Returns 1 for a packet to QUIC's port.
static __always_inline int is_quic(const struct packet *packet)
{
	return packet->protocol == IPPROTO_UDP && packet->dest_port == bpf_htons(QUIC_PORT);
}

#endif
