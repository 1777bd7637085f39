// Which uplink a new flow takes: walking the slot table that policies write.
#ifndef BRAID_SLOTS_H
#define BRAID_SLOTS_H

#include "sticky.h"

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

// Returns 1 for a probe of traceroute, which sends each from a socket of its own. All probes to one
// destination have to take one path.
static __always_inline int is_trace(const struct packet *packet)
{
	__u16 port = bpf_ntohs(packet->dest_port);

	return packet->protocol == IPPROTO_UDP && port >= TRACE_PORT_LOW && port < TRACE_PORT_HIGH;
}

// Returns 1 for FTP's control connection.
static __always_inline int is_ftp(const struct tuple *key)
{
	return key->protocol == IPPROTO_TCP &&
	       (key->far_port == bpf_htons(FTP_PORT) || key->far_port == bpf_htons(FTPS_PORT));
}

// Returns how many s a client keeps its uplink for the site of the workbench's flow: what the class
// says; for FTP's control connections always, since data has to go where they do.
static __always_inline __u32 kept_for(const struct workbench *work, const struct slot_bank *table)
{
	if (table && table->sticky)
		return table->sticky;
	return is_ftp(&work->key) ? FTP_SECONDS : 0;
}

// Returns 1 for what may be a data connection of FTP in passive mode.
static __always_inline int may_be_ftp_data(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && bpf_ntohs(packet->dest_port) >= FTP_DATA_PORT;
}

// Where the walk through the table begins, and why there.
static __always_inline __u32 first_slot(struct workbench *work, const struct slot_bank *table,
					__u32 number, __u32 midstream)
{
	if (midstream) {
		work->choice = CHOICE_MIDSTREAM;
		return hash_address(hash_address(0, &work->key.near), &work->packet.dest);
	}
	if (work->class && table->count == 1) {
		work->choice = CHOICE_ONLY;
		return 0;
	}
	if (table->walk == WALK_HASH_SOURCE) {
		work->choice = CHOICE_HASH_SOURCE;
		return hash_address(0, &work->key.near);
	}
	if (table->walk == WALK_HASH_PAIR || is_trace(&work->packet)) {
		work->choice = CHOICE_HASH_PAIR;
		return hash_address(hash_address(0, &work->key.near), &work->packet.dest);
	}
	work->choice = CHOICE_NEXT_SLOT;
	return next_turn(number);
}

// Sends what is to leave its uplink back to the one that it was moved away from, if it was. Not 0:
// it was not, or that one takes nothing.
static __always_inline int go_back(struct workbench *work, __u32 family)
{
	__u32 id = work->left.came_from - 1;

	if (!work->moves || !(work->left.flags & FLOW_LEAVES) ||
	    work->left.choice != CHOICE_MOVED || !takes_flows(uplink_at(id), family))
		return -1;
	work->uplink = id;
	return 0;
}

// The uplink of a place in a table's bank, or -1: it cannot take a flow of the family.
__noinline int uplink_in_slot(__u32 bank, __u32 place, __u32 family)
{
	struct slot_bank *table = bpf_map_lookup_elem(&slots, &bank);
	__u32 id;

	if (!table)
		return -1;
	id = table->slot[place & (SLOTS - 1)];
	return takes_flows(uplink_at(id), family) ? id : -1;
}

// The bank that is walked for a class and family, whose table has this number.
static __always_inline struct slot_bank *walked_bank(__u32 number, __u32 *bank)
{
	__u32 zero = 0;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);

	if (!settled || number >= CLASSES * FAMILIES)
		return NULL;
	// As in place_of(); verifiers before Linux 6.10 also lose the bounds of class and family
	// when the compiler joins them by an OR.
	asm volatile("%0 &= 0x7f" : "+r"(number));
	*bank = number * 2 + (settled->active[number] & 1);
	return bpf_map_lookup_elem(&slots, bank);
}
_Static_assert(CLASSES *FAMILIES == 0x7f + 1, "walked_bank");

// Takes the uplink that a table prefers to all others. Not 0: there is none, or it takes nothing.
static __always_inline int take_preferred(struct workbench *work, const struct slot_bank *table,
					  __u32 family)
{
	__u32 id;

	if (!table->prefers)
		return -1;
	id = place_of(table->prefers - 1);
	if (!takes_flows(uplink_at(id), family))
		return -1;
	work->uplink = id;
	work->choice = CHOICE_PREFERRED;
	work->sticky = 0;
	work->racers = 0;
	return 0;
}

// Keeps the uplink of the workbench's flow for its client and site, if the flow's class wants that
// or its protocol needs it.
__noinline int keep_choice(__u64 now)
{
	struct workbench *work = workbench();
	struct slot_bank *table;
	__u32 number, bank, seconds;

	if (!work || work->flow.choice == CHOICE_MIDSTREAM || work->flow.choice == CHOICE_PREFERRED)
		return 0;
	number = work->flow.class * FAMILIES + (is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6);
	table = walked_bank(number, &bank);
	seconds = kept_for(work, table);
	if (seconds)
		settle(work, seconds, now);
	return 0;
}

// Chooses for the workbench's flow: what its client had before, else by its class' table. Not 0: no
// uplink takes it. What is in midstream belongs to a connection that somebody else has begun.
__noinline int choose_uplink(__u32 midstream, __u64 now)
{
	struct workbench *work = workbench();
	__u32 family, number, bank, turn, ftp;
	struct slot_bank *table;

	if (!work)
		return -1;
	family = work->packet.family & 1;
	number = work->class * FAMILIES + family;
	table = walked_bank(number, &bank);
	if (table && !take_preferred(work, table, family))
		return 0;
	if (!table || !table->count || table->count > SLOTS)
		return -1;
	work->sticky = midstream ? 0 : kept_for(work, table);
	ftp = !midstream && !work->moves && !work->sticky && may_be_ftp_data(&work->packet);
	if (ftp)
		work->sticky = FTP_SECONDS;
	if (work->sticky)
		set_site(work, &work->packet.dest, work->class, now);
	work->racers = 0;
	if (!go_back(work, family) || !choose_again(work, now))
		return 0;
	if (ftp)
		work->sticky = 0;
	work->walk = table->walk;
	work->racers = midstream || is_trace(&work->packet) ? 0 : table->racers;
	turn = first_slot(work, table, number, midstream);
	for (int i = 0; i < SLOT_TRIES && i < table->count; i++) {
		int id = uplink_in_slot(bank, (turn + i) % table->count, family);

		if (id < 0)
			continue;
		work->uplink = id;
		if (i) {
			count(REASON_slot_skipped);
			work->choice = CHOICE_NEXT_USABLE;
		}
		return 0;
	}
	return -1;
}

#endif
