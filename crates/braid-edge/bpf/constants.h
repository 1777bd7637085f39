// Numbers that the programs and the crate share; build.rs turns every one into Rust.
#ifndef BRAID_EDGE_CONSTANTS_H
#define BRAID_EDGE_CONSTANTS_H

#define SLOTS 1024 // slots of a target's table, a power of two
#define SLOT_BYTES                                                                                 \
	1514 // bytes that a slot stands for: a full frame, so a full frame walks one slot
#define MAX_TARGETS 256	  // other edges that packets are split to
#define MAX_HOSTS   16384 // hosts behind other edges
#define VLANS	    4096
#define MAX_REASONS 32

// What is done with a tag that comes in.
#define TAG_UNKNOWN  0
#define TAG_AS_COMES 1
#define TAG_IN_ORDER 2

// A host's target: its table, or none.
#define NO_TARGET 65535

#define ETH_P_PROBE 34997 // 0x88b5, the controller's probes

#endif
