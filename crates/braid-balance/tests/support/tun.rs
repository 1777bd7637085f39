//! A cable between two namespaces made of two TUN devices, as a point-to-point uplink without
//! Ethernet headers has them. The packets pass through this process with real checksums.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::thread;

use super::net::Namespace;

/// `TUNSETIFF` of linux/if_tun.h: `_IOW('T', 202, int)`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;

/// Joins `device_a` in `a` with `device_b` in `b`. Both vanish with their namespaces.
pub fn join(a: &Namespace, device_a: &str, b: &Namespace, device_b: &str) {
    let first = open(a, device_a);
    let second = open(b, device_b);
    let pairs = [
        (
            first.try_clone().expect("a second handle"),
            second.try_clone().expect("a second handle"),
        ),
        (second, first),
    ];
    for (mut from, mut to) in pairs {
        thread::spawn(move || {
            let mut packet = vec![0; 65536];
            // Reading fails once the namespace is gone; writing may fail while a device is down.
            while let Ok(length) = from.read(&mut packet) {
                let _ = to.write(&packet[..length]);
            }
        });
    }
    a.ip(&format!("link set {device_a} up"));
    b.ip(&format!("link set {device_b} up"));
}

fn open(namespace: &Namespace, device: &str) -> File {
    namespace.enter(|| {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .expect("tun");
        // SAFETY: all zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from.cast_signed();
        }
        let flags = libc::IFF_TUN | libc::IFF_NO_PI;
        request.ifr_ifru.ifru_flags = i16::try_from(flags).expect("16-bit flags");
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        assert!(result == 0, "{device}: {}", std::io::Error::last_os_error());
        file
    })
}
