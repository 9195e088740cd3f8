//! Parses parameter values.

use fourfold_codegen::{Target, capabilities};
use fourfold_ir::{BlockFormat, ElementType};

use super::super::{Broken, Parameter};
use crate::parameters::{Parameters, Value};

/// Parses values one by one, and collects the errors as broken rules.
pub(super) struct Values<'a> {
    parameters: &'a Parameters,
    known: &'static [Parameter],
    pub(super) broken: Vec<Broken>,
}

impl<'a> Values<'a> {
    pub(super) fn new(parameters: &'a Parameters, known: &'static [Parameter]) -> Values<'a> {
        let mut values = Values { parameters, known, broken: Vec::new() };
        for (name, value) in &parameters.0 {
            if known.iter().all(|parameter| parameter.name != name) {
                let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
                values.broken.push(Broken {
                    rule: "parameter".to_owned(),
                    demands: format!("parameters are {}", names.join(", ")),
                    found: format!("{name}={value}"),
                    prevents: "sweeping a parameter that affects no kernel".to_owned(),
                    refused: false,
                });
            }
        }
        values
    }

    /// The value of a parameter as text, or its default.
    pub(super) fn text(&self, name: &str) -> String {
        let default = || self.known.iter().find(|known| known.name == name).map_or("", |known| known.default);
        self.parameters.get(name).map_or_else(|| default().to_owned(), Value::to_string)
    }

    /// Parses a value with `read`. A value that `read` rejects is recorded as a broken rule.
    pub(super) fn read<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name);
        let value = read(&text);
        if value.is_none() {
            let values = self.known.iter().find(|known| known.name == name).map_or("", |known| known.values);
            self.broken.push(Broken {
                rule: "value".to_owned(),
                demands: format!("{name} is {values}"),
                found: format!("{name}={text}"),
                prevents: "an unintended kernel".to_owned(),
                refused: false,
            });
        }
        value
    }
}

/// Parses extents such as `128x64`.
pub(super) fn extents<const COUNT: usize>(text: &str) -> Option<[u32; COUNT]> {
    let numbers: Vec<u32> = text.split('x').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// Finds a format of the target by its name.
pub(super) fn format(text: &str, target: &Target) -> Option<BlockFormat> {
    let formats = capabilities(target.name)?.formats.into_iter().map(|rules| rules.format);
    formats.into_iter().find(|format| format.to_string() == text)
}

pub(super) fn output(text: &str) -> Option<ElementType> {
    [ElementType::F16, ElementType::BF16, ElementType::F32]
        .into_iter()
        .find(|element| element.to_string() == text)
}

pub(super) const FORMAT: Parameter = Parameter {
    name: "format",
    about: "formats of A and B",
    values: "a format of the target: one name such as nvfp4, or two such as bf16 x mxfp4 (`fourfold doctor` lists them)",
    default: "nvfp4",
};

pub(super) const D: Parameter =
    Parameter { name: "d", about: "element type of D", values: "f16, bf16 or f32", default: "bf16" };
