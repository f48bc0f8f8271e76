//! Where Envoy Gateway finds the Wasm filter, and the hash by which it knows it again.

/// The filter: a file on a server, or an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmSource {
    /// `https://...`, `http://...`, `oci://REGISTRY/IMAGE:TAG` or `oci://REGISTRY/IMAGE@sha256:DIGEST`.
    pub url: String,
    /// The SHA-256 of the file, or the digest of the image, which is another: 64 hexadecimal digits in lower case.
    pub sha256: String,
}

const OCI: &str = "oci://";

impl WasmSource {
    /// What the command line says of it. A digest in the URL is the hash.
    ///
    /// # Errors
    /// [`InvalidWasm`] where one of the two is missing or wrong.
    pub fn from_parts(url: Option<String>, sha256: Option<String>) -> Result<Option<Self>, InvalidWasm> {
        // An empty variable is how deployments say "none".
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (url, sha256) = match (given(url), given(sha256)) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(InvalidWasm::NoUrl),
            (Some(url), sha256) => (url, sha256.map(|digits| digits.to_ascii_lowercase())),
        };
        let Some(place) = ["https://", "http://", OCI].iter().find_map(|scheme| url.strip_prefix(scheme)) else {
            return Err(InvalidWasm::Url(url));
        };
        let (place, digest) = match place.split_once("@sha256:").filter(|_| url.starts_with(OCI)) {
            Some((image, digest)) => (image, Some(digest)),
            None => (place, None),
        };
        if place.is_empty() || place.contains(|letter: char| letter.is_whitespace() || letter == '@') {
            return Err(InvalidWasm::Url(url));
        }
        if digest.is_some_and(|digest| !is_sha256(digest) || digest != digest.to_ascii_lowercase()) {
            return Err(InvalidWasm::Url(url));
        }
        let sha256 = match (sha256, digest) {
            (Some(said), _) if !is_sha256(&said) => return Err(InvalidWasm::Hash(said)),
            (Some(said), Some(digest)) if said != digest => return Err(InvalidWasm::OtherDigest { url, said }),
            (Some(said), _) => said,
            (None, Some(digest)) => digest.to_owned(),
            (None, None) if url.starts_with(OCI) => return Err(InvalidWasm::NoDigest(url)),
            (None, None) => return Err(InvalidWasm::NoHash(url)),
        };
        Ok(Some(Self { url, sha256 }))
    }

    /// The image without its scheme, which Envoy Gateway adds itself.
    pub(super) fn image(&self) -> Option<&str> {
        self.url.strip_prefix(OCI)
    }
}

fn is_sha256(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// What is wrong with `--wasm-url` and `--wasm-sha256`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWasm {
    /// Without it Envoy Gateway runs whatever stands at the URL.
    #[error(
        "--wasm-url without --wasm-sha256: Envoy Gateway would run in every proxy whatever {0} serves; give the file's hash \
         (`sha256sum attache_wasm_filter.wasm`)"
    )]
    NoHash(String),
    /// The same of an image.
    #[error(
        "--wasm-url without --wasm-sha256: Envoy Gateway would run in every proxy whatever {0} is by then; give the image's \
         digest (`crane digest --platform linux/amd64 IMAGE`), which is not the file's hash, or write it as \
         oci://REGISTRY/IMAGE@sha256:DIGEST"
    )]
    NoDigest(String),
    /// A hash of nothing.
    #[error("--wasm-sha256 without --wasm-url: say where Envoy Gateway finds the file")]
    NoUrl,
    /// Not one of the forms.
    #[error(
        "--wasm-url: `{0}` is no URL; write https://HOST/PATH, http://HOST/PATH, oci://REGISTRY/IMAGE:TAG or \
         oci://REGISTRY/IMAGE@sha256:DIGEST with 64 hexadecimal digits"
    )]
    Url(String),
    /// Not a SHA-256.
    #[error(
        "--wasm-sha256: `{0}` is no SHA-256, which has 64 hexadecimal digits (of a file `sha256sum \
         attache_wasm_filter.wasm`, of an image its digest)"
    )]
    Hash(String),
    /// Envoy Gateway would find neither.
    #[error(
        "--wasm-sha256: `{said}` is not the digest in {url}; of an image the hash is its digest, not the file's: leave it out"
    )]
    OtherDigest {
        /// With its digest.
        url: String,
        /// The hash beside it.
        said: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wasm(url: &str, sha256: &str) -> Result<Option<WasmSource>, InvalidWasm> {
        WasmSource::from_parts(Some(url.to_owned()), Some(sha256.to_owned()))
    }

    #[test]
    fn a_filter_needs_its_hash() {
        let hash = "a5".repeat(32);
        let source = wasm("https://files.example/a.wasm", &hash.to_uppercase()).unwrap().unwrap();
        assert_eq!(source.sha256, hash);
        assert!(wasm("http://files.internal/a.wasm", &hash).unwrap().is_some());
        assert_eq!(wasm("", ""), Ok(None));
        assert_eq!(wasm("https://a.example/a", ""), Err(InvalidWasm::NoHash("https://a.example/a".to_owned())));
        assert_eq!(wasm("", &hash), Err(InvalidWasm::NoUrl));
        for bad in ["a5", &"g".repeat(64), &"a5".repeat(33)] {
            assert!(matches!(wasm("https://a.example/a", bad), Err(InvalidWasm::Hash(_))), "{bad}");
        }
        for bad in ["files.example/a.wasm", "https://", "ftp://a/b", "https://a b", "https://user:pw@a/b"] {
            assert!(matches!(wasm(bad, &hash), Err(InvalidWasm::Url(_))), "{bad}");
        }
    }

    #[test]
    fn an_images_hash_is_its_digest_wherever_that_stands() {
        let digest = "a5".repeat(32);
        let with_digest = format!("oci://registry.example:5000/attache@sha256:{digest}");
        for said in ["", &digest] {
            let source = wasm(&with_digest, said).unwrap().unwrap();
            assert_eq!(source.sha256, digest);
            assert_eq!(source.image(), with_digest.strip_prefix("oci://"));
        }
        let tagged = wasm("oci://registry.example/attache:1", &digest).unwrap().unwrap();
        assert_eq!((tagged.image(), &tagged.sha256), (Some("registry.example/attache:1"), &digest));
        let other = wasm(&with_digest, &"b6".repeat(32)).unwrap_err();
        assert!(matches!(other, InvalidWasm::OtherDigest { .. }), "{other}");
        let none = wasm("oci://registry.example/attache:1", "").unwrap_err();
        assert!(none.to_string().contains("the image's digest") && !none.to_string().contains("sha256sum"), "{none}");
        let wrong = [
            "oci://registry.example/attache@sha256:a5".to_owned(),
            format!("oci://@sha256:{digest}"),
            format!("oci://registry.example/a@b@sha256:{digest}"),
            format!("oci://registry.example/a@sha512:{digest}"),
            format!("oci://registry.example/a@sha256:{}", digest.to_uppercase()),
            format!("https://files.example/a@sha256:{digest}"),
        ];
        for bad in wrong {
            assert!(matches!(wasm(&bad, &digest), Err(InvalidWasm::Url(_))), "{bad}");
        }
    }
}
