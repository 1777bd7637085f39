// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The edge's packet path, one object: what the hooks do is in the headers named after them.
#include "join.h"
#include "split.h"

SEC("classifier")
int braid_split(struct __sk_buff *skb)
{
	struct settings *device = devices();

	return device ? split(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

SEC("classifier")
int braid_join(struct __sk_buff *skb)
{
	struct settings *device = devices();

	return device ? join(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

// Ingress of the resequencer's device: what it hands on.
SEC("classifier")
int braid_ordered(struct __sk_buff *skb)
{
	struct settings *device = devices();

	return device ? leave(REASON_ordered, bpf_redirect(device->inside, 0))
		      : leave(REASON_unset, TC_ACT_SHOT);
}

char _license[] SEC("license") = "GPL";
