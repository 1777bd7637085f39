// What is known of the ways to a remote, and which uplink follows from it. docs/race.md tells how.
#ifndef BRAID_PATH_CACHE_H
#define BRAID_PATH_CACHE_H

#include "packet/parse.h"

#define NS_PER_SECOND 1000000000ull
#define MILLION	      1000000ull

// 1.5 times the square of a segment of 1460 bytes: Mathis' law with both sides squared, for rates
// in 1000 bytes/s, RTTs in us and losses in parts in a million.
#define MATHIS 3200000000000000000ull

// The value of a path that nothing is known of; not pinned, never written.
ARRAY_MAP(blank_entry, BPF_MAP_TYPE_ARRAY, 1, struct path_entry);

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

static __always_inline struct path_entry *path_entry_of(const struct path_key *key)
{
	struct path_entry *entry = bpf_map_lookup_elem(&path_cache, key), *blank;
	__u32 zero = 0;

	if (entry)
		return entry;
	blank = bpf_map_lookup_elem(&blank_entry, &zero);
	if (blank)
		bpf_map_update_elem(&path_cache, key, blank, BPF_NOEXIST);
	return bpf_map_lookup_elem(&path_cache, key);
}

// The way to the workbench's prefix by an uplink, up to date with the uplink's epoch: what was
// learnt before it is forgotten.
static __always_inline struct path *path_of(const struct pkt_ctx *ctx, __u32 id)
{
	struct uplink *uplink = uplink_at(id);
	struct path_entry *entry = path_entry_of(&ctx->prefix);
	struct path *path;

	if (!entry || !uplink || id >= MAX_UPLINKS)
		return NULL;
	path = &entry->paths[uplink_index(id)];
	if (path->epoch != uplink->epoch) {
		path->rtt = path->packets = path->lost = 0;
		path->epoch = uplink->epoch;
	}
	return path;
}

// Returns 1 if the way's round trip has been measured within the memory.
static __always_inline int is_fresh(const struct path *path, __u64 now)
{
	__u32 zero = 0;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);

	return settled && path->rtt &&
	       (__s32)((__u32)(now / NS_PER_SECOND) - path->measured_at) <= (__s32)settled->memory;
}

__noinline int store_rtt(__u32 id, __u32 rtt, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0, at = now / NS_PER_SECOND;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct path *path;

	if (!ctx || !settled)
		return -1;
	path = path_of(ctx, id);
	if (!path)
		return -1;
	if (!path->rtt || path->rtt == RTT_UNANSWERED_US ||
	    at - path->measured_at > settled->memory)
		path->rtt = rtt ? rtt : 1;
	else
		path->rtt = ((__u64)path->rtt * (RTT_EWMA_DIVISOR - 1) + rtt) / RTT_EWMA_DIVISOR;
	path->measured_at = at;
	return 0;
}

// Remembers an RTT in us. What is older than the memory is replaced; else the new one moves it. As
// the functions below, it has the workbench's prefix say whose: on their own, and with numbers
// only, they are verified once.
static __always_inline void update_rtt(const struct address *remote, __u32 id, __u32 rtt, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return;
	path_key_of(remote, &ctx->prefix);
	store_rtt(id, rtt, now);
}

// Remembers that an uplink left a SYN unanswered until the client repeated it. Predictions avoid
// the uplink for a part of the memory, or until its next answer.
__noinline int store_unanswered(__u32 id, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct path *path;

	if (!ctx || !settled)
		return -1;
	path_key_of(&ctx->key.remote, &ctx->prefix);
	path = path_of(ctx, id);
	if (!path)
		return -1;
	path->rtt = RTT_UNANSWERED_US;
	path->measured_at =
		now / NS_PER_SECOND - settled->memory + settled->memory / UNANSWERED_TTL_DIVISOR;
	return 0;
}

__noinline int delete_rtt(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct path *path = ctx ? path_of(ctx, id) : NULL;

	if (path)
		path->rtt = 0;
	return 0;
}

// What was remembered is wrong by now: nobody answers there, or only to refuse.
static __always_inline void forget_path(const struct address *remote, __u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return;
	path_key_of(remote, &ctx->prefix);
	delete_rtt(id);
}

// Returns the number of the outlook under which the flow has now been counted as busy; `tick` was
// the last such.
__noinline __u32 store_losses(__u32 id, __u32 seen, __u32 lost, __u32 tick)
{
	struct uplink_counters *counters = bpf_map_lookup_elem(&traffic, &id);
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct pkt_ctx *ctx = pkt_ctx();
	struct path *path = ctx ? path_of(ctx, id) : NULL;

	if (counters) {
		counters->data_packets += seen;
		counters->lost += lost;
	}
	if (path) {
		path->packets += seen;
		path->lost += lost;
		if (path->packets >= LOSS_HALVING_PACKETS) {
			path->packets /= 2;
			path->lost /= 2;
		}
	}
	if (!forecast || seen < LOSS_BATCH_PACKETS || tick == (forecast->tick & 0xff))
		return tick;
	__sync_fetch_and_add(&forecast->active, 1);
	return forecast->tick & 0xff;
}

