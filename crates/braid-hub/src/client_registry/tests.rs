//! Invitations, and attempts to use them.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use braid_bond::proto::handshake::EpochKey;
use braid_host::user_error::UserError;

use super::*;
use crate::config::HubConfig;
use crate::store::{Embedded, StoredIdentity};

const NOW: Seconds = 1_000_000;
const DAY: Seconds = 86_400;

fn open(path: &Path, network: &str) -> ClientRegistry {
    let pool = AddressPool::new(vec![network.parse().unwrap()]).unwrap();
    ClientRegistry::open(Box::new(Embedded::open(path, None).unwrap()), pool).unwrap()
}

fn registry() -> (tempfile::TempDir, ClientRegistry) {
    let folder = tempfile::tempdir().unwrap();
    let registry = open(&folder.path().join("hub.redb"), "10.73.0.0/29");
    (folder, registry)
}

fn invitation(name: &str) -> Invitation {
    Invitation {
        name: name.parse().unwrap(),
        addresses: Vec::new(),
        cap: None,
        until: NOW + DAY,
        hub_key: key(100),
    }
}

/// Uptime of a hub that started at [`NOW`], if the clock is right.
fn uptime(now: Seconds) -> Duration {
    Duration::from_secs(now - NOW)
}

fn secret(number: u8) -> Secret {
    Secret::new([number; 32])
}

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn refusal(enrolled: EnrolOutcome) -> Refusal {
    match enrolled {
        EnrolOutcome::Refused(answer, refusal) => {
            assert_eq!(Refusal::read(&answer.options), Some(refusal));
            assert!(answer.addresses.is_empty(), "who is refused has no address");
            refusal
        }
        other => panic!("{other:?}"),
    }
}

