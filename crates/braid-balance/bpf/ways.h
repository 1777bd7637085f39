// What is known of the ways to a remote, and which uplink follows from it. docs/race.md tells how.
#ifndef BRAID_WAYS_H
#define BRAID_WAYS_H

#include "parse.h"

#define NANOSECONDS 1000000000ull
#define MILLION	    1000000ull

// 1.5 times the square of a segment of 1460 bytes: Mathis' law with both sides squared, for rates
// in 1000 bytes/s, RTTs in us and losses in parts in a million.
#define MATHIS 3200000000000000000ull

// The value of a path that nothing is known of; not pinned, never written.
ARRAY_MAP(blank_path, BPF_MAP_TYPE_ARRAY, 1, struct path);

static __always_inline int is_v4(const struct address *address)
{
	return !(address->word[0] | address->word[1]) && address->word[2] == bpf_htonl(0xffff);
}

static __always_inline void path_key_of(const struct address *remote, struct path_key *key)
{
	key->prefix = *remote;
	if (is_v4(remote)) {
		key->prefix.word[3] &= bpf_htonl(~0u << (32 - PATH_BITS_V4));
	} else {
		key->prefix.word[1] &= bpf_htonl(~0u << (64 - PATH_BITS_V6));
		key->prefix.word[2] = 0;
		key->prefix.word[3] = 0;
	}
}

static __always_inline struct path *path_of(const struct path_key *key)
{
	struct path *path = bpf_map_lookup_elem(&paths, key), *blank;
	__u32 zero = 0;

	if (path)
		return path;
	blank = bpf_map_lookup_elem(&blank_path, &zero);
	if (blank)
		bpf_map_update_elem(&paths, key, blank, BPF_NOEXIST);
	return bpf_map_lookup_elem(&paths, key);
}

// The way to the workbench's prefix by an uplink, up to date with the uplink's epoch: what was
// learnt before it is forgotten.
static __always_inline struct way *way_of(const struct workbench *work, __u32 id)
{
	struct uplink *uplink = uplink_at(id);
	struct path *path = path_of(&work->prefix);
	struct way *way;

	if (!path || !uplink || id >= MAX_UPLINKS)
		return NULL;
	way = &path->ways[place_of(id)];
	if (way->epoch != uplink->epoch) {
		way->rtt = way->packets = way->lost = 0;
		way->epoch = uplink->epoch;
	}
	return way;
}

// Returns 1 if the way's round trip has been measured within the memory.
static __always_inline int is_fresh(const struct way *way, __u64 now)
{
	__u32 zero = 0;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);

	return settled && way->rtt &&
	       (__s32)((__u32)(now / NANOSECONDS) - way->at) <= (__s32)settled->memory;
}

__noinline int remember_rtt(__u32 id, __u32 rtt, __u64 now)
{
	struct workbench *work = workbench();
	__u32 zero = 0, at = now / NANOSECONDS;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct way *way;

	if (!work || !settled)
		return -1;
	way = way_of(work, id);
	if (!way)
		return -1;
	if (!way->rtt || way->rtt == RTT_SILENT || at - way->at > settled->memory)
		way->rtt = rtt ? rtt : 1;
	else
		way->rtt = ((__u64)way->rtt * (RTT_PARTS - 1) + rtt) / RTT_PARTS;
	way->at = at;
	return 0;
}

// Remembers an RTT in us. What is older than the memory is replaced; else the new one moves it. As
// the functions below, it has the workbench's prefix say whose: on their own, and with numbers
// only, they are verified once.
static __always_inline void learn_rtt(const struct address *remote, __u32 id, __u32 rtt, __u64 now)
{
	struct workbench *work = workbench();

	if (!work)
		return;
	path_key_of(remote, &work->prefix);
	remember_rtt(id, rtt, now);
}

