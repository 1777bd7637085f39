// Which uplink a new flow takes: walking the slot table that policies write.
#ifndef BRAID_SLOTS_H
#define BRAID_SLOTS_H

#include "parse.h"

// murmur3's finaliser over the words: cheap, and every bit of the address moves every bit.
static __always_inline __u32 hash_address(__u32 hash, const struct address *address)
{
	for (int i = 0; i < 4; i++) {
		hash ^= address->word[i];
		hash *= 0x85ebca6b;
		hash ^= hash >> 13;
		hash *= 0xc2b2ae35;
		hash ^= hash >> 16;
	}
	return hash;
}

static __always_inline int takes_flows(const struct uplink *uplink, __u8 family)
{
	return uplink && uplink->ifindex && uplink->accepts_new &&
	       uplink->exits[family & 1].present;
}

// One counter for all CPUs, so that round robin is exact however packets are spread over them.
static __always_inline __u32 next_turn(__u32 table)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, &table);
	__u32 mine;

	if (!turn)
		return 0;
	bpf_spin_lock(&turn->lock);
	mine = turn->next++;
	bpf_spin_unlock(&turn->lock);
	return mine;
}

// Walks the table for the workbench's flow. Not 0: no uplink takes new flows.
__noinline int choose_uplink(__u32 midstream)
{
	struct workbench *work = workbench();
	__u32 zero = 0, family, number, bank, turn;
	struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	struct slot_bank *table;

	if (!now || !work)
		return -1;
	family = work->packet.family & 1;
	number = family; // class 0
	bank = number * 2 + (now->active[number] & 1);
	table = bpf_map_lookup_elem(&slots, &bank);
	if (!table || !table->count || table->count > SLOTS)
		return -1;

	if (table->walk == WALK_HASH_SOURCE && !midstream) {
		turn = hash_address(0, &work->key.near);
		work->choice = CHOICE_HASH_SOURCE;
	} else if (table->walk == WALK_HASH_PAIR || midstream) {
		turn = hash_address(hash_address(0, &work->key.near), &work->packet.dest);
		work->choice = midstream ? CHOICE_MIDSTREAM : CHOICE_HASH_PAIR;
	} else {
		turn = next_turn(number);
		work->choice = CHOICE_NEXT_SLOT;
	}

	for (int i = 0; i < SLOT_TRIES; i++) {
		__u32 position = (turn + i) % table->count;
		__u32 id = table->slot[position & (SLOTS - 1)];

		if (takes_flows(uplink_at(id), family)) {
			work->uplink = id;
			if (i) {
				count(REASON_slot_skipped);
				work->choice = CHOICE_NEXT_USABLE;
			}
			return 0;
		}
	}
	return -1;
}

#endif
