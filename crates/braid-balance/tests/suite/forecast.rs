//! Under `fastest` a flow takes the path that the core scores best.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use braid_balance::{CachedPath, Choice, LbMethod, PathCacheEntry, UplinkForecast, prefix_of};
use braid_core::forecast::{
    MAX_RACE_TIME_RATIO, PathStats, UplinkLoad, in_turn, kilobytes_per_sec, ppm,
};
use braid_core::{Rate, UplinkId};
use braid_packet::{Packet, build};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::choose::flow_of;
use crate::support::probe::Verdict::Sent;
use crate::support::race::{ONCE, RACING_UPLINKS, Track, uplink_at};
use crate::support::talk::{INNER, SYN};

/// Flows that are opened one after the other on the same figures.
const FLOWS: u16 = 5;

/// One uplink, and the way by it.
#[derive(Clone, Copy, Debug)]
struct Figures {
    capacity: u64,
    spare: u64,
    busy: u32,
    loss: f64,
    load_loss: f64,
    rtt: u64,
    packets: u32,
    lost: u32,
}

/// Figures between which it is not plain who is the fastest: rates and round trips near each other, and
/// extremes.
fn figures() -> impl Strategy<Value = Figures> {
    let rate =
        || prop_oneof![8 => 1_000_000..200_000_000_u64, 1 => 0..20_000_u64, 1 => Just(u64::MAX)];
    let rtt = prop_oneof![8 => 5_000..80_000_u64, 1 => 1..200_u64, 1 => 1_000_000..5_000_000_u64];
    let losses = prop_oneof![
        2 => Just((0, 0)),
        6 => (0..40_000_u32, 0..400_u32),
        1 => any::<u32>().prop_flat_map(|packets| (Just(packets), 0..=packets)),
    ];
    let share = prop_oneof![Just(0.0), 0.0..0.03_f64, 0.0..1.0_f64];
    let shares = (share.clone(), share);
    (rate(), rate(), 0..6_u32, shares, rtt, losses).prop_map(
        |(capacity, spare, busy, (loss, load_loss), rtt, (packets, lost))| Figures {
            capacity,
            spare,
            busy,
            loss,
            load_loss,
            rtt,
            packets,
            lost,
        },
    )
}

fn forecast((id, figures): (u8, &Figures)) -> UplinkForecast {
    UplinkForecast {
        uplink: UplinkId(id),
        capacity: Rate::from_bits_per_sec(figures.capacity),
        spare: Rate::from_bits_per_sec(figures.spare),
        busy: figures.busy,
        loss: figures.loss,
        load_loss: figures.load_loss,
    }
}

fn way((id, figures): (u8, &Figures)) -> CachedPath {
    CachedPath {
        uplink: UplinkId(id),
        rtt: Some(Duration::from_micros(figures.rtt)),
        tried: false,
        age: Duration::ZERO,
        packets: figures.packets,
        lost: figures.lost,
        valid: true,
    }
}

/// An uplink as the core has it.
fn line(figures: &Figures, (opened, last_opened): (u32, u64)) -> UplinkLoad {
    UplinkLoad {
        capacity: kilobytes_per_sec(Rate::from_bits_per_sec(figures.capacity)),
        spare: kilobytes_per_sec(Rate::from_bits_per_sec(figures.spare)),
        busy: figures.busy,
        opened,
        loss_ppm: ppm(figures.loss),
        load_loss_ppm: ppm(figures.load_loss),
        last_opened,
    }
}

/// The uplink that the core scores best, of equals the one whose turn it is.
fn fastest(all: &[Figures; RACING_UPLINKS], opened: &[(u32, u64); RACING_UPLINKS]) -> usize {
    let candidate = |id: usize| {
        let figures = &all[id];
        let path = PathStats {
            rtt: Duration::from_micros(figures.rtt),
            packets: figures.packets,
            lost: figures.lost,
        };
        let line = line(figures, opened[id]);
        (line.predict(&path).score(), line.last_opened)
    };
    let candidates: [(u128, u64); RACING_UPLINKS] = std::array::from_fn(candidate);
    in_turn(&candidates).expect("some uplink")
}