fn joined(enrolled: EnrolOutcome) -> HandshakeTerms {
    match enrolled {
        EnrolOutcome::Joined(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_key_gets_the_token_and_may_come_again() {
    let (_folder, mut registry) = registry();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    let first = joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    let terms = Terms::read(&first.options);
    assert_eq!(terms.addresses, [("10.73.0.2".parse().unwrap(), 29)]);
    assert_eq!(terms.hub, ["10.73.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(terms.name.as_deref(), Some("attic"));
    assert_eq!(first.psk.0, secret(1).psk().0);
    let again = joined(registry.enrol(key(1), secret(1).id(), NOW + 5).unwrap());
    assert_eq!(again.addresses, first.addresses);
    assert_eq!(registry.misuse(1), None);
    // Also after expiry: it has joined.
    joined(
        registry
            .enrol(key(1), secret(1).id(), NOW + 2 * DAY)
            .unwrap(),
    );
}

#[test]
fn another_machine_is_refused_and_told_of() {
    let (_folder, mut registry) = registry();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    for times in 1..=3 {
        let refused = registry.enrol(key(2), secret(1).id(), NOW + times).unwrap();
        let why = refusal(refused);
        let said = "this token was used by another machine, and one token lets one machine in";
        assert_eq!((why, why.to_string().as_str()), (Refusal::Used, said));
        let last = NOW + times;
        assert_eq!(registry.misuse(1), Some(TokenMisuse { times, last }));
    }
    assert!(registry.served(key(1)).is_some());
    assert!(registry.served(key(2)).is_none());
    let made_up = registry.enrol(key(2), secret(9).id(), NOW).unwrap();
    assert!(matches!(made_up, EnrolOutcome::Unknown));
}

/// It was both clients: revoking one ended both until the next start, and none after it.
#[test]
fn a_key_with_two_tokens_is_one_client_and_out_once_that_is_revoked() {
    let (folder, mut registry) = registry();
    for (number, name) in [(1, "attic"), (2, "barn")] {
        registry
            .invite(invitation(name), &secret(number), NOW, uptime(NOW))
            .unwrap();
    }
    // Both requests had been queued when the first was answered.
    for number in [2, 1] {
        joined(registry.enrol(key(1), secret(number).id(), NOW).unwrap());
    }
    for _ in 0..2 {
        let served = registry.joined_terms();
        let served: Vec<_> = served.iter().map(|terms| &terms.addresses[..]).collect();
        let client = registry.served(key(1)).unwrap();
        assert_eq!(
            (client.name.to_string(), &served[..]),
            ("attic".to_owned(), &[&client.addresses[..]][..])
        );
        drop(registry);
        registry = open(&folder.path().join("hub.redb"), "10.73.0.0/29");
    }
    let attic = "attic".parse().unwrap();
    // The earlier client's name and address are free again.
    let mut wish = invitation("barn");
    wish.addresses = vec!["10.73.0.3".parse().unwrap()];
    registry
        .invite(wish, &secret(3), NOW + 9, uptime(NOW + 9))
        .unwrap();
    let again = registry.enrol(key(1), secret(2).id(), NOW + 9).unwrap();
    assert_eq!(refusal(again), Refusal::Revoked);
    let revocation = registry.revoke(&attic, NOW + 9).unwrap();
    assert_eq!(revocation.key, Some(key(1)));
    assert!(registry.joined_terms().is_empty());
}

#[test]
fn an_invitation_that_nobody_takes_up_gives_its_name_and_address_back() {
    let (_folder, mut registry) = registry();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    let error = registry
        .invite(invitation("attic"), &secret(2), NOW, uptime(NOW))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "attic has been invited or has joined already"
    );
    let late = NOW + DAY;
    let refused = registry.enrol(key(1), secret(1).id(), late).unwrap();
    assert_eq!(refusal(refused), Refusal::Expired);
    let mut wish = invitation("attic");
    wish.addresses = vec!["10.73.0.2".parse().unwrap()];
    wish.until = late + DAY;
    registry
        .invite(wish, &secret(2), late, uptime(late))
        .unwrap();
    joined(registry.enrol(key(1), secret(2).id(), late).unwrap());
}

/// With a clock that had been ahead, one name or address had two machines.
#[test]
fn an_invitation_that_made_room_for_another_is_void_also_if_the_clock_goes_back() {
    let (folder, mut registry) = registry();
    let ahead = NOW + DAY;
    for (number, name) in [(1, "attic"), (2, "barn"), (3, "cellar")] {
        registry
            .invite(invitation(name), &secret(number), NOW, uptime(NOW))
            .unwrap();
    }
    // The one has the first's name, the other the second's address; the third stays as it is.
    let mut name = invitation("attic");
    name.addresses = vec!["10.73.0.5".parse().unwrap()];
    name.until = ahead + DAY;
    registry
        .invite(name, &secret(4), ahead, uptime(ahead))
        .unwrap();
    let mut address = invitation("shed");
    address.addresses = vec!["10.73.0.3".parse().unwrap()];
    address.until = ahead + DAY;
    registry
        .invite(address, &secret(5), ahead, uptime(ahead))
        .unwrap();
    for _ in 0..2 {
        for number in [1, 2] {
            let enrolled = registry.enrol(key(number), secret(number).id(), NOW + 1);
            assert_eq!(refusal(enrolled.unwrap()), Refusal::Revoked, "{number}");
        }
        for number in 3..=5 {
            let enrolled = registry.enrol(key(number), secret(number).id(), NOW + 1);
            joined(enrolled.unwrap());
        }
        drop(registry);
        registry = open(&folder.path().join("hub.redb"), "10.73.0.0/29");
    }
}

#[test]
fn a_revoked_client_is_told_so_until_it_is_invited_anew() {
    let (_folder, mut registry) = registry();
    let name: Name = "attic".parse().unwrap();
    let nobody = registry.revoke(&name, NOW).unwrap_err();
    assert_eq!(nobody.to_string(), "there is no client attic");
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    assert_eq!(
        registry.revoke(&name, NOW).unwrap().key,
        Some(key(1)),
        "it had joined"
    );
    assert!(registry.served(key(1)).is_none());
    let again = registry.enrol(key(1), secret(1).id(), NOW).unwrap();
    assert_eq!(refusal(again), Refusal::Revoked);
    assert!(matches!(
        registry.revoke(&name, NOW),
        Err(RegistryError::Revoked(_))
    ));
    // The same machine, invited again, gets another address.
    registry
        .invite(invitation("attic"), &secret(2), NOW, uptime(NOW))
        .unwrap();
    let new = joined(registry.enrol(key(1), secret(2).id(), NOW).unwrap());
    assert_eq!(new.addresses, ["10.73.0.3".parse::<IpAddr>().unwrap()]);
    assert_eq!(registry.served(key(1)).unwrap().id, 2);
    let answers = registry.joined_terms();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].addresses, new.addresses);
    // An unused token of a revoked client is void too.
    registry
        .invite(invitation("cellar"), &secret(3), NOW, uptime(NOW))
        .unwrap();
    assert!(
        registry
            .revoke(&"cellar".parse().unwrap(), NOW)
            .unwrap()
            .key
            .is_none()
    );
    let dead = registry.enrol(key(3), secret(3).id(), NOW).unwrap();
    assert_eq!(refusal(dead), Refusal::Revoked);
}

#[test]
fn a_full_pool_says_so_and_keeps_who_is_there() {
    let (_folder, mut registry) = registry();
    for number in 1..=5 {
        let name = format!("client-{number}");
        registry
            .invite(invitation(&name), &secret(number), NOW, uptime(NOW))
            .unwrap();
    }
    let full = registry
        .invite(invitation("one-more"), &secret(9), NOW, uptime(NOW))
        .unwrap_err();
    assert_eq!(full.to_string(), "all 5 addresses of the pool are in use");
    let failure = UserError::from(full);
    assert_eq!(failure.code, "pool-full");
    let fix = failure.fix.unwrap();
    assert!(
        fix.contains("revoke clients") && fix.contains("braid hub clients"),
        "{fix}"
    );
    assert!(fix.contains("pool = ["), "{fix}");
    joined(registry.enrol(key(5), secret(5).id(), NOW).unwrap());
    registry.revoke(&"client-3".parse().unwrap(), NOW).unwrap();
    let client = registry
        .invite(invitation("one-more"), &secret(9), NOW, uptime(NOW))
        .unwrap();
    assert_eq!(client.addresses, ["10.73.0.4".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_duplicate_inner_address_is_refused() {
    let (_folder, mut registry) = registry();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    let mut wish = invitation("cellar");
    wish.addresses = vec!["10.73.0.2".parse().unwrap()];
    let error = registry
        .invite(wish, &secret(2), NOW, uptime(NOW))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "inner address 10.73.0.2 belongs to attic"
    );
    let failure = UserError::from(error);
    assert_eq!(failure.code, "inner-address");
    let fix = "leave the address out to have the next free one";
    assert_eq!(failure.fix.as_deref(), Some(fix));
    // Two addresses of one IP version for one client are refused too.
    let mut wish = invitation("cellar");
    wish.addresses = ["10.73.0.4", "10.73.0.4"]
        .map(|text| text.parse().unwrap())
        .into();
    let error = registry
        .invite(wish, &secret(2), NOW, uptime(NOW))
        .unwrap_err();
    let text = "10.73.0.4 and 10.73.0.4: a client has one inner address per IP version";
    assert_eq!(error.to_string(), text);
    assert_eq!(UserError::from(error).code, "inner-address");
    assert_eq!(registry.clients().count(), 1);
}

#[test]
fn decisions_survive_a_restart() {
    let (folder, mut registry) = registry();
    let path = folder.path().join("hub.redb");
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    registry
        .invite(invitation("cellar"), &secret(2), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    joined(registry.enrol(key(2), secret(2).id(), NOW).unwrap());
    registry.revoke(&"cellar".parse().unwrap(), NOW).unwrap();
    registry.record_traffic(key(1), (100, 20), Some(NOW + 7), NOW + 7);
    registry.persist().unwrap();
    drop(registry);
    let mut registry = open(&path, "10.73.0.0/29");
    let answers = registry.joined_terms();
    assert_eq!(answers.len(), 1, "who is revoked is not served");
    assert_eq!(
        answers[0].addresses,
        ["10.73.0.2".parse::<IpAddr>().unwrap()]
    );
    let revoked = registry.enrol(key(2), secret(2).id(), NOW).unwrap();
    assert_eq!(refusal(revoked), Refusal::Revoked);
    let attic = registry.served(key(1)).unwrap();
    assert_eq!(
        (attic.received, attic.sent, attic.seen),
        (100, 20, Some(NOW + 7))
    );
    let other = registry.enrol(key(3), secret(1).id(), NOW).unwrap();
    assert_eq!(refusal(other), Refusal::Used);
    drop(registry);
    let registry = open(&path, "10.74.0.0/24");
    let outside: Vec<_> = registry
        .outside_pool(NOW)
        .map(|(c, a)| (c.name.to_string(), a))
        .collect();
    assert_eq!(
        outside,
        [("attic".to_owned(), "10.73.0.2".parse().unwrap())]
    );
}

#[test]
fn strangers_are_forgotten_after_a_while_or_when_there_are_many() {
    let (_folder, mut registry) = registry();
    registry.remember_refused(key(1), NOW);
    registry.remember_refused(key(2), NOW + 5);
    assert_eq!(registry.forget_refused(NOW + REFUSAL_MEMORY_S - 1), []);
    registry.remember_refused(key(1), NOW + 6);
    assert_eq!(
        registry.forget_refused(NOW + 5 + REFUSAL_MEMORY_S),
        [key(2)]
    );
    for number in 0..MAX_REFUSED_KEYS as u8 {
        registry.remember_refused(key(100 + number), NOW + 7);
    }
    assert_eq!(registry.forget_refused(NOW + 8), [key(1)]);
}

/// The settings of single clients in a `hub.toml`.
fn configured(text: &str) -> BTreeMap<Name, ClientConfig> {
    HubConfig::parse("hub.toml", text).unwrap().clients
}

#[test]
fn a_client_without_quota_left_is_slow_until_the_next_period() {
    let (folder, mut registry) = registry();
    let path = folder.path().join("hub.redb");
    for number in 1..=2 {
        let name = if number == 1 { "attic" } else { "cellar" };
        registry
            .invite(invitation(name), &secret(number), NOW, uptime(NOW))
            .unwrap();
        joined(
            registry
                .enrol(key(number), secret(number).id(), NOW)
                .unwrap(),
        );
    }
    let quota = "[[client]]\nname = 'attic'\nquota = '1 MB/day'\n";
    registry.configure(configured(quota), NOW);
    // Both directions count; a client without a quota is not limited.
    for number in 1..=2 {
        registry.record_traffic(key(number), (600_000, 399_999), None, NOW);
    }
    assert!(registry.review_quotas(NOW).is_empty());
    let attic = registry.served(key(1)).unwrap();
    assert_eq!(registry.used(attic, NOW), Some(Bytes::new(999_999)));
    assert_eq!(registry.used(registry.served(key(2)).unwrap(), NOW), None);
    registry.record_traffic(key(1), (0, 1), None, NOW);
    let changed = registry.review_quotas(NOW);
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].key, changed[0].cap), (key(1), Some(SPENT_RATE)));
    assert_eq!(Terms::read(&changed[0].options).cap, Some(SPENT_RATE));
    assert!(registry.review_quotas(NOW).is_empty(), "said once");
    registry.persist_quotas().unwrap();
    drop(registry);

    // A restart loses none of it; counters without a quota wait for the next save of all.
    let mut registry = open(&path, "10.73.0.0/29");
    registry.configure(configured(quota), NOW);
    let attic = registry.served(key(1)).unwrap();
    assert!(registry.is_spent(attic));
    assert_eq!(registry.cap(attic), Some(SPENT_RATE));
    assert_eq!(registry.served(key(2)).unwrap().sent, 0);
    // A lower configured rate stays in force.
    let slow = "[[client]]\nname = 'attic'\nquota = '1 MB/day'\nrate = '64 kbit/s'\n";
    registry.configure(configured(slow), NOW);
    let cap = registry.cap(registry.served(key(1)).unwrap());
    assert_eq!(cap, Some("64 kbit/s".parse().unwrap()));
    registry.configure(configured(quota), NOW);

    let changed = registry.review_quotas(NOW + DAY);
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].key, changed[0].cap), (key(1), None));
    // A larger quota counts at once.
    assert_eq!(registry.review_quotas(NOW).len(), 1, "the clock went back");
    registry.configure(configured(&quota.replace('1', "2")), NOW);
    assert!(!registry.is_spent(registry.served(key(1)).unwrap()));
}

