//! Loading, adopting, upgrading, refusing, removing: what an instance does to the machine.

use std::net::SocketAddr;
use std::time::Duration;

use aya::maps::{Array, Map, MapData};
use aya::programs::SchedClassifier;
use aya::programs::links::PinnedLink;
use braid_balance::{
    Attachments, Datapath, Error, FlowState, HookKind, KernelTime, Opened, Options, Removed,
    TCP_ESTABLISHED_IDLE, TCP_TRANSITORY_IDLE, remove,
};

use crate::support::net::{Client, ask, serve, udp_socket};
use crate::support::world::{OUTSIDE, PORT, SERVER_V4, World, reason};

const SERVER: SocketAddr = SocketAddr::new(SERVER_V4, PORT);
/// Offsets in `struct meta` of bpf/layout.h.
const META_LAYOUT: usize = 0;
const META_PROGRAMS: usize = 8;

/// Changes a byte of what the pinned maps say about who pinned them.
fn pretend(world: &World, offset: usize) {
    let path = world.pin_dir().join("datapath/maps/meta");
    let map = Map::from_map_data(MapData::from_pin(path).expect("pinned")).expect("a map");
    let mut meta: Array<_, [u8; 40]> = Array::try_from(map).expect("an array");
    let mut value = meta.get(&0, 0).expect("an entry");
    value[offset] ^= 1;
    meta.set(0, value, 0).expect("writable");
}

/// Loading takes as long as the verifier takes, some microseconds for each instruction that it looks
/// at, and twice as many if a rare way is followed once per way that leads there.
#[test]
fn the_verifier_is_soon_done() {
    let world = World::new();
    let (_datapath, _) = world.start(&world.options(HookKind::Auto));
    let verified = ["braid_outbound", "braid_inbound", "braid_lan"].map(|name| {
        let path = world.pin_dir().join("datapath/programs").join(name);
        let program = SchedClassifier::from_pin(path).expect("pinned");
        let info = program.info().expect("a program");
        info.verified_instruction_count()
            .expect("Linux 5.16 or newer")
    });
    assert!(verified.iter().sum::<u32>() < 200_000, "{verified:?}");
}

#[test]
fn a_new_process_adopts_flows_and_attachments() {
    let world = World::new();
    world.serve();
    let options = world.options(HookKind::Auto);
    let (datapath, opened) = world.start(&options);
    assert_eq!(opened, Opened::Fresh);
    let mut client = world.client.enter(|| Client::connect(SERVER));
    client.echo(&[1; 10_000]);
    drop(datapath);
    client.echo(&[2; 10_000]);
    let (datapath, opened) = world.start(&options);
    assert_eq!(opened, Opened::Adopted);
    client.echo(&[3; 10_000]);
    let flows = datapath.flows().expect("flows");
    assert!(
        flows
            .iter()
            .any(|flow| flow.outer == client.seen && flow.assured)
    );
}

#[test]
fn another_build_of_the_same_layout_replaces_the_programs() {
    for hook in [HookKind::Auto, HookKind::Clsact] {
        let world = World::new();
        world.serve();
        let options = world.options(hook);
        let (datapath, _) = world.start(&options);
        let mut client = world.host.enter(|| Client::connect(SERVER));
        drop(datapath);
        pretend(&world, META_PROGRAMS);
        let before = world.run_ids();
        let opened = world
            .host
            .enter(|| Datapath::open(&options))
            .expect("an upgrade")
            .1;
        assert_eq!(
            opened,
            Opened::Upgraded {
                from: env!("CARGO_PKG_VERSION").into()
            }
        );
        assert_ne!(
            world.run_ids(),
            before,
            "the attached programs are new ones"
        );
        client.echo(&[4; 10_000]);
        let (_, opened) = Datapath::open(&options).expect("the upgraded one");
        assert_eq!(opened, Opened::Adopted);
    }
}

#[test]
fn another_layout_is_refused_with_the_way_out() {
    let world = World::new();
    let options = world.options(HookKind::Auto);
    drop(world.start(&options));
    pretend(&world, META_LAYOUT);
    let error = Datapath::open(&options).err().expect("a refusal");
    assert!(matches!(error, Error::Layout { .. }), "{error}");
    assert!(error.to_string().contains("braid down"), "{error}");
}

