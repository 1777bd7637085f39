// Upcalls: packets that are passed to the daemon through a ring buffer. A full ring, or a flood
// from one source, costs upcalls and nothing else.
#ifndef BRAID_UPCALL_H
#define BRAID_UPCALL_H

#include "packet/fragment.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UPCALL_RING_BYTES);
} upcalls SEC(".maps");

// Fragments of a source that were passed on recently.
struct upcall_quota {
	__u64 since; // ns of the monotonic clock
	__u32 used;
	__u32 unused;
};

HASH_MAP(upcall_quotas, BPF_MAP_TYPE_LRU_HASH, 0, MAX_UPCALL_QUOTAS, struct address,
	 struct upcall_quota);

// Returns 1 if the source may have another fragment held.
static __always_inline int may_hold(const struct address *source, __u64 now)
{
	struct upcall_quota *known = bpf_map_lookup_elem(&upcall_quotas, source);
	struct upcall_quota fresh = {.since = now, .used = 1};

	if (!known || now - known->since > UPCALL_QUOTA_SECONDS * 1000000000ull) {
		bpf_map_update_elem(&upcall_quotas, source, &fresh, BPF_ANY);
		return 1;
	}
	known->used++; // no atomic: a few more do no harm
	return known->used <= MAX_HELD_FRAGMENTS_PER_SOURCE;
}

// Passes a copy of the packet to the daemon; bits 16 and up of `kind_at` are the offset of the
// payload from the IP header. Of a refused packet only the beginning is copied, with its ingress
// device in place of the fragment's id. Returns non-zero if the upcall was dropped.
static __noinline int send_upcall(struct __sk_buff *skb, const struct packet *packet,
				  const struct address *to, __u64 now, __u32 kind_at)
{
	struct upcall *upcall;
	__u32 length, device = skb->ingress_ifindex;

	// Read here: the verifier rejects a pointer to one or the other.
	asm volatile("" : "+r"(device));
	if (!packet || !to)
		return -1;
	length = skb->len - packet->l3;
	if ((kind_at & 0xff) == UPCALL_REFUSED && length > REFUSAL_QUOTE_BYTES)
		length = REFUSAL_QUOTE_BYTES;
	if (!length || length > MAX_UPCALL_BYTES)
		goto lost;
	upcall = bpf_ringbuf_reserve(&upcalls, sizeof(*upcall), 0);
	if (!upcall)
		goto lost;
	upcall->at = now;
	upcall->key.source = packet->source;
	upcall->key.dest = *to;
	upcall->key.id = packet->fragment_id;
	upcall->key.protocol = packet->family == FAMILY_V4 ? packet->protocol : 0;
	if ((kind_at & 0xff) == UPCALL_REFUSED) {
		upcall->key.id = device;
		upcall->key.protocol = packet->protocol;
	}
	upcall->key.inbound = !!(kind_at & UPCALL_INBOUND);
	upcall->key.realm = packet->realm;
	upcall->key.unused[0] = 0;
	upcall->length = length;
	upcall->kind = kind_at & 0xff;
	upcall->start = kind_at >> 16;
	upcall->unused = 0;
	// One less, because verifiers before Linux 6.8 learn from bounds alone that it is not 0.
	length--;
	asm volatile("%0 &= 0xfff" : "+r"(length));
	if (length >= MAX_UPCALL_BYTES ||
	    bpf_skb_load_bytes(skb, packet->l3, upcall->bytes, length + 1)) {
		bpf_ringbuf_discard(upcall, 0);
		goto lost;
	}
	bpf_ringbuf_submit(upcall, 0);
	return 0;
lost:
	count(REASON_upcall_lost);
	return -1;
}

// Passes on a later fragment whose first one has not come; the daemon holds it until then. Not 0:
// it was not passed on.
static __always_inline int hold_fragment(struct __sk_buff *skb, const struct packet *packet,
					 __u64 now, __u32 inbound)
{
	if (skb->len - packet->l3 > MAX_UPCALL_BYTES) {
		count(REASON_fragment_wide);
		return -1;
	}
	// Sources can be forged: their fragments must leave room for the answers of resolvers.
	if (bpf_ringbuf_query(&upcalls, BPF_RB_AVAIL_DATA) > UPCALL_RING_BYTES / 2 ||
	    !may_hold(&packet->source, now)) {
		count(REASON_upcall_lost);
		return -1;
	}
	return send_upcall(skb, packet, &packet->dest, now, UPCALL_FRAGMENT | inbound);
}

// For each sender the time up to which its error allowance is used, ns of the monotonic clock and
// at most REFUSAL_BURST intervals ahead of it.
HASH_MAP(refused, BPF_MAP_TYPE_LRU_HASH, 0, MAX_REFUSED_SENDERS, struct address, __u64);

