//! Layer-3 paths.

use std::path::Path;

use super::*;
use crate::l3_paths::L3Paths;
use crate::probe;
use crate::shared::{PROBE_PORT, PROBE_REPLY};

const SYN: u8 = 0x02;

/// The paths of the edge at `10.1.0.0/24`; if `turned`, those of the edge at the other end.
fn file(turned: bool) -> L3Paths {
    let words = match turned {
        false => ["local", "remote"],
        true => ["remote", "local"],
    };
    let [local, remote] = words;
    let text = format!(
        r#"
        [[edge]]
        name = "four"
        {local} = "10.1.0.0/24"
        {remote} = "10.2.0.0/24"
        [[edge.path]]
        {local} = "192.0.2.0/24"
        {remote} = "198.51.100.0/24"
        [[edge]]
        name = "six"
        {local} = "fd01:1::/64"
        {remote} = "fd01:2::/64"
        [[edge.path]]
        {local} = "2001:db8:1::/64"
        {remote} = "2001:db8:2::/64"
    "#
    );
    L3Paths::read(Path::new("paths.toml"), &text).expect("a file")
}

const TAGS: [u16; 2] = [2, 3];

pub(super) fn routed(turned: bool, tag_action: TagAction) -> Trial {
    let trial = Trial::new(Layer::Three);
    let l3_paths = file(turned);
    trial.0.borrow_mut().set_l3_paths(&l3_paths).expect("paths");
    let egress: Vec<Egress> = l3_paths
        .edges
        .iter()
        .map(|edge| Egress {
            target: edge.name.clone(),
            hosts: Vec::new(),
            slots: vec![edge.paths[0].tag; SLOTS as usize],
            shim: false,
            max_rate_bit_s: 0,
            paths: Vec::new(),
        })
        .collect();
    trial.0.borrow_mut().set_egress(&egress).expect("tables");
    trial
        .0
        .borrow_mut()
        .set_tag_actions(TAGS.map(|tag| (tag, tag_action)))
        .expect("treatments");
    trial
}

/// Commands for a namespace with default routes.
pub(super) const ROUTES: &str = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip link set lo up
    ip link add out type veth peer name beyond
    ip link set beyond up
    ip link set out up
    ip address add 172.16.0.1/24 dev out
    ip address add fd99::1/64 dev out nodad
    ip route add default via 172.16.0.2
    ip -6 route add default via fd99::2";

/// Runs `work` in such a namespace.
fn with_routes<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    in_namespace(ROUTES, work)
}

/// Prefixes of hosts and of their path, by family, here and there.
pub(super) const INNER: [[&str; 2]; 2] = [["10.1.0.0", "10.2.0.0"], ["fd01:1::", "fd01:2::"]];
pub(super) const OUTER: [[&str; 2]; 2] = [
    ["192.0.2.0", "198.51.100.0"],
    ["2001:db8:1::", "2001:db8:2::"],
];

fn host(prefix: &str, number: u64) -> IpAddr {
    match ip(prefix) {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) | (number as u32 & 0xff)).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) | u128::from(number)).into()),
    }
}

