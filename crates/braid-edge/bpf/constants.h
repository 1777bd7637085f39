// Numbers that the programs and the crate share; build.rs turns every one into Rust.
#ifndef BRAID_EDGE_CONSTANTS_H
#define BRAID_EDGE_CONSTANTS_H

#define SLOTS	    1024  // slots of a target's table, a power of two
#define SLOT_BYTES  1514  // bytes of a slot: a full frame walks one
#define MAX_TARGETS 256	  // other edges that packets are split to
#define MAX_HOSTS   16384 // hosts behind other edges
#define VLANS	    4096
#define FLOWS	    16384 // flows that are told apart by what they carry, by hash; a power of two
#define MAX_REASONS 32

// What is done with a tag that comes in.
#define TAG_DROP       0
#define TAG_FORWARD    1
#define TAG_RESEQUENCE 2

// A host's target: its table, or none.
#define NO_TARGET 65535

// A number of ours in front of what has none that an edge can read, where the far edge asks for it.
#define ETH_P_SHIM 34998 // 0x88b6
#define SHIM_BYTES 8
#define TAG_BYTES  4   // of a path's tag
#define LANES	   256 // by flow; a lane has numbers of its own

// Whose a prefix is: hosts behind another edge; a path's addresses here; a path's addresses there.
#define ROLE_TARGET  1
#define ROLE_LOCAL   2
#define ROLE_REMOTE  3
#define MAX_PREFIXES 4096
#define NO_PREFIX    65535

// What the kernel calls the families.
#define ADDRESSES_V4 2
#define ADDRESSES_V6 10

// Edges ask one another over layer-3 paths, UDP from this port to this port.
#define PROBE_PORT    27244
#define PROBE_MAGIC   1651664496 // "brfp"
#define PROBE_REQUEST 1
#define PROBE_REPLY   2

#define ETH_P_PROBE 34997 // 0x88b5, the controller's probes

#endif
