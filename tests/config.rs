//! The configuration: every key with good and bad values, the grammar, the order of the sources,
//! and the documentation's tables.

use ascend_alloc::config::{
    ARGUMENT, CACHING_VARIABLE, Config, ConfigError, DEFAULT, OWN_VARIABLE, Observe, SetAccess, TYPED,
    VARIABLES,
};
use ascend_alloc::driver::PageKind;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const NPU: &str = "PYTORCH_NPU_ALLOC_CONF";
const TORCH: &str = "PYTORCH_ALLOC_CONF";

fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_sources(&|name| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, text)| (*text).to_owned())
    })
}

fn refusal(text: &str) -> ConfigError {
    Config::parse(text).expect_err(text)
}

#[test]
fn nothing_said_is_the_default() {
    let config = Config::parse("").unwrap();
    assert_eq!(config, Config::default());
    assert!(config.expandable_segments && config.front_cache && config.stream_order);
    assert_eq!((config.headroom, config.epoch_frees), (0.02, 72));
    assert_eq!(config.large_segment_size, 20 * MIB);
    assert_eq!(config.to_string(), "");
    assert!(config.warnings().is_empty());
    assert!(config.effective().iter().all(|(_, _, source)| *source == DEFAULT));
    assert_eq!(from(&[]).unwrap(), config);
    assert_eq!(config.validate(), Ok(()));
}

/// A text or a key, and a change to the default configuration.
type Good = (&'static str, fn(&mut Config));

/// Each text must make just the change beside it.
const GOOD: &[Good] = &[
    ("expandable_segments:True", |_| {}),
    ("expandable_segments:False", |c| c.expandable_segments = false),
    ("max_split_size_mb:20", |c| c.max_split_size = Some(20 * MIB)),
    ("max_split_size_mb:1099511627776", |c| c.max_split_size = Some(1 << 60)),
    ("max_non_split_rounding_mb:64", |c| c.max_non_split_rounding = Some(64 * MIB)),
    ("garbage_collection_threshold:0.8", |c| c.garbage_collection_threshold = Some(0.8)),
    ("garbage_collection_threshold:1e-3", |c| c.garbage_collection_threshold = Some(0.001)),
    ("roundup_power2_divisions:0", |_| {}),
    ("roundup_power2_divisions:4", |c| c.roundup_power2_divisions = [4; 16]),
    ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", |c| {
        c.roundup_power2_divisions = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8];
    }),
    ("large_segment_size_mb:11", |c| c.large_segment_size = 11 * MIB),
    ("segment_size_mb:512", |c| c.large_segment_size = 512 * MIB),
    ("base_addr_aligned_kb:0", |_| {}),
    ("base_addr_aligned_kb:16", |c| c.base_addr_aligned = 16 * KIB),
    ("page_size:1g", |c| c.page_size = PageKind::Huge1G),
    ("multi_stream_lazy_reclaim:True", |_| {}),
    ("multi_stream_lazy_reclaim:False", |c| c.multi_stream_lazy_reclaim = false),
    ("per_process_memory_fraction:0.5", |c| c.per_process_memory_fraction = 0.5),
    ("per_process_memory_fraction:1", |_| {}),
    ("release_lock_on_npumalloc:True", |_| {}),
    ("release_lock_on_npumalloc:False", |c| c.release_lock_on_npumalloc = false),
    ("throw_on_npumalloc_oom:False", |c| c.throw_on_npumalloc_oom = false),
    ("pin_memory_expandable_segments:True", |c| c.pin_memory_expandable_segments = true),
    ("pinned_mem_register:True", |c| c.pinned_mem_register = true),
    ("pinned_use_background_threads:True", |c| c.pinned_use_background_threads = true),
    ("pinned_reserve_segment_size_mb:256", |c| c.pinned_reserve_segment_size = 256 * MIB),
    ("pinned_max_round_threshold_mb:64", |c| c.pinned_max_round_threshold = Some(64 * MIB)),
    ("pinned_max_cached_size_mb:0", |c| c.pinned_max_cached_size = Some(0)),
    ("headroom:0", |c| c.headroom = 0.0),
    ("headroom:0.05", |c| c.headroom = 0.05),
    ("adaptive_headroom:False", |c| c.adaptive_headroom = false),
    ("waiting_headroom:0", |c| c.waiting_headroom = 0.0),
    ("waiting_headroom:0.125", |c| c.waiting_headroom = 0.125),
    ("device_waits:False", |c| c.device_waits = false),
    ("front_cache:False", |c| c.front_cache = false),
    ("caching:False", |c| c.caching = false),
    ("reservation_gb:128", |c| c.reservation = 128 * GIB),
    ("reservation_gb:8192", |c| c.reservation = 8192 * GIB),
    ("set_access:auto", |_| {}),
    ("set_access:on", |c| c.set_access = SetAccess::On),
    ("set_access:off", |c| c.set_access = SetAccess::Off),
    ("check_level:3", |c| c.check_level = 3),
    ("stream_order:False", |c| c.stream_order = false),
    ("decay_ms:1000000000000", |c| c.decay_ms = 1_000_000_000_000),
    ("decay_ops:1000", |c| c.decay_ops = 1000),
    ("memory_limit_mb:1", |c| c.memory_limit = Some(MIB)),
    ("soft_limit_mb:1099511627776", |c| c.soft_limit = Some(1 << 60)),
    ("epoch_frees:64", |c| c.epoch_frees = 64),
    ("epoch_frees:1048576", |c| c.epoch_frees = 1 << 20),
    ("history_entries:100000", |c| c.observe.history_entries = 100_000),
    ("history_file:/tmp/history of %p.zst", |c| {
        c.observe.history_file = Some("/tmp/history of %p.zst".into());
    }),
    ("history_file_mb:1", |c| c.observe.history_file_bytes = MIB),
    ("history_files:2", |c| c.observe.history_files = 2),
    ("trace_file:run.trace.zst", |c| c.observe.trace_file = Some("run.trace.zst".into())),
    ("oom_report:off", |_| {}),
    ("oom_report:reports/oom", |c| c.observe.oom_report = Some("reports/oom".into())),
    ("oom_report_s:0", |c| c.observe.oom_report_pause = 0),
    ("oom_report_files:1", |c| c.observe.oom_report_files = 1),
    ("stats_export:/run/a.sock", |c| c.observe.stats_export = Some("/run/a.sock".into())),
    ("stats_export_ms:10", |c| c.observe.stats_export_ms = 10),
];

