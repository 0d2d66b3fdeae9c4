#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fumehood_fuzz_targets::sent(data));
