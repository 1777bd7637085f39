// Which client keeps to which uplink for which site, so that what it has told a server by one
// address (a login) is not asked for by another. Counted from the last flow that it opened there:
// packets of known flows do not come here.
#ifndef BRAID_STICKY_H
#define BRAID_STICKY_H

#include "names.h"

// The site is a number that names give, behind a word that no address begins with, or the network
// of the remote: /24 or /56.
struct sticky_key {
	struct address client;
	struct address site;
	__u8 class;
	__u8 unused[3];
};

#define NAMED_SITE 0xffffffff

struct sticky {
	__u64 used; // ns of the monotonic clock
	__u8 uplink;
	__u8 unused[7];
};

_Static_assert(sizeof(struct sticky_key) == 36, "sticky_key");
_Static_assert(sizeof(struct sticky) == 16, "sticky");

HASH_MAP(sticky, BPF_MAP_TYPE_LRU_HASH, 0, MAX_STICKY, struct sticky_key, struct sticky);

static __always_inline void sticky_key_of(const struct workbench *work, __u64 now,
					  struct sticky_key *key)
{
	const struct name *name = name_of(&work->packet.dest, now);

	__builtin_memset(key, 0, sizeof(*key));
	key->client = work->key.near;
	key->class = work->class;
	if (name && name->site) {
		key->site.word[0] = NAMED_SITE;
		key->site.word[3] = name->site;
		return;
	}
	key->site = work->packet.dest;
	if (work->packet.family == FAMILY_V4) {
		key->site.word[3] &= bpf_htonl(~0u << (32 - SITE_BITS_V4));
	} else {
		key->site.word[1] &= bpf_htonl(~0u << (64 - SITE_BITS_V6));
		key->site.word[2] = 0;
		key->site.word[3] = 0;
	}
}

// The entry, if it still counts and its uplink can take the flow.
static __always_inline struct sticky *recall(const struct workbench *work,
					     const struct sticky_key *key, __u64 now)
{
	struct sticky *entry = bpf_map_lookup_elem(&sticky, key);

	// Another CPU may have stamped it after `now` was read.
	if (!entry || (__s64)(now - entry->used) >= (__s64)work->sticky * 1000000000ll ||
	    !takes_flows(uplink_at(entry->uplink), work->packet.family))
		return NULL;
	return entry;
}

// Chooses what the client had before for this site. Not 0: nothing that counts.
static __always_inline int choose_again(struct workbench *work, __u64 now)
{
	struct sticky_key key;
	struct sticky *entry;

	if (!work->sticky)
		return -1;
	sticky_key_of(work, now, &key);
	entry = recall(work, &key, now);
	if (!entry)
		return -1;
	work->uplink = entry->uplink;
	work->choice = CHOICE_STICKY;
	return 0;
}

// Notes the workbench's choice, unless another CPU was faster: what it chose counts then. A browser
// opens several connections to a site at once.
__noinline int stick(__u64 now)
{
	struct workbench *work = workbench();
	struct sticky_key key;
	struct sticky fresh = {.used = now}, *entry;

	if (!work)
		return -1;
	sticky_key_of(work, now, &key);
	fresh.uplink = work->uplink;
	entry = recall(work, &key, now);
	if (!entry) {
		if (!bpf_map_update_elem(&sticky, &key, &fresh, BPF_NOEXIST))
			return 0;
		entry = recall(work, &key, now);
	}
	if (!entry) {
		bpf_map_update_elem(&sticky, &key, &fresh, BPF_ANY); // a stale one
		return 0;
	}
	if (entry->uplink != work->uplink) {
		work->uplink = entry->uplink;
		work->choice = CHOICE_STICKY;
	}
	entry->used = now;
	return 0;
}

#endif
