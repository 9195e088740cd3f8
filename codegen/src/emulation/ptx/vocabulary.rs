//! The instructions and directives of sm_90a, and the modifiers of each.
//!
//! Source: PTX ISA 9.1. Texture, surface and video instructions are left out, since no generated kernel has them.

use super::error::RewriteProblem;

const BITS: &[&str] = &["b8", "b16", "b32", "b64", "b128"];
const INTEGERS: &[&str] = &["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"];
const FLOATS: &[&str] = &["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"];
const PAIRS: &[&str] = &["u16x2", "s16x2"];
const PREDICATE: &[&str] = &["pred"];
const ROUNDING: &[&str] = &["rn", "rz", "rm", "rp"];
const ARITHMETIC: &[&str] = &["ftz", "sat", "approx", "full", "cc", "hi", "lo", "wide", "relu"];
const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan", "and", "or", "xor",
];
const SPACES: &[&str] = &[
    "const",
    "global",
    "local",
    "param",
    "param::entry",
    "param::func",
    "shared",
    "shared::cta",
    "shared::cluster",
];
const SCOPES: &[&str] = &["cta", "cluster", "gpu", "sys"];
const ORDERS: &[&str] = &["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"];
const CACHING: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::cache_hint",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "unified",
];
const VECTORS: &[&str] = &["v2", "v4"];
const OPERATIONS: &[&str] = &["and", "or", "xor", "add", "inc", "dec", "min", "max", "exch", "cas", "noftz"];
const BULK: &[&str] = &["async", "bulk", "bulk_group", "mbarrier::complete_tx::bytes", "L2::cache_hint"];
const TENSOR: &[&str] =
    &["tensor", "1d", "2d", "3d", "4d", "5d", "tile", "im2col", "im2col_no_offs", "multicast::cluster"];
const COPY: &[&str] = &[
    "ca",
    "cg",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "commit_group",
    "wait_group",
    "wait_all",
    "read",
    "prefetch",
    "L2",
    "mbarrier",
    "arrive",
    "noinc",
    "b64",
];
const STORE: &[&str] = &["async", "mbarrier::complete_tx::bytes"];
const WARP: &[&str] = &["sync", "aligned"];
const MATRIX: &[&str] = &[
    "row",
    "col",
    "satfinite",
    "popc",
    "m8n8k4",
    "m8n8k16",
    "m8n8k32",
    "m8n8k128",
    "m16n8k4",
    "m16n8k8",
    "m16n8k16",
    "m16n8k32",
    "m16n8k64",
    "m16n8k128",
    "m16n8k256",
    "b1",
    "s4",
    "u4",
    "e4m3",
    "e5m2",
    "tf32",
    "and",
    "xor",
];
const FENCE: &[&str] = &[
    "proxy",
    "alias",
    "async",
    "tensormap::generic",
    "async::generic",
    "mbarrier_init",
    "sync_restrict::shared::cta",
    "sync_restrict::shared::cluster",
];
const CONVERSION: &[&str] =
    &["rna", "rni", "rzi", "rmi", "rpi", "satfinite", "tf32", "e4m3x2", "e5m2x2", "pack"];
const MULTIMEM: &[&str] = &["ld_reduce", "st", "red", "acc::f32"];
const REPLACE: &[&str] = &[
    "replace",
    "tile",
    "global_address",
    "rank",
    "box_dim",
    "global_dim",
    "global_stride",
    "element_stride",
    "elemtype",
    "interleave_layout",
    "swizzle_mode",
    "fill_mode",
    "b1024",
    "cp_fenceproxy",
    "tensormap::generic",
    "release",
    "sync",
    "aligned",
];

/// Opcodes, separated by spaces, and the modifiers that each may have, in groups.
type Row = (&'static str, &'static [&'static [&'static str]]);

