//! The programs run on one packet at a time (`BPF_PROG_TEST_RUN`): packet in, verdict, reason and
//! packet out.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Instant;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use braid_balance::{Datapath, HookKind, Options, REASONS, Reason, ReasonKind};
use braid_packet::Packet;

use super::net::PATIENCE;
use super::world::World;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of `struct __sk_buff` that we fill: up to and with `ifindex`.
const CONTEXT: usize = 44;

/// A program's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Next program, then the stack.
    Passed,
    Dropped,
    /// Sent out of another device.
    Sent,
}

/// A packet's fate.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The one exit that was counted.
    pub reason: &'static str,
    /// Other things counted on the way.
    pub events: Vec<&'static str>,
    /// The IP packet afterwards.
    pub packet: Vec<u8>,
}

impl Outcome {
    #[track_caller]
    pub fn is(self, verdict: Verdict, reason: &str) -> Self {
        assert_eq!((self.verdict, self.reason), (verdict, reason));
        self
    }

    /// The packet's headers; its checksums must be right.
    #[track_caller]
    pub fn read(&self) -> Packet<'_> {
        let packet = Packet::parse(&self.packet).expect("a readable packet");
        assert!(packet.checksums_hold(), "wrong checksum in {packet:x?}");
        packet
    }
}

/// A datapath in a world whose devices carry nothing.
pub struct Probe {
    pub world: World,
    pub datapath: RefCell<Datapath>,
    options: Options,
    programs: [SchedClassifier; 4],
    steer: u32,
    wans: [u32; 2],
    lan: u32,
    lan_mac: [u8; 6],
}

impl Probe {
    pub fn new() -> Self {
        Self::with_room(4096)
    }

    /// With room for so many established flows.
    pub fn with_room(max_flows: u32) -> Self {
        let world = World::new();
        let options = Options {
            max_flows,
            ..world.options(HookKind::Auto)
        };
        let (datapath, _) = world.start(&options);
        // Off the devices again: neighbour discovery is counted too, when it likes.
        let links = world.pin_dir().join("datapath/links");
        for link in std::fs::read_dir(links).expect("pinned links") {
            std::fs::remove_file(link.expect("a link").path()).expect("unpinned");
        }
        // The kernel takes a link down some time after its last reference went.
        let deadline = Instant::now() + PATIENCE;
        while !world.run_ids().is_empty() {
            assert!(Instant::now() < deadline, "programs stay on the devices");
        }
        let open = |name| {
            let path = world.pin_dir().join("datapath/programs").join(name);
            SchedClassifier::from_pin(path).expect("pinned")
        };
        let programs = [
            "braid_outbound",
            "braid_inbound",
            "braid_lan",
            "braid_shape",
        ]
        .map(open);
        let devices = ["braid0", "wan0", "wan1", "lan0"].map(|name| world.host.ifindex(name));
        let lan_mac = mac(&world.host.ip("link show lan0"));
        Self {
            world,
            datapath: RefCell::new(datapath),
            options,
            programs,
            steer: devices[0],
            wans: [devices[1], devices[2]],
            lan: devices[3],
            lan_mac,
        }
    }

    /// Returns true if the kernel's test run accepts the packet: it requires a whole IP header.
    pub fn takes(packet: &[u8]) -> bool {
        packet.len()
            >= if packet.first().is_some_and(|byte| byte >> 4 == 6) {
                40
            } else {
                20
            }
    }

    /// Out of the host itself.
    pub fn out(&self, packet: &[u8]) -> Outcome {
        self.run(0, packet, self.steer, 0)
    }

    /// Out of a client, as the stack forwards it.
    pub fn forwarded(&self, packet: &[u8]) -> Outcome {
        self.run(0, packet, self.steer, self.lan)
    }

    /// Out of somebody on an uplink's segment, as the stack forwards it.
    pub fn forwarded_from(&self, uplink: usize, packet: &[u8]) -> Outcome {
        self.run(0, packet, self.steer, self.wans[uplink])
    }

    /// In by an uplink.
    pub fn back(&self, uplink: usize, packet: &[u8]) -> Outcome {
        self.run(1, packet, self.wans[uplink], self.wans[uplink])
    }

    /// In by a device of any index.
    pub fn back_by(&self, device: u32, packet: &[u8]) -> Outcome {
        self.run(1, packet, device, device)
    }

    /// In by the LAN.
    pub fn lan(&self, packet: &[u8]) -> Outcome {
        self.run(2, packet, self.lan, self.lan)
    }

