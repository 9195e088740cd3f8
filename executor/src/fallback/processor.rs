//! The processor identity, on which the bits of fallback results depend.

use std::fs;
use std::path::Path;

/// Identifies the processor as far as the fallback's results depend on it. Name and vector instructions determine how
/// the fallback and the `gemm` crate sum; caches determine how much `gemm` sums at a time. On equal processors the
/// same program gives the same bits. `None` if part of it cannot be determined.
pub fn processor() -> Option<String> {
    let name = name(&fs::read_to_string("/proc/cpuinfo").ok()?)?;
    let caches = caches(Path::new("/sys/devices/system/cpu/cpu0/cache"))?;
    Some(format!("{name} ({}; {}; caches {caches})", std::env::consts::ARCH, vector_instructions().join(" ")))
}

fn name(cpuinfo: &str) -> Option<String> {
    // Arm processors have numbers instead of a model name.
    const KEYS: [&str; 4] = ["model name", "CPU implementer", "CPU part", "CPU variant"];
    let first = |key: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let words: Vec<&str> = KEYS.into_iter().filter_map(first).filter(|word| !word.is_empty()).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(target_arch = "x86_64")]
fn vector_instructions() -> Vec<&'static str> {
    let known = [
        ("fma", is_x86_feature_detected!("fma")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    known.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_instructions() -> Vec<&'static str> {
    Vec::new()
}

/// The data caches of one core, nearest first: size, ways, line size and sharing cores.
fn caches(folder: &Path) -> Option<String> {
    let mut caches = Vec::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let field = |name: &str| Some(fs::read_to_string(entry.path().join(name)).ok()?.trim().to_owned());
        let Some(level) = field("level").and_then(|level| level.parse::<u32>().ok()) else { continue };
        if field("type").is_none_or(|kind| kind == "Instruction") {
            continue;
        }
        let fields = ["size", "ways_of_associativity", "coherency_line_size", "shared_cpu_list"].map(field);
        caches.push((level, fields.map(Option::unwrap_or_default).join("/")));
    }
    caches.sort();
    let caches: Vec<String> = caches.into_iter().map(|(_, cache)| cache).collect();
    (!caches.is_empty()).then(|| caches.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_named_by_its_name_or_its_numbers() {
        assert_eq!(
            name("processor\t: 0\nmodel name\t: A 9000\nmodel name\t: B\n").as_deref(),
            Some("A 9000")
        );
        let arm = "processor : 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n";
        assert_eq!(name(arm).as_deref(), Some("0x41 0xd4f 0x0"));
        assert_eq!(name("processor : 0\n"), None);
    }

    #[test]
    fn caches_are_listed_the_nearest_first() {
        let folder = tempfile::tempdir().unwrap();
        let caches_of = [("index3", "3", "Unified", "32768K"), ("index0", "1", "Data", "32K")];
        for (index, level, kind, size) in caches_of.into_iter().chain([("index1", "1", "Instruction", "64K")])
        {
            let cache = folder.path().join(index);
            fs::create_dir(&cache).unwrap();
            let fields = [
                ("level", level),
                ("type", kind),
                ("size", size),
                ("ways_of_associativity", "8"),
                ("coherency_line_size", "64"),
                ("shared_cpu_list", "0-1"),
            ];
            for (name, value) in fields {
                fs::write(cache.join(name), format!("{value}\n")).unwrap();
            }
        }
        assert_eq!(caches(folder.path()).as_deref(), Some("32K/8/64/0-1 32768K/8/64/0-1"));
        assert_eq!(caches(&folder.path().join("index0/none")), None);
        assert_eq!(processor(), processor());
    }
}
