// Ingress of an outside device where paths are of layer 3: what came by a path gets the addresses
// back that hosts know. What may have to wait goes to the resequencer under its path's tag.
#ifndef BRAID_EDGE_ROUTE_IN_H
#define BRAID_EDGE_ROUTE_IN_H

#include <linux/if_packet.h>
#include "quote.h"

// An edge's word to the other about a path; see src/probe.rs.
struct probe {
	__be32 magic;
	__be16 kind;
	__be16 zero;
	__be64 nonce;
};

// Hands a packet on to where its ends say.
static __always_inline int onward(struct __sk_buff *skb, const struct ends *ends,
				  enum reason reason)
{
	struct bpf_fib_lookup exit = {};
	int found = find_exit(skb, ends, &ends->source, &ends->dest, &exit);

	// For this machine itself, or too long for where it goes: the stack's business.
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return leave(REASON_to_machine, TC_ACT_OK);
	if (found)
		return leave(REASON_no_route, TC_ACT_SHOT);
	return leave(reason, send_by(&exit));
}

// A question goes back the way it came, as an answer.
static __always_inline int answer(struct __sk_buff *skb, const struct ends *ends, __be16 kind)
{
	__be16 said = bpf_htons(PROBE_ANSWER);
	__u8 macs[2 * ETH_ALEN], turned[2 * ETH_ALEN];
	__u32 at = ends->l4 + sizeof(struct udphdr) + offsetof(struct probe, kind);

	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	__builtin_memcpy(turned, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(turned + ETH_ALEN, macs, ETH_ALEN);
	if (bpf_l4_csum_replace(skb, checksum_at(ends), kind, said, 2 | BPF_F_MARK_MANGLED_0) ||
	    bpf_skb_store_bytes(skb, at, &said, sizeof(said), 0) ||
	    put_ends(skb, ends, &ends->dest, &ends->source) ||
	    bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	return leave(REASON_probe, bpf_redirect(skb->ifindex, 0));
}

// What kind of probe it is, 0 if none.
static __always_inline __be16 probe_kind(struct __sk_buff *skb, const struct ends *ends)
{
	struct probe probe;
	struct udphdr udp;

	if (ends->protocol != IPPROTO_UDP || ends->headless ||
	    bpf_skb_load_bytes(skb, ends->l4, &udp, sizeof(udp)) ||
	    udp.dest != bpf_htons(PROBE_PORT) || udp.source != udp.dest ||
	    bpf_skb_load_bytes(skb, ends->l4 + sizeof(udp), &probe, sizeof(probe)) ||
	    probe.magic != bpf_htonl(PROBE_MAGIC))
		return 0;
	return probe.kind;
}

static __always_inline int to_order(struct __sk_buff *skb, struct settings *device, __u32 tag,
				    enum reason reason)
{
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	return leave(reason, bpf_redirect(device->hold, 0));
}

static __always_inline int route_in(struct __sk_buff *skb, struct settings *device)
{
	struct address source, dest;
	struct ends ends = {};
	__be16 protocol, kind;
	struct way *way;
	__u32 tag, *what;

	if (skb->vlan_present ||
	    bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    read_ends(skb, protocol, ETH_HLEN, &ends))
		return leave(REASON_elsewhere, TC_ACT_OK);
	tag = tag_between(&ends.dest, &ends.source);
	if (!tag)
		return is_error(skb, &ends) ? restore_quote(skb, &ends)
					    : leave(REASON_elsewhere, TC_ACT_OK);
	kind = probe_kind(skb, &ends);
	if (kind == bpf_htons(PROBE_QUESTION))
		return answer(skb, &ends, kind);
	if (kind)
		return to_order(skb, device, tag, REASON_probe);
	way = way_of(tag);
	what = bpf_map_lookup_elem(&inward, &tag);
	if (!way || !what)
		return leave(REASON_elsewhere, TC_ACT_OK);
	account(&came, tag, skb->len);
	moved(&source, &ends.source, &way->inner_far, &way->far_kept);
	moved(&dest, &ends.dest, &way->inner_near, &way->near_kept);
	if (put_ends(skb, &ends, &source, &dest))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	if (*what == TAG_IN_ORDER && segment_of(skb, protocol) == SEQUENCED_SEGMENT)
		return to_order(skb, device, tag, REASON_to_order);
	ends.source = source;
	ends.dest = dest;
	return onward(skb, &ends, REASON_as_came);
}

// Ingress of the resequencer's device where paths are of layer 3.
static __always_inline int route_ordered(struct __sk_buff *skb)
{
	struct ends ends = {};
	__be16 protocol;

	// It bears the outside device's address, not this one's: the stack would not take it.
	if (bpf_skb_change_type(skb, PACKET_HOST))
		return leave(REASON_tag_failed, TC_ACT_SHOT);
	if (bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol)) ||
	    read_ends(skb, protocol, ETH_HLEN, &ends))
		return leave(REASON_elsewhere, TC_ACT_OK);
	return onward(skb, &ends, REASON_ordered);
}

#endif
