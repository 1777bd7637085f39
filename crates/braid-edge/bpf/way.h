// Layer-3 paths: which pairs of addresses stand for which, and how a packet leaves this machine.
//
// Hosts behind an edge share a prefix, and each path has a prefix of the same length at either end:
// an address changes its prefix and keeps the rest, so that nothing has to be remembered to change
// it back, and no byte is added.
#ifndef BRAID_EDGE_WAY_H
#define BRAID_EDGE_WAY_H

#include "address.h"

static __always_inline __u32 prefix_of(__u8 role, const struct address *address)
{
	struct prefix key = {.bits = 8 + 128, .role = role, .address = *address};
	__u32 *found = bpf_map_lookup_elem(&prefixes, &key);

	return found ? *found : NO_PREFIX;
}

static __always_inline struct way *way_of(__u32 tag)
{
	struct way *way = bpf_map_lookup_elem(&ways, &tag);

	return way && way->family ? way : 0;
}

// The tag of the path between an address here and one there; 0: none.
static __always_inline __u32 tag_between(const struct address *near, const struct address *far)
{
	struct arrival key = {prefix_of(ROLE_NEAR, near), 0};
	__u32 *tag;

	if (key.near == NO_PREFIX)
		return 0;
	key.far = prefix_of(ROLE_FAR, far);
	tag = bpf_map_lookup_elem(&arrivals, &key);
	return tag ? *tag : 0;
}

// The address with another prefix; `kept` are the bits that stay.
static __always_inline void moved(struct address *to, const struct address *from,
				  const struct address *prefix, const struct address *kept)
{
	for (int i = 0; i < 4; i++)
		to->word[i] = (from->word[i] & kept->word[i]) | prefix->word[i];
}

static __always_inline int is_in(const struct address *address, const struct address *prefix,
				 const struct address *kept)
{
	__u32 different = 0;

	for (int i = 0; i < 4; i++)
		different |= (address->word[i] & ~kept->word[i]) ^ prefix->word[i];
	return !different;
}

#define EINVAL 22

// Where the kernel would send a packet with these ends; 0 if it would.
static __always_inline int find_exit(struct __sk_buff *skb, const struct ends *packet,
				     const struct address *source, const struct address *dest,
				     struct bpf_fib_lookup *exit)
{
	int found;

	exit->l4_protocol = packet->protocol;
	exit->ifindex = skb->ifindex;
	exit->tot_len = skb->gso_segs > 1 ? 0 : packet->length;
	if (packet->family == 4) {
		exit->family = ADDRESSES_V4;
		exit->tos = packet->service;
		exit->ipv4_src = source->word[3];
		exit->ipv4_dst = dest->word[3];
	} else {
		exit->family = ADDRESSES_V6;
		__builtin_memcpy(exit->ipv6_src, source, sizeof(*source));
		__builtin_memcpy(exit->ipv6_dst, dest, sizeof(*dest));
	}
	found = bpf_fib_lookup(skb, exit, sizeof(*exit), BPF_FIB_LOOKUP_SKIP_NEIGH);
	if (found != -EINVAL)
		return found;
	// Linux before 6.3 knows no such flag, and names the next hop before it looks for that.
	found = bpf_fib_lookup(skb, exit, sizeof(*exit), 0);
	return found == BPF_FIB_LKUP_RET_NO_NEIGH ? BPF_FIB_LKUP_RET_SUCCESS : found;
}

static __always_inline int send_by(const struct bpf_fib_lookup *exit)
{
	struct bpf_redir_neigh next = {.nh_family = exit->family};

	__builtin_memcpy(next.ipv6_nh, exit->ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(exit->ifindex, &next, sizeof(next), 0);
}

#endif