// Adds what a flow has seen since last time to its uplink's counters and its path's memory, and
// counts it as busy, once for each outlook.
static __always_inline void update_losses(const struct address *remote, struct flow *flow)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return;
	path_key_of(remote, &ctx->prefix);
	flow->tick = store_losses(flow->uplink, flow->seen, flow->lost, flow->tick);
	flow->seen = 0;
	flow->lost = 0;
}

static __always_inline void count_opened(__u32 id)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (forecast)
		__sync_fetch_and_add(&forecast->opened, 1);
}

// Takes one from a count that another CPU may change, unless it is 0.
static __always_inline void decrement(__u32 *count)
{
	if (*count)
		__sync_fetch_and_sub(count, 1);
}

// Has a flow that was counted as busy last under the outlook with the number `tick` count no longer
// where others look for room. What was opened stays counted: connections that follow one another
// take turns by it.
__noinline int count_closed(__u32 id, __u32 tick)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (!forecast)
		return 0;
	if (tick == (forecast->tick & 0xff)) {
		decrement(&forecast->active);
		decrement(&forecast->busy);
	} else if (tick == ((forecast->tick - 1) & 0xff)) {
		decrement(&forecast->busy);
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
static __always_inline __u32 headroom_of(const struct uplink_forecast *forecast)
{
	__u32 capacity = forecast->capacity, spare = forecast->spare, headroom;

	if (!capacity)
		capacity = spare = PREDICT_DEFAULT_RATE;
	spare /= forecast->opened + 1;
	headroom = capacity / (forecast->busy + forecast->opened + 1);
	if (headroom < spare)
		headroom = spare;
	return headroom ? headroom : 1;
}

// Time in us that a transfer is expected to take. Its twin is braid_core::forecast.
__noinline __u64 predict(__u32 rtt, __u32 loss, __u32 headroom)
{
	__u64 squared, rate;

	if (rtt < PREDICT_MIN_RTT_US)
		rtt = PREDICT_MIN_RTT_US;
	if (rtt > PREDICT_MAX_RTT_US)
		rtt = PREDICT_MAX_RTT_US;
	if (loss < PREDICT_MIN_LOSS_PPM)
		loss = PREDICT_MIN_LOSS_PPM;
	if (loss > MILLION)
		loss = MILLION;
	squared = (__u64)rtt * rtt * loss;
	rate = square_root(MATHIS / squared);
	if (rate > headroom)
		rate = headroom;
	if (!rate)
		rate = 1;
	return (__u64)PREDICT_ROUNDS * rtt + PREDICT_TRANSFER_KILOBYTES * MILLION / rate;
}

// Time in us that a transfer by an uplink takes where nothing is known of the way.
static __always_inline __u64 default_forecast(const struct uplink_forecast *forecast)
{
	return predict(PREDICT_DEFAULT_RTT_US, forecast->loss, headroom_of(forecast));
}

// Time in us that a transfer takes at a round trip and in the room that an uplink has. Without
// loss: who loses much is not raced.
static __always_inline __u64 transfer_time(const struct uplink_forecast *forecast, __u32 rtt)
{
	return (__u64)PREDICT_ROUNDS * rtt +
	       PREDICT_TRANSFER_KILOBYTES * MILLION / headroom_of(forecast);
}

// Weighs an uplink that has not answered the workbench's SYN within `waited` us against the best so
// far: at the round trip that is known of the way or, without one, at that of the uplink's
// handshakes in general.
__noinline int score_unanswered(__u32 id, __u32 waited, __u64 now)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct uplink_counters *counters;
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 rtt = PREDICT_DEFAULT_RTT_US;
	struct path *path;

	if (!ctx || !forecast || id >= MAX_UPLINKS || !(ctx->usable & (1u << id)))
		return 0;
	path = path_of(ctx, id);
	counters = bpf_map_lookup_elem(&traffic, &id);
	if (path && is_fresh(path, now))
		rtt = path->rtt;
	else if (counters && counters->rtt_samples)
		rtt = counters->rtt_us_sum / counters->rtt_samples;
	if (rtt < waited)
		rtt = waited;
	if (transfer_time(forecast, rtt) < ctx->best_default_time) {
		ctx->best_default_time = transfer_time(forecast, rtt);
		ctx->best_default = id;
	}
	return 0;
}

