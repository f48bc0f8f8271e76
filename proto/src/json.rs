//! A pull scanner over JSON bytes that copies nothing: it yields spans, checks the grammar and bounds the depth.
