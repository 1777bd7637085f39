// Maps and counters.
#ifndef BRAID_EDGE_MAPS_H
#define BRAID_EDGE_MAPS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include "counting.h"

#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

// Settings with device indices; all zero until the edge is set up.
struct settings {
	__u32 inside;	       // device towards the hosts
	__u32 outside;	       // device towards the switch
	__u32 hold;	       // the resequencer's device
	__u32 epoch;	       // tells shim numbers of this start from those of the last
	__u32 shim;	       // true if other edges were asked for shims
	__u32 max_frame_bytes; // bytes of the longest frame that the outside device carries
	__u32 min_lane_bytes;  // recent load from which on a lane is numbered
	__u32 zero;
	// End of the lease, ns of the monotonic clock: after it the process that renews the lease
	// is gone. 0: no lease, the programs end with their process.
	__u64 lease_end_ns;
	// End of the offers of copies, ns of the monotonic clock: after it the process that would
	// send them stands still.
	__u64 offers_end_ns;
};

// Estimated queue in front of a path.
struct line {
	__u64 idle_at; // when all that was sent has left it, ns
	__u32 tag;     // of its path
	__u32 zero;
};

// A lock and not an atomic, because fetch-and-add came with Linux 5.12 and we support 5.10.
struct cursor {
	struct bpf_spin_lock lock;
	__u32 unused;
	__u64 bytes;
	struct line lines[MAX_PATHS]; // as `paths` of the slot table
};

struct host {
	__u8 mac[ETH_ALEN];
	__u16 zero;
};

struct path {
	__u32 tag;
	__u32 delay_us;	  // latency, and others' part of the queue by the controller's probes
	__u64 ns_per_kib; // time in which it carries 1024 bytes
	__u32 latency_us;
	__u32 zero;
};

struct slot_table {
	__u16 tags[SLOTS];
	__u32 shim;	  // true if the remote edge removes shims
	__u32 path_count; // 0: segments take the slots in turn, too
	__u64 rate;	  // configured capacity of the paths, bytes a second; 0: unknown
	struct path paths[MAX_PATHS];
};

// Last segment of a bucket: arrival.h.
struct sent_segment {
	__u32 flow;
	__u32 seq;
	__u32 tag;
	__u32 queue_us; // estimated queue that it was sent into
};

// Recent bytes of segments sent by a path, and of one among them for each loss.
struct path_loss {
	__u64 at; // ns
	__u64 sent;
	__u64 lost;
	__u64 event_at; // beginning of the last loss, ns
	__u64 resent;	// packets, since the beginning
	// Time until which `sent` and `lost` are those of the edge's process, which has them by the
	// counts of both edges, ns.
	__u64 measured_end_ns;
};

// Queue in front of a path by this edge's probes.
struct path_queue {
	__u64 ns;
	// The part beyond the estimated queue: others' packets, and this edge's own that the
	// estimate has lost sight of.
	__u64 excess_ns;
	__u64 end_ns; // of its validity, by the monotonic clock
};

// Recent load of a flow: load.h.
struct flow_load {
	__u64 bytes;
	__u64 at; // ns
};

// A lane of packets to a target, by the flow's hash: shim.h.
struct lane {
	struct bpf_spin_lock lock;
	__u32 next;	       // number
	struct flow_load load; // all packets
	__u64 numbered_until;  // ns; 0: never
	__u64 opened_at;       // time from which on it is numbered, ns
	__u64 no_room_until;   // time until which it has packets without room for a shim, ns
	__u32 opening_tag;
	__u32 zero;
};

// Estimated queue in front of the paths to a target.
struct queue {
	__u64 bytes;
	__u64 at; // ns
	__u64 dropped;
	struct flow_load sent; // all packets
	struct flow_load all;  // those that may be dropped
	struct flow_load heaviest;
	__u32 heaviest_flow; // its bucket
	__u32 zero;
};

// Follows the Ethernet header of a numbered packet: docs/fabric-core.md.
struct shim {
	__u8 epoch;
	__u8 lane;
	__be16 protocol; // the packet's own EtherType
	__be32 number;	 // in the lane, from 0
};

// The last arrivals by a path to here: path_probe.h.
struct last_arrival {
	// Nonce of a probe, 0: none; and in the upper half the packets that had come before it. One
	// word, so that both are of the same probe.
	__u64 probe;
	__u64 data_at; // ns; 0: never
	__u64 packets; // all but probes
};

