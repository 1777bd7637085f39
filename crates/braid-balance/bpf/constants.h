// Numbers that the programs and the loader share. build.rs reads every `#define NAME integer` here
// into Rust; there is no second copy.
#ifndef BRAID_CONSTANTS_H
#define BRAID_CONSTANTS_H

// Number of the map layout. Raise it whenever a map's key, value or meaning changes: programs of
// another layout must not take the maps over.
#define LAYOUT_VERSION 6

#define MAX_UPLINKS 32
#define SLOTS	    1024
#define FAMILIES    2
#define FAMILY_V4   0
#define FAMILY_V6   1

// Slot tables, one per class of traffic and family. Class 0 is for what no rule names.
#define CLASSES 64

// Rules that put flows into classes. A flow remembers the rule's number + 1 in a byte.
#define MAX_RULES 255

// Ancestors of a socket's cgroup that rules are held against, the root not counted.
#define CGROUP_LEVELS 12

// What rules ask for that must be looked up (rule_bank.needs).
#define NEEDS_MAC    1
#define NEEDS_NAMES  2
#define NEEDS_CGROUP 4

// What is known of a flow (facts.known).
#define KNOWS_PORTS 1
#define KNOWS_UID   2
#define KNOWS_MAC   4

// Remote addresses with a known name, clients that keep to an uplink for a site, LAN clients whose
// link-layer address is known: of these the least recently used make room.
#define MAX_DNS_NAMES	16384
#define MAX_STICKY	16384
#define MAX_CLIENT_MACS 4096

// The same of clients and sites that nobody has answered yet.
#define MAX_STICKY_EMBRYOS 4096

// Bits of a remote's address that name its site where nothing else does: the usual share of one
// operator's servers, or of one customer.
#define SITE_BITS_V4 24
#define SITE_BITS_V6 56

// Clients that may open no flow now.
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

// Addresses of uplinks, both families and what each may have besides.
#define MAX_OWN_ADDRESSES 256

// Room for reasons. The map's size is part of the layout, the length of the list is not.
#define MAX_REASONS 128

// Nanoseconds after a packet of an answered flow for which its uplink's neighbour is taken for
// known.
#define NEIGHBOUR_TRUST_NS 1000000

// How a new flow picks its slot (slot_bank.lb_method).
#define LB_ROUND_ROBIN 0
#define LB_HASH_SOURCE 1
#define LB_HASH_PAIR   2
#define LB_RACE	       3
#define LB_FASTEST     4

// Why a flow is where it is (flow.choice).
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

// flow.state. Everything from STATE_ESTABLISHED on has been answered and confirmed.
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
// Its inside has been told that it is over: whatever comes of it is answered with a reset.
#define FLOW_RESET_SENT 4
// It is to choose anew with its next packet from inside.
#define FLOW_REASSIGN 8

// uplink.layer
#define LAYER_L2 2
#define LAYER_L3 3

// Ports of FTP's control connection, the second one under TLS from its first byte. For so many
// seconds a client keeps the uplink of one for its connections to the site's ports from
// FTP_DATA_PORT on: a server refuses a data connection that comes from another address.
#define FTP_PORT      21
#define FTPS_PORT     990
#define FTP_DATA_PORT 1024
#define FTP_SECONDS   3600

// uplink.others, beside a bit for each family: what it has waits for it.
#define UPLINK_HOLDS_UDP 128
// UDP leaves a leased uplink for another one when the lease has been over for this long, ns.
#define LEASE_GRACE_NS 10000000000ull

// QUIC's port: UDP to it is a flow per five-tuple, all other UDP one mapping per inner port.
#define QUIC_PORT 443

// Random ports tried after the client's own before a flow is refused.
#define PORT_TRIES 64

// Of these, so many look for a free port; the others also take a port from a flow that nobody has
// answered, and the last ones from any embryo. A flood of new flows to one remote cannot keep
// others out.
#define PORT_TRIES_FREE	      8
#define PORT_TRIES_UNANSWERED 48

// How often a port is looked for if a socket of the machine's own has the one that was found.
#define PORT_ROUNDS 4

// Slots looked at after one whose uplink cannot take the flow.
#define MAX_SLOT_TRIES 128

// Notices to the daemon (notice.kind), and the bit that says which way the packet goes.
#define UPCALL_DNS	1
#define UPCALL_FRAGMENT 2
#define UPCALL_REFUSED	3
#define UPCALL_INBOUND	256

