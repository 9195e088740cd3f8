//! Extracts a segment as a program of its own.

use std::collections::HashMap;

use fourfold_ir::{Module, Program, SymbolValues, Value, text};
use fourfold_scheduler::Segment;

use crate::header::Header;

/// Returns the text of a program that consists of one segment. Its inputs are the values the segment reads, its
/// outputs those it produces; a segment with unused results returns those of its last op. The comments above it
/// name `data` and repeat the directives of `header` that concern its values.
pub(crate) fn cut_out(
    program: &Program,
    segment: &Segment,
    header: &Header,
    contract: bool,
    data: &str,
) -> String {
    let module = module_of(program.module(), segment);
    let printed = text::print(&module);
    let version = format!("fir {}\n", text::VERSION);
    let body = printed.strip_prefix(&version).unwrap_or(&printed);
    let mut lines = vec![format!("; data: {data}")];
    lines.extend(header.tolerance.map(|tolerance| format!("; tolerance: {tolerance:e}")));
    for (name, tolerance) in &header.tolerances {
        if module.values.values().any(|value| value.name == *name) {
            lines.push(format!("; tolerance: {name} {tolerance:e}"));
        }
    }
    if contract {
        lines.push("; allow: contract".to_owned());
    }
    format!("{version}{}\n{body}", lines.join("\n"))
}

/// Returns the extents of the symbols that a program has, by name.
pub(crate) fn extents_of(module: &Module, known: &Module, symbols: &SymbolValues) -> Vec<(String, u64)> {
    let extent = |name: &str| {
        let (symbol, _) = known.symbols.iter().find(|(_, known)| known.as_str() == name)?;
        symbols.get(symbol)
    };
    module.symbols.values().filter_map(|name| Some((name.clone(), extent(name)?))).collect()
}

fn module_of(module: &Module, segment: &Segment) -> Module {
    let mut cut = Module::new(module.name.clone());
    // The new module keeps every symbol; those without a use are not printed.
    cut.symbols = module.symbols.clone();
    let mut moved: HashMap<Value, Value> = HashMap::new();
    for &input in &segment.inputs {
        let value = cut.push_input(module.name_of(input), module.ty(input).clone(), module.is_param(input));
        moved.insert(input, value);
    }
    for &op in &segment.ops {
        let operation = &module.ops[op];
        let operands = operation.operands.iter().map(|operand| moved[operand]).collect();
        let named = |value: &Value| (module.name_of(*value).to_owned(), module.ty(*value).clone());
        let copy =
            cut.push_op(operation.kind.clone(), operands, operation.results.iter().map(named).collect());
        moved.extend(operation.results.iter().copied().zip(cut.ops[copy].results.iter().copied()));
    }
    let last = segment.ops.last().map_or(&[][..], |op| &module.ops[*op].results);
    let outputs = if segment.outputs.is_empty() { last } else { &segment.outputs };
    cut.outputs = outputs.iter().map(|output| moved[output]).collect();
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourfold::{Backend, Options};

    const SOURCE: &str = "fir 1
; tolerance: 1e-4
; tolerance: mean 1e-6
; tolerance: d 1e-3
func @mixed(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[160, 96], f4E2M1FN>, param %sfb: tensor<[160, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 160], f4E2M1FN>, param %sfw: tensor<[72, 10], f8E4M3FN, blocked>, %z: tensor<[Q, 4], f32>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 160], f32>
  %mean = reduce %h {axes = [1], keep_dims = true, kind = mean} : tensor<[M, 1], f32>
  %centred = sub %h, %mean : tensor<[M, 160], f32>
  %q, %sq = block_quantize %centred, %g {block = 16} : tensor<[M, 160], f4E2M1FN>, tensor<[M, 10], f8E4M3FN, blocked>
  %d = scaled_mma %q, %sq, %w, %sfw {block = 16} : tensor<[M, 72], f32>
  %unused = neg %z : tensor<[Q, 4], f32>
  return %d, %mean
}
";

    #[test]
    fn every_segment_is_a_program_with_what_it_needs_and_gives() {
        let (program, _) = fourfold_ir::load(SOURCE).expect("the program is valid");
        let header = crate::header::read(SOURCE, &program).expect("its comments are");
        let backend =
            Backend::new(&Options::default().target("sm_120a").device(fourfold::DeviceChoice::None));
        let planned = backend.expect("there is the target").plan(program);
        let segments = &planned.partition().segments;
        assert_eq!(segments.len(), 4, "a kernel, what nobody uses, the row kernel between, a kernel");
        let cuts: Vec<_> = segments
            .iter()
            .map(|segment| {
                let source = cut_out(planned.program(), segment, &header, true, "data.safetensors");
                let (cut, _) =
                    fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{source}{errors:?}"));
                let header = crate::header::read(&source, &cut).expect("its comments are well-formed");
                assert_eq!(header.data, ["data.safetensors"]);
                assert_eq!((header.tolerance, header.allow.contract), (Some(1e-4), true));
                (cut, header)
            })
            .collect();
        let names = |module: &Module, values: &[Value]| -> Vec<String> {
            values.iter().map(|value| module.name_of(*value).to_owned()).collect()
        };
        for (segment, (cut, _)) in segments.iter().zip(&cuts) {
            let module = cut.module();
            assert_eq!(names(module, &module.inputs), names(planned.program().module(), &segment.inputs));
            assert_eq!(module.ops.len(), segment.ops.len());
        }
        assert_eq!(names(cuts[1].0.module(), &cuts[1].0.module().outputs), ["unused"]);
        let first = cuts[0].0.module();
        assert_eq!(names(first, &first.outputs), ["h"]);
        assert_eq!(text::print(first).matches("param ").count(), 2);
        assert!(!text::print(first).contains("[Q"), "what it does not need is not there");
        assert_eq!(cuts[2].1.tolerances.keys().collect::<Vec<_>>(), ["mean"]);
        assert!(cuts[1].1.tolerances.is_empty(), "no bound is stated for it");
        assert_eq!(cuts[3].1.tolerances.keys().collect::<Vec<_>>(), ["d"]);

        let mut symbols = SymbolValues::default();
        let known = planned.program().module();
        for (symbol, name) in known.symbols.iter() {
            symbols.set(symbol, if name == "M" { 37 } else { 5 });
        }
        assert_eq!(extents_of(first, known, &symbols), [("M".to_owned(), 37)]);
    }
}
