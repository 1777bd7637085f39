// What is known of remote addresses by name. The daemon fills it from DNS answers that pass.
#ifndef BRAID_NAMES_H
#define BRAID_NAMES_H

#include "parse.h"

struct name {
	__u64 rules;   // marks, one for each domain rule
	__u64 expires; // ns of the monotonic clock
	__u32 site;    // 0: not known
	__u32 unused;
};

_Static_assert(sizeof(struct name) == 24, "name");

HASH_MAP(names, BPF_MAP_TYPE_LRU_HASH, 0, MAX_NAMED, struct address, struct name);

static __always_inline struct name *name_of(const struct address *remote, __u64 now)
{
	struct name *name = bpf_map_lookup_elem(&names, remote);

	return name && now < name->expires ? name : NULL;
}

#endif
