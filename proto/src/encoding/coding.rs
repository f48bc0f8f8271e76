//! The names of content codings, and lists of them as `content-encoding` has them.

/// A content coding that we can undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `gzip` (RFC 1952), which old clients call `x-gzip`.
    Gzip,
    /// `deflate`: the zlib format (RFC 1950), or what many take it for, deflate without it (RFC 1951).
    Deflate,
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878), with windows of at most 8 MiB (RFC 9659).
    Zstd,
}

impl Coding {
    /// Every coding.
    pub const ALL: [Self; 4] = [Self::Gzip, Self::Brotli, Self::Zstd, Self::Deflate];

    /// All of them as a header lists them.
    pub const NAMES: &'static str = "gzip, br, zstd, deflate";

    /// Its registered name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// The coding of that name, without regard to case (RFC 9110, section 8.4.1).
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("x-gzip") {
            return Some(Self::Gzip);
        }
        Self::ALL.into_iter().find(|coding| name.eq_ignore_ascii_case(coding.name()))
    }

    /// What else valid data has to be.
    pub(super) const fn condition(self) -> &'static str {
        match self {
            Self::Zstd => " with a window of at most 8 MiB",
            Self::Gzip | Self::Deflate | Self::Brotli => "",
        }
    }
}

/// The codings of one body, in the order in which they were applied. None of them is `identity`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Codings(Vec<Coding>);

/// Codings that we cannot undo.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownCoding {
    /// One that we do not know.
    #[error("content-encoding `{0}` is not understood here")]
    Name(String),
    /// More than anybody has a reason for.
    #[error("no more than {MAX_CODINGS} content codings are undone here")]
    TooMany,
}

/// How many codings may be stacked. Each has a decoder of its own.
const MAX_CODINGS: usize = 3;

impl Codings {
    /// Reads all values of a body's `content-encoding`.
    ///
    /// # Errors
    /// [`UnknownCoding`]: the first that we cannot undo.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, UnknownCoding> {
        let mut codings = Vec::new();
        for value in values {
            for name in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                // Empty elements of a list count for nothing (RFC 9110, section 5.6.1.2).
                if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                    continue;
                }
                let coding = std::str::from_utf8(name).ok().and_then(Coding::from_name);
                codings.push(coding.ok_or_else(|| UnknownCoding::Name(quoted(name)))?);
                if codings.len() > MAX_CODINGS {
                    return Err(UnknownCoding::TooMany);
                }
            }
        }
        Ok(Self(codings))
    }

    /// Whether there is nothing to undo.
    pub fn is_identity(&self) -> bool {
        self.0.is_empty()
    }

    /// The codings, in the order in which they were applied.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Coding> {
        self.0.iter().copied()
    }
}

impl From<Coding> for Codings {
    fn from(coding: Coding) -> Self {
        Self(vec![coding])
    }
}

/// A name as an error may quote it.
fn quoted(name: &[u8]) -> String {
    const LONGEST_BYTES: usize = 64;
    String::from_utf8_lossy(name.get(..LONGEST_BYTES).unwrap_or(name)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Codings, UnknownCoding> {
        Codings::parse(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn codings_are_listed_in_the_order_in_which_they_were_applied() {
        assert_eq!(parse(&["gzip"]), Ok(Coding::Gzip.into()));
        assert_eq!(parse(&["gzip, br", "zstd"]), Ok(Codings(vec![Coding::Gzip, Coding::Brotli, Coding::Zstd])));
        assert_eq!(parse(&[" DEFLATE ,,X-GZip,"]), Ok(Codings(vec![Coding::Deflate, Coding::Gzip])));
    }

    #[test]
    fn identity_and_nothing_are_no_coding() {
        for values in [&[][..], &[""], &["identity"], &["Identity, ,identity", " "]] {
            assert!(parse(values).unwrap().is_identity(), "{values:?}");
        }
        assert_eq!(parse(&["identity, br"]), Ok(Coding::Brotli.into()));
    }

    #[test]
    fn what_is_unknown_is_named_at_a_bounded_length() {
        assert_eq!(parse(&["gzip, aes128gcm"]), Err(UnknownCoding::Name("aes128gcm".to_owned())));
        assert_eq!(parse(&["gzip;q=1"]), Err(UnknownCoding::Name("gzip;q=1".to_owned())));
        assert_eq!(parse(&[&"x".repeat(9_000)]), Err(UnknownCoding::Name("x".repeat(64))));
        assert_eq!(
            Codings::parse([&b"gz\xffip"[..]]).unwrap_err().to_string(),
            "content-encoding `gz\u{fffd}ip` is not understood here"
        );
    }

    #[test]
    fn three_codings_may_be_stacked_and_no_more() {
        assert!(parse(&["gzip, gzip, gzip"]).is_ok());
        assert_eq!(parse(&["gzip, gzip", "gzip, gzip"]), Err(UnknownCoding::TooMany));
    }

    #[test]
    fn the_list_of_names_is_that_of_the_codings() {
        assert_eq!(Coding::ALL.map(Coding::name).join(", "), Coding::NAMES);
        assert_eq!(Coding::ALL.map(|coding| Coding::from_name(coding.name())), Coding::ALL.map(Some));
    }
}
