// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The flow datapath, one object. The programs of the four hooks are in the headers named after
// them. The entry points fetch the time and call one inline function each.
#include "hooks/inbound.h"
#include "hooks/lan.h"
#include "hooks/outbound.h"
#include "hooks/shape.h"

SEC("classifier")
int braid_outbound(struct __sk_buff *skb)
{
	return outbound(skb, bpf_ktime_get_ns());
}

SEC("classifier")
int braid_inbound(struct __sk_buff *skb)
{
	return inbound(skb, bpf_ktime_get_ns());
}

SEC("classifier")
int braid_lan(struct __sk_buff *skb)
{
	return lan(skb, bpf_ktime_get_ns());
}

SEC("classifier")
int braid_shape(struct __sk_buff *skb)
{
	return shape(skb, bpf_ktime_get_ns());
}

// The kernel reserves bpf_fib_lookup for programs under the GPL, hence the choice of licences.
char _license[] SEC("license") = "GPL";
