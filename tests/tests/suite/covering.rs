//! The fixtures of `fixtures/formats/`: a pairwise covering table of every operand format of sm_90a but FP4 by FP4. `FOURFOLD_BLESS=1` writes the fixtures and the table in their README; `filetests.rs` then adds the
//! expected results, and `fourfold verify fixtures/formats` runs them on a GPU.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::ir::{BlockFormat, Capabilities, ElementType, load};
use fourfold::kernels::planned_kernels;
use fourfold_tests::{backend, repository};

const TARGET: &str = "sm_90a";
/// The maximum number of kernels with a `scaled_mma`, so that a run on a GPU stays short.
const MOST_KERNELS: usize = 60;

/// Orders rows with equally many new pairs and kernels. Found by trying numbers from 0 on, for a table of few kernels. A
/// new format may need another one.
const TIES: u64 = 86;

/// A property of a row, by its number, and the number of its level.
type Level = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Epilogue {
    Plain,
    Quantized,
    Scaled,
    Vectors,
    Activation,
    Choice,
    Maximum,
    Blocks,
}

impl Epilogue {
    const ALL: [Epilogue; 8] = [
        Epilogue::Plain,
        Epilogue::Quantized,
        Epilogue::Scaled,
        Epilogue::Vectors,
        Epilogue::Activation,
        Epilogue::Choice,
        Epilogue::Maximum,
        Epilogue::Blocks,
    ];
    /// The number of epilogues of other formats than the usual ones: the first of `ALL`.
    const FEW: usize = 2;

    fn name(self) -> &'static str {
        match self {
            Epilogue::Plain => "plain",
            Epilogue::Quantized => "mxfp8",
            Epilogue::Scaled => "scaled",
            Epilogue::Vectors => "vectors",
            Epilogue::Activation => "activation",
            Epilogue::Choice => "choice",
            Epilogue::Maximum => "maximum",
            Epilogue::Blocks => "nvfp4",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Epilogue::Plain => "the rounded sum",
            Epilogue::Quantized => "quantization to MXFP8",
            Epilogue::Scaled => "alpha, C and beta",
            Epilogue::Vectors => "a column as factor, and an added row",
            Epilogue::Activation => "a function, and an added matrix",
            Epilogue::Choice => "a choice by a comparison, and a clamp",
            Epilogue::Maximum => "a second output, the greatest magnitude of each row",
            Epilogue::Blocks => "quantization to NVFP4",
        }
    }

    fn is_quantized(self) -> bool {
        matches!(self, Epilogue::Quantized | Epilogue::Blocks)
    }
}

/// Values of M that share a kernel.
const ROWS: [&[u64]; 5] = [&[0, 1, 2, 7], &[16], &[17, 37, 64], &[91, 130], &[257]];
const OUTPUTS: [ElementType; 3] = [ElementType::F32, ElementType::BF16, ElementType::F16];
const BATCHES: [&str; 3] = ["1", "3", "3, one B"];

/// A fixture: indices of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    format: usize,
    epilogue: Epilogue,
    rows: usize,
    wide: usize,
    depth: usize,
    batch: usize,
    output: usize,
}

impl Row {
    /// Rows with equal values have the same kernel, if N and K have the same tile: a quantized result is written as f32,
    /// which a kernel of its own quantizes.
    fn kernel(&self) -> (usize, Epilogue, usize, usize) {
        if self.epilogue.is_quantized() {
            (self.format, Epilogue::Plain, 0, self.rows)
        } else {
            (self.format, self.epilogue, self.output, self.rows)
        }
    }

