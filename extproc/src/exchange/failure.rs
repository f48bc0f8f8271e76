//! Why an upstream could not even be asked, as Envoy says it (`upstream.transport_failure_reason`).

use std::sync::Arc;

/// A connection that failed for its TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Arc<str>);

/// Longer texts are cut: some of it comes from certificates of whoever answers.
const MOST_CHARACTERS: usize = 300;

impl Failure {
    /// `None` for a text that is not about TLS. Envoy 1.40 writes `TLS_error:|268435581:SSL
    /// routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED:...:TLS_error_end`, with underscores or blanks.
    pub fn of_tls(reason: &str) -> Option<Self> {
        let (_, error) = reason.split_once("TLS_error:")?;
        let error = error.split(":TLS_error_end").next().unwrap_or_default();
        let says = |name: &str| error.contains(name);
        // https://github.com/google/boringssl, include/openssl/ssl.h
        let meaning = if says("CERTIFICATE_VERIFY_FAILED") {
            "its certificate is not trusted, or is not for this name"
        } else if says("WRONG_VERSION_NUMBER") || says("HTTP_REQUEST") || says("INVALID_OUTER_RECORD_TYPE") {
            "what answers there is not TLS"
        } else if says("UNSUPPORTED_PROTOCOL") || says("PROTOCOL_VERSION") {
            "it has no version of TLS in common with Envoy"
        } else if says("WRONG_CURVE")
            || says("BAD_ECC_CERT")
            || says("WRONG_SIGNATURE_TYPE")
            || says("NO_COMMON_SIGNATURE")
        {
            "the kind of its certificate's key is not among those that Envoy takes"
        } else if says("CERTIFICATE_REQUIRED") || says("BAD_CERTIFICATE") || says("UNKNOWN_CA") {
            "it does not take Envoy's certificate, or wants one"
        } else {
            "TLS could not be agreed on"
        };
        let printable = |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { ' ' };
        let detail: String = error.trim_matches(['|', ':', ' ']).chars().take(MOST_CHARACTERS).map(printable).collect();
        Some(Self(Arc::from(format!("{meaning} ({detail})"))))
    }

    /// What it is, and what Envoy calls it.
    pub fn text(&self) -> &Arc<str> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_tls_is_told_in_words_with_envoys_own_behind_and_no_other_is_one() {
        let text = |reason: &str| Failure::of_tls(reason).map(|failure| failure.text().to_string());
        let untrusted = "TLS_error:|268435581:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED:verify cert failed: X509_verify_cert: \
                         certificate verification error at depth 0: self-signed certificate:TLS_error_end";
        let said = text(untrusted).unwrap();
        assert!(
            said.starts_with("its certificate is not trusted") && said.ends_with("self-signed certificate)"),
            "{said}"
        );
        let old = "remote_connection_failure|TLS_error:|268435703:SSL_routines:OPENSSL_internal:WRONG_VERSION_NUMBER:TLS_error_end";
        assert!(text(old).unwrap().starts_with("what answers there is not TLS (268435703:"));
        assert!(text("TLS_error:|1:x:SOMETHING_NEW").unwrap().starts_with("TLS could not be agreed on"));
        for other in ["", "delayed_connect_error:_Connection_refused", "connection_termination"] {
            assert_eq!(text(other), None);
        }
    }

    #[test]
    fn what_a_certificate_says_is_cut_and_has_no_control_characters() {
        let said = Failure::of_tls(&format!("TLS_error:\u{1b}[2J{}", "x".repeat(10_000))).unwrap();
        assert!(said.text().len() < 400 && !said.text().contains('\u{1b}'));
    }
}
