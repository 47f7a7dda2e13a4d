#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mpsgate_properties::run("api_objects", data));
