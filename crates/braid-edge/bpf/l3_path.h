// Layer-3 paths: stateless translation of prefixes, and routing of the result.
//
// Hosts behind an edge share a prefix, and each path has a prefix of the same length at either end.
// An address gets another prefix and keeps its host bits (as in RFC 6296), so translation needs no
// state and adds no bytes.
#ifndef BRAID_EDGE_L3_PATH_H
#define BRAID_EDGE_L3_PATH_H

#include "address.h"

static __always_inline __u32 prefix_of(__u8 role, const struct address *address)
{
	struct prefix key = {.bits = 8 + 128, .role = role, .address = *address};
	__u32 *found = bpf_map_lookup_elem(&prefixes, &key);

	return found ? *found : NO_PREFIX;
}

static __always_inline struct l3_path *l3_path_of(__u32 tag)
{
	struct l3_path *path = bpf_map_lookup_elem(&l3_paths, &tag);

	return path && path->family ? path : 0;
}

// Returns the tag of the path between a local and a remote address; 0: none.
static __always_inline __u32 tag_of_prefixes(const struct address *local,
					     const struct address *remote)
{
	struct prefix_pair key = {prefix_of(ROLE_LOCAL, local), 0};
	__u32 *tag;

	if (key.local == NO_PREFIX)
		return 0;
	key.remote = prefix_of(ROLE_REMOTE, remote);
	tag = bpf_map_lookup_elem(&prefix_pairs, &key);
	return tag ? *tag : 0;
}

// Replaces the prefix of an address; the bits in `host_mask` stay.
static __always_inline void translate(struct address *to, const struct address *from,
				      const struct address *prefix, const struct address *host_mask)
{
	for (int i = 0; i < 4; i++)
		to->word[i] = (from->word[i] & host_mask->word[i]) | prefix->word[i];
}

static __always_inline int has_prefix(const struct address *address, const struct address *prefix,
				      const struct address *host_mask)
{
	__u32 different = 0;

	for (int i = 0; i < 4; i++)
		different |= (address->word[i] & ~host_mask->word[i]) ^ prefix->word[i];
	return !different;
}

#define EINVAL 22

// Looks up the route of a packet with these addresses; returns 0 if there is one.
static __always_inline int find_next_hop(struct __sk_buff *skb, const struct ip_packet *packet,
					 const struct address *source, const struct address *dest,
					 struct bpf_fib_lookup *next_hop)
{
	int found;

	next_hop->l4_protocol = packet->protocol;
	next_hop->ifindex = skb->ifindex;
	next_hop->tot_len = skb->gso_segs > 1 ? 0 : packet->length;
	if (packet->family == 4) {
		next_hop->family = ADDRESSES_V4;
		next_hop->tos = packet->tos;
		next_hop->ipv4_src = source->word[3];
		next_hop->ipv4_dst = dest->word[3];
	} else {
		next_hop->family = ADDRESSES_V6;
		__builtin_memcpy(next_hop->ipv6_src, source, sizeof(*source));
		__builtin_memcpy(next_hop->ipv6_dst, dest, sizeof(*dest));
	}
	found = bpf_fib_lookup(skb, next_hop, sizeof(*next_hop), BPF_FIB_LOOKUP_SKIP_NEIGH);
	if (found != -EINVAL)
		return found;
	// Linux before 6.3 lacks the flag, but fills in the next hop before it looks for the
	// neighbour.
	found = bpf_fib_lookup(skb, next_hop, sizeof(*next_hop), 0);
	return found == BPF_FIB_LKUP_RET_NO_NEIGH ? BPF_FIB_LKUP_RET_SUCCESS : found;
}

static __always_inline int redirect_to(const struct bpf_fib_lookup *next_hop)
{
	struct bpf_redir_neigh next = {.nh_family = next_hop->family};

	__builtin_memcpy(next.ipv6_nh, next_hop->ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(next_hop->ifindex, &next, sizeof(next), 0);
}

#endif