#[test]
fn reach_follows_the_name() {
    let (_folder, mut registry) = registry();
    let text = "[[client]]\nname = 'attic'\nreach = ['192.168.1.0/24']\n";
    registry.configure(configured(text), NOW);
    let reaching = |registry: &ClientRegistry| -> Vec<String> {
        let reach = registry.reach(NOW);
        reach.iter().map(|(from, _)| from.to_string()).collect()
    };
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    assert_eq!(reaching(&registry), ["10.73.0.2"]);
    registry.revoke(&"attic".parse().unwrap(), NOW).unwrap();
    assert!(reaching(&registry).is_empty());
    // Another machine by that name, and the first one by another.
    for (number, name) in [(2, "attic"), (3, "barn")] {
        registry
            .invite(invitation(name), &secret(number), NOW, uptime(NOW))
            .unwrap();
    }
    joined(registry.enrol(key(2), secret(2).id(), NOW).unwrap());
    joined(registry.enrol(key(1), secret(3).id(), NOW).unwrap());
    assert_eq!(reaching(&registry), ["10.73.0.3"]);
}

#[test]
fn a_name_in_the_configuration_that_no_client_has_is_found() {
    let (_folder, mut registry) = registry();
    let text = "[[client]]\nname = 'attik'\nrate = '1 Mbit/s'\n\
                [[client]]\nname = 'attic'\nrate = '1 Mbit/s'\n";
    registry.configure(configured(text), NOW);
    let unclaimed = |registry: &ClientRegistry, now| -> Vec<String> {
        registry
            .unknown_names(now)
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(unclaimed(&registry, NOW), ["attic", "attik"]);
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    assert_eq!(unclaimed(&registry, NOW), ["attik"]);
    assert_eq!(
        unclaimed(&registry, NOW + DAY),
        ["attic", "attik"],
        "it has expired"
    );
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    assert_eq!(unclaimed(&registry, NOW + DAY), ["attik"]);
    registry.revoke(&"attic".parse().unwrap(), NOW).unwrap();
    assert_eq!(unclaimed(&registry, NOW), ["attic", "attik"]);
}

/// The records of a store on a disk that may be full.
#[derive(Default)]
struct Records {
    is_full: bool,
    clients: BTreeMap<u64, Client>,
    identity: Option<StoredIdentity>,
    /// Writes that succeeded.
    writes: usize,
}

#[derive(Clone, Default)]
struct Disk(Arc<Mutex<Records>>);

impl Disk {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap()
    }

    fn write(&self, change: impl FnOnce(&mut Records)) -> Result<(), StoreError> {
        let mut records = self.records();
        if records.is_full {
            return Err(StoreError::Engine {
                path: "hub.redb".into(),
                why: "no space left".into(),
            });
        }
        change(&mut records);
        records.writes += 1;
        Ok(())
    }

    fn open(&self) -> ClientRegistry {
        self.open_with("10.73.0.0/29")
    }

    fn open_with(&self, network: &str) -> ClientRegistry {
        let pool = AddressPool::new(vec![network.parse().unwrap()]).unwrap();
        ClientRegistry::open(Box::new(self.clone()), pool).unwrap()
    }
}

