//! The name of a kernel in the cache: a digest of everything that decides what its build makes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What names a kernel in the cache. Its text is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

/// Everything that decides what a build makes; neither paths nor counts of threads nor the time are among it.
#[derive(Clone, Copy, Debug)]
pub struct KeyParts<'a> {
    /// The complete source.
    pub source: &'a str,
    /// What the compiler reads before it.
    pub prelude: Option<&'a str>,
    /// The kernel's readable name.
    pub kernel: &'a str,
    /// What the source was generated for, such as `sm_100a`.
    pub target: &'a str,
    /// The architecture that it is compiled for, such as `100a`.
    pub architecture: &'a str,
    /// The opcode that the binary must contain.
    pub opcode: &'a str,
    /// The stages that the binary must have.
    pub stages: Option<u32>,
    /// The flags that matter, in order.
    pub flags: &'a [String],
    /// The full version of nvcc, such as `13.0.88`.
    pub nvcc: &'a str,
    /// Which CUTLASS: a version, or a version and a digest of its headers.
    pub cutlass: &'a str,
    /// The machine that the library runs on, such as `x86_64-linux`.
    pub host: &'a str,
    /// The host compiler, where it is not the system's own:
    /// [`ToolEnvironment::identity`](crate::ToolEnvironment::identity).
    pub host_compiler: &'a str,
    /// The version of the interface between kernels and their host.
    pub abi: u32,
}

/// Why a text names no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits in lower case, not `{found}`")]
pub struct KeyError {
    /// The text, shortened.
    pub found: String,
}

/// Separates these digests from all others, and from those of other versions.
const CONTEXT: &str = "fourfold kernel cache v2";

impl CacheKey {
    /// The key of a kernel.
    pub fn new(parts: &KeyParts<'_>) -> CacheKey {
        let mut digest = Digest(blake3::Hasher::new_derive_key(CONTEXT));
        // Whoever adds a field decides here how it counts.
        let KeyParts {
            source,
            prelude,
            kernel,
            target,
            architecture,
            opcode,
            stages,
            flags,
            nvcc,
            cutlass,
            host,
            host_compiler,
            abi,
        } = *parts;
        digest.text(source);
        digest.option(prelude.is_some());
        digest.text(prelude.unwrap_or_default());
        for text in [kernel, target, architecture, opcode] {
            digest.text(text);
        }
        digest.option(stages.is_some());
        digest.number(u64::from(stages.unwrap_or_default()));
        digest.number(flags.len() as u64);
        for flag in flags {
            digest.text(flag);
        }
        for text in [nvcc, cutlass, host, host_compiler] {
            digest.text(text);
        }
        digest.number(u64::from(abi));
        CacheKey(*digest.0.finalize().as_bytes())
    }
}

/// Each part is preceded by its length, so that two lists of parts never run together to the same bytes.
struct Digest(blake3::Hasher);

impl Digest {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn option(&mut self, is_some: bool) {
        self.0.update(&[u8::from(is_some)]);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}

impl FromStr for CacheKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<CacheKey, KeyError> {
        let error = || KeyError { found: text.chars().take(80).collect() };
        let digit = |letter: u8| match letter {
            b'0'..=b'9' => Some(letter - b'0'),
            b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut key = [0; 32];
        if pairs.len() != key.len() || !rest.is_empty() {
            return Err(error());
        }
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low).ok_or_else(error)?;
        }
        Ok(CacheKey(key))
    }
}

impl Serialize for CacheKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CacheKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CacheKey, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parts(flags: &[String]) -> KeyParts<'_> {
        KeyParts {
            source: "source",
            prelude: None,
            kernel: "kernel",
            target: "sm_120a",
            architecture: "120a",
            opcode: "OMMA.SF",
            stages: Some(3),
            flags,
            nvcc: "13.0.88",
            cutlass: "4.2.0",
            host: "x86_64-linux",
            host_compiler: "",
            abi: 4,
        }
    }

    #[test]
    fn every_part_of_a_key_matters_and_none_runs_into_the_next() {
        let flags = ["-O3".to_owned(), "-shared".to_owned()];
        let [joined, longer] = [["-O3-shared".to_owned()], ["-O3".to_owned()]];
        let base = parts(&flags);
        let variants = [
            base,
            KeyParts { source: "sourc", ..base },
            KeyParts { source: "", ..base },
            KeyParts { prelude: Some(""), ..base },
            KeyParts { prelude: Some("x"), ..base },
            KeyParts { source: "sourcek", kernel: "ernel", ..base },
            KeyParts { kernel: "", ..base },
            KeyParts { target: "sm_121a", ..base },
            KeyParts { architecture: "121a", ..base },
            KeyParts { opcode: "UTCOMMA", ..base },
            KeyParts { stages: None, ..base },
            KeyParts { stages: Some(0), ..base },
            KeyParts { flags: &joined, ..base },
            KeyParts { flags: &longer, ..base },
            KeyParts { flags: &[], ..base },
            KeyParts { nvcc: "13.0.89", ..base },
            KeyParts { cutlass: "4.2.1", ..base },
            KeyParts { host: "aarch64-linux", ..base },
            KeyParts { host_compiler: "clang", ..base },
            KeyParts { abi: 5, ..base },
        ];
        let keys: BTreeSet<CacheKey> = variants.iter().map(CacheKey::new).collect();
        assert_eq!(keys.len(), variants.len());
        assert_eq!(CacheKey::new(&parts(&flags.clone())), CacheKey::new(&base));
    }

    #[test]
    fn a_key_is_written_and_read_as_64_digits_in_one_way_only() {
        let key = CacheKey::new(&parts(&[]));
        let text = key.to_string();
        assert_eq!((text.len(), text.parse()), (64, Ok(key)));
        assert_eq!(serde_json::from_str::<CacheKey>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
        let upper = "A".repeat(64);
        for wrong in ["", &text[1..], &format!("{text}0"), &upper, &"../".repeat(22)[..64], &"ä".repeat(32)]
        {
            assert!(wrong.parse::<CacheKey>().is_err(), "{wrong}");
        }
    }
}
