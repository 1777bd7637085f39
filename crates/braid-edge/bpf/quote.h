// ICMP errors of routers about packets of a path: the packet that they quote must look as its host
// sent it, or path MTU discovery is lost on the way. Only the quoted IP header is certain.
#ifndef BRAID_EDGE_QUOTE_H
#define BRAID_EDGE_QUOTE_H

#include "way.h"

#define ICMP_HEADER		  8
#define ICMP_V4_UNREACHABLE	  3
#define ICMP_V4_TIME_EXCEEDED	  11
#define ICMP_V4_PARAMETER_PROBLEM 12
#define ICMP_V6_UNREACHABLE	  1
#define ICMP_V6_PARAMETER_PROBLEM 4

static __always_inline int is_error(struct __sk_buff *skb, const struct ends *ends)
{
	__u8 type;

	if (ends->headless || bpf_skb_load_bytes(skb, ends->l4, &type, sizeof(type)))
		return 0;
	if (ends->family == 6)
		return ends->protocol == IPPROTO_ICMPV6 && type >= ICMP_V6_UNREACHABLE &&
		       type <= ICMP_V6_PARAMETER_PROBLEM;
	return ends->protocol == IPPROTO_ICMP &&
	       (type == ICMP_V4_UNREACHABLE || type == ICMP_V4_TIME_EXCEEDED ||
		type == ICMP_V4_PARAMETER_PROBLEM);
}

static __always_inline int restore_quote(struct __sk_buff *skb, struct ends *error)
{
	struct address source, dest, host;
	struct ends quoted = {};
	struct way *way;
	__u64 sum;

	if (read_ends(skb, bpf_htons(error->family == 4 ? ETH_P_IP : ETH_P_IPV6),
		      error->l4 + ICMP_HEADER, &quoted))
		return leave(REASON_elsewhere, TC_ACT_OK);
	way = way_of(tag_between(&quoted.source, &quoted.dest));
	if (!way || !is_in(&error->dest, &way->near, &way->near_kept))
		return leave(REASON_elsewhere, TC_ACT_OK);
	moved(&source, &quoted.source, &way->inner_near, &way->near_kept);
	moved(&dest, &quoted.dest, &way->inner_far, &way->far_kept);
	moved(&host, &error->dest, &way->inner_near, &way->near_kept);
	// IPv4's own header checksum balances the quote's new addresses, IPv6 has none.
	sum = difference(&quoted.source, &source) + difference(&quoted.dest, &dest);
	if (error->family == 6 && bpf_l4_csum_replace(skb, checksum_at(error), 0, folded(sum), 0))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	if (put_header(skb, &quoted, &source, &dest) || put_ends(skb, error, &error->source, &host))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	error->dest = host;
	return leave(REASON_error, TC_ACT_OK);
}

#endif
