//! Keys and values of the maps that `bpf/select` chooses by: rules, names of remote addresses, sticky clients.

use std::mem::{offset_of, size_of};

use super::Address;
use crate::generated::MAX_RULES;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct FactsValue {
    pub source: Address,
    pub dest: Address,
    pub protocol: u8,
    pub family: u8,
    pub dscp: u8,
    pub known: u8,
    pub mac: [u8; 6],
    pub unused: [u8; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RuleValue {
    pub value: FactsValue,
    pub mask: FactsValue,
    pub names: u64,
    pub cgroup: u64,
    pub uid_low: u32,
    pub uid_span: u32,
    pub source_low: u16,
    pub source_span: u16,
    pub dest_low: u16,
    pub dest_span: u16,
    pub class: u8,
    pub unused: [u8; 7],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RuleBank {
    pub count: u32,
    pub needs: u32,
    pub rule: [RuleValue; MAX_RULES as usize],
}

const _: () = {
    assert!(size_of::<FactsValue>() == 44);
    assert!(offset_of!(FactsValue, protocol) == 32);
    assert!(offset_of!(FactsValue, mac) == 36);
    assert!(size_of::<RuleValue>() == 128);
    assert!(offset_of!(RuleValue, names) == 88);
    assert!(offset_of!(RuleValue, uid_low) == 104);
    assert!(offset_of!(RuleValue, source_low) == 112);
    assert!(offset_of!(RuleValue, class) == 120);
    assert!(size_of::<RuleBank>() == 8 + 128 * MAX_RULES as usize);
};

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DnsNameValue {
    pub rules: u64,
    pub expires: u64,
    pub site: u32,
    pub unused: u32,
}

const _: () = {
    assert!(size_of::<DnsNameValue>() == 24);
    assert!(offset_of!(DnsNameValue, site) == 16);
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub(crate) struct StickyKey {
    pub client: Address,
    pub site: Address,
    pub class: u8,
    pub unused: [u8; 3],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct StickyValue {
    pub used: u64,
    pub uplink: u8,
    pub unused: [u8; 7],
}

const _: () = {
    assert!(size_of::<StickyKey>() == 36);
    assert!(offset_of!(StickyKey, class) == 32);
    assert!(size_of::<StickyValue>() == 16);
    assert!(offset_of!(StickyValue, uplink) == 8);
};

// SAFETY: repr(C), integers and arrays of them only, every byte is a named field, every bit pattern is a value.
unsafe impl aya::Pod for RuleBank {}
// SAFETY: the same.
unsafe impl aya::Pod for DnsNameValue {}
// SAFETY: the same.
unsafe impl aya::Pod for StickyKey {}
// SAFETY: the same.
unsafe impl aya::Pod for StickyValue {}
