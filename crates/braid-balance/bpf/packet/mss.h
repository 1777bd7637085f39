// Clamping TCP's maximum segment size to the uplink's MTU. A LAN's hosts announce their own link's
// size; behind PPPoE or LTE, and where ICMP is filtered, the remote does not learn that less fits.
#ifndef BRAID_MSS_H
#define BRAID_MSS_H

#include "packet/parse.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define MSS_BYTES      4

// Options examined: the MSS is usually a SYN's first one.
#define MAX_TCP_OPTIONS 8

// Returns the offset of the MSS value in the options of the segment at `l4`, or 0 if there is none,
// or none that can be changed: a value across the checksum's words is legal and never seen. Takes
// offsets and no packet, so that it can be verified once and on its own.
__noinline __u32 find_mss(struct __sk_buff *skb, __u32 l4, __u32 l4_header)
{
	__u32 offset = l4 + sizeof(struct tcphdr), end = l4 + l4_header;

	for (int i = 0; i < MAX_TCP_OPTIONS; i++) {
		__u8 *kind = at(skb, offset, 1), *length;

		if (!kind || offset >= end || *kind == TCP_OPTION_END)
			return 0;
		if (*kind == TCP_OPTION_NOP) {
			offset++;
			continue;
		}
		length = at(skb, offset + 1, 1);
		if (!length || *length < 2)
			return 0;
		if (*kind == TCP_OPTION_MSS)
			return *length == MSS_BYTES && offset + MSS_BYTES <= end &&
					       !((offset - l4) & 1)
				       ? offset + 2
				       : 0;
		offset += *length;
	}
	return 0;
}

// Returns the MSS at such an offset, or 0 if there is none.
static __always_inline __u32 read_mss(struct __sk_buff *skb, __u32 offset)
{
	__be16 *mss = at(skb, offset, sizeof(*mss));

	return offset && mss ? bpf_ntohs(*mss) : 0;
}

// Replaces the MSS at such an offset. Returns non-zero if the packet is damaged and must be
// dropped.
static __always_inline int write_mss(struct __sk_buff *skb, __u32 l4, __u32 offset, __u32 wanted)
{
	__be16 *mss = at(skb, offset, sizeof(*mss)), old, new;

	if (!mss)
		return -1;
	old = *mss;
	new = bpf_htons(wanted);
	*mss = new;
	return bpf_l4_csum_replace(skb, l4 + 16, old, new, 2);
}

// Lowers the MSS to `most`. Returns non-zero if as above.
__noinline int clamp_mss(struct __sk_buff *skb, __u32 l4, __u32 l4_header, __u32 most)
{
	__u32 offset = find_mss(skb, l4, l4_header);

	return read_mss(skb, offset) <= most ? 0 : write_mss(skb, l4, offset, most);
}

static __always_inline int clamp_segments(struct __sk_buff *skb, const struct packet *packet,
					  __u32 mtu)
{
	__u32 headers = packet->l4 - packet->l3 + sizeof(struct tcphdr);

	if (!(packet->tcp_flags & TCP_SYN) || mtu <= headers)
		return 0;
	return clamp_mss(skb, packet->l4, packet->l4_header, mtu - headers);
}

#endif
