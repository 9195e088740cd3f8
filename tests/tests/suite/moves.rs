//! Simulates on the host the moves for padded groups, as their sources have them. Any ends are safe, and right ones
//! give what the ops mean.

use std::path::Path;
use std::process::Command;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::kernels::planned_kernels;
use fourfold_tests::backend;

const HARNESS: &str = include_str!("moves/groups.cc");

const PROGRAM: &str = "fir 1
func @main(%scales: tensor<[M, B], f8E8M0FNU, linear>, %ends: tensor<[E], i32>) {
  %padded = padded_ends %ends {multiple = 128} : tensor<[E], i32>
  %y = group_scales %scales, %ends, %padded : tensor<[1024, B], f8E8M0FNU, blocked>
  return %padded, %y
}
";

/// The kernel of `padded_ends`, and that of `group_scales`.
#[derive(Clone, Copy)]
enum Kernel {
    Ends,
    Scales,
}

impl Kernel {
    /// The text of the kernel in its source, with the function that sets its parameters.
    fn text(self) -> String {
        let (program, _) = fourfold::ir::load(PROGRAM).expect("a valid program");
        let planned = backend("sm_90a").expect("a known target").plan(program);
        let kernels = planned_kernels(&planned, CutlassVersion::PINNED, false);
        let name = match self {
            Kernel::Ends => "move_padded_ends",
            Kernel::Scales => "move_group_scales",
        };
        let kernel = kernels.into_iter().find(|kernel| kernel.source.kernel == name).expect("a kernel");
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
        let (check, turns) = match self {
            Kernel::Ends => ("check_ends", "35"),
            Kernel::Scales => ("check_scales", "140"),
        };
        let text = HARNESS.replace("KERNEL", text).replace("TURNS", turns).replace("CHECK", check);
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
    for (name, kernel) in [("ends", Kernel::Ends), ("scales", Kernel::Scales)] {
        kernel.run(name, &kernel.text()).unwrap_or_else(|said| panic!("{name}: {said}"));
    }
}

#[test]
fn faults_planted_in_the_moves_of_padded_groups_are_found() {
    let faults = [
        (
            Kernel::Ends,
            "negative",
            "stated > 0 ? static_cast<uint32_t>(stated) : 0",
            "static_cast<uint32_t>(stated)",
        ),
        (Kernel::Ends, "descending", "greater(stated", "(stated"),
        (Kernel::Ends, "before", "(lane == 0 ? before : previous)", "previous"),
        (Kernel::Ends, "carry", "own = sum(padded, scan(", "own = sum(0, scan("),
        (Kernel::Ends, "most", "one + other < INT_MAX ? one + other : INT_MAX", "one + other"),
        (Kernel::Ends, "read", "next + lane < p.packets ? p.ends", "true ? p.ends"),
        (Kernel::Ends, "written", "if (number < p.packets)", "if (true)"),
        (Kernel::Scales, "rows", "last < p.rows ? last : p.rows", "last"),
        (Kernel::Scales, "end", "end > 0 ? static_cast<uint64_t>(end) : 0", "static_cast<uint64_t>(end)"),
        (Kernel::Scales, "is_group", "next + lane < p.groups;", "true;"),
        (
            Kernel::Scales,
            "after",
            "of_scales > static_cast<int64_t>(row)",
            "of_scales >= static_cast<int64_t>(row)",
        ),
        (Kernel::Scales, "begin", "lane < found && of_rows > begin", "lane <= found && of_rows > begin"),
        (
            Kernel::Scales,
            "first",
            "lane < found && of_scales > first",
            "lane + 1 < found && of_scales > first",
        ),
        (Kernel::Scales, "known", "if (row_tile != known)", "if (known == UINT64_MAX)"),
        (Kernel::Scales, "wide", "alignment.add(result.blocks);", ""),
        (Kernel::Scales, "blocks", "if (first_block + block < p.blocks)", "if (true)"),
        (
            Kernel::Scales,
            "skipped",
            "write<16>(p.to + number * 16, packet);",
            "if (rows.begin < rows.end) write<16>(p.to + number * 16, packet);",
        ),
    ];
    for (kernel, name, what, by) in faults {
        let text = kernel.text();
        assert_eq!(text.matches(what).count(), 1, "{what}");
        let found = kernel.run(name, &text.replace(what, by));
        assert!(found.is_err(), "{name}: {what}");
    }
}