    /// A number for the order of rows with equally many new pairs.
    fn mixed(&self, ties: u64) -> u64 {
        let parts =
            [self.format, self.epilogue as usize, self.rows, self.wide, self.depth, self.batch, self.output];
        parts.iter().fold(ties, |mixed, part| {
            (mixed ^ *part as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        })
    }
}

struct Table {
    capabilities: Capabilities,
    formats: Vec<BlockFormat>,
    elements: Vec<ElementType>,
    others: Vec<(ElementType, ElementType)>,
}

impl Table {
    fn new() -> Table {
        let capabilities = backend(TARGET).expect("a known target").capabilities().clone();
        let mut formats: Vec<BlockFormat> = capabilities.formats.iter().map(|rules| rules.format).collect();
        formats.retain(|format| ![BlockFormat::NVFP4, BlockFormat::MXFP4].contains(format));
        let elements: BTreeSet<String> = formats.iter().map(|format| format.a.to_string()).collect();
        let elements = elements.iter().map(|name| ElementType::from_name(name).expect("a name")).collect();
        let mut others: Vec<_> = formats.iter().map(|format| (format.b, format.scale)).collect();
        others.sort_by_key(|(b, scale)| (b.to_string(), scale.to_string()));
        others.dedup();
        Table { capabilities, formats, elements, others }
    }

    /// The formats with every epilogue: W4A16, W4A8 and MXFP8.
    fn is_usual(format: BlockFormat) -> bool {
        let nvfp4 = format == BlockFormat::NVFP4.weight_only(ElementType::BF16);
        let eight = format.a == ElementType::F8E4M3FN
            && [ElementType::F4E2M1FN, ElementType::F8E4M3FN].contains(&format.b);
        nvfp4 || eight
    }

    /// The levels of a row that must occur with each other: A's element, B's format, and the others.
    fn levels(&self, row: &Row) -> Vec<Level> {
        let format = self.formats[row.format];
        let position = |found: Option<usize>| found.expect("a listed format");
        let a = position(self.elements.iter().position(|element| *element == format.a));
        let b = position(self.others.iter().position(|other| *other == (format.b, format.scale)));
        let mut levels = vec![
            (0, a),
            (1, b),
            (2, row.epilogue as usize),
            (3, row.rows),
            (4, row.wide),
            (5, row.depth),
            (6, row.batch),
        ];
        if !row.epilogue.is_quantized() {
            levels.push((7, row.output));
        }
        levels
    }

    fn pairs(&self, row: &Row) -> Vec<(Level, Level)> {
        let levels = self.levels(row);
        let later = |index: usize| &levels[index + 1..];
        let pairs =
            levels.iter().enumerate().flat_map(|(index, one)| later(index).iter().map(|two| (*one, *two)));
        pairs.collect()
    }

    /// Every pair of levels of some row.
    fn wanted(&self) -> BTreeSet<(Level, Level)> {
        self.allowed()
            .iter()
            .flat_map(|(format, epilogue)| self.choices(*format, *epilogue))
            .flat_map(|row| self.pairs(&row))
            .collect()
    }

    /// The formats with their epilogues.
    fn allowed(&self) -> Vec<(usize, Epilogue)> {
        let of = |(index, format): (usize, &BlockFormat)| {
            let count = if Table::is_usual(*format) { Epilogue::ALL.len() } else { Epilogue::FEW };
            Epilogue::ALL[..count].iter().map(move |epilogue| (index, *epilogue))
        };
        self.formats.iter().enumerate().flat_map(of).collect()
    }

    fn choices(&self, format: usize, epilogue: Epilogue) -> Vec<Row> {
        let mut rows = Vec::new();
        let outputs = if epilogue.is_quantized() { 1 } else { OUTPUTS.len() };
        // One B makes the batch one matrix, whose blocked scales would be padded in another way.
        let batches = if self.formats[format].is_weight_only() { BATCHES.len() } else { BATCHES.len() - 1 };
        for number in 0..ROWS.len() * 2 * 3 * batches * outputs {
            let (output, number) = (number % outputs, number / outputs);
            let (batch, number) = (number % batches, number / batches);
            let (depth, number) = (number % 3, number / 3);
            let (wide, rows_index) = (number % 2, number / 2);
            rows.push(Row { format, epilogue, rows: rows_index, wide, depth, batch, output });
        }
        rows
    }

