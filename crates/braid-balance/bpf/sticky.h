// Which client keeps to which uplink for which site, so that what it has told a server by one
// address (a login) is not asked for by another. Counted from the last flow that it opened there:
// what a flow carries after its first answer does not come here.
#ifndef BRAID_STICKY_H
#define BRAID_STICKY_H

#include "names.h"
#include "ways.h"

#define NAMED_SITE 0xffffffff

struct sticky {
	__u64 used; // ns of the monotonic clock
	__u8 uplink;
	__u8 unused[7];
};

_Static_assert(sizeof(struct sticky) == 16, "sticky");

// Two tables, as for flows: what a client has had answered, and what it has only asked for. The
// second keeps together what a browser opens at once, and is all that a flood of SYNs turns over.
HASH_MAP(sticky, BPF_MAP_TYPE_LRU_HASH, 0, MAX_STICKY, struct sticky_key, struct sticky);
HASH_MAP(sticky_embryos, BPF_MAP_TYPE_LRU_HASH, 0, MAX_STICKY_EMBRYOS, struct sticky_key,
	 struct sticky);

// Puts on the workbench what a client's choice for a remote is kept by. Not on the stack, which is
// short.
static __always_inline void set_site(struct workbench *work, const struct address *remote,
				     __u32 class, __u64 now)
{
	const struct name *name = name_of(remote, now);
	struct sticky_key *key = &work->site;

	__builtin_memset(key, 0, sizeof(*key));
	key->client = work->key.near;
	key->class = class;
	if (name && name->site) {
		key->site.word[0] = NAMED_SITE;
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

// Whether an entry still says something: it is not older than `seconds`, and its uplink can take
// the flow. Another CPU may have stamped it after `now` was read.
static __always_inline int counts(const struct sticky *entry, __u32 seconds, __u8 family, __u64 now)
{
	return entry && (__s64)(now - entry->used) < (__s64)seconds * 1000000000ll &&
	       takes_flows(uplink_at(entry->uplink), family);
}

// What is remembered of the workbench's client and site.
static __always_inline struct sticky *recall(const struct workbench *work, __u64 now)
{
	struct sticky *entry = bpf_map_lookup_elem(&sticky, &work->site);

	if (counts(entry, work->sticky, work->packet.family, now))
		return entry;
	entry = bpf_map_lookup_elem(&sticky_embryos, &work->site);
	return counts(entry, work->sticky, work->packet.family, now) ? entry : NULL;
}

// Chooses what the client had before for the workbench's site. Not 0: nothing that counts.
static __always_inline int choose_again(struct workbench *work, __u64 now)
{
	struct sticky *entry;

	if (!work->sticky)
		return -1;
	entry = recall(work, now);
	if (!entry)
		return -1;
	work->uplink = entry->uplink;
	work->choice = CHOICE_STICKY;
	return 0;
}

// Notes the workbench's choice for its site, unless another CPU was faster: what it chose counts
// then.
__noinline int stick(__u64 now)
{
	struct workbench *work = workbench();
	struct sticky fresh = {.used = now}, *entry;

	if (!work)
		return -1;
	fresh.uplink = work->uplink;
	entry = recall(work, now);
	if (!entry) {
		if (!bpf_map_update_elem(&sticky_embryos, &work->site, &fresh, BPF_NOEXIST))
			return 0;
		entry = recall(work, now);
	}
	if (!entry) {
		bpf_map_update_elem(&sticky_embryos, &work->site, &fresh, BPF_ANY); // a stale one
		return 0;
	}
	if (entry->uplink != work->uplink) {
		work->uplink = entry->uplink;
		work->choice = CHOICE_STICKY;
	}
	entry->used = now;
	return 0;
}

// Keeps what the workbench's flow was given, now that the flow has been answered. What was answered
// earlier and elsewhere stays.
static __always_inline void settle(struct workbench *work, __u32 seconds, __u64 now)
{
	const struct flow *flow = &work->flow;
	struct sticky fresh = {.used = now, .uplink = flow->uplink}, *entry;

	set_site(work, work->key.protocol == IPPROTO_UDP ? &flow->remote : &work->key.far,
		 flow->class, now);
	entry = bpf_map_lookup_elem(&sticky, &work->site);
	if (!counts(entry, seconds, is_v4(&work->key.near) ? FAMILY_V4 : FAMILY_V6, now))
		bpf_map_update_elem(&sticky, &work->site, &fresh, BPF_ANY);
	else if (entry->uplink == flow->uplink)
		entry->used = now;
	bpf_map_delete_elem(&sticky_embryos, &work->site);
}

#endif
