//! What the bond's device dropped of what was sent to it, since nobody took it from its queue in time.

use std::fs;
use std::io;

/// The devices of this network namespace, a line each: proc_net(5).
const DEVICES: &str = "/proc/self/net/dev";

/// Where in a line the packets are that were dropped on the way out.
const DROPPED: usize = 11;

/// Reads it of a device.
///
/// # Errors
/// There is no such device, or the kernel's words could not be read.
pub fn tun_drops(device: &str) -> io::Result<u64> {
    of(&fs::read_to_string(DEVICES)?, device).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn of(devices: &str, device: &str) -> Option<u64> {
    let mut lines = devices.lines().filter_map(|line| line.split_once(':'));
    let (_, figures) = lines.find(|(name, _)| name.trim() == device)?;
    figures.split_whitespace().nth(DROPPED)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_fourth_figure_on_the_way_out() {
        let devices = "Inter-|   Receive    |  Transmit\n face |bytes packets errs drop fifo frame \
                       compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
                       lo:  10 1 0 0 0 0 0 0  10 1 0 0 0 0 0 0\n\
                       braid-bond: 1288 28 0 2 0 0 0 0 108296336 541504 0 594369 0 0 0 0\n";
        assert_eq!(of(devices, "braid-bond"), Some(594_369));
        assert_eq!(of(devices, "lo"), Some(0));
        assert_eq!(of(devices, "bond"), None);
        assert_eq!(of("", "lo"), None);
        assert!(tun_drops("lo").is_ok(), "as this kernel writes it");
    }
}
