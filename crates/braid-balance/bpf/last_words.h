// What a flow's inside has said last. When its uplink dies, saying it again by another one moves
// the flow there without waiting for the inside: a client that only downloads over QUIC has nothing
// to say once nothing comes any more, and one that waits for an answer repeats its question late.
//
// The very last packet is not enough. A client that hears nothing probes (RFC 9002 section 6.2.4),
// and its probe acknowledges nothing. The acknowledgements that were on their way when the uplink
// died are lost with it, so its server takes everything since for in flight, finds its congestion
// window full, and may send neither data nor the challenge to the new path until its own probe
// time-out, which has doubled meanwhile. So what was said upon hearing something is kept apart from
// what was said unasked.
#ifndef BRAID_LAST_WORDS_H
#define BRAID_LAST_WORDS_H

#include "flow.h"

// Where to note a packet: in the older place of the two that are for such.
static __always_inline struct words *place_in(struct last_words *words, __u64 heard)
{
	struct words *place = words->heard == heard ? words->unasked : words->upon_hearing;

	words->heard = heard;
	return place[1].at < place[0].at ? &place[1] : &place[0];
}

static __always_inline int store_words(struct __sk_buff *skb, const struct packet *packet,
				       struct words *words, __u32 length, __u64 now)
{
	words->at = now;
	words->length = length;
	// Again, because the verifier has lost sight of it; and one less, because those before
	// Linux 6.8 learn from bounds alone that it is not 0.
	length--;
	asm volatile("%0 &= 0x1ff" : "+r"(length));
	if (length >= LAST_WORDS)
		return -1;
	return bpf_skb_load_bytes(skb, packet->l3, words->bytes, length + 1);
}

// Notes the packet, before its translation, in place of an older one. A reader may see half of it,
// which its checksum tells, unless a device was to complete that.
static __noinline int note_words(struct __sk_buff *skb, const struct packet *packet,
				 const struct tuple *key, __u64 now, const struct found *found)
{
	struct workbench *work = workbench();
	struct last_words *words;
	struct words *question;
	__u32 length;

	if (!packet || !key || !found || !work)
		return -1;
	length = packet->l4 - packet->l3 + packet->l4_header + packet->payload;
	if (!length || length > LAST_WORDS)
		return 0;
	if (!found->kept) {
		question = bpf_map_lookup_elem(&questions, key);
		if (question)
			return store_words(skb, packet, question, length, now);
		question = work->words.upon_hearing;
		if (store_words(skb, packet, question, length, now))
			return -1;
		return bpf_map_update_elem(&questions, key, question, BPF_ANY);
	}
	if (!found->flow)
		return -1;
	words = bpf_map_lookup_elem(&last_words, key);
	if (words)
		return store_words(skb, packet, place_in(words, found->flow->rx_packets), length,
				   now);
	words = &work->words;
	for (int i = 0; i < 2; i++) {
		words->upon_hearing[i].at = words->upon_hearing[i].length = 0;
		words->unasked[i].at = words->unasked[i].length = 0;
	}
	words->heard = found->flow->rx_packets;
	if (store_words(skb, packet, words->upon_hearing, length, now))
		return -1;
	return bpf_map_update_elem(&last_words, key, words, BPF_ANY);
}

// Whether saying it again may be of use: it is short and no super-packet, and of QUIC, or a
// question that nobody has answered.
static __always_inline int worth_noting(const struct __sk_buff *skb, const struct packet *packet,
					const struct found *found)
{
	if (skb->gso_size || packet->fragment != WHOLE || packet->payload > LAST_WORDS)
		return 0;
	if (packet->protocol == IPPROTO_UDP)
		return found->flow->state == STATE_NEW ||
		       (found->kept && packet->dest_port == bpf_htons(QUIC_PORT));
	return packet->tcp_flags & TCP_SYN && found->flow->state == STATE_NEW;
}

#endif
