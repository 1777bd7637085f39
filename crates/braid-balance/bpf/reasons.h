// Every exit of a program, and every event worth counting, has a name here: it is a counter's label
// and the word that `braid status` prints. build.rs turns this list into Rust.
//
// The list only grows at its end: a number keeps its meaning over an upgrade.
//
// REASON(name, kind, text); kinds: SENT left by an uplink or to a LAN, PASSED handed to the next
// program or the stack, DROPPED, EVENT something that happened on the way to one of those.
#ifndef BRAID_REASONS_H
#define BRAID_REASONS_H

#define REASONS(REASON)                                                                            \
	REASON(out_flow, SENT, "packet of a known flow sent")                                      \
	REASON(out_new, SENT, "first packet of a new flow sent")                                   \
	REASON(tcp_midstream, SENT, "tcp without a flow and without syn, sent by hash")            \
	REASON(out_fragment, SENT, "later fragment sent")                                          \
	REASON(out_not_ip, DROPPED, "outbound frame that is neither ipv4 nor ipv6")                \
	REASON(out_malformed, DROPPED, "outbound packet with truncated or inconsistent headers")   \
	REASON(out_not_unicast, DROPPED, "outbound to multicast, broadcast or a link scope")       \
	REASON(out_protocol, DROPPED, "outbound protocol that cannot be translated")               \
	REASON(out_fragment_orphan, DROPPED, "outbound later fragment before its first one")       \
	REASON(no_uplink, DROPPED, "no uplink takes new flows of this family")                     \
	REASON(uplink_gone, DROPPED, "tcp flow whose uplink is gone")                              \
	REASON(nat_ports_exhausted, DROPPED, "no free source port on the uplink")                  \
	REASON(nat_address_taken, DROPPED, "portless protocol to a remote that another host uses") \
	REASON(out_table_failed, DROPPED, "flow could not be stored")                              \
	REASON(out_rewrite_failed, DROPPED, "outbound packet could not be rewritten")              \
	REASON(in_stack, PASSED, "answer handed to the stack")                                     \
	REASON(in_lan, SENT, "answer sent straight to a lan device")                               \
	REASON(in_fragment, PASSED, "later fragment of an answer handed to the stack")             \
	REASON(in_icmp_error, PASSED, "icmp error about a flow handed to the stack")               \
	REASON(in_no_flow, PASSED, "inbound to an uplink's address, of no flow and no socket")     \
	REASON(in_not_ip, PASSED, "inbound frame that is neither ipv4 nor ipv6")                   \
	REASON(in_malformed, PASSED, "inbound packet with truncated or inconsistent headers")      \
	REASON(in_protocol, PASSED, "inbound protocol or icmp type that is never translated")      \
	REASON(in_not_uplink, PASSED, "inbound on a device that is no uplink any more")            \
	REASON(in_rewrite_failed, DROPPED, "inbound packet could not be rewritten")                \
	REASON(lan_fast, SENT, "lan packet sent by the fast path")                                 \
	REASON(lan_no_flow, PASSED, "lan packet of no established flow")                           \
	REASON(lan_not_ip, PASSED, "lan frame that is neither ipv4 nor ipv6")                      \
	REASON(lan_malformed, PASSED, "lan packet with truncated or inconsistent headers")         \
	REASON(lan_not_fast, PASSED, "lan packet that must see the stack")                         \
	REASON(lan_too_big, PASSED, "lan packet above the uplink's mtu")                           \
	REASON(lan_ttl, PASSED, "lan packet whose hop limit ends here")                            \
	REASON(lan_rewrite_failed, DROPPED, "lan packet could not be rewritten")                   \
	REASON(flow_promoted, EVENT, "embryo became established")                                  \
	REASON(flow_table_full, EVENT, "embryo stays one because the table is full")               \
	REASON(flow_replaced, EVENT, "syn on a closed flow opened a new one")                      \
	REASON(flow_moved, EVENT, "mapping renewed, its uplink is down or renumbered")             \
	REASON(half_pair, EVENT, "half of a pair found, repaired or removed")                      \
	REASON(slot_skipped, EVENT, "slot named an uplink that takes no flows")                    \
	REASON(port_changed, EVENT, "flow could not keep its source port")                         \
	REASON(out_icmp_error, SENT, "icmp error about a flow sent to its remote")                 \
	REASON(out_icmp_orphan, DROPPED, "outbound icmp error about no flow of ours")              \
	REASON(out_own_address, SENT, "packet from an uplink's own address sent as it is")         \
	REASON(port_taken_over, EVENT, "flow took the port of an embryonic flow")                  \
	REASON(in_vlan, PASSED, "inbound inside a vlan that has a device of its own")              \
	REASON(class_blocked, DROPPED, "no uplink of those that the flow's class may use")         \
	REASON(client_over_limit, DROPPED, "new flow of a client that holds more than its share")  \
	REASON(lan_spoofed, DROPPED, "new flow from a lan with a source that is not there")        \
	REASON(out_reset, SENT, "tcp segment of a dead connection answered with a reset")          \
	REASON(lan_reset, SENT, "lan's tcp segment of a dead connection answered with a reset")    \
	REASON(in_late_reply, EVENT, "answer to a mapping that has moved")                         \
	REASON(out_held, DROPPED, "outbound later fragment held until its first one came")         \
	REASON(in_held, EVENT, "inbound later fragment held until its first one came")             \
	REASON(upcall_lost, EVENT, "message to the daemon lost (ring full or rate limit)")         \
	REASON(lan_hairpin, SENT, "lan packet to a mapping of the lan's own")                      \
	REASON(out_hairpin, SENT, "hairpinned packet sent to the lan")                             \
	REASON(hairpin_apart, EVENT, "packet to another lan's mapping, left to the stack")         \
	REASON(fragment_wide, EVENT, "early fragment too large to hold")                           \
	REASON(race_begun, SENT, "syn sent by several uplinks, the first answer wins")             \
	REASON(race_repeated, SENT, "repeated syn sent by all uplinks that have not refused it")   \
	REASON(race_copy, SENT, "copy of a raced syn sent")                                        \
	REASON(race_none_left, SENT, "repeated syn that all have refused answered with a reset")   \
	REASON(race_undecided, DROPPED, "segment of a connection whose race is not decided")       \
	REASON(race_lost, SENT, "syn/ack that came too late answered with a reset")                \
	REASON(race_refused, DROPPED, "refusal by one uplink while another may still answer")      \
	REASON(race_late, DROPPED, "other packet on an uplink that lost its race")                 \
	REASON(race_won, EVENT, "syn/ack that came first")                                         \
	REASON(race_over_rate, EVENT, "syn not raced because there were enough races")             \
	REASON(race_crowded, EVENT, "race without uplinks that are full or lose too much")         \
	REASON(path_remembered, EVENT, "flow put on the uplink with the shortest cached rtt")      \
	REASON(path_predicted, EVENT, "flow put on the uplink with the shortest predicted time")   \
	REASON(path_silent, EVENT, "repeated syn on a cached uplink that did not answer: raced")   \
	REASON(out_from_uplink, DROPPED, "forwarded from an uplink, so of no client of ours")      \
	REASON(in_spoofed, DROPPED, "inbound with a source that is this machine's own")            \
	REASON(in_local, PASSED, "inbound for this machine's own sockets, as far as can be told")  \
	REASON(in_not_addressed, PASSED, "inbound to a group or an address that no uplink has")    \
	REASON(in_out_of_window, EVENT, "tcp segment whose numbers do not fit its flow")           \
	REASON(in_over_rate, DROPPED, "inbound above the rate that the uplink is shaped to")       \
	REASON(out_over_rate, DROPPED, "outbound above the rate that the uplink is shaped to")     \
	REASON(out_second_copy, SENT, "first packet of a flow sent a second time on a lossy uplink")

enum reason_kind { SENT, PASSED, DROPPED, EVENT };

#define REASON_ENUM(name, kind, text) REASON_##name,
enum reason { REASONS(REASON_ENUM) REASON_COUNT };
#undef REASON_ENUM

#endif
