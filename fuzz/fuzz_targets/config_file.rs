//! Any text as a configuration: in every mode it is accepted or refused with an error message, and
//! reading it again gives the same result.

#![no_main]

use convey_config::{describe, parse, validate_without_host};
use convey_model::Mode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse("config.toml", text) {
        Ok(loaded) => {
            let said = describe(&loaded.config);
            for mode in Mode::ALL {
                let _ = validate_without_host(&loaded.clone().with_default_mode(mode));
            }
            let again = parse("config.toml", text).expect("it was right before");
            assert_eq!(said, describe(&again.config));
        }
        Err(problems) => assert!(!problems.is_empty() && problems.iter().all(|one| !one.to_string().is_empty())),
    }
});
