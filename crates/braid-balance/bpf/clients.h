// Clients that may open no flow now, and those that are not who they say.
#ifndef BRAID_CLIENTS_H
#define BRAID_CLIENTS_H

#include "parse.h"

// Inner addresses that hold more than their share of the flow table.
HASH_MAP(limited, BPF_MAP_TYPE_HASH, 0, MAX_LIMITED, struct address, __u32);

static __always_inline int is_over_limit(const struct address *client)
{
	return bpf_map_lookup_elem(&limited, client) != NULL;
}

#endif
