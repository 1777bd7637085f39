// Internet checksum arithmetic (RFC 1624) on values already in network order.
#ifndef BRAID_CHECKSUM_H
#define BRAID_CHECKSUM_H

#include "layout.h"

static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

static __always_inline __u16 fold16(__u64 sum)
{
	__u32 folded = fold32(sum);

	folded = (folded & 0xffff) + (folded >> 16);
	folded = (folded & 0xffff) + (folded >> 16);
	return folded;
}

// Returns what replacing `old` by `new` adds to a checksum's sum.
static __always_inline __u32 address_difference(const struct address *old,
						const struct address *new)
{
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (__u64)(__u32)~old->word[i] + new->word[i];
	return fold32(sum);
}

// RFC 1624 eq. 3: HC' = ~(~HC + ~m + m').
static __always_inline __sum16 replace32(__sum16 check, __u32 old, __u32 new)
{
	return ~fold16((__u64)(__u16)~check + (__u32)~old + new);
}

#endif
