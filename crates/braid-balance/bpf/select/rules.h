// The class of traffic of a new flow: that of the first rule that it matches.
//
// A rule is a comparison under a mask, ranges, and sets. The facts of a flow are gathered once;
// those that take a lookup only if some rule needs them. The Rust twin is RuleEntry::matches.
#ifndef BRAID_RULES_H
#define BRAID_RULES_H

#include "select/dns_names.h"

// Facts that rules compare under a mask.
struct facts {
	struct address source;
	struct address dest;
	__u8 protocol;
	__u8 family;
	__u8 dscp;
	__u8 known; // KNOWS_*
	__u8 mac[6];
	__u8 unused[2];
};

#define FACT_WORDS (sizeof(struct facts) / 4)

// Rules that one call tries.
#define RULES_AT_ONCE 15
_Static_assert(MAX_RULES % RULES_AT_ONCE == 0, "rules are tried to the last");

struct rule {
	struct facts value;
	struct facts mask;
	__u64 names;  // one of these marks must be on the remote address; 0: any
	__u64 cgroup; // the socket's, or an ancestor; 0: any
	__u32 uid_low;
	__u32 uid_span;
	__u16 source_low; // ports in host order
	__u16 source_span;
	__u16 dest_low;
	__u16 dest_span;
	__u8 class;
	__u8 unused[7];
};

struct rule_bank {
	__u32 count;
	__u32 needs; // NEEDS_*
	struct rule rule[MAX_RULES];
};

// The flow that rules are compared with. Not part of the layout.
struct subject {
	struct facts facts;
	__u32 uid;
	__u64 names;
	__u64 cgroups[CGROUP_LEVELS + 1]; // the socket's own first; 0: no such level
	__u16 source_port;		  // host order
	__u16 dest_port;
};

_Static_assert(sizeof(struct facts) == 44, "facts");
_Static_assert(__builtin_offsetof(struct facts, protocol) == 32, "facts.protocol");
_Static_assert(__builtin_offsetof(struct facts, mac) == 36, "facts.mac");
_Static_assert(sizeof(struct rule) == 128, "rule");
_Static_assert(__builtin_offsetof(struct rule, names) == 88, "rule.names");
_Static_assert(__builtin_offsetof(struct rule, uid_low) == 104, "rule.uid_low");
_Static_assert(__builtin_offsetof(struct rule, source_low) == 112, "rule.source_low");
_Static_assert(__builtin_offsetof(struct rule, class) == 120, "rule.class");
_Static_assert(sizeof(struct rule_bank) == 8 + 128 * MAX_RULES, "rule_bank");

// Two banks, and the number of the active one.
ARRAY_MAP(rules, BPF_MAP_TYPE_ARRAY, 2, struct rule_bank);
ARRAY_MAP(rules_active, BPF_MAP_TYPE_ARRAY, 1, __u32);
// Link-layer addresses of clients, in the first six bytes.
HASH_MAP(client_macs, BPF_MAP_TYPE_LRU_HASH, 0, MAX_CLIENT_MACS, struct address, __u64);
ARRAY_MAP(subjects, BPF_MAP_TYPE_PERCPU_ARRAY, 1, struct subject);

static __always_inline __u32 bank_in_force(void)
{
	__u32 zero = 0, *active = bpf_map_lookup_elem(&rules_active, &zero);

	return active ? *active & 1 : 0;
}

static __always_inline __u8 dscp_of(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 *first = at(skb, packet->l3, 2);

	if (!first)
		return 0;
	if (packet->family == FAMILY_V4)
		return first[1] >> 2;
	return (first[0] & 0xf) << 2 | first[1] >> 6;
}

// Reads the facts of the host's own socket. Packets of a LAN have none.
static __always_inline void look_at_socket(struct __sk_buff *skb, struct subject *subject,
					   __u32 needs)
{
	if (skb->ingress_ifindex || !skb->sk)
		return;
	subject->uid = bpf_get_socket_uid(skb);
	subject->facts.known |= KNOWS_UID;
	if (!(needs & NEEDS_CGROUP))
		return;
	subject->cgroups[0] = bpf_skb_cgroup_id(skb);
	// Level 0 is the root, which every cgroup is below.
	for (int level = 1; level <= CGROUP_LEVELS; level++)
		subject->cgroups[level] = bpf_skb_ancestor_cgroup_id(skb, level);
}

// Fills the subject from the context's packet.
static __always_inline void look_at_flow(struct __sk_buff *skb, struct pkt_ctx *ctx,
					 struct subject *subject, __u32 needs, __u64 now)
{
	const struct packet *packet = &ctx->packet;