/// Plays cases of random figures of three uplinks, each to a server in a network of its own in `net`.
fn for_random_figures(
    cases: u16,
    net: u8,
    play: impl Fn(&Track, u16, IpAddr, &[Figures; RACING_UPLINKS]) -> Result<(), TestCaseError>,
) {
    let track = Track::new(LbMethod::Fastest, ONCE);
    let case = Cell::new(0_u16);
    let config = Config {
        cases: cases.into(),
        ..Config::default()
    };
    let figures = [figures(), figures(), figures()];
    TestRunner::new(config)
        .run(&figures, |all| {
            case.set(case.get() + 1);
            let [high, low] = case.get().to_be_bytes();
            let server = IpAddr::from(Ipv4Addr::new(net, high, low, 7));
            let forecasts: Vec<UplinkForecast> = (0..).zip(&all).map(forecast).collect();
            let mut datapath = track.probe.datapath.borrow_mut();
            datapath.set_forecasts(&forecasts).expect("forecasts");
            drop(datapath);
            play(&track, case.get(), server, &all)
        })
        .expect("as predicted");
}

#[test]
fn flows_go_where_the_core_predicts_the_shortest_transfer() {
    for_random_figures(200, 45, |track, case, server, all| {
        let (prefix, bits) = prefix_of(server);
        let path = PathCacheEntry {
            prefix,
            bits,
            paths: (0..).zip(all).map(way).collect(),
        };
        let mut datapath = track.probe.datapath.borrow_mut();
        datapath.restore_path_cache(&[path]).expect("memory");
        // Flows of the cases before still count, by half.
        let flow_activity = datapath.flow_activity().expect("counts");
        let mut opened: [(u32, u64); RACING_UPLINKS] =
            std::array::from_fn(|id| (flow_activity[id].opened, flow_activity[id].last_opened));
        drop(datapath);
        for flow in 0..FLOWS {
            let port = 2000 + case * FLOWS + flow;
            let syn = build::segment((INNER, port), (server, 80), [999, 0], SYN, &[]);
            track.probe.out(&syn).is(Sent, "out_new");
            let expected = fastest(all, &opened);
            let found = flow_of(&track.probe, INNER, port);
            prop_assert_eq!(found.choice, Choice::Predicted);
            prop_assert_eq!(found.uplink.index(), expected, "{:?}", opened);
            // Later than all before.
            opened[expected] = (opened[expected].0 + 1, u64::MAX - u64::from(FLOWS - flow));
        }
        Ok(())
    });
}

#[test]
fn a_race_to_where_nothing_is_known_is_run_on_those_that_are_worth_while() {
    for_random_figures(100, 46, |track, case, server, all| {
        let prospects = all.map(|figures| line(&figures, (0, 0)).reference_time());
        let best = prospects.into_iter().min().expect("some uplink");
        let worth = |id: &usize| prospects[*id] <= best * MAX_RACE_TIME_RATIO;
        let worth: Vec<usize> = (0..RACING_UPLINKS).filter(worth).collect();
        let port = 2000 + case;
        let syn = build::segment((INNER, port), (server, 80), [999, 0], SYN, &[]);
        let sent = track.probe.out(&syn);
        if let [sole] = worth.as_slice() {
            sent.is(Sent, "out_new");
            let found = flow_of(&track.probe, INNER, port);
            prop_assert_eq!(
                (found.uplink.index(), found.choice),
                (*sole, Choice::Predicted)
            );
            return Ok(());
        }
        let sent = sent.is(Sent, "race_begun");
        let copies = track.copies(worth.len() - 1);
        let all = copies.iter().chain([&sent.packet]);
        let source = |bytes: &Vec<u8>| Packet::parse(bytes).expect("a packet").ip.source;
        let mut raced: Vec<usize> = all.map(|bytes| uplink_at(source(bytes))).collect();
        raced.sort_unstable();
        prop_assert_eq!(&raced, &worth);
        let left_out = raced.len() < RACING_UPLINKS;
        prop_assert_eq!(sent.events.contains(&"race_crowded"), left_out);
        Ok(())
    });
}
