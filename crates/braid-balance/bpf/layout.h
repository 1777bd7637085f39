// Keys and values of the maps. The loader has the same structures (src/maps/layout.rs); both sides
// assert sizes and offsets.
#ifndef BRAID_LAYOUT_H
#define BRAID_LAYOUT_H

#include <linux/bpf.h>
#include <linux/types.h>
#include "constants.h"

// An IPv6 address, or an IPv4 address in v4-mapped form (::ffff:a.b.c.d), network order.
struct address {
	__be32 word[4];
};

// One direction's identity of a flow. `local` is the inner end in the forward tables and the outer
// one in the reverse tables; `remote` is all zero where one mapping serves every remote. ICMP echo
// has its id as local port; protocols without ports have zero. `realm` tells uplinks with the same
// address apart (two home routers that both hand out 192.168.1.100); it is zero in the forward
// tables.
struct tuple {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
	__u8 protocol;
	__u8 realm;
	__u8 unused[2];
};

// Value of the forward tables.
struct flow {
	struct address outer;
	// The remote that the stack saw last; other remotes of the same mapping do not take the
	// fast path.
	struct address remote;
	// Towards the inside, for a LAN's flow whose route back is known.
	struct address next_hop;
	// Fields that most packets write, on one cache line.
	__u64 last_seen; // ns of the monotonic clock
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 rx_bytes;
	// TCP, host order: the inside's last acknowledgement number, and the sequence number after
	// the highest that it has sent. A reset with the first is accepted by the inside; the
	// second tells which segments are sent again. UDP: the last DNS questions, in these three
	// and `lost`; `seen` says when they were asked (upcall.h).
	__u32 inside_ack;
	__u32 inside_next;
	__u32 outside_next;   // like inside_next, for the outside; 0: nothing received yet
	__u32 seen;	      // data packets since losses were last added to the path
	__u64 created;	      // ns of the monotonic clock
	__u32 inside_ifindex; // device it came in by; 0: the host itself
	__u32 inside_mtu;
	__be16 outer_port;
	__be16 remote_port;
	__u8 uplink;
	__u8 state;
	__u8 fins;
	__u8 flags;
	__u8 choice;
	__u8 realm; // of its outer address
	__u8 class;
	__u8 rule;	// that chose the class, + 1; 0: none
	__u8 came_from; // uplink that it was moved from, + 1; 0: never moved
	__u8 tick;	// of the forecast under which it last counted as busy
	__u8 unused[2];
	__u32 lost; // of those seen: retransmissions from inside, gaps from outside
	// Round trips, one at a time: TCP's by timestamps (RFC 7323; flow/timestamps.h), QUIC's by
	// the spin bit, of which `stamp` is the inside's. Before that `stamp_at` is when the first
	// Initial was sent, until it is answered (flow/quic.h).
	__u32 min_rtt;	     // us; 0: not known
	__be32 stamp;	     // the inside's timestamp whose echo is awaited
	__u32 stamp_at;	     // when it was sent, us of the monotonic clock; 0: none is awaited
	__u32 stamp_packets; // packets of the flow until then, in both directions
	__u32 last_rtt;	     // us, measured while the flow moved data; 0: not known
};

// Source address and gateway of one family on an uplink.
struct next_hop {
	struct address address;
	struct address gateway;
	__u8 present;
	__u8 has_gateway;
	__u8 realm;   // no other uplink has the same address and realm
	__u8 on_link; // bits of the prefix that the address shares with its link; 0: no neighbours
};

struct uplink {
	struct next_hop next_hops[FAMILIES];
	__u32 ifindex; // 0: no such uplink
	__u32 mtu;
	__u16 port_low;
	__u16 port_high; // inclusive
	__u8 layer;
	__u8 accepts_new;
	// Bits of families (1 << FAMILY_…): those whose TCP connections here are reset, and those
	// that another uplink takes flows of.
	__u8 resets_tcp;
	__u8 others;
	__u32 epoch;	  // entries of the path cache with another epoch are void
	__u8 leased;	  // carried by a process: it takes flows only during the lease
	__u8 sends_twice; // it loses packets: the first ones of a flow go twice
	__u8 unused[2];
};

struct slot_bank {
	__u32 count; // 0: no uplink takes new flows
	__u16 lb_method;
	__u16 prefers;	  // uplink that takes every flow while it takes any, + 1; 0: none
	__u32 sticky;	  // s that a client keeps its uplink for a site; 0: not at all
	__u32 candidates; // bits of the uplinks that may be raced
	__u8 slot[SLOTS];
};

struct settings {
	// The active bank of each table, by class * FAMILIES + family.
	__u8 active[CLASSES * FAMILIES];
	__u8 snoops_dns; // 1: DNS answers are passed to the daemon
	__u8 unused[3];
	__u32 steer;	      // device of the outbound program; 0: not known yet
	__u32 cache_ttl;      // s after which a path cache entry expires
	__u32 explore_one_in; // one flow in so many is raced although all RTTs are known; 0: none
	__u32 per_prefix;     // races per second towards one prefix
	__u32 total;	      // races per second
};

