//! Bug scenarios about the configuration, after public reports: which variable wins (B47), the
//! configuration's part of switching the kind of segments while blocks live (B49), and of a split
//! limit together with growable segments (B04). What the allocator itself must do in B04 is in
//! `scenarios_expandable`, in B49 in `switching`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::process::Command;

use ascend_alloc::config::{ARGUMENT, Config, ConfigError, DEFAULT, OWN_VARIABLE};

const NPU: &str = "PYTORCH_NPU_ALLOC_CONF";
const TORCH: &str = "PYTORCH_ALLOC_CONF";
const MIB: u64 = 1 << 20;

/// The environment of a process that exists only in this test.
#[derive(Default)]
struct Environment(RefCell<HashMap<String, String>>);

impl Environment {
    fn of(variables: &[(&str, &str)]) -> Self {
        let environment = Self::default();
        for (name, text) in variables {
            environment.set(name, text);
        }
        environment
    }

    fn set(&self, name: &str, text: &str) {
        self.0.borrow_mut().insert(name.into(), text.into());
    }

    fn read(&self) -> Result<Config, ConfigError> {
        Config::from_sources(&|name| self.0.borrow().get(name).cloned())
    }
}

/// What a configuration says about growable segments, and who said it.
fn growable(config: &Config) -> (bool, Option<&'static str>) {
    (config.expandable_segments, config.source_of("expandable_segments"))
}

#[test]
fn b47_either_name_alone_is_heard() {
    for name in [OWN_VARIABLE, NPU, TORCH] {
        for (text, on) in [("expandable_segments:True", true), ("expandable_segments:False", false)] {
            let config = Environment::of(&[(name, text)]).read().unwrap();
            assert_eq!(growable(&config), (on, Some(name)));
            assert_eq!(config.warnings(), [""; 0]);
        }
    }
}

#[test]
fn b47_both_names_with_the_same_value_are_no_quarrel() {
    let both = [(NPU, "expandable_segments:True"), (TORCH, "expandable_segments:True")];
    let config = Environment::of(&both).read().unwrap();
    assert_eq!(growable(&config), (true, Some(NPU)));
    assert_eq!(config.warnings(), [""; 0]);
}

#[test]
fn b47_with_different_values_the_documented_one_wins_and_one_warning_says_so() {
    for (npu, torch, on) in [("False", "True", false), ("True", "False", true)] {
        let config = Environment::of(&[
            (NPU, &format!("expandable_segments:{npu}")),
            (TORCH, &format!("expandable_segments:{torch}")),
        ])
        .read()
        .unwrap();
        assert_eq!(growable(&config), (on, Some(NPU)));
        let warnings = config.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for part in [TORCH, NPU, &format!("expandable_segments:{torch}"), "ignored"] {
            assert!(warnings[0].contains(part), "{warnings:?} lacks {part}");
        }
    }
    let page = include_str!("../docs/configuration.md");
    let order: Vec<_> = [OWN_VARIABLE, NPU, TORCH].map(|name| page.find(&format!("`{name}`"))).into();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "the order is documented");
}

#[test]
fn b47_our_own_variable_wins_over_both() {
    let config = Environment::of(&[
        (NPU, "expandable_segments:True,page_size:1g"),
        (TORCH, "expandable_segments:True"),
        (OWN_VARIABLE, "expandable_segments:False"),
    ])
    .read()
    .unwrap();
    assert_eq!(growable(&config), (false, Some(OWN_VARIABLE)));
    assert_eq!(config.source_of("page_size"), Some(NPU), "the source is kept key by key");
    assert_eq!(config.warnings().len(), 2, "one for each variable that lost");
}

#[test]
fn b47_an_empty_variable_is_not_set() {
    for empty in ["", "  "] {
        let config =
            Environment::of(&[(OWN_VARIABLE, empty), (NPU, empty), (TORCH, "expandable_segments:False")])
                .read()
                .unwrap();
        assert_eq!(growable(&config), (false, Some(TORCH)));
        assert_eq!(config.warnings(), [""; 0]);
    }
    let config = Environment::of(&[(NPU, "")]).read().unwrap();
    assert_eq!(growable(&config), (true, Some(DEFAULT)));
}

#[test]
fn b47_a_variable_that_changes_later_changes_nothing() {
    let environment = Environment::of(&[(NPU, "expandable_segments:False")]);
    let config = environment.read().unwrap();
    let before = config.effective();
    environment.set(NPU, "expandable_segments:True");
    environment.set(OWN_VARIABLE, "this is not a configuration");
    assert_eq!(config.effective(), before);
    assert_eq!(growable(&config), (false, Some(NPU)));
    assert!(environment.read().is_err(), "who reads it again sees the error");
}

