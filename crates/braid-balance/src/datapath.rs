//! The handle of the datapath.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use braid_core::UplinkId;

use crate::flows::{evacuate, races, sweep};
use crate::maps::tables::{self, Tables};
use crate::maps::{counters, devices, shaping, uplinks};
use crate::packets::inject::Injector;
use crate::packets::upcalls;
use crate::pins::Pins;
use crate::programs::egress_queue;
use crate::programs::hooks::{self, AttachPoint, Hook, Programs};
use crate::programs::loading;
use crate::select::{classes, connlimit, dns_names, path_cache, rules, sticky};
use crate::{
    Attachments, ClassEntry, ClassId, Counters, Error, Evacuated, Family, Flow, FlowActivity,
    Fragments, HookKind, KernelTime, Lease, MapMemory, Name, Opened, Options, PathCacheEntry,
    Protocol, RaceSettings, RefusedPacket, Release, Released, Removed, RuleEntry, ShapeCounters,
    ShapeEntry, Sticky, SweepReport, Upcalls, UplinkCounters, UplinkEntry, UplinkForecast,
};

/// A handle on the pinned programs and maps. Dropping it changes nothing in the kernel.
pub struct Datapath {
    pins: Pins,
    programs: Programs,
    tables: Tables,
    hook: HookKind,
    coexist: bool,
    /// The device that programs are attached to for steering; 0 before they are.
    steer: u32,
    injector: Option<Injector>,
    /// Shaped devices of which it was told that they have no queue.
    unqueued: BTreeSet<u32>,
}

/// Has the kernel verify the programs and unloads them: nothing is pinned or attached, and a
/// running datapath is left alone. Returns one error for each program that the kernel rejects;
/// empty if it accepts all. Needs the capabilities that [`Datapath::open`] needs.
#[must_use]
pub fn dry_run() -> Vec<Error> {
    loading::dry_run()
}

impl Datapath {
    /// Loads and pins the programs, or adopts those that are pinned already. All or nothing: a new
    /// set is built in a temporary directory beside and renamed into place. An adopted set keeps
    /// its table sizes.
    pub fn open(options: &Options) -> Result<(Self, Opened), Error> {
        let (pins, opened) = loading::open(options)?;
        let programs = Programs::open(&pins)?;
        let tables = Tables::open(&pins)?;
        let datapath = Self {
            pins,
            programs,
            tables,
            hook: options.hook,
            coexist: options.coexist,
            steer: 0,
            injector: None,
            unqueued: BTreeSet::new(),
        };
        Ok((datapath, opened))
    }

