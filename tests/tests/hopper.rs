//! Simulates sm_90a kernels on the host, from the text of a generated source. All threads of a cluster run, and
//! instructions without a C++ equivalent are replaced. If sums are exact, results equal the interpreter's bit for bit.
//!
//! Only a GPU can show that instructions behave as simulated here, and that memory accesses which no barrier orders
//! are ordered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::hopper::{Configuration, HEAD, KERNEL, SMALL_M, TARGET, TILES, Tile};
use fourfold::codegen::{Design, KernelSpec, ScaledMmaSpec};
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{BlockFormat, ElementType, Entity as _, Tensor, bind, interpret, numeric};
use fourfold::kernels::planned_kernels;
use fourfold::{Backend, Claim};
use fourfold_tests::built::toolchain;
use fourfold_tests::options;
use fourfold_tests::random::Random;

const SIMULATION: &str = include_str!("hopper/simulate.cc");
const INSTRUCTIONS: &str = include_str!("../../codegen/src/hopper/device/instructions.cuh");

/// An instruction outside `instructions.cuh`, and its replacement here.
const CONVERT: &str =
    r#"asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(bytes)));"#;
const CONVERTED: &str = "result = simulation::e4m3x2_to_halves(static_cast<uint16_t>(bytes));";
/// Instructions without an effect in the simulation: they only move registers between warps.
const WITHOUT_EFFECT: [&str; 2] = [
    r#"asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(V::kProducerRegisters));"#,
    r#"asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(V::kConsumerRegisters));"#,
];

/// The text of a program, parameterized by L, M, N and K.
struct Program {
    name: &'static str,
    format: BlockFormat,
    signature: &'static str,
    text: &'static str,
    /// The inputs besides A, B and their scales, in the order of the kernel's interface: C, alpha, beta and operands.
    c: &'static str,
    alpha: &'static str,
    operands: &'static [&'static str],
    /// The bytes with which the interface expects each output to be filled.
    fills: &'static [u8],
}

/// The number of bytes that describe the launch, before the outputs.
const SAID: usize = 10 * 4;

/// The byte that fills outputs, to find elements that were never written.
const UNWRITTEN: u8 = 0xEE;

const WEIGHT_ONLY: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %c: tensor<[L, M, N], bf16>, %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>
) {
  %d = scaled_mma %a, %b, %sfb, alpha = %alpha, c = %c {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %z = convert %y : tensor<[L, M, N], bf16>
  return %y, %z
}
";

const VALUES: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %c: tensor<[L, M, N], bf16>, %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %z = convert %y : tensor<[L, M, N], bf16>
  return %y, %z
}
";

const BLOCKS: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>, %g: tensor<[], f32>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = BLOCK} : tensor<[L, M, N], f32>
  %y = relu %d : tensor<[L, M, N], f32>
  %narrow = convert %y : tensor<[L, M, N], f16>
  %q, %s = block_quantize %narrow, %g {block = 16} : tensor<[L, M, N], f4E2M1FN>, tensor<[L, M, P], f8E4M3FN, blocked>
  %amax = reduce %y {axes = [2], keep_dims = true, kind = amax} : tensor<[L, M, 1], f32>
  return %narrow, %q, %s, %amax
}
";