    /// One row for each format and epilogue, then more until every pair of levels is covered. Each row is one with the
    /// most new pairs; of these, one with the fewest new kernels. A quantized f32 has the kernel of the format's plain f32, if M is the same.
    fn rows(&self, ties: u64) -> Vec<Row> {
        let mut left = self.wanted();
        let mut rows: Vec<Row> = Vec::new();
        let allowed = self.allowed();
        let add = |choices: Vec<Row>, rows: &mut Vec<Row>, left: &mut BTreeSet<(Level, Level)>| {
            let new = |row: &Row| self.pairs(row).iter().filter(|pair| left.contains(pair)).count();
            // Of rows with as many new pairs, those with the fewest new kernels. Beside an FP8 B, M = 91 and 130 have two.
            let kernels = |row: &Row| {
                let is_shared = rows.iter().any(|it: &Row| it.kernel() == row.kernel());
                let has_two = row.rows == 3 && self.formats[row.format].b != ElementType::F4E2M1FN;
                if is_shared { 0 } else { 1 + u32::from(has_two) }
            };
            let best =
                choices.into_iter().max_by_key(|row| (new(row), Reverse(kernels(row)), row.mixed(ties)));
            let best = best.expect("a format has rows");
            self.pairs(&best).iter().for_each(|pair| {
                left.remove(pair);
            });
            rows.push(best);
        };
        for (format, epilogue) in &allowed {
            let mut choices = self.choices(*format, *epilogue);
            if *epilogue == Epilogue::Quantized
                && let Some(plain) = rows.last().filter(|plain| plain.output == 0)
            {
                choices.retain(|row| row.rows == plain.rows);
            }
            add(choices, &mut rows, &mut left);
        }
        while !left.is_empty() {
            let every = allowed.iter().flat_map(|(format, epilogue)| self.choices(*format, *epilogue));
            add(every.collect(), &mut rows, &mut left);
        }
        rows
    }

    fn n(&self, row: &Row) -> u64 {
        if row.epilogue.is_quantized() {
            return [32 * 3, 32 * 9][row.wide];
        }
        let rules = &self.capabilities.formats;
        let format = self.formats[row.format];
        let rules = rules.iter().find(|rules| rules.format == format).expect("a listed format");
        let multiple = rules.output(OUTPUTS[row.output]).expect("an output").n_multiple;
        multiple * [19, 264 / multiple + 1][row.wide]
    }

    fn k(&self, row: &Row) -> u64 {
        let format = self.formats[row.format];
        let rules = self.capabilities.formats.iter().find(|rules| rules.format == format);
        let multiple = rules.expect("a listed format").k_multiple.max(u64::from(format.block));
        multiple * [1, 3, (416 / multiple) | 1][row.depth]
    }