#[test]
fn every_good_value_reaches_its_field_and_no_other() {
    for (text, change) in GOOD {
        let config = Config::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut expected = Config::default();
        change(&mut expected);
        assert_eq!(config, expected, "{text}");
        let key = text.split(':').next().unwrap();
        assert_eq!(config.source_of(key), Some(ARGUMENT), "{text}");
        assert_eq!(Config::parse(&config.to_string()), Ok(config), "{text}");
        assert_eq!(expected.validate(), Ok(()), "{text}");
    }
    for key in Config::keys() {
        let start = format!("{}:", key.name);
        assert!(GOOD.iter().any(|(text, _)| text.starts_with(&start)), "{} is not tested", key.name);
    }
}

const BAD: &[(&str, &[&str])] = &[
    ("expandable_segments", &["true", "1", "Yes", "[1:2]"]),
    ("max_split_size_mb", &["10", "19", "-1", "1.5", "64MB", "1099511627777", "18446744073709551616"]),
    ("max_non_split_rounding_mb", &["0", "19", "x"]),
    ("garbage_collection_threshold", &["0", "1", "-0.5", "1.5", "nan", "inf", "80%"]),
    ("roundup_power2_divisions", &["3", "-1", "[3:1]", "[1:3]", "[>:1]", "[2:1,1:1]", "[65536:1]", "[x:1]"]),
    ("large_segment_size_mb", &["10", "0", "20.0", "1099511627777"]),
    ("segment_size_mb", &["19", "513", "x"]),
    ("base_addr_aligned_kb", &["3", "17", "32", "-1"]),
    ("page_size", &["1G", "2m", "1", "huge"]),
    ("multi_stream_lazy_reclaim", &["on"]),
    ("per_process_memory_fraction", &["0", "-0.0", "1.01", "-0.1", "NaN"]),
    ("release_lock_on_npumalloc", &["on"]),
    ("throw_on_npumalloc_oom", &["on"]),
    ("pin_memory_expandable_segments", &["on"]),
    ("pinned_mem_register", &["on"]),
    ("pinned_use_background_threads", &["on"]),
    ("pinned_reserve_segment_size_mb", &["-1", "1099511627777"]),
    ("pinned_max_round_threshold_mb", &["unlimited"]),
    ("pinned_max_cached_size_mb", &["unlimited"]),
    ("headroom", &["-0.01", "1.01", "2%", "inf"]),
    ("adaptive_headroom", &["0.1"]),
    ("waiting_headroom", &["-0.01", "1.01", "1/64"]),
    ("device_waits", &["yes"]),
    ("front_cache", &["1"]),
    ("caching", &["0"]),
    ("reservation_gb", &["8193", "-1"]),
    ("set_access", &["True", "AUTO"]),
    ("check_level", &["4", "-1", "high"]),
    ("stream_order", &["0"]),
    ("decay_ms", &["-1", "1000000000001", "18446744073709551616"]),
    ("decay_ops", &["-1", "1000000000001", "1.5"]),
    ("memory_limit_mb", &["0", "-1", "1099511627777", "unlimited"]),
    ("soft_limit_mb", &["0", "1.5", "1099511627777"]),
    ("epoch_frees", &["63", "0", "1048577", "4294967360"]),
    ("history_entries", &["-1", "4294967297"]),
    ("history_file", &["a\0b", "[1:2]", "not\u{fffd}unicode"]),
    ("history_file_mb", &["0", "1.5"]),
    ("history_files", &["0", "1001"]),
    ("trace_file", &["a\0b"]),
    ("oom_report", &["a\0b"]),
    ("oom_report_s", &["-1", "1048577"]),
    ("oom_report_files", &["0"]),
    ("stats_export", &["a\0b"]),
    ("stats_export_ms", &["9", "3600001"]),
];

