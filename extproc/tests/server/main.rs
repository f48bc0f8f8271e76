//! The gRPC server from outside, over TCP.

#[cfg(test)]
mod streams;
