// From an outer end back to the flow.
#ifndef BRAID_ANSWER_H
#define BRAID_ANSWER_H

#include "flow.h"
#include "nat.h"

struct answer {
	struct tuple key; // forward key
	struct found found;
	int late; // it came to a mapping that has moved
};

// What follow() says of an entry that a race has made, on a way that has not won.
#define OF_RACE 1

// Follows a reverse entry to its flow. The entry of an embryo may be recycled under our hands, so
// the flow must say the same outer end, or it is not the one.
static __always_inline int follow(const struct tuple *reverse, struct answer *answer)
{
	struct tuple *key = bpf_map_lookup_elem(&flows_reverse, reverse);
	int kept = key != NULL;

	if (!key)
		key = bpf_map_lookup_elem(&embryos_reverse, reverse);
	if (!key)
		return -1;
	answer->key = *key;
	answer->late = 0;
	answer->found = find(&answer->key);
	if (answer->found.flow && answer->found.flow->outer_port == reverse->near_port &&
	    answer->found.flow->realm == reverse->realm &&
	    same_address(&answer->found.flow->outer, &reverse->near))
		return 0;
	if (!kept && reverse->protocol == IPPROTO_TCP && bpf_map_lookup_elem(&races, &answer->key))
		return OF_RACE;
	count(REASON_half_pair);
	if (kept)
		bpf_map_delete_elem(&flows_reverse, reverse);
	else
		bpf_map_delete_elem(&embryos_reverse, reverse);
	return -1;
}

// The same for an outer end that the flow has left: what was on its way then is still welcome.
static __always_inline int follow_late(const struct tuple *reverse, __u64 now,
				       struct answer *answer)
{
	struct late *moved = bpf_map_lookup_elem(&late, reverse);

	if (!moved || moved->until < now)
		return -1;
	answer->key = moved->key;
	answer->late = 1;
	answer->found = find(&answer->key);
	return answer->found.flow ? 0 : -1;
}

#endif