#[test]
fn somebody_elses_program_is_named_and_left_alone() {
    let world = World::new();
    let (_first, _) = world.start(&world.options(HookKind::Auto));
    let options = Options::new(world.pin_dir().with_file_name("second"));
    let (mut second, _) = Datapath::open(&options).expect("loading");
    let attachments = world.attachments();
    let error = world
        .host
        .enter(|| second.attach(&attachments))
        .expect_err("a refusal");
    let text = error.to_string();
    assert!(
        text.contains("braid0 egress") && text.contains("braid_outbound"),
        "{text}"
    );

    let coexist = Options {
        coexist: true,
        ..options
    };
    let (mut second, _) = Datapath::open(&coexist).expect("adopting");
    world
        .host
        .enter(|| second.attach(&attachments))
        .expect("side by side");
    world
        .host
        .enter(|| remove(&coexist.pin_dir))
        .expect("removal");
    assert!(world.run_ids().len() >= 4, "the first one's programs stay");
}

#[test]
fn a_filter_of_tc_is_somebody_elses_too() {
    let world = World::new();
    world.host.run("tc qdisc add dev wan1 clsact");
    world
        .host
        .run("tc filter add dev wan1 ingress protocol ip u32 match ip dst 192.0.2.1 classid 1:");
    let (mut datapath, _) = Datapath::open(&world.options(HookKind::Auto)).expect("loading");
    let attachments = world.attachments();
    let error = world
        .host
        .enter(|| datapath.attach(&attachments))
        .expect_err("a refusal");
    assert!(
        error.to_string().contains("wan1 ingress: program \"u32\""),
        "{error}"
    );
}

#[test]
fn removal_leaves_nothing_and_may_be_repeated() {
    for hook in [HookKind::Auto, HookKind::Clsact] {
        let world = World::new();
        let before = world.host.run("tc qdisc show");
        let (mut datapath, _) = world.start(&world.options(hook));
        let mut shaped = world.attachments();
        shaped.shaped = shaped.uplinks.clone();
        let attached = world.host.enter(|| datapath.attach(&shaped));
        attached.expect("attaching");
        drop(datapath);
        // The kernel lets go of a pinned link some time after its pin. Somebody who looks at it does as well.
        let links = std::fs::read_dir(world.pin_dir().join("datapath/links"));
        let watched: Vec<_> = links
            .into_iter()
            .flatten()
            .map(|link| PinnedLink::from_pin(link.expect("a link").path()).expect("a link"))
            .collect();
        assert_eq!(watched.is_empty(), hook == HookKind::Clsact);
        let removed = world
            .host
            .enter(|| remove(&world.pin_dir()))
            .expect("removal");
        assert_eq!((removed.attachments, removed.programs), (6, 4), "{hook:?}");
        assert_eq!(world.host.run("tc qdisc show"), before, "{hook:?}");
        assert_eq!(world.run_ids(), Vec::<u32>::new(), "{hook:?}");
        let again = world
            .host
            .enter(|| remove(&world.pin_dir()))
            .expect("nothing to do");
        assert_eq!(again, Removed::default());
    }
}

#[test]
fn attaching_follows_the_wish_and_the_devices() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let all = world.attachments();
    let fewer = Attachments {
        uplinks: vec![all.uplinks[0]],
        lans: vec![],
        ..all.clone()
    };
    world
        .host
        .enter(|| datapath.attach(&fewer))
        .expect("taking off");
    assert_eq!(world.run_ids().len(), 2);
    // A device that went and came back has lost its program; the pin must not deceive.
    world.host.ip("link del lan0");
    world
        .host
        .enter(|| datapath.attach(&fewer))
        .expect("nothing to do");
    world
        .host
        .enter(|| datapath.attach(&all))
        .expect("the lan device is left out");
    assert_eq!(world.run_ids().len(), 3);
    let mut without = all.clone();
    without.uplinks.push(all.lans[0]);
    let gone = world
        .host
        .enter(|| datapath.attach(&without))
        .expect_err("an uplink's device is missing");
    assert!(matches!(gone, Error::Device { .. }), "{gone}");
}

