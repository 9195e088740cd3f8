//! The C interface of one kernel, by role: its extents, operands, scalars and outputs, in the order of a call.

use std::fmt::Write;

use fourfold_ir::{ElementType, OperandShape};
use serde::{Serialize, Serializer};

/// Extents, operands, scalars and outputs of one kernel. The library describes them in its metadata under these names,
/// and a host binds values to them by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The names of the extents: `L`, `M`, `N`, `K`.
    pub extents: Vec<&'static str>,
    /// The tensors that the kernel reads.
    pub operands: Vec<Role>,
    /// The f32 numbers that the kernel reads from device memory: `alpha`, `beta`.
    pub scalars: Vec<&'static str>,
    /// The tensors that the kernel writes, codes before their scales.
    pub outputs: Vec<Role>,
}

/// One tensor of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name: `a`, `sfa`, `b`, `sfb`, `c`, `values`, `x0`, or `y0` for an output.
    pub name: String,
    /// The element type.
    pub element: String,
    /// The names of the extents whose product is the number of elements; `None` where only the kernel knows its bytes,
    /// as for padded scales.
    pub extents: Option<Vec<&'static str>>,
    /// A multiple that the address must be, in bytes.
    pub alignment: u32,
}

/// The alignment that TMA and vector loads need.
pub(crate) const WIDE: u32 = 16;

impl Role {
    /// A tensor of these extents.
    pub(crate) fn tensor(name: &str, element: impl ToString, extents: &[&'static str]) -> Role {
        Role {
            name: name.to_owned(),
            element: element.to_string(),
            extents: Some(extents.to_vec()),
            alignment: WIDE,
        }
    }

    /// Scales in the padded layout.
    pub(crate) fn padded_scales(name: &str, element: ElementType) -> Role {
        Role { name: name.to_owned(), element: element.to_string(), extents: None, alignment: WIDE }
    }

    /// The operand of an epilogue at a position, by its shape beside D.
    pub(crate) fn beside_d(position: usize, element: ElementType, shape: OperandShape) -> Role {
        let (extents, alignment): (&[&'static str], u32) = match shape {
            OperandShape::Scalar => (&[], (element.storage_bits() / 8) as u32),
            OperandShape::Row => (&["N"], WIDE),
            OperandShape::Column => (&["L", "M"], WIDE),
            OperandShape::Matrix => (&["L", "M", "N"], WIDE),
        };
        Role { alignment, ..Role::tensor(&format!("x{position}"), element, extents) }
    }

    /// The field of the kernel's `Pointers`: a member of its own, or an element of `operands`.
    fn field(&self) -> String {
        match self.number() {
            Some(number) => format!("operands[{number}]"),
            None => self.name.clone(),
        }
    }

    fn number(&self) -> Option<usize> {
        self.name.strip_prefix('x')?.parse().ok()
    }
}

impl Interface {
    /// The description in a library's metadata: members of a JSON object, escaped for a C string.
    fn metadata(&self) -> String {
        let names =
            |names: &[&str]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
        let role = |role: &Role| {
            let mut text = format!("{{\"role\":\"{}\",\"element\":\"{}\"", role.name, role.element);
            if let Some(extents) = &role.extents {
                let _ = write!(text, ",\"extents\":[{}]", names(extents));
            }
            text + "}"
        };
        let roles = |roles: &[Role]| roles.iter().map(role).collect::<Vec<_>>().join(",");
        let text = format!(
            "\"extents\":[{}],\"operands\":[{}],\"scalars\":[{}],\"outputs\":[{}]",
            names(&self.extents),
            roles(&self.operands),
            names(&self.scalars),
            roles(&self.outputs)
        );
        text.replace('"', "\\\"")
    }
}

/// A template's view: what it loops over, and the texts that it prints.
#[derive(Serialize)]
struct View<'a> {
    extents: &'a [&'static str],
    operands: Vec<RoleView<'a>>,
    scalars: &'a [&'static str],
    outputs: Vec<RoleView<'a>>,
    /// Members of `Pointers`; those that a kernel lacks are null.
    named_operands: Vec<&'a str>,
    named_scalars: Vec<&'a str>,
    numbered_operands: usize,
    metadata: String,
}

#[derive(Serialize)]
struct RoleView<'a> {
    role: &'a str,
    alignment: u32,
    field: String,
}

fn views(roles: &[Role]) -> Vec<RoleView<'_>> {
    roles
        .iter()
        .map(|role| RoleView { role: &role.name, alignment: role.alignment, field: role.field() })
        .collect()
}

/// The members of `Pointers` in every kernel that multiplies: host code shared by all of them names each.
const PRODUCT_OPERANDS: [&str; 5] = ["a", "sfa", "b", "sfb", "c"];
const PRODUCT_SCALARS: [&str; 2] = ["alpha", "beta"];

impl Serialize for Interface {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let multiplies = self.extents.contains(&"N");
        let named: Vec<&str> =
            self.operands.iter().filter(|role| role.number().is_none()).map(|role| &*role.name).collect();
        View {
            extents: &self.extents,
            operands: views(&self.operands),
            scalars: &self.scalars,
            outputs: views(&self.outputs),
            named_operands: if multiplies { PRODUCT_OPERANDS.to_vec() } else { named },
            named_scalars: if multiplies { PRODUCT_SCALARS.to_vec() } else { self.scalars.clone() },
            numbered_operands: self.operands.iter().filter(|role| role.number().is_some()).count(),
            metadata: self.metadata(),
        }
        .serialize(serializer)
    }
}