// Returns 1 if the sender may cause another error.
static __always_inline int may_send_refusal(const struct address *source, __u64 now)
{
	__u64 ahead = now + REFUSAL_BURST * (__u64)REFUSAL_INTERVAL_NS,
	      fresh = now + REFUSAL_INTERVAL_NS;
	__u64 *used = bpf_map_lookup_elem(&refused, source);

	if (!used) {
		bpf_map_update_elem(&refused, source, &fresh, BPF_ANY);
		return 1;
	}
	if (*used < now)
		*used = now;
	if (ahead - *used < REFUSAL_INTERVAL_NS)
		return 0;
	*used += REFUSAL_INTERVAL_NS; // no atomic: one more does no harm
	return 1;
}

// Makes the daemon tell the sender that its packet is not sent (RFC 5508 REQ-8). ICMP messages are
// never answered with an error here. Packets that find the ring half full, or come too often, are
// dropped silently, as in the kernel.
static __noinline int upcall_refused(struct __sk_buff *skb, const struct packet *packet, __u64 now)
{
	if (!packet || is_icmp(packet) || packet->fragment == LATER_FRAGMENT ||
	    bpf_ringbuf_query(&upcalls, BPF_RB_AVAIL_DATA) > UPCALL_RING_BYTES / 2 ||
	    !may_send_refusal(&packet->source, now))
		return -1;
	return send_upcall(skb, packet, &packet->dest, now, UPCALL_REFUSED);
}

// The beginning of a question's name.
struct asked_name {
	__u8 name[DNS_NAME_BYTES];
};

ARRAY_MAP(asked_name, BPF_MAP_TYPE_PERCPU_ARRAY, 1, struct asked_name);

// Returns a hash of the fields that the DNS question at `at` and its answer share: the id, and the
// name regardless of case. 0: the message is truncated.
__noinline __u32 hash_dns_question(struct __sk_buff *skb, __u32 at)
{
	__u32 zero = 0, length, hash = 2166136261u, i;
	struct asked_name *asked = bpf_map_lookup_elem(&asked_name, &zero);
	__u16 id;

	if (!asked)
		return 0;
	if (bpf_skb_load_bytes(skb, at, &id, sizeof(id)))
		return 0;
	at += DNS_HEADER;
	if (skb->len <= at)
		return 0;
	length = skb->len - at;
	if (length > DNS_NAME_BYTES)
		length = DNS_NAME_BYTES;
	// As in send_upcall(), for verifiers that learn nothing from "not 0".
	length--;
	asm volatile("%0 &= 0x3f" : "+r"(length));
	length++;
	if (bpf_skb_load_bytes(skb, at, asked->name, length))
		return 0;
	for (i = 0; i < DNS_NAME_BYTES; i++) {
		// Zero is the root's label, which ends the name.
		if (i >= length || !asked->name[i])
			break;
		hash = (hash ^ (asked->name[i] | 0x20)) * 16777619u;
	}
	hash = hash << 16 | id;
	return hash ? hash : 1;
}

static __always_inline __u32 dns_question_of(struct __sk_buff *skb, const struct packet *packet)
{
	return hash_dns_question(skb, packet->l4 + sizeof(struct udphdr));
}

// Remembers a DNS question, so that names are only learned from the answer to a recent question.
// The last four of a socket are kept in the fields of a TCP flow's sequence numbers; 0: none.
static __always_inline void note_dns_question(struct __sk_buff *skb, const struct packet *packet,
					      struct flow *flow, __u64 now)
{
	__u32 question = dns_question_of(skb, packet), at = now >> DNS_QUESTION_SHIFT;

	if (!question)
		return;
	if (at - flow->seen > DNS_QUESTION_LIFE)
		flow->inside_ack = flow->inside_next = flow->outside_next = 0;
	flow->seen = at;
	flow->lost = flow->outside_next;
	flow->outside_next = flow->inside_next;
	flow->inside_next = flow->inside_ack;
	flow->inside_ack = question;
}

// Returns 1 if an answer is to one of these questions; each counts once.
static __always_inline int matches_question(struct flow *flow, __u32 question, __u64 now)
{
	__u32 at = now >> DNS_QUESTION_SHIFT;

	if (!question || at - flow->seen > DNS_QUESTION_LIFE)
		return 0;
	if (flow->inside_ack == question)
		flow->inside_ack = 0;
	else if (flow->inside_next == question)
		flow->inside_next = 0;
	else if (flow->outside_next == question)
		flow->outside_next = 0;
	else if (flow->lost == question)
		flow->lost = 0;
	else
		return 0;
	return 1;
}

// Passes an answer to one of these questions to the daemon, if DNS is snooped.
static __noinline int snoop_dns_answer(struct __sk_buff *skb, const struct packet *packet,
				       struct flow *flow, const struct address *to, __u64 now)
{
	__u32 zero = 0, start;
	struct settings *config = bpf_map_lookup_elem(&settings, &zero);

	if (!config || !config->snoops_dns || !packet || !flow || !to ||
	    packet->fragment != WHOLE || flow->remote_port != packet->source_port ||
	    !same_address(&flow->remote, &packet->source) ||
	    !matches_question(flow, dns_question_of(skb, packet), now))
		return 0;
	start = packet->l4 - packet->l3 + sizeof(struct udphdr);
	return send_upcall(skb, packet, to, now, UPCALL_DNS | UPCALL_INBOUND | start << 16);
}

#endif
