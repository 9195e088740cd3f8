//! The program of a product whose A is quantized for some M only.

use std::fmt::Write;

use super::{Format, Quantized, Writer, dynamic_scale, shape};
use crate::error::Error;

/// The numbers that a weight in NVFP4 is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// 16-bit numbers as they are.
    W4A16,
    /// NVFP4.
    W4A4,
}

impl Form {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Form::W4A16 => "W4A16",
            Form::W4A4 => "W4A4",
        }
    }

    /// The other form.
    pub fn other(self) -> Form {
        match self {
            Form::W4A16 => Form::W4A4,
            Form::W4A4 => Form::W4A16,
        }
    }
}

/// The forms by ascending M. They alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forms {
    /// The form of the fewest rows.
    pub first: Form,
    /// The largest M of each form but the last.
    pub ends: Vec<u32>,
}

impl Forms {
    /// The form of each range of M.
    pub fn all(&self) -> Vec<Form> {
        let of = |at: usize| if at.is_multiple_of(2) { self.first } else { self.first.other() };
        (0..=self.ends.len()).map(of).collect()
    }
}

/// A product of `[M, K]` numbers and a weight in NVFP4 with blocked scales.
#[derive(Debug)]
pub struct ScaledMmByM {
    /// The 16-bit type of A.
    pub element: &'static str,
    /// Columns of the result.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// A per-tensor scale of A is given, and its product with that of the weight. Without it, each call has its own.
    pub is_static: bool,
    /// The type of a bias of N elements.
    pub bias: Option<&'static str>,
    /// The forms.
    pub forms: Forms,
    /// The result type.
    pub out: &'static str,
}

impl ScaledMmByM {
    /// The text. Inputs: a, b, sfb, scale, g and alpha if static, bias.
    pub fn program(&self) -> Result<String, Error> {
        let format = Format::named("nvfp4")?;
        let mut writer = Writer::default();
        let rows = ["M".to_owned()];
        let columns = [self.n.to_string()];
        writer.input("a", &shape(&rows, self.k), self.element);
        writer.input("b", &shape(&columns, self.k), format.codes);
        writer.input("sfb", &shape(&columns, self.k / format.block), &format!("{}, blocked", format.scale));
        writer.input("scale", "[1]", "f32");
        if self.is_static {
            writer.input("g", "[1]", "f32");
            writer.input("alpha", "[1]", "f32");
        }
        if let Some(element) = self.bias {
            writer.input("bias", &format!("[{}]", self.n), element);
        }
        let forms = self.forms.all();
        if forms.contains(&Form::W4A16) {
            self.product(&mut writer, Form::W4A16, "%a, %b, %sfb, alpha = %scale");
        }
        if forms.contains(&Form::W4A4) {
            if !self.is_static {
                dynamic_scale(&mut writer, "a", &rows, self.element);
                writer.op("alpha", "mul %g, %scale", "[1]", "f32");
            }
            // The formulas are those of the ops `quantize` with a scale and `quantize_dynamic`.
            let rounding = if self.is_static { "torchao" } else { "floor" }.to_owned();
            let quantized = Quantized { format, swizzled: true, has_scale: true, rounding };
            let codes = quantized.write(&mut writer, "a", &rows, self.k)?;
            self.product(&mut writer, Form::W4A4, &format!("{codes}, %b, %sfb, alpha = %alpha"));
        }
        let mut results = String::new();
        for form in &forms {
            let _ = write!(results, "{}%{}", if results.is_empty() { "" } else { ", " }, form.name());
        }
        if forms.len() > 1 {
            let ends: Vec<String> = self.forms.ends.iter().map(ToString::to_string).collect();
            let choose = format!("choose {results} {{axis = 0, ends = [{}]}}", ends.join(", "));
            writer.op("y", &choose, &shape(&rows, self.n), self.out);
            results = "%y".to_owned();
        }
        Ok(writer.finish("scaled_mm_by_m", &results))
    }

    /// Writes a product with its bias. Its value has the name of the form.
    fn product(&self, writer: &mut Writer, form: Form, operands: &str) {
        let (d, name) = (shape(&["M".to_owned()], self.n), form.name());
        let product = format!("scaled_mma {operands} {{block = 16}}");
        let mut steps = vec![(product, "f32")];
        if self.bias.is_some() {
            steps.push(("add %LAST, %bias".to_owned(), "f32"));
        }
        if self.out != "f32" {
            steps.push(("convert %LAST".to_owned(), self.out));
        }
        let last = steps.len() - 1;
        let named = |at: usize| if at == last { name.to_owned() } else { format!("{name}.{at}") };
        for (at, (op, element)) in steps.iter().enumerate() {
            let op = if at == 0 { op.clone() } else { op.replace("LAST", &named(at - 1)) };
            writer.op(&named(at), &op, &d, element);
        }
    }
}
