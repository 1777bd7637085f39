// The two ends of an IP packet: reading them, and putting others in with checksums mended.
#ifndef BRAID_EDGE_ADDRESS_H
#define BRAID_EDGE_ADDRESS_H

#include <linux/udp.h>
#include "segment.h"

#define IP_OFFSET	 0x1fff // of a fragment
#define ICMP_V6_CHECKSUM 2

#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

// The ends of a packet, or of one that an error quotes.
struct ends {
	struct address source;
	struct address dest;
	__u32 l3;     // where its IP header begins
	__u32 l4;     // and what is behind it
	__u32 length; // of the packet without what is in front of it
	__u8 family;  // 4 or 6
	__u8 protocol;
	__u8 headless; // a fragment without the header that has the checksum
	__u8 service;  // TOS or traffic class
};

static __always_inline void map_v4(struct address *to, __be32 v4)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = v4;
}

// Not 0: no IP packet with a whole header. The first fragment of IPv6 counts as another protocol:
// its checksum is mended by nobody, and is right again at the far edge.
static __always_inline int read_ends(struct __sk_buff *skb, __be16 protocol, __u32 l3,
				     struct ends *ends)
{
	struct iphdr v4;
	struct ipv6hdr v6;

	ends->l3 = l3;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, l3, &v4, sizeof(v4)) || v4.version != 4 || v4.ihl < 5)
			return -1;
		map_v4(&ends->source, v4.saddr);
		map_v4(&ends->dest, v4.daddr);
		ends->l4 = l3 + v4.ihl * 4;
		ends->length = bpf_ntohs(v4.tot_len);
		ends->family = 4;
		ends->protocol = v4.protocol;
		ends->headless = (v4.frag_off & bpf_htons(IP_OFFSET)) != 0;
		ends->service = v4.tos;
		return 0;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, l3, &v6, sizeof(v6)) || v6.version != 6)
			return -1;
		__builtin_memcpy(&ends->source, &v6.saddr, sizeof(ends->source));
		__builtin_memcpy(&ends->dest, &v6.daddr, sizeof(ends->dest));
		ends->l4 = l3 + sizeof(v6);
		ends->length = sizeof(v6) + bpf_ntohs(v6.payload_len);
		ends->family = 6;
		ends->protocol = v6.nexthdr;
		ends->headless = 0;
		ends->service = v6.priority << 4 | v6.flow_lbl[0] >> 4;
		return 0;
	}
	return -1;
}

// Where the checksum that covers addresses is, or 0 where there is none that we must mend.
static __always_inline __u32 checksum_at(const struct ends *ends)
{
	if (ends->headless)
		return 0;
	if (ends->protocol == IPPROTO_TCP)
		return ends->l4 + offsetof(struct tcphdr, check);
	if (ends->protocol == IPPROTO_UDP)
		return ends->l4 + offsetof(struct udphdr, check);
	if (ends->family == 6 && ends->protocol == IPPROTO_ICMPV6)
		return ends->l4 + ICMP_V6_CHECKSUM;
	return 0;
}

// What replacing `from` by `to` adds to a sum (RFC 1624).
static __always_inline __u64 difference(const struct address *from, const struct address *to)
{
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (__u64)(__u32)~from->word[i] + to->word[i];
	return sum;
}

static __always_inline __u32 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

// Puts addresses into an IP header alone, with its own checksum if it has one.
static __always_inline int put_header(struct __sk_buff *skb, const struct ends *now,
				      const struct address *source, const struct address *dest)
{
	__u32 check = now->l3 + offsetof(struct iphdr, check);
	struct address both[2];

	if (now->family == 6) {
		both[0] = *source;
		both[1] = *dest;
		return bpf_skb_store_bytes(skb, now->l3 + offsetof(struct ipv6hdr, saddr), both,
					   sizeof(both), BPF_F_RECOMPUTE_CSUM);
	}
	both[0].word[0] = source->word[3];
	both[0].word[1] = dest->word[3];
	if (bpf_l3_csum_replace(skb, check, now->source.word[3], source->word[3], 4) ||
	    bpf_l3_csum_replace(skb, check, now->dest.word[3], dest->word[3], 4))
		return -1;
	return bpf_skb_store_bytes(skb, now->l3 + offsetof(struct iphdr, saddr), both, 8, 0);
}

// Gives a packet other ends. Not 0: it is spoilt and must be dropped.
static __always_inline int put_ends(struct __sk_buff *skb, const struct ends *now,
				    const struct address *source, const struct address *dest)
{
	__u64 mark = now->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 check = checksum_at(now);
	__u64 sum = difference(&now->source, source) + difference(&now->dest, dest);

	// A header without its checksum is too short to matter to anybody.
	if (check && bpf_l4_csum_replace(skb, check, 0, folded(sum), mark | BPF_F_PSEUDO_HDR))
		return -1;
	return put_header(skb, now, source, dest);
}

#endif