// Tells the other edge that copies are kept of what is sent to it. Whoever asks for one proves by
// the token that this came.
struct offer {
	__be32 wait_us; // time that a copy takes from the request on; 0: none are kept
	__be32 token[2];
};

// IPv4 addresses are mapped (::ffff:0:0/96).
struct address {
	__be32 word[4];
};

// A layer-3 path: the translation of its hosts' prefixes. Family 0: a layer-2 path.
struct l3_path {
	struct address inner_local;  // prefix of the local hosts, as hosts know it
	struct address inner_remote; // prefix of the remote hosts
	struct address local;	     // the same on this path
	struct address remote;
	struct address local_host_mask; // bits of an address behind its prefix
	struct address remote_host_mask;
	__u32 family; // 4 or 6
};

struct prefix {
	__u32 bits; // of the role (8) and the prefix
	__u8 role;
	struct address address;
} __attribute__((packed));

// Key of a path: the numbers of its prefixes.
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
// Bytes sent to each target: the position in its slot table.
ARRAY_MAP(cursors, BPF_MAP_TYPE_ARRAY, MAX_TARGETS, struct cursor);
// Next shim number of each target's lanes.
ARRAY_MAP(lanes, BPF_MAP_TYPE_ARRAY, MAX_TARGETS *LANES, struct lane);
ARRAY_MAP(queues, BPF_MAP_TYPE_ARRAY, MAX_TARGETS, struct queue);
ARRAY_MAP(flows, BPF_MAP_TYPE_ARRAY, FLOWS, struct flow_load);
ARRAY_MAP(sent_segments, BPF_MAP_TYPE_ARRAY, SENT_SEGMENTS, struct sent_segment);
// By tag.
ARRAY_MAP(path_losses, BPF_MAP_TYPE_ARRAY, VLANS, struct path_loss);
ARRAY_MAP(path_queues, BPF_MAP_TYPE_ARRAY, VLANS, struct path_queue);
ARRAY_MAP(last_arrivals, BPF_MAP_TYPE_ARRAY, VLANS, struct last_arrival);
// By tag: true if the edge's process gets a copy of each numbered packet.
ARRAY_MAP(copied_tags, BPF_MAP_TYPE_ARRAY, VLANS, __u32);
// By tag: true if flows that keep to a path take others.
ARRAY_MAP(avoided_tags, BPF_MAP_TYPE_ARRAY, VLANS, __u32);
// By tag of the path that a reply takes.
ARRAY_MAP(offers, BPF_MAP_TYPE_ARRAY, VLANS, struct offer);
ARRAY_MAP(tag_actions, BPF_MAP_TYPE_ARRAY, VLANS, __u32);
// By tag; for layer-3 paths alone.
ARRAY_MAP(l3_paths, BPF_MAP_TYPE_ARRAY, VLANS, struct l3_path);
// By tag: packets sent and received by a path, and among those sent the ones of flows that keep to
// it.
ARRAY_MAP(tx_traffic, BPF_MAP_TYPE_PERCPU_ARRAY, VLANS, struct traffic);
ARRAY_MAP(kept_traffic, BPF_MAP_TYPE_PERCPU_ARRAY, VLANS, struct traffic);
ARRAY_MAP(rx_traffic, BPF_MAP_TYPE_PERCPU_ARRAY, VLANS, struct traffic);
_Static_assert(sizeof(struct shim) == SHIM_BYTES, "shim");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HOSTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct host);
	__type(value, __u32);
} hosts SEC(".maps");

// The number of a target, or of a local or remote prefix of paths, by address.
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

static __always_inline void account(void *map, __u32 tag, __u32 packets, __u32 bytes)
{
	struct traffic *traffic = bpf_map_lookup_elem(map, &tag);

	if (traffic) {
		traffic->packets += packets;
		traffic->bytes += bytes;
	}
}

static __always_inline struct settings *active_settings(void)
{
	__u32 key = 0;
	struct settings *found = bpf_map_lookup_elem(&edge_settings, &key);

	return found && found->outside ? found : 0;
}

// Returns true if the process that renews the lease is gone.
static __always_inline int is_orphaned(void)
{
	__u32 key = 0;
	struct settings *found = bpf_map_lookup_elem(&edge_settings, &key);

	return found && found->lease_end_ns && bpf_ktime_get_ns() > found->lease_end_ns;
}

#endif
