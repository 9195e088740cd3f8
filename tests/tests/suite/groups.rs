//! Simulates on the host the kernel that fills the tables of grouped kernels for Blackwell, as its source has it.

use std::path::Path;
use std::process::Command;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::kernels::planned_kernels;
use fourfold_tests::backend;

const HARNESS: &str = include_str!("groups/tables.cc");

/// An alpha for each group, a column, and two matrices, of which the first is CUTLASS's source.
const PROGRAM: &str = "fir 1
func @main(
    %a: tensor<[M, 320], f4E2M1FN>, %sfa: tensor<[M, 20], f8E4M3FN, linear>,
    param %b: tensor<[5, 136, 320], f4E2M1FN>, param %sfb: tensor<[5, 136, 20], f8E4M3FN, blocked>,
    %ends: tensor<[5], i32>, %alpha: tensor<[5], f32>, %weights: tensor<[M, 1], f32>,
    %residual: tensor<[M, 136], bf16>, %other: tensor<[M, 136], f32>
) {
  %d = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = 16} : tensor<[M, 136], f32>
  %x = mul %d, %weights : tensor<[M, 136], f32>
  %y = add %x, %residual : tensor<[M, 136], f32>
  %z = add %y, %other : tensor<[M, 136], f32>
  return %z
}
";

/// The same for groups that use the first rows of a matrix each.
fn masked() -> String {
    PROGRAM.replace("[M, ", "[5, M, ").replace("grouped_scaled_mma", "masked_scaled_mma")
}

/// The same for scales of A with whole tiles for each group.
fn padded() -> String {
    let operand = "%ends, alpha = %alpha {";
    let program = PROGRAM.replace(operand, &operand.replace(" {", ", sfa_ends = %sfa_ends {"));
    let program =
        program.replace("%ends: tensor<[5], i32>,", "%ends: tensor<[5], i32>, %sfa_ends: tensor<[5], i32>,");
    program.replace("%sfa: tensor<[M, 20], f8E4M3FN, linear>", "%sfa: tensor<[P, 20], f8E4M3FN, blocked>")
}

/// The form of the groups of rows, and the scales of A where they are blocked.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Linear,
    Masked,
    MaskedBlocked,
    Padded,
}

/// The text of the kernel in a source, and its tile K.
fn kernel(target: &str, program: &str) -> (String, u32) {
    let (program, _) = fourfold::ir::load(program).expect("a valid program");
    let planned = backend(target).expect("a known target").plan(program);
    let kernel = planned_kernels(&planned, CutlassVersion::PINNED, false).pop().expect("a kernel");
    let source = &kernel.source.text;
    let (begin, end) = ("using Code = uint8_t;", "}  // namespace fourfold");
    let (_, text) = source.split_once(begin).expect("the source has the kernel");
    let (text, _) = text.split_once(end).expect("the namespace ends");
    (format!("{begin}{text}"), kernel.spec.tile()[2])
}

/// Compiles and runs the kernel. Returns what differs.
fn run(name: &str, (kernel, tile_k): &(String, u32), form: Form) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("groups");
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let text = HARNESS.replace("KERNEL", kernel).replace("TILE_K", &tile_k.to_string());
    let text = text.replace("IS_MASKED", &[Form::Masked, Form::MaskedBlocked].contains(&form).to_string());
    let text = text.replace("IS_BLOCKED", &[Form::MaskedBlocked, Form::Padded].contains(&form).to_string());
    let text = text.replace("IS_PADDED", &(form == Form::Padded).to_string());
    let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
    std::fs::write(&file, text).expect("the file can be written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++20", "-O1", "-pthread", "-o"]).args([&program, &file]);
    let compiled = compiler.output().expect("g++, which nvcc needs too, starts");
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn tables_of_groups_are_as_defined_for_any_ends() {
    // Kernels of other targets differ in tile K only.
    run("right", &kernel("sm_100a", PROGRAM), Form::Linear).unwrap_or_else(|said| panic!("{said}"));
    run("masked", &kernel("sm_100a", &masked()), Form::Masked).unwrap_or_else(|said| panic!("{said}"));
    let blocked = masked().replace("linear", "blocked");
    run("masked_blocked", &kernel("sm_100a", &blocked), Form::MaskedBlocked)
        .unwrap_or_else(|said| panic!("{said}"));
    run("padded", &kernel("sm_100a", &padded()), Form::Padded).unwrap_or_else(|said| panic!("{said}"));
}

