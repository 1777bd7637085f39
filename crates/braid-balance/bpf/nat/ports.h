// Choice of source ports on an uplink, safe against other CPUs.
#ifndef BRAID_PORTS_H
#define BRAID_PORTS_H

#include "packet/parse.h"

#define EXISTS	   (-17) // -EEXIST
#define TABLE_FULL (-7)	 // -E2BIG

// Returns 1 if a reverse entry's owner is `key`. The entry's own key has the remote and the
// protocol.
static __always_inline int is_owner(const struct tuple *owner, const struct tuple *key)
{
	return same_address(&owner->local, &key->local) && owner->local_port == key->local_port;
}

// Takes the reverse entry for `owner`. Returns non-zero if it is taken. Established flows' entries
// are checked before and after the insertion, because an embryo may be promoted in between.
static __always_inline int claim(const struct tuple *reverse, const struct tuple *owner)
{
	if (bpf_map_lookup_elem(&flows_reverse, reverse))
		return -1;
	if (bpf_map_update_elem(&embryos_reverse, reverse, owner, BPF_NOEXIST))
		return -1;
	if (bpf_map_lookup_elem(&flows_reverse, reverse)) {
		bpf_map_delete_elem(&embryos_reverse, reverse);
		return -1;
	}
	return 0;
}

// Takes the context's reverse entry from an embryo; from an answered one only if `any`. The embryo
// that loses it finds out with its next packet from inside and opens anew. Returns non-zero if the
// entry belongs to an established flow.
__noinline int take_over(__u32 any)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct tuple *owner, loser;
	struct flow *embryo;

	if (!ctx || bpf_map_lookup_elem(&flows_reverse, &ctx->reverse))
		return -1;
	owner = bpf_map_lookup_elem(&embryos_reverse, &ctx->reverse);
	if (!owner)
		return claim(&ctx->reverse, &ctx->key);
	loser = *owner;
	embryo = bpf_map_lookup_elem(&embryos, &loser);
	if (embryo && embryo->state != STATE_NEW && embryo->state != STATE_RESET && !any)
		return -1;
	if (bpf_map_update_elem(&embryos_reverse, &ctx->reverse, &ctx->key, BPF_ANY))
		return -1;
	// It may have been promoted in between.
	if (bpf_map_lookup_elem(&flows_reverse, &ctx->reverse)) {
		bpf_map_delete_elem(&embryos_reverse, &ctx->reverse);
		return -1;
	}
	bpf_map_delete_elem(&embryos, &loser);
	count(REASON_port_taken_over);
	return 0;
}

enum socket_kind { NO_SOCKET, UNBOUND_SOCKET, BOUND_SOCKET };

// Looks up this machine's own socket for a packet with these ends, and whether it is bound to an
// address.
static __always_inline enum socket_kind
socket_of(struct __sk_buff *skb, const struct packet *packet, const struct tuple *reverse)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 size, bound;

	if (packet->family == FAMILY_V4) {
		tuple.ipv4.saddr = reverse->remote.word[3];
		tuple.ipv4.daddr = reverse->local.word[3];
		tuple.ipv4.sport = reverse->remote_port;
		tuple.ipv4.dport = reverse->local_port;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &reverse->remote, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &reverse->local, 16);
		tuple.ipv6.sport = reverse->remote_port;
		tuple.ipv6.dport = reverse->local_port;
		size = sizeof(tuple.ipv6);
	}
	if (packet->protocol == IPPROTO_TCP)
		socket = bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else if (packet->protocol == IPPROTO_UDP)
		socket = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		return NO_SOCKET;
	if (!socket)
		return NO_SOCKET;
	bound = packet->family == FAMILY_V4 ? socket->src_ip4
					    : socket->src_ip6[0] | socket->src_ip6[1] |
						      socket->src_ip6[2] | socket->src_ip6[3];
	bpf_sk_release(socket);
	return bound ? BOUND_SOCKET : UNBOUND_SOCKET;
}

