//! The settings of a block-quantization kernel, and their parsing from parameters.

use fourfold_codegen::block_quantize::{Configuration, Format, Padding};
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};

use crate::generator::{Broken, Parameter};
use crate::parameters::Parameters;

/// The parameters, in display order.
pub(super) static PARAMETERS: [Parameter; 8] = [
    Parameter { name: "input", about: "input element type", values: "bf16, f16, f32", default: "bf16" },
    Parameter {
        name: "format",
        about: "output format and, for MX, rounding of scales",
        values: "nvfp4, mxfp4_floor, mxfp4_ceil",
        default: "nvfp4",
    },
    Parameter {
        name: "layout",
        about: "layout of the scales: padded 128x4 tiles, or row-major",
        values: "blocked, linear",
        default: "blocked",
    },
    Parameter {
        name: "padding",
        about: "writer of the zero padding of blocked scales: the kernel, or a memset before the kernel",
        values: "kernel, memset",
        default: "kernel",
    },
    Parameter {
        name: "threads",
        about: "threads per CTA",
        values: "64, 128, 256, 512, 1024",
        default: "256",
    },
    Parameter {
        name: "values",
        about: "consecutive values per thread, at most one quantization block",
        values: "4, 8, 16, 32",
        default: "8",
    },
    Parameter {
        name: "turns",
        about: "groups of `values` that a thread holds at once, each from a different quantization block",
        values: "1, 2, 4, 8",
        default: "2",
    },
    Parameter { name: "rows", about: "rows per CTA", values: "1, 2, 4, 8, 16, 32", default: "4" },
];

/// The configuration of a combination; a parameter without a value has its default.
pub(super) fn read(parameters: &Parameters) -> Result<Configuration, Vec<Broken>> {
    let mut reader = Reader { parameters, broken: Vec::new() };
    let settings = Configuration {
        input: reader.word(
            "input",
            &[("bf16", ElementType::BF16), ("f16", ElementType::F16), ("f32", ElementType::F32)],
        ),
        format: reader.word(
            "format",
            &[
                ("nvfp4", Format::Nvfp4),
                ("mxfp4_floor", Format::Mx(ElementType::F4E2M1FN, ScaleRounding::Floor)),
                ("mxfp4_ceil", Format::Mx(ElementType::F4E2M1FN, ScaleRounding::Ceil)),
            ],
        ),
        layout: reader.word("layout", &[("blocked", ScaleLayout::Blocked), ("linear", ScaleLayout::Linear)]),
        padding: reader.word("padding", &[("kernel", Padding::Kernel), ("memset", Padding::Memset)]),
        threads: reader
            .word("threads", &[("64", 64), ("128", 128), ("256", 256), ("512", 512), ("1024", 1024)]),
        values: reader.word("values", &[("4", 4), ("8", 8), ("16", 16), ("32", 32)]),
        turns: reader.word("turns", &[("1", 1), ("2", 2), ("4", 4), ("8", 8)]),
        rows: reader.word("rows", &[("1", 1), ("2", 2), ("4", 4), ("8", 8), ("16", 16), ("32", 32)]),
    };
    for name in parameters.0.keys() {
        if !PARAMETERS.iter().any(|parameter| parameter.name == name) {
            let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
            reader.broken.push(Broken {
                rule: "parameters".to_owned(),
                demands: format!("the parameters are {}", names.join(", ")),
                found: format!("`{name}`"),
                prevents: "sweeping a parameter that affects no kernel".to_owned(),
                refused: false,
            });
        }
    }
    if reader.broken.is_empty() { Ok(settings) } else { Err(reader.broken) }
}

struct Reader<'a> {
    parameters: &'a Parameters,
    broken: Vec<Broken>,
}

impl Reader<'_> {
    /// The value of a parameter's word. An unknown word is recorded as a broken rule, and the first value is returned.
    fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> T {
        let default = PARAMETERS.iter().find(|parameter| parameter.name == name).map_or("", |it| it.default);
        let word = self.parameters.get(name).map_or_else(|| default.to_owned(), ToString::to_string);
        match words.iter().find(|(known, _)| *known == word) {
            Some((_, value)) => *value,
            None => {
                let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
                self.broken.push(Broken {
                    rule: "values".to_owned(),
                    demands: format!("{name} is one of {}", known.join(", ")),
                    found: word,
                    prevents: "source that does not compile, or an uneven division of work among threads"
                        .to_owned(),
                    refused: false,
                });
                words[0].1
            }
        }
    }
}