    /// The program without directives, with `m` as the extent of the rows.
    fn program(&self, row: &Row, m: &str) -> String {
        let format = self.formats[row.format];
        let (n, k) = (self.n(row), self.k(row));
        let [a_batch, b_batch] = [["", ""], ["3, ", "3, "], ["3, ", ""]][row.batch];
        let out = if row.epilogue.is_quantized() { ElementType::F32 } else { OUTPUTS[row.output] };
        let blocks = k / u64::from(format.block);
        let mut inputs = vec![format!("%a: tensor<[{a_batch}{m}, {k}], {}>", format.a)];
        let mut operands = String::from("%a");
        if !format.is_weight_only() {
            inputs.push(format!("%sfa: tensor<[{a_batch}{m}, {blocks}], {}, blocked>", format.scale));
            operands.push_str(", %sfa");
        }
        inputs.push(format!("param %b: tensor<[{b_batch}{n}, {k}], {}>", format.b));
        inputs.push(format!("param %sfb: tensor<[{b_batch}{n}, {blocks}], {}, blocked>", format.scale));
        operands.push_str(", %b, %sfb");
        let matrix = |element: ElementType| format!("tensor<[{a_batch}{m}, {n}], {element}>");
        let (wide, narrow) = (matrix(ElementType::F32), matrix(out));
        let block = format!("{{block = {}}}", format.block);
        let sum = format!("  %d = scaled_mma {operands} {block} : {wide}\n");
        let round = |value: &str| format!("  %y = convert %{value} : {narrow}\n  return %y\n");
        let body = match row.epilogue {
            Epilogue::Plain => format!("  %y = scaled_mma {operands} {block} : {narrow}\n  return %y\n"),
            Epilogue::Scaled => {
                inputs.extend([
                    "%alpha: tensor<[], f32>".into(),
                    format!("%c: {narrow}"),
                    "%beta: tensor<[], f32>".into(),
                ]);
                format!(
                    "  %y = scaled_mma {operands}, alpha = %alpha, c = %c, beta = %beta {block} : {narrow}\n  return %y\n"
                )
            }
            Epilogue::Vectors => {
                inputs.push(format!("%factor: tensor<[{a_batch}{m}, 1], f32>"));
                inputs.push(format!("param %bias: tensor<[{n}], bf16>"));
                format!("{sum}  %p = mul %d, %factor : {wide}\n  %q = add %p, %bias : {wide}\n{}", round("q"))
            }
            Epilogue::Activation => {
                inputs.push(format!("%residual: {narrow}"));
                format!("{sum}  %p = silu %d : {wide}\n  %q = add %p, %residual : {wide}\n{}", round("q"))
            }
            Epilogue::Choice => {
                inputs.push("%limit: tensor<[], f32>".into());
                let mask = matrix(ElementType::I1);
                format!(
                    "{sum}  %low = compare %d, %limit {{predicate = lt}} : {mask}\n  %n = neg %d : {wide}\n  \
                     %p = select %low, %d, %n : {wide}\n  %q = clamp %p {{max = 24, min = -40}} : {wide}\n{}",
                    round("q")
                )
            }
            Epilogue::Maximum => {
                let axis = if a_batch.is_empty() { 1 } else { 2 };
                format!(
                    "{sum}  %p = relu %d : {wide}\n  %y = convert %p : {narrow}\n  %amax = reduce %p {{axes = [{axis}], \
                     keep_dims = true, kind = amax}} : tensor<[{a_batch}{m}, 1], f32>\n  return %y, %amax\n"
                )
            }
            Epilogue::Quantized | Epilogue::Blocks => {
                let (operand, rule, element, scale, block) = if row.epilogue == Epilogue::Blocks {
                    inputs.push("%g: tensor<[], f32>".into());
                    ("%d, %g", "", ElementType::F4E2M1FN, ElementType::F8E4M3FN, 16)
                } else {
                    ("%d", ", scale_rounding = floor", ElementType::F8E4M3FN, ElementType::F8E8M0FNU, 32)
                };
                format!(
                    "{sum}  %q, %s = block_quantize {operand} {{block = {block}{rule}}} : {}, tensor<[{a_batch}{m}, {}], \
                     {scale}, blocked>\n  return %q, %s\n",
                    matrix(element),
                    n / block
                )
            }
        };
        let inputs: Vec<String> = inputs.iter().map(|input| format!("    {input}")).collect();
        format!("func @main(\n{}\n) {{\n{body}}}\n", inputs.join(",\n"))
    }

    fn fixture(&self, number: usize, row: &Row) -> String {
        let mut text = format!("fir 1\n; {} with {}.\n", self.formats[row.format], row.epilogue.about());
        let ms = ROWS[row.rows];
        let seed = |sample: usize| 1000 + 10 * number + sample;
        for (sample, m) in ms.iter().enumerate() {
            let _ = writeln!(text, "; sample: exact seed={} M={m}", seed(sample));
        }
        let _ = writeln!(text, "; sample: normal seed={} M={}", seed(ms.len()), ms[ms.len() - 1]);
        let _ = write!(text, "; test: partition {TARGET}\n; test: run\n{}", self.program(row, "M"));
        text
    }

    /// The name of a row's file, without its suffix. Names differ, since a second row of a format and an epilogue has
    /// its number in its name.
    fn names(&self, rows: &[Row]) -> Vec<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let name = |row: &Row| {
            let format = self.formats[row.format].to_string().replace(" x ", "_");
            let name = format!("{format}_{}", row.epilogue.name());
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 { name } else { format!("{name}_{count}") }
        };
        rows.iter().map(name).collect()
    }