// Returns 1 if this machine has a socket of its own that would receive what comes for the context's
// reverse key. The lookup also finds the sender's own unconnected socket, which is bound to no
// address.
__noinline int socket_in_the_way(struct __sk_buff *skb)
{
	struct pkt_ctx *ctx = pkt_ctx();
	enum socket_kind found;

	if (!ctx)
		return 0;
	found = socket_of(skb, &ctx->packet, &ctx->reverse);
	return found == BOUND_SOCKET || (found && skb->ingress_ifindex);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP ||
	       protocol == IPPROTO_ICMPV6;
}

// Claims the context's reverse key with the port of its uplink that this number falls on; the later
// the attempt, the more of those that have it are pushed out. A function of its own is verified
// once, not once per attempt.
__noinline int try_port(__u32 number, __u32 attempt)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct uplink *uplink;
	__u32 port;

	if (!ctx)
		return -1;
	uplink = uplink_at(ctx->uplink);
	if (!uplink || uplink->port_high < uplink->port_low)
		return -1;
	port = uplink->port_low + number % (uplink->port_high - uplink->port_low + 1u);
	// RTP and RTCP take neighbouring ports, the even one first (RFC 4787 REQ-4).
	if (ctx->key.protocol == IPPROTO_UDP)
		port ^= (port ^ bpf_ntohs(ctx->key.local_port)) & 1;
	if (port < uplink->port_low || port > uplink->port_high)
		return -1;
	ctx->reverse.local_port = bpf_htons(port);
	if (!claim(&ctx->reverse, &ctx->key))
		return 0;
	if (attempt < PORT_TRIES_FREE)
		return -1;
	return take_over(attempt >= PORT_TRIES_UNANSWERED);
}

// Claims the context's reverse key with a suitable port, without regard to sockets: the client's
// own if `own` is set and it is free (applications expect it, and it needs no search), otherwise a
// random one: a predictable port would help those who forge answers (RFC 6056). The random number
// is read here and not at the entry point, because most packets belong to a known flow and most new
// flows keep their port.
__noinline int take_port(__u32 own)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 number, stride;

	if (!ctx)
		return -1;
	ctx->reverse.local_port = ctx->key.local_port;
	if (own && !claim(&ctx->reverse, &ctx->key))
		return 0;
	if (!has_ports(ctx->key.protocol))
		return -1;
	number = bpf_get_prandom_u32();
	stride = (number >> 16) | 1;
	for (__u32 attempt = 0; attempt < PORT_TRIES; attempt++) {
		if (!try_port(number, attempt))
			return 0;
		number += stride;
	}
	return -1;
}

// Releases the context's reverse key if it still belongs to its flow.
static __always_inline void release_port(const struct pkt_ctx *ctx)
{
	struct tuple *owner = bpf_map_lookup_elem(&embryos_reverse, &ctx->reverse);

	if (owner && is_owner(owner, &ctx->key))
		bpf_map_delete_elem(&embryos_reverse, &ctx->reverse);
}

// Completes the context's reverse key with a port and claims it. Sockets are looked up here and in
// few rounds, because kernels that cannot verify a function with a packet alone verify it once for
// each round (src/programs/loading.rs). Flows to neighbours take reserved ports only: this
// machine's own sockets reach the same hosts directly and by the same address, and the kernel never
// gives them a reserved port.
__noinline int claim_port(struct __sk_buff *skb)
{
	struct pkt_ctx *ctx = pkt_ctx();
	__u32 own;

	if (!ctx)
		return -1;
	own = ctx->choice != CHOICE_ON_LINK || !has_ports(ctx->key.protocol);
	for (int round = 0; round < PORT_ROUNDS; round++) {
		if (take_port(own && !round))
			return -1;
		if (!socket_in_the_way(skb)) {
			if (ctx->reverse.local_port != ctx->key.local_port)
				count(REASON_port_changed);
			return 0;
		}
		release_port(ctx);
	}
	return -1;
}

#endif
