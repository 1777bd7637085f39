// Array maps, and a counter for every exit of a program. Each crate's reasons.h lists its exits.
#ifndef BRAID_COUNTING_H
#define BRAID_COUNTING_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "reasons.h"

#define ARRAY_MAP(map, map_type, entries, value_type)                                              \
	struct {                                                                                   \
		__uint(type, map_type);                                                            \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, value_type);                                                         \
	} map SEC(".maps")

ARRAY_MAP(reasons, BPF_MAP_TYPE_PERCPU_ARRAY, MAX_REASONS, __u64);
_Static_assert(REASON_COUNT <= MAX_REASONS, "reasons");

static __always_inline void count(enum reason reason)
{
	__u32 index = reason;
	__u64 *counter = bpf_map_lookup_elem(&reasons, &index);

	if (counter)
		*counter += 1;
}

// Ends a program: counts the reason and returns the action.
static __always_inline int leave(enum reason reason, int action)
{
	count(reason);
	return action;
}

#endif
