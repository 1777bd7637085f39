// Clamping TCP's maximum segment size to what the uplink carries: a LAN's hosts announce what their
// own link carries, and behind PPPoE or LTE nobody tells the remote, where ICMP is filtered, that
// less fits.
#ifndef BRAID_MSS_H
#define BRAID_MSS_H

#include "parse.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define MSS_BYTES      4

// Options looked at: the MSS is a SYN's first one as a rule.
#define MAX_OPTIONS 8

// Offset of the MSS value, or 0 if the options between the offsets have none.
static __always_inline __u32 find_mss(struct __sk_buff *skb, __u32 offset, __u32 end)
{
	for (int i = 0; i < MAX_OPTIONS; i++) {
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
			return *length == MSS_BYTES && offset + MSS_BYTES <= end ? offset + 2 : 0;
		offset += *length;
	}
	return 0;
}

// Lowers the MSS of the segment at `l4` to `most`. Takes offsets and no packet, so that it can be
// verified once and on its own. Not 0: the packet is spoilt and must be dropped.
__noinline int clamp_mss(struct __sk_buff *skb, __u32 l4, __u32 l4_header, __u32 most)
{
	__u32 offset = find_mss(skb, l4 + sizeof(struct tcphdr), l4 + l4_header);
	__be16 *mss = at(skb, offset, sizeof(*mss)), old, new;

	// A value across the checksum's words is legal and never seen; it is left alone.
	if (!offset || ((offset - l4) & 1) || !mss || bpf_ntohs(*mss) <= most)
		return 0;
	old = *mss;
	new = bpf_htons(most);
	*mss = new;
	return bpf_l4_csum_replace(skb, l4 + 16, old, new, 2);
}

static __always_inline int fit_segments(struct __sk_buff *skb, const struct packet *packet,
					__u32 mtu)
{
	__u32 headers = packet->l4 - packet->l3 + sizeof(struct tcphdr);

	if (!(packet->tcp_flags & TCP_SYN) || mtu <= headers)
		return 0;
	return clamp_mss(skb, packet->l4, packet->l4_header, mtu - headers);
}

#endif
