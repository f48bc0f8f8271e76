//! ClientKey.

use serde_json::json;

use super::{Kind, fields, header_value, switch, text, words};
use crate::config::resource::{ClientKey, MAX_KEY_DIGESTS, MAX_KEY_LABELS, MAX_KEY_VALUE_BYTES, Spec};

const RFC_3339: &str =
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$";

pub(super) fn kind() -> Kind {
    let route = text(
        "`name` of the key's own namespace, `namespace/name`, or `*` for all routes.",
        r"^(\*|([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$",
    );
    let digits = "^[0-9a-fA-F]{64}$";
    let one = text("SHA-256 of the key, in hexadecimal digits: printf %s \"$KEY\" | sha256sum", digits);
    let several = json!({
        "description": "Those of several keys, while one takes the place of another.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_KEY_DIGESTS,
        "uniqueItems": true,
        "items": text("SHA-256 of one of the keys.", digits),
    });
    let spec = fields(
        json!({
            "sha256": {"description": "SHA-256 of the key, or a list of them.", "anyOf": [one, several]},
            "tenant": header_value("Whom the key belongs to. Without one it is a tenant of its own.", MAX_KEY_VALUE_BYTES),
            "routes": {"description": "AIGatewayRoutes that it may call.", "type": "array", "minItems": 1, "items": route},
            "labels": {
                "description": "What limits go by (`label:NAME`).",
                "type": "object",
                "maxProperties": MAX_KEY_LABELS,
                "propertyNames": {"pattern": "^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"},
                "additionalProperties": header_value("The label's value.", MAX_KEY_VALUE_BYTES),
            },
            "priority": words("`low` stops at `lowPriorityPercent` of each limit. Default: normal", &["low", "normal"]),
            "notAfter": text("The last moment of the key, as 2030-12-31T23:59:59Z (RFC 3339). Without it there is no end.", RFC_3339),
            "disabled": switch("Whether the key is refused for now. Default: false"),
        }),
        &["sha256", "routes"],
    );
    Kind { name: ClientKey::KIND, description: "A caller, known by the hash of its API key.", spec }
}
