// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The edge's packet path, one object: what the hooks do is in the headers named after them.
#include "join.h"
#include "route_in.h"
#include "route_out.h"
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

// The same for layer-3 paths.
SEC("classifier")
int braid_route_out(struct __sk_buff *skb)
{
	return route_out(skb);
}

SEC("classifier")
int braid_route_in(struct __sk_buff *skb)
{
	struct settings *device = devices();

	return device ? route_in(skb, device) : leave(REASON_unset, TC_ACT_SHOT);
}

SEC("classifier")
int braid_route_ord(struct __sk_buff *skb)
{
	return route_ordered(skb);
}

char _license[] SEC("license") = "GPL";
