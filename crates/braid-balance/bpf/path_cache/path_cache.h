// The path cache: RTT and loss to each destination prefix by each uplink, and the choice of an
// uplink from them. docs/race.md describes the rules.
#ifndef BRAID_PATH_CACHE_H
#define BRAID_PATH_CACHE_H

#include "packet/parse.h"

#define NS_PER_SECOND 1000000000ull
#define MILLION	      1000000ull

// 1.5 times the square of a segment of 1460 bytes: Mathis' law with both sides squared, for rates
// in 1000 bytes/s, RTTs in us and losses in parts in a million.
#define MATHIS 3200000000000000000ull

// The value of a new entry. Not pinned, never written.
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

// Returns the path to the context's prefix by an uplink. Drops what was measured in an earlier
// epoch of the uplink.
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

// Returns 1 if the path's RTT has not expired: it is at most `cache_ttl` old. An expired path cache
// entry decides nothing, until a new measurement replaces it.
static __always_inline int is_fresh(const struct path *path, __u64 now)
{
	__u32 zero = 0;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);

	return config && path->rtt &&
	       (__s32)((__u32)(now / NS_PER_SECOND) - path->measured_at) <=
		       (__s32)config->cache_ttl;
}

// Returns 1 if an RTT stands for an answer that has not come.
static __always_inline int is_stand_in(__u32 rtt)
{
	return rtt == RTT_UNANSWERED_US || rtt == RTT_TRIED_US;
}

// Returns the path's RTT then, or 0 if there is none.
__noinline int store_rtt(__u32 id, __u32 rtt, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0, at = now / NS_PER_SECOND;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);
	struct path *path;

	if (!ctx || !config)
		return 0;
	path = path_of(ctx, id);
	if (!path)
		return 0;
	if (!path->rtt || is_stand_in(path->rtt) || rtt <= path->rtt ||
	    (__s32)(at - path->measured_at) > (__s32)config->cache_ttl)
		path->rtt = rtt ? rtt : 1;
	else if ((__s32)(at - path->measured_at) >= RTT_RISE_SECONDS)
		path->rtt = ((__u64)path->rtt * (RTT_EWMA_DIVISOR - 1) + rtt) / RTT_EWMA_DIVISOR;
	else
		return path->rtt;
	path->measured_at = at;
	return path->rtt;
}

// Updates the path's RTT, in us, and returns it; 0 if there is none. A shorter one replaces it at
// once, a longer one moves it slowly, and any one replaces it once it is older than the memory.
// This function and those below pass the prefix in the context: a function that takes only numbers
// is verified once, on its own.
static __always_inline __u32 update_rtt(const struct address *remote, __u32 id, __u32 rtt,
					__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return 0;
	path_key_of(remote, &ctx->prefix);
	return store_rtt(id, rtt, now);
}

// Remembers an RTT that stands for an answer that has not come, for a part of the memory, or until
// the uplink's next answer: after a SYN that the client had to repeat, and for a QUIC connection
// until it is answered. Predictions avoid the uplink then, for QUIC or for all.
__noinline int store_stand_in(__u32 id, __u32 rtt, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);
	struct path *path;

	if (!ctx || !config)
		return -1;
	path_key_of(&ctx->key.remote, &ctx->prefix);
	path = path_of(ctx, id);
	if (!path)
		return -1;
	path->rtt = rtt;
	path->measured_at = now / NS_PER_SECOND - config->cache_ttl +
			    config->cache_ttl / UNANSWERED_TTL_DIVISOR;
	return 0;
}

// Deletes the path's RTT, or only one that equals `stand_in` unless that is 0.
__noinline int delete_rtt(__u32 id, __u32 stand_in)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct path_entry *entry;
	struct path *path;

	if (!ctx || id >= MAX_UPLINKS)
		return 0;
	entry = bpf_map_lookup_elem(&path_cache, &ctx->prefix);
	if (!entry)
		return 0;
	path = &entry->paths[uplink_index(id)];
	if (!stand_in || path->rtt == stand_in)
		path->rtt = 0;
	return 0;
}

// Deletes a path's RTT because it is out of date: the destination does not answer by this uplink,
// or only refuses; or, given a stand-in, because the answer came that this stands for.
static __always_inline void forget_path(const struct address *remote, __u32 id, __u32 stand_in)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return;
	path_key_of(remote, &ctx->prefix);
	delete_rtt(id, stand_in);
}

// Returns the number of the forecast under which the flow has now been counted as busy; `tick` was
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