// Senders of packets that cannot be translated hear it by ICMP: of each so many errors at once,
// and one more per REFUSAL_INTERVAL_NS ns, as the kernel's own (net.ipv4.icmp_ratelimit). Senders
// remembered, and bytes of the packet that is told about: an IPv6 error's 1,280 less its headers
// (RFC 4443 2.4 c).
#define REFUSAL_BURST	    6
#define REFUSAL_INTERVAL_NS 1000000000
#define MAX_REFUSED_SENDERS 1024
#define REFUSAL_QUOTE_BYTES 1232

// Bytes of the ring of notices, and of the largest packet in one.
#define UPCALL_RING_BYTES 524288
#define MAX_UPCALL_BYTES  2048

// A DNS message's fixed part, and so much of its first question's name as is compared, bytes.
#define DNS_HEADER     12
#define DNS_NAME_BYTES 64
// Questions are answered within so many units of 2^DNS_QUESTION_SHIFT ns (1.07 s), or not at all.
#define DNS_QUESTION_SHIFT 30
#define DNS_QUESTION_LIFE  8

// Fragments of one source that are handed over to be held, per so many seconds; sources remembered.
#define MAX_HELD_FRAGMENTS_PER_SOURCE 64
#define UPCALL_QUOTA_SECONDS	      2
#define MAX_UPCALL_QUOTAS	      1024

// skb->mark of a datagram on its way from a LAN's program to the outbound one, to be turned round.
#define MARK_HAIRPIN 1651664228

// skb->mark of a copy of a SYN on its way to the uplink whose number the lowest byte is.
#define MARK_COPY 1651663872

// Races that are remembered, destinations of which a path is: of both, the least recently used make
// room.
#define MAX_RACES	    8192
#define MAX_CACHED_PREFIXES 8192

// Bits of a remote's address that paths are remembered by: what is routed apart is seldom smaller.
#define PATH_BITS_V4 24
#define PATH_BITS_V6 48

// Seconds after which nobody waits for the answer to a SYN any more.
#define RACE_TIMEOUT_SECONDS 75

// What became of the SYN that a race has sent by an uplink (race.attempts).
#define ATTEMPT_NONE	 0
#define ATTEMPT_SENT	 1
#define ATTEMPT_REFUSED	 2
#define ATTEMPT_ANSWERED 3

// A race's favourite: its uplink, + 1, and whether that became it because another one answered
// first.
#define PREFERRED_CANDIDATE 255
#define PREFERRED_AWAITED   256

// An RTT in us that stands for silence, and which part of the memory it counts for.
#define RTT_UNANSWERED_US      2000000
#define UNANSWERED_TTL_DIVISOR 4

// An RTT is remembered as the one before, moved towards the new one by one part in so many.
#define RTT_EWMA_DIVISOR 4

// Packets of a flow after which its losses are added to its path's, and of a path after which what
// it remembers of them counts half.
#define LOSS_BATCH_PACKETS   64
#define LOSS_HALVING_PACKETS 32768

// The prediction of forecast.rs in braid-core, which says what the numbers mean.
#define PREDICT_PRIOR_PACKETS	   500
#define PREDICT_MIN_LOSS_PPM	   10
#define PREDICT_MIN_RTT_US	   100
#define PREDICT_MAX_RTT_US	   2000000
#define PREDICT_ROUNDS		   6
#define PREDICT_TRANSFER_KILOBYTES 1000
#define PREDICT_DEFAULT_RATE	   2500

// RTT in us for which the prospects of uplinks are compared; where the best one's transfer takes
// less time than one part in so many of another's, that one is left out of a race.
#define PREDICT_DEFAULT_RTT_US 50000
#define PREDICT_CROWDED_FACTOR 2

// Ports that traceroute's datagrams go to.
#define TRACE_PORT_LOW	33434
#define TRACE_PORT_HIGH 33534

// DNS' port.
#define DNS_PORT 53

// Bytes of the largest packet that is kept as a flow's last words.
#define MAX_REPLAY_BYTES 256

// Seconds for which answers to a mapping that has moved still find their flow.
#define LATE_REPLY_SECONDS 30

// Bytes from the start of a packet within which all headers that we read must lie; IPv6 extension
// headers that reach further are not followed.
#define HEADER_REACH 224

#endif
