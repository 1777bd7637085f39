//! Requests to a hub's local API, with its registry of clients behind them. HTTP itself is that of
//! the libraries.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_bond::proto::handshake::{EpochKey, EpochKeys};
use braid_bond::token::Secret;
use braid_hub::client::{Client, Name};
use braid_hub::client_registry::{ClientRegistry, Invitation, RegistryError};
use braid_hub::pool::AddressPool;
use braid_hub::report::{InviteRequest, RotateKeyRequest};
use braid_hub::store::{Store, StoreError, StoredIdentity};

const NOW: u64 = 1_000_000;

/// Requests beyond this would only repeat themselves.
const MAX_REQUESTS: usize = 64;

/// Records that are written and read as in a file.
struct Memory;

impl Store for Memory {
    fn is_sealed(&self) -> bool {
        false
    }

    fn load_or_create(&mut self, new: StoredIdentity) -> Result<StoredIdentity, StoreError> {
        Ok(new)
    }

    fn put_identity(&mut self, identity: &StoredIdentity) -> Result<(), StoreError> {
        let text = serde_json::to_string(identity).expect("a record is text");
        let read: StoredIdentity = serde_json::from_str(&text).expect("what is written is read");
        assert_eq!(read, *identity);
        Ok(())
    }

    fn epochs(&mut self) -> Result<Vec<EpochKey>, StoreError> {
        Ok(Vec::new())
    }

    fn put_epochs(&mut self, _: &EpochKeys) -> Result<(), StoreError> {
        Ok(())
    }

    fn load(&mut self) -> Result<Vec<Client>, StoreError> {
        Ok(Vec::new())
    }

    fn put(&mut self, clients: &[&Client], _: &[u64]) -> Result<(), StoreError> {
        for client in clients {
            let text = serde_json::to_string(client).expect("a record is text");
            let read: Client = serde_json::from_str(&text).expect("what is written is read");
            assert_eq!(serde_json::to_string(&read).expect("text"), text);
        }
        Ok(())
    }
}

/// Lines are requests: a JSON body, or a name to revoke. Each is carried out, or refused with a
/// reason; names and inner addresses belong to one client at a time, whatever was asked.
pub fn hub_api(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    let networks =
        ["10.73.0.0/29", "fd00::/125"].map(|network| network.parse().expect("a network"));
    let pool = AddressPool::new(networks.to_vec()).expect("there is room");
    let mut registry = ClientRegistry::open(Box::new(Memory), pool).expect("it is empty");
    let mut identity = StoredIdentity::new([1; 32], [0; 5]);
    for (number, line) in text.lines().take(MAX_REQUESTS).enumerate() {
        let secret = Secret::new([number as u8; 32]);
        if let Ok(request) = serde_json::from_str::<InviteRequest>(line) {
            invite(&mut registry, &request, &secret, &identity);
        } else if let Ok(request) = serde_json::from_str::<RotateKeyRequest>(line) {
            identity = rotate(&mut registry, &request, identity, number as u8);
        } else if let Ok(name) = line.parse::<Name>() {
            let revoked = registry.revoke(&name, NOW);
            assert!(!matches!(revoked, Err(RegistryError::Store(_))));
            if let Ok(revocation) = revoked {
                assert!(revocation.unsaved.is_none());
            }
        }
        check(&registry);
    }
}

fn invite(
    registry: &mut ClientRegistry,
    request: &InviteRequest,
    secret: &Secret,
    identity: &StoredIdentity,
) {
    let checked = match request.check(500) {
        Ok(checked) => checked,
        Err(refused) => return assert!(!refused.text.is_empty()),
    };
    assert!(
        checked.addresses.len() <= 8 && checked.addresses.iter().all(|address| address.port != 0)
    );
    let before = registry.clients().count();
    let invitation = Invitation {
        name: checked.name,
        addresses: request.inner.clone(),
        cap: request.rate,
        until: NOW + checked.valid_s,
        hub_key: identity.keys().current.public(),
    };
    match registry.invite(invitation, secret, NOW, Duration::ZERO) {
        Ok(client) => assert!(client.is_current(NOW)),
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            assert_eq!(registry.clients().count(), before);
        }
    }
}

fn rotate(
    registry: &mut ClientRegistry,
    request: &RotateKeyRequest,
    identity: StoredIdentity,
    number: u8,
) -> StoredIdentity {
    let Ok(overlap) = request.check() else {
        return identity;
    };
    if identity.previous.is_some() {
        let retired = identity.retired();
        let stored = registry.retire_key(retired.clone());
        stored.expect("there is room");
        return retired;
    }
    let old = identity.keys().current.public();
    let rotated = identity.rotated([number; 32], NOW, NOW + overlap);
    let stored = registry.rotate_key(old, &rotated);
    stored.expect("there is room");
    let previous = rotated.keys().previous.expect("both are valid");
    assert_eq!(previous.public(), old);
    rotated
}

fn check(registry: &ClientRegistry) {
    let pool = registry.pool();
    let own: Vec<_> = pool.hub().into_iter().map(|(address, _)| address).collect();
    let current: Vec<&Client> = registry
        .clients()
        .filter(|client| client.is_current(NOW))
        .collect();
    let names: BTreeSet<&Name> = current.iter().map(|client| &client.name).collect();
    assert_eq!(names.len(), current.len(), "a name is one client's");
    let given: Vec<_> = current
        .iter()
        .flat_map(|client| &client.addresses)
        .collect();
    let distinct: BTreeSet<_> = given.iter().collect();
    assert_eq!(distinct.len(), given.len(), "an address is one client's");
    assert!(
        given
            .iter()
            .all(|address| pool.has(**address) && !own.contains(address))
    );
}
