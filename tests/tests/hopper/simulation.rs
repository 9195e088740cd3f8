//! Builds the simulation of a kernel from its source, and compares runs of it with the interpreter.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::hopper::{Configuration, HEAD, KERNEL, TARGET, TILES, Tile};
use fourfold::codegen::{Design, KernelSpec, ScaledMmaSpec};
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{BlockFormat, ElementType, Entity as _, Tensor, bind, interpret, numeric};
use fourfold::kernels::planned_kernels;
use fourfold::{Backend, Claim};
use fourfold_tests::built::toolchain;
use fourfold_tests::options;

use crate::programs::Program;

const SIMULATION: &str = include_str!("simulation/simulate.cc");
/// The machine that a simulation runs on: a file, and its text.
const MACHINE: [(&str, &str); 3] = [
    ("machine.hh", include_str!("simulation/machine.hh")),
    ("machine.cc", include_str!("simulation/machine.cc")),
    ("arithmetic.cc", include_str!("simulation/arithmetic.cc")),
];
/// Built-ins and instructions, as device code calls them.
const BUILT_INS: &str = include_str!("simulation/instructions.hh");
const INSTRUCTIONS: &str = include_str!("../../../codegen/src/hopper/device/instructions.cuh");

/// An instruction outside `instructions.cuh`, and its replacement here.
const CONVERT: &str =
    r#"asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(bytes)));"#;
const CONVERTED: &str = "result = simulation::e4m3x2_to_halves(static_cast<uint16_t>(bytes));";
/// Instructions without an effect in the simulation: they only move registers between warps.
const WITHOUT_EFFECT: [&str; 2] = [
    r#"asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(V::kProducerRegisters));"#,
    r#"asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(V::kConsumerRegisters));"#,
];

/// The number of bytes that describe the launch, before the outputs.
pub const SAID: usize = 10 * 4;

/// L, M, N, K and the SMs of a device.
pub type Case = [u64; 5];

/// The launch of a case. `cluster` CTAs share a tile. `helpers` clusters compute `per_tile` splits of each of
/// `helped` of the `tiles`. `left_tiles` tiles along M, and `left_slabs` slabs along K of the other ones, are
/// decoded while tiles are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Launch {
    pub tile: Tile,
    pub cluster: u32,
    pub helpers: u32,
    pub helped: u32,
    pub per_tile: u32,
    pub tiles: u32,
    pub left_tiles: u32,
    pub left_slabs: u32,
}

/// A compiled simulation of a kernel with these tiles.
pub struct Simulation {
    pub program: PathBuf,
    pub tiles: Vec<Tile>,
}

impl Program {
    pub fn with(&self, [l, m, n, k]: [u64; 4]) -> String {
        let BlockFormat { a, b, scale, block } = self.format;
        let mut text = self
            .text
            .replace("LINEAR", &format!("{scale}, linear"))
            .replace("SCALES", &format!("{scale}, blocked"));
        text = text.replace("BLOCK", &block.to_string());
        text = text.replace("CODES_A", a.name()).replace("CODES_B", b.name());
        let groups = k / u64::from(block);
        let columns = if self.pairs() { n / 2 } else { n };
        let extents = [("L", l), ("N", n), ("F", columns), ("K", k), ("G", groups), ("P", columns / 16)];
        for (name, extent) in extents {
            for (before, after) in [("[", ","), (" ", ","), (" ", "]"), ("[", "]")] {
                text = text.replace(&format!("{before}{name}{after}"), &format!("{before}{extent}{after}"));
            }
        }
        let _ = m;
        text
    }

    /// Returns the tiles that the program's kernel may have.
    pub fn tiles(&self) -> Vec<Tile> {
        let held = |tile: &Tile| tile.takes(self.format) && (!self.has_blocks() || tile.has_wide_rows());
        TILES.into_iter().filter(held).collect()
    }

