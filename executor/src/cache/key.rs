//! Cache keys: a digest of every input that determines a build's result.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A kernel's cache key, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

/// Every input that determines a build's result. Paths, thread counts and time are excluded.
#[derive(Clone, Copy, Debug)]
pub struct KeyParts<'a> {
    /// The complete source text.
    pub source: &'a str,
    /// The text that the compiler reads before the source.
    pub prelude: Option<&'a str>,
    /// The kernel's readable name.
    pub kernel: &'a str,
    /// The target that the source was generated for, such as `sm_100a`.
    pub target: &'a str,
    /// The architecture to compile for, such as `100a`.
    pub architecture: &'a str,
    /// The opcode required in the binary.
    pub opcode: &'a str,
    /// The pipeline stages required in the binary.
    pub stages: Option<u32>,
    /// The flags that affect the result, in order.
    pub flags: &'a [String],
    /// The full nvcc version, such as `13.0.88`.
    pub nvcc: &'a str,
    /// The CUTLASS version, optionally with a digest of its headers.
    pub cutlass: &'a str,
    /// The host platform of the library, such as `x86_64-linux`.
    pub host: &'a str,
    /// The host compiler, if it is not the system default
    /// ([`ToolEnvironment::identity`](crate::ToolEnvironment::identity)).
    pub host_compiler: &'a str,
    /// The kernel ABI version.
    pub abi: u32,
}

/// The text is not a cache key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits in lower case, not `{found}`")]
pub struct KeyError {
    /// The text, truncated to 80 characters.
    pub found: String,
}

/// Domain separation: keys of another scheme or version never collide with these.
const CONTEXT: &str = "fourfold kernel cache v2";

impl CacheKey {
    /// Computes the key of a kernel.
    pub fn new(parts: &KeyParts<'_>) -> CacheKey {
        let mut digest = Digest(blake3::Hasher::new_derive_key(CONTEXT));
        // Exhaustive, so that adding a field requires deciding how it enters the digest.
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

/// Hashes each part after its length, so that no two lists of parts produce the same bytes.
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
