//! Traces from files: JSON lines, plain or gzip'd, in this project's form or in Mooncake's.
//!
//! Each line has `timestamp` (ms), `input_length` and `output_length` (tokens), and the ids of the prompt's chained blocks of
//! 512 tokens: `hash_runs`, run-length coded as `[[first id, count], ...]`, or Mooncake's `hash_ids`, one by one. `session` may
//! be there. A file is not trusted: what is not that is an error with its line, and lengths have limits.

use std::{
    collections::HashMap,
    fmt, fs,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;

use super::{BLOCK_TOKENS, Origin, Request, Trace};

/// Ten times what the longest context of today has.
const MAX_TOKENS: u64 = 100_000_000;
/// Four bytes each: what one file may take of the memory.
const MAX_BLOCKS: usize = 200_000_000;
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file system or the decoder said no.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is not a request.
    #[error("{path}, line {line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: Problem,
    },
    /// There is nothing to read.
    #[error("{path} holds no trace: files named *.jsonl, *.json or either with .gz are read")]
    NoTrace {
        /// The directory or file.
        path: PathBuf,
    },
}

/// What can be wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No JSON, or not of this form.
    #[error("not a request of a trace: {0}")]
    Json(#[from] serde_json::Error),
    /// Neither `hash_runs` nor `hash_ids`, or both.
    #[error("a request has either hash_runs or hash_ids")]
    Blocks,
    /// A time that no clock shows.
    #[error("timestamp {0} is no time in milliseconds")]
    Timestamp(f64),
    /// A length beyond all contexts.
    #[error("a length of {0} tokens is more than {MAX_TOKENS}")]
    Length(u64),
    /// More blocks than the prompt is long.
    #[error("{blocks} blocks of {BLOCK_TOKENS} tokens are more than input_length {input_length} has")]
    MoreBlocksThanInput {
        /// What the line lists, at least.
        blocks: u64,
        /// What it says.
        input_length: u64,
    },
    /// The file is too large to be held.
    #[error("the file has more than {MAX_BLOCKS} blocks up to here")]
    TooLarge,
    /// A line without an end.
    #[error("the line is longer than {MAX_LINE_BYTES} bytes")]
    LongLine,
}

/// Reads `path`: a file, or all traces of a directory in the order of their names.
pub fn read(path: &Path) -> Result<Vec<Trace>, TraceError> {
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let files = if fs::metadata(path).map_err(io)?.is_dir() {
        let entries: io::Result<Vec<_>> = fs::read_dir(path).map_err(io)?.map(|entry| Ok(entry?.path())).collect();
        let mut files = entries.map_err(io)?;
        files.retain(|file| trace_name(file).is_some());
        files.sort();
        files
    } else {
        vec![path.to_owned()]
    };
    let traces = files.iter().map(|file| read_file(file)).collect::<Result<Vec<_>, _>>()?;
    if traces.is_empty() { Err(TraceError::NoTrace { path: path.to_owned() }) } else { Ok(traces) }
}

fn read_file(path: &Path) -> Result<Trace, TraceError> {
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let gzip = file.fill_buf().map_err(io)?.starts_with(&[0x1F, 0x8B]);
    let requests = if gzip { parse(BufReader::new(MultiGzDecoder::new(file)), path)? } else { parse(file, path)? };
    if requests.is_empty() {
        return Err(TraceError::NoTrace { path: path.to_owned() });
    }
    let name = trace_name(path).unwrap_or_else(|| path.display().to_string());
    Ok(Trace::new(name, Origin::File(path.to_owned()), requests))
}

/// The file's name without what says that it is a trace; none where nothing says so.
fn trace_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let name = name.strip_suffix(".jsonl").or_else(|| name.strip_suffix(".json"))?;
    Some(name.to_owned())
}

fn parse(mut lines: impl BufRead, path: &Path) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    let mut blocks = Blocks::default();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let limited = lines.by_ref().take(MAX_LINE_BYTES);
        let read = { limited }.read_until(b'\n', &mut text);
        let len = read.map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
        if len == 0 {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let request = if len as u64 == MAX_LINE_BYTES { Err(Problem::LongLine) } else { blocks.request(&text) };
        requests.push(request.map_err(|problem| TraceError::Line { path: path.to_owned(), line, problem })?);
    }
    Ok(requests)
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    session: u64,
    hash_runs: Option<Vec<(u64, u64)>>,
    hash_ids: Option<Vec<u64>>,
}

/// The blocks of one file. An id stands for a prefix only together with the block before it, whatever the file says: so a
/// block always has one parent, which caches rely on.
#[derive(Default)]
struct Blocks {
    by_parent_and_id: HashMap<(Option<u32>, u64), u32>,
    held: usize,
}

impl Blocks {
    fn request(&mut self, text: &[u8]) -> Result<Request, Problem> {
        let line: Line = serde_json::from_slice(text)?;
        // A thousand years; a Duration would panic far beyond that.
        if !(0.0..3.2e13).contains(&line.timestamp) {
            return Err(Problem::Timestamp(line.timestamp));
        }
        if let Some(length) = [line.input_length, line.output_length].into_iter().find(|length| *length > MAX_TOKENS) {
            return Err(Problem::Length(length));
        }
        let blocks = match (line.hash_runs, line.hash_ids) {
            (Some(runs), None) => {
                let count = runs.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
                let ids = runs.iter().flat_map(|(first, count)| (0..*count).map(|at| first.wrapping_add(at)));
                self.chain(ids, count, line.input_length)?
            }
            (None, Some(ids)) => self.chain(ids.iter().copied(), ids.len() as u64, line.input_length)?,
            _ => return Err(Problem::Blocks),
        };
        Ok(Request {
            arrival: Duration::from_secs_f64(line.timestamp / 1000.0),
            input_tokens: line.input_length,
            output_tokens: line.output_length,
            session: line.session,
            blocks,
        })
    }

