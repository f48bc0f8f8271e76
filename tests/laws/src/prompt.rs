//! The canonical stream that prefixes are told by.

use attache::affinity::Canon;
use attache::affinity::blocks::MAX_BLOCKS;
use attache_proto::request::scan;

use crate::head::Head;

/// A pattern of the kind that operators write for dates in system prompts.
const MASKS: [&str; 1] = [r"[0-9]+-[0-9]+-[0-9]+"];

/// A prompt has a bounded chain, and the same one for the same body. What measures it reads the same.
pub fn prompt(input: &[u8]) {
    let Some((head, body)) = Head::split(input) else { return };
    let Ok(scan) = scan(head.operation(), body) else { return };
    let canon = if head.chooses(0) { Canon::new(&MASKS) } else { Ok(Canon::default()) };
    let Ok(canon) = canon else { return };
    let prompt = canon.read(&scan.segments, body);
    assert!(prompt.chain.blocks.len() <= MAX_BLOCKS);
    assert_eq!(prompt.chain, canon.read(&scan.segments, body).chain);
    let (again, measured) = canon.measure(&scan.segments, body);
    assert_eq!(prompt.chain, again.chain);
    assert!(measured.len() <= scan.segments.len());
    let spans: u64 = prompt.chain.spans().map(|(_, len, _)| len as u64).sum();
    assert!(spans <= prompt.chain.bytes, "blocks are cut from the stream");
}