#[test]
fn every_bad_value_is_refused_with_all_that_helps() {
    for (key, values) in BAD {
        for value in *values {
            let error = refusal(&format!("{key}:{value}"));
            assert_eq!((error.key.as_str(), error.value.as_str()), (*key, *value));
            assert_eq!(error.source, ARGUMENT);
            assert!(!error.reason.is_empty() && !error.accepted.is_empty(), "{error}");
            let shown = error.to_string();
            for part in [*key, *value, ARGUMENT, &error.reason, &error.accepted] {
                assert!(shown.contains(part), "{shown} lacks {part}");
            }
        }
    }
    for key in Config::keys() {
        assert!(BAD.iter().any(|(name, _)| *name == key.name), "{} is not tested", key.name);
    }
}

#[test]
fn the_variable_that_switches_caching_off_comes_last() {
    let caching =
        |variables| from(variables).map(|config| (config.caching, config.source_of("caching").unwrap()));
    assert_eq!(caching(&[]), Ok((true, DEFAULT)));
    assert_eq!(caching(&[(CACHING_VARIABLE, "")]), Ok((true, DEFAULT)));
    assert_eq!(caching(&[(CACHING_VARIABLE, " 1 ")]), Ok((false, CACHING_VARIABLE)));
    assert_eq!(caching(&[(CACHING_VARIABLE, "0")]), Ok((true, CACHING_VARIABLE)));
    assert_eq!(caching(&[(CACHING_VARIABLE, "1"), (NPU, "page_size:1g")]), Ok((false, CACHING_VARIABLE)));
    let both = [(CACHING_VARIABLE, "1"), (OWN_VARIABLE, "caching:True")];
    assert_eq!(caching(&both), Ok((true, OWN_VARIABLE)));
    let warnings = from(&both).unwrap().warnings();
    assert!(warnings[0].contains(CACHING_VARIABLE) && warnings[0].contains("ignored"), "{warnings:?}");
    for wrong in ["True", "2", "caching:False", "1,page_size:1g"] {
        let error = from(&[(CACHING_VARIABLE, wrong)]).unwrap_err();
        assert_eq!((&*error.value, &*error.source, &*error.accepted), (wrong, CACHING_VARIABLE, "0 or 1"));
    }
    assert!(from(&[(NPU, "caching:False")]).is_err(), "the key is our own");
}

#[test]
fn keys_of_other_devices_are_refused_with_a_reason() {
    for refused in Config::refused_keys() {
        for source in VARIABLES {
            let error = from(&[(source, &format!("{}:True", refused.name))]).unwrap_err();
            assert_eq!((error.key.as_str(), error.source.as_str()), (refused.name, source));
            assert!(error.reason.contains(refused.reason), "{error}");
        }
        assert!(Config::keys().iter().all(|key| key.name != refused.name));
    }
    assert_eq!(Config::refused_keys().len(), 11);
}

