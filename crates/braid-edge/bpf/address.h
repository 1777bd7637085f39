// Parses the addresses of IP packets and replaces them, with checksums updated.
#ifndef BRAID_EDGE_ADDRESS_H
#define BRAID_EDGE_ADDRESS_H

#include <linux/udp.h>
#include "segment.h"

#define IP_OFFSET	 0x1fff // of a fragment
#define ICMP_V6_CHECKSUM 2

// Addresses and headers of a packet, or of the packet inside an ICMP error.
struct ip_packet {
	struct address source;
	struct address dest;
	__u32 l3;     // offset of the IP header
	__u32 l4;     // offset of the transport header
	__u32 length; // of the IP packet
	__u8 family;  // 4 or 6
	__u8 protocol;
	__u8 no_l4_header; // a fragment other than the first
	__u8 tos;	   // TOS or traffic class
};

static __always_inline void map_v4(struct address *to, __be32 v4)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = v4;
}

// Returns nonzero if this is no IP packet with a whole header. The first fragment of an IPv6 packet
// counts as another protocol: its checksum is not updated, and is right again behind the remote
// edge.
static __always_inline int parse_ip(struct __sk_buff *skb, __be16 protocol, __u32 l3,
				    struct ip_packet *ip)
{
	struct iphdr v4;
	struct ipv6hdr v6;

	ip->l3 = l3;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, l3, &v4, sizeof(v4)) || v4.version != 4 || v4.ihl < 5)
			return -1;
		map_v4(&ip->source, v4.saddr);
		map_v4(&ip->dest, v4.daddr);
		ip->l4 = l3 + v4.ihl * 4;
		ip->length = bpf_ntohs(v4.tot_len);
		ip->family = 4;
		ip->protocol = v4.protocol;
		ip->no_l4_header = (v4.frag_off & bpf_htons(IP_OFFSET)) != 0;
		ip->tos = v4.tos;
		return 0;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, l3, &v6, sizeof(v6)) || v6.version != 6)
			return -1;
		__builtin_memcpy(&ip->source, &v6.saddr, sizeof(ip->source));
		__builtin_memcpy(&ip->dest, &v6.daddr, sizeof(ip->dest));
		ip->l4 = l3 + sizeof(v6);
		ip->length = sizeof(v6) + bpf_ntohs(v6.payload_len);
		ip->family = 6;
		ip->protocol = v6.nexthdr;
		ip->no_l4_header = 0;
		ip->tos = v6.priority << 4 | v6.flow_lbl[0] >> 4;
		return 0;
	}
	return -1;
}

// Returns the offset of the checksum that covers the addresses, 0 if there is none to update.
static __always_inline __u32 l4_checksum_offset(const struct ip_packet *ip)
{
	if (ip->no_l4_header)
		return 0;
	if (ip->protocol == IPPROTO_TCP)
		return ip->l4 + offsetof(struct tcphdr, check);
	if (ip->protocol == IPPROTO_UDP)
		return ip->l4 + offsetof(struct udphdr, check);
	if (ip->family == 6 && ip->protocol == IPPROTO_ICMPV6)
		return ip->l4 + ICMP_V6_CHECKSUM;
	return 0;
}

// Returns the amount that replacing `from` by `to` adds to a checksum (RFC 1624).
static __always_inline __u64 checksum_difference(const struct address *from,
						 const struct address *to)
{
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (__u64)(__u32)~from->word[i] + to->word[i];
	return sum;
}

static __always_inline __u32 fold_checksum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

// Replaces the addresses of an IP header, and updates the header's checksum if it has one.
static __always_inline int rewrite_ip_header(struct __sk_buff *skb, const struct ip_packet *now,
					     const struct address *source,
					     const struct address *dest)
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

// Replaces a packet's addresses. Nonzero: the packet is damaged and must be dropped.
static __always_inline int rewrite_addresses(struct __sk_buff *skb, const struct ip_packet *now,
					     const struct address *source,
					     const struct address *dest)
{
	__u64 mark = now->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 check = l4_checksum_offset(now);
	__u64 sum =
		checksum_difference(&now->source, source) + checksum_difference(&now->dest, dest);

	// A failure means that the transport header is cut short: such a packet is useless.
	if (check &&
	    bpf_l4_csum_replace(skb, check, 0, fold_checksum(sum), mark | BPF_F_PSEUDO_HDR))
		return -1;
	return rewrite_ip_header(skb, now, source, dest);
}

#endif