impl Store for Disk {
    fn is_sealed(&self) -> bool {
        false
    }

    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError> {
        Ok(new)
    }

    fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError> {
        self.write(|records| records.identity = Some(identity.clone()))
    }

    fn epochs(&mut self) -> Result<Vec<EpochKey>, StoreError> {
        Ok(Vec::new())
    }

    fn put_epochs(&mut self, _: &EpochKeys) -> Result<(), StoreError> {
        self.write(|_| ())
    }

    fn load(&mut self) -> Result<Vec<Client>, StoreError> {
        Ok(self.records().clients.values().cloned().collect())
    }

    fn put(&mut self, clients: &[&Client], removed: &[u64]) -> Result<(), StoreError> {
        self.write(|records| {
            let clients = clients.iter().map(|client| (client.id, (*client).clone()));
            records.clients.extend(clients);
            records.clients.retain(|id, _| !removed.contains(id));
        })
    }
}

/// Secret of one of many invitations.
fn numbered_secret(number: u32) -> Secret {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    Secret::new(bytes)
}

/// Each stayed for ever, in the store and in memory, however many there were.
#[test]
fn of_clients_that_have_ended_the_last_thousand_are_kept() {
    const OTHERS: u32 = MAX_ENDED_CLIENTS as u32 + 20;
    let disk = Disk::default();
    let mut registry = disk.open();
    let name = |number: u32| -> Name { format!("client-{number}").parse().unwrap() };
    let invite = |registry: &mut ClientRegistry, number: u32, now: Seconds| {
        let mut invitation = invitation(&name(number).to_string());
        invitation.until = now + 10;
        let secret = numbered_secret(number);
        registry
            .invite(invitation, &secret, now, uptime(now))
            .map(|_| ())
    };
    let ended = |registry: &ClientRegistry, now| {
        let ended = registry.clients().filter_map(|client| client.ended(now));
        ended.count()
    };
    // The first two have joined; one of them is revoked before all others, and one after them.
    for number in [1, 2] {
        invite(&mut registry, number, NOW).unwrap();
        joined(
            registry
                .enrol(key(number as u8), numbered_secret(number).id(), NOW)
                .unwrap(),
        );
    }
    registry.revoke(&name(1), NOW).unwrap();
    // Of the others the first 30 and each second one are revoked, and the rest expire.
    let at = |number: u32| NOW + 20 * Seconds::from(number);
    for number in 3..3 + OTHERS {
        invite(&mut registry, number, at(number)).unwrap();
        if number % 2 == 0 || number < 33 {
            registry.revoke(&name(number), at(number)).unwrap();
        }
        assert!(ended(&registry, at(number)) <= MAX_ENDED_CLIENTS + 1);
    }
    let late = at(3 + OTHERS);
    registry.revoke(&name(2), late).unwrap();

    // A write that fails removes nothing.
    let before = disk.records().clients.len();
    disk.records().is_full = true;
    invite(&mut registry, 9_999, late).unwrap_err();
    assert_eq!(registry.clients().count(), before);
    disk.records().is_full = false;
    invite(&mut registry, 9_999, late).unwrap();
    let last = registry.clients().last().unwrap().id;
    assert_eq!(last, u64::from(OTHERS) + 3, "no number is given twice");

    for _ in 0..2 {
        assert_eq!(ended(&registry, late), MAX_ENDED_CLIENTS);
        assert_eq!(disk.records().clients.len(), MAX_ENDED_CLIENTS + 1);
        // A forgotten client lets nobody in, be it by the key that had joined or by another, also if the clock goes back.
        for number in (1..24).filter(|number| *number != 2) {
            for who in [1, 50] {
                let enrolled = registry.enrol(key(who), numbered_secret(number).id(), NOW);
                let enrolled = enrolled.unwrap();
                assert!(matches!(enrolled, EnrolOutcome::Unknown), "{number}");
            }
        }
        let forgotten = registry.revoke(&name(1), late);
        assert!(matches!(forgotten, Err(RegistryError::Nobody(_))));
        assert!(registry.served(key(1)).is_none() && registry.joined_terms().is_empty());
        // The one that was invited among the first and revoked last is told the reason, and so are others.
        for (number, told) in [
            (2, Refusal::Revoked),
            (OTHERS, Refusal::Revoked),
            (OTHERS + 1, Refusal::Expired),
        ] {
            let enrolled = registry.enrol(key(2), numbered_secret(number).id(), late);
            assert_eq!(refusal(enrolled.unwrap()), told, "{number}");
        }
        registry.record_traffic(key(1), (1, 1), Some(late), late);
        registry.review_quotas(late);
        registry.persist().unwrap();
        drop(registry);
        registry = disk.open();
    }
}

