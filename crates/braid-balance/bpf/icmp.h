// ICMP errors about our flows: the packet that they quote is ours as it looked outside, so it must
// look as it did inside before the stack sees it, or path MTU discovery and "connection refused"
// are lost on the way. Only the quoted IP header and 8 bytes after it are certain (RFC 792).
#ifndef BRAID_ICMP_H
#define BRAID_ICMP_H

#include "answer.h"
#include "leave.h"

#define QUOTED_CERTAIN 8

static __always_inline int is_icmp_error(const struct packet *packet)
{
	__u16 type = bpf_ntohs(packet->source_port) >> 8;

	if (!is_icmp(packet) || packet->fragment != WHOLE)
		return 0;
	if (packet->family == FAMILY_V6)
		return type >= ICMP_V6_UNREACHABLE && type <= ICMP_V6_PARAMETER_PROBLEM;
	return type == ICMP_V4_UNREACHABLE || type == ICMP_V4_TIME_EXCEEDED ||
	       type == ICMP_V4_PARAMETER_PROBLEM;
}

// Reads the quoted headers. Unlike parse(), their lengths may exceed what is there.
static __always_inline int parse_quote(struct __sk_buff *skb, const struct packet *outer,
				       struct packet *quoted)
{
	struct ports_header *ports;
	struct icmp_header *icmp;

	quoted->l3 = outer->l4 + sizeof(struct icmp_header);
	quoted->family = outer->family;
	if (outer->family == FAMILY_V4) {
		struct iphdr *ip = at(skb, quoted->l3, sizeof(*ip));

		if (!ip || ip->version != 4 || ip->ihl < 5 ||
		    (ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET)))
			return -1;
		quoted->protocol = ip->protocol;
		quoted->l4 = quoted->l3 + ip->ihl * 4;
		map_v4(&quoted->source, ip->saddr);
		map_v4(&quoted->dest, ip->daddr);
	} else {
		struct ipv6hdr *ip = at(skb, quoted->l3, sizeof(*ip));

		if (!ip || ip->version != 6)
			return -1;
		quoted->protocol = ip->nexthdr;
		quoted->l4 = quoted->l3 + sizeof(*ip);
		copy_v6(&quoted->source, &ip->saddr);
		copy_v6(&quoted->dest, &ip->daddr);
	}
	ports = at(skb, quoted->l4, QUOTED_CERTAIN);
	if (!ports)
		return -1;
	quoted->source_port = ports->source;
	quoted->dest_port = ports->dest;
	if (is_icmp(quoted)) {
		icmp = (struct icmp_header *)ports;
		quoted->source_port = bpf_htons(icmp->type << 8 | icmp->code);
		quoted->dest_port = icmp->id;
	}
	return 0;
}

// Puts a 16-bit field in the quote and returns what that adds to the sum over it.
static __always_inline __u32 put16(struct __sk_buff *skb, __u32 offset, __u16 value)
{
	__u16 *field = at(skb, offset, sizeof(*field)), old;

	if (!field)
		return 0;
	old = *field;
	*field = value;
	return (__u16)~old + value;
}

// The quoted transport checksum moves against what it covers: the port or id, and, except for
// ICMPv4, the address. It may be absent (TCP's lies beyond the certain bytes) or zero (UDP/IPv4).
static __always_inline __u32 mend_quoted(struct __sk_buff *skb, const struct packet *quoted,
					 __u32 covered)
{
	__u32 offset = checksum_offset(quoted);
	__sum16 *check = offset ? at(skb, offset, sizeof(*check)) : NULL;
	__sum16 old;

	if (!check || (quoted->protocol == IPPROTO_UDP && !*check))
		return 0;
	old = *check;
	*check = ~fold16((__u64)(__u16)~old + covered);
	if (quoted->protocol == IPPROTO_UDP && !*check)
		*check = 0xffff;
	return (__u16)~old + (__u16)*check;
}

static __noinline int icmp_error(struct __sk_buff *skb, const struct packet *outer)
{
	struct rewrite rewrite = {.side = DEST};
	struct packet quoted = {};
	struct answer answer;
	struct tuple reverse;
	__u32 port, moved = 0, address;
	__u64 sum = 0;
	void *source;

	if (!outer)
		return leave(REASON_in_malformed, PASS);
	bpf_skb_pull_data(skb, skb->len < 256 ? skb->len : 256);
	if (parse_quote(skb, outer, &quoted) || !same_address(&quoted.source, &outer->dest))
		return leave(REASON_in_malformed, PASS);
	if (forward_key(&quoted, &reverse) || follow(&reverse, &answer))
		return leave(REASON_in_no_flow, PASS);

	rewrite.from = outer->dest;
	rewrite.to = answer.key.near;
	address = address_difference(&rewrite.from, &rewrite.to);
	port = quoted.l4 + (is_icmp(&quoted) ? 4 : 0);
	if (has_ports(quoted.protocol))
		moved = put16(skb, port, answer.key.near_port);
	sum = (__u64)moved +
	      mend_quoted(skb, &quoted,
			  fold16((__u64)moved + (quoted.protocol == IPPROTO_ICMP ? 0 : address)));
	if (outer->family == FAMILY_V4) {
		struct iphdr *ip = at(skb, quoted.l3, sizeof(*ip));

		if (!ip)
			return leave(REASON_in_rewrite_failed, DROP);
		// Address and header checksum balance each other in the outer sum.
		ip->check = replace32(ip->check, ip->saddr, rewrite.to.word[3]);
		ip->saddr = rewrite.to.word[3];
	} else {
		source = at(skb, quoted.l3 + 8, 16);
		if (!source)
			return leave(REASON_in_rewrite_failed, DROP);
		__builtin_memcpy(source, &rewrite.to, 16);
		sum += address;
	}
	if (bpf_l4_csum_replace(skb, outer->l4 + 2, 0, fold32(sum), 0) ||
	    apply(skb, outer, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_icmp_error, PASS);
}

#endif