// Remembers that an uplink left a SYN unanswered until the client repeated it. Predictions avoid
// the uplink for a part of the memory, or until its next answer.
__noinline int remember_silence(__u32 id, __u64 now)
{
	struct workbench *work = workbench();
	__u32 zero = 0;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct way *way;

	if (!work || !settled)
		return -1;
	path_key_of(&work->key.far, &work->prefix);
	way = way_of(work, id);
	if (!way)
		return -1;
	way->rtt = RTT_SILENT;
	way->at = now / NANOSECONDS - settled->memory + settled->memory / SILENCE_PART;
	return 0;
}

__noinline int drop_rtt(__u32 id)
{
	struct workbench *work = workbench();
	struct way *way = work ? way_of(work, id) : NULL;

	if (way)
		way->rtt = 0;
	return 0;
}

// What was remembered is wrong by now: nobody answers there, or only to refuse.
static __always_inline void forget_way(const struct address *remote, __u32 id)
{
	struct workbench *work = workbench();

	if (!work)
		return;
	path_key_of(remote, &work->prefix);
	drop_rtt(id);
}

// Returns the number of the outlook under which the flow has now been counted as busy; `tick` was
// the last such.
__noinline __u32 remember_losses(__u32 id, __u32 seen, __u32 lost, __u32 tick)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &id);
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);
	struct workbench *work = workbench();
	struct way *way = work ? way_of(work, id) : NULL;

	if (counters) {
		counters->data_packets += seen;
		counters->lost += lost;
	}
	if (way) {
		way->packets += seen;
		way->lost += lost;
		if (way->packets >= LOSS_HALF) {
			way->packets /= 2;
			way->lost /= 2;
		}
	}
	if (!outlook || seen < LOSS_BATCH || tick == (outlook->tick & 0xff))
		return tick;
	__sync_fetch_and_add(&outlook->active, 1);
	return outlook->tick & 0xff;
}

// Adds what a flow has seen since last time to its uplink's counters and its path's memory, and
// counts it as busy, once for each outlook.
static __always_inline void learn_losses(const struct address *remote, struct flow *flow)
{
	struct workbench *work = workbench();

	if (!work)
		return;
	path_key_of(remote, &work->prefix);
	flow->tick = remember_losses(flow->uplink, flow->seen, flow->lost, flow->tick);
	flow->seen = 0;
	flow->lost = 0;
}

static __always_inline void note_opened(__u32 id)
{
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);

	if (outlook)
		__sync_fetch_and_add(&outlook->opened, 1);
}

// Takes one from a count that another CPU may change, unless it is 0.
static __always_inline void take_one(__u32 *count)
{
	if (*count)
		__sync_fetch_and_sub(count, 1);
}

// Has a flow that was counted as busy last under the outlook with the number `tick` count no longer
// where others look for room. What was opened stays counted: connections that follow one another
// take turns by it.
__noinline int note_closed(__u32 id, __u32 tick)
{
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);

	if (!outlook)
		return 0;
	if (tick == (outlook->tick & 0xff)) {
		take_one(&outlook->active);
		take_one(&outlook->busy);
	} else if (tick == ((outlook->tick - 1) & 0xff)) {
		take_one(&outlook->busy);
	}
	return 0;
}

// The whole part of a square root. Newton's method from a power of two above it: of 64 bits, six
// steps come within one of it.
static __always_inline __u64 square_root(__u64 square)
{
	__u64 rest = square, root;
	__u32 bits = 0;

	if (!square)
		return 0;
	for (__u32 half = 32; half; half /= 2) {
		if (rest >> half) {
			rest >>= half;
			bits += half;
		}
	}
	root = 1ull << (bits / 2 + 1);
	for (int step = 0; step < 6; step++)
		root = (root + square / root) / 2;
	return root * root > square ? root - 1 : root;
}

// Rate that a new flow finds on an uplink: what is spare, shared with flows opened since that was
// measured, or its part among those that were busy then.
static __always_inline __u32 room_on(const struct outlook *outlook)
{
	__u32 capacity = outlook->capacity, spare = outlook->spare, room;

	if (!capacity)
		capacity = spare = PREDICT_CUSTOMARY;
	spare /= outlook->opened + 1;
	room = capacity / (outlook->busy + outlook->opened + 1);
	if (room < spare)
		room = spare;
	return room ? room : 1;
}

