//! Simulates on the host the moves for padded groups and those that route rows, as their sources have them. Any ends, ids
//! and indices are safe, and right ones give what the ops mean.

use std::path::Path;
use std::process::Command;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::kernels::planned_kernels;
use fourfold_tests::backend;

const GROUPS: &str = include_str!("moves/groups.cc");
const ROUTING: &str = include_str!("moves/routing.cc");

const PROGRAM: &str = "fir 1
func @main(%scales: tensor<[M, B], f8E8M0FNU, linear>, %ends: tensor<[E], i32>, %ids: tensor<[M, 3], i32>,
    %i: tensor<[M], i32>, %single: tensor<[M, 40], f32>, %half: tensor<[M, 40], f16>, %brain: tensor<[M, 40], bf16>) {
  %padded = padded_ends %ends {multiple = 128} : tensor<[E], i32>
  %y = group_scales %scales, %ends, %padded : tensor<[1024, B], f8E8M0FNU, blocked>
  %p, %r, %e = group_rows %ids {groups = 5} : tensor<[3*M], i32>, tensor<[3*M], i32>, tensor<[5], i32>
  %s = scatter_add %single, %i : tensor<[7, 40], bf16>
  %h = scatter_add %half, %i : tensor<[7, 40], f32>
  %b = scatter_add %brain, %i : tensor<[7, 40], f16>
  %s.best, %s.index = top_k %single {k = 2} : tensor<[M, 2], f32>, tensor<[M, 2], i32>
  %h.best, %h.index = top_k %half {k = 2} : tensor<[M, 2], f16>, tensor<[M, 2], i32>
  %b.best, %b.index = top_k %brain {k = 2} : tensor<[M, 2], bf16>, tensor<[M, 2], i32>
  return %padded, %y, %e, %s, %h, %b, %s.best, %h.best, %b.best
}
";

/// A kernel, and the function of a harness that checks it.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    harness: &'static str,
    check: &'static str,
    /// The number of calls.
    turns: &'static str,
    /// The element types of the first operand and the first result, where they are floating-point.
    types: [&'static str; 2],
}

const ENDS: Kernel =
    Kernel { name: "move_padded_ends", harness: GROUPS, check: "check_ends", turns: "35", types: ["F32"; 2] };
const SCALES: Kernel = Kernel { name: "move_group_scales", check: "check_scales", turns: "140", ..ENDS };
const SORT: Kernel = Kernel {
    name: "move_group_rows",
    harness: ROUTING,
    check: "check_groups",
    turns: "42",
    types: ["F32"; 2],
};
const SUMS: Kernel =
    Kernel { name: "move_scatter_add_f32_bf16", check: "check_sums", types: ["F32", "BF16"], ..SORT };
const SUMS_OF_F16: Kernel = Kernel { name: "move_scatter_add_f16_f32", types: ["F16", "F32"], ..SUMS };
const SUMS_IN_F16: Kernel = Kernel { name: "move_scatter_add_bf16_f16", types: ["BF16", "F16"], ..SUMS };
const BEST: Kernel = Kernel { name: "move_top_k_f32", check: "check_best", ..SORT };
const BEST_OF_F16: Kernel = Kernel { name: "move_top_k_f16", types: ["F16"; 2], ..BEST };
const BEST_OF_BF16: Kernel = Kernel { name: "move_top_k_bf16", types: ["BF16"; 2], ..BEST };

impl Kernel {
    /// The text of the kernel in its source, with the function that sets its parameters.
    fn text(self) -> String {
        let (program, _) = fourfold::ir::load(PROGRAM).expect("a valid program");
        let planned = backend("sm_90a").expect("a known target").plan(program);
        let kernels = planned_kernels(&planned, CutlassVersion::PINNED, false);
        let kernel = kernels.into_iter().find(|kernel| kernel.source.kernel == self.name).expect("a kernel");
        let between = |begin: &str, end: &str| {
            let (_, text) = kernel.source.text.split_once(begin).expect("the source has the kernel");
            let (text, _) = text.split_once(end).expect("the kernel ends");
            format!("{begin}{text}")
        };
        let device =
            between("#ifdef __CUDACC__\n#define FOURFOLD_BOTH", "#ifndef FOURFOLD_HOST\ntemplate <size_t");
        let host = between("inline Parameters make_parameters", "// The number of bytes of each operand");
        // No grid precedes a simulated one.
        let wait = "asm volatile(\"griddepcontrol";
        let lines = device.lines().filter(|line| !line.trim_start().starts_with(wait));
        format!("{}\n{host}", lines.collect::<Vec<_>>().join("\n"))
    }

    /// Compiles and runs the kernel. Returns what differs.
    fn run(self, name: &str, text: &str) -> Result<(), String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("moves");
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        let text =
            self.harness.replace("KERNEL", text).replace("TURNS", self.turns).replace("CHECK", self.check);
        let text = text
            .replace("OfFROM", &format!("Of{}", self.types[0]))
            .replace("OfTO", &format!("Of{}", self.types[1]));
        let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
        std::fs::write(&file, text).expect("the file can be written");
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++20", "-O1", "-pthread", "-o"]).args([&program, &file]);
        let compiled = compiler.output().expect("g++, which nvcc needs too, starts");
        assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
        let output = Command::new(&program).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
    }
}

#[test]
fn padded_groups_are_as_defined_and_any_ends_are_safe() {
    for (name, kernel) in [("ends", ENDS), ("scales", SCALES)] {
        kernel.run(name, &kernel.text()).unwrap_or_else(|said| panic!("{name}: {said}"));
    }
}