const PROGRAMS: [Program; 6] = [
    Program {
        name: "nvfp4_values",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "mxfp4_values",
        format: BlockFormat::MXFP4,
        signature: "mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "nvfp4_blocks",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 scalar=f32 d=f16 q=f4E2M1FN:f8E4M3FN/16*x0 amax=column@s0",
        text: BLOCKS,
        c: "",
        alpha: "",
        operands: &["g"],
        fills: &[UNWRITTEN, UNWRITTEN, 0, 0],
    },
    mx(
        "mxfp8_mxfp4_values",
        ElementType::F8E4M3FN,
        ElementType::F4E2M1FN,
        "mxfp8 x mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp8_values",
        ElementType::F8E4M3FN,
        ElementType::F8E4M3FN,
        "mxfp8 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp8_e5m2_values",
        ElementType::F8E5M2,
        ElementType::F8E5M2,
        "mxfp8_e5m2 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
];

/// Programs of `WEIGHT_ONLY`.
const WEIGHT_ONLY_PROGRAMS: [Program; 3] = [
    values(
        "bf16_nvfp4_values",
        BlockFormat::NVFP4.weight_only(ElementType::BF16),
        WEIGHT_ONLY,
        "bf16 x nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "f16_nvfp4_values",
        BlockFormat::NVFP4.weight_only(ElementType::F16),
        WEIGHT_ONLY,
        "f16 x nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "bf16_mxfp4_values",
        BlockFormat::MXFP4.weight_only(ElementType::BF16),
        WEIGHT_ONLY,
        "bf16 x mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
];

/// A program of `VALUES` with MX scales.
const fn mx(name: &'static str, a: ElementType, b: ElementType, signature: &'static str) -> Program {
    values(name, BlockFormat { a, b, ..BlockFormat::MXFP4 }, VALUES, signature)
}

/// A program of `VALUES` or `WEIGHT_ONLY`.
const fn values(
    name: &'static str,
    format: BlockFormat,
    text: &'static str,
    signature: &'static str,
) -> Program {
    Program {
        name,
        format,
        signature,
        text,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    }
}

/// The number of random cases.
const RANDOM: usize = 12;

/// L, M, N, K and the SMs of a device.
type Case = [u64; 5];

/// The launch of a case. `cluster` CTAs share a tile. `helpers` clusters compute `per_tile` splits of each of
/// `helped` of the `tiles`. `left_tiles` tiles along M, and `left_slabs` slabs along K of the other ones, are
/// decoded while tiles are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Launch {
    tile: Tile,
    cluster: u32,
    helpers: u32,
    helped: u32,
    per_tile: u32,
    tiles: u32,
    left_tiles: u32,
    left_slabs: u32,
}

/// A compiled simulation of a kernel with these tiles.
struct Simulation {
    program: PathBuf,
    tiles: Vec<Tile>,
}

impl Program {
    fn with(&self, [l, m, n, k]: [u64; 4]) -> String {
        let BlockFormat { a, b, scale, block } = self.format;
        let mut text = self.text.replace("SCALES", &format!("{scale}, blocked"));
        text = text.replace("BLOCK", &block.to_string());
        text = text.replace("CODES_A", a.name()).replace("CODES_B", b.name());
        let groups = k / u64::from(block);
        for (name, extent) in [("L", l), ("N", n), ("K", k), ("G", groups), ("P", n / 16)] {
            for (before, after) in [("[", ","), (" ", ","), (" ", "]"), ("[", "]")] {
                text = text.replace(&format!("{before}{name}{after}"), &format!("{before}{extent}{after}"));
            }
        }
        let _ = m;
        text
    }

    /// Returns the tiles that the program's kernel may have.
    fn tiles(&self) -> Vec<Tile> {
        let held = |tile: &Tile| tile.takes(self.format) && (self.text != BLOCKS || tile.has_wide_rows());
        TILES.into_iter().filter(held).collect()
    }

    /// Returns the specification of the kernel with the given tiles.
    fn spec(&self, tiles: &[Tile]) -> ScaledMmaSpec {
        let (program, _) = fourfold::ir::load(&self.with([2, 0, 96, 192]))
            .unwrap_or_else(|errors| panic!("{}", errors[0].message));
        // Everything else would quantize in a kernel of its own.
        let options = options(TARGET).claim(Claim::KernelsOnly);
        let planned = Backend::new(&options).expect("a target").plan(program);
        let mut kernels = planned_kernels(&planned, CutlassVersion::PINNED, false);
        assert_eq!(kernels.len(), 1, "one kernel");
        let KernelSpec::ScaledMma(spec) = kernels.remove(0).spec else { panic!("a kernel that multiplies") };
        assert_eq!(spec.signature(), self.signature);
        let Design::Hopper(configuration) = &spec.configuration else { panic!("{:?}", spec.configuration) };
        let given = Configuration { variants: tiles.to_vec(), ..configuration.clone() };
        ScaledMmaSpec { configuration: given.into(), ..spec }
    }

    /// Compiles the simulation of a kernel with the given tiles and an optional change of its text.
    fn build(&self, name: &str, tiles: Vec<Tile>, change: Option<(&str, &str)>) -> Simulation {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hopper");
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        let mut device = device_text();
        if let Some((what, by)) = change {
            device = without(&device, what, by);
        }
        let source = without(&self.spec(&tiles).emit().text, HEAD, "");
        let source = without(&source, KERNEL, &device);
        let kernel = between(&source, "namespace fourfold {\n", "}  // namespace fourfold\n");
        let pieces = [
            ("template <int kStages>\nstruct PipelineState {", "\n};\n"),
            ("template <int N>\nCUTLASS_DEVICE cutlass::Array<float, N> load_floats(", "\n}\n"),
            ("CUTLASS_DEVICE uint64_t descriptor(", "\n}\n"),
            ("CUTLASS_DEVICE uint32_t unswizzled_descriptor(", "\n"),
        ]
        .map(|(begin, end)| format!("{begin}{}{end}", between(INSTRUCTIONS, begin, end)));
        let begin = "inline EpilogueArguments epilogue_arguments(Pointers const &p) {\n";
        let arguments = format!("{begin}{}\n}}\n", between(&source, begin, "\n}\n"));
        let variant = |(index, Tile { m, n }): (usize, Tile)| {
            format!("    case {index}: run_variant<{m}, {n}>(parameters, plan); break;")
        };
        let variants: Vec<String> = tiles.iter().copied().enumerate().map(variant).collect();
        let text = SIMULATION
            .replace("HEAD\n", HEAD)
            .replace("PIECES", &pieces.join("\n"))
            .replace("KERNEL", kernel)
            .replace("ARGUMENTS", &arguments)
            .replace("VARIANTS", &variants.join("\n"));
        let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
        std::fs::write(&file, text).expect("it is written");
        let toolchain = toolchain();
        let mut compiler = Command::new("g++");
        compiler.args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fpermissive",
            "-w",
        ]);
        for folder in &toolchain.include {
            compiler.arg("-I").arg(folder);
        }
        let compiled = compiler.arg("-o").args([&program, &file]).output().expect("g++ starts");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Simulation { program, tiles }
    }

    /// Runs a case and compares every output with the interpreter's. The tile is the given one, or the table selects
    /// it. Returns the launch.
    fn check(&self, simulation: &Simulation, case: Case, tile: Option<Tile>, seed: u64) -> Launch {
        let [l, m, n, k, sms] = case;
        let name = format!("{} {case:?} {tile:?} seed={seed}", self.name);
        let position = |tile| simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
        let variant = tile.map_or(u64::MAX, |tile| position(tile) as u64);
        let numbers = [l, m, n, k, sms, seed, variant];
        let (program, _) = fourfold::ir::load(&self.with([l, m, n, k]))
            .unwrap_or_else(|errors| panic!("{name}: {}", errors[0].message));
        let rule = if k <= 512 { Rule::Exact } else { Rule::Contest };
        let recipe = Recipe { rule, seed, symbols: vec![("M".to_owned(), m)] };
        let mut tensors = sample::inputs(&program, &recipe).expect("inputs");
        let only_rows_are_padded = (k / u64::from(self.format.block)).is_multiple_of(4);
        if only_rows_are_padded {
            // NaN in the padding below the last row has no effect.
            for scales in ["sfa", "sfb"] {
                tensors.get_mut(scales).into_iter().for_each(sample::fill_padding_with_nan);
            }
        }
        let values =
            interpret(&program, &bind::bind(&program, &tensors).expect("all inputs")).expect("values");
        let outputs: Vec<&Tensor> =
            program.module().outputs.iter().map(|output| &values[output.index()]).collect();
        let given = self.run(simulation, &name, numbers, &tensors, &outputs);
        let (said, mut rest) = given.split_at(SAID);
        let words: Vec<u32> = said.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        for (index, output) in outputs.iter().enumerate() {
            let (got, after) = rest.split_at(output.bytes().len());
            let differs = got.iter().zip(output.bytes()).position(|(got, expected)| got != expected);
            assert_eq!(differs, None, "{name}: byte of output {index}, {:?}, {words:?}", output.dims());
            rest = after;
        }
        assert!(rest.is_empty(), "{name}");
        let launch = launch_of(&words);
        if !only_rows_are_padded && self.text != BLOCKS {
            let mut tensors = tensors.clone();
            sample::fill_padding_with_nan(tensors.get_mut("sfb").expect("an input"));
            let given = self.run(simulation, &name, numbers, &tensors, &outputs);
            let (of_f32, of_bf16) = given[SAID..].split_at(outputs[0].bytes().len());
            if [ElementType::F8E4M3FN, ElementType::F8E5M2].contains(&self.format.a) {
                // A sum that is NaN is computed again, without padding.
                assert!(of_f32 == outputs[0].bytes() && of_bf16 == outputs[1].bytes(), "{name}");
                return launch;
            }
            let wide = of_f32.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word));
            let narrow =
                of_bf16.as_chunks().0.iter().map(|half| numeric::bf16_bits_to_f32(u16::from_ne_bytes(*half)));
            assert!(wide.chain(narrow).all(f32::is_nan), "{name}: NaN beside a row's scales");
        }
        launch
    }

    /// Runs a case with scales at both ends of their range, whose products are near 2^(total - 254). Every sum equals the
    /// interpreter's: where bf16 cannot hold an operand, the kernel computes the sum again.
    fn check_ends(&self, simulation: &Simulation, case: Case, tile: Tile, total: i32) {
        let [l, m, n, k, sms] = case;
        let name = format!("{} {case:?} {tile} total={total}", self.name);
        let variant = simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
        let (program, _) = fourfold::ir::load(&self.with([l, m, n, k])).expect("a program");
        let recipe = Recipe { rule: Rule::Exact, seed: total as u64, symbols: vec![("M".to_owned(), m)] };
        let mut tensors = sample::inputs(&program, &recipe).expect("inputs");
        let groups = (k / u64::from(self.format.block)) as i32;
        let (low, high) = ((total - 249).max(4), (total - 4).min(249));
        for (scales, is_b) in [("sfa", false), ("sfb", true)] {
            let tensor = &tensors[scales];
            let moved = |(at, code): (usize, &u8)| {
                let of_a = low + (high - low) * (at as i32 % groups) / (groups - 1);
                let base = if is_b { total - of_a } else { of_a };
                u8::try_from(i32::from(*code) - 127 + base).expect("a scale")
            };
            let codes: Vec<u8> = tensor.to_codes().iter().enumerate().map(moved).collect();
            let (dims, layout) = (tensor.dims().to_vec(), tensor.layout());
            let tensor = Tensor::from_codes(ElementType::F8E8M0FNU, dims, layout, codes).expect("a tensor");
            tensors.insert(scales.to_owned(), tensor);
        }
        let values = interpret(&program, &bind::bind(&program, &tensors).expect("inputs")).expect("values");
        let outputs: Vec<&Tensor> =
            program.module().outputs.iter().map(|output| &values[output.index()]).collect();
        assert!(outputs[0].to_f32().iter().all(|value| value.is_finite()), "{name}");
        let numbers = [l, m, n, k, sms, 0, variant as u64];
        let given = self.run(simulation, &name, numbers, &tensors, &outputs);
        let expected: Vec<u8> = outputs.iter().flat_map(|output| output.bytes()).copied().collect();
        assert!(given[SAID..] == expected, "{name}");
    }

    fn run(
        &self,
        simulation: &Simulation,
        name: &str,
        numbers: [u64; 7],
        tensors: &HashMap<String, Tensor>,
        outputs: &[&Tensor],
    ) -> Vec<u8> {
        let mut input: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let mut give = |bytes: &[u8]| {
            input.extend((bytes.len() as u64).to_ne_bytes());
            input.extend(bytes);
        };
        for name in ["a", "sfa", "b", "sfb", self.c, self.alpha, ""] {
            give(tensors.get(name).map_or(&[], Tensor::bytes));
        }
        input.extend((self.operands.len() as u64).to_ne_bytes());
        for operand in self.operands {
            input.extend((tensors[*operand].bytes().len() as u64).to_ne_bytes());
            input.extend(tensors[*operand].bytes());
        }
        input.extend((outputs.len() as u64).to_ne_bytes());
        for (output, fill) in outputs.iter().zip(self.fills) {
            input.extend((output.bytes().len() as u64).to_ne_bytes());
            input.extend(u64::from(*fill).to_ne_bytes());
        }
        let mut child = Command::new(&simulation.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // A program that ends early prints the reason.
        let _ = child.stdin.take().expect("it is a pipe").write_all(&input);
        let output = child.wait_with_output().expect("the program ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {:?} {said}", output.status);
        output.stdout
    }
}

