//! The packages of the provisioned toolchain: names, versions and hashes, as data.

/// A package of the toolchain.
#[derive(Clone, Copy, Debug)]
pub struct Pin {
    /// The name under which the Python package client knows it.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// SHA-256 of its wheels, in hexadecimal, each with the processor that it is for (`any` for all).
    pub hashes: &'static [(&'static str, &'static str)],
}

/// What is installed: the compiler with its parts, the headers and the static runtime that kernels link, the
/// disassembler that the opcode census needs, and CUTLASS. `cuobjdump -sass` runs `nvdisasm`.
///
/// The disassembler was first published for a later release; it reads the compiler's binaries.
pub const PINS: &[Pin] = &[
    Pin {
        name: "nvidia-cuda-nvcc",
        version: "13.0.88",
        hashes: &[
            ("x86_64", "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"),
            ("aarch64", "c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f"),
        ],
    },
    Pin {
        name: "nvidia-cuda-crt",
        version: "13.0.88",
        hashes: &[
            ("x86_64", "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"),
            ("aarch64", "ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003"),
        ],
    },
    Pin {
        name: "nvidia-nvvm",
        version: "13.0.88",
        hashes: &[
            ("x86_64", "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"),
            ("aarch64", "c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1"),
        ],
    },
    Pin {
        name: "nvidia-cuda-cccl",
        version: "13.0.85",
        hashes: &[
            ("x86_64", "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"),
            ("aarch64", "6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c"),
        ],
    },
    Pin {
        name: "nvidia-cuda-runtime",
        version: "13.0.96",
        hashes: &[
            ("x86_64", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"),
            ("aarch64", "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55"),
        ],
    },
    Pin {
        name: "nvidia-cuda-cuobjdump",
        version: "13.5.37",
        hashes: &[
            ("x86_64", "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58"),
            ("aarch64", "f48e3148535365161a268547b285fd01d92c80e4b457275375933825b5fc26b2"),
        ],
    },
    Pin {
        name: "nvidia-cuda-nvdisasm",
        version: "13.5.37",
        hashes: &[
            ("x86_64", "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca"),
            ("aarch64", "a3a8248074edb9fba63b74c38a5416b712a91ab09e70b8ab37186c3d293fc605"),
        ],
    },
    Pin {
        name: "nvidia-cutlass",
        version: "4.2.0.0",
        hashes: &[("any", "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6")],
    },
];

/// The processors that there are wheels for.
pub const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// What an installation downloads and what it then occupies, roughly, in megabytes.
pub const DOWNLOAD_MB: u32 = 116;
/// See [`DOWNLOAD_MB`].
pub const INSTALLED_MB: u32 = 320;

/// The file that tells the package client what to install; it refuses whatever has another hash.
pub(super) fn requirements() -> String {
    let mut text = String::new();
    for pin in PINS {
        text += &format!("{}=={}", pin.name, pin.version);
        for (_, hash) in pin.hashes {
            text += &format!(" --hash=sha256:{hash}");
        }
        text.push('\n');
    }
    text
}

/// The name of the folder that holds exactly these packages for this processor.
pub(super) fn key() -> String {
    let version = |name| PINS.iter().find(|pin| pin.name == name).map_or("none", |pin| pin.version);
    let architecture = std::env::consts::ARCH;
    format!(
        "cuda-{}-cutlass-{}-{architecture}-{:016x}",
        version("nvidia-cuda-nvcc"),
        version("nvidia-cutlass"),
        fnv1a(requirements().as_bytes())
    )
}

/// FNV-1a, 64 bits: the folder's name must be the same for every build of this version, and only has to tell sets of
/// pins apart.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_well_formed_and_each_package_has_one_for_each_processor() {
        let mut seen = Vec::new();
        for pin in PINS {
            assert!(pin.version.split('.').all(|part| part.parse::<u32>().is_ok()), "{}", pin.name);
            for (_, hash) in pin.hashes {
                assert_eq!(hash.len(), 64, "{}", pin.name);
                assert!(hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{}", pin.name);
                assert!(!seen.contains(hash), "{hash} is there twice");
                seen.push(hash);
            }
            let mut processors: Vec<&str> = pin.hashes.iter().map(|(processor, _)| *processor).collect();
            if processors == ["any"] {
                processors = ARCHITECTURES.to_vec();
            }
            assert_eq!(processors, ARCHITECTURES, "{}", pin.name);
        }
        let mut names: Vec<&str> = PINS.iter().map(|pin| pin.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PINS.len());
    }

    #[test]
    fn the_key_is_a_plain_folder_name_that_says_what_is_inside() {
        let key = key();
        assert!(key.starts_with("cuda-13.0.88-cutlass-4.2.0.0-"), "{key}");
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)), "{key}");
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
    }
}
