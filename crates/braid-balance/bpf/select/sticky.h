// Sticky clients: a client keeps its uplink for a site, so that a login made from one address is
// not refused from another. The time counts from the last flow that the client opened there: later
// packets of a flow do not come here.
#ifndef BRAID_STICKY_H
#define BRAID_STICKY_H

#include "select/dns_names.h"
#include "path_cache/path_cache.h"

#define DNS_SITE_PREFIX 0xffffffff

struct sticky {
	__u64 used; // ns of the monotonic clock
	__u8 uplink;
	__u8 unused[7];
};

_Static_assert(sizeof(struct sticky) == 16, "sticky");

// Two tables, as for flows: sites that have answered the client, and those that have not yet. The
// second keeps the connections together that a browser opens at once, and limits what a flood of
// SYNs can evict.
HASH_MAP(sticky, BPF_MAP_TYPE_LRU_HASH, 0, MAX_STICKY, struct sticky_key, struct sticky);
HASH_MAP(sticky_embryos, BPF_MAP_TYPE_LRU_HASH, 0, MAX_STICKY_EMBRYOS, struct sticky_key,
	 struct sticky);

// Sets the key under which the client's choice for a remote is kept. In the context and not on the
// stack, which is short.
static __always_inline void set_site(struct pkt_ctx *ctx, const struct address *remote, __u32 class,
				     __u64 now)
{
	const struct dns_name *name = name_of(remote, now);
	struct sticky_key *key = &ctx->site;

	__builtin_memset(key, 0, sizeof(*key));
	key->client = ctx->key.local;
	key->class = class;
	if (name && name->site) {
		key->site.word[0] = DNS_SITE_PREFIX;
		key->site.word[3] = name->site;
		return;
	}
	key->site = *remote;
	if (is_v4(remote)) {
		key->site.word[3] &= bpf_htonl(~0u << (32 - SITE_BITS_V4));
	} else {
		key->site.word[1] &= bpf_htonl(~0u << (64 - SITE_BITS_V6));
		key->site.word[2] = 0;
		key->site.word[3] = 0;
	}
}

// Returns 1 if an entry is not older than `seconds` and its uplink can take the flow. Another CPU
// may have stamped it after `now` was read.
static __always_inline int is_sticky_usable(const struct sticky *entry, __u32 seconds, __u8 family,
					    __u64 now)
{
	return entry && (__s64)(now - entry->used) < (__s64)seconds * 1000000000ll &&
	       takes_flows(uplink_at(entry->uplink), family);
}

// Returns the entry of the context's client and site, or NULL.
static __always_inline struct sticky *lookup_sticky(const struct pkt_ctx *ctx, __u64 now)
{
	struct sticky *entry = bpf_map_lookup_elem(&sticky, &ctx->site);

	if (is_sticky_usable(entry, ctx->sticky, ctx->packet.family, now))
		return entry;
	entry = bpf_map_lookup_elem(&sticky_embryos, &ctx->site);
	return is_sticky_usable(entry, ctx->sticky, ctx->packet.family, now) ? entry : NULL;
}

// Chooses the client's earlier uplink for the context's site. Returns non-zero if it has none.
static __always_inline int choose_sticky(struct pkt_ctx *ctx, __u64 now)
{
	struct sticky *entry;

	if (!ctx->sticky)
		return -1;
	entry = lookup_sticky(ctx, now);
	if (!entry)
		return -1;
	ctx->uplink = entry->uplink;
	ctx->choice = CHOICE_STICKY;
	return 0;
}

// Stores the context's choice for its site, unless another CPU was faster; then that choice is
// taken.
__noinline int note_sticky(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct sticky fresh = {.used = now}, *entry;

	if (!ctx)
		return -1;
	fresh.uplink = ctx->uplink;
	entry = lookup_sticky(ctx, now);
	if (!entry) {
		if (!bpf_map_update_elem(&sticky_embryos, &ctx->site, &fresh, BPF_NOEXIST))
			return 0;
		entry = lookup_sticky(ctx, now);
	}
	if (!entry) {
		bpf_map_update_elem(&sticky_embryos, &ctx->site, &fresh,
				    BPF_ANY); // replaces an old one
		return 0;
	}
	if (entry->uplink != ctx->uplink) {
		ctx->uplink = entry->uplink;
		ctx->choice = CHOICE_STICKY;
	}
	entry->used = now;
	return 0;
}

// Keeps the choice of the context's flow, now that it has been answered. An answered flow's earlier
// choice of another uplink stays.
static __always_inline void promote_sticky(struct pkt_ctx *ctx, __u32 seconds, __u64 now)
{
	const struct flow *flow = &ctx->flow;
	struct sticky fresh = {.used = now, .uplink = flow->uplink}, *entry;

	set_site(ctx, ctx->key.protocol == IPPROTO_UDP ? &flow->remote : &ctx->key.remote,
		 flow->class, now);
	entry = bpf_map_lookup_elem(&sticky, &ctx->site);
	if (!is_sticky_usable(entry, seconds, is_v4(&ctx->key.local) ? FAMILY_V4 : FAMILY_V6, now))
		bpf_map_update_elem(&sticky, &ctx->site, &fresh, BPF_ANY);
	else if (entry->uplink == flow->uplink)
		entry->used = now;
	bpf_map_delete_elem(&sticky_embryos, &ctx->site);
}

#endif