#[test]
fn unknown_keys_are_refused_with_a_hint() {
    let error = refusal("headroom:0.02,max_split_size:64");
    assert_eq!((error.key.as_str(), error.value.as_str()), ("max_split_size", "64"));
    assert!(error.accepted.starts_with("max_split_size_mb "), "{error}");
    assert!(refusal("Expandable-Segments:True").accepted.starts_with("expandable_segments "));
    assert!(refusal("nonsense:1").accepted.contains("headroom"));
    let error = from(&[(NPU, "nonsense:1")]).unwrap_err();
    assert_eq!(error.source, NPU);
    assert!(!error.accepted.contains("headroom"), "an own key would be refused there: {error}");
}

#[test]
fn a_text_that_is_not_in_the_grammar_is_refused() {
    let cases = [
        ("headroom", "headroom", "headroom from argument: a ':' is missing after the key, at the end"),
        ("headroom:", "headroom", "headroom from argument: the value is missing, at the end"),
        (
            "headroom=0.1",
            "headroom=0.1",
            "headroom=0.1 from argument: a ':' is missing after the key, at the end",
        ),
        (
            "headroom:0.1 decay_ms:5",
            "headroom",
            "headroom:0.1 decay_ms from argument: a ',' is missing after the value, where \":5\" stands",
        ),
        ("headroom:0.1,,decay_ms:5", "", "from argument: a key is missing, where \",decay_ms:5\" stands"),
        (
            "roundup_power2_divisions:[4:1",
            "roundup_power2_divisions",
            "roundup_power2_divisions from argument: a ',' or ']' is missing in the list, where \"[4:1\" stands",
        ),
    ];
    for (text, key, said) in cases {
        let error = refusal(text);
        assert_eq!(error.key, key, "{text}");
        assert!(error.to_string().starts_with(&format!("configuration {said}; accepted: ")), "{error}");
        assert!(!error.accepted.is_empty());
    }
}

#[test]
fn a_key_said_twice_is_refused_under_its_old_name_too() {
    for text in ["headroom:0.1,headroom:0.1", "decay_ms:1,headroom:0.1,decay_ms:2"] {
        assert!(refusal(text).reason.contains("said twice"), "{text}");
    }
    let error = refusal("large_segment_size_mb:40,segment_size_mb:40");
    assert_eq!(error.key, "segment_size_mb");
    assert!(error.reason.contains("large_segment_size_mb"), "{error}");
}

#[test]
fn contradictions_name_the_key_and_the_other_one() {
    let cases = [
        ("max_split_size_mb:128,expandable_segments:True", "max_split_size_mb", "expandable_segments:True"),
        (
            "expandable_segments:True,garbage_collection_threshold:0.8",
            "garbage_collection_threshold",
            "expandable_segments:True",
        ),
        ("max_split_size_mb:30,large_segment_size_mb:40", "max_split_size_mb", "large_segment_size_mb"),
        ("max_non_split_rounding_mb:15", "max_non_split_rounding_mb", "large_segment_size_mb"),
        (
            "pinned_mem_register:True,pin_memory_expandable_segments:True",
            "pinned_mem_register",
            "pin_memory_expandable_segments:True",
        ),
    ];
    for (text, key, other) in cases {
        let error = refusal(text);
        assert_eq!(error.key, key, "{text}");
        assert!(error.reason.contains(other), "{error}");
    }
    assert!(Config::parse("max_split_size_mb:12,large_segment_size_mb:12").is_ok());
    assert!(Config::parse("pinned_mem_register:True,pin_memory_expandable_segments:False").is_ok());
}

