// Rewriting one end of a packet: address, port or id, hop limit, checksums.
#ifndef BRAID_REWRITE_H
#define BRAID_REWRITE_H

#include "packet/checksum.h"
#include "packet/parse.h"

enum side { SOURCE, DEST };

// The change to one end of a packet.
struct rewrite {
	struct address from;
	struct address to;
	__be16 from_port;
	__be16 to_port;
	__u8 side;
	__u8 hop; // 1: this machine forwards the packet and decrements its hop limit
};

// Returns the offset of the transport checksum, or 0 if the protocol has none to update. ICMPv4's
// does not cover addresses; SCTP's CRC covers neither addresses nor anything else we change.
static __always_inline __u32 checksum_offset(const struct packet *packet)
{
	if (packet->protocol == IPPROTO_TCP)
		return packet->l4 + 16;
	if (packet->protocol == IPPROTO_UDP)
		return packet->l4 + 6;
	if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6)
		return packet->l4 + 2;
	return 0;
}

// Updates the transport checksum. The helpers know what a program cannot see: whether it is
// complete, partial (the device finishes it) or summed by the receiving device, and update the
// sk_buff accordingly. A zero UDP/IPv4 checksum means "none" and stays zero.
static __always_inline int update_transport_checksum(struct __sk_buff *skb,
						     const struct packet *packet,
						     const struct rewrite *rewrite)
{
	__u64 mark = packet->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 offset = checksum_offset(packet);

	if (!offset || packet->fragment == LATER_FRAGMENT)
		return 0;
	if (packet->protocol != IPPROTO_ICMP) {
		__u32 difference =
			packet->family == FAMILY_V4
				? fold32((__u64)(__u32)~rewrite->from.word[3] + rewrite->to.word[3])
				: address_difference(&rewrite->from, &rewrite->to);

		if (bpf_l4_csum_replace(skb, offset, 0, difference, mark | BPF_F_PSEUDO_HDR))
			return -1;
	}
	if (rewrite->from_port == rewrite->to_port)
		return 0;
	return bpf_l4_csum_replace(skb, offset, rewrite->from_port, rewrite->to_port, mark | 2);
}

// Writes the new address. The header sums to the same value before and after, so every sum over it
// (an ICMP error that quotes it, a receiving device's sum of the packet) stays right without help.
static __always_inline void replace_address(struct iphdr *ip, const struct rewrite *rewrite)
{
	ip->check = replace32(ip->check, rewrite->from.word[3], rewrite->to.word[3]);
	if (rewrite->side == SOURCE)
		ip->saddr = rewrite->to.word[3];
	else
		ip->daddr = rewrite->to.word[3];
}

static __always_inline int rewrite_v4(struct __sk_buff *skb, const struct packet *packet,
				      const struct rewrite *rewrite)
{
	struct iphdr *ip = at(skb, packet->l3, sizeof(*ip));

	if (!ip)
		return -1;
	replace_address(ip, rewrite);
	if (rewrite->hop) {
		ip->check = replace32(ip->check, bpf_htons(ip->ttl << 8),
				      bpf_htons((ip->ttl - 1) << 8));
		ip->ttl--;
	}
	return 0;
}

// IPv6 has no header checksum to offset the change, hence BPF_F_RECOMPUTE_CSUM. Hop limit and
// address go in one write, as they are neighbours (offsets 7, 8 and 24).
static __always_inline int rewrite_v6(struct __sk_buff *skb, const struct packet *packet,
				      const struct rewrite *rewrite)
{
	struct {
		__u8 pad[7];
		__u8 hops;
		struct address source;
		struct address dest;
	} header = {
		.hops = packet->hops - 1,
		.source = rewrite->side == SOURCE ? rewrite->to : packet->source,
		.dest = rewrite->to,
	};

	if (rewrite->side == SOURCE) {
		if (rewrite->hop)
			return bpf_skb_store_bytes(skb, packet->l3 + 7, &header.hops, 17,
						   BPF_F_RECOMPUTE_CSUM);
		return bpf_skb_store_bytes(skb, packet->l3 + 8, &header.source, 16,
					   BPF_F_RECOMPUTE_CSUM);
	}
	if (rewrite->hop)
		return bpf_skb_store_bytes(skb, packet->l3 + 7, &header.hops, 33,
					   BPF_F_RECOMPUTE_CSUM);
	return bpf_skb_store_bytes(skb, packet->l3 + 24, &header.dest, 16, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int rewrite_port(struct __sk_buff *skb, const struct packet *packet,
					const struct rewrite *rewrite)
{
	__u32 offset = packet->l4;
	__be16 *port;

	if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6)
		offset += 4;
	else if (rewrite->side == DEST)
		offset += 2;
	port = at(skb, offset, sizeof(*port));
	if (!port)
		return -1;
	*port = rewrite->to_port;
	return 0;
}

// Replaces one end of the packet. Returns non-zero if the packet is damaged and must be dropped.
static __noinline int rewrite_packet(struct __sk_buff *skb, const struct packet *packet,
				     const struct rewrite *rewrite)
{
	if (!packet || !rewrite)
		return -1;
	if (update_transport_checksum(skb, packet, rewrite))
		return -1;
	if (rewrite->from_port != rewrite->to_port && rewrite_port(skb, packet, rewrite))
		return -1;
	if (packet->family == FAMILY_V4)
		return rewrite_v4(skb, packet, rewrite);
	return rewrite_v6(skb, packet, rewrite);
}

#endif
