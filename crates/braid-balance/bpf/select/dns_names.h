// DNS names of remote addresses. The daemon fills the map from DNS answers that pass.
#ifndef BRAID_DNS_NAMES_H
#define BRAID_DNS_NAMES_H

#include "packet/parse.h"

struct dns_name {
	__u64 rules;   // marks, one for each domain rule
	__u64 expires; // ns of the monotonic clock
	__u32 site;    // 0: not known
	__u32 unused;
};

_Static_assert(sizeof(struct dns_name) == 24, "dns_name");

HASH_MAP(dns_names, BPF_MAP_TYPE_LRU_HASH, 0, MAX_DNS_NAMES, struct address, struct dns_name);

static __always_inline struct dns_name *name_of(const struct address *remote, __u64 now)
{
	struct dns_name *name = bpf_map_lookup_elem(&dns_names, remote);

	return name && now < name->expires ? name : NULL;
}

#endif