    /// Attaches the programs to exactly the devices in `wanted`: adds missing attachments, removes
    /// ours that are not wanted, leaves the others alone. Interface indices are those of the
    /// calling thread's network namespace. Repeating it changes nothing.
    ///
    /// A LAN device that has vanished, or has another party's program, is left out with a warning:
    /// its flows only lack the fast path.
    pub fn attach(&mut self, wanted: &Attachments) -> Result<(), Error> {
        let mut lans = devices::lans(&wanted.lans);
        let mut places = vec![AttachPoint {
            hook: Hook::Outbound,
            ifindex: wanted.steer,
        }];
        let inbound = wanted.uplinks.iter();
        places.extend(inbound.map(|&ifindex| AttachPoint {
            hook: Hook::Inbound,
            ifindex,
        }));
        let shaped = wanted.shaped.iter();
        places.extend(shaped.map(|&ifindex| AttachPoint {
            hook: Hook::Shape,
            ifindex,
        }));
        // All checks first: a refusal must not leave half of the programs in place.
        let mut missing = Vec::new();
        for &place in &places {
            if hooks::is_missing(&self.programs, place, self.coexist)? {
                missing.push(place);
            }
        }
        lans.retain(|&ifindex, _| {
            let hook = Hook::Lan;
            let place = AttachPoint { hook, ifindex };
            match hooks::is_missing(&self.programs, place, self.coexist) {
                Ok(true) => missing.push(place),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(ifindex, %error, "lan device without the short way");
                    return false;
                }
            }
            places.push(place);
            true
        });
        for place in hooks::places(&self.pins)? {
            if !places.contains(&place) {
                hooks::take(&self.pins, place)?;
            }
        }
        for place in missing {
            match hooks::put(&mut self.programs, &self.pins, place, self.hook) {
                Err(error) if place.hook == Hook::Lan => {
                    tracing::warn!(ifindex = place.ifindex, %error, "lan device without the short way");
                    lans.remove(&place.ifindex);
                }
                result => result?,
            }
        }
        if self.steer != wanted.steer {
            self.steer = wanted.steer;
            self.injector = None;
        }
        devices::set_steer(&mut self.tables, wanted.steer)?;
        // Last: a device whose flows are marked for the fast path must have the program.
        devices::set_lans(&mut self.tables, &lans)
    }

    /// Replaces all uplink entries. Flows keep their uplink by [`UplinkEntry::id`].
    pub fn set_uplinks(&mut self, uplinks: &[UplinkEntry]) -> Result<(), Error> {
        uplinks::set_uplinks(&mut self.tables, uplinks)
    }

    /// Replaces all slot tables, each in one step: a packet sees the old or the new table of its
    /// class and family, never a mixture. A class that is not given is empty afterwards.
    pub fn set_classes(&mut self, classes: &[ClassEntry]) -> Result<(), Error> {
        classes::set_classes(&mut self.tables, classes)
    }

    /// Returns the active slot table of a class and family; empty before the first
    /// [`Datapath::set_classes`].
    pub fn class_slots(&self, class: ClassId, family: Family) -> Result<Vec<UplinkId>, Error> {
        classes::class_slots(&self.tables, class, family)
    }

    /// Replaces all rules in one step. The first rule that a new flow matches sets its class, which
    /// must be known to [`Datapath::set_classes`] by then; open flows stay where they are.
    pub fn set_rules(&mut self, rules: &[RuleEntry]) -> Result<(), Error> {
        rules::table::set_rules(&mut self.tables, rules)
    }

    /// Stores names of remote addresses, replacing earlier ones of the same address. There is room
    /// for 16,384 addresses; the least recently used ones are evicted.
    pub fn learn_names(&mut self, names: &[(IpAddr, Name)]) -> Result<(), Error> {
        dns_names::learn_names(&mut self.tables, names)
    }

    /// Returns the name of a remote address at `now`.
    pub fn name(&self, remote: IpAddr, now: KernelTime) -> Result<Option<Name>, Error> {
        dns_names::name(&self.tables, remote, now)
    }

    /// Returns all named addresses, including expired ones. A daemon that takes over finds the
    /// names that the previous one stored, under that one's rules.
    pub fn names(&self) -> Result<Vec<(IpAddr, Name)>, Error> {
        dns_names::names(&self.tables)
    }

    /// Sets the meaning of the names' marks: any number that differs when the rules behind the
    /// marks differ. Forgets all names and returns `true` if it differs from the stored one, which
    /// may be another daemon's.
    pub fn keep_names(&mut self, meaning: u32) -> Result<bool, Error> {
        dns_names::keep_names(&mut self.tables, meaning)
    }

    /// Forgets the names of these remote addresses.
    pub fn forget_names(&mut self, remotes: &[IpAddr]) -> Result<(), Error> {
        dns_names::forget_names(&mut self.tables, remotes)
    }

    /// Returns the sticky clients with their sites and uplinks, including expired entries. There is
    /// room for 16,384 whose flows were answered, and for 4,096 others after them; in both the
    /// least recently used entries are evicted.
    pub fn sticky(&self) -> Result<Vec<Sticky>, Error> {
        sticky::sticky(&self.tables)
    }

    /// Removes the sticky entries that `which` selects, and returns how many. Needed before flows
    /// are to leave an uplink that is up (failback), and when a class' number comes to mean other
    /// uplinks; entries of an uplink that takes no flows are ignored anyway.
    pub fn forget_sticky(&mut self, which: impl Fn(&Sticky) -> bool) -> Result<usize, Error> {
        sticky::forget_sticky(&mut self.tables, which)
    }

    /// Refuses new flows of these inner addresses, at most 1024, reason `client_over_limit`, and of
    /// no others. An IPv6 address whose last 64 bits are zero stands for its whole /64. Open flows
    /// go on.
    pub fn limit_clients(&mut self, clients: &[IpAddr]) -> Result<(), Error> {
        connlimit::limit_clients(&mut self.tables, clients)
    }

    /// Replays by other uplinks the first packets of unanswered flows of some protocols, of an uplink
    /// that is of no use at the moment. Answered flows stay.
    ///
    /// First [`Datapath::set_uplinks`] must say that the uplink takes no flows. Needs what
    /// [`Datapath::evacuate`] needs.
    pub fn replay_unanswered(
        &mut self,
        uplink: UplinkId,
        which: impl Fn(Protocol) -> bool,
    ) -> Result<Evacuated, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::replay_unanswered(&self.tables, injector, uplink, which)
    }

    /// Takes the flows off an uplink that has died. Open TCP connections are reset if `resets_tcp`.
    /// QUIC connections move if `survives` says that their server follows a change of address; the
    /// inside of the others is sent "port unreachable". Packets of unanswered flows are replayed.
    /// Only for families that another uplink takes flows of; all other flows stay. Other UDP
    /// mappings move with their next packet from inside.
    ///
    /// First [`Datapath::set_uplinks`] must say that the uplink takes no flows. Needs
    /// [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn evacuate(
        &mut self,
        uplink: UplinkId,
        resets_tcp: bool,
        survives: impl Fn(IpAddr) -> bool,
    ) -> Result<Evacuated, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::evacuate(&mut self.tables, injector, uplink, resets_tcp, survives)
    }

    /// Moves or resets flows of an uplink that works, as when a better one has come back or an
    /// address has changed. Embryos stay as they are.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn release(&mut self, which: impl Fn(&Flow) -> Release) -> Result<Released, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::release(&mut self.tables, injector, which)
    }

    /// Sends a TCP keepalive on each open connection of an uplink that works again. A NAT on the
    /// path that has lost its state learns of the connection from the inside by it, although only
    /// the remote has data to send. Returns how many were sent.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn keep_alive(&mut self, uplink: UplinkId) -> Result<usize, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::keep_alive(&self.tables, injector, uplink)
    }

    /// Tells the remotes of an uplink's silent connections that the path was disrupted (RFC 6069), if packets of the
    /// connection passed within `active`. Returns how many were told.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn indicate_disruption(
        &mut self,
        uplink: UplinkId,
        active: Duration,
    ) -> Result<usize, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        let now = KernelTime::now();
        evacuate::indicate_disruption(&self.tables, injector, uplink, active, now)
    }

    /// Ends QUIC flows that were moved at least `older_than` before `now`, and whose client has
    /// gone on sending while their server was silent: it does not follow changes of address. The
    /// client is sent "port unreachable". Returns those flows.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn end_unanswered_moves(
        &mut self,
        older_than: Duration,
        now: KernelTime,
    ) -> Result<Vec<Flow>, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::end_unanswered_moves(&mut self.tables, injector, older_than, now)
    }

    /// Opens the lease of leased uplinks, for the process that carries their packets.
    pub fn lease(&self) -> Result<Lease, Error> {
        Lease::open(&self.pins)
    }

    /// Opens the ring of upcalls. One reader at a time.
    pub fn upcalls(&self) -> Result<Upcalls, Error> {
        Upcalls::open(&self.pins)
    }

    /// Sets whether DNS answers to our flows are passed on as [`Upcall::DnsAnswer`]; at first they
    /// are not.
    ///
    /// [`Upcall::DnsAnswer`]: crate::Upcall::DnsAnswer
    pub fn snoop_dns(&mut self, wanted: bool) -> Result<(), Error> {
        upcalls::snoop_dns(&mut self.tables, wanted)
    }

    /// Sends the held fragments whose first one has come, and returns how many. Drops those that
    /// were held too long.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn reinject(&mut self, held: &mut Fragments, now: KernelTime) -> Result<usize, Error> {
        held.handle_timeout(now);
        if held.is_empty() {
            return Ok(0);
        }
        let injector = injector(&mut self.injector, self.steer)?;
        upcalls::reinject(&self.tables, injector, held)
    }

    /// Tells the sender of a refused packet by ICMP. `false`: it gets no error, or cannot be
    /// reached.
    pub fn send_icmp_error(&mut self, refused: &RefusedPacket) -> Result<bool, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        upcalls::send_icmp_error(injector, refused)
    }

    /// Removes flows that were idle longer than their state allows at `now`, and halves of pairs.
    pub fn sweep(&mut self, now: KernelTime) -> Result<SweepReport, Error> {
        sweep::sweep(&mut self.tables, now)
    }

    /// Sets how often new connections are raced. Before this, none are.
    pub fn set_race(&mut self, race: RaceSettings) -> Result<(), Error> {
        races::set(&mut self.tables, race)
    }

    /// Sets the forecasts of all uplinks; [`Datapath::flow_activity`] counts from here on. Before
    /// this, all uplinks are taken for equal.
    pub fn set_forecasts(&mut self, forecasts: &[UplinkForecast]) -> Result<(), Error> {
        path_cache::set_forecasts(&mut self.tables, forecasts)
    }

    /// Returns the activity on every uplink since the last [`Datapath::set_forecasts`].
    pub fn flow_activity(&self) -> Result<Vec<FlowActivity>, Error> {
        path_cache::flow_activity(&self.tables)
    }

    /// Returns the path cache's entry for a remote's prefix; `None`: there is none.
    pub fn path_cache_entry(&self, remote: IpAddr) -> Result<Option<PathCacheEntry>, Error> {
        path_cache::entry(&self.tables, remote)
    }

    /// Returns all entries of the path cache, in no particular order.
    pub fn path_cache(&self) -> Result<Vec<PathCacheEntry>, Error> {
        path_cache::entries(&self.tables)
    }

    /// Restores entries saved by an earlier instance, for the uplinks as they are now. Leaves out
    /// paths that are not valid, and those measured meanwhile.
    pub fn restore_path_cache(&mut self, memory: &[PathCacheEntry]) -> Result<(), Error> {
        path_cache::restore(&mut self.tables, memory)
    }

    /// Returns all flows, including embryos.
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        sweep::flows(&self.tables)
    }

    /// Returns the counters, summed over the CPUs.
    pub fn counters(&self) -> Result<Counters, Error> {
        counters::read(&self.tables)
    }

    /// Returns the uplinks' counters alone: cheap enough for many times a second.
    pub fn uplink_counters(&self) -> Result<Vec<(UplinkId, UplinkCounters)>, Error> {
        counters::uplinks(&self.tables)
    }

    /// Shapes exactly these uplinks. Their devices must be in [`Attachments::shaped`] as well, for
    /// what they send. Flows stay where they are.
    ///
    /// Packets that they send wait in a queue on their device, if that has only the kernel's default one.
    pub fn set_shaping(&mut self, entries: &[ShapeEntry]) -> Result<(), Error> {
        let queued = self.set_egress_queues(entries)?;
        shaping::set_shaping(&mut self.tables, entries, &queued)
    }

    /// Returns the uplinks that have an egress queue now.
    fn set_egress_queues(&mut self, entries: &[ShapeEntry]) -> Result<Vec<UplinkId>, Error> {
        let devices = counters::devices(&self.tables)?;
        let queues = egress_queue::queues()
            .map_err(|error| Error::system("reading queues of devices", error))?;
        let device = |id| devices.iter().find(|(other, _)| *other == id);
        let mut queued = Vec::new();
        let mut kept = Vec::new();
        for entry in entries {
            let (Some(&(id, ifindex)), Some(rate)) = (device(entry.id), entry.tx) else {
                continue;
            };
            match egress_queue::set(&queues, ifindex, rate) {
                Ok(true) => {
                    queued.push(id);
                    kept.push(ifindex);
                }
                Ok(false) => self.tell_unqueued(ifindex, "the device has another queue"),
                Err(error) => self.tell_unqueued(ifindex, &error.to_string()),
            }
        }
        egress_queue::remove_others(&kept)
            .map_err(|error| Error::system("removing queues of devices", error))?;
        Ok(queued)
    }

    /// Corrects what is computed of the egress queues by what waits there. Several times a second is enough.
    pub fn correct_egress_queues(&mut self) -> Result<(), Error> {
        let backlogs = egress_queue::backlogs()
            .map_err(|error| Error::system("reading queues of devices", error))?;
        shaping::correct_queues(&mut self.tables, |ifindex| backlogs.get(&ifindex).copied())
    }

    /// Logs once why packets that a device sends wait in no queue of Braid's.
    fn tell_unqueued(&mut self, ifindex: u32, reason: &str) {
        if self.unqueued.insert(ifindex) {
            tracing::warn!(ifindex, reason, "shaped without a queue");
        }
    }

    /// Returns what [`Datapath::set_shaping`] has set, which may be another daemon's. Rates are rounded.
    pub fn shaping(&self) -> Result<Vec<ShapeEntry>, Error> {
        shaping::shaping(&self.tables)
    }

    /// Returns the counters of the uplinks given to [`Datapath::set_shaping`]: sent, then received.
    pub fn shape_counters(&self) -> Result<Vec<(UplinkId, [ShapeCounters; 2])>, Error> {
        shaping::counters(&self.tables)
    }

    /// Returns the uplinks that have an entry, with their interface indices: a restarted daemon
    /// finds them here.
    pub fn uplink_devices(&self) -> Result<Vec<(UplinkId, u32)>, Error> {
        counters::devices(&self.tables)
    }

    /// Returns the maximum number of established flows; for an adopted datapath that of its
    /// loading.
    pub fn capacity(&self) -> Result<u32, Error> {
        self.tables.assured.max_entries()
    }

    /// Returns the kernel memory of each map.
    pub fn memory(&self) -> Result<Vec<MapMemory>, Error> {
        tables::memory(&self.pins)
    }
}

/// Returns the sockets for injecting packets, opened on first use.
fn injector(kept: &mut Option<Injector>, steer: u32) -> Result<&Injector, Error> {
    match kept {
        Some(injector) => Ok(injector),
        None => Ok(kept.insert(Injector::open(steer)?)),
    }
}

/// Detaches and unpins everything that an instance pinned under `pin_dir`, including what a crash
/// left behind. Finding nothing is success. `pin_dir` itself stays. clsact filters are looked for
/// in the calling thread's network namespace.
pub fn remove(pin_dir: &Path) -> Result<Removed, Error> {
    let pins = Pins::current(pin_dir);
    let mut removed = Removed::default();
    egress_queue::remove_others(&[])
        .map_err(|error| Error::system("removing queues of devices", error))?;
    for place in hooks::places(&pins)? {
        removed.attachments += usize::from(hooks::take(&pins, place)?);
    }
    for set in [pins, Pins::next(pin_dir)] {
        let [links, programs, maps] = set.remove()?;
        removed.attachments += links;
        removed.programs += programs;
        removed.maps += maps;
    }
    Ok(removed)
}