/// Builds a packet of a kind between two hosts of these prefixes.
pub(super) fn packet(prefixes: [&str; 2], hosts: [u64; 2], kind: u8, payload: &[u8]) -> Vec<u8> {
    let [local, remote] = [0, 1].map(|end| host(prefixes[end], hosts[end]));
    let four = local.is_ipv4();
    match kind % 5 {
        0 => build::segment(
            (local, 7),
            (remote, 443),
            [hosts[0] as u32, 9],
            ACK,
            payload,
        ),
        1 => build::udp((local, 7), (remote, 443), payload),
        2 if four => {
            let mut packet = build::udp((local, 7), (remote, 443), payload);
            packet[26..28].fill(0);
            packet
        }
        3 if four => {
            let mut packet = build::packet(local, remote, 17, payload.to_vec(), None);
            // A later fragment: no header, whatever its bytes look like.
            packet[7] = 1;
            packet[10..12].fill(0);
            let sum = braid_packet::checksum::of(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet
        }
        4 => build::icmp(local, remote, if four { 8 } else { 128 }, 0, 7, payload),
        _ => build::packet(local, remote, 47, payload.to_vec(), None),
    }
}

#[test]
fn what_goes_and_comes_over_layer_3_paths() {
    with_routes(|| {
        let local = routed(false, TagAction::Resequence);
        let (from, to) = ends();
        let elsewhere = build::udp(from, (ip("10.3.0.1"), 53), b"?");
        let somebody = build::udp((ip("10.9.0.1"), 1), to, b"?");
        for packet in [elsewhere, somebody] {
            let out = local.run("braid_route_out", &framed(&packet));
            assert_eq!(out.is(Verdict::Passed, "no_l3_path").frame, framed(&packet));
        }
        let long = local.run("braid_route_out", &framed(&data(1461)));
        assert_eq!(
            long.is(Verdict::Passed, "too_long").frame,
            framed(&data(1461))
        );

        let path = [(ip("198.51.100.9"), 443), (ip("192.0.2.7"), 4000)];
        let inner = [to, from];
        let tcp = |flags, ends: [(IpAddr, u16); 2], payload: &[u8]| {
            build::tcp(ends[0], ends[1], flags, payload)
        };
        for (flags, payload, reason) in [
            (ACK, b"data".as_slice(), "to_resequencer"),
            (SYN, b"", "to_resequencer"),
            (ACK, b"", "forwarded"),
        ] {
            let out = local.run("braid_route_in", &framed(&tcp(flags, path, payload)));
            let out = out.is(Verdict::Sent, reason);
            assert_eq!(out.packet(), tcp(flags, inner, payload));
        }
        let stranger = build::udp((ip("203.0.113.1"), 53), path[1], b"!");
        local
            .run("braid_route_in", &framed(&stranger))
            .is(Verdict::Passed, "no_l3_path");
        let mine = build::udp(path[0], (ip("172.16.0.1"), 53), b"!");
        local
            .run("braid_route_in", &framed(&mine))
            .is(Verdict::Passed, "no_l3_path");
        local
            .run("braid_route_ord", &framed(&tcp(ACK, inner, b"data")))
            .is(Verdict::Sent, "resequenced");
    });
}

#[test]
fn a_question_goes_back_as_an_answer() {
    with_routes(|| {
        let remote = routed(true, TagAction::Forward);
        for [near_address, far_address] in
            OUTER.map(|prefixes| prefixes.map(|prefix| host(prefix, 1)))
        {
            let port = PROBE_PORT as u16;
            let asked = build::udp(
                (near_address, port),
                (far_address, port),
                &probe::request(77),
            );
            let out = remote
                .run("braid_route_in", &framed(&asked))
                .is(Verdict::Sent, "probe");
            let mut said = probe::request(77);
            said[5] = PROBE_REPLY as u8;
            assert_eq!(
                out.packet(),
                build::udp((far_address, port), (near_address, port), &said)
            );
            assert_eq!(
                (&out.frame[..6], &out.frame[6..12]),
                (&MACS[6..], &MACS[..6])
            );
            assert_eq!(probe::parse_reply(out.packet()), Some(77));
            // At the probing edge the reply goes to the prober, under the path's tag.
            let local = routed(false, TagAction::Forward);
            let back = local
                .run("braid_route_in", &framed(out.packet()))
                .is(Verdict::Sent, "probe");
            assert_eq!(back.packet(), out.packet());
        }
    });
}

#[test]
fn routers_errors_quote_what_the_host_has_sent() {
    with_routes(|| {
        let local = routed(false, TagAction::Forward);
        for (family, router) in ["172.16.0.2", "fd99::2"].into_iter().enumerate() {
            let [inner, outer] = [INNER, OUTER].map(|of| packet(of[family], [7, 9], 0, b"data"));
            // IPv4 and IPv6 routers quote at least this much.
            for quoted in [28 + 20 * family, outer.len()] {
                let said = build::port_unreachable(
                    ip(router),
                    host(OUTER[family][0], 7),
                    &outer[..quoted],
                );
                let out = local
                    .run("braid_route_in", &framed(&said))
                    .is(Verdict::Passed, "error");
                let read = Packet::parse(out.packet()).expect("an error");
                assert_eq!(read.ip.dest, host(INNER[family][0], 7));
                let quote = &read.segment()[8..];
                let header = if family == 0 { 20 } else { 40 };
                assert_eq!(quote[..header], inner[..header]);
                assert_eq!(quote.len(), quoted);
            }
            // About somebody else's packet it is somebody else's.
            let other = packet([OUTER[family][0], INNER[family][1]], [7, 9], 0, b"data");
            let said = build::port_unreachable(ip(router), host(OUTER[family][0], 7), &other);
            local
                .run("braid_route_in", &framed(&said))
                .is(Verdict::Passed, "no_l3_path");
        }
    });
}
