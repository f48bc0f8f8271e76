//! The black-box tests: a real Envoy, a real Redis, simulated model servers, and everything through HTTP.
//!
//! One file a subject, all in one program, since linking it costs more than most of the tests. Run one subject with
//! `make test ARGS='--test blackbox limits::'`.

#[cfg(test)]
mod documents;
#[cfg(test)]
mod python;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod residue;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod second_envoy;
#[cfg(test)]
mod verdict;

#[cfg(test)]
mod admin_limits;
#[cfg(test)]
mod affinity;
#[cfg(test)]
mod asking;
#[cfg(test)]
mod backoff;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod body_memory;
#[cfg(test)]
mod caps;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod codings;
#[cfg(test)]
mod cors;
#[cfg(test)]
mod dashboards;
#[cfg(test)]
mod dialects;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod encodings;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod exhausted;
#[cfg(test)]
mod failing_closed;
#[cfg(test)]
mod fallback;
#[cfg(test)]
mod gateway_profile;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod listen_tls;
#[cfg(test)]
mod load;
#[cfg(test)]
mod new_keys;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod own_errors;
#[cfg(test)]
mod profile;
#[cfg(test)]
mod profiles;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod render;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod shared_limits;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod sidecar_health;
#[cfg(test)]
mod trailers;
#[cfg(test)]
mod unified_endpoint;
#[cfg(test)]
mod uploads;
#[cfg(test)]
mod upstream_tls;
#[cfg(test)]
mod upstreams;
