// ICMP errors about our flows. The packet quoted in an error must be translated too, or path MTU
// discovery and "connection refused" do not reach the sender. Only the quoted IP header and 8 bytes
// after it are guaranteed (RFC 792).
#ifndef BRAID_ICMP_ERROR_H
#define BRAID_ICMP_ERROR_H

#include "flow/reply.h"
#include "egress.h"
#include "path_cache/race.h"

#define QUOTED_L4_BYTES 8

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

// Reads the quoted headers. Unlike in parse(), their lengths may exceed the bytes present.
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
	ports = at(skb, quoted->l4, QUOTED_L4_BYTES);
	if (!ports)
		return -1;
	quoted->source_port = ports->source;
	quoted->dest_port = ports->dest;
	quoted->sequence = bpf_ntohl(((struct tcphdr *)ports)->seq);
	if (is_icmp(quoted)) {
		icmp = (struct icmp_header *)ports;
		quoted->source_port = bpf_htons(icmp->type << 8 | icmp->code);
		quoted->dest_port = icmp->id;
	}
	return 0;
}

// Writes a 16-bit field of the quote and returns what that adds to the sum over it.
static __always_inline __u32 put16(struct __sk_buff *skb, __u32 offset, __u16 value)
{
	__u16 *field = at(skb, offset, sizeof(*field)), old;

	if (!field)
		return 0;
	old = *field;
	*field = value;
	return (__u16)~old + value;
}

// Updates the quoted transport checksum for the fields it covers: the port or id, and, except for
// ICMPv4, the address. It may be absent (TCP's lies beyond the guaranteed bytes) or zero
// (UDP/IPv4).
static __always_inline __u32 update_quoted_checksum(struct __sk_buff *skb,
						    const struct packet *quoted, __u32 covered)
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

// Replaces one end of the quoted packet, and updates the checksums including the error's own.
static __always_inline int rewrite_quote(struct __sk_buff *skb, const struct packet *outer,
					 const struct packet *quoted, const struct rewrite *rewrite)
{
	__u32 address = address_difference(&rewrite->from, &rewrite->to), moved = 0;
	__u32 port = quoted->l4 + (is_icmp(quoted) ? 4 : rewrite->side == DEST ? 2 : 0);
	__u64 sum;
	void *end;

	if (has_ports(quoted->protocol))
		moved = put16(skb, port, rewrite->to_port);
	sum = (__u64)moved +
	      update_quoted_checksum(
		      skb, quoted,
		      fold16((__u64)moved + (quoted->protocol == IPPROTO_ICMP ? 0 : address)));
	if (outer->family == FAMILY_V4) {
		struct iphdr *ip = at(skb, quoted->l3, sizeof(*ip));

		if (!ip)
			return -1;
		replace_address(ip, rewrite);
	} else {
		end = at(skb, quoted->l3 + (rewrite->side == SOURCE ? 8 : 24), 16);
		if (!end)
			return -1;
		__builtin_memcpy(end, &rewrite->to, 16);
		sum += address;
	}
	return bpf_l4_csum_replace(skb, outer->l4 + 2, 0, fold32(sum), 0);
}

// Handles an error about a SYN that was raced. Returns non-zero if others may still answer, or one
// has.
static __always_inline int handle_race_refusal(struct __sk_buff *skb, const struct packet *outer,
					       const struct packet *quoted,
					       const struct tuple *reverse, __u64 now,
					       struct reply *reply)
{
	if (handle_race_error(quoted->sequence, skb->len - outer->l3, reverse, &reply->key, now) !=
	    RACE_PASS)
		return -1;
	if (lookup_reverse(reverse, reply))
		return -1;
	reply->found.flow->state = STATE_RESET;
	return 0;
}

// Translates an error from outside, which quotes a packet that we have sent.
static __noinline int icmp_error(struct __sk_buff *skb, const struct packet *outer, __u64 now)
{
	struct rewrite rewrite = {.side = SOURCE};
	struct packet quoted = {};
	struct reply reply;
	struct tuple reverse;
	int result;

	if (!outer)
		return leave(REASON_in_malformed, PASS);
	bpf_skb_pull_data(skb, skb->len < 256 ? skb->len : 256);
	if (parse_quote(skb, outer, &quoted) || !same_address(&quoted.source, &outer->dest))
		return pass_unclaimed(outer, REASON_in_malformed);
	if (forward_key(&quoted, &reverse))
		return pass_local(outer);
	reverse.realm = outer->realm;
	result = lookup_reverse(&reverse, &reply);
	if (result == REVERSE_OF_RACE &&
	    handle_race_refusal(skb, outer, &quoted, &reverse, now, &reply))
		return leave(REASON_race_refused, DROP);
	if (result && result != REVERSE_OF_RACE)
		return pass_local(outer);

	rewrite.from = outer->dest;
	rewrite.to = reply.key.local;
	rewrite.to_port = reply.key.local_port;
	if (rewrite_quote(skb, outer, &quoted, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	rewrite.side = DEST;
	rewrite.from_port = rewrite.to_port;
	if (rewrite_packet(skb, outer, &rewrite))
		return leave(REASON_in_rewrite_failed, DROP);
	return leave(REASON_in_icmp_error, PASS);
}

// Translates an error from inside about a packet that came through us: "fragmentation needed" from
// a gateway whose LAN has a smaller MTU than its uplinks, "port unreachable" from a client (RFC
// 5508 REQ-5). Its source may be the address of any router inside and becomes the flow's outer one.
// NO_FLOW: nothing is done or counted.
static __noinline int outbound_error(struct __sk_buff *skb, const struct packet *outer)
{
	struct rewrite rewrite = {.side = DEST};
	struct packet quoted = {};
	struct uplink *uplink;
	struct found found;
	struct tuple key;

	if (!outer)
		return leave(REASON_out_malformed, DROP);
	bpf_skb_pull_data(skb, skb->len < 256 ? skb->len : 256);
	if (parse_quote(skb, outer, &quoted))
		return leave(REASON_out_malformed, DROP);
	if (reverse_key(&quoted, &key))
		return NO_FLOW;
	found = find(&key);
	// As for replies: port 443 of a remote may belong to a mapping that serves every remote.
	if (!found.flow && key.protocol == IPPROTO_UDP && key.remote_port) {
		forget_remote(&key);
		found = find(&key);
	}
	if (!found.flow)
		return NO_FLOW;
	uplink = uplink_at(found.flow->uplink);
	if (!uplink || !uplink->ifindex || !uplink->next_hops[outer->family & 1].present)
		return leave(REASON_uplink_gone, DROP);

	rewrite.from = quoted.dest;
	rewrite.to = found.flow->outer;
	rewrite.to_port = found.flow->outer_port;
	if (rewrite_quote(skb, outer, &quoted, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	rewrite.side = SOURCE;
	rewrite.from = outer->source;
	rewrite.from_port = rewrite.to_port;
	if (rewrite_packet(skb, outer, &rewrite))
		return leave(REASON_out_rewrite_failed, DROP);
	return leave(REASON_out_icmp_error, redirect_by_route(uplink));
}

#endif