// Next slot of a table's round robin. A lock and not an atomic, because fetch-and-add came with
// Linux 5.12 and we support 5.10; only new flows come here.
struct rr_cursor {
	struct bpf_spin_lock lock;
	__u32 next;
};

struct uplink_counters {
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 flows_opened;
	// Signs that the uplink's remotes answer. `syns` are those that open a flow, `syn_answers`
	// the first answers to them; `repeats` are segments that the inside retransmits because
	// they are not acknowledged.
	__u64 syns;
	__u64 syn_repeats;
	__u64 syn_answers;
	__u64 repeats;
	// From SYN to SYN/ACK, of handshakes without a repeated SYN, and from a QUIC Initial to its
	// first answer.
	__u64 rtt_us_sum;
	__u64 rtt_samples;
	// TCP: packets with data in both directions, and those of them that indicate a loss.
	__u64 data_packets;
	__u64 lost;
	// Of flows that move data: by how much their round trips exceed the flow's shortest.
	__u64 queueing_us_sum;
	__u64 queueing_samples;
	// For how long they show a queue: by how much each exceeds the flow's shortest, without the
	// uplink's silence before its end, as far back as the last one that showed a queue.
	__u64 queued_us;
	// Time of the last one that did, ns of the monotonic clock.
	__u64 queue_seen;
	__u64 last_rx; // time of the last packet received, ns of the monotonic clock
	// Of the same round trips: their sum, and the sum of the changes from one to the next of a
	// flow, with the number of these.
	__u64 flow_rtt_us_sum;
	__u64 jitter_us_sum;
	__u64 jitter_samples;
};

// The rate that a direction of an uplink is shaped to.
struct shape_rate {
	__u32 cost;	 // ns that 1,024 bytes take; 0: no rate yet, packets are counted
	__u32 target;	 // ns of delay above which CoDel drops
	__u32 limit;	 // ns of delay above which every packet is dropped that is not small
	__u32 is_shaped; // 0: the direction is not shaped
	// Class of the packets that go first in the device's queue; 0: Braid has no queue there.
	__u32 first_class;
	// By how many ns the device's queue was longer than computed, at the look of this number.
	__s32 behind;
	__u32 look;
};

// A queue that is only computed: the time at which it is empty, and CoDel's state by the names of
// RFC 8289 5.4. Before an egress queue it tells how long packets wait there.
struct virtual_queue {
	__u64 empty_at;	    // ns of the monotonic clock
	__u64 first_above;  // ns of the monotonic clock; 0: the delay is below the target
	__u64 drop_next;    // ns of the monotonic clock
	__u32 drops;	    // since the dropping state was entered
	__u32 last_drops;   // when it was entered
	__u32 inverse_sqrt; // of drops, times 2^32
	__u32 is_dropping;
	__u32 cost; // ns that 1,024 bytes took when packets last came
	__u32 look; // of its last correction
};

struct shape_counters {
	__u64 packets; // that passed
	__u64 bytes;
	__u64 dropped_packets;
	__u64 dropped_bytes;
	__u64 marked_packets; // passed with a congestion mark
};

// The path to a prefix by one uplink.
struct path {
	__u32 rtt;	   // us; 0: not known
	__u32 measured_at; // s of the monotonic clock
	__u32 packets;	   // with data
	__u32 lost;
	__u32 epoch; // of the uplink when this was measured
};

struct path_key {
	struct address prefix;
};

struct path_entry {
	// Races in this second.
	__u32 second;
	__u32 races;
	struct path paths[MAX_UPLINKS];
};

// The daemon's forecast for an uplink. Rates in units of 1000 bytes a second.
struct uplink_forecast {
	__u32 capacity;
	__u32 spare;
	__u32 busy; // flows that were moving data
	__u32 loss; // parts in a million
	__u32 tick; // number of this forecast
	// Counted by the programs since the forecast was written: flows opened (earlier ones count
	// half), flows that have moved data.
	__u32 opened;
	__u32 active;
	// Of the loss of all packets, what the uplink's own load caused; parts in a million. The
	// daemon's.
	__u32 load_loss;
	__u64 last_opened; // ns of the monotonic clock
};

struct race_budget {
	__u32 second;
	__u32 races;
};

// A SYN that went out by several uplinks. The first one answered becomes the flow; until the entry
// is gone, answers by other uplinks are reset.
struct race {
	struct flow flow; // the flow to be, without its outer end
	__u64 last_syn;	  // ns of the monotonic clock
	__u32 sequence;	  // the SYN's, host order
	__u32 preferred;  // uplink that wins if it answers at all, + 1, and PREFERRED_AWAITED; 0:
			  // the first to answer
	__be16 ports[MAX_UPLINKS];
	__u8 attempts[MAX_UPLINKS];
};