    fn chain(&mut self, ids: impl Iterator<Item = u64>, count: u64, input_length: u64) -> Result<Box<[u32]>, Problem> {
        if count > input_length.div_ceil(BLOCK_TOKENS) {
            return Err(Problem::MoreBlocksThanInput { blocks: count, input_length });
        }
        self.held = self.held.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
        if self.held > MAX_BLOCKS {
            return Err(Problem::TooLarge);
        }
        let mut parent = None;
        let chain = ids.map(|id| {
            let next = u32::try_from(self.by_parent_and_id.len()).unwrap_or(u32::MAX);
            let block = *self.by_parent_and_id.entry((parent, id)).or_insert(next);
            parent = Some(block);
            block
        });
        Ok(chain.collect())
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("held", &self.held).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    const OURS: &str =
        r#"{"timestamp":20422,"input_length":16886,"output_length":382,"session":2,"hash_runs":[[100,2],[7,1]]}"#;
    const MOONCAKE: &str =
        r#"{"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [100, 101, 9]}"#;

    fn read_bytes(name: &str, bytes: &[u8]) -> Result<Vec<Trace>, TraceError> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), bytes).unwrap();
        fs::write(directory.path().join("README.md"), "not a trace").unwrap();
        read(directory.path())
    }

    #[test]
    fn both_forms_give_the_same_blocks_for_the_same_prefix() {
        let traces = read_bytes("a.jsonl", format!("{OURS}\n\n{MOONCAKE}\n").as_bytes()).unwrap();
        assert_eq!(traces.len(), 1);
        assert_eq!(traces[0].name, "a");
        let expected = [
            Request {
                arrival: Duration::from_millis(20_422),
                input_tokens: 16_886,
                output_tokens: 382,
                session: 2,
                blocks: [0, 1, 2].into(),
            },
            Request {
                arrival: Duration::from_millis(27_482),
                input_tokens: 1200,
                output_tokens: 52,
                session: 0,
                blocks: [0, 1, 3].into(),
            },
        ];
        assert_eq!(traces[0].requests, expected);
    }

    #[test]
    fn gzip_in_several_members_reads_as_one_file() {
        let member = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let bytes = [member(&format!("{OURS}\n")), member(MOONCAKE)].concat();
        assert_eq!(read_bytes("a.jsonl.gz", &bytes).unwrap()[0].requests.len(), 2);
    }

    #[test]
    fn requests_come_in_order_of_their_time_whatever_the_file_says() {
        let traces = read_bytes("a.json", format!("{MOONCAKE}\n{OURS}").as_bytes()).unwrap();
        let arrivals: Vec<_> = traces[0].requests.iter().map(|request| request.arrival.as_millis()).collect();
        assert_eq!(arrivals, [20_422, 27_482]);
    }

    #[test]
    fn an_id_below_another_parent_is_another_block() {
        let line = |ids: &str| format!(r#"{{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":{ids}}}"#);
        let traces =
            read_bytes("a.jsonl", [line("[1,5]"), line("[2,5]"), line("[5,1]")].join("\n").as_bytes()).unwrap();
        let blocks: Vec<_> = traces[0].requests.iter().map(|request| request.blocks.to_vec()).collect();
        assert_eq!(blocks, [[0, 1], [2, 3], [4, 5]]);
    }

    #[test]
    fn a_wrong_line_is_named_with_its_file_and_number() {
        let cases = [
            ("{", "not a request of a trace"),
            (r#"{"timestamp":0,"input_length":1,"output_length":1}"#, "either hash_runs or hash_ids"),
            (r#"{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]}"#, "timestamp -1 is no time"),
            (r#"{"timestamp":1e300,"input_length":1,"output_length":1,"hash_ids":[]}"#, "is no time"),
            (r#"{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[]}"#, "not a request of a trace"),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":18446744073709551615,"hash_ids":[]}"#,
                "18446744073709551615 tokens",
            ),
            (
                r#"{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2,3]}"#,
                "3 blocks of 512 tokens are more",
            ),
            (
                r#"{"timestamp":0,"input_length":9,"output_length":1,"hash_runs":[[0,18446744073709551615],[0,9]]}"#,
                "18446744073709551615 blocks",
            ),
        ];
        for (line, expected) in cases {
            let error = read_bytes("a.jsonl", format!("{OURS}\n{line}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.contains("a.jsonl, line 2: ") && error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn broken_gzip_and_an_empty_directory_are_errors_and_no_panic() {
        let broken = read_bytes("a.jsonl.gz", &[0x1F, 0x8B, 8, 0, 1, 2, 3]).unwrap_err().to_string();
        assert!(broken.starts_with("cannot read "), "{broken}");
        let none = read_bytes("a.txt", b"").unwrap_err().to_string();
        assert!(none.contains("holds no trace"), "{none}");
        let empty = read_bytes("a.jsonl", b"").unwrap_err().to_string();
        assert!(empty.contains("holds no trace"), "{empty}");
    }
}