fn launch_of(words: &[u32]) -> Launch {
    let [tile_m, tile_n, cluster, _grid, helpers, helped, per_tile, tiles, left_tiles, left_slabs] = *words
    else {
        panic!("{words:?}")
    };
    let tile = Tile::new(tile_m, tile_n);
    Launch { tile, cluster, helpers, helped, per_tile, tiles, left_tiles, left_slabs }
}

/// Returns the device functions, without the instructions that C++ does not have.
fn device_text() -> String {
    let mut device = without(KERNEL, INSTRUCTIONS, "");
    device = without(&device, CONVERT, CONVERTED);
    for instruction in WITHOUT_EFFECT {
        device = without(&device, instruction, "");
    }
    assert!(!device.contains("asm(") && !device.contains("asm "), "an instruction that is not simulated");
    device
}

/// Replaces `what`, which the text must have exactly once.
fn without(text: &str, what: &str, by: &str) -> String {
    assert_eq!(text.matches(what).count(), 1, "{what}");
    text.replace(what, by)
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("{begin}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("{end}")).0
}

/// Returns extents at the edges of tiles, of scales and of K, for every tile and every cluster size.
fn cases(program: &Program) -> Vec<Case> {
    let mut cases = vec![
        // Small M.
        [1, 1, 32, 32, 132],
        [3, 1, 160, 288, 132],
        [1, 1, 288, 1056, 132],
        [1, 1, 96, 2208, 132],
        [1, 1, 64, 4224, 132],
        [1, 1, 416, 8352, 1],
        [1, 1, 64, 4224, 4],
        [1, 1, 64, 14336, 132],
        [1, 2, 288, 1056, 132],
        [3, 2, 160, 288, 5],
        [2, 5, 160, 96, 132],
        [1, 8, 288, 160, 132],
        [1, 3, 64, 512, 132],
        [1, 8, 128, 1024, 1],
        [1, 6, 64, 1152, 132],
        [1, 7, 160, 2048, 132],
        [1, 8, 288, 5120, 1],
        [1, 5, 64, 8352, 1],
        [1, 9, 96, 480, 132],
        [3, 16, 160, 1056, 132],
        [1, 12, 64, 2208, 132],
        [1, 5, 64, 4224, 132],
        [1, 12, 64, 4224, 132],
        [1, 11, 32, 96, 132],
        [1, 16, 288, 2208, 1],
        [1, 10, 64, 4256, 1],
        // Warps keep A in registers: one CTA, and two that share K; with idle warps.
        [1, 7, 160, 4096, 2],
        [3, 16, 96, 3488, 1],
        [1, 16, 256, 8160, 2],
        [1, 9, 32, 6784, 2],
        [2, 13, 96, 6784, 2],
        // Tiled: several tiles per CTA, and clusters that share a tile.
        [1, 17, 32, 32, 132],
        [2, 64, 288, 96, 132],
        [1, 40, 416, 256, 1],
        [1, 64, 544, 416, 2],
        [1, 33, 96, 512, 132],
        [1, 50, 160, 1024, 8],
        [1, 64, 256, 2112, 132],
        [1, 129, 64, 160, 132],
        [3, 200, 544, 288, 5],
        [1, 100, 2336, 160, 3],
        [1, 128, 288, 512, 132],
        [1, 65, 256, 1056, 5],
        [2, 130, 64, 2080, 132],
        // Tiles with helpers.
        [1, 40, 288, 1056, 2],
        [1, 40, 544, 1056, 2],
        [1, 40, 96, 4128, 4],
        [1, 40, 288, 2080, 3],
        [1, 130, 96, 2080, 3],
        [1, 300, 96, 2080, 3],
        // A decoded while tiles are computed.
        [2, 300, 288, 2080, 1],
        [3, 20, 160, 3104, 2],
    ];
    if program.text != BLOCKS {
        // Outputs with blocks restrict N further.
        cases.extend([
            [1, 1, 8, 32, 132],
            [2, 13, 24, 96, 132],
            [1, 70, 264, 224, 132],
            [1, 20, 40, 352, 132],
        ]);
    }
    let mut random = Random::new(0x90A);
    for _ in 0..RANDOM {
        let m = random.pick(&[1, 7, 8, 9, 16, 17, 31, 63, 64, 65, 127, 128, 129, 190, 257]);
        let k = 32 * random.pick(&[1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 63, 64]);
        let n = 32 * (1 + random.below(20) as u64);
        cases.push([random.pick(&[1, 1, 1, 2, 3]), m, n, k, random.pick(&[1, 2, 7, 24, 132])]);
    }
    cases
}

fn check_all(program: &Program) {
    let simulation = program.build(program.name, program.tiles(), None);
    let mut met = BTreeSet::new();
    for (seed, case) in cases(program).into_iter().enumerate() {
        let mut check = |tile| met.insert(program.check(&simulation, case, tile, seed as u64));
        check(None);
        let is_small_m = case[1] <= u64::from(SMALL_M);
        for tile in program.tiles().into_iter().filter(|tile| tile.is_small_m() == is_small_m) {
            if !is_small_m || case[1] <= u64::from(tile.m) {
                check(Some(tile));
            }
        }
    }
    for tile in program.tiles() {
        let most = tile.max_cluster();
        for cluster in [1, 2, 4, 8].into_iter().filter(|cluster| *cluster <= most) {
            let is_met = met.iter().any(|it| (it.tile, it.cluster) == (tile, cluster));
            assert!(is_met, "{tile} shared by {cluster}: {met:?}");
        }
    }
    // Every tile with helpers: single CTAs and clusters, several splits of a tile, several splits of a CTA, and after
    // whole tiles.
    for tile in program.tiles().into_iter().filter(|tile| !tile.is_small_m() && tile.n > 64) {
        let helped: Vec<&Launch> = met.iter().filter(|it| it.tile == tile && it.helpers > 0).collect();
        let has = |what: &str, is_so: &dyn Fn(&Launch) -> bool| {
            assert!(helped.iter().any(|it| is_so(it)), "{tile}: {what}: {helped:?}");
        };
        has("alone", &|it| it.cluster == 1);
        has("shared", &|it| it.cluster > 1);
        has("several splits of a tile", &|it| it.per_tile > 1);
        has("several splits for a CTA", &|it| it.helped > it.helpers * it.cluster);
        has("behind whole tiles", &|it| it.tiles > it.helped);
    }
    // For large M, nothing of A, some slabs, or whole tiles are decoded late.
    for tile in program.tiles().into_iter().filter(|tile| tile.m == 256) {
        let left: BTreeSet<_> =
            met.iter().filter(|it| it.tile == tile).map(|it| [it.left_tiles, it.left_slabs]).collect();
        let has = |what: [bool; 2]| left.iter().any(|it| it.map(|left| left > 0) == what);
        assert!([[false, false], [false, true], [true, true]].into_iter().all(has), "{tile}: {left:?}");
    }
}

#[test]
fn values_of_nvfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[0]);
}