// Time in us that a transfer is expected to take. Its twin is braid_core::forecast.
__noinline __u64 predict(__u32 rtt, __u32 loss, __u32 room)
{
	__u64 squared, rate;

	if (rtt < PREDICT_LEAST_RTT)
		rtt = PREDICT_LEAST_RTT;
	if (rtt > PREDICT_MOST_RTT)
		rtt = PREDICT_MOST_RTT;
	if (loss < PREDICT_LEAST_PPM)
		loss = PREDICT_LEAST_PPM;
	if (loss > MILLION)
		loss = MILLION;
	squared = (__u64)rtt * rtt * loss;
	rate = square_root(MATHIS / squared);
	if (rate > room)
		rate = room;
	if (!rate)
		rate = 1;
	return (__u64)PREDICT_ROUNDS * rtt + PREDICT_KILOBYTES * MILLION / rate;
}

// Time in us that a transfer by an uplink takes where nothing is known of the way.
static __always_inline __u64 prospect_of(const struct outlook *outlook)
{
	return predict(PREDICT_USUAL_RTT, outlook->loss, room_on(outlook));
}

// Time in us that a transfer takes at a round trip and in the room that an uplink has. Without
// loss: who loses much is not raced.
static __always_inline __u64 time_in(const struct outlook *outlook, __u32 rtt)
{
	return (__u64)PREDICT_ROUNDS * rtt + PREDICT_KILOBYTES * MILLION / room_on(outlook);
}

// Weighs an uplink that has not answered the workbench's SYN within `waited` us against the best so
// far: at the round trip that is known of the way or, without one, at that of the uplink's
// handshakes in general.
__noinline int weigh_silent(__u32 id, __u32 waited, __u64 now)
{
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);
	struct uplink_counters *counters;
	struct workbench *work = workbench();
	__u32 rtt = PREDICT_USUAL_RTT;
	struct way *way;

	if (!work || !outlook || id >= MAX_UPLINKS || !(work->live & (1u << id)))
		return 0;
	way = way_of(work, id);
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (way && is_fresh(way, now))
		rtt = way->rtt;
	else if (counters && counters->rtt_samples)
		rtt = counters->rtt_us_sum / counters->rtt_samples;
	if (rtt < waited)
		rtt = waited;
	if (time_in(outlook, rtt) < work->best_prospect) {
		work->best_prospect = time_in(outlook, rtt);
		work->promising = id;
	}
	return 0;
}

// Weighs one of the uplinks that the workbench's flow may be raced on. What it finds is put on the
// workbench, where the verifier does not follow it from one uplink to the next.
__noinline int weigh(__u32 id, __u64 now)
{
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);
	struct workbench *work = workbench();
	struct uplink *uplink = uplink_at(id);
	struct path *path;
	struct way *way;
	__u64 score;

	if (!work || !outlook || id >= MAX_UPLINKS || !takes_flows(uplink, work->packet.family))
		return 0;
	work->live |= 1u << id;
	if (work->walk == WALK_FASTEST) {
		score = prospect_of(outlook);
		if (!work->best_prospect || score < work->best_prospect) {
			work->best_prospect = score;
			work->promising = id;
		}
	}
	path = bpf_map_lookup_elem(&paths, &work->prefix);
	if (!path)
		return 0;
	way = &path->ways[place_of(id)];
	if (way->epoch != uplink->epoch || !is_fresh(way, now))
		return 0;
	score = way->rtt;
	if (work->walk == WALK_FASTEST)
		score = predict(way->rtt,
				(way->lost * MILLION + (__u64)outlook->loss * PREDICT_PRIOR) /
					((__u64)way->packets + PREDICT_PRIOR),
				room_on(outlook));
	if (!work->known || score < work->best_score) {
		work->best_score = score;
		work->best = id;
	}
	work->known |= 1u << id;
	return 0;
}

