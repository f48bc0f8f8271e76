//! What requests and the decoders of answers take of the memory that all share, and what becomes of those for whom there is none.

use super::encodings::gzip;
use super::*;
use crate::exchange::BodyMemory;

const MIB: usize = 1 << 20;

impl Table {
    fn with_body_memory(bytes: u64) -> Self {
        let mut table = Self::set(Profile::Streamed);
        table.memory.bodies = Arc::new(BodyMemory::new(bytes));
        table.again();
        table
    }

    fn in_use(&self) -> usize {
        self.memory.bodies.in_use_bytes() as usize
    }

    /// An exchange that has sent this much of its body and no more.
    fn unfinished(&mut self, key: &str, body: &[u8], extra: &[(&str, &str)]) -> Result<Exchange, Box<Action>> {
        self.again();
        let authorization = format!("Bearer {key}");
        let head = [(":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", &*authorization)];
        let head = headers_of(&[&head[..], extra].concat());
        match self.exchange.request_headers(head, End::More, self.now).unwrap() {
            Action::Wait => {}
            action => return Err(Box::new(action)),
        }
        match self.exchange.request_body(Bytes::copy_from_slice(body), End::More, self.now).unwrap() {
            Action::Wait => {}
            action => return Err(Box::new(action)),
        }
        let fresh = Exchange::new(Arc::clone(&self.config), self.memory.clone(), Profile::Streamed, 7, self.now);
        Ok(std::mem::replace(&mut self.exchange, fresh))
    }
}

#[test]
fn bodies_that_stand_for_much_take_what_was_sent_until_they_are_complete() {
    let mut table = Table::with_body_memory(192 << 20);
    let bomb = gzip(gzip(" ".repeat(16 * MIB)));
    let bomb = &bomb[..bomb.len() - 1];
    assert!(bomb.len() < 300, "{}", bomb.len());
    let under_way: Vec<Exchange> =
        (0..60).map(|_| table.unfinished("secret", bomb, &[("content-encoding", "gzip, gzip")]).unwrap()).collect();
    assert!(table.in_use() < 60 * 17 * 1024, "{}", table.in_use());
    // One after the other comes to its end, which is amid its data.
    for mut exchange in under_way {
        let action = exchange.request_body(Bytes::new(), End::Last, table.now).unwrap();
        assert_eq!(refused(action).1, "encoded_body");
    }
    assert_eq!(table.in_use(), 0);
}

#[test]
fn a_key_that_holds_half_of_the_memory_is_refused_more_and_others_are_served() {
    let mut table = Table::with_body_memory(4 << 20);
    let body = vec![b' '; MIB / 4];
    let mut under_way = Vec::new();
    let action = loop {
        match table.unfinished("secret", &body, &[]) {
            Ok(exchange) => under_way.push(exchange),
            Err(action) => break action,
        }
    };
    assert_eq!(under_way.len(), 7, "half of it, less what each takes besides");
    let Action::Respond(response) = &*action else { panic!("{action:?}") };
    assert_eq!(response.headers, [("retry-after", "1".to_owned())]);
    let (status, reason, error) = refused(*action);
    assert_eq!((status, reason), (503, "body_memory"));
    assert!(error["error"]["message"].as_str().unwrap().contains("try again in a moment"), "{error}");
    // A small one of the same key, which finds some kilobytes, and one of another.
    table.again();
    released(table.post(&chat("assistant"), &[]));
    let mut other = table.memory.bodies.claim(Holder::nobody());
    assert!(other.resize(MIB as u64).is_ok());
    // Nothing of those that end stays.
    drop((under_way, other));
    table.again();
    assert_eq!(table.in_use(), 0);
    assert!(table.unfinished("secret", &body, &[]).is_ok());
}

#[test]
fn whole_bodies_that_the_proxy_collects_are_claimed_with_their_headers() {
    let mut table = Table::with_body_memory(4 << 20);
    let head = |length: usize| {
        let length = length.to_string();
        let head = [(":method", "POST"), (":path", "/v1/chat/completions"), ("authorization", "Bearer secret")];
        headers_of(&[&head[..], &[("content-length", &*length)]].concat())
    };
    let buffered =
        |table: &Table| Exchange::new(Arc::clone(&table.config), table.memory.clone(), Profile::Buffered, 7, table.now);
    let mut first = buffered(&table);
    assert!(matches!(first.request_headers(head(3 * MIB / 2), End::More, table.now).unwrap(), Action::Answer(_)));
    assert!(table.in_use() >= 3 * MIB / 2, "{}", table.in_use());
    table.exchange = buffered(&table);
    let action = table.exchange.request_headers(head(MIB), End::More, table.now).unwrap();
    assert_eq!(refused(action).1, "body_memory");
    first.gone(table.now);
    assert_eq!(table.in_use(), 0);
}

#[test]
fn a_request_holds_memory_while_the_ledger_is_asked_and_until_its_replies_are_out() {
    let mut table = Table::with_body_memory(192 << 20);
    let mut body = chat("metered");
    body["messages"][0]["content"] = json!("x".repeat(MIB));
    assert!(matches!(table.post(&body, &[]), Action::Reserve(_)));
    assert!(table.in_use() > MIB, "{}", table.in_use());
    // Nothing of the body is changed: the proxy has it.
    let Action::Release(replies) = table.admit() else { panic!("it was granted") };
    assert_eq!(table.in_use(), 0);
    drop(replies);
    // The model's name is: the reply has the chunk anew.
    body["model"] = json!("assistant");
    table.again();
    let Action::Release(replies) = table.post(&body, &[]) else { panic!("there is no limit") };
    assert!(table.in_use() > MIB, "{}", table.in_use());
    drop(replies);
    assert_eq!(table.in_use(), 0);
}

#[test]
fn an_encoded_answer_without_memory_for_its_decoder_passes_unread_or_is_refused_under_a_cap() {
    let head = headers_of(&[(":status", "200"), ("content-type", "text/event-stream"), ("content-encoding", "br")]);
    let stream = json!({"model": "metered", "stream": true, "messages": []});
    for capped in [false, true] {
        let mut table = if capped { Table::set_capped(1_000) } else { Table::set(Profile::Streamed) };
        table.post(&stream, &[]);
        released(table.admit());
        // Others took all of it meanwhile.
        let mut others = table.memory.bodies.claim(Holder::nobody());
        others.force(table.memory.bodies.budget_bytes());
        let action = table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
        match action {
            Action::Answer(Reply::ResponseHeaders(mutations)) if !capped => {
                assert!(!mutations.remove.contains(&"content-encoding"));
                assert_eq!(table.answer_body("\u{1}\u{2}", End::Last).0, Body::Unchanged);
            }
            action => assert_eq!(refused(action).1, "answer_unreadable"),
        }
        assert!(table.charged()[0] > 0);
        assert_eq!(table.memory.bodies.refused(), 1);
    }
    // With memory for it, it is held until the stream is gone.
    let mut table = Table::set(Profile::Streamed);
    table.post(&stream, &[]);
    released(table.admit());
    table.exchange.response_headers(&head, End::More, Some("10.0.0.1:80"), table.now).unwrap();
    assert!(table.in_use() > 64 * 1024, "{}", table.in_use());
    table.exchange.gone(table.now);
    assert_eq!(table.in_use(), 0);
}
