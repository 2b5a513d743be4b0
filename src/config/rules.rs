//! What holds between several settings: contradictions, and combinations without effect.

use super::keys::{Family, KEYS, Reach};
use super::settings::{Config, MIB};
use crate::driver::PageKind;

/// Two settings that cannot both be meant.
pub(super) struct Conflict {
    /// The key that has to give way.
    pub key: &'static str,
    pub reason: String,
    pub accepted: String,
}

/// The first contradiction among the settings.
pub(super) fn conflict(config: &Config) -> Option<Conflict> {
    let growable = config.expandable_segments && config.is_set("expandable_segments");
    for key in ["max_split_size_mb", "garbage_collection_threshold"] {
        if growable && config.is_set(key) {
            let source = config.source_of("expandable_segments").unwrap_or_default();
            return Some(Conflict {
                key,
                reason: if key == "max_split_size_mb" {
                    format!(
                        "it acts on fixed blocks only, but expandable_segments:True from {source} asks for none"
                    )
                } else {
                    format!(
                        "torch_npu refuses it together with expandable_segments:True, which is from {source}"
                    )
                },
                accepted: format!("{key} with expandable_segments:False, or expandable_segments:True alone"),
            });
        }
    }
    let least = config.large_segment_size;
    for (key, bytes) in [
        ("max_split_size_mb", config.max_split_size),
        ("max_non_split_rounding_mb", config.max_non_split_rounding),
    ] {
        if bytes.is_some_and(|bytes| bytes < least) {
            return Some(Conflict {
                key,
                reason: "less than large_segment_size_mb".into(),
                accepted: format!("a whole number from {}, or a smaller large_segment_size_mb", least / MIB),
            });
        }
    }
    if config.pinned_mem_register && config.pin_memory_expandable_segments {
        return Some(Conflict {
            key: "pinned_mem_register",
            reason: "it contradicts pin_memory_expandable_segments:True".into(),
            accepted: "one of the two".into(),
        });
    }
    None
}

/// One sentence for each setting that was made and has no effect as things stand.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    let set = KEYS.iter().filter(|key| !matches!(key.family, Family::OldName(_)));
    for key in set.filter(|key| config.is_set(key.name)) {
        let why = match key.reach {
            Reach::Growable if !config.expandable_segments => {
                "acts on growable segments only, and expandable_segments is False"
            }
            Reach::Fixed if config.expandable_segments => {
                "acts on fixed blocks only, and expandable_segments is True"
            }
            Reach::AlwaysOn if key.slot.show(config) == "False" => {
                "is always on here, so False has no effect"
            }
            _ => continue,
        };
        notes.push(format!("{} from {} {why}", key.name, config.source_of(key.name).unwrap_or_default()));
    }
    if config.check_level > 0 && !cfg!(debug_assertions) {
        notes.push("check_level has no effect in this build, which has no debug assertions".into());
    }
    if config.page_size == PageKind::Huge1G && config.is_set("large_segment_size_mb") {
        notes.push("large_segment_size_mb has no effect together with page_size:1g".into());
    }
    if let (Some(cached), Some(round)) = (config.pinned_max_cached_size, config.pinned_max_round_threshold)
        && cached < round
    {
        notes.push(
            "pinned_max_cached_size_mb is less than pinned_max_round_threshold_mb, so sizes between them are \
             rounded and then not kept"
                .into(),
        );
    }
    notes
}
