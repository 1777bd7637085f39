//! The user's selection of uplinks.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Error, OWN_DEVICES};

/// The selection of uplink devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Every device that a default route of the main table leaves through.
    #[default]
    Automatic,
    /// Exactly these uplinks. Made by [`Selection::named`], which refuses contradictions.
    Named(Vec<UplinkSpec>),
}

/// One uplink of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkSpec {
    /// The user's name for it.
    pub name: String,
    /// Its network device.
    pub device: String,
    /// IPv4 settings that replace those of the kernel.
    pub v4: Override<Ipv4Addr>,
    /// IPv6 settings that replace those of the kernel.
    pub v6: Override<Ipv6Addr>,
}

/// Parts of a next hop that the configuration fixes. `None` means as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override<A> {
    /// The address to translate to; it must be on the device.
    pub address: Option<A>,
    /// The next hop. With it, no default route is needed.
    pub gateway: Option<A>,
}

impl<A> Default for Override<A> {
    fn default() -> Self {
        Override {
            address: None,
            gateway: None,
        }
    }
}

impl Selection {
    /// Exactly the uplinks given; an empty list is [`Selection::Automatic`].
    ///
    /// # Errors
    /// [`Error::DuplicateName`], [`Error::SharedDevice`] or [`Error::OwnDevice`].
    pub fn named(wanted: Vec<UplinkSpec>) -> Result<Selection, Error> {
        if wanted.is_empty() {
            return Ok(Selection::Automatic);
        }
        for (i, second) in wanted.iter().enumerate() {
            if OWN_DEVICES.contains(&second.device.as_str()) {
                return Err(Error::OwnDevice {
                    name: second.name.clone(),
                    device: second.device.clone(),
                });
            }
            for first in &wanted[..i] {
                if first.name == second.name {
                    return Err(Error::DuplicateName(second.name.clone()));
                }
                if first.device == second.device {
                    return Err(Error::SharedDevice {
                        first: first.name.clone(),
                        second: second.name.clone(),
                        device: second.device.clone(),
                    });
                }
            }
        }
        Ok(Selection::Named(wanted))
    }
}
