// Probes of tagged paths, edge to edge. The program at a path's end returns a probe at once, over
// the path of the other direction that the probe names, and reports in it what came last by each of
// the paths that the probe asks about: the nonce of a probe, and how old data are. So one reply, by
// whatever path, tells of all paths, and no thread of this edge takes part. Behind the reports it
// tells whether copies are kept (struct offer), and how many packets had come when those probes did
// (struct path_counts): a path is first in, first out, so of all that was sent before a probe the
// rest is lost. Probes of earlier versions have no room for these.
#ifndef BRAID_EDGE_PATH_PROBE_H
#define BRAID_EDGE_PATH_PROBE_H

#include <bpf/bpf_endian.h>
#include "maps.h"

// Time for which the next data are not noted: a map that all processors write is slow, ns.
#define DATA_NOTE_INTERVAL_NS 1000000ULL

// See src/probe.rs. Layer-3 paths have no reports, and no tag.
struct probe {
	__be32 magic;
	__be16 kind;
	__be16 return_tag; // tag of the path by which the reply is to come
	__be32 nonce[2];
};

// Asked about: the tag. Reported: the rest.
struct path_report {
	__be16 tag; // 0: none
	__be16 data_age_ms;
	__be32 nonce; // second half of that of the last probe
};

struct path_probe {
	struct shim shim;
	struct probe probe;
	struct path_report reports[MAX_PATHS];
};

// Behind the offer: for each report the packets that had come by the path before that probe, apart
// from probes, and one more, modulo 2^32; 0: not told.
struct path_counts {
	__be32 packets[MAX_PATHS];
};
_Static_assert(sizeof(struct path_counts) == PATH_COUNT_BYTES * MAX_PATHS, "counts");
_Static_assert(sizeof(struct probe) == PROBE_BYTES, "probe");
_Static_assert(sizeof(struct offer) == OFFER_BYTES, "offer");
_Static_assert(sizeof(struct path_report) == PATH_REPORT_BYTES, "report");

// Returns true for a probe, by the protocol in its shim.
static __always_inline int is_path_probe(struct __sk_buff *skb)
{
	__be16 inner;

	return !bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct shim, protocol), &inner,
				   sizeof(inner)) &&
	       inner == bpf_htons(ETH_P_SHIM);
}

// Notes that data came by a path.
static __always_inline void note_data(__u32 tag, __u32 packets)
{
	struct last_arrival *arrival = bpf_map_lookup_elem(&last_arrivals, &tag);
	__u64 now = bpf_ktime_get_ns();

	if (!arrival)
		return;
	__sync_fetch_and_add(&arrival->packets, packets);
	if (now - arrival->data_at >= DATA_NOTE_INTERVAL_NS)
		arrival->data_at = now;
}

static __always_inline void report_path(struct path_report *report, __be32 *packets, __u64 now)
{
	__u32 tag = bpf_ntohs(report->tag) & (VLANS - 1);
	struct last_arrival *arrival = bpf_map_lookup_elem(&last_arrivals, &tag);
	__u64 age_ms, probe;

	*packets = 0;
	report->nonce = 0;
	report->data_age_ms = bpf_htons(NO_DATA_AGE);
	if (!arrival)
		return;
	probe = arrival->probe;
	report->nonce = probe;
	*packets = report->nonce ? bpf_htonl((probe >> 32) + 1) : 0;
	age_ms = now > arrival->data_at ? (now - arrival->data_at) / 1000000 : 0;
	if (arrival->data_at && age_ms < NO_DATA_AGE)
		report->data_age_ms = bpf_htons(age_ms);
}

// Handles a probe that came by the path `tag`: answers a request, and passes a reply on.
static __always_inline int handle_path_probe(struct __sk_buff *skb, struct settings *settings,
					     __u32 tag)
{
	struct last_arrival *arrival;
	struct path_probe path_probe;
	struct path_counts counts;
	struct offer *offer;
	__u64 now = bpf_ktime_get_ns();
	__u32 back;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &path_probe, sizeof(path_probe)) ||
	    path_probe.probe.magic != bpf_htonl(PROBE_MAGIC))
		return leave(REASON_bad_probe, TC_ACT_SHOT);
	if (path_probe.probe.kind == bpf_htons(PROBE_REPLY) ||
	    path_probe.probe.kind == bpf_htons(PROBE_MISSING))
		return leave(REASON_probe, bpf_redirect(settings->hold, 0));
	back = bpf_ntohs(path_probe.probe.return_tag);
	// A nonce of 0 would say that no probe has come yet.
	if (path_probe.probe.kind != bpf_htons(PROBE_REQUEST) || !path_probe.probe.nonce[1] ||
	    !back || back >= VLANS - 1)
		return leave(REASON_bad_probe, TC_ACT_SHOT);
	arrival = bpf_map_lookup_elem(&last_arrivals, &tag);
	if (arrival)
		arrival->probe = arrival->packets << 32 | path_probe.probe.nonce[1];
#pragma unroll
	for (int i = 0; i < MAX_PATHS; i++)
		report_path(&path_probe.reports[i], &counts.packets[i], now);
	offer = bpf_map_lookup_elem(&offers, &back);
	if (offer && now < settings->offers_end_ns)
		bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(path_probe), offer, sizeof(*offer), 0);
	bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(path_probe) + sizeof(*offer), &counts,
			    sizeof(counts), 0);
	path_probe.probe.kind = bpf_htons(PROBE_REPLY);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &path_probe, sizeof(path_probe), 0) ||
	    bpf_skb_vlan_pop(skb) || bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), back))
		return leave(REASON_rewrite_failed, TC_ACT_SHOT);
	return leave(REASON_probe, bpf_redirect(settings->outside, 0));
}

#endif
