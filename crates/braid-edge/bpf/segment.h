// Classifies packets: TCP segments that occupy sequence numbers, pure ACKs, and everything else.
#ifndef BRAID_EDGE_SEGMENT_H
#define BRAID_EDGE_SEGMENT_H

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

#define IP_FRAGMENT 0x3fff // more fragments, or an offset
#define TCP_FIN	    0x01
#define TCP_SYN	    0x02
#define TCP_RST	    0x04
#define TCP_FLAGS   13

enum segment {
	NO_SEGMENT,	   // not TCP, or a fragment
	PURE_ACK,	   // takes no sequence number: its place among others means nothing
	SEQUENCED_SEGMENT, // data, SYN, FIN or RST
};

// Sets `seq` to the sequence number of a TCP segment.
static __always_inline enum segment segment_at(struct __sk_buff *skb, __u32 offset, __u32 bytes,
					       __u32 *seq)
{
	__u8 tcp[TCP_FLAGS + 1];

	if (bpf_skb_load_bytes(skb, offset, tcp, sizeof(tcp)))
		return NO_SEGMENT;
	*seq = (__u32)tcp[4] << 24 | (__u32)tcp[5] << 16 | (__u32)tcp[6] << 8 | tcp[7];
	if (tcp[TCP_FLAGS] & (TCP_SYN | TCP_FIN | TCP_RST))
		return SEQUENCED_SEGMENT;
	return bytes > (__u32)(tcp[12] >> 4) * 4 ? SEQUENCED_SEGMENT : PURE_ACK;
}

// IPv6 extension headers are not parsed: such packets stay on their flow's path.
static __always_inline enum segment numbered_segment_of(struct __sk_buff *skb, __be16 protocol,
							__u32 *seq)
{
	struct iphdr v4;
	struct ipv6hdr v6;
	__u32 header;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &v4, sizeof(v4)))
			return NO_SEGMENT;
		header = v4.ihl * 4;
		if (v4.protocol != IPPROTO_TCP || (v4.frag_off & bpf_htons(IP_FRAGMENT)) ||
		    bpf_ntohs(v4.tot_len) < header)
			return NO_SEGMENT;
		return segment_at(skb, ETH_HLEN + header, bpf_ntohs(v4.tot_len) - header, seq);
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &v6, sizeof(v6)))
			return NO_SEGMENT;
		if (v6.nexthdr != IPPROTO_TCP)
			return NO_SEGMENT;
		return segment_at(skb, ETH_HLEN + sizeof(v6), bpf_ntohs(v6.payload_len), seq);
	}
	return NO_SEGMENT;
}

static __always_inline enum segment segment_of(struct __sk_buff *skb, __be16 protocol)
{
	__u32 seq;

	return numbered_segment_of(skb, protocol, &seq);
}

#endif