    /// Out by an uplink, whose egress shapes it. Returns the verdict and the packet afterwards.
    pub fn shaped(&self, uplink: usize, packet: &[u8]) -> (Verdict, Vec<u8>) {
        let frame = self.frame(packet);
        let (verdict, frame) = self.raw(3, &frame, self.wans[uplink], 0, 1).0;
        let verdict = match verdict {
            u32::MAX => Verdict::Passed,
            2 => Verdict::Dropped,
            other => panic!("verdict {other}"),
        };
        (verdict, frame[ETHERNET..].to_vec())
    }

    fn run(&self, program: usize, packet: &[u8], device: u32, ingress: u32) -> Outcome {
        let frame = self.frame(packet);
        let before = self.counts();
        let (verdict, frame) = self.raw(program, &frame, device, ingress, 1).0;
        let mut counted: Vec<&Reason> = Vec::new();
        for ((reason, before), after) in REASONS.iter().zip(before).zip(self.counts()) {
            counted.extend((before..after).map(|_| reason));
        }
        let next_hops: Vec<_> = counted
            .iter()
            .filter(|reason| reason.kind != ReasonKind::Event)
            .collect();
        assert_eq!(next_hops.len(), 1, "one exit for one packet: {next_hops:?}");
        let verdict = match verdict {
            u32::MAX => Verdict::Passed,
            2 => Verdict::Dropped,
            7 => Verdict::Sent,
            other => panic!("verdict {other}"),
        };
        let expected = match next_hops[0].kind {
            ReasonKind::Sent => Verdict::Sent,
            ReasonKind::Dropped => Verdict::Dropped,
            _ => Verdict::Passed,
        };
        assert_eq!(verdict, expected, "what {:?} promises", next_hops[0].name);
        Outcome {
            verdict,
            reason: next_hops[0].name,
            events: counted
                .iter()
                .filter(|reason| reason.kind == ReasonKind::Event)
                .map(|reason| reason.name)
                .collect(),
            packet: frame[ETHERNET..].to_vec(),
        }
    }

    /// Mean time of a program on a packet, in nanoseconds. Each run sees what the one before left.
    pub fn nanoseconds(&self, program: usize, packet: &[u8], repeat: u32) -> u128 {
        let (device, ingress) = match program {
            0 => (self.steer, 0),
            1 => (self.wans[0], self.wans[0]),
            _ => (self.lan, self.lan),
        };
        self.raw(program, &self.frame(packet), device, ingress, repeat)
            .1
    }

    fn raw(
        &self,
        program: usize,
        frame: &[u8],
        device: u32,
        ingress: u32,
        repeat: u32,
    ) -> ((u32, Vec<u8>), u128) {
        let mut context = [0; CONTEXT];
        context[36..40].copy_from_slice(&ingress.to_ne_bytes());
        context[40..44].copy_from_slice(&device.to_ne_bytes());
        let mut out = vec![0; frame.len() + 256];
        let program = &self.programs[program];
        let result = self.world.host.enter(|| {
            program.test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                repeat,
                ..TestRunOptions::new()
            })
        });
        let result = result.expect("a test run (needs root)");
        out.truncate(result.data_size_out as usize);
        ((result.return_value, out), result.duration.as_nanos())
    }

    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        let kind: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
            Some(6) => [0x86, 0xdd],
            _ => [0x08, 0x00],
        };
        let mut frame = self.lan_mac.to_vec();
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(kind);
        frame.extend(packet);
        frame
    }

    /// Every reason's count, in order.
    fn counts(&self) -> Vec<u64> {
        let counters = self.datapath.borrow().counters().expect("counters");
        counters
            .reasons
            .into_iter()
            .map(|(_, count)| count)
            .collect()
    }

    /// The same tables for another thread.
    pub fn another_datapath(&self) -> Datapath {
        let (opened, _) = Datapath::open(&self.options).expect("the pinned datapath");
        opened
    }

    /// The flow of an inner end.
    pub fn flow(&self, inner: (IpAddr, u16)) -> Option<braid_balance::Flow> {
        let flows = self.datapath.borrow().flows().expect("flows");
        flows
            .into_iter()
            .find(|flow| (flow.inner.ip(), flow.inner.port()) == inner)
    }
}

/// The link-layer address in what `ip link` says.
pub fn mac(link: &str) -> [u8; 6] {
    let text = link
        .split("link/ether ")
        .nth(1)
        .expect("an Ethernet device");
    let mut bytes = text
        .split([':', ' '])
        .map(|part| u8::from_str_radix(part, 16));
    std::array::from_fn(|_| bytes.next().and_then(Result::ok).expect("six bytes"))
}