#[test]
fn what_has_no_effect_is_said() {
    let cases = [
        ("expandable_segments:False", None),
        ("expandable_segments:False,max_split_size_mb:64", None),
        ("max_split_size_mb:64", Some("max_split_size_mb")),
        ("garbage_collection_threshold:0.5", None),
        ("soft_limit_mb:100,memory_limit_mb:200,decay_ops:1000", None),
        ("expandable_segments:False,headroom:0.5", Some("headroom")),
        ("headroom:0.5", None),
        ("release_lock_on_npumalloc:True", None),
        ("release_lock_on_npumalloc:False", Some("release_lock_on_npumalloc")),
        ("throw_on_npumalloc_oom:False", Some("throw_on_npumalloc_oom")),
        ("multi_stream_lazy_reclaim:False", Some("multi_stream_lazy_reclaim")),
        ("pinned_mem_register:True", None),
    ];
    for (text, key) in cases {
        let warnings = Config::parse(text).unwrap().warnings();
        assert_eq!(warnings.len(), usize::from(key.is_some()), "{text}: {warnings:?}");
        if let Some(key) = key {
            assert!(warnings[0].starts_with(key) && warnings[0].contains(ARGUMENT), "{warnings:?}");
        }
    }
    let page = "page_size:1g,large_segment_size_mb:40,expandable_segments:False";
    assert!(Config::parse(page).unwrap().warnings()[0].contains("page_size:1g"));
    let pinned = "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:32";
    assert_eq!(Config::parse(pinned).unwrap().warnings().len(), 1);
}

#[test]
fn the_first_variable_wins_key_by_key_and_the_loser_is_named() {
    let config = from(&[
        (TORCH, "base_addr_aligned_kb:4,per_process_memory_fraction:0.25"),
        (NPU, "base_addr_aligned_kb:8,roundup_power2_divisions:4"),
        (OWN_VARIABLE, "base_addr_aligned_kb:16,headroom:0.1"),
    ])
    .unwrap();
    assert_eq!(config.base_addr_aligned, 16 * KIB);
    assert_eq!(config.source_of("base_addr_aligned_kb"), Some(OWN_VARIABLE));
    assert_eq!(config.source_of("headroom"), Some(OWN_VARIABLE));
    assert_eq!(config.source_of("roundup_power2_divisions"), Some(NPU));
    assert_eq!(config.source_of("per_process_memory_fraction"), Some(TORCH));
    assert_eq!(config.source_of("decay_ms"), Some(DEFAULT));
    assert_eq!(config.source_of("no such key"), None);
    let warnings = config.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains(NPU) && warnings[0].contains("base_addr_aligned_kb:8"), "{warnings:?}");
    assert!(warnings[1].contains(TORCH) && warnings[1].contains("base_addr_aligned_kb:4"), "{warnings:?}");

    let same = from(&[(NPU, "segment_size_mb:32"), (TORCH, "large_segment_size_mb:32")]).unwrap();
    assert_eq!(same.source_of("segment_size_mb"), Some(NPU));
    assert!(same.warnings().iter().all(|warning| !warning.contains("ignored")), "{:?}", same.warnings());
}

#[test]
fn a_wrong_value_is_wrong_in_a_variable_that_loses_too() {
    let error = from(&[(OWN_VARIABLE, "page_size:1g"), (TORCH, "page_size:2g")]).unwrap_err();
    assert_eq!((error.source.as_str(), error.value.as_str()), (TORCH, "2g"));
}

#[test]
fn own_keys_are_refused_in_the_variables_of_pytorch() {
    let own = Config::keys().iter().filter(|key| key.variables() == [OWN_VARIABLE]);
    for key in own.clone() {
        let text = GOOD.iter().find(|(text, _)| text.starts_with(&format!("{}:", key.name))).unwrap().0;
        assert!(from(&[(OWN_VARIABLE, text)]).is_ok(), "{text}");
        for variable in [NPU, TORCH] {
            let error = from(&[(variable, text)]).unwrap_err();
            assert_eq!((error.key.as_str(), error.source.as_str()), (key.name, variable));
            assert!(error.accepted.contains(OWN_VARIABLE), "{error}");
        }
    }
    assert_eq!(own.count(), 25);
}

#[test]
fn typed_settings_are_checked_and_shown_as_such() {
    let mut config = from(&[(NPU, "page_size:1g")]).unwrap();
    config.headroom = 0.1;
    assert_eq!(config.validate(), Ok(()));
    assert_eq!((config.source_of("headroom"), config.source_of("page_size")), (Some(TYPED), Some(NPU)));

    let wrong: &[Good] = &[
        ("headroom", |c| c.headroom = f64::NAN),
        ("headroom", |c| c.headroom = f64::INFINITY),
        ("per_process_memory_fraction", |c| c.per_process_memory_fraction = 0.0),
        ("garbage_collection_threshold", |c| c.garbage_collection_threshold = Some(1.0)),
        ("max_split_size_mb", |c| c.max_split_size = Some(20 * MIB + 1)),
        ("max_split_size_mb", |c| c.max_split_size = Some(19 * MIB)),
        ("max_split_size_mb", |c| c.max_split_size = Some(0)),
        ("base_addr_aligned_kb", |c| c.base_addr_aligned = 3 * KIB),
        ("roundup_power2_divisions", |c| c.roundup_power2_divisions[7] = 6),
        ("check_level", |c| c.check_level = 4),
        ("epoch_frees", |c| c.epoch_frees = 1),
        ("trace_file", |c| c.observe.trace_file = Some("a,b".into())),
    ];
    for (key, change) in wrong {
        let mut config = Config::default();
        change(&mut config);
        let error = config.validate().unwrap_err();
        assert_eq!((error.key.as_str(), error.source.as_str()), (*key, TYPED), "{error}");
        assert!(!error.value.is_empty() && !error.accepted.is_empty(), "{error}");
    }
}

