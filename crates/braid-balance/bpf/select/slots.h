// Choice of a new flow's uplink from the slot table that policies write.
#ifndef BRAID_SLOTS_H
#define BRAID_SLOTS_H

#include "select/sticky.h"

// murmur3's finaliser over the words: cheap, and every bit of the address affects every bit of the
// hash.
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

// Returns the next slot of a table's round robin. One counter for all CPUs, so that round robin is
// exact however packets are spread over them.
static __always_inline __u32 next_rr_slot(__u32 table)
{
	struct rr_cursor *cursor = bpf_map_lookup_elem(&rr_cursors, &table);
	__u32 mine;

	if (!cursor)
		return 0;
	bpf_spin_lock(&cursor->lock);
	mine = cursor->next++;
	bpf_spin_unlock(&cursor->lock);
	return mine;
}

// Returns 1 for a probe of traceroute, which sends each from a socket of its own. All probes to one
// destination have to take the same path.
static __always_inline int is_trace(const struct packet *packet)
{
	__u16 port = bpf_ntohs(packet->dest_port);

	return packet->protocol == IPPROTO_UDP && port >= TRACE_PORT_LOW && port < TRACE_PORT_HIGH;
}

// Returns 1 for FTP's control connection.
static __always_inline int is_ftp(const struct tuple *key)
{
	return key->protocol == IPPROTO_TCP && (key->remote_port == bpf_htons(FTP_PORT) ||
						key->remote_port == bpf_htons(FTPS_PORT));
}

// Returns how many s a client keeps its uplink for the site of the context's flow, as its class
// says. FTP's control connections always keep it, since their data must use the same one.
static __always_inline __u32 sticky_seconds(const struct pkt_ctx *ctx,
					    const struct slot_bank *table)
{
	if (table && table->sticky)
		return table->sticky;
	return is_ftp(&ctx->key) ? FTP_SECONDS : 0;
}

// Returns 1 for a possible data connection of FTP in passive mode.
static __always_inline int may_be_ftp_data(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && bpf_ntohs(packet->dest_port) >= FTP_DATA_PORT;
}

// Returns the first slot to try, and notes the reason.
static __always_inline __u32 first_slot(struct pkt_ctx *ctx, const struct slot_bank *table,
					__u32 number, __u32 midstream)
{
	if (midstream) {
		ctx->choice = CHOICE_MIDSTREAM;
		return hash_address(hash_address(0, &ctx->key.local), &ctx->packet.dest);
	}
	if (ctx->class && table->count == 1) {
		ctx->choice = CHOICE_ONLY;
		return 0;
	}
	if (table->lb_method == LB_HASH_SOURCE) {
		ctx->choice = CHOICE_HASH_SOURCE;
		return hash_address(0, &ctx->key.local);
	}
	if (table->lb_method == LB_HASH_PAIR || is_trace(&ctx->packet)) {
		ctx->choice = CHOICE_HASH_PAIR;
		return hash_address(hash_address(0, &ctx->key.local), &ctx->packet.dest);
	}
	ctx->choice = CHOICE_NEXT_SLOT;
	return next_rr_slot(number);
}

// Sends a flow that is to leave its uplink back to the one it was moved from. Returns non-zero if
// it was not moved, or that uplink takes no flows.
static __always_inline int choose_failback(struct pkt_ctx *ctx, __u32 family)
{
	__u32 id = ctx->moved_flow.came_from - 1;

	if (!ctx->is_moving || !(ctx->moved_flow.flags & FLOW_REASSIGN) ||
	    ctx->moved_flow.choice != CHOICE_MOVED || !takes_flows(uplink_at(id), family))
		return -1;
	ctx->uplink = id;
	return 0;
}

