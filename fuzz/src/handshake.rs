//! Handshake messages of the bond's protocol.

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::mac::MacKey;
use braid_bond::proto::handshake::{
    Attempt, Ciphers, CookieReply, Identity, Initiation, Listener, Options, Psk, PublicKey, Reset,
    Response, Start,
};
use braid_bond::proto::packet::SessionIndex;
use braid_bond::proto::seal::Cipher;
use braid_core::Time;
use braid_multipath::LinkId;

/// No forged message is accepted, and the handshake in progress succeeds all the same. The input is
/// sent twice: as it is, and with its MACs corrected, as anyone can do who knows the public keys
/// and sees the packets.
pub fn handshake(data: &[u8]) {
    let client = Identity::new([1; 32]);
    let server = Identity::new([2; 32]);
    let mut listener = Listener::new(Time::ZERO, server.clone(), Entropy::new(&[3; 32]));
    listener.insert(client.public(), Psk::default());
    let start = Start {
        index: index(7),
        continues: None,
        micros: 1,
        ciphers: Ciphers::preferring(Cipher::Aes256Gcm),
        options: Options::new(),
    };
    let mut entropy = Entropy::new(&[4; 32]);
    let (psk, to) = (Psk::default(), server.public());
    let mut attempt = Attempt::new(&client, to, &psk, start, &mut entropy);
    let mut said = Vec::new();
    attempt.append(LinkId(0), &mut said);

    listen(&mut listener, data);
    listen(&mut listener, &mended(data, to));
    hear(&mut attempt, data);
    hear(&mut attempt, &answering(data, &client, &said));
    heed(&mut attempt, data, to, &said);
    if let Some(options) = Options::parse(data) {
        assert!(data.starts_with(options.as_bytes()));
        assert!(options.iter().all(|(kind, _)| kind != 0));
    }
    if let Some(reset) = Reset::parse(data) {
        let mut again = Vec::new();
        reset.append(&mut again);
        assert_eq!(again, data);
    }

    let from = ([192, 0, 2, 2], 2).into();
    let answer = listener.handle_initiation(Time::ZERO, from, &said);
    let Ok(braid_bond::proto::handshake::HandshakeAction::Offer(offer)) = answer else {
        panic!("{answer:?}")
    };
    let ciphers = Ciphers::preferring(Cipher::Aes256Gcm);
    let accepted = listener
        .accept(
            Time::ZERO,
            *offer,
            index(8),
            false,
            ciphers,
            &Options::new(),
        )
        .expect("nobody else was accepted");
    attempt
        .handle_response(Time::ZERO, &accepted.reply)
        .expect("it is genuine");
}

fn index(number: u8) -> SessionIndex {
    SessionIndex::new([0, 0, number]).expect("not zero")
}

fn listen(listener: &mut Listener, data: &[u8]) {
    let from = ([192, 0, 2, 1], 1).into();
    let answer = listener.handle_initiation(Time::ZERO, from, data);
    assert!(answer.is_err(), "{answer:?}");
}

fn hear(attempt: &mut Attempt, data: &[u8]) {
    assert!(attempt.handle_response(Time::ZERO, data).is_err());
    assert!(attempt.handle_cookie(data).is_err());
    if let Ok(response) = Response::parse(data) {
        assert!(data.starts_with(response.before_mac1));
    }
}

/// Takes a cookie reply sealed by anyone who sees the packets: message 1 carries its cookie, and
/// the handshake goes on.
fn heed(attempt: &mut Attempt, data: &[u8], hub: PublicKey, said: &[u8]) {
    let Some((cookie, salt)) = data.split_first_chunk::<16>() else {
        return;
    };
    let Some(salt) = salt.first_chunk::<16>() else {
        return;
    };
    let Ok(initiation) = Initiation::parse(said) else {
        return;
    };
    let reply = CookieReply {
        link: LinkId(0),
        cookie: *cookie,
    };
    let mut datagram = Vec::new();
    reply.append(hub, initiation.mac1, *salt, &mut datagram);
    assert_eq!(attempt.handle_cookie(&datagram), Ok(LinkId(0)));
    let mut again = Vec::new();
    attempt.append(LinkId(0), &mut again);
    assert_eq!(again[..again.len() - 16], said[..said.len() - 16]);
    if let Some(last) = datagram.last_mut() {
        *last ^= 1;
    }
    assert!(attempt.handle_cookie(&datagram).is_err());
}

/// Returns an initiation of this size, to this key, with a correct MAC.
fn mended(data: &[u8], to: PublicKey) -> Vec<u8> {
    let mut data = data.to_vec();
    if let Ok(initiation) = Initiation::parse(&data) {
        let mac = MacKey::of(to).sign(&[initiation.before_mac1]);
        let at = data.len() - 32;
        data[at..at + 16].copy_from_slice(&mac);
    }
    data
}

/// Returns a response to the initiation, with a correct MAC.
fn answering(data: &[u8], to: &Identity, said: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if let Ok(response) = Response::parse(&data) {
        let parts = [response.before_mac1, &said[3..35]];
        let mac = MacKey::of(to.public()).sign(&parts);
        let at = data.len() - 16;
        data[at..].copy_from_slice(&mac);
    }
    data
}