/// What a path would be read back as is what it is.
#[test]
fn paths_that_no_text_can_say_are_refused() {
    for path in ["", "off", " a", "a\t", "a,b", "a:b", "1:2", " 1:2", "[1:2]", "a\0", "\u{fffd}"] {
        let observe = Observe { history_file: Some(path.into()), ..Observe::default() };
        let config = Config { observe, ..Config::default() };
        let error = config.validate().expect_err(path);
        assert_eq!((error.key.as_str(), error.source.as_str()), ("history_file", TYPED), "{path:?}");
    }
    for path in ["offer", "./off", "a b", "%p", ">"] {
        let observe = Observe { history_file: Some(path.into()), ..Observe::default() };
        let config = Config { observe, ..Config::default() };
        assert_eq!(config.validate(), Ok(()), "{path:?}");
        assert_eq!(Config::parse(&config.to_string()), Ok(config), "{path:?}");
    }
}

/// A setting with the default's value may still mean something: that somebody wanted it.
#[test]
fn what_somebody_has_said_is_shown() {
    let chunks = Config::parse("large_segment_size_mb:20").unwrap();
    assert!(chunks.sets_chunk_size() && !Config::default().sets_chunk_size());
    assert!(Config::parse(&chunks.to_string()).unwrap().sets_chunk_size());
    let grows = Config::parse("expandable_segments:True").unwrap();
    let both = format!("{grows},max_split_size_mb:64");
    assert_eq!(Config::parse(&both).unwrap_err().key, "max_split_size_mb", "{both}");
}

#[test]
fn an_argument_wins_over_what_was_there() {
    let before = from(&[(NPU, "page_size:1g,per_process_memory_fraction:0.5")]).unwrap();
    let after = before.overridden_by("per_process_memory_fraction:0.75,decay_ms:10").unwrap();
    assert_eq!(before.per_process_memory_fraction, 0.5);
    assert_eq!((after.per_process_memory_fraction, after.decay_ms), (0.75, 10));
    assert_eq!(after.source_of("per_process_memory_fraction"), Some(ARGUMENT));
    assert_eq!(after.source_of("page_size"), Some(NPU));
    let error = from(&[(NPU, "expandable_segments:True")]).unwrap().overridden_by("max_split_size_mb:64");
    assert!(error.unwrap_err().reason.contains(NPU));
}

#[test]
fn steps_between_powers_of_two_go_by_the_interval_of_the_size() {
    let config = Config::parse("roundup_power2_divisions:[1:2,2:4,4:8,>:16]").unwrap();
    for (size, divisions) in [
        (0, 2),
        (1, 2),
        (MIB, 2),
        (2 * MIB - 1, 2),
        (2 * MIB, 4),
        (4 * MIB - 1, 4),
        (4 * MIB, 8),
        (8 * MIB, 16),
        (32 * GIB, 16),
        (u64::MAX, 16),
    ] {
        assert_eq!(config.roundup_divisions_for(size), divisions, "{size}");
    }
    let last = Config::parse("roundup_power2_divisions:[16384:0,32768:2]").unwrap();
    assert_eq!(last.roundup_divisions_for(32 * GIB - 1), 0);
    assert_eq!(last.roundup_divisions_for(32 * GIB), 2);
    assert_eq!(last.roundup_divisions_for(u64::MAX), 2);
}

#[test]
fn the_effective_settings_name_each_key_once() {
    let config = from(&[(TORCH, "segment_size_mb:32")]).unwrap();
    let effective = config.effective();
    assert_eq!(effective.len(), Config::keys().len() - 1);
    assert!(effective.contains(&("large_segment_size_mb", "32".to_owned(), TORCH)));
    assert!(effective.iter().all(|(key, _, _)| *key != "segment_size_mb"));
}