#[test]
fn faults_planted_in_the_tables_of_groups_are_found() {
    let faults = [
        (
            "offset",
            "set(to.mainloop.ptr_A, p.a + row * p.k",
            "set(to.mainloop.ptr_A, p.a + first_tiles[group] * p.k",
        ),
        // Scales of B without the padding of a matrix to 128 rows.
        (
            "sfb",
            "p.sfb + matrix * tiles_n * bytes_of_tile",
            "p.sfb + matrix * p.n * (bytes_of_tile / kScaleRows)",
        ),
        ("sfa", "to.scales + first_tiles[group] * bytes_of_tile", "to.scales + group * bytes_of_tile"),
        ("alpha", "is_group ? p.alphas[group] : 1.0f", "p.alphas[is_group ? group : 0]"),
        ("low", "max(p.offsets[thread], 0)", "p.offsets[thread]"),
        ("high", "min(max(p.offsets[thread], 0), p.m)", "max(p.offsets[thread], 0)"),
        ("descending", "return max(x, y);", "return x;"),
        ("padding", "in_group < rows_of(low)", "in_group < p.m - first_rows[low]"),
        ("last", "first_rows[last + 1] = p.m;", "first_rows[last + 1] = first_rows[last];"),
    ];
    let (kernel, tile_k) = kernel("sm_120a", PROGRAM);
    for (name, what, by) in faults {
        assert_eq!(kernel.matches(what).count(), 1, "{what}");
        let found = run(name, &(kernel.replace(what, by), tile_k), Form::Linear);
        assert!(found.is_err(), "{name}: {what}");
    }
    let (kernel, tile_k) = self::kernel("sm_120a", &masked());
    for (name, what, by) in [
        ("masked_rows", "first_rows[thread] = thread * most;", "first_rows[thread] = thread;"),
        ("masked_count", "min(max(p.offsets[thread], 0), most)", "min(max(p.offsets[thread], 0), p.m)"),
        ("masked_padding", "in_group < rows_of(low)", "in_group < most"),
    ] {
        assert_eq!(kernel.matches(what).count(), 1, "{what}");
        let found = run(name, &(kernel.replace(what, by), tile_k), Form::Masked);
        assert!(found.is_err(), "{name}: {what}");
    }
    let (kernel, tile_k) = self::kernel("sm_120a", &masked().replace("linear", "blocked"));
    let (what, by) = ("(most + kScaleRows - 1) / kScaleRows", "most / kScaleRows");
    assert_eq!(kernel.matches(what).count(), 1, "{what}");
    assert!(run("masked_tiles", &(kernel.replace(what, by), tile_k), Form::MaskedBlocked).is_err());
    let (kernel, tile_k) = self::kernel("sm_120a", &padded());
    for (name, what, by) in [
        ("padded_group", "p.sfa_ends[group - 1] / kScaleRows", "p.sfa_ends[group] / kScaleRows"),
        ("padded_low", "max(p.sfa_ends[group - 1] / kScaleRows, 0)", "p.sfa_ends[group - 1] / kScaleRows"),
        ("padded_high", "p.scale_tiles - 1) : 0", "p.scale_tiles) : 0"),
        ("padded_none", "is_group && p.scale_tiles > 0", "p.scale_tiles > 0"),
        ("padded_layout", "(min(max(rows, 1), scale_rows), p.n", "(max(rows, 1), p.n"),
    ] {
        assert_eq!(kernel.matches(what).count(), 1, "{what}");
        let found = run(name, &(kernel.replace(what, by), tile_k), Form::Padded);
        assert!(found.is_err(), "{name}: {what}");
    }
}
