#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| attache_laws::fields(input));
