// Every exit of a program, and every event worth counting, has a name here, which `braid edge
// status` prints. build.rs reads this list into Rust.
//
// REASON(name, kind, text); kinds: SENT, PASSED, DROPPED, and EVENT, which precedes one of these.
#ifndef BRAID_EDGE_REASONS_H
#define BRAID_EDGE_REASONS_H

#define REASONS(REASON)                                                                            \
	REASON(split, SENT, "tcp segment sent by the next slot's path")                            \
	REASON(sticky, SENT, "packet without sequence numbers sent by its flow's path")            \
	REASON(shim_added, SENT, "packet sent by the next slot's path with a shim")                \
	REASON(copied, EVENT, "packet of which a copy is kept for a moment")                       \
	REASON(no_shim_room, EVENT, "packet too long for a shim, or several in one")               \
	REASON(fair_drop, DROPPED, "packet of the heaviest flow, for fairness")                    \
	REASON(single_path, SENT, "packet to a host behind no edge sent on a single path")         \
	REASON(multicast, SENT, "broadcast or multicast sent to all")                              \
	REASON(host_vlan, DROPPED, "packet inside a vlan of the hosts' own")                       \
	REASON(host_shim, DROPPED, "packet of a host with a shim, which only edges add")           \
	REASON(gso_packet, EVENT, "several segments in one packet sent by one path")               \
	REASON(rewrite_failed, DROPPED, "packet could not be rewritten")                           \
	REASON(no_l3_path, PASSED, "packet of no layer-3 path left to the machine")                \
	REASON(too_long, PASSED, "packet larger than the mtu of its layer-3 path's device")        \
	REASON(local_delivery, PASSED, "packet of a layer-3 path for the machine itself")          \
	REASON(no_route, DROPPED, "packet that the machine has no route for")                      \
	REASON(error, PASSED, "icmp error about a packet of a layer-3 path")                       \
	REASON(probe, SENT, "probe returned, or its reply taken")                                  \
	REASON(bad_probe, DROPPED, "probe of a path that no edge sends")                           \
	REASON(forwarded, SENT, "packet of a path forwarded as it came")                           \
	REASON(to_resequencer, SENT, "packet of a path sent to the resequencer")                   \
	REASON(to_lane_resequencer, SENT, "packet with a shim sent to the resequencer")            \
	REASON(resequenced, SENT, "packet delivered by the resequencer")                           \
	REASON(untagged, SENT, "untagged packet of a single path forwarded")                       \
	REASON(unknown_tag, DROPPED, "unknown tag")                                                \
	REASON(unexpected_shim, DROPPED, "shim that this edge did not ask for")                    \
	REASON(orphaned, PASSED, "packet left to the machine, as the edge's process is gone")      \
	REASON(not_set_up, DROPPED, "packet before the edge was set up")

enum reason_kind { SENT, PASSED, DROPPED, EVENT };

#define REASON_ENUM(name, kind, text) REASON_##name,
enum reason { REASONS(REASON_ENUM) REASON_COUNT };
#undef REASON_ENUM

#endif