// Adds what a flow has seen since last time to the counters of its uplink and of its path, and
// counts the flow as busy, once for each forecast.
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

static __always_inline void count_opened(__u32 id, __u64 now)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (!forecast)
		return;
	__sync_fetch_and_add(&forecast->opened, 1);
	forecast->last_opened = now;
}

// Decrements a count that another CPU may change, unless it is 0.
static __always_inline void decrement(__u32 *count)
{
	if (*count)
		__sync_fetch_and_sub(count, 1);
}

// Stops counting a flow that ends, so that others find the headroom. `tick` is the forecast under
// which the flow was last counted as busy; returns one that has passed, since the flow is not
// counted any more unless it goes on. With `is_short` it does not count as opened any more either:
// a page would else avoid the uplink that had most of the one before.
__noinline __u32 count_closed(__u32 id, __u32 tick, __u32 is_short)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (!forecast)
		return tick;
	if (is_short)
		decrement(&forecast->opened);
	if (tick == (forecast->tick & 0xff)) {
		decrement(&forecast->active);
		decrement(&forecast->busy);
	} else if (tick == ((forecast->tick - 1) & 0xff)) {
		decrement(&forecast->busy);
	}
	return (forecast->tick - 2) & 0xff;
}

// Returns the integer square root. Newton's method from a power of two above it: for 64 bits, six
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

// Returns the rate that a new flow finds on an uplink: the spare rate, shared with flows opened
// since that was measured, or the flow's share among those that were busy then, whichever is more.
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

static __always_inline __u32 clamp_rtt(__u32 rtt)
{
	if (rtt < PREDICT_MIN_RTT_US)
		return PREDICT_MIN_RTT_US;
	return rtt > PREDICT_MAX_RTT_US ? PREDICT_MAX_RTT_US : rtt;
}

// Returns the RTT that a new flow finds on an uplink: a queue stands where busy flows leave little.
static __always_inline __u32 loaded_rtt(const struct uplink_forecast *forecast, __u32 rtt)
{
	rtt = clamp_rtt(rtt);
	if (forecast->busy && forecast->spare < forecast->capacity / PREDICT_FULL_DIVISOR)
		rtt *= 2;
	return rtt;
}

// Returns the loss of a path, in parts in a million. Losses count as far as they exceed those that
// the uplink's load causes among all of its packets.
static __always_inline __u32 loss_of(const struct uplink_forecast *forecast, __u32 packets,
				     __u32 lost)
{
	__u64 own = (__u64)lost * MILLION, usual = (__u64)packets * forecast->load_loss;

	own = own > usual ? own - usual : 0;
	return (own + (__u64)forecast->loss * PREDICT_PRIOR_PACKETS) /
	       ((__u64)packets + PREDICT_PRIOR_PACKETS);
}

// Returns the time in us that a long transfer is expected to take. `braid_core::forecast` computes
// the same; tests/suite/forecast.rs compares the two.
__noinline __u64 predict(__u32 rtt, __u32 loss, __u32 headroom)
{
	__u64 squared, rate;

	rtt = clamp_rtt(rtt);
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

// Returns the time in us that a transfer takes by an uplink whose path to the destination is
// unknown.
static __always_inline __u64 default_transfer_time(const struct uplink_forecast *forecast)
{
	return predict(loaded_rtt(forecast, PREDICT_DEFAULT_RTT_US), forecast->loss,
		       headroom_of(forecast));
}

// Returns the product of a short and a long transfer's times, by which paths are compared; `time`
// is the long one's.
static __always_inline __u64 score_of(__u32 rtt, __u64 time)
{
	__u64 rounds = (__u64)PREDICT_ROUNDS * clamp_rtt(rtt);

	return (rounds + (time - rounds) / PREDICT_SHORT_DIVISOR) * time;
}

// Returns the score of an uplink's headroom at this RTT. Loss is left out: uplinks that lose much
// are not raced.
static __always_inline __u64 lossless_score(const struct uplink_forecast *forecast, __u32 rtt)
{
	rtt = clamp_rtt(loaded_rtt(forecast, rtt));
	return score_of(rtt, (__u64)PREDICT_ROUNDS * rtt +
				     PREDICT_TRANSFER_KILOBYTES * MILLION / headroom_of(forecast));
}

// Compares an uplink that has not answered the context's SYN within `waited` us with the best so
// far. Takes the path's known RTT or, without one, the mean RTT of the uplink's handshakes.
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
	if (path && path->rtt != RTT_TRIED_US && is_fresh(path, now))
		rtt = path->rtt;
	else if (counters && counters->rtt_samples)
		rtt = counters->rtt_us_sum / counters->rtt_samples;
	if (rtt < waited)
		rtt = waited;
	if (lossless_score(forecast, rtt) < ctx->best_default_time) {
		ctx->best_default_time = lossless_score(forecast, rtt);
		ctx->best_default = id;
	}
	return 0;
}