#[test]
fn values_of_mxfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[1]);
}

#[test]
fn blocks_and_reductions_are_the_interpreter_s() {
    check_all(&PROGRAMS[2]);
}

#[test]
fn values_of_mxfp8_by_mxfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[3]);
}

#[test]
fn values_of_mxfp8_are_the_interpreter_s() {
    check_all(&PROGRAMS[4]);
}

#[test]
fn values_of_weight_only_products_are_the_interpreter_s() {
    for program in &WEIGHT_ONLY_PROGRAMS {
        check_all(program);
    }
}

#[test]
fn scales_at_the_ends_of_their_range_give_the_interpreter_s_values() {
    for program in &PROGRAMS[3..] {
        let tiles = [Tile::new(8, 128), Tile::new(64, 128), Tile::new(128, 64), Tile::new(128, 256)];
        let simulation = program.build(&format!("{}_ends", program.name), tiles.to_vec(), None);
        for (tile, total) in tiles.into_iter().flat_map(|tile| [160, 254, 330].map(|total| (tile, total))) {
            let m = if tile.is_small_m() { 5 } else { 37 };
            program.check_ends(&simulation, [2, m, 40, 512, 7], tile, total);
        }
        let without = Some(("if (!any) {", "if (true) {"));
        let simulation = program.build(&format!("{}_ends_wrong", program.name), tiles[..2].to_vec(), without);
        for tile in &tiles[..2] {
            let check = || program.check_ends(&simulation, [1, 5, 40, 512, 7], *tile, 330);
            assert!(std::panic::catch_unwind(check).is_err(), "{}: no sum was computed again", program.name);
        }
    }
}

