//! What was received and how it ended: the record that tests read.
//!
//! Bounded: the last [`RECORDS`] exchanges, of each body the first [`BODY_BYTES`]. A record ends before the client can see the end of the answer,
//! so whoever has read an answer finds its record complete.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::{HeaderMap, Method, Uri};
use base64::{display::Base64Display, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Serialize, Serializer};

/// How many exchanges are remembered.
pub const RECORDS: usize = 1_000;

/// How much of each body is remembered, in bytes.
pub const BODY_BYTES: usize = 64 * 1024;

/// One exchange as the server saw it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The exchange's number, from 1, in the order of arrival.
    pub number: u64,
    /// The method.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The model asked for, where the body says one.
    pub model: Option<String>,
    /// All headers, by lower-case name; the values of a repeated header are joined by `, `.
    pub headers: BTreeMap<String, String>,
    /// The body's first [`BODY_BYTES`] as received; what is no UTF-8 is replaced.
    pub body: String,
    /// The same bytes as they were received; in JSON `body_base64`.
    #[serde(rename = "body_base64", serialize_with = "base64")]
    pub raw_body: Bytes,
    /// The body's length as received, in bytes.
    pub body_bytes: usize,
    /// The prompt's tokens; 0 before its prefill starts.
    pub prompt_tokens: u64,
    /// Those found in the prefix cache.
    pub cached_tokens: u64,
    /// The tokens generated so far, of all choices.
    pub completion_tokens: u64,
    /// How the exchange ended.
    pub finished: Finished,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finished {
    /// It has not.
    Running,
    /// With a whole answer, be it an error.
    Complete,
    /// The client left, or a fault broke the answer off.
    Aborted,
}

#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    last_number: u64,
    records: VecDeque<Record>,
}

impl Journal {
    /// Opens a record for an exchange whose headers have arrived.
    pub(crate) fn open(self: &Arc<Self>, method: &Method, uri: &Uri, headers: &HeaderMap) -> Entry {
        let mut pages = self.pages();
        pages.last_number += 1;
        let number = pages.last_number;
        if pages.records.len() == RECORDS {
            pages.records.pop_front();
        }
        pages.records.push_back(Record {
            number,
            method: method.to_string(),
            path: uri.to_string(),
            model: None,
            headers: readable(headers),
            body: String::new(),
            raw_body: Bytes::new(),
            body_bytes: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            finished: Finished::Running,
        });
        Entry { journal: Arc::clone(self), number }
    }

    /// Forgets all records, those of running exchanges as well.
    pub(crate) fn clear(&self) {
        self.pages().records.clear();
    }

    /// How many exchanges have arrived, the forgotten ones included.
    pub(crate) fn total(&self) -> u64 {
        self.pages().last_number
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.pages().records.iter().cloned().collect()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pen for one record. Dropped before the exchange was finished, it says that the exchange was aborted.
#[derive(Debug)]
pub(crate) struct Entry {
    journal: Arc<Journal>,
    number: u64,
}

impl Entry {
    /// The exchange's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn received(&self, body: &[u8]) {
        let kept = body.get(..BODY_BYTES).unwrap_or(body);
        self.write(|record| {
            record.body = String::from_utf8_lossy(kept).into_owned();
            record.raw_body = Bytes::copy_from_slice(kept);
            record.body_bytes = body.len();
        });
    }

    pub(crate) fn asked_for(&self, model: &str) {
        self.write(|record| record.model = Some(model.to_owned()));
    }

    pub(crate) fn prefilled(&self, prompt_tokens: u64, cached_tokens: u64) {
        self.write(|record| {
            record.prompt_tokens += prompt_tokens;
            record.cached_tokens += cached_tokens;
        });
    }

    pub(crate) fn generated(&self, tokens: u64) {
        self.write(|record| record.completion_tokens += tokens);
    }

    /// Ends the record, unless it has ended.
    pub(crate) fn finish(&self, finished: Finished) {
        self.write(|record| {
            if record.finished == Finished::Running {
                record.finished = finished;
            }
        });
    }

    /// Does nothing if the record has been forgotten.
    fn write(&self, change: impl FnOnce(&mut Record)) {
        let mut pages = self.journal.pages();
        let records = &mut pages.records;
        if let Ok(place) = records.binary_search_by_key(&self.number, |record| record.number)
            && let Some(record) = records.get_mut(place)
        {
            change(record);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.finish(Finished::Aborted);
    }
}

fn base64<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Base64Display::new(bytes, &BASE64_STANDARD))
}

fn readable(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .keys()
        .map(|name| {
            let values: Vec<_> =
                headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            (name.to_string(), values.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(journal: &Arc<Journal>, headers: &HeaderMap) -> Entry {
        journal.open(&Method::POST, &Uri::from_static("/v1/completions?a=b"), headers)
    }

    #[test]
    fn a_record_has_what_was_received() {
        let journal = Arc::new(Journal::default());
        let mut headers = HeaderMap::new();
        headers.append("X-Twice", "a".parse().unwrap());
        headers.append("x-twice", "b".parse().unwrap());
        let entry = open(&journal, &headers);
        entry.received(&vec![b'a'; BODY_BYTES + 1]);
        let record = journal.records().remove(0);
        assert_eq!((record.number, record.method.as_str(), record.path.as_str()), (1, "POST", "/v1/completions?a=b"));
        assert_eq!(record.headers["x-twice"], "a, b");
        assert_eq!((record.body.len(), record.body_bytes), (BODY_BYTES, BODY_BYTES + 1));
        assert_eq!(record.finished, Finished::Running);
    }

    #[test]
    fn an_entry_that_is_dropped_unfinished_was_aborted() {
        let journal = Arc::new(Journal::default());
        let finished = open(&journal, &HeaderMap::new());
        finished.finish(Finished::Complete);
        drop(finished);
        drop(open(&journal, &HeaderMap::new()));
        let ends: Vec<_> = journal.records().iter().map(|record| record.finished).collect();
        assert_eq!(ends, [Finished::Complete, Finished::Aborted]);
    }

    #[test]
    fn only_the_last_records_are_kept_and_an_entry_may_outlive_its_record() {
        let journal = Arc::new(Journal::default());
        let entries: Vec<_> = (0..RECORDS + 2).map(|_| open(&journal, &HeaderMap::new())).collect();
        entries[0].finish(Finished::Complete);
        entries[2].finish(Finished::Complete);
        let records = journal.records();
        assert_eq!((records.len(), records[0].number), (RECORDS, 3));
        assert_eq!((records[0].finished, records[1].finished), (Finished::Complete, Finished::Running));
        journal.clear();
        drop(entries);
        assert!(journal.records().is_empty());
        assert_eq!(journal.total(), RECORDS as u64 + 2);
    }
}
