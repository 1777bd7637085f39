//! The datapath's handle: what can be asked of it and told to it.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use braid_core::UplinkId;

use crate::hooks::{self, AttachPoint, Hook, Programs};
use crate::inject::Injector;
use crate::pins::Pins;
use crate::tables::{self, Tables};
use crate::{
    Attachments, ClassEntry, ClassId, Counters, Error, Evacuated, Family, Flow, FlowActivity,
    Fragments, HookKind, KernelTime, Lease, MapMemory, Name, Opened, Options, PathCacheEntry,
    RaceSettings, RefusedPacket, Release, Released, Removed, RuleEntry, Sticky, SweepReport,
    Upcalls, UplinkCounters, UplinkEntry, UplinkForecast, classes, connlimit, counters, devices,
    dns_names, evacuate, loading, path_cache, races, rules, sticky, upcalls, upkeep, uplinks,
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
}

/// Has the kernel verify the programs, and takes them back: nothing is pinned or attached, and a
/// datapath that runs is left alone. Empty: the kernel takes them all; else why it does not, program by
/// program. Needs the capabilities that [`Datapath::open`] needs.
#[must_use]
pub fn dry_run() -> Vec<Error> {
    loading::dry_run()
}

impl Datapath {
    /// Loads and pins the programs, or adopts those that are pinned already. All or nothing: a new
    /// set is built in a temporary directory beside and renamed into place. Table sizes of an
    /// adopted set stay what they were.
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
        };
        Ok((datapath, opened))
    }

    /// Makes the programs sit exactly on `wanted`: adds what is missing, takes away what is ours
    /// and not wanted, leaves alone what is right. Interface indices are those of the calling
    /// thread's network namespace. Repeating it changes nothing.
    ///
    /// A LAN device that has vanished, or has somebody else's program, is left out with a warning:
    /// its flows only lack the short way.
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
        // Last: a device whose flows are marked for the short way must have the program.
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

    /// The slot table of a class and family as it is walked now; empty before the first
    /// [`Datapath::set_classes`].
    pub fn class_slots(&self, class: ClassId, family: Family) -> Result<Vec<UplinkId>, Error> {
        classes::class_slots(&self.tables, class, family)
    }

    /// Replaces all rules in one step. The first one that a new flow satisfies puts it into its
    /// class, by then known to [`Datapath::set_classes`]; flows that are open stay where they are.
    pub fn set_rules(&mut self, rules: &[RuleEntry]) -> Result<(), Error> {
        rules::table::set_rules(&mut self.tables, rules)
    }

    /// Notes what is known of remote addresses; for each it replaces what was known before. Room is
    /// for 16,384 addresses, of which the least recently asked for make room for others.
    pub fn learn_names(&mut self, names: &[(IpAddr, Name)]) -> Result<(), Error> {
        dns_names::learn_names(&mut self.tables, names)
    }

    /// What is known of a remote address at `now`.
    pub fn name(&self, remote: IpAddr, now: KernelTime) -> Result<Option<Name>, Error> {
        dns_names::name(&self.tables, remote, now)
    }

    /// All addresses of which something is known by name, what has expired too. A daemon that takes
    /// over finds here what the one before has noted, by that one's rules.
    pub fn names(&self) -> Result<Vec<(IpAddr, Name)>, Error> {
        dns_names::names(&self.tables)
    }

    /// Says what the marks of names mean: any number that is another one when the rules that the marks
    /// stand for are others. If it is another one than before, which may have been another daemon's,
    /// all names are forgotten. `true`: they were.
    pub fn keep_names(&mut self, meaning: u32) -> Result<bool, Error> {
        dns_names::keep_names(&mut self.tables, meaning)
    }

    /// Forgets what is known of these remote addresses.
    pub fn forget_names(&mut self, remotes: &[IpAddr]) -> Result<(), Error> {
        dns_names::forget_names(&mut self.tables, remotes)
    }

    /// Which client keeps to which uplink for which site, entries that have expired too. Room is
    /// for 16,384 whose flows were answered, and for 4,096 others after them; of both the least
    /// recently used make room.
    pub fn sticky(&self) -> Result<Vec<Sticky>, Error> {
        sticky::sticky(&self.tables)
    }

    /// Lets clients choose anew what `which` picks, and says how many entries that were. Needed
    /// before flows are to leave an uplink that is up (failback), and when a class' number comes to
    /// mean other uplinks; entries of an uplink that takes no flows count for nothing anyway.
    pub fn forget_sticky(&mut self, which: impl Fn(&Sticky) -> bool) -> Result<usize, Error> {
        sticky::forget_sticky(&mut self.tables, which)
    }

    /// Refuses new flows of these inner addresses, at most 1024, reason `client_over_limit`, and of
    /// no others. An IPv6 address whose last 64 bits are zero stands for all of its /64. Flows that
    /// are open go on.
    pub fn limit_clients(&mut self, clients: &[IpAddr]) -> Result<(), Error> {
        connlimit::limit_clients(&mut self.tables, clients)
    }

    /// Asks again by other uplinks what has been asked by one that is of no use at the moment, and
    /// that nobody has answered. Whatever has been answered stays.
    ///
    /// First [`Datapath::set_uplinks`] must say that the uplink takes no flows. Needs what
    /// [`Datapath::evacuate`] needs.
    pub fn replay_unanswered(&mut self, uplink: UplinkId) -> Result<Evacuated, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::replay_unanswered(&self.tables, injector, uplink)
    }

    /// Takes the flows off an uplink that has died: open TCP connections are told if `tells`, QUIC
    /// connections to servers that `survives` says to follow a change of address are moved, others
    /// are told, and questions that nobody has answered are asked again. Only families that
    /// another uplink takes flows of; everything else stays. Other UDP mappings move with their
    /// next packet from inside.
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

    /// Lets flows of an uplink that works go, as when a better one has come back or an address has
    /// changed. Embryos stay as they are.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn release(&mut self, which: impl Fn(&Flow) -> Release) -> Result<Released, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::release(&mut self.tables, injector, which)
    }

    /// Sends a TCP keepalive by each open connection of an uplink that works again, so that a translator on its way that
    /// has lost its state learns of the connection from the inside, although only the remote has something to send.
    /// Returns how many were sent.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn keep_alive(&mut self, uplink: UplinkId) -> Result<usize, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::keep_alive(&self.tables, injector, uplink)
    }

    /// Ends QUIC flows that were moved at least `older_than` before `now`, whose client has gone on
    /// sending while their server was silent: it does not follow changes of address. The client
    /// hears "port unreachable". Says which flows they were.
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

    /// Opens the lease of leased uplinks, for who carries their packets.
    pub fn lease(&self) -> Result<Lease, Error> {
        Lease::open(&self.pins)
    }

    /// Opens the ring of upcalls. One reader at a time.
    pub fn upcalls(&self) -> Result<Upcalls, Error> {
        Upcalls::open(&self.pins)
    }

    /// Whether DNS answers to flows of ours are handed over as [`Upcall::DnsAnswer`]; at first they
    /// are not.
    ///
    /// [`Upcall::DnsAnswer`]: crate::Upcall::DnsAnswer
    pub fn snoop_dns(&mut self, wanted: bool) -> Result<(), Error> {
        upcalls::snoop_dns(&mut self.tables, wanted)
    }

    /// Sends on those held fragments whose first one has come, says how many, and lets go of those
    /// that were held too long.
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

    /// Tells the sender of a packet that is not sent, by ICMP. `false`: it is not told, or not
    /// reached.
    pub fn send_icmp_error(&mut self, refused: &RefusedPacket) -> Result<bool, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        upcalls::send_icmp_error(injector, refused)
    }

    /// Removes flows that were idle longer than their state allows at `now`, and halves of pairs.
    pub fn sweep(&mut self, now: KernelTime) -> Result<SweepReport, Error> {
        upkeep::sweep(&mut self.tables, now)
    }

    /// Sets when new connections are raced. Before this, none are.
    pub fn set_race(&mut self, race: RaceSettings) -> Result<(), Error> {
        races::set(&mut self.tables, race)
    }

    /// Says what to expect of the uplinks, all of them; [`Datapath::flow_activity`] counts from here on.
    /// Before this, nothing can be said of any, so all count the same.
    pub fn set_forecasts(&mut self, forecasts: &[UplinkForecast]) -> Result<(), Error> {
        path_cache::set_forecasts(&mut self.tables, forecasts)
    }

    /// What has happened on every uplink since the last [`Datapath::set_forecasts`].
    pub fn flow_activity(&self) -> Result<Vec<FlowActivity>, Error> {
        path_cache::flow_activity(&self.tables)
    }

    /// What is remembered of the ways to a remote's prefix; `None`: nothing.
    pub fn path_cache_entry(&self, remote: IpAddr) -> Result<Option<PathCacheEntry>, Error> {
        path_cache::entry(&self.tables, remote)
    }

    /// The same of all prefixes, in no particular order.
    pub fn path_cache(&self) -> Result<Vec<PathCacheEntry>, Error> {
        path_cache::entries(&self.tables)
    }

    /// Puts back what an earlier instance remembered, for the uplinks as they are now. What is not
    /// valid, and what has been learnt meanwhile, is left out.
    pub fn restore_path_cache(&mut self, memory: &[PathCacheEntry]) -> Result<(), Error> {
        path_cache::restore(&mut self.tables, memory)
    }

    /// All flows, embryos too.
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        upkeep::flows(&self.tables)
    }

    /// Counters, complete_checksum over the CPUs.
    pub fn counters(&self) -> Result<Counters, Error> {
        counters::read(&self.tables)
    }

    /// The same of the uplinks alone: cheap enough for many times a second.
    pub fn uplink_counters(&self) -> Result<Vec<(UplinkId, UplinkCounters)>, Error> {
        counters::uplinks(&self.tables)
    }

    /// Which uplinks have an entry, and the interface index of each: what a daemon that has lost its
    /// memory can still tell.
    pub fn uplink_devices(&self) -> Result<Vec<(UplinkId, u32)>, Error> {
        counters::devices(&self.tables)
    }

    /// Most answered flows at once; of an adopted datapath what it was loaded with.
    pub fn capacity(&self) -> Result<u32, Error> {
        self.tables.assured.max_entries()
    }

    /// Kernel memory per map.
    pub fn memory(&self) -> Result<Vec<MapMemory>, Error> {
        tables::memory(&self.pins)
    }
}

/// The sockets to inject packets with, opened when they are needed first.
fn injector(kept: &mut Option<Injector>, steer: u32) -> Result<&Injector, Error> {
    match kept {
        Some(injector) => Ok(injector),
        None => Ok(kept.insert(Injector::open(steer)?)),
    }
}

/// Detaches and unpins everything that an instance pinned under `pin_dir`, also what a crash left
/// half done. Finding nothing is success. `pin_dir` itself stays. clsact filters are looked for in
/// the calling thread's network namespace.
pub fn remove(pin_dir: &Path) -> Result<Removed, Error> {
    let pins = Pins::current(pin_dir);
    let mut removed = Removed::default();
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
