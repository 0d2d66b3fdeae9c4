//! Randomness that is a function of a seed.
//!
//! Why: in deterministic mode `random`, `uuid4`, `secrets` and `os.urandom`
//! give the same values in every run with the same seed.
//!
//! Invariant: the bytes are the ChaCha20 key stream whose key is SHA-256 of the
//! seed, on any machine; a request takes whole words of four bytes, and a
//! purpose has a stream of its own. Who knows the seed knows every byte:
//! nothing here is a secret.

use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};

use crate::environment::{RandomFailed, RandomSource};

/// What randomness is for; each has a stream of its own, so that how much of
/// one is used changes nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// What the guest asks its host for.
    Guest = 0,
    /// Seeds that the host gives to the interpreter's own generators.
    Interpreter = 1,
}

/// A random source that is the same for the same seed and purpose.
pub struct SeededRandom(Mutex<ChaCha20Rng>);

impl SeededRandom {
    /// The stream of `seed` for `purpose`, from its start.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"fumehood deterministic randomness 1");
        hash.update(seed.to_le_bytes());
        let mut generator = ChaCha20Rng::from_seed(hash.finalize().into());
        generator.set_stream(purpose as u64);
        Self(Mutex::new(generator))
    }
}

impl RandomSource for SeededRandom {
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(into);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, purpose: Purpose, sizes: &[usize]) -> Vec<u8> {
        let source = SeededRandom::new(seed, purpose);
        let mut all = Vec::new();
        for size in sizes {
            let mut bytes = vec![0; *size];
            assert_eq!(source.fill(&mut bytes), Ok(()));
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn the_seed_and_the_purpose_decide_every_byte() {
        let first = drawn(7, Purpose::Guest, &[1, 3, 64, 1000]);
        assert_eq!(first, drawn(7, Purpose::Guest, &[1, 3, 64, 1000]));
        assert_ne!(first, drawn(8, Purpose::Guest, &[1, 3, 64, 1000]));
        assert_ne!(first, drawn(7, Purpose::Interpreter, &[1, 3, 64, 1000]));
        let zeros = first.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 40, "{zeros} of {} bytes are zero", first.len());
    }

    /// A change of the generator would change every program's results. The bytes
    /// are those of `openssl enc -chacha20` with the same key.
    #[test]
    fn the_stream_is_pinned() {
        let start = drawn(0, Purpose::Guest, &[8]);
        assert_eq!(start, PINNED);
    }

    const PINNED: [u8; 8] = [0x8b, 0x47, 0x94, 0xc3, 0x42, 0x07, 0xff, 0xac];
}
