//! Keys and signatures.
//!
//! What: an install key certifies a key for each session; the session's key
//! signs lines.
//!
//! Invariant: what is signed begins with a text that names its purpose, so
//! that no signature can be used for another. A session's key is in memory
//! only, cannot be copied out of [`SessionKey`], and is zeroed when dropped.

use ed25519_dalek::{Signature as RawSignature, Signer as _, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::audit::line::{Bytes, Hash, Signature};
use crate::environment::{RandomFailed, RandomSource};

const CERTIFICATE: &str = "fumehood audit certificate v1\n";

/// Which file a signed line is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Log,
    Witness,
}

impl Purpose {
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Log => b"fumehood audit log v1\n",
            Self::Witness => b"fumehood audit witness v1\n",
        }
    }
}

/// The signer cannot sign; then no log is opened.
#[derive(Debug, thiserror::Error)]
#[error("the install key cannot sign: {0}")]
pub struct SignerFailed(pub String);

/// Holds the install key: it certifies the key of every session.
pub trait Signer: Send + Sync {
    /// The Ed25519 public key.
    fn public_key(&self) -> [u8; 32];

    /// Signs a message with Ed25519 (RFC 8032, not prehashed).
    ///
    /// # Errors
    /// [`SignerFailed`] if it cannot.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerFailed>;
}

/// An install key in the memory of this process.
pub struct LocalSigner(SigningKey);

impl std::fmt::Debug for LocalSigner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LocalSigner({})", Bytes(self.public_key()))
    }
}

impl LocalSigner {
    /// The key of a 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }
}

impl Signer for LocalSigner {
    fn public_key(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerFailed> {
        Ok(self.0.sign(message).to_bytes())
    }
}

/// The key of one session, with its certificate.
pub(crate) struct SessionKey {
    key: SigningKey,
    pub(crate) public: Hash,
    pub(crate) install: Hash,
    pub(crate) cert: Signature,
}

/// Why a session has no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no randomness.
    #[error(transparent)]
    Random(#[from] RandomFailed),
    /// The install key does not sign.
    #[error(transparent)]
    Signer(#[from] SignerFailed),
}

impl SessionKey {
    /// A new key for a session, certified.
    pub(crate) fn new(
        session: &str,
        signer: &dyn Signer,
        random: &dyn RandomSource,
    ) -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        random.fill(seed.as_mut())?;
        let key = SigningKey::from_bytes(&seed);
        let public = Bytes(key.verifying_key().to_bytes());
        let cert = Bytes(signer.sign(&certificate(session, &public))?);
        Ok(Self { key, public, install: Bytes(signer.public_key()), cert })
    }

    /// Signs the start of a line.
    pub(crate) fn sign(&self, purpose: Purpose, start: &[u8]) -> Signature {
        Bytes(self.key.sign(&[purpose.prefix(), start].concat()).to_bytes())
    }
}

fn certificate(session: &str, key: &Hash) -> Vec<u8> {
    format!("{CERTIFICATE}{session}\n{key}\n").into_bytes()
}

/// Whether the install key certified this key for this session.
pub(crate) fn is_certified(install: &Hash, session: &str, key: &Hash, cert: &Signature) -> bool {
    verify(install, &certificate(session, key), cert)
}

/// What a signature takes at the end of a line.
const SIGNATURE_FIELD_BYTES: usize = ",\"sig\":\"\"}".len() + 128;

/// Whether the key signed the line that it is part of. The line is canonical,
/// so that its signature is its last field.
pub(crate) fn is_signed(purpose: Purpose, key: &Hash, line: &[u8], signature: &Signature) -> bool {
    let end = line.len().saturating_sub(SIGNATURE_FIELD_BYTES);
    let start = line.get(..end).unwrap_or_default();
    verify(key, &[purpose.prefix(), start].concat(), signature)
}

fn verify(key: &Hash, message: &[u8], signature: &Signature) -> bool {
    VerifyingKey::from_bytes(&key.0)
        .and_then(|key| key.verify_strict(message, &RawSignature::from_bytes(&signature.0)))
        .is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::environment::OsRandom;

    #[test]
    fn a_key_is_certified_for_one_session_and_signs_for_one_purpose() {
        let signer = LocalSigner::from_seed(&[7; 32]);
        let key = SessionKey::new("fh-1", &signer, &OsRandom).unwrap();
        assert!(is_certified(&key.install, "fh-1", &key.public, &key.cert));
        assert!(!is_certified(&key.install, "fh-2", &key.public, &key.cert));
        assert!(!is_certified(&key.public, "fh-1", &key.public, &key.cert));
        let start = br#"{"seq":1"#;
        let signature = key.sign(Purpose::Log, start);
        let line = format!("{{\"seq\":1,\"sig\":\"{signature}\"}}");
        assert!(is_signed(Purpose::Log, &key.public, line.as_bytes(), &signature));
        assert!(!is_signed(Purpose::Witness, &key.public, line.as_bytes(), &signature));
        assert!(!is_signed(Purpose::Log, &key.install, line.as_bytes(), &signature));
        assert!(!is_signed(Purpose::Log, &key.public, b"", &signature));
        assert!(!format!("{signer:?}").contains("0707"));
    }
}
