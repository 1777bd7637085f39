//! Secrets on disk, sealed by a key that is not on it.
//!
//! The key is made from a credential that the service manager gives ([`CREDENTIAL`]): systemd decrypts it when it starts
//! the service, by the TPM if the machine has one (systemd-creds(1)), and shows it to that service alone. Without it the
//! secrets are on disk as they are.
//!
//! ```text
//! 0       1
//! 1..32   salt
//! 33..    sealed: contents; tag 16
//! ```
//! Sealed by AES-256-GCM with a zero nonce, the name of the contents as associated data, and the key
//! HMAC-SHA256(HMAC-SHA256("braid seal", credential), salt). The salt is random, so no key is used twice, however often
//! contents are replaced; the name keeps one piece of contents from being put in the place of another.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::user_error::UserError;

/// Name of the credential.
pub const CREDENTIAL: &str = "braid.seal";

/// Least length of the credential: that of the key that is made from it.
pub const MIN_CREDENTIAL_BYTES: usize = 32;

/// Directory of the service's credentials (systemd.exec(5)).
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

const VERSION: u8 = 1;
const SALT_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// Error of sealed contents, or of the credential.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The credential cannot be read.
    #[error("credential {CREDENTIAL}: {}: {source}", path.display())]
    Unreadable {
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The credential is too short for a key.
    #[error("credential {CREDENTIAL}: {} has {bytes} bytes, and {MIN_CREDENTIAL_BYTES} are needed", path.display())]
    Short {
        /// Its file.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// The contents are sealed, and there is no credential.
    #[error("sealed, and there is no credential {CREDENTIAL} to open it")]
    Missing,
    /// The contents were sealed by another key, under another name, or have been changed.
    #[error("sealed by another credential {CREDENTIAL} than this one, or changed since")]
    Forged,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

impl SealError {
    /// Returns the next step.
    #[must_use]
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            SealError::Short { .. } => Some(
                "make one by: head -c 32 /dev/urandom | systemd-creds encrypt --name=braid.seal - FILE",
            ),
            SealError::Missing => Some(
                "have its unit load it: LoadCredentialEncrypted=braid.seal:FILE (security.md, Sealed secrets)",
            ),
            SealError::Forged => Some("give it the credential by which it was sealed"),
            SealError::Unreadable { .. } | SealError::Random => None,
        }
    }
}

impl From<SealError> for UserError {
    fn from(error: SealError) -> UserError {
        let failure = UserError::new("seal", error.to_string());
        match error.fix() {
            Some(fix) => failure.fix(fix),
            None => failure,
        }
    }
}

/// The key that seals this machine's secrets.
#[derive(Clone)]
pub struct SealKey(Arc<Root>);

/// The key from which those of single contents are made, overwritten on drop.
struct Root(hmac::Key);

impl Root {
    fn erase(&mut self) {
        self.0 = hmac::Key::new(HMAC_SHA256, &[]);
        // Lest the compiler leave out a write that nobody reads.
        std::hint::black_box(&self.0);
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.erase();
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(…)")
    }
}

impl SealKey {
    /// Returns the key of this service; `None` if its unit loads no such credential.
    ///
    /// # Errors
    /// The credential cannot be read or is too short.
    pub fn from_environment() -> Result<Option<SealKey>, SealError> {
        match env::var_os(DIRECTORY) {
            Some(folder) => SealKey::from_directory(Path::new(&folder)),
            None => Ok(None),
        }
    }