// On a difference: replace everything below the heading "Keys" by what the message shows.
#[test]
fn the_documentation_has_the_tables_of_the_code() {
    let page = include_str!("../docs/configuration.md");
    let tables = Config::key_tables();
    assert!(page.ends_with(&tables), "docs/configuration.md must end with:\n{tables}");
    assert!(include_str!("../src/config.rs").contains("include_str!(\"../docs/configuration.md\")"));
    for key in Config::keys() {
        let row = tables.lines().find(|line| line.starts_with(&format!("| `{}` |", key.name))).unwrap();
        assert!(row.contains(&format!("| {} |", key.default())) && row.contains(key.effect), "{row}");
    }
    for source in VARIABLES.into_iter().chain([CACHING_VARIABLE]) {
        assert!(page.contains(source));
    }
}

/// Any text that names real keys, with good values, each at most once and without contradiction.
fn consistent_text() -> impl Strategy<Value = String> {
    prop::sample::subsequence(GOOD.iter().map(|(text, _)| *text).collect::<Vec<_>>(), 0..GOOD.len())
        .prop_shuffle()
        .prop_map(|pairs| {
            let mut taken: Vec<&str> = Vec::new();
            let mut text = String::new();
            for pair in pairs {
                let key = pair.split(':').next().unwrap_or_default();
                let together = format!("{text},{pair}");
                if !taken.contains(&key) && Config::parse(together.trim_start_matches(',')).is_ok() {
                    taken.push(key);
                    text = together.trim_start_matches(',').to_owned();
                }
            }
            text
        })
}

/// Text made of the grammar's own pieces: nearly right far more often than random letters are.
fn nearly_text() -> impl Strategy<Value = String> {
    let mut pieces: Vec<&str> = vec![",", ":", "[", "]", ">", " ", "", "True", "False", "1g", "0", "1", "é"];
    pieces.extend(["64", "0.5", "-1", "18446744073709551616", "256:1", "\0"]);
    pieces.extend(Config::keys().iter().map(|key| key.name));
    pieces.extend(Config::refused_keys().iter().map(|key| key.name));
    prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

fn never_panics(text: &str) -> Result<(), TestCaseError> {
    match Config::parse(text) {
        Ok(config) => {
            prop_assert_eq!(config.validate(), Ok(()));
            prop_assert_eq!(Config::parse(&config.to_string()), Ok(config));
        }
        Err(error) => {
            prop_assert!(error.key.is_empty() || text.contains(&error.key));
            prop_assert!(!error.reason.is_empty() && !error.accepted.is_empty());
        }
    }
    for variable in VARIABLES {
        if let Err(error) = from(&[(variable, text)]) {
            prop_assert_eq!(error.source.as_str(), variable);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_reads_back(text in consistent_text()) {
        let config = Config::parse(&text).expect("chosen to be accepted");
        let shown = config.to_string();
        let again = Config::parse(&shown).expect("shown by a valid configuration");
        prop_assert_eq!(&again, &config);
        prop_assert_eq!(again.to_string(), shown);
    }

    #[test]
    fn any_numbers_read_back(
        headroom in 0.0..=1.0f64,
        fraction in f64::MIN_POSITIVE..=1.0f64,
        threshold in f64::MIN_POSITIVE..1.0f64,
        decay in 0..=1_000_000_000_000u64,
        epoch in 64..=1u32 << 20,
        exponents in prop::array::uniform16(0..9u32),
        split in 20..=1u64 << 40,
    ) {
        let config = Config {
            headroom,
            per_process_memory_fraction: fraction,
            garbage_collection_threshold: Some(threshold),
            decay_ms: decay,
            epoch_frees: epoch,
            roundup_power2_divisions: exponents.map(|exponent| if exponent == 8 { 0 } else { 1 << exponent }),
            max_split_size: Some(split << 20),
            ..Config::default()
        };
        prop_assert_eq!(config.validate(), Ok(()));
        prop_assert_eq!(Config::parse(&config.to_string()), Ok(config));
    }

    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        never_panics(&text)?;
    }

    #[test]
    fn nearly_right_text_is_answered(text in nearly_text()) {
        never_panics(&text)?;
    }
}
