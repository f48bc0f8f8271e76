//! Server-sent events, to the letter of the standard, from chunks cut at any byte.