/// Time by a clock that is ten years ahead.
const FAR_AHEAD: Seconds = NOW + 3_650 * DAY;

/// An invitation that is valid for a day.
fn for_a_day(name: &str, now: Seconds) -> Invitation {
    Invitation {
        until: now + DAY,
        ..invitation(name)
    }
}

/// Those that had expired by the wrong clock were the first to be forgotten, and their tokens opened nothing any more.
#[test]
fn a_wrong_clock_has_no_open_invitation_forgotten() {
    const OPEN: u32 = MAX_ENDED_CLIENTS as u32 + 20;
    let disk = Disk::default();
    let mut registry = disk.open_with("10.73.0.0/16");
    let invite = |registry: &mut ClientRegistry, number: u32, now, uptime| {
        let name = format!("client-{number}");
        let secret = numbered_secret(number);
        let invited = registry.invite(for_a_day(&name, now), &secret, now, uptime);
        invited.map(|client| client.name.clone()).unwrap()
    };
    for number in 1..=OPEN {
        invite(&mut registry, number, NOW, Duration::ZERO);
    }
    // More than are kept are invited and revoked while the clock is ahead, in this run and in one that begins so; each
    // lasts for just less than a day.
    let before_a_day = Duration::from_secs(DAY - 1);
    let mut number = OPEN;
    for uptime in [Duration::ZERO, before_a_day, Duration::ZERO, before_a_day] {
        for _ in 0..MAX_ENDED_CLIENTS / 2 {
            number += 1;
            let name = invite(&mut registry, number, FAR_AHEAD, uptime);
            registry.revoke(&name, FAR_AHEAD).unwrap();
        }
        let late = registry.enrol(key(1), numbered_secret(1).id(), FAR_AHEAD);
        assert_eq!(refusal(late.unwrap()), Refusal::Expired);
        let kept = registry.clients().count();
        assert!(kept <= OPEN as usize + MAX_ENDED_CLIENTS + 1, "{kept}");
        if uptime == before_a_day {
            drop(registry);
            registry = disk.open_with("10.73.0.0/16");
        }
    }
    // The clock is right again.
    for number in [1, 2, 20, 21, OPEN] {
        let mut own = [0; 32];
        own[..4].copy_from_slice(&number.to_be_bytes());
        joined(
            registry
                .enrol(PublicKey(own), numbered_secret(number).id(), NOW + 1)
                .unwrap(),
        );
    }
}

