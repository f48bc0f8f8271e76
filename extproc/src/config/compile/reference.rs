//! From the name in a reference to what became of that object.

use std::collections::BTreeMap;

use crate::config::diagnostic::Diagnostic;
use crate::config::fields::closest;
use crate::config::model::ObjectName;
use crate::config::resource::Spec;
use crate::config::value::Reference;

/// The objects of one kind, by name.
#[derive(Debug)]
pub(super) struct Index<V> {
    kind: &'static str,
    /// `None`: it is there, but left out.
    entries: BTreeMap<ObjectName, Option<V>>,
}

impl<V> Index<V> {
    pub(super) fn of<T: Spec>() -> Self {
        Self { kind: T::KIND, entries: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, name: &ObjectName, value: Option<V>) {
        self.entries.insert(name.clone(), value);
    }

    /// Whether there is one of that name, left out or not.
    pub(super) fn knows(&self, name: &ObjectName) -> bool {
        self.entries.contains_key(name)
    }

    /// What `referrer` refers to. Where there is nothing, that is reported.
    pub(super) fn resolve(
        &self,
        reference: &Reference,
        referrer: &ObjectName,
        findings: &mut Vec<Diagnostic>,
    ) -> Option<&V> {
        let kind = self.kind;
        let wanted = reference.seen_from(referrer);
        match self.entries.get(&wanted) {
            Some(Some(value)) => Some(value),
            Some(None) => {
                // What is said of that object is at that object, and mending it mends this.
                let message = format!("the {kind} {wanted} is left out, and so is this reference");
                findings.push(
                    Diagnostic::warning(&reference.location, message)
                        .with_help("see what is said of that object")
                        .following_from_another(),
                );
                None
            }
            None => {
                let missing = Diagnostic::error(&reference.location, format!("there is no {kind} {wanted}"));
                findings.push(missing.with_help(self.advice(&wanted)));
                None
            }
        }
    }

    fn advice(&self, wanted: &ObjectName) -> String {
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            self.entries.keys().partition(|name| name.namespace == wanted.namespace);
        if let Some(namesake) = elsewhere.iter().find(|name| name.name == wanted.name) {
            return format!("there is one in another namespace: {namesake}");
        }
        match closest(&wanted.name, here.iter().map(|name| &*name.name)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("add the {} of that name, or remove the reference", self.kind),
        }
    }
}
