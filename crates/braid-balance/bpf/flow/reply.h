// Lookup of a reply's flow by its outer end.
#ifndef BRAID_REPLY_H
#define BRAID_REPLY_H

#include "flow/flow.h"
#include "nat/rewrite.h"

struct reply {
	struct tuple key; // forward key
	struct found found;
	int late;      // it came to a mapping that has moved
	__u32 silence; // us for which the uplink was silent before
};

// Result of lookup_reverse(): the entry belongs to an attempt of a race that has not won.
#define REVERSE_OF_RACE 1

// Looks up the flow of a reverse entry. An embryo's entry may be recycled meanwhile, so the flow
// must have the same outer end.
static __always_inline int lookup_reverse(const struct tuple *reverse, struct reply *reply)
{
	struct tuple *key = bpf_map_lookup_elem(&flows_reverse, reverse);
	int assured = key != NULL;

	if (!key)
		key = bpf_map_lookup_elem(&embryos_reverse, reverse);
	if (!key)
		return -1;
	reply->key = *key;
	reply->late = 0;
	reply->found = find(&reply->key);
	if (reply->found.flow && reply->found.flow->outer_port == reverse->local_port &&
	    reply->found.flow->realm == reverse->realm &&
	    same_address(&reply->found.flow->outer, &reverse->local))
		return 0;
	if (!assured && reverse->protocol == IPPROTO_TCP &&
	    bpf_map_lookup_elem(&races, &reply->key))
		return REVERSE_OF_RACE;
	count(REASON_half_pair);
	if (assured)
		bpf_map_delete_elem(&flows_reverse, reverse);
	else
		bpf_map_delete_elem(&embryos_reverse, reverse);
	return -1;
}

// Looks up the flow that has left this outer end, for replies that were sent before it moved.
static __always_inline int lookup_late_reply(const struct tuple *reverse, __u64 now,
					     struct reply *reply)
{
	struct late_reply *moved = bpf_map_lookup_elem(&late_replies, reverse);

	if (!moved || moved->until < now)
		return -1;
	reply->key = moved->key;
	reply->late = 1;
	reply->found = find(&reply->key);
	return reply->found.flow ? 0 : -1;
}

#endif
