//! The pinned toolchain as data: versions, packages, hashes, and the files installed from each package.
//!
//! Everything that changes with a new compiler or a new CUTLASS is in [`PINNED`].

use serde_json::{Value, json};

/// The pinned toolchain.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// The version that the pinned nvcc reports, such as `13.1.115`. Part of cache keys.
    pub nvcc: &'static str,
    /// The version in the pinned CUTLASS headers, such as `4.5.0`. Part of cache keys.
    pub cutlass: &'static str,
    /// The packages of the toolchain.
    pub packages: &'static [Pin],
}

/// A package of the toolchain.
#[derive(Clone, Copy, Debug)]
pub struct Pin {
    /// The package's name in the Python package index.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The part of the toolchain that it belongs to.
    pub part: Part,
    /// The files installed: a file or folder of the wheel, and its place in the toolchain. Folders end with a slash.
    /// `{info}` stands for the wheel's metadata folder, `{name}` for the package.
    pub takes: &'static [(&'static str, &'static str)],
    /// The size of its wheel, in megabytes.
    pub download_mb: u32,
    /// SHA-256 hashes of its wheels in hexadecimal, each with its processor (`any` for all).
    pub hashes: &'static [(&'static str, &'static str)],
}

/// A part of the toolchain, installed and checked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The compiler with its headers, the static runtime and the disassembler, which every kernel needs.
    Compiler,
    /// The CUTLASS headers, which Blackwell kernels need.
    Cutlass,
}

impl Part {
    /// Every part.
    pub const ALL: [Part; 2] = [Part::Compiler, Part::Cutlass];

    /// The folder of an installed toolchain that holds this part.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Part::Compiler => "nvidia",
            Part::Cutlass => "cutlass",
        }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Part::Compiler => "the compiler",
            Part::Cutlass => "CUTLASS",
        }
    }

    /// The packages of this part.
    pub(super) fn packages(self) -> impl Iterator<Item = &'static Pin> {
        PINNED.packages.iter().filter(move |pin| pin.part == self)
    }

    /// The size of the download of this part, in megabytes.
    pub fn download_mb(self) -> u32 {
        self.packages().map(|pin| pin.download_mb).sum()
    }

    /// The approximate size of this part on disk, in megabytes.
    pub fn installed_mb(self) -> u32 {
        match self {
            Part::Compiler => 340,
            Part::Cutlass => 32,
        }
    }
}

/// The folders installed from a compiler package.
const COMPILER: &[(&str, &str)] = &[("nvidia/", "nvidia/"), ("{info}/licenses/", "nvidia/licenses/{name}/")];

/// The pins. The compiler's own packages have one version; CCCL and the runtime come from the same CUDA release.
///
/// The disassembler comes from a later release, the first one that publishes it; it reads the compiler's binaries. The
/// CUTLASS headers have no newer package of their own; this package contains them unchanged.
pub const PINNED: Pinned = Pinned {
    nvcc: "13.1.115",
    cutlass: "4.5.0",
    packages: &[
        Pin {
            name: "nvidia-cuda-nvcc",
            version: "13.1.115",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 43,
            hashes: &[
                ("x86_64", "fe5c0604869dfbc837bdce9e1eef8e4f0e0d103c29e3875014ba3538c70efb74"),
                ("aarch64", "ae46f71ea6f377e7719c1084ae8ca28d4e88770ee4436478c366c15f1fcfdebe"),
            ],
        },
        Pin {
            name: "nvidia-cuda-crt",
            version: "13.1.115",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 1,
            hashes: &[
                ("x86_64", "53c9b03f804dc7e539dd11914ec3d3fd0849791d8cd6a73f0d4df984bb339916"),
                ("aarch64", "eefd71d80d296391b100ab61e44bfd924308e2685d382f33a24d5c59213b43da"),
            ],
        },
        Pin {
            name: "nvidia-nvvm",
            version: "13.1.115",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 64,
            hashes: &[
                ("x86_64", "6fdf483d85d9903f9cbf84c41d99221a86e0c0511d05de3d237b4ab69c11627e"),
                ("aarch64", "860706eb4b5851ac1d2bacf574b582ec66901acc31051da9b0cf9a2c910a9aa9"),
            ],
        },
        Pin {
            name: "nvidia-cuda-cccl",
            version: "13.1.115",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 4,
            hashes: &[
                ("x86_64", "d4a9e0590cd34290cda27f402a67fbf42e3ed043bdd927c6dd52419c860f2f92"),
                ("aarch64", "5d5d26df9e56af547a3699048b466d55dbab7557af030161de96abd67834512a"),
            ],
        },
        Pin {
            name: "nvidia-cuda-runtime",
            version: "13.1.80",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 3,
            hashes: &[
                ("x86_64", "dac25b52e69050e5a7a84957e6df470a85b185f8f648a99a1ab1dfce027576cf"),
                ("aarch64", "5f1aa8fd779cae1a78aa8fdbaa5e4f245300baff120099d9b5ee84e3f4506a29"),
            ],
        },
        Pin {
            name: "nvidia-cuda-cuobjdump",
            version: "13.5.37",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 1,
            hashes: &[
                ("x86_64", "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58"),
                ("aarch64", "f48e3148535365161a268547b285fd01d92c80e4b457275375933825b5fc26b2"),
            ],
        },
        Pin {
            name: "nvidia-cuda-nvdisasm",
            version: "13.5.37",
            part: Part::Compiler,
            takes: COMPILER,
            download_mb: 6,
            hashes: &[
                ("x86_64", "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca"),
                ("aarch64", "a3a8248074edb9fba63b74c38a5416b712a91ab09e70b8ab37186c3d293fc605"),
            ],
        },
        Pin {
            name: "flashinfer-python",
            version: "0.7.2.post1",
            part: Part::Cutlass,
            takes: &[
                ("flashinfer/data/cutlass/include/", "cutlass/include/"),
                ("flashinfer/data/cutlass/tools/util/include/", "cutlass/tools/util/include/"),
                ("{info}/licenses/LICENSE", "cutlass/licenses/{name}/LICENSE"),
            ],
            download_mb: 62,
            hashes: &[("any", "bfdc18b9e1e4d8d0730fe4343dc0e284cd0c160086de80f99888bc4867922d49")],
        },
    ],
};