// Returns the uplink in a slot of a table's bank, or -1 if it cannot take a flow of the family.
__noinline int uplink_in_slot(__u32 bank, __u32 place, __u32 family)
{
	struct slot_bank *table = bpf_map_lookup_elem(&slots, &bank);
	__u32 id;

	if (!table)
		return -1;
	id = table->slot[place & (SLOTS - 1)];
	return takes_flows(uplink_at(id), family) ? id : -1;
}

// Returns the active bank of the table with this number, which is one of a class and family.
static __always_inline struct slot_bank *walked_bank(__u32 number, __u32 *bank)
{
	__u32 zero = 0;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);

	if (!config || number >= CLASSES * FAMILIES)
		return NULL;
	// As in uplink_index(); verifiers before Linux 6.10 also lose the bounds of class and
	// family when the compiler joins them by an OR.
	asm volatile("%0 &= 0x7f" : "+r"(number));
	*bank = number * 2 + (config->active[number] & 1);
	return bpf_map_lookup_elem(&slots, bank);
}
_Static_assert(CLASSES *FAMILIES == 0x7f + 1, "walked_bank");

// Takes the uplink that a table prefers to all others. Returns non-zero if there is none, or it
// takes no flows.
static __always_inline int take_preferred(struct pkt_ctx *ctx, const struct slot_bank *table,
					  __u32 family)
{
	__u32 id;

	if (!table->prefers)
		return -1;
	id = uplink_index(table->prefers - 1);
	if (!takes_flows(uplink_at(id), family))
		return -1;
	ctx->uplink = id;
	ctx->choice = CHOICE_PREFERRED;
	ctx->sticky = 0;
	ctx->candidates = 0;
	return 0;
}

// Keeps the uplink of the context's flow for its client and site, if the flow's class or its
// protocol needs that.
__noinline int keep_sticky(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct slot_bank *table;
	__u32 number, bank, seconds;

	if (!ctx || ctx->flow.choice == CHOICE_MIDSTREAM || ctx->flow.choice == CHOICE_PREFERRED)
		return 0;
	number = ctx->flow.class * FAMILIES + (is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6);
	table = walked_bank(number, &bank);
	seconds = sticky_seconds(ctx, table);
	if (seconds)
		promote_sticky(ctx, seconds, now);
	return 0;
}

// Chooses an uplink for the context's flow: the one its client had before, otherwise by the class'
// table. Returns non-zero if no uplink takes it. A flow in midstream is chosen for by hash and
// never sticks: another host has opened the connection.
__noinline int choose_uplink(__u32 midstream, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 family, number, bank, turn, ftp;
	struct slot_bank *table;

	if (!ctx)
		return -1;
	family = ctx->packet.family & 1;
	number = ctx->class * FAMILIES + family;
	table = walked_bank(number, &bank);
	if (table && !take_preferred(ctx, table, family))
		return 0;
	if (!table || !table->count || table->count > SLOTS)
		return -1;
	ctx->sticky = midstream ? 0 : sticky_seconds(ctx, table);
	ftp = !midstream && !ctx->is_moving && !ctx->sticky && may_be_ftp_data(&ctx->packet);
	if (ftp)
		ctx->sticky = FTP_SECONDS;
	if (ctx->sticky)
		set_site(ctx, &ctx->packet.dest, ctx->class, now);
	ctx->candidates = 0;
	if (!choose_failback(ctx, family) || !choose_sticky(ctx, now))
		return 0;
	if (ftp)
		ctx->sticky = 0;
	ctx->lb_method = table->lb_method;
	ctx->candidates = midstream || is_trace(&ctx->packet) ? 0 : table->candidates;
	turn = first_slot(ctx, table, number, midstream);
	for (int i = 0; i < MAX_SLOT_TRIES && i < table->count; i++) {
		int id = uplink_in_slot(bank, (turn + i) % table->count, family);

		if (id < 0)
			continue;
		ctx->uplink = id;
		if (i) {
			count(REASON_slot_skipped);
			ctx->choice = CHOICE_NEXT_USABLE;
		}
		return 0;
	}
	return -1;
}

#endif