/// Invitations that have expired are too many only where they have surely done so.
#[test]
fn expired_invitations_count_until_the_hub_has_run_for_as_long_as_they_were_valid() {
    let disk = Disk::default();
    let mut registry = disk.open();
    registry
        .invite(
            for_a_day("client-1", NOW),
            &numbered_secret(1),
            NOW,
            Duration::ZERO,
        )
        .unwrap();
    let first = disk.records().clients[&1].clone();
    for number in 2..=MAX_CLIENTS as u32 {
        let id = u64::from(number);
        let client = Client {
            id,
            name: format!("client-{number}").parse().unwrap(),
            invitation: numbered_secret(number).id(),
            addresses: vec![IpAddr::from([10, 74, (number >> 8) as u8, number as u8])],
            ..first.clone()
        };
        disk.records().clients.insert(id, client);
    }
    let mut registry = disk.open();
    let invite = |registry: &mut ClientRegistry, number: u32, uptime_s| {
        let name = format!("later-{number}");
        let secret = numbered_secret(100_000 + number);
        let wish = for_a_day(&name, FAR_AHEAD);
        let invited = registry.invite(wish, &secret, FAR_AHEAD, Duration::from_secs(uptime_s));
        invited.map(|_| ())?;
        Ok(registry.clients().count())
    };
    for uptime_s in [0, DAY - 1] {
        let refused: RegistryError = invite(&mut registry, 1, uptime_s).unwrap_err();
        assert!(matches!(refused, RegistryError::Many), "{refused}");
    }
    // That many have ended for good now, also by the right clock.
    assert_eq!(
        invite(&mut registry, 1, DAY).unwrap(),
        MAX_ENDED_CLIENTS + 1
    );
    // One that this run has made counts from then on.
    let again = registry.clients().last().unwrap().clone();
    assert_eq!(again.name.to_string(), "later-1");
    let is_over = |uptime_s| {
        let uptime = Duration::from_secs(uptime_s);
        registry.surely_ended(&again, FAR_AHEAD + DAY, uptime)
    };
    assert_eq!(is_over(2 * DAY - 1), None);
    assert_eq!(is_over(2 * DAY), Some(FAR_AHEAD + DAY));
}

