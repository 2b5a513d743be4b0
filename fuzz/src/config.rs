//! Configuration texts: whatever is accepted is in range, is shown in a form that says the same again, and
//! whatever is refused is refused with a reason.

use ascend_alloc::Config;
use ascend_alloc::config::{ConfigError, VARIABLES};

/// Reads the text as one given in code, then, cut at zero bytes, as the environment's variables.
///
/// # Panics
///
/// Something that must hold does not.
pub fn run(text: &str) {
    check(Config::parse(text));
    let parts: Vec<&str> = text.split('\0').collect();
    let look_up = |name: &str| {
        let index = VARIABLES.iter().position(|&known| known == name)?;
        parts.get(index).map(|&text| text.to_owned())
    };
    let from_environment = Config::from_sources(&look_up);
    if let Ok(config) = &from_environment {
        check(config.overridden_by(text));
    }
    check(from_environment);
}

fn check(read: Result<Config, ConfigError>) {
    match read {
        Ok(config) => {
            config.validate().expect("what was read is in range");
            let shown = config.to_string();
            let again = Config::parse(&shown).unwrap_or_else(|error| panic!("{shown:?} is refused: {error}"));
            assert_eq!(again, config, "{shown:?} says something else");
            assert_eq!(config.effective().len(), again.effective().len());
            for warning in config.warnings() {
                assert!(!warning.is_empty());
            }
            for size in [0, 1, 1 << 20, (1 << 20) + 1, 1 << 40, u64::MAX] {
                let divisions = config.roundup_divisions_for(size);
                assert!(divisions == 0 || divisions.is_power_of_two());
            }
        }
        Err(error) => {
            assert!(!error.reason.is_empty() && !error.source.is_empty(), "{error:?}");
            assert!(!error.accepted.is_empty(), "{error:?}");
            assert!(error.to_string().contains(&error.reason));
        }
    }
}