/// Plants faults in the kernels, each of which the simulation must find.
#[test]
fn what_is_wrong_is_found() {
    let (many, small_m, shared) = ([1, 64, 544, 1056, 1], [1, 8, 288, 8192, 1], [1, 64, 256, 2112, 132]);
    let kept = [1, 64, 96, 2112, 2];
    let helped = [1, 40, 96, 4128, 4];
    // One of two CTAs has 14 chunks of K, the other 13.
    let regs = [1, 16, 96, 6784, 2];
    let regs_batch = [2, 16, 96, 3488, 1];
    let left = [2, 300, 96, 2080, 1];
    let (one, two, alone) = ([1, 1, 288, 4096, 1], [1, 2, 288, 4096, 1], [1, 8, 160, 1024, 1]);
    let near = [1, 1, 416, 8352, 1];
    let several = [Tile::new(128, 64), Tile::new(128, 256), Tile::new(64, 128)];
    let faults = [
        // Operands read before they are loaded, and multiplied before that.
        ("barrier_wait(smem.full_b(from.stage), from.phase);", "", many),
        (
            "  barrier_wait(consumer.smem.full_a(consumer.ring.stage), consumer.ring.phase);\n  uint64_t",
            "  uint64_t",
            many,
        ),
        ("(step == 2 || step == 4)", "step == 2", many),
        // Stages overwritten while they are multiplied, or before they are read; sums overwritten before they are read.
        ("barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);\n      CUTLASS", "\n      CUTLASS", many),
        ("barrier_wait(smem.empty_b(ring.stage), ring.phase ^ 1);", "", many),
        ("barrier_wait(smem.tile_stored(), tiles_done & 1);", "", many),
        // One arrival too few, and bytes that never arrive.
        ("barrier_init(smem.empty_a(i), V::kPhaseWarps);", "barrier_init(smem.empty_a(i), 9);", many),
        (
            "barrier_expect_tx(barrier, V::kStageBytes);",
            "barrier_expect_tx(barrier, V::kStageBytes + 16);",
            many,
        ),
        (
            "barrier_expect_tx(barrier, V::kABytes / V::kFullBarriersA);",
            "barrier_expect_tx(barrier, V::kABytes / V::kFullBarriersA - 16);",
            many,
        ),
        // A of another word, and SFA of another row.
        ("run_of(0, word) : run_of(word, 0)", "0 : run_of(word ^ 1, 0)", many),
        ("m % 128 / 32 * 4;", "m % 128 / 64 * 4;", many),
        // SFB of other K blocks and rows, swapped panels, and another panel in the workspace.
        ("block * (kAtomsPerBlock * kAtomRows)", "block * kAtomsPerBlock", many),
        ("min(work.n_idx * V::kTileN / 128 + i, p.atoms_n - 1)", "work.n_idx / 2", many),
        ("block * 2 + panel);", "block * 2 + 1 - panel);", many),
        ("+ 2 * block * next_panel", "+ block * next_panel", many),
        // Another K step of A, and another order of a thread's rows of B and columns of D.
        ("step / 4 * V::kPanelBytes + step % 4 * 32", "step % 2 * V::kPanelBytes + step / 2 * 32", many),
        ("codes_at[i] = codes ^ i * kPartBytes;", "codes_at[i] = codes;", many),
        ("scales_at[i] = scales ^ i * 16;", "scales_at[i] = scales;", many),
        ("far = (1 - i % 2) * 2 + row", "far = i % 2 * 2 + row", many),
        // Sums of a phase read before they are stored, stored over operands of the other phase, and at the wrong place.
        ("named_barrier_sync<3, V::kConsumerThreads>();", "", many),
        ("a((first + 2 - phase) % V::kStages)", "a((first + 3 + phase) % V::kStages)", many),
        ("consumer.ring.stage - phase, phase, sums", "consumer.ring.stage, phase, sums", many),
        // Sums of a cluster stored over operands, and added before they arrive; stages at the wrong place.
        (">> p.cluster_bits;\n  barrier_wait(smem.exchange_empty(), 0);", ">> p.cluster_bits;", shared),
        ("barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);\n    }", "}", shared),
        ("barrier_wait(smem.exchange_full(warp), 0);", "", shared),
        ("smem.exchange(blocks % V::kStages, source)", "smem.exchange(0, source)", shared),
        ("(first + slice / V::kSlicesPerStage) % V::kStages", "(first + 1) % V::kStages", shared),
        // The same with two CTAs that keep a warpgroup each; K blocks taken twice, wrong ones, and sums sent to the CTA
        // itself.
        ("other);\n  barrier_wait(smem.exchange_empty(), 0);", "other);", kept),
        ("barrier_wait(smem.exchange_full(thread / 32), 0);", "", kept),
        ("rank * (common + result.alone)", "rank * common", kept),
        ("i < end - begin ? begin + i : i", "begin + i", kept),
        ("work, 1 - own_rank(p), sums", "work, own_rank(p), sums", kept),
        // A wrong split, a split that two CTAs compute, and flags that are not cleared.
        ("steps_before += p.split_steps;", "", helped),
        ("~((beyond << p.cluster_bits) + rank)", "~(beyond << p.cluster_bits)", helped),
        ("p.flags[item] = 0;", "", helped),
        // An arrival at a CTA that may have ended.
        (" && !TileScheduler<V>(p, rank).helps()", "", helped),
        // A decoded late: read too early, the wrong rows, and the wrong tile.
        ("wait_for_slab<V>(p, work, block / kSlabBlocks);", "", left),
        ("--left, run.next(matrix)", "--left", left),
        ("tile = behind + ahead.first_tiles.number;", "tile = behind;", left),
        // Another thread's part of K, and its scales.
        (
            "store_words(smem_a + m * pitch + block * 2 * kBlockK + word * 64 + t * 16,",
            "store_words(smem_a + m * pitch + block * 2 * kBlockK + word * 64 + (t ^ 1) * 16,",
            small_m,
        ),
        (
            "block * V::kABlockScaleBytes + lane() % 4 * 8",
            "block * V::kABlockScaleBytes + (lane() % 4 ^ 1) * 8",
            one,
        ),
        // e4m3: words of another group, a word left out, another row of A, sums read too early, and those of another
        // warpgroup.
        ("(2 * t + word / 2) * 16", "(2 * t + 1 - word / 2) * 16", one),
        ("WgmmaE4m3<8 * kTileM>::add(", "WgmmaE4m3<8 * kTileM>::begin(", one),
        (
            "word % 2) * kTileM + m) * V::kMatrixBytes",
            "word % 2) * kTileM + kTileM - 1 - m) * V::kMatrixBytes",
            two,
        ),
        ("wgmma_wait<V::kBlocks - 1 - block>();\n        mine", "mine", one),
        ("warp / V::kMmaWarps * V::kMaxGroups + run.group", "run.group", one),
        // A and B read before they are loaded.
        ("    fence_async_proxy();\n  }\n  __syncthreads();\n", "  }\n", alone),
        ("cp_async_wait<V::kStages - 1>();", "cp_async_wait<V::kStages>();", one),
        // A prefetch outside of the tensor.
        ("prefetch_l2(first_row + rows[i]);", "prefetch_l2(first_row + p.n * p.row_bytes);", near),
        // Other rows, and sums of another group or of another place.
        ("min(at_row + i * 32, last)", "min(at_row + i * 4, last)", one),
        ("vector / 4 * V::kGroups + part, m", "vector / 4 * V::kGroups + 1 - part, m", one),
        ("end <= last ? smem.rings + warp", "end < last ? smem.rings + warp", small_m),
        // One of two accumulators left out.
        ("acc[chunk][0][i] + acc[chunk][1][i]", "acc[chunk][0][i]", small_m),
        // Sums of a cluster read before they arrive, and bytes that never arrive.
        ("  if (cluster.mask > 0) {\n    barrier_wait(smem.exchange_full, 0);\n  }", "", small_m),
        ("units * 4 + cluster.mask - cluster.rank", "units * 4 + cluster.mask + 1", small_m),
        // A in registers: B of the previous phase, scales of another part, and B loaded over A that is still read.
        (
            "barrier_wait(barriers + stage * 8, phase ^ stage);",
            "barrier_wait(barriers + stage * 8, phase);",
            regs,
        ),
        ("scales + place * V::kSfbRoom", "scales", regs),
        ("__syncwarp();\n      if (stage == 1) {", "if (stage == 1) {", regs),
        // Other parts, other rows, their scales, and SFA of another chunk.
        ("part + 1 == parts ? 0 : part + 1", "part + 1", regs),
        ("block * 4 + stage * 2, batch", "block * 4 + stage, batch", regs),
        ("phase * V::kSfbRoom + stage * 8", "phase * V::kSfbRoom", regs),
        ("barriers + 8, 0, chunk * V::kChunkAtoms", "barriers + 8, 0, 0", regs),
        // Scales of another matrix.
        ("first_atom_n = static_cast<int>(batch) * parameters.atoms_n;", "", regs_batch),
        ("first_atom_m = static_cast<int>(batch) * parameters.atoms_m;", "", regs_batch),
        // Sums of another part, sums of idle warps, and sums of other warps or of the other CTA before they are
        // complete.
        ("part = order.part(place / V::kStages)", "part = place / V::kStages", regs),
        (
            "piece = lane(); piece < groups * (kSumPieces / 2);",
            "piece = lane(); piece < kSumPieces / 2;",
            regs,
        ),
        ("barrier_wait(smem.sums_full, 0);", "", regs),
        ("barrier_wait(smem.exchange_full, 0);\n        add_pair", "add_pair", regs),
    ];
    // Outputs with blocks: units that both CTAs store.
    let of_blocks = [(">= first + others;", ">= first;", regs)];
    let all: Vec<_> = faults
        .map(|fault| (&PROGRAMS[0], fault))
        .into_iter()
        .chain(of_blocks.map(|fault| (&PROGRAMS[2], fault)))
        .collect();
    // All faults must apply before the first is compiled.
    let device = device_text();
    for (_, (what, by, _)) in &all {
        without(&device, what, by);
    }
    let tiles = |case: Case| match case[1] {
        0..=8 | 16 => vec![Tile::new(case[1] as u32, 128)],
        257.. => vec![Tile::new(256, 128)],
        _ => several.to_vec(),
    };
    // Without a fault, each case passes.
    let mut faultless: BTreeMap<_, BTreeMap<Case, &Program>> = BTreeMap::new();
    for (program, (.., case)) in &all {
        faultless.entry((program.name, tiles(*case))).or_default().insert(*case, program);
    }
    for ((name, tiles), cases) in faultless {
        let program = cases.values().next().expect("a case");
        let simulation = program.build(&format!("{name}_faultless"), tiles, None);
        for (case, program) in cases {
            for tile in &simulation.tiles {
                program.check(&simulation, case, Some(*tile), 0);
            }
        }
    }
    let is_found = |index: usize, program: &Program, (what, by, case): (&str, &str, Case)| {
        tiles(case).into_iter().any(|tile| {
            let simulation = program.build(&format!("wrong_{index}"), vec![tile], Some((what, by)));
            let check = |seed| program.check(&simulation, case, Some(tile), seed);
            (0..64).any(|seed| std::panic::catch_unwind(|| check(seed)).is_err())
        })
    };
    // Each takes some seconds, most of them for the compiler.
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((program, fault)) = all.get(index) else { break };
                    if !is_found(index, program, *fault) {
                        missed.lock().expect("no thread panics with it").push(fault);
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner().expect("no thread panicked with it"), [] as [&(&str, &str, Case); 0]);
}

