//! The statements that read operands.

use fourfold_ir::{ElementType, ScaleLayout};
use fourfold_scheduler::{RowOperand, RowProgram, RowShape};
use serde::Serialize;

use super::values::{bytes, declare, is_packed, number_type};

/// An operand that is read per element or per block of elements.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Operand {
    pub(super) index: usize,
    pub(super) bits: usize,
    /// The elements per scale; 0 for other operands.
    pub(super) block: u32,
    /// True if the operand is copied to shared memory with the row, after so many bytes per thread and turn.
    pub(super) is_stored: bool,
    pub(super) stored_before: u32,
    /// The bytes before the elements at `column`.
    pub(super) at_column: String,
    /// The statement that reads a pair of elements from the words `wN`, or the scale of a pair from `xNv`.
    pub(super) read: String,
    /// The statement that loads the elements at `at` and `other` one by one.
    pub(super) load_pair: String,
    /// The expression that loads scale `sub` after that of `column`.
    pub(super) load_scale: String,
}

/// The operands of a program by the way in which they are read.
#[derive(Debug, Default, Serialize)]
pub(super) struct Operands {
    pub(super) matrices: Vec<Operand>,
    pub(super) vectors: Vec<Operand>,
    pub(super) scales: Vec<Operand>,
    /// Statements per row: the index of its first element in matrices with fewer rows.
    pub(super) starts: Vec<String>,
    /// The loads of columns, per row.
    pub(super) columns: Vec<String>,
    /// Type, name and value of scalars, which all rows share.
    pub(super) shared: Vec<[String; 3]>,
}

/// The operands of a program as device code.
pub(super) fn operands(program: &RowProgram) -> Operands {
    let mut all = Operands::default();
    let mut repeats = 0;
    for (index, operand) in program.operands.iter().enumerate() {
        let repeat = operand.repeats.then(|| {
            repeats += 1;
            format!("repeated(p, {}, index)", repeats - 1)
        });
        let (element, shape) = (operand.element, operand.shape);
        let start = match (&repeat, shape) {
            (Some(row), RowShape::Matrix | RowShape::Scales { .. }) => {
                all.starts.push(format!("int64_t const start{index} = {row} * p.columns;"));
                format!("start{index}")
            }
            _ => "start".to_owned(),
        };
        match shape {
            RowShape::Matrix => all.matrices.push(elements(index, operand, &format!("{start} + "))),
            RowShape::Row => all.vectors.push(elements(index, operand, "")),
            RowShape::Scales { block, layout } => {
                let at = match (layout, repeat) {
                    // A row may end within a thread's elements.
                    (ScaleLayout::Linear, _) if block == 1 => {
                        let last = "static_cast<uint32_t>(p.columns - 1)";
                        let own = "static_cast<uint32_t>(column + sub)";
                        format!("{start} + ({own} < {last} ? {own} : {last})")
                    }
                    (ScaleLayout::Linear, _) => {
                        format!("(({start} + column) >> {}) + sub", block.trailing_zeros())
                    }
                    (ScaleLayout::Blocked, None) => {
                        format!("scale_place<{block}>(p, row.batch(p), row.row(p), column / {block}u + sub)")
                    }
                    // The matrices of the operand have as many rows as the kernel's.
                    (ScaleLayout::Blocked, Some(row)) => format!(
                        "scale_place<{block}>(p, static_cast<uint32_t>({row} / p.rows), \
                         static_cast<uint32_t>({row} % p.rows), column / {block}u + sub)"
                    ),
                };
                all.scales.push(Operand {
                    index,
                    block,
                    read: match block {
                        1 => format!("float const x{index}a = x{index}v[2 * pair], x{index}b = x{index}v[2 * pair + 1];"),
                        _ => format!("float const x{index} = x{index}v[2 * pair / {block}];"),
                    },
                    load_scale: format!("load_scale_{element}(p.operands[{index}], {at})"),
                    ..Operand::default()
                });
            }
            RowShape::Column => {
                let row = repeat.unwrap_or_else(|| "index".to_owned());
                let ty = number_type(element);
                all.columns.push(format!(
                    "{ty} const x{index} = is_inside ? load_{element}(p.operands[{index}], {row}) : {ty}{{}};"
                ));
            }
            RowShape::Scalar => {
                let load = format!("load_{element}(p.operands[{index}], 0)");
                all.shared.push([number_type(element).to_owned(), format!("x{index}"), load]);
            }
        }
    }
    all
}

fn elements(index: usize, operand: &RowOperand, start: &str) -> Operand {
    let element = operand.element;
    let bits = element.storage_bits();
    let place = |column: &str| match start {
        "" => format!("static_cast<int64_t>({column})"),
        _ => format!("({start}{column})"),
    };
    let load = |column: &str| format!("load_{element}(p.operands[{index}], {})", place(column));
    let name = format!("x{index}");
    let load_pair = match is_packed(element) {
        true => format!("uint32_t const {name} = pack_{element}({}, {});", load("at"), load("other")),
        false => declare(&name, element, [load("at"), load("other")]),
    };
    Operand {
        index,
        bits,
        at_column: bytes(&place("column"), bits),
        read: read(index, element),
        load_pair,
        ..Operand::default()
    }
}

/// The statement that reads a pair of elements from words in memory order.
fn read(index: usize, element: ElementType) -> String {
    let (name, words) = (format!("x{index}"), format!("w{index}.words"));
    match element.storage_bits() {
        16 => format!("uint32_t const {name} = {words}[pair];"),
        32 => {
            let number = |half: &str| match element {
                ElementType::I32 => format!("static_cast<int32_t>({words}[2 * pair{half}])"),
                _ => format!("float_of({words}[2 * pair{half}])"),
            };
            declare(&name, element, [number(""), number(" + 1")])
        }
        bits => {
            let pair = format!("c{index}");
            let numbers = declare(
                &name,
                element,
                [format!("low_{element}({pair})"), format!("low_{element}({pair} >> {bits})")],
            );
            let codes = match (16 / bits, 2 * bits) {
                _ if element.is_fp6() => format!("fp6_pair({words}, pair)"),
                (per_word, width) => format!("{words}[pair / {per_word}] >> (pair % {per_word} * {width})"),
            };
            format!("uint32_t const {pair} = {codes}; {numbers}")
        }
    }
}