// Scores one uplink that the context's flow may be raced on. The results go into the context, so
// that the verifier does not follow them from one uplink to the next.
__noinline int score_candidate(__u32 id, __u64 now)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink = uplink_at(id);
	// Of the path, as far as it is known: verifiers of Linux 5.10 lose a pointer that may be
	// none.
	__u32 rtt = 0, packets = 0, lost = 0;
	struct path_entry *entry;
	struct path *path;
	__u64 score;

	if (!ctx || !forecast || id >= MAX_UPLINKS || !takes_flows(uplink, ctx->packet.family))
		return 0;
	ctx->usable |= 1u << id;
	entry = bpf_map_lookup_elem(&path_cache, &ctx->prefix);
	if (entry) {
		path = &entry->paths[uplink_index(id)];
		if (path->epoch == uplink->epoch && is_fresh(path, now)) {
			rtt = path->rtt;
			packets = path->packets;
			lost = path->lost;
		}
	}
	if (rtt == RTT_TRIED_US) {
		// It is known to QUIC alone.
		rtt = 0;
		if (is_quic(&ctx->packet)) {
			ctx->silent |= 1u << id;
			return 0;
		}
	}
	if (rtt == RTT_UNANSWERED_US) {
		ctx->silent |= 1u << id;
	} else if (ctx->lb_method == LB_FASTEST) {
		score = default_transfer_time(forecast);
		if (!ctx->best_default_time || score < ctx->best_default_time) {
			ctx->best_default_time = score;
			ctx->best_default = id;
		}
	}
	if (!rtt)
		return 0;
	score = rtt;
	if (ctx->lb_method == LB_FASTEST) {
		rtt = loaded_rtt(forecast, rtt);
		score = score_of(
			rtt, predict(rtt, loss_of(forecast, packets, lost), headroom_of(forecast)));
		ctx->scores[uplink_index(id)] = score;
	}
	if (!ctx->cached || score < ctx->best_time) {
		ctx->best_time = score;
		ctx->best = id;
	}
	ctx->cached |= 1u << id;
	return 0;
}

// Takes the uplink if its score equals the best one, or nearly, and no other such uplink has waited
// longer for a flow. The figures of equal uplinks differ by chance; by the figures alone the same
// one would be taken each time.
__noinline int take_turn(__u32 id)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || !forecast || id >= MAX_UPLINKS || !(ctx->cached & (1u << id)))
		return 0;
	if (ctx->scores[uplink_index(id)] >
		    ctx->best_time + ctx->best_time / PREDICT_EQUAL_DIVISOR ||
	    forecast->last_opened >= ctx->best_last_opened)
		return 0;
	ctx->best_last_opened = forecast->last_opened;
	ctx->best = id;
	return 0;
}

// Marks the uplink if a race on it is worthwhile: a SYN that came through first says nothing about
// headroom and loss. None is worthwhile where a SYN has just been left unanswered.
__noinline int check_worthwhile(__u32 id)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);

	if (!ctx || !forecast || id >= MAX_UPLINKS || !(ctx->usable & ~ctx->silent & (1u << id)))
		return 0;
	if (default_transfer_time(forecast) <= ctx->best_default_time * PREDICT_CROWDED_FACTOR)
		ctx->worthwhile |= 1u << id;
	return 0;
}

// Takes the uplink if its path is not known and no other such uplink has waited longer for a flow.
__noinline int take_unknown(__u32 id)
{
	struct uplink_forecast *forecast = bpf_map_lookup_elem(&forecasts, &id);
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx || !forecast || id >= MAX_UPLINKS ||
	    !(ctx->worthwhile & ~ctx->cached & ~ctx->silent & (1u << id)) ||
	    forecast->last_opened >= ctx->best_last_opened)
		return 0;
	ctx->best_last_opened = forecast->last_opened;
	ctx->uplink = id;
	return 0;
}

