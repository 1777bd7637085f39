// Limits on clients that hold too many flows.
#ifndef BRAID_CONNLIMIT_H
#define BRAID_CONNLIMIT_H

#include "packet/parse.h"

// Inner addresses that hold more than their share of the flow table, and IPv6 networks that do
// (/64, the rest zero): a host may use as many of its network's addresses as it likes.
HASH_MAP(connlimit, BPF_MAP_TYPE_HASH, 0, MAX_LIMITED_CLIENTS, struct address, __u32);

static __always_inline int is_over_limit(const struct address *client)
{
	struct address network = {.word = {client->word[0], client->word[1]}};

	return bpf_map_lookup_elem(&connlimit, client) ||
	       // An IPv4 address has zeros there, and no network.
	       ((network.word[0] || network.word[1]) && bpf_map_lookup_elem(&connlimit, &network));
}

#endif
