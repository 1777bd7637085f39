// Constants shared by the programs and the crate; build.rs turns each into Rust.
#ifndef BRAID_EDGE_CONSTANTS_H
#define BRAID_EDGE_CONSTANTS_H

#define SLOTS	    1024  // slots of a target's table, a power of two
#define SLOT_BYTES  1514  // bytes of a slot: a full frame walks one
#define MAX_PATHS   4	  // paths to a target that are compared
#define MAX_TARGETS 256	  // other edges that packets are split to
#define MAX_HOSTS   16384 // hosts behind other edges
#define VLANS	    4096
#define FLOWS	    16384 // buckets of flows whose load is measured, by hash; a power of two
#define MAX_REASONS 32
// Buckets of the segments that were sent last, by flow and sequence number; a power of two.
#define SENT_SEGMENTS 32768

// Actions for packets that arrive with a tag.
#define TAG_DROP       0
#define TAG_FORWARD    1
#define TAG_RESEQUENCE 2

// No index into the slot tables.
#define NO_TARGET 65535

// Shim: a sequence number in front of packets that have none that an edge can read, if the remote
// edge asks for it.
#define ETH_P_SHIM 34998 // 0x88b6
#define SHIM_BYTES 8
#define TAG_BYTES  4   // of a path's tag
#define LANES	   256 // by hash of the flow; each lane has its own numbers

// Roles of a prefix: hosts behind another edge; a path's local addresses; a path's remote
// addresses.
#define ROLE_TARGET  1
#define ROLE_LOCAL   2
#define ROLE_REMOTE  3
#define MAX_PREFIXES 4096
#define NO_PREFIX    65535

// The kernel's AF_INET and AF_INET6.
#define ADDRESSES_V4 2
#define ADDRESSES_V6 10

// Probes of layer-3 paths are UDP from this port to this port; those of tagged paths are a shim
// whose protocol is the shim's own, which no packet of a host can become.
#define PROBE_PORT    27244
#define PROBE_MAGIC   1651664496 // "brfp"
#define PROBE_REQUEST 1
#define PROBE_REPLY   2
// Of tagged paths alone: the other edge misses what this one may have a copy of.
#define PROBE_MISSING 3

#define PROBE_BYTES	  16
#define PATH_REPORT_BYTES 8
#define OFFER_BYTES	  12
#define PATH_COUNT_BYTES  4
#define NO_DATA_AGE	  65535 // ms: no data for so long, or none ever

#define ETH_P_PROBE 34997 // 0x88b5, the controller's probes

#endif