/// The address went to the new client, and the open invitation was revoked.
#[test]
fn a_full_pool_has_no_room_by_a_wrong_clock_alone() {
    let (_folder, mut registry) = registry();
    for number in 1..=5 {
        let wish = for_a_day(&format!("client-{number}"), NOW);
        registry
            .invite(wish, &secret(number), NOW, Duration::ZERO)
            .unwrap();
    }
    let mut sixth = for_a_day("sixth", FAR_AHEAD);
    let nearly = Duration::from_secs(DAY - 1);
    let full = registry.invite(sixth.clone(), &secret(6), FAR_AHEAD, nearly);
    let full = full.unwrap_err();
    assert_eq!(full.to_string(), "all 5 addresses of the pool are in use");
    let fix = UserError::from(full).fix.unwrap();
    assert!(fix.contains("invitations that have expired"), "{fix}");
    // An operator who names the address means it, and so does one who revokes an invitation.
    sixth.addresses = vec!["10.73.0.3".parse().unwrap()];
    registry
        .invite(sixth, &secret(6), FAR_AHEAD, nearly)
        .unwrap();
    registry
        .revoke(&"client-3".parse().unwrap(), FAR_AHEAD)
        .unwrap();
    let seventh = for_a_day("seventh", FAR_AHEAD);
    let seventh = registry.invite(seventh, &secret(7), FAR_AHEAD, nearly);
    assert_eq!(
        seventh.unwrap().addresses,
        ["10.73.0.4".parse::<IpAddr>().unwrap()]
    );
    for number in [1, 4, 5] {
        let enrolled = registry.enrol(key(number), secret(number).id(), NOW + 1);
        joined(enrolled.unwrap());
    }
    for number in [2, 3] {
        let enrolled = registry.enrol(key(number), secret(number).id(), NOW + 1);
        assert_eq!(refusal(enrolled.unwrap()), Refusal::Revoked, "{number}");
    }
    // After a day there is room.
    let eighth = for_a_day("eighth", FAR_AHEAD);
    registry
        .revoke(&"seventh".parse().unwrap(), FAR_AHEAD)
        .unwrap();
    let eighth = registry.invite(eighth, &secret(8), FAR_AHEAD, Duration::from_secs(DAY));
    eighth.unwrap();
}

#[test]
fn a_failed_save_lets_nobody_in() {
    let disk = Disk::default();
    disk.records().is_full = true;
    let mut registry = disk.open();
    let error = registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap_err();
    assert_eq!(error.to_string(), "store hub.redb: no space left");
    assert_eq!(registry.clients().count(), 0);
    let unknown = registry.enrol(key(1), secret(1).id(), NOW).unwrap();
    assert!(matches!(unknown, EnrolOutcome::Unknown));
}

/// A revocation that could not be saved changed nothing: the client stayed in, and its session went on.
#[test]
fn a_client_is_out_also_if_its_revocation_cannot_be_saved() {
    let disk = Disk::default();
    let mut registry = disk.open();
    let attic: Name = "attic".parse().unwrap();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    disk.records().is_full = true;
    for _ in 0..2 {
        // An operator who reads the warning may try again.
        let revocation = registry.revoke(&attic, NOW).unwrap();
        assert_eq!(revocation.key, Some(key(1)));
        let why = revocation.unsaved.unwrap();
        assert_eq!(why, "store hub.redb: no space left");
        assert!(registry.served(key(1)).is_none() && registry.joined_terms().is_empty());
        let again = registry.enrol(key(1), secret(1).id(), NOW).unwrap();
        assert_eq!(refusal(again), Refusal::Revoked);
    }
    assert_eq!(disk.open().joined_terms().len(), 1, "that is the warning");
    // Its name is given to nobody else before it is out for good.
    let refused = registry.invite(invitation("attic"), &secret(2), NOW, uptime(NOW));
    assert!(matches!(refused, Err(RegistryError::Store(_))));
    registry.persist_quotas().unwrap_err();
    disk.records().is_full = false;
    registry.persist_quotas().unwrap();
    assert!(disk.open().joined_terms().is_empty());
    assert!(matches!(
        registry.revoke(&attic, NOW),
        Err(RegistryError::Revoked(_))
    ));
}

