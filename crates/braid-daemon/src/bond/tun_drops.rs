//! Packets that the bond's device dropped because its queue was not read in time.

use std::fs;
use std::io;

/// Statistics of the devices of this network namespace, one a line: proc_net(5).
const DEVICES: &str = "/proc/self/net/dev";

/// Column of packets dropped while sending.
const DROPPED: usize = 11;

/// Returns the drops of a device.
///
/// # Errors
/// The device does not exist, or the file cannot be parsed.
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
