//! Writes a draft as a module: inputs unchanged, ops in an order that respects operands and stays close to
//! the original's.

use fourfold_ir::{Arena, Entity, Module, Op, TensorType, Value, ValueData, ValueDef};

use super::draft::Draft;

/// A module, with the origins of its ops and values.
pub(crate) struct Rebuilt {
    pub(crate) module: Module,
    /// By op of the module: the op of the draft.
    pub(crate) ops: Vec<Op>,
    /// By value of the draft.
    pub(crate) values: Vec<Option<Value>>,
}

/// Rebuilds the module; `None` for a cyclic draft, which no rule creates. Moves names and types out of the
/// draft.
pub(crate) fn rebuild(draft: &mut Draft) -> Option<Rebuilt> {
    let ops = order(draft)?;
    let from = &mut draft.module;
    let mut module = Module::new(from.name.clone());
    module.symbols = from.symbols.clone();
    let mut values = vec![None; from.values.len()];
    for input in &from.inputs {
        let ValueData { name, ty, def } = take(&mut from.values, *input);
        let param = matches!(def, ValueDef::Input { param: true, .. });
        values[input.index()] = Some(module.push_input(name, ty, param));
    }
    for op in &ops {
        let operation = &from.ops[*op];
        let operands = operation.operands.iter().map(|operand| values[operand.index()]);
        let operands = operands.collect::<Option<Vec<Value>>>()?;
        let results = operation.results.iter().map(|value| {
            let ValueData { name, ty, .. } = take(&mut from.values, *value);
            (name, ty)
        });
        let made = module.push_op(operation.kind.clone(), operands, results.collect());
        for (value, made) in operation.results.iter().zip(&module.ops[made].results) {
            values[value.index()] = Some(*made);
        }
    }
    module.outputs = from.outputs.iter().map(|output| values[output.index()]).collect::<Option<_>>()?;
    Some(Rebuilt { module, ops, values })
}

/// Moves the data of a value out of the draft.
fn take(values: &mut Arena<Value, ValueData>, value: Value) -> ValueData {
    let data = &mut values[value];
    let empty = TensorType::new(Vec::new(), data.ty.element);
    ValueData {
        name: std::mem::take(&mut data.name),
        ty: std::mem::replace(&mut data.ty, empty),
        def: data.def,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Visit {
    Unseen,
    Open,
    Done,
}

fn order(draft: &Draft) -> Option<Vec<Op>> {
    let module = &draft.module;
    let mut alive: Vec<Op> = module.ops.keys().filter(|op| !draft.note(*op).gone).collect();
    alive.sort_by_key(|op| (draft.note(*op).position, *op));
    let mut visits = vec![Visit::Unseen; module.ops.len()];
    let mut order = Vec::with_capacity(alive.len());
    // An explicit stack, because a chain may be as long as the program.
    let mut open: Vec<Op> = Vec::new();
    for op in alive {
        open.push(op);
        while let Some(&op) = open.last() {
            match visits[op.index()] {
                Visit::Done => {
                    open.pop();
                }
                Visit::Unseen => {
                    visits[op.index()] = Visit::Open;
                    for operand in &module.ops[op].operands {
                        let Some(producer) = module.defining_op(*operand) else { continue };
                        match visits[producer.index()] {
                            Visit::Unseen => open.push(producer),
                            Visit::Open => return None,
                            Visit::Done => {}
                        }
                    }
                }
                Visit::Open => {
                    visits[op.index()] = Visit::Done;
                    order.push(op);
                    open.pop();
                }
            }
        }
    }
    Some(order)
}
