// ICMP errors of routers about packets of a path: the packet inside must look as its host sent it,
// or path MTU discovery fails. Only the inner IP header is sure to be there.
#ifndef BRAID_EDGE_ICMP_INNER_H
#define BRAID_EDGE_ICMP_INNER_H

#include "l3_path.h"

#define ICMP_HEADER		  8
#define ICMP_V4_UNREACHABLE	  3
#define ICMP_V4_TIME_EXCEEDED	  11
#define ICMP_V4_PARAMETER_PROBLEM 12
#define ICMP_V6_UNREACHABLE	  1
#define ICMP_V6_PARAMETER_PROBLEM 4

static __always_inline int is_icmp_error(struct __sk_buff *skb, const struct ip_packet *ip)
{
	__u8 type;

	if (ip->no_l4_header || bpf_skb_load_bytes(skb, ip->l4, &type, sizeof(type)))
		return 0;
	if (ip->family == 6)
		return ip->protocol == IPPROTO_ICMPV6 && type >= ICMP_V6_UNREACHABLE &&
		       type <= ICMP_V6_PARAMETER_PROBLEM;
	return ip->protocol == IPPROTO_ICMP &&
	       (type == ICMP_V4_UNREACHABLE || type == ICMP_V4_TIME_EXCEEDED ||
		type == ICMP_V4_PARAMETER_PROBLEM);
}

static __always_inline int restore_icmp_inner(struct __sk_buff *skb, struct ip_packet *error)
{
	struct address source, dest, host;
	struct ip_packet inner = {};
	struct l3_path *path;
	__u64 sum;

	if (parse_ip(skb, bpf_htons(error->family == 4 ? ETH_P_IP : ETH_P_IPV6),
		     error->l4 + ICMP_HEADER, &inner))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	path = l3_path_of(tag_of_prefixes(&inner.source, &inner.dest));
	if (!path || !has_prefix(&error->dest, &path->local, &path->local_host_mask))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	translate(&source, &inner.source, &path->inner_local, &path->local_host_mask);
	translate(&dest, &inner.dest, &path->inner_remote, &path->remote_host_mask);
	translate(&host, &error->dest, &path->inner_local, &path->local_host_mask);
	// In IPv4 the inner header's checksum balances its new addresses; IPv6 has none.
	sum = checksum_difference(&inner.source, &source) + checksum_difference(&inner.dest, &dest);
	if (error->family == 6 &&
	    bpf_l4_csum_replace(skb, l4_checksum_offset(error), 0, fold_checksum(sum), 0))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	if (rewrite_ip_header(skb, &inner, &source, &dest) ||
	    rewrite_addresses(skb, error, &error->source, &host))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	error->dest = host;
	return leave(REASON_error, TC_ACT_OK);
}

#endif
