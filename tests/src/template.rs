//! The addresses of model servers, put into the operator's YAML.
//!
//! `${MODELS}` is the list of all of them as a Backend's `endpoints`; `${MODEL_0}` is the port of the first on 127.0.0.1.

use std::{fmt::Write, net::SocketAddr};

use crate::error::{Error, Result};

/// Fills a template.
///
/// # Errors
/// When it names something else, or a model server that there is not.
pub fn fill(template: &str, models: &[SocketAddr]) -> Result<String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        text.push_str(before);
        let filled = after.split_once('}').and_then(|(name, after)| Some((value(name, models)?, after)));
        let Some((value, after)) = filled else {
            let what = format!("no `${{MODELS}}` and no `${{MODEL_n}}` of {} model servers", models.len());
            return Err(Error::unexpected(what, after.lines().next().unwrap_or_default()));
        };
        text.push_str(&value);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn value(name: &str, models: &[SocketAddr]) -> Option<String> {
    if name == "MODELS" {
        let mut list = String::new();
        for address in models {
            // Writing to a string does not fail.
            let _ = write!(list, "{{ip: {{address: \"{}\", port: {}}}}}, ", address.ip(), address.port());
        }
        return Some(format!("[{}]", list.trim_end_matches(", ")));
    }
    let model = name.strip_prefix("MODEL_")?.parse::<usize>().ok()?;
    models.get(model).map(|address| address.port().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_filled_in_and_what_is_not_there_is_an_error() {
        let models = ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        assert_eq!(fill("a: ${MODEL_1}, b: ${MODEL_0}", &models).unwrap(), "a: 2, b: 1");
        assert_eq!(
            fill("endpoints: ${MODELS}", &models).unwrap(),
            r#"endpoints: [{ip: {address: "127.0.0.1", port: 1}}, {ip: {address: "127.0.0.1", port: 2}}]"#
        );
        for wrong in ["${MODEL_2}", "${MODEL}", "${", "${MODELS"] {
            assert!(fill(wrong, &models).is_err(), "{wrong}");
        }
    }
}