// Puts the context's QUIC flow on an uplink whose path is not known: it cannot be raced, but its
// answer gives the round trip. Until then others do not try it. Returns non-zero if there is none.
static __always_inline int try_unknown(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();

	if (!ctx)
		return -1;
	ctx->best_last_opened = ~0ull;
	for (__u32 id = 0; id < MAX_UPLINKS; id++)
		take_unknown(id);
	if (ctx->best_last_opened == ~0ull)
		return -1;
	store_stand_in(ctx->uplink, RTT_TRIED_US, now);
	return 0;
}

// Returns 1 for addresses that no uplink leads to, or always the same one.
static __always_inline int is_private(const struct address *remote)
{
	__u32 v4 = bpf_ntohl(remote->word[3]);

	if (!is_v4(remote))
		return (remote->word[0] & bpf_htonl(0xfe000000)) == bpf_htonl(0xfc000000);
	return v4 >> 24 == 10 || v4 >> 20 == 0xac1 || v4 >> 16 == 0xc0a8 || v4 >> 22 == 0x191;
}

// Returns 1 if copies of the context's packet may be sent: only for a bare SYN. A server could act
// twice on data sent with it (TCP Fast Open).
static __always_inline int may_race(const struct pkt_ctx *ctx)
{
	return ctx->packet.protocol == IPPROTO_TCP && ctx->packet.fragment == WHOLE &&
	       (ctx->packet.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN &&
	       !ctx->packet.payload && !ctx->is_moving && !is_private(&ctx->packet.dest);
}

// Takes one race from the prefix' budget for this second and from the total. Two CPUs may take the
// same one, which does no harm. Returns non-zero if the budget is used up.
static __always_inline int spend_race_budget(const struct pkt_ctx *ctx, __u64 now)
{
	__u32 zero = 0, second = now / NS_PER_SECOND;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);
	struct race_budget *all = bpf_map_lookup_elem(&race_budget, &zero);
	struct path_entry *entry = path_entry_of(&ctx->prefix);

	if (!config || !all || !entry)
		return -1;
	if (entry->second != second) {
		entry->second = second;
		entry->races = 0;
	}
	if (all->second != second) {
		all->second = second;
		all->races = 0;
	}
	if (entry->races >= config->per_prefix || all->races >= config->total) {
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

// Decides whether the context's flow is raced and, if so, leaves the candidates' bits in the
// context. Otherwise chooses from the cache, or leaves the slots' choice.
__noinline int choose_path(__u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 zero = 0, candidates, all, explore;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);

	if (!ctx || !config)
		return 0;
	candidates = ctx->candidates;
	ctx->candidates = 0;
	if (!has_several(candidates))
		return 0;
	if (ctx->retried && ctx->lb_method == LB_FASTEST)
		store_stand_in(ctx->retried - 1, RTT_UNANSWERED_US, now);
	path_key_of(&ctx->packet.dest, &ctx->prefix);
	ctx->usable = ctx->silent = ctx->cached = ctx->worthwhile = ctx->preferred = 0;
	ctx->best_default_time = 0;
	for (__u32 id = 0; id < MAX_UPLINKS; id++) {
		if (candidates & (1u << id))
			score_candidate(id, now);
	}
	if (!has_several(ctx->usable))
		return 0;
	if (ctx->lb_method == LB_FASTEST) {
		ctx->best_last_opened = ~0ull;
		for (__u32 id = 0; id < MAX_UPLINKS; id++) {
			take_turn(id);
			check_worthwhile(id);
		}
	} else {
		ctx->worthwhile = ctx->usable;
	}
	all = !(ctx->worthwhile & ~ctx->cached);
	explore =
		all && config->explore_one_in && !(bpf_get_prandom_u32() % config->explore_one_in);
	candidates = explore || ctx->retried ? ctx->usable : ctx->worthwhile;
	if (may_race(ctx) && (!all || explore || ctx->retried)) {
		if (has_several(candidates) && !spend_race_budget(ctx, now)) {
			if (explore && ctx->lb_method == LB_FASTEST)
				ctx->preferred = ctx->best + 1;
			if (candidates != ctx->usable)
				count(REASON_race_crowded);
			ctx->candidates = candidates;
			return 0;
		}
		if (!has_several(candidates)) {
			// The path by the only worthwhile uplink is unknown.
			ctx->best = ctx->best_default;
			ctx->cached = ctx->worthwhile;
		}
	}
	if (!all && is_quic(&ctx->packet) && !ctx->is_moving && !ctx->sticky && !try_unknown(now))
		return 0;
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
