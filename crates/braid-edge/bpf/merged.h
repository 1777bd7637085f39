// Counts the packets of merged ones.
#ifndef BRAID_EDGE_MERGED_H
#define BRAID_EDGE_MERGED_H

#include "address.h"

// Returns the bytes of a merged packet that each of its segments has as well.
static __always_inline __u32 header_bytes(struct __sk_buff *skb, __be16 protocol)
{
	struct ip_packet ip = {};
	__u8 offset;

	if (parse_ip(skb, protocol, ETH_HLEN, &ip))
		return ETH_HLEN;
	if (ip.protocol == IPPROTO_UDP)
		return ip.l4 + sizeof(struct udphdr);
	if (ip.protocol == IPPROTO_TCP &&
	    !bpf_skb_load_bytes(skb, ip.l4 + TCP_FLAGS - 1, &offset, 1))
		return ip.l4 + (offset >> 4) * 4;
	return ip.l4;
}

// Returns the packets of a merged one. Virtual machines and others behind a TAP device merge
// packets without telling how many.
static __always_inline __u32 packets_of(struct __sk_buff *skb, __be16 protocol)
{
	__u32 size = skb->gso_size, segments = skb->gso_segs, bytes;

	if (!size || segments)
		return segments > 1 ? segments : 1;
	bytes = skb->len - header_bytes(skb, protocol);
	return bytes > size && bytes <= skb->len ? (bytes + size - 1) / size : 1;
}

#endif
