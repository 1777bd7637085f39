// Recent load of a flow.
#ifndef BRAID_EDGE_LOAD_H
#define BRAID_EDGE_LOAD_H

#include "maps.h"

// Window over which a load is measured, ns.
#define LOAD_WINDOW_NS 1000000000ULL

static __always_inline __u64 decayed(const struct flow_load *flow, __u64 now)
{
	__u64 past = now - flow->at;

	if (past >= LOAD_WINDOW_NS)
		return 0;
	return flow->bytes - flow->bytes * (past >> 10) / (LOAD_WINDOW_NS >> 10);
}

// The part of a time that `decayed` rounds away counts the next time.
static __always_inline void add_load(struct flow_load *flow, __u32 bytes, __u64 now)
{
	__u64 past = now - flow->at;

	flow->bytes = decayed(flow, now) + bytes;
	flow->at = past < LOAD_WINDOW_NS ? now - (past & 1023) : now;
}

#endif