#[test]
fn a_name_is_given_again_once_the_revocation_before_it_is_saved() {
    let disk = Disk::default();
    let mut registry = disk.open();
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(1), secret(1).id(), NOW).unwrap());
    disk.records().is_full = true;
    registry.revoke(&"attic".parse().unwrap(), NOW).unwrap();
    disk.records().is_full = false;
    registry
        .invite(invitation("attic"), &secret(2), NOW, uptime(NOW))
        .unwrap();
    joined(registry.enrol(key(2), secret(2).id(), NOW).unwrap());
    let served = disk.open().joined_terms();
    let served: Vec<_> = served.iter().map(|terms| terms.key).collect();
    assert_eq!(served, [key(2)], "after a restart too");
}

fn founding() -> StoredIdentity {
    StoredIdentity::new([1; 32], [0; 5])
}

/// Replaces the hub's first key; that key, and the identity with the other one.
fn rotated(registry: &mut ClientRegistry) -> (PublicKey, StoredIdentity) {
    let old = founding().keys().current.public();
    let rotated = founding().rotated([2; 32], NOW, NOW + DAY);
    registry.rotate_key(old, &rotated).unwrap();
    (old, rotated)
}

#[test]
fn the_end_of_a_key_is_saved_once_that_is_possible() {
    let disk = Disk::default();
    let mut registry = disk.open();
    let (_, rotated) = rotated(&mut registry);
    disk.records().is_full = true;
    registry.retire_key(rotated.retired()).unwrap_err();
    registry.persist().unwrap_err();
    assert_eq!(disk.records().identity.as_ref(), Some(&rotated));
    disk.records().is_full = false;
    registry.persist_quotas().unwrap();
    assert_eq!(disk.records().identity, Some(rotated.retired()));
}

/// With nothing to save the error was taken for mended, and came back with the next client.
#[test]
fn an_error_of_the_store_stands_until_a_write_succeeds() {
    let disk = Disk::default();
    let mut registry = disk.open();
    registry.persist().unwrap();
    assert_eq!(disk.records().writes, 0, "there is nothing to save");
    disk.records().is_full = true;
    registry
        .invite(invitation("attic"), &secret(1), NOW, uptime(NOW))
        .unwrap_err();
    let full = Some("store hub.redb: no space left");
    assert_eq!(registry.persist_error(), full);
    for _ in 0..2 {
        registry.persist().unwrap_err();
        registry.persist_quotas().unwrap_err();
        assert_eq!(registry.persist_error(), full);
    }
    disk.records().is_full = false;
    registry.persist_quotas().unwrap();
    assert_eq!((registry.persist_error(), disk.records().writes), (None, 1));
}

#[test]
fn it_is_known_which_clients_have_the_new_key() {
    let (folder, mut registry) = registry();
    for (name, number) in [("attic", 1), ("cellar", 2), ("shed", 3)] {
        registry
            .invite(invitation(name), &secret(number), NOW, uptime(NOW))
            .unwrap();
        joined(
            registry
                .enrol(key(number), secret(number).id(), NOW)
                .unwrap(),
        );
    }
    // As a record from before the first replacement.
    registry.clients.get_mut(&3).unwrap().hub_key = None;
    registry.revoke(&"cellar".parse().unwrap(), NOW).unwrap();
    let (old, rotated) = rotated(&mut registry);
    let new = rotated.keys().current.public();
    assert_eq!(registry.clients[&3].hub_key, Some(old));
    let behind = |registry: &ClientRegistry| -> Vec<String> {
        let behind = registry.without_hub_key(new, NOW);
        behind.map(|client| client.name.to_string()).collect()
    };
    assert_eq!(behind(&registry), ["attic", "shed"]);
    registry.record_hub_key(key(1), new);
    assert_eq!(behind(&registry), ["shed"]);
    registry.persist().unwrap();
    drop(registry);
    // The next hub knows it too.
    let path = folder.path().join("hub.redb");
    let mut store = Embedded::open(&path, None).unwrap();
    assert_eq!(store.load_or_create(founding()).unwrap(), rotated);
    drop(store);
    let mut registry = open(&path, "10.73.0.0/29");
    assert_eq!(behind(&registry), ["shed"]);
    registry.retire_key(rotated.retired()).unwrap();
    drop(registry);
    let mut store = Embedded::open(&path, None).unwrap();
    let stored = store.load_or_create(rotated).unwrap();
    assert_eq!(stored.keys().retired, Some(old));
}
