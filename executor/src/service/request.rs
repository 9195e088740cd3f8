//! Requests: a kernel's source with the tool versions to compile it.

use std::sync::Arc;

use crate::build::{BuildInput, BuildOptions, Translation, semantic_flags};
use crate::cache::{CacheKey, KeyParts};
use crate::kernel::ABI_VERSION;
use crate::toolchain::{NO_CUTLASS, PINNED, Toolchain};

/// The tool versions that enter a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The nvcc version, such as `13.1.115`.
    pub nvcc: String,
    /// The CUTLASS version, optionally with a digest of its headers; `none` without CUTLASS.
    pub cutlass: String,
    /// The host compiler, if it is not the system default
    /// ([`ToolEnvironment::identity`](crate::ToolEnvironment::identity)).
    pub host_compiler: String,
}

impl Versions {
    /// The versions of a toolchain, with the system's host compiler.
    pub fn of(toolchain: &Toolchain) -> Versions {
        Versions {
            nvcc: toolchain.nvcc_version.clone(),
            cutlass: toolchain.cutlass_identity(),
            host_compiler: String::new(),
        }
    }

    /// The versions of the pinned toolchain. Machines without a toolchain use them to find cached kernels.
    pub fn pinned() -> Versions {
        Versions {
            nvcc: PINNED.nvcc.to_owned(),
            cutlass: PINNED.cutlass.to_owned(),
            host_compiler: String::new(),
        }
    }
}

/// A request for a kernel. Clones share its text; the key is computed once.
#[derive(Clone, Debug)]
pub struct Request {
    parts: Arc<Parts>,
    key: CacheKey,
}

#[derive(Debug)]
struct Parts {
    text: String,
    kernel: Arc<str>,
    prelude: Option<String>,
    target: Arc<str>,
    architecture: String,
    opcode: String,
    stages: Option<u32>,
    translation: Option<Translation>,
    uses_cutlass: bool,
}

impl Request {
    /// Creates a request for this source, with these versions and options.
    pub fn new(input: &BuildInput<'_>, versions: &Versions, options: &BuildOptions) -> Request {
        let uses_cutlass = uses_cutlass(input);
        let flags = semantic_flags(input, options);
        let host = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        let key = CacheKey::new(&KeyParts {
            source: input.text,
            prelude: input.prelude,
            kernel: input.kernel,
            target: input.target,
            architecture: input.architecture,
            opcode: input.opcode,
            stages: input.stages,
            flags: &flags,
            nvcc: &versions.nvcc,
            cutlass: if uses_cutlass { &versions.cutlass } else { NO_CUTLASS },
            host: &host,
            host_compiler: &versions.host_compiler,
            abi: ABI_VERSION,
        });
        let parts = Parts {
            text: input.text.to_owned(),
            kernel: input.kernel.into(),
            prelude: input.prelude.map(str::to_owned),
            target: input.target.into(),
            architecture: input.architecture.to_owned(),
            opcode: input.opcode.to_owned(),
            stages: input.stages,
            translation: input.translation,
            uses_cutlass,
        };
        Request { parts: Arc::new(parts), key }
    }

    /// The kernel's cache key.
    pub fn key(&self) -> CacheKey {
        self.key
    }

    /// The kernel's readable name, which is not unique.
    pub fn kernel(&self) -> &Arc<str> {
        &self.parts.kernel
    }

    /// The target, such as `sm_100a`.
    pub fn target(&self) -> &Arc<str> {
        &self.parts.target
    }

    /// Returns true if the source includes CUTLASS. Otherwise its key has no CUTLASS version, and its build no
    /// CUTLASS headers.
    pub fn uses_cutlass(&self) -> bool {
        self.parts.uses_cutlass
    }

    /// The target and the compiled architecture. A tool version may be listed as bad for either.
    pub(super) fn targets(&self) -> [&str; 2] {
        [&self.parts.target, &self.parts.architecture]
    }

    pub(super) fn input(&self) -> BuildInput<'_> {
        BuildInput {
            text: &self.parts.text,
            kernel: &self.parts.kernel,
            prelude: self.parts.prelude.as_deref(),
            target: &self.parts.target,
            architecture: &self.parts.architecture,
            opcode: &self.parts.opcode,
            stages: self.parts.stages,
            translation: self.parts.translation,
        }
    }
}

/// Returns true if the source or its prelude includes a CUTLASS header.
fn uses_cutlass(input: &BuildInput<'_>) -> bool {
    let includes = |line: &str| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
        let name = rest.trim_start().trim_start_matches(['"', '<']);
        Some(name.starts_with("cutlass/") || name.starts_with("cute/"))
    };
    let texts = [Some(input.text), input.prelude];
    texts.into_iter().flatten().flat_map(str::lines).any(|line| includes(line) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input<'a>(text: &'a str, prelude: Option<&'a str>) -> BuildInput<'a> {
        let (kernel, target, architecture) = ("kernel", "sm_90a", "90a");
        BuildInput {
            text,
            kernel,
            prelude,
            target,
            architecture,
            opcode: "HGMMA",
            stages: None,
            translation: None,
        }
    }

    #[test]
    fn only_what_includes_a_header_of_cutlass_has_its_version_in_the_key() {
        let key = |text: &str, prelude: Option<&str>, cutlass: &str| {
            let versions = Versions { cutlass: cutlass.to_owned(), ..Versions::pinned() };
            Request::new(&input(text, prelude), &versions, &BuildOptions::default()).key()
        };
        for (text, prelude, uses) in [
            ("int x;  // cutlass/version.h", None, false),
            ("#include <cuda_fp16.h>\n#include \"cutlassette.h\"", None, false),
            ("#include \"cutlass/cutlass.h\"", None, true),
            ("  #  include <cute/tensor.hpp>", None, true),
            ("int x;", Some("#include \"cute/tensor.hpp\""), true),
        ] {
            let (one, other) = (key(text, prelude, "4.5.0"), key(text, prelude, "4.6.0"));
            assert_eq!(one != other, uses, "{text} {prelude:?}");
            assert_eq!(uses_cutlass(&input(text, prelude)), uses);
        }
    }

    #[test]
    fn the_pinned_versions_are_those_of_the_pins_and_never_empty() {
        let versions = Versions::pinned();
        assert_eq!([&*versions.nvcc, &*versions.cutlass], [PINNED.nvcc, PINNED.cutlass]);
        assert!(!versions.nvcc.is_empty() && !versions.cutlass.is_empty() && !NO_CUTLASS.is_empty());
    }
}
