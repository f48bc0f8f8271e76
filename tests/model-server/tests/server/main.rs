//! The model server from outside, over TCP.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod binary;
#[cfg(test)]
mod client;
#[cfg(test)]
mod codings;
#[cfg(test)]
mod dialects;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod records;
