// Constants shared by the programs and the loader. build.rs turns every `#define NAME integer` here
// into Rust; there is no second copy.
#ifndef BRAID_CONSTANTS_H
#define BRAID_CONSTANTS_H

// Number of the map layout. Raise it whenever a map's name, key, value or meaning changes: programs
// of another layout must not take the maps over.
#define LAYOUT_VERSION 12

#define MAX_UPLINKS 32
#define SLOTS	    1024
#define FAMILIES    2
#define FAMILY_V4   0
#define FAMILY_V6   1

// Slot tables, one per class of traffic and family. Class 0 is for flows that match no rule.
#define CLASSES 64

// Rules that put flows into classes. A flow stores the rule's number + 1 in a byte.
#define MAX_RULES 255

// Ancestors of a socket's cgroup that rules are compared with, not counting the root.
#define CGROUP_LEVELS 12

// Facts that rules need and that take a lookup (rule_bank.needs).
#define NEEDS_MAC    1
#define NEEDS_NAMES  2
#define NEEDS_CGROUP 4

// Facts known of a flow (facts.known).
#define KNOWS_PORTS 1
#define KNOWS_UID   2
#define KNOWS_MAC   4

// Remote addresses with a known name, sticky clients per site, LAN clients with a known link-layer
// address: the least recently used entries are evicted.
#define MAX_DNS_NAMES	16384
#define MAX_STICKY	16384
#define MAX_CLIENT_MACS 4096

// Sticky clients per site whose flows have not been answered yet.
#define MAX_STICKY_EMBRYOS 4096

// Bits of a remote's address that identify its site where no name does: the usual allocation to one
// operator's servers, or to one customer.
#define SITE_BITS_V4 24
#define SITE_BITS_V6 56

// Clients that may not open flows now.
#define MAX_LIMITED_CLIENTS 1024

// Default sizes; the loader overrides the first two.
#define DEFAULT_FLOWS	       262144
#define DEFAULT_EMBRYOS	       65536
#define MAX_LAN_DEVICES	       64
#define MAX_FRAGMENTED_PACKETS 4096
#define MAX_LATE_REPLIES       16384
#define MAX_REPLAY_BUFFERS     4096
#define MAX_REPLAY_EMBRYOS     4096

// Interface indices below this find their uplink in an array, which the JIT compiles to a few
// instructions; the few above it in a hash.
#define LOW_DEVICES 1024

// Addresses of uplinks, of both families, and further ones that each may have.
#define MAX_OWN_ADDRESSES 256

// Size of the map of reasons. It is part of the layout; the length of the list is not.
#define MAX_REASONS 128

// Nanoseconds after a packet of an answered flow during which its uplink's neighbour entry is
// assumed to be valid.
#define NEIGHBOUR_TRUST_NS 1000000

// Method by which a new flow picks its slot (slot_bank.lb_method).
#define LB_ROUND_ROBIN 0
#define LB_HASH_SOURCE 1
#define LB_HASH_PAIR   2
#define LB_RACE	       3
#define LB_FASTEST     4

// Reason why a flow is on its uplink (flow.choice).
#define CHOICE_NEXT_SLOT   0
#define CHOICE_HASH_SOURCE 1
#define CHOICE_HASH_PAIR   2
#define CHOICE_NEXT_USABLE 3
#define CHOICE_MIDSTREAM   4
#define CHOICE_STICKY	   5
#define CHOICE_ONLY	   6
#define CHOICE_MOVED	   7
#define CHOICE_FAILBACK	   8
#define CHOICE_RACED	   9
#define CHOICE_REMEMBERED  10
#define CHOICE_PREDICTED   11
#define CHOICE_PREFERRED   12
#define CHOICE_ON_LINK	   13

// flow.state. From STATE_ESTABLISHED on, the flow has been answered and confirmed.
#define STATE_NEW	  0
#define STATE_ANSWERED	  1
#define STATE_ESTABLISHED 2
#define STATE_FIN_WAIT	  3
#define STATE_CLOSING	  4
#define STATE_RESET	  5

// flow.fins
#define FIN_INSIDE  1
#define FIN_OUTSIDE 2

// flow.flags
#define FLOW_FAST_PATH	 1
#define FLOW_NEXT_HOP_V6 2
// The inside was sent a reset: further segments from it are answered with a reset.
#define FLOW_RESET_SENT 4
// The next packet from inside chooses the uplink anew.
#define FLOW_REASSIGN 8

// uplink.layer
#define LAYER_L2 2
#define LAYER_L3 3