// Whether it is worth while to race on an uplink: a SYN that came through first says nothing about
// room and loss.
__noinline int look_ahead(__u32 id)
{
	struct workbench *work = workbench();
	struct outlook *outlook = bpf_map_lookup_elem(&outlooks, &id);

	if (!work || !outlook || id >= MAX_UPLINKS || !(work->live & (1u << id)))
		return 0;
	if (prospect_of(outlook) <= work->best_prospect * PREDICT_CROWDED)
		work->roomy |= 1u << id;
	return 0;
}

// Addresses that no way out leads to, or always the same one.
static __always_inline int is_private(const struct address *remote)
{
	__u32 v4 = bpf_ntohl(remote->word[3]);

	if (!is_v4(remote))
		return (remote->word[0] & bpf_htonl(0xfe000000)) == bpf_htonl(0xfc000000);
	return v4 >> 24 == 10 || v4 >> 20 == 0xac1 || v4 >> 16 == 0xc0a8 || v4 >> 22 == 0x191;
}

// Whether copies of the workbench's packet may be sent: a SYN alone. What comes with data (TCP Fast
// Open) could be carried out twice.
static __always_inline int may_race(const struct workbench *work)
{
	return work->packet.protocol == IPPROTO_TCP && work->packet.fragment == WHOLE &&
	       (work->packet.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN &&
	       !work->packet.payload && !work->moves && !is_private(&work->packet.dest);
}

// Takes one race from the prefix' allowance for this second and from that of all. Two CPUs may take
// the same one, which does no harm. Not 0: there is none left.
static __always_inline int take_allowance(const struct workbench *work, __u64 now)
{
	__u32 zero = 0, second = now / NANOSECONDS;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct race_budget *all = bpf_map_lookup_elem(&race_budget, &zero);
	struct path *path = path_of(&work->prefix);

	if (!settled || !all || !path)
		return -1;
	if (path->second != second) {
		path->second = second;
		path->races = 0;
	}
	if (all->second != second) {
		all->second = second;
		all->races = 0;
	}
	if (path->races >= settled->per_prefix || all->races >= settled->total) {
		count(REASON_race_over_rate);
		return -1;
	}
	path->races++;
	all->races++;
	return 0;
}

static __always_inline int several(__u32 bits)
{
	return (bits & (bits - 1)) != 0;
}

// Decides whether the workbench's flow is raced, which leaves the racers' bits there; else chooses
// for it by what is remembered, or leaves it what the slots have chosen.
__noinline int choose_way(__u64 now)
{
	struct workbench *work = workbench();
	__u32 zero = 0, racers, all, again;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);

	if (!work || !settled)
		return 0;
	racers = work->racers;
	work->racers = 0;
	if (!several(racers))
		return 0;
	path_key_of(&work->packet.dest, &work->prefix);
	work->live = work->known = work->roomy = work->favourite = 0;
	work->best_prospect = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (racers & (1u << id))
			weigh(id, now);
	}
	if (!several(work->live))
		return 0;
	if (work->walk == WALK_FASTEST) {
		for (__u32 id = 0; id < MAX_UPLINKS; id++)
			look_ahead(id);
	} else {
		work->roomy = work->live;
	}
	all = !(work->roomy & ~work->known);
	again = all && settled->again && !(bpf_get_prandom_u32() % settled->again);
	racers = again ? work->live : work->roomy;
	if (may_race(work) && (!all || again)) {
		if (several(racers) && !take_allowance(work, now)) {
			if (again && work->walk == WALK_FASTEST)
				work->favourite = work->best + 1;
			if (racers != work->live)
				count(REASON_race_crowded);
			work->racers = racers;
			return 0;
		}
		if (!several(racers)) {
			// Nothing is known of the only one that is worth while.
			work->best = work->promising;
			work->known = work->roomy;
		}
	}
	if (!work->known)
		return 0;
	work->uplink = work->best;
	if (work->walk == WALK_FASTEST) {
		work->choice = CHOICE_PREDICTED;
		count(REASON_path_predicted);
	} else {
		work->choice = CHOICE_REMEMBERED;
		count(REASON_path_remembered);
	}
	return 0;
}

#endif