    /// Returns the specification of the kernel with the given tiles.
    fn spec(&self, tiles: &[Tile]) -> ScaledMmaSpec {
        let (program, _) = fourfold::ir::load(&self.with([2, 0, 192, 192]))
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
    pub fn build(&self, name: &str, tiles: Vec<Tile>, change: Option<(&str, &str)>) -> Simulation {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hopper");
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        let mut device = device_text();
        if let Some((what, by)) = change {
            device = without(&device, what, by);
        }
        let source = without(&self.spec(&tiles).emit().text, HEAD, "");
        let source = without(&source, KERNEL, &device);
        let kernel = between(&source, "namespace fourfold {\n", "}  // namespace fourfold\n");
        let begin = "inline EpilogueArguments epilogue_arguments(Pointers const &p) {\n";
        let arguments = format!("{begin}{}\n}}\n", between(&source, begin, "\n}\n"));
        let variant = |(index, Tile { m, n }): (usize, Tile)| {
            format!("    case {index}: run_variant<{m}, {n}>(parameters, plan); break;")
        };
        let variants: Vec<String> = tiles.iter().copied().enumerate().map(variant).collect();
        let text = SIMULATION
            .replace("KERNEL", kernel)
            .replace("ARGUMENTS", &arguments)
            .replace("VARIANTS", &variants.join("\n"));
        let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
        std::fs::write(&file, text).expect("it is written");
        let mut compiler = compiler(&folder, "-O1");
        compiler.arg("-o").args([&program, &file]).args(machine(&folder));
        compile(&mut compiler);
        Simulation { program, tiles }
    }

    /// Runs a case and compares every output with the interpreter's. The tile is the given one, or the table selects
    /// it. Returns the launch.
    pub fn check(&self, simulation: &Simulation, case: Case, tile: Option<Tile>, seed: u64) -> Launch {
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
        if !only_rows_are_padded && !self.has_blocks() {
            let mut tensors = tensors.clone();
            sample::fill_padding_with_nan(tensors.get_mut("sfb").expect("an input"));
            let given = self.run(simulation, &name, numbers, &tensors, &outputs);
            let (of_f32, of_bf16) = given[SAID..].split_at(outputs[0].bytes().len());
            if self.fp8().is_some() {
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

    /// Runs a case with scales at both ends of their range, whose products are near 2^(total - 254). An A without scales
    /// has elements of this range, or of the part that f16 has. Every sum equals the interpreter's: where bf16 cannot hold an operand, the kernel
    /// computes the sum again.
    pub fn check_ends(&self, simulation: &Simulation, case: Case, tile: Tile, total: i32) {
        let [l, m, n, k, sms] = case;
        let name = format!("{} {case:?} {tile} total={total}", self.name);
        let variant = simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
        let (program, _) = fourfold::ir::load(&self.with([l, m, n, k])).expect("a program");
        let recipe = Recipe { rule: Rule::Exact, seed: total as u64, symbols: vec![("M".to_owned(), m)] };
        let mut tensors = sample::inputs(&program, &recipe).expect("inputs");
        let groups = (k / u64::from(self.format.block)) as i32;
        // Elements of a bf16 A are up to 2^16 before they are moved.
        let (least, most) = match self.format.a {
            ElementType::F16 => (105, 127),
            ElementType::BF16 => (4, 233),
            _ => (4, 249),
        };
        let (low, high) = ((total - 249).max(least), (total - 4).min(most));
        let of_a = |group: i32| low + (high - low) * (group % groups) / (groups - 1);
        if self.format.is_weight_only() {
            let tensor = &tensors["a"];
            let moved = |(at, value): (usize, &f64)| {
                value * 2f64.powi(of_a(at as i32 / self.format.block as i32) - 127)
            };
            let values: Vec<f64> = tensor.to_f64().iter().enumerate().map(moved).collect();
            let (element, dims) = (tensor.element(), tensor.dims().to_vec());
            let tensor = Tensor::from_f64(element, dims, tensor.layout(), &values).expect("a tensor");
            tensors.insert("a".to_owned(), tensor);
        }
        for (scales, is_b) in [("sfa", false), ("sfb", true)] {
            let Some(tensor) = tensors.get(scales) else { continue };
            let moved = |(at, code): (usize, &u8)| {
                let of_a = of_a(at as i32);
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

    pub fn run(
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
        for name in ["a", "sfa", "b", "sfb", self.c, self.alpha, "", "ends", "sfa_ends"] {
            give(tensors.get(name).map_or(&[], Tensor::bytes));
        }
        let rows_of_scales = tensors.get("sfa").map_or(0, |sfa| sfa.dims()[0]);
        input.extend((rows_of_scales as u64).to_ne_bytes());
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

/// Returns g++ with the flags of a simulation. Sums and products are not contracted.
fn compiler(folder: &Path, optimization: &str) -> Command {
    let mut compiler = Command::new("g++");
    compiler.args([
        "-std=c++17",
        optimization,
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fpermissive",
        "-w",
        "-Wno-psabi",
    ]);
    compiler.current_dir(folder);
    for include in &toolchain().include {
        compiler.arg("-I").arg(include);
    }
    compiler
}

fn compile(compiler: &mut Command) {
    let compiled = compiler.output().expect("g++ starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Writes and compiles, once, what all simulations share. Returns the objects to link.
fn machine(folder: &Path) -> &'static [PathBuf] {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| {
        for (name, text) in MACHINE {
            std::fs::write(folder.join(name), text).expect("it is written");
        }
        let pieces = [
            ("template <int kStages>\nstruct PipelineState {", "\n};\n"),
            ("template <int N>\nCUTLASS_DEVICE cutlass::Array<float, N> load_floats(", "\n}\n"),
            ("CUTLASS_DEVICE uint64_t descriptor(", "\n}\n"),
            ("CUTLASS_DEVICE uint32_t unswizzled_descriptor(", "\n"),
        ]
        .map(|(begin, end)| format!("{begin}{}{end}", between(INSTRUCTIONS, begin, end)));
        let prelude = format!("{HEAD}\n{}", BUILT_INS.replace("PIECES", &pieces.join("\n")));
        std::fs::write(folder.join("prelude.hh"), prelude).expect("it is written");
        // Precompiled, so that each simulation compiles its kernel only.
        compile(compiler(folder, "-O1").args(["-x", "c++-header", "prelude.hh", "-o", "prelude.hh.gch"]));
        let object = |name: &str| {
            let object = folder.join(format!("{name}.o"));
            compile(compiler(folder, "-O3").args(["-c", &format!("{name}.cc"), "-o"]).arg(&object));
            object
        };
        vec![object("machine"), object("arithmetic")]
    })
}

/// Returns the device functions, without the instructions that C++ does not have.
pub fn device_text() -> String {
    let mut device = without(KERNEL, INSTRUCTIONS, "");
    device = without(&device, CONVERT, CONVERTED);
    for instruction in WITHOUT_EFFECT {
        device = without(&device, instruction, "");
    }
    assert!(!device.contains("asm(") && !device.contains("asm "), "an instruction that is not simulated");
    device
}

/// Replaces `what`, which the text must have exactly once.
pub fn without(text: &str, what: &str, by: &str) -> String {
    assert_eq!(text.matches(what).count(), 1, "{what}");
    text.replace(what, by)
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("{begin}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("{end}")).0
}