struct lan_device {
	__u32 mtu;
};

// A packet that is sent in fragments: only the first one has the ports.
struct fragment_key {
	struct address source;
	struct address dest;
	__u32 id;
	__u8 protocol;
	__u8 inbound;
	__u8 realm;
	__u8 unused[1];
};

struct fragment {
	struct address translated;
	__u32 uplink;
};

// A packet for the daemon.
struct upcall {
	__u64 at; // ns of the monotonic clock
	struct fragment_key key;
	__u16 length;
	__u8 kind;
	__u8 unused;
	__u32 start; // offset of the payload from the IP header
	__u8 bytes[MAX_UPCALL_BYTES];
};

// New key of a mapping that has moved.
struct late_reply {
	struct tuple key; // forward key
	__u64 until;	  // ns of the monotonic clock
};

// A small packet that a flow's inside has sent, before translation.
struct stored_packet {
	__u64 at; // ns of the monotonic clock
	__u32 length;
	__u32 unused;
	__u8 bytes[MAX_REPLAY_BYTES];
};

// The last packets of a flow: two sent after something was received, and two sent without anything
// received since the packet before.
struct replay_buffer {
	struct stored_packet after_receive[2];
	struct stored_packet unsolicited[2];
	__u64 rx_packets; // packets received when the last one was stored
};

// The site is a number from DNS names, behind a word that no address begins with, or the remote's
// network: /24 or /56.
struct sticky_key {
	struct address client;
	struct address site;
	__u8 class;
	__u8 unused[3];
};

// The build that pinned the maps. Version is text, zero-padded.
struct meta {
	__u32 layout;
	__u32 marks;	// meaning of the names' marks, a number of the daemon's
	__u64 programs; // hash of the programs' sources
	__u8 version[24];
};

_Static_assert(sizeof(struct tuple) == 40, "tuple");
_Static_assert(sizeof(struct flow) == 160, "flow");
_Static_assert(__builtin_offsetof(struct flow, last_seen) == 48, "flow.last_seen");
_Static_assert(__builtin_offsetof(struct flow, inside_ack) == 88, "flow.inside_ack");
_Static_assert(__builtin_offsetof(struct flow, created) == 104, "flow.created");
_Static_assert(__builtin_offsetof(struct flow, inside_ifindex) == 112, "flow.inside_ifindex");
_Static_assert(__builtin_offsetof(struct flow, choice) == 128, "flow.choice");
_Static_assert(__builtin_offsetof(struct flow, came_from) == 132, "flow.came_from");
_Static_assert(__builtin_offsetof(struct tuple, realm) == 37, "tuple.realm");
_Static_assert(__builtin_offsetof(struct next_hop, realm) == 34, "next_hop.realm");
_Static_assert(sizeof(struct next_hop) == 36, "exit");
_Static_assert(sizeof(struct uplink) == 96, "uplink");
_Static_assert(__builtin_offsetof(struct uplink, ifindex) == 72, "uplink.ifindex");
_Static_assert(__builtin_offsetof(struct uplink, resets_tcp) == 86, "uplink.resets_tcp");
_Static_assert(__builtin_offsetof(struct uplink, leased) == 92, "uplink.leased");
_Static_assert(sizeof(struct settings) == CLASSES * FAMILIES + 24, "settings");
_Static_assert(sizeof(struct upcall) == 56 + MAX_UPCALL_BYTES, "upcall");
_Static_assert(sizeof(struct late_reply) == 48, "late_reply");
_Static_assert(sizeof(struct stored_packet) == 16 + MAX_REPLAY_BYTES, "stored_packet");
_Static_assert(sizeof(struct replay_buffer) == 4 * sizeof(struct stored_packet) + 8,
	       "replay_buffer");
_Static_assert(sizeof(struct slot_bank) == 16 + SLOTS, "slot_bank");
_Static_assert(sizeof(struct uplink_counters) == 168, "uplink_counters");
_Static_assert(sizeof(struct shape_rate) == 28, "shape_rate");
_Static_assert(sizeof(struct virtual_queue) == 48, "virtual_queue");
_Static_assert(sizeof(struct shape_counters) == 40, "shape_counters");
_Static_assert(sizeof(struct fragment_key) == 40, "fragment_key");
_Static_assert(sizeof(struct fragment) == 20, "fragment");
_Static_assert(sizeof(struct path) == 20, "path");
_Static_assert(sizeof(struct path_entry) == 8 + MAX_UPLINKS * 20, "path");
_Static_assert(sizeof(struct uplink_forecast) == 40, "uplink_forecast");
_Static_assert(sizeof(struct race) == 160 + 16 + MAX_UPLINKS * 3, "race");
_Static_assert(sizeof(struct sticky_key) == 36, "sticky_key");
_Static_assert(sizeof(struct rr_cursor) == 8, "rr_cursor");
_Static_assert(sizeof(struct meta) == 40, "meta");

#endif
