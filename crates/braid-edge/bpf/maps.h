// The maps, and counting.
#ifndef BRAID_EDGE_MAPS_H
#define BRAID_EDGE_MAPS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include "counting.h"

// Devices, by their indices; all zero until the edge is set up.
struct settings {
	__u32 inside;	       // towards the hosts
	__u32 outside;	       // towards the switch
	__u32 hold;	       // the resequencer's
	__u32 epoch;	       // tells the numbers of this start from those of the last
	__u32 shim;	       // whether other edges were asked for them
	__u32 max_frame_bytes; // bytes of the longest frame that the outside device carries
	// ns of the monotonic clock: the process that puts it off is gone by then, and with it all
	// that the programs need. 0: they go with it by themselves.
	__u64 lease_end_ns;
};

// A lock and not an atomic, because fetch-and-add came with Linux 5.12 and our floor is 5.10.
struct cursor {
	struct bpf_spin_lock lock;
	__u32 unused;
	__u64 bytes;
};

struct lane {
	struct bpf_spin_lock lock;
	__u32 next;
};

struct host {
	__u8 mac[ETH_ALEN];
	__u16 zero;
};

struct slot_table {
	__u16 tags[SLOTS];
	__u32 shim; // whether the far edge takes numbers of ours off
	__u32 zero;
	__u64 rate; // bytes a second that the paths' lines carry at the most; 0: not known
};

// What a flow carried lately: fair.h.
struct flow_load {
	__u64 bytes;
	__u64 at; // ns
};

// What waits in front of the paths to a target, if nobody else uses them.
struct queue {
	__u64 bytes;
	__u64 at; // ns
	__u64 dropped;
	struct flow_load all;
	struct flow_load heaviest;
	__u32 heaviest_flow; // that is
	__u32 zero;
};

// Between the EtherType and what it was before: docs/fabric.md.
struct shim {
	__u8 epoch;
	__u8 lane;
	__be16 protocol; // what it was before
	__be32 number;	 // of the lane, from 0
};

// IPv4 addresses are mapped (::ffff:0:0/96).
struct address {
	__be32 word[4];
};

// A layer-3 path: what its hosts' addresses become at either end. No family: the path is of
// layer 2.
struct l3_path {
	struct address inner_local;  // prefix of the hosts here, as hosts know it
	struct address inner_remote; // and of those there
	struct address local;	     // the same on this path
	struct address remote;
	struct address local_host_mask; // bits of an address that are not the prefix's
	struct address remote_host_mask;
	__u32 family; // 4 or 6
};

struct prefix {
	__u32 bits; // 8 for the role, and the prefix's
	__u8 role;
	struct address address;
} __attribute__((packed));

// A path, by the numbers of its prefixes.
struct prefix_pair {
	__u32 local;
	__u32 remote;
};

struct traffic {
	__u64 packets;
	__u64 bytes;
};

ARRAY_MAP(edge_settings, BPF_MAP_TYPE_ARRAY, 1, struct settings);
ARRAY_MAP(tables, BPF_MAP_TYPE_ARRAY, MAX_TARGETS, struct slot_table);
// Bytes sent to each target: where in its table the next packet stands.
ARRAY_MAP(cursors, BPF_MAP_TYPE_ARRAY, MAX_TARGETS, struct cursor);
// The next number of each target's lanes.
ARRAY_MAP(lanes, BPF_MAP_TYPE_ARRAY, MAX_TARGETS *LANES, struct lane);
ARRAY_MAP(queues, BPF_MAP_TYPE_ARRAY, MAX_TARGETS, struct queue);
ARRAY_MAP(flows, BPF_MAP_TYPE_ARRAY, FLOWS, struct flow_load);
ARRAY_MAP(tag_actions, BPF_MAP_TYPE_ARRAY, VLANS, __u32);
// By tag; of layer-3 paths alone.
ARRAY_MAP(l3_paths, BPF_MAP_TYPE_ARRAY, VLANS, struct l3_path);
// By tag: what was sent by a path from here, and what came by a path to here.
ARRAY_MAP(tx_traffic, BPF_MAP_TYPE_PERCPU_ARRAY, VLANS, struct traffic);
ARRAY_MAP(rx_traffic, BPF_MAP_TYPE_PERCPU_ARRAY, VLANS, struct traffic);
_Static_assert(sizeof(struct shim) == SHIM_BYTES, "shim");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HOSTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host);
	__type(value, __u32);
} hosts SEC(".maps");

// Whose an address is: the number of a target, or of a prefix of paths here or there.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VLANS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_pair);
	__type(value, __u32);
} prefix_pairs SEC(".maps");

static __always_inline void account(void *map, __u32 tag, __u32 bytes)
{
	struct traffic *traffic = bpf_map_lookup_elem(map, &tag);

	if (traffic) {
		traffic->packets += 1;
		traffic->bytes += bytes;
	}
}

static __always_inline struct settings *active_settings(void)
{
	__u32 key = 0;
	struct settings *found = bpf_map_lookup_elem(&edge_settings, &key);

	return found && found->outside ? found : 0;
}

// Whether nobody is there any more whose programs these are.
static __always_inline int is_orphaned(void)
{
	__u32 key = 0;
	struct settings *found = bpf_map_lookup_elem(&edge_settings, &key);

	return found && found->lease_end_ns && bpf_ktime_get_ns() > found->lease_end_ns;
}

#endif