// Ports of FTP's control connection; the second one uses TLS from its first byte. For FTP_SECONDS a
// client keeps that connection's uplink for its connections to the site's ports from FTP_DATA_PORT
// on: a server refuses a data connection that comes from another address.
#define FTP_PORT      21
#define FTPS_PORT     990
#define FTP_DATA_PORT 1024
#define FTP_SECONDS   3600

// A bit of uplink.others beside those of the families: UDP flows of this uplink wait for it.
#define UPLINK_HOLDS_UDP 128
// UDP leaves a leased uplink for another one when the lease has been over for this long, ns.
#define LEASE_GRACE_NS 10000000000ull

// QUIC's port: UDP to it is a flow per five-tuple; all other UDP has one mapping per inner port.
#define QUIC_PORT 443

// Random ports tried after the client's own before a flow is refused.
#define PORT_TRIES 64

// The first tries look for a free port; the next ones also take the port of an unanswered flow, the
// last ones that of any embryo. A flood of new flows to one remote cannot keep others out.
#define PORT_TRIES_FREE	      8
#define PORT_TRIES_UNANSWERED 48

// Attempts to find a port that does not conflict with a socket of this machine.
#define PORT_ROUNDS 4

// Slots tried after one whose uplink cannot take the flow.
#define MAX_SLOT_TRIES 128

// Kinds of upcalls (upcall.kind), and the bit that marks an inbound packet.
#define UPCALL_DNS	1
#define UPCALL_FRAGMENT 2
#define UPCALL_REFUSED	3
#define UPCALL_INBOUND	256

// Senders of packets that cannot be translated are told by ICMP: REFUSAL_BURST errors at once for
// each, and one more per REFUSAL_INTERVAL_NS, like the kernel's own (net.ipv4.icmp_ratelimit).
// MAX_REFUSED_SENDERS are remembered. An error quotes at most REFUSAL_QUOTE_BYTES: an IPv6 error's
// 1,280 less its headers (RFC 4443 2.4 c).
#define REFUSAL_BURST	    6
#define REFUSAL_INTERVAL_NS 1000000000
#define MAX_REFUSED_SENDERS 1024
#define REFUSAL_QUOTE_BYTES 1232

// Bytes of the upcall ring, and of the largest packet in one upcall.
#define UPCALL_RING_BYTES 524288
#define MAX_UPCALL_BYTES  2048

// Bytes of a DNS message's header, and of its first question's name that are compared.
#define DNS_HEADER     12
#define DNS_NAME_BYTES 64
// An answer is accepted for so many units of 2^DNS_QUESTION_SHIFT ns (1.07 s) after its question.
#define DNS_QUESTION_SHIFT 30
#define DNS_QUESTION_LIFE  8

// Fragments of one source that are passed to the daemon per UPCALL_QUOTA_SECONDS; sources
// remembered.
#define MAX_HELD_FRAGMENTS_PER_SOURCE 64
#define UPCALL_QUOTA_SECONDS	      2
#define MAX_UPCALL_QUOTAS	      1024

// skb->mark of a datagram that the LAN program passes to the outbound one for hairpinning.
#define MARK_HAIRPIN 1651664228

// skb->mark of a copy of a flow's first packet; its lowest byte is the number of the uplink, and
// the flag if that has the packet itself as well.
#define MARK_COPY	 1651663872
#define MARK_SECOND_COPY 0x80
#define MARK_COPY_UPLINK 0x7f

// Datagrams before the first answer that go twice at most: a QUIC client's first flight, and its
// repetitions. A stream that nobody answers goes once.
#define MAX_FIRST_DATAGRAMS 8

// Races remembered and prefixes in the path cache: the least recently used entries are evicted.
#define MAX_RACES	    8192
#define MAX_CACHED_PREFIXES 8192

// Prefix lengths of the path cache: destinations within one prefix seldom have different routes.
#define PATH_BITS_V4 24
#define PATH_BITS_V6 48

// Seconds after which a SYN is no longer expected to be answered.
#define RACE_TIMEOUT_SECONDS 75

// State of the SYN that a race has sent by an uplink (race.attempts).
#define ATTEMPT_NONE	 0
#define ATTEMPT_SENT	 1
#define ATTEMPT_REFUSED	 2
#define ATTEMPT_ANSWERED 3

// Value of race.preferred: the uplink + 1, and a bit that is set if it became preferred because
// another one answered first.
#define PREFERRED_CANDIDATE 255
#define PREFERRED_AWAITED   256

// A flow that closes earlier than this after it was opened counts as opened no more. Older ones
// have been forgotten by then: each forecast halves that count.
#define OPENED_SECONDS 2

// RTTs in us that stand for a SYN without an answer, and for a QUIC connection that has yet to be
// answered; they are kept for the memory divided by UNANSWERED_TTL_DIVISOR.
#define RTT_UNANSWERED_US      2000000
#define RTT_TRIED_US	       2000001
#define UNANSWERED_TTL_DIVISOR 4