// Weighs one of the uplinks that the workbench's flow may be raced on. What it finds is put on the
// workbench, where the verifier does not follow it from one uplink to the next.
__noinline int score_candidate(__u32 id, __u64 now)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	struct path_entry *entry;
	struct path *path;
	__u64 score;

	if (!ctx || !forecast || id >= MAX_UPLINKS || !takes_flows(uplink, ctx->packet.family))
		return 0;
	ctx->usable |= 1u << id;
	if (ctx->lb_method == LB_FASTEST) {
		score = default_forecast(forecast);
		if (!ctx->best_default_time || score < ctx->best_default_time) {
			ctx->best_default_time = score;
			ctx->best_default = id;
		}
	}
	entry = bpf_map_lookup_elem(&path_cache, &ctx->prefix);
	if (!entry)
		return 0;
	path = &entry->paths[uplink_index(id)];
	if (path->epoch != uplink->epoch || !is_fresh(path, now))
		return 0;
	score = path->rtt;
	if (ctx->lb_method == LB_FASTEST)
		score = predict(
			path->rtt,
			(path->lost * MILLION + (__u64)forecast->loss * PREDICT_PRIOR_PACKETS) /
				((__u64)path->packets + PREDICT_PRIOR_PACKETS),
			headroom_of(forecast));
	if (!ctx->cached || score < ctx->best_time) {
		ctx->best_time = score;
		ctx->best = id;
	}
	ctx->cached |= 1u << id;
	return 0;
}

// Whether it is worth while to race on an uplink: a SYN that came through first says nothing about
// room and loss.
__noinline int check_worthwhile(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (!ctx || !forecast || id >= MAX_UPLINKS || !(ctx->usable & (1u << id)))
		return 0;
	if (default_forecast(forecast) <= ctx->best_default_time * PREDICT_CROWDED_FACTOR)
		ctx->worthwhile |= 1u << id;
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
static __always_inline int may_race(const struct pkt_ctx *ctx)
{
	return ctx->packet.protocol == IPPROTO_TCP && ctx->packet.fragment == WHOLE &&
	       (ctx->packet.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN &&
	       !ctx->packet.payload && !ctx->is_moving && !is_private(&ctx->packet.dest);
}

// Takes one race from the prefix' allowance for this second and from that of all. Two CPUs may take
// the same one, which does no harm. Not 0: there is none left.
static __always_inline int spend_race_budget(const struct pkt_ctx *ctx, __u64 now)
{
	__u32 zero = 0, second = now / NS_PER_SECOND;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);
	struct race_budget *all = bpf_map_lookup_elem(&race_budget, &zero);
	struct path_entry *entry = path_entry_of(&ctx->prefix);

	if (!settled || !all || !entry)
		return -1;
	if (entry->second != second) {
		entry->second = second;
		entry->races = 0;
	}
	if (all->second != second) {
		all->second = second;
		all->races = 0;
	}
	if (entry->races >= settled->per_prefix || all->races >= settled->total) {
		count(REASON_race_over_rate);
		return -1;
	}
	entry->races++;
	all->races++;
	return 0;
}

static __always_inline int has_several(__u32 bits)
{
	return (bits & (bits - 1)) != 0;
}

// Decides whether the workbench's flow is raced, which leaves the racers' bits there; else chooses
// for it by what is remembered, or leaves it what the slots have chosen.
__noinline int choose_path(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0, candidates, all, explore;
	struct settings *settled = bpf_map_lookup_elem(&settings, &zero);

	if (!ctx || !settled)
		return 0;
	candidates = ctx->candidates;
	ctx->candidates = 0;
	if (!has_several(candidates))
		return 0;
	path_key_of(&ctx->packet.dest, &ctx->prefix);
	ctx->usable = ctx->cached = ctx->worthwhile = ctx->preferred = 0;
	ctx->best_default_time = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (candidates & (1u << id))
			score_candidate(id, now);
	}
	if (!has_several(ctx->usable))
		return 0;
	if (ctx->lb_method == LB_FASTEST) {
		for (__u32 id = 0; id < MAX_UPLINKS; id++)
			check_worthwhile(id);
	} else {
		ctx->worthwhile = ctx->usable;
	}
	all = !(ctx->worthwhile & ~ctx->cached);
	explore = all && settled->explore_one_in &&
		  !(bpf_get_prandom_u32() % settled->explore_one_in);
	candidates = explore ? ctx->usable : ctx->worthwhile;
	if (may_race(ctx) && (!all || explore)) {
		if (has_several(candidates) && !spend_race_budget(ctx, now)) {
			if (explore && ctx->lb_method == LB_FASTEST)
				ctx->preferred = ctx->best + 1;
			if (candidates != ctx->usable)
				count(REASON_race_crowded);
			ctx->candidates = candidates;
			return 0;
		}
		if (!has_several(candidates)) {
			// Nothing is known of the only one that is worth while.
			ctx->best = ctx->best_default;
			ctx->cached = ctx->worthwhile;
		}
	}
	if (!ctx->cached)
		return 0;
	ctx->uplink = ctx->best;
	if (ctx->lb_method == LB_FASTEST) {
		ctx->choice = CHOICE_PREDICTED;
		count(REASON_path_predicted);
	} else {
		ctx->choice = CHOICE_REMEMBERED;
		count(REASON_path_remembered);
	}
	return 0;
}

#endif
