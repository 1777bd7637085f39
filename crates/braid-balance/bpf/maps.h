// The maps, and lookups in them.
#ifndef BRAID_MAPS_H
#define BRAID_MAPS_H

#include <linux/bpf.h>
#include "counting.h"
#include "layout.h"

#define HASH_MAP(map, map_type, flags, entries, key_type, value_type)                              \
	struct {                                                                                   \
		__uint(type, map_type);                                                            \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, entries);                                                      \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} map SEC(".maps")

ARRAY_MAP(meta, BPF_MAP_TYPE_ARRAY, 1, struct meta);
ARRAY_MAP(settings, BPF_MAP_TYPE_ARRAY, 1, struct settings);
ARRAY_MAP(uplinks, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS, struct uplink);
// End of the lease of leased uplinks, ns of the monotonic clock.
ARRAY_MAP(lease, BPF_MAP_TYPE_ARRAY, 1, __u64);
// Banks by (class * FAMILIES + family) * 2 + number of the bank.
ARRAY_MAP(slots, BPF_MAP_TYPE_ARRAY, CLASSES *FAMILIES * 2, struct slot_bank);
ARRAY_MAP(rr_cursors, BPF_MAP_TYPE_ARRAY, CLASSES *FAMILIES, struct rr_cursor);
ARRAY_MAP(traffic, BPF_MAP_TYPE_PERCPU_ARRAY, MAX_UPLINKS, struct uplink_counters);
// Time of the last round trip that tells of an uplink's queue, ns of the monotonic clock.
ARRAY_MAP(queue_seen, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS, __u64);

// By uplink * SHAPED_DIRECTIONS + direction.
ARRAY_MAP(shape_rates, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS *SHAPED_DIRECTIONS, struct shape_rate);
ARRAY_MAP(virtual_queues, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS *SHAPED_DIRECTIONS, struct virtual_queue);
ARRAY_MAP(shape_counters, BPF_MAP_TYPE_PERCPU_ARRAY, MAX_UPLINKS *SHAPED_DIRECTIONS,
	  struct shape_counters);
// Time at which no packet of a group is in an uplink's egress queue any more, ns of the monotonic
// clock; by uplink * QUEUED_GROUPS + group.
ARRAY_MAP(queued_until, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS *QUEUED_GROUPS, __u64);

// Interface index to uplink + 1; 0: none.
ARRAY_MAP(uplink_of_low, BPF_MAP_TYPE_ARRAY, LOW_DEVICES, __u32);
HASH_MAP(uplink_of_high, BPF_MAP_TYPE_HASH, 0, MAX_UPLINKS * 2, __u32, __u32);

HASH_MAP(lan_devices, BPF_MAP_TYPE_HASH, 0, MAX_LAN_DEVICES, __u32, struct lan_device);

// The uplink of each outside address.
HASH_MAP(own_addresses, BPF_MAP_TYPE_HASH, 0, MAX_OWN_ADDRESSES, struct address, __u32);

// Established flows: nothing is ever evicted from these two.
HASH_MAP(flows, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, DEFAULT_FLOWS, struct tuple, struct flow);
HASH_MAP(flows_reverse, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, DEFAULT_FLOWS, struct tuple,
	 struct tuple);

// Embryonic flows: a flood of them evicts only other embryos.
HASH_MAP(embryos, BPF_MAP_TYPE_LRU_HASH, 0, DEFAULT_EMBRYOS, struct tuple, struct flow);
HASH_MAP(embryos_reverse, BPF_MAP_TYPE_LRU_HASH, 0, DEFAULT_EMBRYOS, struct tuple, struct tuple);

// Outer ends of mappings that have moved, for replies that are still in flight.
HASH_MAP(late_replies, BPF_MAP_TYPE_LRU_HASH, 0, MAX_LATE_REPLIES, struct tuple, struct late_reply);

// Packets of answered QUIC flows, and of flows not answered yet; two maps, so that a flood of new
// flows leaves the others' packets alone.
HASH_MAP(replay_buffers, BPF_MAP_TYPE_LRU_HASH, 0, MAX_REPLAY_BUFFERS, struct tuple,
	 struct replay_buffer);
HASH_MAP(replay_embryos, BPF_MAP_TYPE_LRU_HASH, 0, MAX_REPLAY_EMBRYOS, struct tuple,
	 struct stored_packet);

// Races in progress or just decided, by forward key; the path cache; forecasts of uplinks.
HASH_MAP(races, BPF_MAP_TYPE_LRU_HASH, 0, MAX_RACES, struct tuple, struct race);
HASH_MAP(path_cache, BPF_MAP_TYPE_LRU_HASH, 0, MAX_CACHED_PREFIXES, struct path_key,
	 struct path_entry);
ARRAY_MAP(forecasts, BPF_MAP_TYPE_ARRAY, MAX_UPLINKS, struct uplink_forecast);
ARRAY_MAP(race_budget, BPF_MAP_TYPE_ARRAY, 1, struct race_budget);

HASH_MAP(fragments, BPF_MAP_TYPE_LRU_HASH, 0, MAX_FRAGMENTED_PACKETS, struct fragment_key,
	 struct fragment);

// Returns an uplink's number as an index. The mask gives the verifier a bound that survives the
// compiler's treatment of a comparison.
static __always_inline __u32 uplink_index(__u32 id)
{
	asm volatile("%0 &= 0x1f" : "+r"(id));
	return id;
}
_Static_assert(MAX_UPLINKS == 0x1f + 1, "uplink_index");

// Returns the index of a direction of an uplink.
static __always_inline __u32 shape_index(__u32 uplink, __u32 direction)
{
	return uplink_index(uplink) * SHAPED_DIRECTIONS + direction;
}

static __always_inline struct uplink *uplink_at(__u32 id)
{
	return bpf_map_lookup_elem(&uplinks, &id);
}

// Returns 1 if the process that carries leased uplinks renewed its lease in time, or let it lapse
// less than `grace` ns ago. The process may be gone without any other sign. Verified once, not
// where it is called from.
__noinline int has_lease(__u64 grace)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&lease, &zero);

	return until && bpf_ktime_get_ns() < *until + grace;
}

// Returns 1 if flows of a leased uplink wait for the process that carries it: a restart takes it no
// longer than this.
static __always_inline int is_awaited(const struct uplink *uplink)
{
	return uplink->leased && has_lease(LEASE_GRACE_NS);
}

static __always_inline int is_up(const struct uplink *uplink)
{
	return uplink->accepts_new && (!uplink->leased || has_lease(0));
}

static __always_inline int takes_flows(const struct uplink *uplink, __u8 family)
{
	return uplink && uplink->ifindex && uplink->next_hops[family & 1].present && is_up(uplink);
}

// Returns the number of a device's uplink + 1; 0: it is none.
static __always_inline __u32 uplink_number_of(__u32 device)
{
	__u32 *number = bpf_map_lookup_elem(&uplink_of_low, &device);

	if (!number)
		number = bpf_map_lookup_elem(&uplink_of_high, &device);
	return number ? *number : 0;
}

static __always_inline struct uplink *uplink_of(__u32 device)
{
	__u32 number = uplink_number_of(device);

	return number ? uplink_at(number - 1) : NULL;
}

#endif
