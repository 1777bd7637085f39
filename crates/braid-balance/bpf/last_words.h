// What a flow's inside has said last. When its uplink dies, saying it again by another one moves
// the flow there without waiting for the inside: a client that only downloads over QUIC has nothing
// to say once nothing comes any more, and one that waits for an answer repeats its question late.
#ifndef BRAID_LAST_WORDS_H
#define BRAID_LAST_WORDS_H

#include "flow.h"

// Notes the packet, before its translation, in place of the one before. A reader may see half of
// it; its checksum tells.
static __noinline int note_words(struct __sk_buff *skb, const struct packet *packet,
				 const struct tuple *key, __u64 now, __u32 kept)
{
	struct last_words *words;
	struct workbench *work;
	__u32 length;

	if (!packet || !key)
		return -1;
	length = packet->l4 - packet->l3 + packet->l4_header + packet->payload;
	if (!length || length > LAST_WORDS)
		return 0;
	if (kept)
		words = bpf_map_lookup_elem(&last_words, key);
	else
		words = bpf_map_lookup_elem(&questions, key);
	work = words ? NULL : workbench();
	if (!words && !work)
		return -1;
	if (!words)
		words = &work->words;
	words->at = now;
	words->length = length;
	// Again, because the verifier has lost sight of it.
	asm volatile("%0 &= 0x1ff" : "+r"(length));
	if (!length || length > LAST_WORDS ||
	    bpf_skb_load_bytes(skb, packet->l3, words->bytes, length))
		return -1;
	if (!work)
		return 0;
	return kept ? bpf_map_update_elem(&last_words, key, &work->words, BPF_ANY)
		    : bpf_map_update_elem(&questions, key, &work->words, BPF_ANY);
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
