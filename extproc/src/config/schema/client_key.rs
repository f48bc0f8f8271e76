//! ClientKey.

use serde_json::json;

use super::{Kind, fields, header_value, text, words};
use crate::config::resource::{ClientKey, MAX_KEY_LABELS, MAX_KEY_VALUE_BYTES, Spec};

pub(super) fn kind() -> Kind {
    let route = text(
        "`name` of the key's own namespace, `namespace/name`, or `*` for all routes.",
        r"^(\*|([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$",
    );
    let spec = fields(
        json!({
            "sha256": text("SHA-256 of the key, in hexadecimal digits: printf %s \"$KEY\" | sha256sum", "^[0-9a-fA-F]{64}$"),
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
        }),
        &["sha256", "routes"],
    );
    Kind { name: ClientKey::KIND, description: "A caller, known by the hash of its API key.", spec }
}
