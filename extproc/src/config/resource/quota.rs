//! QuotaPolicy of Envoy AI Gateway: how many tokens an AIServiceBackend may spend, by model and by caller.

use std::sync::Arc;
use std::time::Duration;

use super::kind::AI_GATEWAY;
use super::limit::{Expression, MAX_AMOUNT, Selector};
use super::{ServiceBackend, Spec};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{Fields, FromNode, Log, describe};
use crate::config::node::{Node, Value};
use crate::config::value::{Located, Reference, number, one_of, parse_duration};
use crate::limit::{Cost, Enforcement, Quantity, Window};

#[derive(Debug)]
pub(in crate::config) struct QuotaPolicy {
    /// AIServiceBackends. `None`, in what remains of one with errors: nobody knows.
    pub(in crate::config) targets: Option<Vec<Reference>>,
    pub(in crate::config) quotas: Vec<QuotaSpec>,
}

/// One bucket, for each of the policy's targets.
#[derive(Debug)]
pub(in crate::config) struct QuotaSpec {
    /// Its place in the policy: `perModelQuotas[0].defaultBucket`.
    pub(in crate::config) place: String,
    /// The model that serves; `None` is all of them.
    pub(in crate::config) model: Option<Located<Arc<str>>>,
    pub(in crate::config) selector: Selector,
    pub(in crate::config) quantity: Quantity,
    /// In the quantity's unit, never 0.
    pub(in crate::config) amount: u64,
    pub(in crate::config) window: Window,
    pub(in crate::config) enforcement: Enforcement,
}

impl Spec for QuotaPolicy {
    const KIND: &'static str = "QuotaPolicy";
}

impl FromNode for QuotaPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("costTransparency", "what an answer cost is in the access log alone");
            let targets = fields.require_with("targetRefs", |node, log| {
                let targets = Vec::<Target>::from_node(node, log)?;
                if targets.is_empty() {
                    return log.fail(node, "`targetRefs` is empty", "list at least one AIServiceBackend");
                }
                Some(targets.into_iter().map(|Target(reference)| reference).collect())
            });
            let mut quotas = Vec::new();
            if fields.has("serviceQuota") {
                quotas.extend(fields.take_with("serviceQuota", read_service_quota));
            }
            if fields.has("perModelQuotas") {
                quotas.extend(fields.take_with("perModelQuotas", read_per_model).into_iter().flatten());
            } else if quotas.is_empty() && !fields.has("serviceQuota") {
                return fields.fail("this policy has no quota", "write `perModelQuotas`, or remove the policy");
            }
            Some(Self { targets, quotas })
        })
    }
}

struct Target(Reference);

impl FromNode for Target {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
            fields.require_with("kind", |node, log| one_of(node, log, &[(ServiceBackend::KIND, ())]));
            Reference::local_from_fields(fields).map(Self)
        })
    }
}

fn read_service_quota(node: &Node, log: &mut Log) -> Option<QuotaSpec> {
    Fields::read(node, log, |fields| {
        for field in ["pricingRef", "monetaryQuota"] {
            if fields.has(field) {
                let message = format!("`{field}` is not supported here");
                fields.reject(field, message, "write a TokenLimitPolicy with `cost: money` and `prices` instead");
            }
        }
        let quantity = read_quantity(fields);
        let bucket = fields.require_with("quota", |node, log| read_bucket(node, log, quantity.as_ref()));
        let Bucket { amount, window } = bucket?;
        Some(QuotaSpec {
            place: "serviceQuota".to_owned(),
            model: None,
            selector: Selector::default(),
            quantity: quantity?,
            amount,
            window,
            enforcement: Enforcement::Refuse,
        })
    })
}

fn read_per_model(node: &Node, log: &mut Log) -> Option<Vec<QuotaSpec>> {
    let Value::Sequence(items) = &node.value else {
        return log.fail(node, format!("expected a list, found {}", describe(node)), "write the quotas as `- ` lines");
    };
    let read = |(index, item): (usize, &Node)| {
        Fields::read(item, log, |fields| {
            let model: Option<Located<Arc<str>>> = fields.require("modelName");
            let place = format!("perModelQuotas[{index}]");
            let buckets = fields.require_with("quota", |node, log| read_quota(node, log, &place));
            let model = model?;
            Some(buckets?.into_iter().map(move |quota| QuotaSpec { model: Some(model.clone()), ..quota }))
        })
    };
    let read: Vec<_> = items.iter().enumerate().map(read).collect();
    let quotas = read.into_iter().collect::<Option<Vec<_>>>()?;
    Some(quotas.into_iter().flatten().collect())
}