	__builtin_memset(subject, 0, sizeof(*subject));
	subject->facts.source = packet->source;
	subject->facts.dest = packet->dest;
	subject->facts.protocol = packet->protocol;
	subject->facts.family = packet->family;
	subject->facts.dscp = dscp_of(skb, packet);
	if (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP) {
		subject->facts.known = KNOWS_PORTS;
		subject->source_port = bpf_ntohs(packet->source_port);
		subject->dest_port = bpf_ntohs(packet->dest_port);
	}
	look_at_socket(skb, subject, needs);
	if ((needs & NEEDS_MAC) && skb->ingress_ifindex) {
		__u64 *known = bpf_map_lookup_elem(&client_macs, &packet->source);

		if (known) {
			__builtin_memcpy(subject->facts.mac, known, 6);
			subject->facts.known |= KNOWS_MAC;
		}
	}
	if (needs & NEEDS_NAMES) {
		struct dns_name *name = name_of(&packet->dest, now);

		if (name)
			subject->names = name->rules;
	}
}

static __always_inline int is_in_cgroup(const struct subject *flow, __u64 cgroup)
{
	int found = 0;

	for (int level = 0; level <= CGROUP_LEVELS; level++)
		found |= flow->cgroups[level] == cgroup;
	return found;
}

static __always_inline int satisfies(const struct subject *flow, const struct rule *rule)
{
	const __u32 *fact = (const __u32 *)&flow->facts;
	const __u32 *mask = (const __u32 *)&rule->mask, *value = (const __u32 *)&rule->value;
	__u32 difference = 0;

	for (int i = 0; i < FACT_WORDS; i++)
		difference |= (fact[i] & mask[i]) ^ value[i];
	if (difference)
		return 0;
	// A value below the range wraps to above its span.
	if ((__u16)(flow->source_port - rule->source_low) > rule->source_span ||
	    (__u16)(flow->dest_port - rule->dest_low) > rule->dest_span ||
	    flow->uid - rule->uid_low > rule->uid_span)
		return 0;
	if (rule->names && !(rule->names & flow->names))
		return 0;
	return !rule->cgroup || is_in_cgroup(flow, rule->cgroup);
}

// Compares the subject with some rules of a bank, starting at `first`. Returns non-zero if one of
// them matches and has set the class of the context's flow. A function of its own is verified once,
// not once per rule.
__noinline int try_rules(__u32 number, __u32 first)
{
	struct rule_bank *bank = bpf_map_lookup_elem(&rules, &number);
	struct pkt_ctx *ctx = pkt_ctx();
	struct subject *subject;
	__u32 zero = 0;

	subject = bpf_map_lookup_elem(&subjects, &zero);
	if (!bank || !ctx || !subject || first > MAX_RULES - RULES_AT_ONCE)
		return 0;
	for (int i = 0; i < RULES_AT_ONCE; i++) {
		const struct rule *rule = &bank->rule[first + i];

		if (first + i >= bank->count)
			return 0;
		if (satisfies(subject, rule)) {
			ctx->class = rule->class & (CLASSES - 1);
			ctx->rule = first + i + 1;
			return 1;
		}
	}
	return 0;
}

// Sets the class of the context's flow.
__noinline int classify(struct __sk_buff *skb, __u64 now)
{
	struct pkt_ctx *ctx = pkt_ctx();
	struct rule_bank *bank;
	struct subject *subject;
	__u32 zero = 0, number;

	if (!ctx)
		return -1;
	ctx->class = 0;
	ctx->rule = 0;
	number = bank_in_force();
	bank = bpf_map_lookup_elem(&rules, &number);
	subject = bpf_map_lookup_elem(&subjects, &zero);
	if (!bank || !subject || !bank->count)
		return 0;
	look_at_flow(skb, ctx, subject, bank->needs, now);
	for (__u32 first = 0; first < MAX_RULES; first += RULES_AT_ONCE) {
		if (first >= bank->count || try_rules(number, first))
			break;
	}
	return 0;
}

// Learns the link-layer address of a LAN's client, for rules that match it. Only for packets that
// go to the stack: a flow on the fast path has its class already.
static __always_inline void learn_mac(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 number = bank_in_force();
	struct rule_bank *bank = bpf_map_lookup_elem(&rules, &number);
	__u64 *known, seen = 0;
	struct ethhdr *ethernet;

	if (!bank || !(bank->needs & NEEDS_MAC))
		return;
	ethernet = at(skb, 0, sizeof(*ethernet));
	if (!ethernet)
		return;
	__builtin_memcpy(&seen, ethernet->h_source, 6);
	known = bpf_map_lookup_elem(&client_macs, &packet->source);
	if (!known || *known != seen)
		bpf_map_update_elem(&client_macs, &packet->source, &seen, BPF_ANY);
}

#endif