/// An FP8 code times its scale is exact up to a power of two, and each of eight codes has its own position. NaN and
/// infinity stay, and so does a product that bf16 cannot hold become infinity or NaN.
#[test]
fn every_fp8_code_is_decoded_exactly_with_every_scale() {
    for (program, exponent) in [(&PROGRAMS[3], 3), (&PROGRAMS[4], 3), (&PROGRAMS[5], 10)] {
        let simulation = program.build(&format!("{}_decoded", program.name), vec![Tile::new(8, 128)], None);
        let output = Command::new(simulation.program).arg("decode").output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let halves: Vec<u16> =
            output.stdout.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half)).collect();
        let mut parts = halves.chunks_exact(8);
        let is_e4m3 = program.format.a == ElementType::F8E4M3FN;
        let mut places = [None; 8];
        for scale in 0..=255u8 {
            for place in &mut places {
                for code in 0..=255u8 {
                    let part = parts.next().expect("all of them");
                    let part: Vec<f64> =
                        part.iter().map(|bits| f64::from(numeric::bf16_bits_to_f32(*bits))).collect();
                    let value = if is_e4m3 { numeric::e4m3_to_f32(code) } else { numeric::e5m2_to_f32(code) };
                    let product = f64::from(value) * 2f64.powi(i32::from(scale) - 127 + exponent);
                    let case = format!("{code:#x} with {scale:#x}: {part:?}");
                    let has_factor = i32::from(scale) + exponent <= 254;
                    if scale == 255 || (!has_factor && value != 0.0) {
                        assert!(part.iter().all(|part| part.is_nan()), "{case}");
                        continue;
                    }
                    let found: Vec<usize> = (0..8).filter(|at| part[*at] != 0.0).collect();
                    if value == 0.0 {
                        assert!(found.is_empty(), "{case}");
                        continue;
                    }
                    let at = *place.get_or_insert(*found.first().expect("a place"));
                    assert_eq!(found, [at], "{case}");
                    let is_held = product.abs() < 2f64.powi(128);
                    let expected = if is_held { product } else { f64::INFINITY.copysign(product) };
                    assert!(part[at] == expected || (part[at].is_nan() && value.is_nan()), "{case}");
                }
            }
        }
        assert!(parts.next().is_none());
        let distinct: BTreeSet<_> = places.iter().map(|place| place.expect("a place")).collect();
        assert_eq!(distinct.len(), 8);
    }
}

