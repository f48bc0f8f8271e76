//! The SHA-256 of an API key: what is stored and compared in the key's place.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The SHA-256 of an API key. Compares in constant time; in JSON it is 64 hexadecimal digits.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key as a client presents it.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads 64 hexadecimal digits, of either case.
    ///
    /// # Errors
    /// [`InvalidDigest`] for anything else.
    pub fn from_hex(hex: &str) -> Result<Self, InvalidDigest> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return Err(InvalidDigest);
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair.iter().try_fold(0, |byte, digit| Ok(byte << 4 | nibble(*digit)?))?;
        }
        Ok(Self(digest))
    }
}

impl PartialEq for KeyDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyDigest {}

impl Hash for KeyDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Shows no more than the first four bytes: a weak key could be guessed from the whole of its digest in a log.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "KeyDigest({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

impl From<KeyDigest> for String {
    fn from(digest: KeyDigest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for KeyDigest {
    type Error = InvalidDigest;

    fn try_from(hex: String) -> Result<Self, InvalidDigest> {
        Self::from_hex(&hex)
    }
}

/// What was given as a SHA-256 is none. The text does not repeat it: people paste the key itself there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 is 64 hexadecimal digits; make it with `printf %s \"$KEY\" | sha256sum`")]
pub struct InvalidDigest;

fn nibble(digit: u8) -> Result<u8, InvalidDigest> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidDigest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_the_sha_256_of_the_key_in_hexadecimal() {
        assert_eq!(KeyDigest::of(b"abc").to_string(), ABC);
    }

    #[test]
    fn hexadecimal_of_either_case_reads_back_as_the_same_digest() {
        assert_eq!(KeyDigest::from_hex(ABC), Ok(KeyDigest::of(b"abc")));
        assert_eq!(KeyDigest::from_hex(&ABC.to_uppercase()), Ok(KeyDigest::of(b"abc")));
    }

    #[test]
    fn anything_but_64_hexadecimal_digits_is_no_digest() {
        let wide = "é".repeat(32);
        let padded = format!(" {}", &ABC[1..]);
        let signed = format!("+{}", &ABC[1..]);
        for hex in ["", "abc", &ABC[1..], &format!("{ABC}0"), &wide, &padded, &signed] {
            assert_eq!(KeyDigest::from_hex(hex), Err(InvalidDigest), "{hex}");
        }
    }

    #[test]
    fn digests_that_differ_in_any_byte_differ() {
        let digest = KeyDigest::of(b"abc");
        for byte in 0..32 {
            let mut other = digest;
            other.0[byte] ^= 1;
            assert_ne!(digest, other);
        }
    }

    #[test]
    fn debug_output_does_not_hold_the_whole_digest() {
        assert_eq!(format!("{:?}", KeyDigest::of(b"abc")), "KeyDigest(ba7816bf..)");
    }
}