/// The buckets of one model.
fn read_quota(node: &Node, log: &mut Log, place: &str) -> Option<Vec<QuotaSpec>> {
    Fields::read(node, log, |fields| {
        report_mode(fields);
        let quantity = read_quantity(fields);
        let mut buckets = Vec::new();
        if fields.has("defaultBucket") {
            let bucket = fields.take_with("defaultBucket", |node, log| read_bucket(node, log, quantity.as_ref()));
            let quota = |Bucket { amount, window }: Bucket| {
                Some(QuotaSpec {
                    place: format!("{place}.defaultBucket"),
                    model: None,
                    selector: Selector::default(),
                    quantity: quantity.clone()?,
                    amount,
                    window,
                    enforcement: Enforcement::Refuse,
                })
            };
            buckets.push(bucket.and_then(quota));
        }
        if fields.has("bucketRules") {
            let rules =
                fields.take_with("bucketRules", |node, log| read_bucket_rules(node, log, place, quantity.as_ref()));
            match rules {
                Some(rules) => buckets.extend(rules.into_iter().map(Some)),
                None => buckets.push(None),
            }
        }
        if buckets.is_empty() {
            return fields.fail("this quota has no bucket", "write `defaultBucket: {limit: 10000, duration: 1h}`");
        }
        buckets.into_iter().collect()
    })
}

/// In every other mode than `Shared` fewer buckets may refuse, so that is the strictest.
fn report_mode(fields: &mut Fields<'_>) {
    let modes = [("Shared", true), ("Exclusive", false), ("MostGenerous", false)];
    if fields.take_with("mode", |node, log| one_of(node, log, &modes)) == Some(false) {
        let message =
            "of the modes only `Shared` is supported here: a request needs room in every bucket that it matches";
        let warning = Diagnostic::warning(&fields.location("mode"), message);
        fields.push(warning.with_help("write a TokenLimitPolicy, whose `when` tells callers apart, or `mode: Shared`"));
    }
}

fn read_bucket_rules(node: &Node, log: &mut Log, place: &str, quantity: Option<&Quantity>) -> Option<Vec<QuotaSpec>> {
    let Value::Sequence(items) = &node.value else {
        return log.fail(node, format!("expected a list, found {}", describe(node)), "write the rules as `- ` lines");
    };
    let read = |(index, item): (usize, &Node)| {
        Fields::read(item, log, |fields| {
            let selector =
                if fields.has("clientSelectors") { fields.take("clientSelectors") } else { Some(Selector::default()) };
            let bucket = fields.require_with("quota", |node, log| read_bucket(node, log, quantity));
            let enforcement =
                if fields.take("shadowMode") == Some(true) { Enforcement::Shadow } else { Enforcement::Refuse };
            let Bucket { amount, window } = bucket?;
            Some(QuotaSpec {
                place: format!("{place}.bucketRules[{index}]"),
                model: None,
                selector: selector?,
                quantity: quantity.cloned()?,
                amount,
                window,
                enforcement,
            })
        })
    };
    let read: Vec<_> = items.iter().enumerate().map(read).collect();
    read.into_iter().collect()
}

fn read_quantity(fields: &mut Fields<'_>) -> Option<Quantity> {
    if !fields.has("costExpression") {
        return Some(Quantity::Tokens(Cost::Total));
    }
    let Expression(program) = fields.take("costExpression")?;
    Some(Quantity::Weighted(program))
}

struct Bucket {
    amount: u64,
    window: Window,
}

fn read_bucket(node: &Node, log: &mut Log, quantity: Option<&Quantity>) -> Option<Bucket> {
    let scale = quantity.map_or(1, Quantity::scale);
    Fields::read(node, log, |fields| {
        let amount = fields.require_with("limit", |node, log| {
            number(node, log, 1, MAX_AMOUNT.checked_div(scale)?)?.checked_mul(scale)
        });
        let window = fields.require_with("duration", read_duration);
        Some(Bucket { amount: amount?, window: window? })
    })
}

/// A number without a unit is in seconds.
fn read_duration(node: &Node, log: &mut Log) -> Option<Window> {
    const MAX: Duration = Duration::from_secs(366 * 86_400);
    let text = node.text().map_or("", |text| &**text);
    let seconds = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).map(Duration::from_secs);
    let duration = seconds.or_else(|| parse_duration(text));
    match duration.filter(|duration| (Duration::from_secs(1)..=MAX).contains(duration)) {
        Some(duration) => Some(Window::Fixed(duration)),
        None => {
            let message = format!("expected a length of time from 1 second to 366 days, found {}", describe(node));
            log.fail(node, message, "write one like `1m`, `1h` or `1d`")
        }
    }
}
