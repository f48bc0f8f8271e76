//! Which codings an answer may have: what the client accepts, as far as we can read it.

use super::Coding;

/// What to say in `accept-encoding` for a client that says this: of what it names, what we can undo, with its weights; what it
/// means by `*`, by name; `identity` if nothing is left.
pub fn acceptable<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> String {
    let text: Vec<_> = values.into_iter().map(String::from_utf8_lossy).collect();
    let members: Vec<Member<'_>> = text.iter().flat_map(|value| value.split(',')).map(Member::read).collect();
    let is_named = |coding| members.iter().any(|member| Coding::from_name(member.name) == Some(coding));
    let mut accepted = String::new();
    let mut accept = |name: &str, weight: Option<&str>| {
        let separator = if accepted.is_empty() { "" } else { ", " };
        accepted.extend([separator, name]);
        accepted.extend(weight.iter().flat_map(|weight| [";", weight]));
    };
    for Member { name, weight } in &members {
        if *name == "*" {
            Coding::ALL
                .into_iter()
                .filter(|coding| !is_named(*coding))
                .for_each(|coding| accept(coding.name(), *weight));
        } else if Coding::from_name(name).is_some() || name.eq_ignore_ascii_case("identity") {
            accept(name, *weight);
        }
    }
    if accepted.is_empty() { "identity".to_owned() } else { accepted }
}

/// One element of the list.
struct Member<'a> {
    name: &'a str,
    /// With its `q=`.
    weight: Option<&'a str>,
}

impl<'a> Member<'a> {
    fn read(member: &'a str) -> Self {
        match member.split_once(';') {
            Some((name, weight)) => Self { name: name.trim(), weight: Some(weight.trim()) },
            None => Self { name: member.trim(), weight: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::acceptable;

    fn of(values: &[&str]) -> String {
        acceptable(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn what_we_can_undo_goes_on_with_its_weights() {
        assert_eq!(of(&["gzip, deflate, br, zstd"]), "gzip, deflate, br, zstd");
        assert_eq!(
            of(&["br;q=1.0, compress , GZip ; q=0.8,dcb", "identity;q=0"]),
            "br;q=1.0, GZip;q=0.8, identity;q=0"
        );
        assert_eq!(of(&["x-gzip"]), "x-gzip");
    }

    #[test]
    fn an_asterisk_stands_for_all_that_is_not_named() {
        assert_eq!(of(&["*"]), "gzip, br, zstd, deflate");
        assert_eq!(of(&["br, *;q=0.1"]), "br, gzip;q=0.1, zstd;q=0.1, deflate;q=0.1");
        assert_eq!(of(&["X-Gzip;q=0, *"]), "X-Gzip;q=0, br, zstd, deflate");
        assert_eq!(of(&["gzip, *;q=0"]), "gzip, br;q=0, zstd;q=0, deflate;q=0");
    }

    #[test]
    fn identity_is_what_is_left_where_nothing_is() {
        for values in [&[][..], &[""], &["compress"], &["dcz;q=1, ,", ";q=1"]] {
            assert_eq!(of(values), "identity", "{values:?}");
        }
    }
}
