// Ingress of an outside device with layer-3 paths: packets of a path get back the addresses that
// hosts know. Packets that may have to wait go to the resequencer under their path's tag.
#ifndef BRAID_EDGE_ROUTE_IN_H
#define BRAID_EDGE_ROUTE_IN_H

#include <linux/if_packet.h>
#include "icmp_inner.h"
#include "merged.h"
#include "path_probe.h"

// Routes a packet by its addresses.
static __always_inline int route(struct __sk_buff *skb, const struct ip_packet *ip,
				 enum reason reason)
{
	struct bpf_fib_lookup next_hop = {};
	int found = find_next_hop(skb, ip, &ip->source, &ip->dest, &next_hop);

	// For this machine itself, or larger than the MTU: left to the stack.
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return leave(REASON_local_delivery, TC_ACT_OK);
	if (found)
		return leave(REASON_no_route, TC_ACT_SHOT);
	return leave(reason, redirect_to(&next_hop));
}

// Returns a probe to its sender as a reply.
static __always_inline int reply_to_probe(struct __sk_buff *skb, const struct ip_packet *ip,
					  __be16 kind)
{
	__be16 reply = bpf_htons(PROBE_REPLY);
	__u8 macs[2 * ETH_ALEN], swapped[2 * ETH_ALEN];
	__u32 at = ip->l4 + sizeof(struct udphdr) + offsetof(struct probe, kind);

	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	__builtin_memcpy(swapped, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(swapped + ETH_ALEN, macs, ETH_ALEN);
	if (bpf_l4_csum_replace(skb, l4_checksum_offset(ip), kind, reply,
				2 | BPF_F_MARK_MANGLED_0) ||
	    bpf_skb_store_bytes(skb, at, &reply, sizeof(reply), 0) ||
	    rewrite_addresses(skb, ip, &ip->dest, &ip->source) ||
	    bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	return leave(REASON_probe, bpf_redirect(skb->ifindex, 0));
}

// Returns the kind of a probe, 0 if the packet is none.
static __always_inline __be16 probe_kind(struct __sk_buff *skb, const struct ip_packet *ip)
{
	struct probe probe;
	struct udphdr udp;

	if (ip->protocol != IPPROTO_UDP || ip->no_l4_header ||
	    bpf_skb_load_bytes(skb, ip->l4, &udp, sizeof(udp)) ||
	    udp.dest != bpf_htons(PROBE_PORT) || udp.source != udp.dest ||
	    bpf_skb_load_bytes(skb, ip->l4 + sizeof(udp), &probe, sizeof(probe)) ||
	    probe.magic != bpf_htonl(PROBE_MAGIC))
		return 0;
	return probe.kind;
}

static __always_inline int to_resequencer(struct __sk_buff *skb, struct settings *settings,
					  __u32 tag, enum reason reason)
{
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	return leave(reason, bpf_redirect(settings->hold, 0));
}

static __always_inline int route_in(struct __sk_buff *skb, struct settings *settings)
{
	struct address source, dest;
	struct ip_packet ip = {};
	__be16 protocol, kind;
	struct l3_path *path;
	__u32 tag, *action;

	if (skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    parse_ip(skb, protocol, ETH_HLEN, &ip))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	tag = tag_of_prefixes(&ip.dest, &ip.source);
	if (!tag)
		return is_icmp_error(skb, &ip) ? restore_icmp_inner(skb, &ip)
					       : leave(REASON_no_l3_path, TC_ACT_OK);
	kind = probe_kind(skb, &ip);
	if (kind == bpf_htons(PROBE_REQUEST))
		return reply_to_probe(skb, &ip, kind);
	if (kind)
		return to_resequencer(skb, settings, tag, REASON_probe);
	path = l3_path_of(tag);
	action = bpf_map_lookup_elem(&tag_actions, &tag);
	if (!path || !action)
		return leave(REASON_no_l3_path, TC_ACT_OK);
	account(&rx_traffic, tag, packets_of(skb, protocol), skb->len);
	translate(&source, &ip.source, &path->inner_remote, &path->remote_host_mask);
	translate(&dest, &ip.dest, &path->inner_local, &path->local_host_mask);
	if (rewrite_addresses(skb, &ip, &source, &dest))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	if (*action == TAG_RESEQUENCE && segment_of(skb, protocol) == SEQUENCED_SEGMENT)
		return to_resequencer(skb, settings, tag, REASON_to_resequencer);
	ip.source = source;
	ip.dest = dest;
	return route(skb, &ip, REASON_forwarded);
}

// Ingress of the resequencer's device with layer-3 paths.
static __always_inline int route_ordered(struct __sk_buff *skb)
{
	struct ip_packet ip = {};
	__be16 protocol;

	// It bears the outside device's MAC address, not this one's: the stack would not accept it.
	if (bpf_skb_change_type(skb, PACKET_HOST))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	if (bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    parse_ip(skb, protocol, ETH_HLEN, &ip))
		return leave(REASON_no_l3_path, TC_ACT_OK);
	return route(skb, &ip, REASON_resequenced);
}

#endif