// A shorter RTT replaces the cached one. A longer one moves it by this fraction of the difference,
// once in so many seconds at most: the handshakes of a page measure the queue that the page makes.
#define RTT_EWMA_DIVISOR 4
#define RTT_RISE_SECONDS 1

// A round trip by timestamps shows queueing only if the flow moved so many packets meanwhile: a
// remote delays a lone segment's acknowledgement, or answers when it pleases. No echo is awaited
// for longer than MAX_STAMP_RTT_US.
#define MIN_STAMP_PACKETS 6
#define MAX_STAMP_RTT_US  2000000

// A round trip of full packets takes up to so many us more than one of a SYN: 1,500 bytes at
// 600 kbit/s. Slower intervals are no part of a capacity (MIN_BYTES in braid_core::capacity).
#define FULL_PACKET_US 20000

// A QUIC connection's round trip is no shorter than this part of the shortest, be it of a handshake
// in which the server computed.
#define MIN_SPIN_PART 4

// The parts of a QUIC client's first flight follow one another within so many us. A datagram later
// than that may be sent again, and the answer may be to either.
#define QUIC_FLIGHT_US 10000

// A TCP segment's numbers may be this far from those that the inside has sent and acknowledged:
// what 1 Gbit/s sends in a quarter of a second, for data; less for a reset, whose sequence number
// must be exact (RFC 5961). A guess is within the first by both numbers once in 8,192 times, within
// the second once in 2,048.
#define SEGMENT_WINDOW (1u << 25)
#define RESET_WINDOW   (1u << 20)
// The same for an answer to a SYN: what can be sent with that (RFC 7413).
#define SYN_WINDOW 0xffff

// Packets of a flow after which its losses are added to its path's; packets of a path after which
// its counts are halved.
#define LOSS_BATCH_PACKETS   64
#define LOSS_HALVING_PACKETS 32768

// Constants of the prediction. `braid_core::forecast` computes the same and explains them;
// tests/suite/forecast.rs compares the two.
#define PREDICT_PRIOR_PACKETS	   500
#define PREDICT_MIN_LOSS_PPM	   10
#define PREDICT_MIN_RTT_US	   100
#define PREDICT_MAX_RTT_US	   2000000
#define PREDICT_ROUNDS		   6
#define PREDICT_TRANSFER_KILOBYTES 1000
#define PREDICT_SHORT_DIVISOR	   10
#define PREDICT_FULL_DIVISOR	   4
#define PREDICT_DEFAULT_RATE	   1000

// RTT in us for which uplinks are compared where the path is unknown. An uplink whose transfer
// takes more than PREDICT_CROWDED_FACTOR times that of the best one is left out of a race.
#define PREDICT_DEFAULT_RTT_US 50000
#define PREDICT_CROWDED_FACTOR 2

// Scores that exceed the best one by less than its 1/PREDICT_EQUAL_DIVISOR are equal to it: each
// time differs by 3 % or so, less than any of these figures is known to.
#define PREDICT_EQUAL_DIVISOR 16

// Destination ports of traceroute's datagrams.
#define TRACE_PORT_LOW	33434
#define TRACE_PORT_HIGH 33534

// DNS port.
#define DNS_PORT 53

// Bytes of the largest packet that is stored for replay.
#define MAX_REPLAY_BYTES 256

// Seconds for which answers to a mapping that has moved still reach their flow.
#define LATE_REPLY_SECONDS 30

// Directions of an uplink that are shaped, as seen from this machine; the maps of shaping have one
// entry for each, at uplink * SHAPED_DIRECTIONS + direction.
#define SHAPED_DIRECTIONS 2
#define SHAPED_TX	  0
#define SHAPED_RX	  1

// CoDel's interval (RFC 8289 4.3): the longest round trip for which a sender has time to react.
#define SHAPE_INTERVAL_NS 100000000
// CoDel's pause after the first drop, longer than its interval: a virtual queue shrinks only by
// what senders hold back, and several that slow down at once leave the line idle.
#define SHAPE_PAUSE_NS 250000000
// Packets up to this size are calls, pings, DNS and acknowledgements. CoDel does not drop them, and
// they have twice the virtual queue of others.
#define SHAPE_SMALL_BYTES 300
// Groups of flows, by their hash, whose packets keep their order in an uplink's egress queue.
#define QUEUED_GROUPS 1024
// Bytes of a packet of full size. The rate of a queue on a device is of frames.
#define FULL_PACKET 1500

// Bytes from the start of a packet within which all headers that we read must lie; IPv6 extension
// headers that reach further are not followed.
#define HEADER_REACH 224

#endif
