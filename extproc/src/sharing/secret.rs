//! The secret that hashes of prompts depend on, from a file.

use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The seed that the secret in a file makes, by SHA-256 of its text without white space around it; never 0.
///
/// # Errors
/// When the file cannot be read, or holds nothing.
pub fn secret_in(file: &Path) -> io::Result<u64> {
    let text = std::fs::read(file)?;
    match text.trim_ascii() {
        [] => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty; write a long random text into it")),
        secret => Ok(seed(secret)),
    }
}

fn seed(secret: &[u8]) -> u64 {
    let digest: [u8; 32] = Sha256::digest(secret).into();
    let (first, _) = digest.split_first_chunk().unwrap_or((&[0; 8], &[]));
    // 0 is how it is said that there is none.
    u64::from_le_bytes(*first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_the_same_with_and_without_white_space_around_it() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = directory.path().join("secret");
            std::fs::write(&file, text).unwrap();
            secret_in(&file).map_err(|error| error.to_string())
        };
        // The first eight bytes of SHA-256("abc"), ba7816bf8f01cfea, little endian.
        assert_eq!(read("abc"), Ok(0xeacf_018f_bf16_78ba));
        assert_eq!(read("\n abc\r\n"), read("abc"));
        assert_ne!(read("a bc"), read("abc"));
        assert!(read(" \n").unwrap_err().contains("empty"));
        assert!(secret_in(&directory.path().join("none")).is_err());
    }
}