#[test]
fn b47_a_text_given_in_code_wins_over_the_environment() {
    let environment = Environment::of(&[(OWN_VARIABLE, "expandable_segments:True,decay_ms:5")]);
    let config = environment.read().unwrap().overridden_by("expandable_segments:False").unwrap();
    assert_eq!(growable(&config), (false, Some(ARGUMENT)));
    assert_eq!(config.source_of("decay_ms"), Some(OWN_VARIABLE));
}

/// Set in the child processes of the test below: what the child has to see.
const EXPECTED: &str = "ASCEND_ALLOC_TEST_EXPECTED";

#[test]
fn b47_the_variables_of_the_process_are_read_and_children_inherit_them() {
    if let Ok(expected) = std::env::var(EXPECTED) {
        let config = Config::from_env().unwrap();
        let (on, source) = growable(&config);
        assert_eq!(format!("{on} from {}", source.unwrap()), expected);
        return;
    }
    let on = "expandable_segments:True";
    let off = "expandable_segments:False";
    let cases = [
        (vec![], "true from default"),
        (vec![(NPU, off)], "false from PYTORCH_NPU_ALLOC_CONF"),
        (vec![(TORCH, off)], "false from PYTORCH_ALLOC_CONF"),
        (vec![(TORCH, off), (NPU, on)], "true from PYTORCH_NPU_ALLOC_CONF"),
        (vec![(TORCH, on), (NPU, ""), (OWN_VARIABLE, off)], "false from ASCEND_ALLOC_CONF"),
    ];
    for (variables, expected) in cases {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "b47_the_variables_of_the_process_are_read_and_children_inherit_them"]);
        for name in [OWN_VARIABLE, NPU, TORCH] {
            child.env_remove(name);
        }
        let output = child.envs(variables).env(EXPECTED, expected).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains("1 passed"), "{expected}: {shown}");
    }
}

#[test]
fn b49_switching_off_and_on_keeps_all_other_settings() {
    let text =
        "max_non_split_rounding_mb:64,roundup_power2_divisions:4,per_process_memory_fraction:0.5,decay_ms:7";
    let start = Config::parse(text).unwrap();
    let off = start.overridden_by("expandable_segments:False").unwrap();
    let on = off.overridden_by("expandable_segments:True").unwrap();
    assert_eq!((growable(&off).0, growable(&on).0), (false, true));
    assert_eq!(on, start, "nothing else changed on the way");
    assert_eq!(off.max_non_split_rounding, Some(64 * MIB));
    assert_eq!(off.roundup_power2_divisions, [4; 16]);
    assert_eq!(growable(&start), (true, Some(DEFAULT)), "the configuration switched from is untouched");
}

#[test]
fn b49_a_switch_that_is_refused_leaves_the_setting_as_it_was() {
    let start = Config::parse("expandable_segments:False,max_split_size_mb:128").unwrap();
    let error = start.overridden_by("decay_ms:7,expandable_segments:True").unwrap_err();
    assert_eq!(error.key, "max_split_size_mb");
    assert_eq!((growable(&start), start.decay_ms), ((false, Some(ARGUMENT)), 0));
    assert_eq!(start.validate(), Ok(()));
}

#[test]
fn b04_a_split_limit_contradicts_growable_segments_in_any_spelling() {
    let split = "max_split_size_mb:128";
    let grow = "expandable_segments:True";
    let mut refused = vec![
        Config::parse(&format!("{split},{grow}")),
        Config::parse(&format!("{grow},{split}")),
        Config::parse(split).unwrap().overridden_by(grow),
        Config::parse(grow).unwrap().overridden_by(split),
    ];
    for (first, second) in [(OWN_VARIABLE, NPU), (NPU, TORCH), (TORCH, OWN_VARIABLE)] {
        refused.push(Environment::of(&[(first, split), (second, grow)]).read());
    }
    for result in refused {
        let error = result.unwrap_err();
        assert_eq!((error.key.as_str(), error.value.as_str()), ("max_split_size_mb", "128"));
        assert!(error.reason.contains("expandable_segments"), "{error}");
        assert!(error.accepted.contains("expandable_segments:False"), "{error}");
    }
}

#[test]
fn b04_a_split_limit_alone_is_accepted_with_a_warning_and_with_fixed_blocks_without() {
    let alone = Config::parse("max_split_size_mb:128").unwrap();
    assert_eq!((alone.max_split_size, alone.expandable_segments), (Some(128 * MIB), true));
    assert_eq!(alone.warnings().len(), 1);
    assert!(alone.warnings()[0].contains("fixed blocks only"), "{:?}", alone.warnings());
    let fixed = Config::parse("max_split_size_mb:128,expandable_segments:False").unwrap();
    assert_eq!((fixed.max_split_size, fixed.expandable_segments), (Some(128 * MIB), false));
    assert_eq!(fixed.warnings(), [""; 0]);
}
