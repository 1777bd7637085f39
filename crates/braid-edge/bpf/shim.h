// Shims with sequence numbers for packets that have none that an edge can read (UDP, QUIC,
// fragments), so that they can be split and put in order like TCP. Only if the remote edge asks for
// them, for flows that fill a path or nearly so, and where frames stay within the outside device's
// MTU. A flow that one path carries gains nothing by others, and need not wait for what was lost.
#ifndef BRAID_EDGE_SHIM_H
#define BRAID_EDGE_SHIM_H

#include "load.h"
#include "slot.h"

// Estimated queue from which on a lane that fills its path is numbered, ns.
#define LANE_QUEUE_NS 30000000ULL
// Recent load from which on a lane is numbered where no rates are known, bytes in LOAD_WINDOW_NS.
#define LANE_BYTES_AT_UNKNOWN_RATE 262144
// Time for which a lane is numbered after the last packet at which it was heavy, ns.
#define LANE_HOLD_NS 1000000000ULL
// Time for which a lane that begins to be numbered keeps to its path, ns: longer than the packets
// take that went before.
#define LANE_OPENING_NS 200000000ULL
// Time for which a lane is not numbered after a packet without room for a shim, ns.
#define LANE_NO_ROOM_NS 2000000000ULL

static __always_inline struct lane *lane_of(struct __sk_buff *skb, __u32 target)
{
	__u32 key = target * LANES + lane_number(skb);

	return bpf_map_lookup_elem(&lanes, &key);
}

// Returns true if a lane with this load is more than half of what its path carries, or the path's
// queue is long.
static __always_inline int fills_path(const struct slot_table *table, const struct cursor *cursor,
				      __u32 tag, __u64 load, __u64 now)
{
	int fills = 0;

	if (!table->path_count)
		return load >= LANE_BYTES_AT_UNKNOWN_RATE;
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++) {
		const struct path *path = &table->paths[i];

		if (i >= table->path_count || path->tag != tag)
			continue;
		fills |= (2 * load * path->ns_per_kib >> 10) >= LOAD_WINDOW_NS;
		fills |= cursor->lines[i].tag == tag &&
			 cursor->lines[i].idle_at > now + LANE_QUEUE_NS;
	}
	return fills;
}

// Accounts a packet to its lane. Returns true if it is to be numbered.
static __always_inline int is_numbered(struct __sk_buff *skb, __be16 protocol, __u32 packets,
				       const struct slot_table *table, __u32 target,
				       const struct settings *settings, struct lane *lane)
{
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	__u64 now = bpf_ktime_get_ns(), load;
	__u32 tag;
	int numbered;

	if (!cursor || (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6)))
		return 0;
	// Each packet needs a number of its own, so a merged one has no room for them.
	// bpf_check_mtu() came with Linux 5.12, so the limit is a setting.
	if (packets > 1 || skb->len + SHIM_BYTES > settings->max_frame_bytes) {
		// All of its packets keep their order, then.
		lane->no_room_until = now + LANE_NO_ROOM_NS;
		count(REASON_no_shim_room);
		return 0;
	}
	if (now < lane->no_room_until)
		return 0;
	bpf_spin_lock(&lane->lock);
	add_load(&lane->load, skb->len, now);
	load = lane->load.bytes;
	bpf_spin_unlock(&lane->lock);
	if (load < settings->min_lane_bytes)
		return now < lane->numbered_until;
	tag = flow_tag(table, lane_number(skb));
	if (settings->min_lane_bytes && !fills_path(table, cursor, tag, load, now))
		return now < lane->numbered_until;
	bpf_spin_lock(&lane->lock);
	numbered = now < lane->numbered_until;
	lane->numbered_until = now + LANE_HOLD_NS;
	if (!numbered) {
		lane->opened_at = now;
		lane->opening_tag = tag;
	}
	bpf_spin_unlock(&lane->lock);
	return 1;
}

// Returns the tag of the path of a lane's next packet, as next_tag(). A lane that begins keeps to
// its path for a moment: the remote edge takes the first number that comes for the lane's
// beginning, and a packet that had overtaken it would be delivered before it. QUIC's handshake does
// not survive that: a packet by keys that are to come is thrown away.
static __always_inline __u32 next_lane_tag(struct __sk_buff *skb, struct slot_table *table,
					   __u32 target, const struct lane *lane, __u32 *queue_us)
{
	struct cursor *cursor = bpf_map_lookup_elem(&cursors, &target);
	__u64 now = bpf_ktime_get_ns();

	if (now - lane->opened_at >= LANE_OPENING_NS || !cursor)
		return next_tag(skb, table, target, NEXT_SLOT, queue_us);
	if (table->path_count)
		add_to_line(cursor, table, lane->opening_tag, skb->len + TAG_BYTES, now);
	return lane->opening_tag;
}

// Nonzero: the packet is damaged and must be dropped.
static __always_inline int add_shim(struct __sk_buff *skb, __be16 protocol, struct lane *lane,
				    __u32 epoch)
{
	__u32 number;
	struct {
		__be16 protocol;
		struct shim shim;
	} words = {.protocol = bpf_htons(ETH_P_SHIM)};

	bpf_spin_lock(&lane->lock);
	number = lane->next++;
	bpf_spin_unlock(&lane->lock);
	words.shim.epoch = epoch;
	words.shim.lane = lane_number(skb);
	words.shim.protocol = protocol;
	words.shim.number = bpf_htonl(number);
	// Behind the Ethernet header, whose EtherType then announces the shim.
	if (bpf_skb_adjust_room(skb, SHIM_BYTES, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &words.protocol, sizeof(words.protocol), 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, &words.shim, sizeof(words.shim), 0);
}

#endif