    /// Returns the key of the credential in a directory; `None` if it is not there.
    ///
    /// # Errors
    /// The credential cannot be read or is too short.
    pub fn from_directory(folder: &Path) -> Result<Option<SealKey>, SealError> {
        let path = folder.join(CREDENTIAL);
        let credential = match fs::read(&path) {
            Ok(credential) => Zeroizing::new(credential),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SealError::Unreadable { path, source }),
        };
        if credential.len() < MIN_CREDENTIAL_BYTES {
            let bytes = credential.len();
            return Err(SealError::Short { path, bytes });
        }
        let root = hmac::sign(&hmac::Key::new(HMAC_SHA256, b"braid seal"), &credential);
        let root = hmac::Key::new(HMAC_SHA256, root.as_ref());
        Ok(Some(SealKey(Arc::new(Root(root)))))
    }

    /// Seals contents under a name.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn seal(&self, name: &str, contents: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut salt = [0; SALT_BYTES];
        let drawn = SystemRandom::new().fill(&mut salt);
        drawn.map_err(|_| SealError::Random)?;
        let mut sealed = Vec::with_capacity(1 + SALT_BYTES + contents.len() + TAG_BYTES);
        sealed.push(VERSION);
        sealed.extend_from_slice(&salt);
        sealed.extend_from_slice(contents);
        let tag = self
            .key(&salt)
            .seal_in_place_separate_tag(
                zero(),
                Aad::from(name.as_bytes()),
                &mut sealed[1 + SALT_BYTES..],
            )
            .expect("contents are far below the cipher's limit");
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens what was sealed under this name.
    ///
    /// # Errors
    /// [`SealError::Forged`].
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let body = sealed.strip_prefix(&[VERSION]).ok_or(SealError::Forged)?;
        let (salt, sealed) = body
            .split_first_chunk::<SALT_BYTES>()
            .ok_or(SealError::Forged)?;
        let mut contents = Zeroizing::new(sealed.to_vec());
        let opened = self
            .key(salt)
            .open_in_place(zero(), Aad::from(name.as_bytes()), &mut contents)
            .map_err(|_| SealError::Forged)?;
        let length = opened.len();
        contents.truncate(length);
        Ok(contents)
    }

    fn key(&self, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
        let key = hmac::sign(&self.0.0, salt);
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref());
        LessSafeKey::new(key.expect("the cipher has keys of 32 bytes"))
    }
}

fn zero() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of a credential that consists of this byte.
    fn key(byte: u8) -> SealKey {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CREDENTIAL), [byte; 32]).unwrap();
        let key = SealKey::from_directory(folder.path()).unwrap();
        key.expect("there is one")
    }

    #[test]
    fn sealed_contents_open_by_the_same_credential_under_the_same_name_alone() {
        let contents = b"the hub's private key";
        let sealed = key(1).seal("hub/key", contents).unwrap();
        assert_eq!(*key(1).open("hub/key", &sealed).unwrap(), contents);
        let shows = |part: &[u8]| sealed.windows(part.len()).any(|window| window == part);
        assert!(!shows(b"private"));
        let again = key(1).seal("hub/key", contents).unwrap();
        assert_ne!(again[1 + SALT_BYTES..], sealed[1 + SALT_BYTES..]);
        let fails = |key: SealKey, name, sealed: &[u8]| {
            let opened = key.open(name, sealed);
            assert!(matches!(opened, Err(SealError::Forged)), "{opened:?}");
        };
        fails(key(2), "hub/key", &sealed);
        fails(key(1), "clients/1", &sealed);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            fails(key(1), "hub/key", &changed);
            fails(key(1), "hub/key", &sealed[..at]);
        }
    }

    #[test]
    fn the_key_is_overwritten_on_drop() {
        let SealKey(root) = key(1);
        let mut root = Arc::into_inner(root).expect("nobody else has it");
        let tag = |root: &Root| hmac::sign(&root.0, b"").as_ref().to_vec();
        let before = tag(&root);
        // Same as `drop`, with the memory still there for inspection.
        root.erase();
        assert_ne!(tag(&root), before);
        assert_eq!(tag(&root), tag(&Root(hmac::Key::new(HMAC_SHA256, &[]))));
    }

    #[test]
    fn a_credential_that_is_no_key_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SealKey::from_directory(folder.path()).unwrap().is_none());
        let file = folder.path().join(CREDENTIAL);
        fs::write(&file, [7; 31]).unwrap();
        let short = UserError::from(SealKey::from_directory(folder.path()).unwrap_err());
        let text = format!(
            "credential braid.seal: {} has 31 bytes, and 32 are needed",
            file.display()
        );
        assert_eq!(short.text, text);
        assert!(short.fix.unwrap().contains("systemd-creds encrypt"));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let unreadable = SealKey::from_directory(folder.path());
        assert!(matches!(unreadable, Err(SealError::Unreadable { .. })));
    }

    /// Made by `braid_sdn`: tests/sdn/test_web.py has it as well.
    #[test]
    fn the_controller_seals_in_the_same_format() {
        use base64::Engine;
        let sealed =
            "AWRlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKD8p3Mbihf57ToYLYcfqRJW58+m6XKbAPRG3s=";
        let sealed = base64::engine::general_purpose::STANDARD.decode(sealed);
        let folder = tempfile::tempdir().unwrap();
        let credential: Vec<u8> = (0..32).collect();
        fs::write(folder.path().join(CREDENTIAL), credential).unwrap();
        let key = SealKey::from_directory(folder.path()).unwrap().unwrap();
        let opened = key.open("bond.json", &sealed.unwrap()).unwrap();
        assert_eq!(*opened, br#""a secret""#);
    }
}
