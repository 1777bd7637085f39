// The last packets that a flow's inside has sent. When the flow's uplink dies, sending them again
// by another one moves the flow there without waiting for the inside: a client that only downloads
// over QUIC sends nothing once nothing arrives, and one that waits for an answer repeats its
// request late.
//
// The very last packet is not enough. A client that receives nothing sends probes (RFC 9002 section
// 6.2.4), which acknowledge nothing. The acknowledgements in flight when the uplink died are lost
// with it. The server therefore takes everything since for in flight, finds its congestion window
// full, and may send neither data nor the path challenge until its own probe time-out, which has
// doubled meanwhile. So packets sent after receiving something are kept apart from unsolicited
// ones.
#ifndef BRAID_REPLAY_BUFFER_H
#define BRAID_REPLAY_BUFFER_H

#include "flow/flow.h"

// Returns the slot for a packet: the older of the two for its kind.
static __always_inline struct stored_packet *replay_slot(struct replay_buffer *stored, __u64 heard)
{
	struct stored_packet *place =
		stored->rx_packets == heard ? stored->unsolicited : stored->after_receive;

	stored->rx_packets = heard;
	return place[1].at < place[0].at ? &place[1] : &place[0];
}

static __always_inline int store_packet(struct __sk_buff *skb, const struct packet *packet,
					struct stored_packet *stored, __u32 length, __u64 now)
{
	stored->at = now;
	stored->length = length;
	// Again, because the verifier has lost the bound; and one less, because verifiers before
	// Linux 6.8 learn from bounds alone that it is not 0.
	length--;
	asm volatile("%0 &= 0x1ff" : "+r"(length));
	if (length >= MAX_REPLAY_BYTES)
		return -1;
	return bpf_skb_load_bytes(skb, packet->l3, stored->bytes, length + 1);
}

// Stores the packet, before its translation, in place of an older one. A reader may see half of it;
// the checksum shows that, unless a device was to complete it.
static __noinline int store_for_replay(struct __sk_buff *skb, const struct packet *packet,
				       const struct tuple *key, __u64 now,
				       const struct found *found)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct replay_buffer *stored;
	struct stored_packet *question;
	__u32 length;

	if (!packet || !key || !found || !ctx)
		return -1;
	length = packet->l4 - packet->l3 + packet->l4_header + packet->payload;
	if (!length || length > MAX_REPLAY_BYTES)
		return 0;
	if (!found->assured) {
		question = bpf_map_lookup_elem(&replay_embryos, key);
		if (question)
			return store_packet(skb, packet, question, length, now);
		question = ctx->replay.after_receive;
		if (store_packet(skb, packet, question, length, now))
			return -1;
		return bpf_map_update_elem(&replay_embryos, key, question, BPF_ANY);
	}
	if (!found->flow)
		return -1;
	stored = bpf_map_lookup_elem(&replay_buffers, key);
	if (stored)
		return store_packet(skb, packet, replay_slot(stored, found->flow->rx_packets),
				    length, now);
	stored = &ctx->replay;
	for (int i = 0; i < 2; i++) {
		stored->after_receive[i].at = stored->after_receive[i].length = 0;
		stored->unsolicited[i].at = stored->unsolicited[i].length = 0;
	}
	stored->rx_packets = found->flow->rx_packets;
	if (store_packet(skb, packet, stored->after_receive, length, now))
		return -1;
	return bpf_map_update_elem(&replay_buffers, key, stored, BPF_ANY);
}

// Returns 1 if replaying the packet may help: it is short, no super-packet, and belongs to QUIC or
// to a flow that has not been answered.
static __always_inline int is_replayable(const struct __sk_buff *skb, const struct packet *packet,
					 const struct found *found)
{
	if (skb->gso_size || packet->fragment != WHOLE || packet->payload > MAX_REPLAY_BYTES)
		return 0;
	if (packet->protocol == IPPROTO_UDP)
		return found->flow->state == STATE_NEW || (found->assured && is_quic(packet));
	return packet->tcp_flags & TCP_SYN && found->flow->state == STATE_NEW;
}

#endif
