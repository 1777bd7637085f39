// Fragments: only a packet's first one has ports, so its translation is stored for the others. A
// later fragment that comes before it is passed to the daemon (upcall.h).
#ifndef BRAID_FRAGMENT_H
#define BRAID_FRAGMENT_H

#include "packet/parse.h"

static __always_inline void fragment_key_of(const struct packet *packet, __u8 inbound,
					    struct fragment_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->source = packet->source;
	key->dest = packet->dest;
	key->id = packet->fragment_id;
	key->protocol = packet->family == FAMILY_V4 ? packet->protocol : 0;
	key->inbound = inbound;
	key->realm = packet->realm;
}

// A function of its own, as its callers' stacks are nearly full and few packets come here.
static __noinline int remember_fragment(const struct packet *packet, __u8 inbound,
					const struct address *translated, __u32 uplink)
{
	struct fragment_key key;
	struct fragment fragment = {.uplink = uplink};

	if (!packet || !translated)
		return -1;
	fragment.translated = *translated;
	fragment_key_of(packet, inbound, &key);
	return bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

#endif