/// A decoded code times its scale is exact up to a power of two, and each of eight codes has its own position.
#[test]
fn every_code_is_decoded_exactly_with_every_scale() {
    for program in &PROGRAMS[..2] {
        let is_mx = program.format == BlockFormat::MXFP4;
        let simulation = program.build(&format!("{}_decoded", program.name), vec![TILES[0]], None);
        let output = Command::new(simulation.program).arg("decode").output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let halves: Vec<u16> =
            output.stdout.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half)).collect();
        let mut parts = halves.chunks_exact(8);
        let mut places = [None; 8];
        for scale in 0..=255u8 {
            let of_scale =
                if is_mx { numeric::e8m0_to_f32(scale) } else { numeric::ue4m3_to_f32(scale & 0x7F) };
            let factor = 2f64.powi(if is_mx { -3 } else { -14 });
            for _half in 0..if is_mx { 1 } else { 2 } {
                for place in &mut places {
                    for code in 0..16u8 {
                        let part = parts.next().expect("all of them");
                        let wide = |bits: u16| {
                            f64::from(if is_mx {
                                numeric::bf16_bits_to_f32(bits)
                            } else {
                                numeric::f16_bits_to_f32(bits)
                            })
                        };
                        let case = format!("{code:#x} with {scale:#x}");
                        if of_scale.is_nan() {
                            assert!(part.iter().all(|bits| wide(*bits).is_nan()), "{case}");
                            continue;
                        }
                        let expected = f64::from(numeric::e2m1_to_f32(code)) * f64::from(of_scale) * factor;
                        let found: Vec<usize> = (0..8).filter(|at| wide(part[*at]) != 0.0).collect();
                        if expected == 0.0 {
                            assert!(found.is_empty(), "{case}");
                            continue;
                        }
                        let at = *place.get_or_insert(*found.first().expect("a place"));
                        assert_eq!((found.as_slice(), wide(part[at])), ([at].as_slice(), expected), "{case}");
                    }
                }
            }
        }
        assert!(parts.next().is_none());
        let distinct: BTreeSet<_> = places.iter().map(|place| place.expect("a place")).collect();
        assert_eq!(distinct.len(), 8);
    }
}