/// The processors with wheels.
pub const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// The requirements file for pip, which rejects packages with other hashes.
pub(super) fn requirements(parts: &[Part]) -> String {
    let mut text = String::new();
    for pin in parts.iter().flat_map(|part| part.packages()) {
        text += &format!("{}=={}", pin.name, pin.version);
        for (_, hash) in pin.hashes {
            text += &format!(" --hash=sha256:{hash}");
        }
        text.push('\n');
    }
    text
}

/// The input of `unpack.py`: each package's name, wheel hashes and files.
pub(super) fn unpack_plan(parts: &[Part]) -> Value {
    let package = |pin: &Pin| {
        let info = format!("{}-{}.dist-info", pin.name.replace('-', "_"), pin.version);
        let fill = |text: &str| text.replace("{info}", &info).replace("{name}", pin.name);
        let takes: Vec<[String; 2]> = pin.takes.iter().map(|(from, to)| [fill(from), fill(to)]).collect();
        let hashes: Vec<&str> = pin.hashes.iter().map(|(_, hash)| *hash).collect();
        json!({ "name": pin.name, "hashes": hashes, "takes": takes })
    };
    parts.iter().flat_map(|part| part.packages()).map(package).collect()
}

/// The name of the folder that holds the pinned toolchain for this processor.
pub(super) fn key() -> String {
    let Pinned { nvcc, cutlass, .. } = PINNED;
    let architecture = std::env::consts::ARCH;
    // The installed files are part of the key too.
    let content = format!("{}{}", requirements(&Part::ALL), unpack_plan(&Part::ALL));
    format!("cuda-{nvcc}-cutlass-{cutlass}-{architecture}-{:016x}", fnv1a(content.as_bytes()))
}

/// FNV-1a, 64 bits. The folder's name must be the same for every build of this version, and only has to distinguish
/// sets of pins.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::super::known_bad::{KNOWN_BAD, Tool};
    use super::super::version::{OLDEST_CUTLASS, Version};
    use super::*;

    #[test]
    fn hashes_are_well_formed_and_each_package_has_one_for_each_processor() {
        let mut seen = Vec::new();
        for pin in PINNED.packages {
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
            for (from, to) in pin.takes {
                assert!(to.starts_with(&format!("{}/", pin.part.folder())), "{}: {to}", pin.name);
                assert!(!from.is_empty() && from.ends_with('/') == to.ends_with('/'), "{}: {from}", pin.name);
            }
        }
        let mut names: Vec<&str> = PINNED.packages.iter().map(|pin| pin.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PINNED.packages.len());
    }

    #[test]
    fn the_versions_of_keys_are_complete_new_enough_and_not_known_to_be_bad() {
        let [nvcc, cutlass] =
            [PINNED.nvcc, PINNED.cutlass].map(|text| Version::parse(text).expect("a version"));
        assert_eq!([nvcc, cutlass].map(|version| version.to_string()), [PINNED.nvcc, PINNED.cutlass]);
        assert!(cutlass >= OLDEST_CUTLASS);
        for name in ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"] {
            let pin = PINNED.packages.iter().find(|pin| pin.name == name).expect(name);
            assert_eq!(pin.version, PINNED.nvcc, "{name}: the parts of one compiler have one version");
        }
        for bad in KNOWN_BAD {
            let pinned = if bad.tool == Tool::Nvcc { nvcc } else { cutlass };
            assert!(!bad.covers(pinned), "the pins are known to be bad: {bad:?}");
        }
    }

    #[test]
    fn the_key_is_a_plain_folder_name_that_says_what_is_inside() {
        let key = key();
        assert!(key.starts_with(&format!("cuda-{}-cutlass-{}-", PINNED.nvcc, PINNED.cutlass)), "{key}");
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)), "{key}");
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
    }

    #[test]
    fn a_part_asks_for_its_own_packages_only() {
        let compiler = requirements(&[Part::Compiler]);
        assert!(compiler.contains("nvidia-cuda-nvcc==") && !compiler.contains("flashinfer"), "{compiler}");
        assert_eq!(requirements(&Part::ALL).lines().count(), PINNED.packages.len());
        let plan = unpack_plan(&[Part::Cutlass]);
        assert_eq!(plan.as_array().map(Vec::len), Some(1));
        let from = plan[0]["takes"][2][0].as_str().expect("text");
        assert_eq!(from, "flashinfer_python-0.7.2.post1.dist-info/licenses/LICENSE");
    }
}
