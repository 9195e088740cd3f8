//! What a kernel of this type is made from, and how it is read from parameters.

use fourfold_codegen::block_quantize::{Configuration, Format, Padding};
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};

use crate::generator::{Broken, Parameter};
use crate::parameters::Parameters;

/// The parameters, in the order in which people read them.
pub(super) static PARAMETERS: [Parameter; 8] = [
    Parameter { name: "input", about: "the type of the values", values: "bf16, f16, f32", default: "bf16" },
    Parameter {
        name: "format",
        about: "what they become, and for MX how scales are rounded",
        values: "nvfp4, mxfp4_floor, mxfp4_ceil",
        default: "nvfp4",
    },
    Parameter {
        name: "layout",
        about: "how the scales lie: 128x4 tiles, padded, or row by row",
        values: "blocked, linear",
        default: "blocked",
    },
    Parameter {
        name: "padding",
        about: "who writes the zeros around blocked scales: the kernel, or a memset before it",
        values: "kernel, memset",
        default: "kernel",
    },
    Parameter {
        name: "threads",
        about: "threads of a block",
        values: "64, 128, 256, 512, 1024",
        default: "256",
    },
    Parameter {
        name: "values",
        about: "consecutive values of a thread; others have the rest of a block of values",
        values: "4, 8, 16, 32",
        default: "8",
    },
    Parameter {
        name: "turns",
        about: "how many times as many values a thread has at once, each time of another block of values",
        values: "1, 2, 4, 8",
        default: "2",
    },
    Parameter {
        name: "rows",
        about: "rows that the threads of a block share out",
        values: "1, 2, 4, 8, 16, 32",
        default: "4",
    },
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
                prevents: "a sweep over something that no kernel depends on".to_owned(),
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
    /// What a parameter's word stands for. Where it stands for nothing that is a rule broken, and the first stands in.
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
                    prevents: "a source that says nothing, or work that no threads divide evenly".to_owned(),
                    refused: false,
                });
                words[0].1
            }
        }
    }
}