/// The instructions whose modifiers are types, roundings and the like.
const ARITHMETIC_ROWS: &[Row] = &[
    ("add sub mul mad mul24 mad24 fma addc subc madc", &[INTEGERS, FLOATS, PAIRS, ROUNDING, ARITHMETIC]),
    ("div rem sad abs neg rcp sqrt rsqrt sin cos lg2 ex2 tanh", &[INTEGERS, FLOATS, ROUNDING, ARITHMETIC]),
    ("min max", &[INTEGERS, FLOATS, PAIRS, ARITHMETIC, &["NaN", "xorsign", "abs"]]),
    ("copysign", &[FLOATS]),
    ("testp", &[FLOATS, &["finite", "infinite", "number", "notanumber", "normal", "subnormal"]]),
    ("set setp", &[COMPARISONS, BITS, INTEGERS, FLOATS, &["ftz"]]),
    ("selp slct", &[BITS, INTEGERS, FLOATS, &["ftz"]]),
    ("and or xor not cnot", &[BITS, PREDICATE]),
    ("lop3", &[BITS, &["and", "or"]]),
    ("shl shr", &[BITS, INTEGERS]),
    ("shf", &[BITS, &["l", "r", "clamp", "wrap"]]),
    ("popc clz brev bfe bfi fns", &[BITS, INTEGERS]),
    ("bfind", &[INTEGERS, &["shiftamt"]]),
    ("bmsk szext", &[BITS, INTEGERS, &["clamp", "wrap"]]),
    ("prmt", &[BITS, &["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]]),
    ("dp4a dp2a", &[INTEGERS, &["lo", "hi"]]),
    ("mov", &[BITS, INTEGERS, FLOATS, PREDICATE]),
    ("cvt", &[BITS, INTEGERS, FLOATS, ROUNDING, CONVERSION, &["ftz", "sat", "relu"]]),
];

/// The instructions that move data or order its accesses.
const MEMORY_ROWS: &[Row] = &[
    ("ld ldu", &[SPACES, SCOPES, ORDERS, CACHING, VECTORS, BITS, INTEGERS, FLOATS]),
    ("st", &[SPACES, SCOPES, ORDERS, CACHING, VECTORS, BITS, INTEGERS, FLOATS, STORE]),
    ("atom", &[SPACES, SCOPES, ORDERS, OPERATIONS, VECTORS, BITS, INTEGERS, FLOATS, &["L2::cache_hint"]]),
    ("red", &[SPACES, SCOPES, ORDERS, OPERATIONS, VECTORS, BITS, INTEGERS, FLOATS, BULK]),
    ("multimem", &[SCOPES, ORDERS, OPERATIONS, VECTORS, BITS, INTEGERS, FLOATS, MULTIMEM, &["global"]]),
    ("cp", &[SPACES, BULK, TENSOR, COPY, OPERATIONS, INTEGERS, FLOATS, &["reduce"]]),
    ("prefetch", &[&["global", "local", "const", "param", "L1", "L2", "tensormap"], PRIORITIES]),
    ("prefetchu", &[&["L1"]]),
    ("applypriority discard", &[&["global", "L2", "L2::evict_normal"]]),
    ("createpolicy", &[PRIORITIES, &["fractional", "range", "global", "cvt", "L2", "b64"]]),
    ("isspacep cvta", &[SPACES, &["to", "u32", "u64"]]),
    ("mapa getctarank", &[&["shared::cluster", "u32", "u64"]]),
    ("tensormap", &[REPLACE, BITS, SPACES, SCOPES]),
    ("fence", &[ORDERS, SCOPES, FENCE, SPACES]),
    ("membar", &[&["cta", "gl", "sys", "proxy", "alias"]]),
    ("alloca stacksave stackrestore", &[INTEGERS]),
];

const PRIORITIES: &[&str] = &["L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"];

/// The instructions that synchronize threads, multiply matrices or branch.
const CONTROL_ROWS: &[Row] = &[
    (
        "mbarrier",
        &[
            SCOPES,
            ORDERS,
            &["shared", "shared::cta", "shared::cluster", "b64"],
            &["init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "noComplete"],
            &["test_wait", "try_wait", "parity", "pending_count"],
        ],
    ),
    (
        "bar barrier",
        &[
            WARP,
            &["cta", "cluster", "warp", "arrive", "wait", "red", "relaxed", "acquire", "release"],
            &["popc", "and", "or", "u32", "pred"],
        ],
    ),
    ("elect", &[WARP]),
    ("shfl", &[WARP, BITS, &["up", "down", "bfly", "idx"]]),
    ("vote match", &[WARP, BITS, PREDICATE, &["all", "any", "uni", "ballot"]]),
    ("redux", &[WARP, BITS, &["u32", "s32", "add", "min", "max", "and", "or", "xor"]]),
    ("activemask", &[BITS]),
    ("nanosleep", &[&["u32"]]),
    ("griddepcontrol", &[&["launch_dependents", "wait"]]),
    ("setmaxnreg", &[WARP, &["inc", "dec", "u32"]]),
    ("mma", &[WARP, MATRIX, FLOATS, INTEGERS]),
    ("ldmatrix stmatrix", &[WARP, SPACES, &["m8n8", "x1", "x2", "x4", "trans", "b16"]]),
    ("movmatrix", &[WARP, &["m8n8", "trans", "b16"]]),
    ("bra brx call", &[&["uni", "idx"]]),
    ("ret exit", &[&["uni"]]),
    ("trap brkpt", &[]),
    ("pmevent", &[&["mask"]]),
];

/// The words of declarations that begin with a dot.
const DECLARATIONS: &[&str] = &[
    "align",
    "ptr",
    "global",
    "shared",
    "const",
    "local",
    "param",
    "attribute",
    "managed",
    "unified",
    "noreturn",
    "maxntid",
    "reqntid",
    "minnctapersm",
    "maxnctapersm",
    "maxnreg",
    "reqnctapercluster",
    "explicitcluster",
    "maxclusterrank",
    "entry",
    "func",
    "debug_str",
];

/// The directives of a module or a body, without the header's.
const DIRECTIVES: &[&str] = &[
    ".reg",
    ".param",
    ".local",
    ".shared",
    ".global",
    ".const",
    ".pragma",
    ".alias",
    ".file",
    ".loc",
    ".callprototype",
    ".calltargets",
    ".branchtargets",
    ".section",
];

/// Checks that sm_90a has an instruction with all of its modifiers.
///
/// # Errors
/// Returns the first unknown part.
pub(super) fn check_instruction(opcode: &str, operands: usize) -> Result<(), RewriteProblem> {
    let mut components = opcode.split('.');
    let name = components.next().unwrap_or_default();
    let groups = [ARITHMETIC_ROWS, MEMORY_ROWS, CONTROL_ROWS]
        .into_iter()
        .flatten()
        .find_map(|(names, groups)| names.split(' ').any(|known| known == name).then_some(*groups))
        .ok_or_else(|| RewriteProblem::Opcode(opcode.to_owned()))?;
    let modifiers: Vec<&str> = components.collect();
    for modifier in &modifiers {
        if !groups.iter().any(|group| group.contains(modifier)) {
            return Err(RewriteProblem::Modifier {
                opcode: name.to_owned(),
                modifier: (*modifier).to_owned(),
            });
        }
    }
    match is_newer(name, &modifiers, operands) {
        true => Err(RewriteProblem::Form(opcode.to_owned())),
        false => Ok(()),
    }
}

/// Returns true for a combination of known modifiers that only architectures after sm_90a have.
fn is_newer(name: &str, modifiers: &[&str], operands: usize) -> bool {
    let has = |modifier| modifiers.contains(&modifier);
    match name {
        // Vectors of 256 bits.
        "ld" | "st" | "ldu" => has("v4") && ["b64", "u64", "s64", "f64", "b128"].into_iter().any(has),
        // Three inputs.
        "min" | "max" => operands > 3,
        // A narrow addend or factor of an f32 result.
        "add" | "sub" | "mul" | "fma" => modifiers.iter().filter(|it| FLOATS.contains(it)).count() > 1,
        "cvt" => {
            let narrow = has("e4m3x2") || has("e5m2x2");
            (has("tf32") && has("satfinite") && !has("rna")) || (narrow && has("bf16x2"))
        }
        _ => false,
    }
}

/// Checks that a directive and its dotted words are known.
///
/// # Errors
/// Returns the first unknown word.
pub(super) fn check_directive<'a>(
    name: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(), RewriteProblem> {
    if !DIRECTIVES.contains(&name) {
        return Err(RewriteProblem::Directive(name.to_owned()));
    }
    check_function(words)
}

/// Checks that the dotted words of a function's header are known.
///
/// # Errors
/// Returns the first unknown word.
pub(super) fn check_function<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<(), RewriteProblem> {
    let unknown = |word: &str| Err(RewriteProblem::Directive(word.to_owned()));
    words.into_iter().try_for_each(|word| if is_declaration(word) { Ok(()) } else { unknown(word) })
}

/// Returns true for a known word of a declaration, with its leading dot.
fn is_declaration(word: &str) -> bool {
    let bare = word.strip_prefix('.').unwrap_or(word);
    DIRECTIVES.contains(&word)
        || super::statement::LINKAGE.contains(&word)
        || [DECLARATIONS, BITS, INTEGERS, FLOATS, PREDICATE, VECTORS]
            .iter()
            .any(|group| group.contains(&bare))
}
