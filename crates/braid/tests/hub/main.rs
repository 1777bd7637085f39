//! The real `braid hub` on real packets: clients of `braid_bond::io` behind two lines each, and an
//! internet that does not know the inner networks. Needs root.

mod attacked;
mod coming_in;
mod full_disk;
mod key_rotation;
#[path = "../../../braid-balance/tests/support/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;
mod privileges;
mod quotas;
mod running;
mod sealed;
mod staying_out;
mod world;