#[test]
fn a_lan_device_with_a_foreign_program_lacks_the_short_way_only() {
    let world = World::new();
    world.serve();
    world.host.run("tc qdisc add dev lan0 clsact");
    world
        .host
        .run("tc filter add dev lan0 ingress protocol ip u32 match ip dst 192.0.2.1 classid 1:");
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    world
        .client
        .enter(|| Client::connect(SERVER).echo(&[1; 10_000]));
    let flows = datapath.flows().expect("flows");
    assert!(flows.iter().all(|flow| !flow.fast), "{flows:?}");
    assert_eq!(reason(&datapath, "in_lan"), 0);
}

#[test]
fn the_programs_scratch_is_not_pinned() {
    let world = World::new();
    let (_datapath, _) = world.start(&world.options(HookKind::Auto));
    let maps = world.pin_dir().join("datapath/maps");
    assert!(maps.join("flows").exists());
    assert!(!maps.join("pkt_scratch").exists());
}

#[test]
fn what_is_not_ours_passes_untouched() {
    let world = World::new();
    let (datapath, _) = world.start(&world.options(HookKind::Auto));
    for uplink in OUTSIDE {
        let address = uplink[0];
        serve(&world.host, address, 22);
        let seen = world
            .inet
            .enter(|| Client::connect(SocketAddr::new(address, 22)).seen);
        assert!(
            seen.ip() != SERVER_V4,
            "straight from the neighbour: {seen}"
        );
        world.inet.run(&format!("ping -c 1 -W 2 {address}"));
    }
    assert!(reason(&datapath, "in_local") > 0);
    assert_eq!(reason(&datapath, "in_no_flow"), 0);
    assert_eq!(datapath.flows().expect("flows").len(), 0);
}

#[test]
fn idle_flows_end_by_state() {
    let world = World::new();
    world.serve();
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let _open = world.host.enter(|| Client::connect(SERVER));
    world
        .host
        .enter(|| ask(&udp_socket(SERVER), SERVER))
        .expect("an answer");
    let states = |datapath: &Datapath| {
        let mut states: Vec<_> = datapath
            .flows()
            .expect("flows")
            .into_iter()
            .filter(|flow| flow.assured)
            .map(|flow| (flow.protocol.0, flow.state))
            .collect();
        states.sort();
        states
    };
    let both = [(6, FlowState::Established), (17, FlowState::Established)];
    assert_eq!(states(&datapath), both);
    let now = KernelTime::now();
    assert_eq!(datapath.sweep(now).expect("a sweep").expired, 0);
    assert_eq!(states(&datapath), both);
    let report = datapath
        .sweep(now.after(TCP_TRANSITORY_IDLE * 2))
        .expect("a sweep");
    assert_eq!(
        (report.expired, report.established, report.repaired),
        (1, 1, 0)
    );
    assert_eq!(states(&datapath), [(6, FlowState::Established)]);
    let late = now.after(TCP_ESTABLISHED_IDLE + Duration::from_secs(1));
    assert_eq!(datapath.sweep(late).expect("a sweep").expired, 1);
    assert_eq!(datapath.flows().expect("flows").len(), 0);
}

#[test]
fn the_daemon_learns_what_it_cannot_do() {
    let world = World::new();
    let folder = tempfile::tempdir().expect("a folder");
    let plain = Options::new(folder.path());
    let error = Datapath::open(&plain).err().expect("a refusal");
    assert!(matches!(error, Error::NotBpffs { .. }), "{error}");
    let (mut datapath, _) = world.start(&world.options(HookKind::Auto));
    let mut twice = world.uplinks();
    twice[1].ifindex = twice[0].ifindex;
    let error = datapath
        .set_uplinks(&twice)
        .expect_err("two uplinks on one device");
    assert!(error.to_string().contains("same device"), "{error}");
    let total: u64 = datapath
        .memory()
        .expect("memory")
        .iter()
        .map(|map| map.bytes)
        .sum();
    assert!(total > 0);
}
