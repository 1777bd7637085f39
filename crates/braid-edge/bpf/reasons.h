// Every way out of a program, and every event worth a number, has a name here: it is a counter's
// label and the word that `braid edge status` prints. build.rs reads this list into Rust.
//
// REASON(name, kind, text); kinds: SENT, PASSED, DROPPED, EVENT something that happened on the way
// to one of those.
#ifndef BRAID_EDGE_REASONS_H
#define BRAID_EDGE_REASONS_H

#define REASONS(REASON)                                                                            \
	REASON(split, SENT, "tcp packet sent by its slot's path")                                  \
	REASON(sticky, SENT, "packet without sequence numbers sent by its flow's path")            \
	REASON(shim_added, SENT, "packet sent by its slot's path with a number of ours")           \
	REASON(no_shim_room, EVENT, "packet too long for a number of ours")                        \
	REASON(fair_drop, DROPPED, "packet of the flow that carries most, for others' sake")       \
	REASON(single_path, SENT, "packet to a host behind no edge sent on a single path")         \
	REASON(multicast, SENT, "broadcast or multicast sent to all")                              \
	REASON(host_vlan, DROPPED, "packet inside a vlan of the hosts' own")                       \
	REASON(host_shim, DROPPED, "packet of a host with a number that only edges give")          \
	REASON(gso_packet, EVENT, "several segments in one packet sent by one path")               \
	REASON(rewrite_failed, DROPPED, "tag could not be written or taken off")                   \
	REASON(no_l3_path, PASSED, "packet of no layer-3 path left to the machine")                \
	REASON(too_long, PASSED, "packet that its layer-3 path's device is too small for")         \
	REASON(local_delivery, PASSED, "packet of a layer-3 path for the machine itself")          \
	REASON(no_route, DROPPED, "packet that the machine has no route for")                      \
	REASON(error, PASSED, "router's error about a packet of a layer-3 path")                   \
	REASON(probe, SENT, "probe sent back, or its answer taken")                                \
	REASON(forwarded, SENT, "packet of a path handed on as it came")                           \
	REASON(to_resequencer, SENT, "packet of a path handed to the resequencer")                 \
	REASON(to_lane_resequencer, SENT,                                                          \
	       "packet with a number of ours handed to the resequencer")                           \
	REASON(resequenced, SENT, "packet handed on by the resequencer")                           \
	REASON(untagged, SENT, "packet of a single path handed on")                                \
	REASON(unknown_tag, DROPPED, "tag of no path to here")                                     \
	REASON(unexpected_shim, DROPPED, "number of ours that this edge asked nobody for")         \
	REASON(orphaned, PASSED, "packet left to the machine, as the edge's process is gone")      \
	REASON(not_set_up, DROPPED, "packet before the edge was set up")

enum reason_kind { SENT, PASSED, DROPPED, EVENT };

#define REASON_ENUM(name, kind, text) REASON_##name,
enum reason { REASONS(REASON_ENUM) REASON_COUNT };
#undef REASON_ENUM

#endif