    fn readme(&self, rows: &[Row], kernels: usize) -> String {
        let mut text = format!(
            "# Operand formats\n\n\
             A pairwise covering table of the formats besides FP4 by FP4: {} programs, {kernels} multiplication kernels on\n\
             `{TARGET}`. For any two columns, every pair of values that a format has occurs in a row; A and B count as two\n\
             columns. W4A16 (`bf16 x nvfp4`), W4A8 (`mxfp8 x mxfp4`) and MXFP8 (`mxfp8`) have every epilogue, other formats\n\
             the plain one and a quantized result.\n\n\
             `FOURFOLD_BLESS=1 cargo test -p fourfold-tests --test suite covering::` writes this file and the programs;\n\
             `tests/tests/suite/covering.rs` has the levels.\n\n\
             | program | format | epilogue | M | N | K | L | result |\n|---|---|---|---|---|---|---|---|\n",
            rows.len()
        );
        for (row, name) in rows.iter().zip(self.names(rows)) {
            let ms: Vec<String> = ROWS[row.rows].iter().map(u64::to_string).collect();
            let result = match row.epilogue {
                Epilogue::Quantized => "MXFP8".to_owned(),
                Epilogue::Blocks => "NVFP4".to_owned(),
                _ => OUTPUTS[row.output].to_string(),
            };
            let _ = writeln!(
                text,
                "| `{name}` | {} | {} | {} | {} | {} | {} | {result} |",
                self.formats[row.format],
                row.epilogue.about(),
                ms.join(", "),
                self.n(row),
                self.k(row),
                BATCHES[row.batch],
            );
        }
        text
    }

    /// The sources of the multiplication kernels that a row runs.
    fn kernels(&self, row: &Row) -> BTreeSet<String> {
        let mut sources = BTreeSet::new();
        for m in ROWS[row.rows].iter().filter(|m| **m > 0) {
            let text = format!("fir 1\n{}", self.program(row, &m.to_string()));
            let (program, _) = load(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
            let planned = backend(TARGET).expect("a known target").plan(program);
            let kernels = planned_kernels(&planned, CutlassVersion::PINNED, false);
            let partition = planned.partition();
            let of_products: BTreeSet<usize> = partition.kernels().map(|(segment, _)| segment).collect();
            assert_eq!(of_products.len(), 1, "a kernel computes the product:\n{text}");
            let products = kernels.into_iter().filter(|kernel| of_products.contains(&kernel.segment));
            sources.extend(products.map(|kernel| kernel.source.text));
        }
        sources
    }
}

#[test]
fn the_formats_have_a_fixture_for_any_two_levels() {
    let table = Table::new();
    let rows = table.rows(TIES);
    let covered: BTreeSet<(Level, Level)> = rows.iter().flat_map(|row| table.pairs(row)).collect();
    assert_eq!(covered, table.wanted());
    let kernels: BTreeSet<String> = rows.iter().flat_map(|row| table.kernels(row)).collect();
    assert!(kernels.len() <= MOST_KERNELS, "{} kernels for {} fixtures", kernels.len(), rows.len());

    let folder = repository().join("fixtures/formats");
    let bless = std::env::var_os("FOURFOLD_BLESS").is_some();
    let mut files = BTreeMap::from([("README.md".to_owned(), table.readme(&rows, kernels.len()))]);
    for (number, (row, name)) in rows.iter().zip(table.names(&rows)).enumerate() {
        files.insert(format!("{name}.fir"), table.fixture(number, row));
    }
    let entries = fs::read_dir(&folder).expect("the folder of the fixtures");
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !files.contains_key(&name) {
            assert!(bless, "fixtures/formats/{name} is not of the table; run FOURFOLD_BLESS=1 cargo test");
            fs::remove_file(entry.path()).expect("fixtures/ can be written");
        }
    }
    for (name, text) in files {
        let file = folder.join(&name);
        let found = fs::read_to_string(&file).unwrap_or_default();
        if !found.starts_with(&text) {
            assert!(bless, "fixtures/formats/{name} is out of date; run FOURFOLD_BLESS=1 cargo test");
            fs::write(&file, text).expect("fixtures/ can be written");
        }
    }
}