#[test]
fn faults_planted_in_the_moves_of_padded_groups_are_found() {
    let faults = [
        (ENDS, "negative", "stated > 0 ? static_cast<uint32_t>(stated) : 0", "static_cast<uint32_t>(stated)"),
        (ENDS, "descending", "greater(stated", "(stated"),
        (ENDS, "before", "(lane == 0 ? before : previous)", "previous"),
        (ENDS, "carry", "own = sum(padded, scan(", "own = sum(0, scan("),
        (ENDS, "most", "one + other < INT_MAX ? one + other : INT_MAX", "one + other"),
        (ENDS, "read", "next + lane < p.packets ? p.ends", "true ? p.ends"),
        (ENDS, "written", "if (number < p.packets)", "if (true)"),
        (SCALES, "rows", "last < p.rows ? last : p.rows", "last"),
        (SCALES, "end", "end > 0 ? static_cast<uint64_t>(end) : 0", "static_cast<uint64_t>(end)"),
        (SCALES, "is_group", "next + lane < p.groups;", "true;"),
        (SCALES, "after", "of_scales > static_cast<int64_t>(row)", "of_scales >= static_cast<int64_t>(row)"),
        (SCALES, "begin", "lane < found && of_rows > begin", "lane <= found && of_rows > begin"),
        (SCALES, "first", "lane < found && of_scales > first", "lane + 1 < found && of_scales > first"),
        (SCALES, "known", "if (row_tile != known)", "if (known == UINT64_MAX)"),
        (SCALES, "wide", "alignment.add(result.blocks);", ""),
        (SCALES, "blocks", "if (first_block + block < p.blocks)", "if (true)"),
        (
            SCALES,
            "skipped",
            "write<16>(p.to + number * 16, packet);",
            "if (rows.begin < rows.end) write<16>(p.to + number * 16, packet);",
        ),
    ];
    check_faults(&faults);
}

fn check_faults(faults: &[(Kernel, &str, &str, &str)]) {
    for &(kernel, name, what, by) in faults {
        let text = kernel.text();
        assert_eq!(text.matches(what).count(), 1, "{what}");
        let found = kernel.run(name, &text.replace(what, by));
        assert!(found.is_err(), "{name}: {what}");
    }
}

#[test]
fn routed_rows_are_as_defined_and_any_ids_are_safe() {
    for kernel in [SORT, SUMS, SUMS_OF_F16, SUMS_IN_F16, BEST, BEST_OF_F16, BEST_OF_BF16] {
        let name = kernel.name;
        kernel.run(name, &kernel.text()).unwrap_or_else(|said| panic!("{name}: {said}"));
    }
}

#[test]
fn faults_planted_in_the_moves_that_route_rows_are_found() {
    let set = "is_own[turn] = position < p.count && group_of";
    check_faults(&[
        (SORT, "below", "id > 0 ? static_cast<uint64_t>(id) : 0", "static_cast<uint32_t>(id)"),
        (SORT, "above", "group < p.groups ? group : p.groups - 1", "group"),
        (SORT, "before_groups", "other < group ? 1", "other <= group ? 1"),
        (
            SORT,
            "counted",
            "p.ends[group] = static_cast<int32_t>(end)",
            "p.ends[group] = static_cast<int32_t>(place)",
        ),
        (SORT, "warps", "warp < own_warp ? mask", "warp <= own_warp ? mask"),
        (SORT, "stable", "((1u << lane) - 1)", "~((1u << lane) - 1) << 1"),
        (SORT, "places", "place += __popc(mask);", ";"),
        (SORT, "inside", set, "is_own[turn] = group_of"),
        (SORT, "row_of", "divide(row, p.columns)", "row"),
        (
            SORT,
            "words",
            "masks[(turn * kThreads + threadIdx.x) / 32]",
            "masks[turn + threadIdx.x / 32 * kTurns]",
        ),
        (SUMS, "sign", "sum = -0.0f;", "sum = 0.0f;"),
        (SUMS, "none", "is_found ? sums[i] : 0.0f", "sums[i]"),
        (SUMS, "position", "position < p.rows && p.indices", "p.indices"),
        (SUMS, "order", "mask != 0; mask &= mask - 1", "mask != 0; mask ^= 1u << (31 - __builtin_clz(mask))"),
        (
            SUMS,
            "read_column",
            "if (column + i * kThreads < p.columns) {\n            sums",
            "{\n            sums",
        ),
        (SUMS, "written_column", "if (column + i * kThreads < p.columns) {\n      to", "{\n      to"),
        (
            SUMS,
            "tile",
            "uint64_t const column = tile * kThreads * kColumns",
            "uint64_t const column = tile * 0",
        ),
        (SUMS, "rounded", "0x7FFFu + (bits >> 16 & 1u)", "0x8000u"),
        (SUMS_IN_F16, "half", "(magnitude + 0xFFFu + (magnitude >> 13 & 1u))", "(magnitude + 0x1000u)"),
        (SUMS_IN_F16, "large", "magnitude >= 0x477FF000u", "magnitude > 0x7F7FFFFFu"),
        (SUMS_OF_F16, "denormal", "0x1p112f", "0x1p111f"),
        (BEST, "zeros", "magnitude == 0 ? 0x80000000u :", ""),
        (BEST, "nans", "magnitude > kInfinity ? 0xFFFFFFFFu : key", "key"),
        (BEST, "negative", "~bits : bits", "bits : bits"),
        (BEST, "ties", "(0x7FFFFFFFu - static_cast<uint32_t>(index))", "static_cast<uint32_t>(index + 1)"),
        (BEST, "taken", "rank < previous && rank > best", "rank <= previous && rank > best"),
        (BEST, "row", "if (row >= p.rows)", "if (false)"),
        (BEST_OF_F16, "infinity", "0x7C000000u", "0x7F800000u"),
    ]);
}
