//! What is asked of the service: a kernel's source, and with which versions it is to be compiled.

use std::sync::Arc;

use crate::build::{BuildInput, BuildOptions, semantic_flags};
use crate::cache::{CacheKey, KeyParts};
use crate::kernel::ABI_VERSION;
use crate::toolchain::{PINS, Toolchain, Version};

/// The versions that a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The compiler's, such as `13.0.88`.
    pub nvcc: String,
    /// What tells one CUTLASS from another.
    pub cutlass: String,
    /// The host compiler, where it is not the system's own:
    /// [`ToolEnvironment::identity`](crate::ToolEnvironment::identity).
    pub host_compiler: String,
}

impl Versions {
    /// Those of a toolchain, with the system's host compiler.
    pub fn of(toolchain: &Toolchain) -> Versions {
        Versions {
            nvcc: toolchain.nvcc_version.clone(),
            cutlass: toolchain.cutlass_identity(),
            host_compiler: String::new(),
        }
    }

    /// Those of the toolchain that is pinned, for machines without any: its kernels may lie in the cache.
    pub fn pinned() -> Versions {
        let version = |name: &str| {
            let pin = PINS.iter().find(|pin| pin.name == name);
            pin.map_or_else(String::new, |pin| pin.version.to_owned())
        };
        // A package's version has one number more than the headers in it say.
        let cutlass = Version::parse(&version("nvidia-cutlass")).map(|version| version.to_string());
        Versions {
            nvcc: version("nvidia-cuda-nvcc"),
            cutlass: cutlass.unwrap_or_default(),
            host_compiler: String::new(),
        }
    }
}

/// A kernel that is asked for. Clones share its text; its key is computed once.
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
}

impl Request {
    /// A request for this source, compiled with these versions in this way.
    pub fn new(input: &BuildInput<'_>, versions: &Versions, options: &BuildOptions) -> Request {
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
            cutlass: &versions.cutlass,
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
        };
        Request { parts: Arc::new(parts), key }
    }

    /// What names it, here and in every cache.
    pub fn key(&self) -> CacheKey {
        self.key
    }

    /// The kernel's readable name, which is not unique.
    pub fn kernel(&self) -> &Arc<str> {
        &self.parts.kernel
    }

    /// What it is generated for, such as `sm_100a`.
    pub fn target(&self) -> &Arc<str> {
        &self.parts.target
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
        }
    }
}
