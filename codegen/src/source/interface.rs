//! The C interface of one kernel: its extents, operands, scalars and outputs by role, in the order of a call.

use std::fmt::Write;

use fourfold_ir::{ElementType, OperandShape};
use serde::{Serialize, Serializer};

/// The extents, operands, scalars and outputs of one kernel. The library's metadata describes them under
/// these names, and a host binds values to them by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The names of the extents: `L`, `M`, `N`, `K`.
    pub extents: Vec<&'static str>,
    /// The tensors that the kernel reads.
    pub operands: Vec<Role>,
    /// The f32 scalars that the kernel reads from device memory: `alpha`, `beta`.
    pub scalars: Vec<&'static str>,
    /// The tensors that the kernel writes, codes before their scales.
    pub outputs: Vec<Role>,
}

/// A tensor in the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name: `a`, `sfa`, `b`, `sfb`, `c`, `values`, `x0`, or `y0` for an output.
    pub name: String,
    /// The element type.
    pub element: String,
    /// The extents whose product is the number of elements; `None` if only the kernel knows the size in
    /// bytes, as for padded scales.
    pub extents: Option<Vec<&'static str>>,
    /// The alignment of the address, in bytes.
    pub alignment: u32,
}

/// The alignment in bytes for TMA and vector loads.
pub(crate) const WIDE: u32 = 16;

impl Role {
    /// A tensor with these extents.
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

    /// An epilogue operand, by position, broadcast shape, and the extent of D's columns.
    pub(crate) fn beside_d(
        position: usize,
        element: ElementType,
        shape: OperandShape,
        columns: &'static str,
    ) -> Role {
        let d = ["L", "M", columns];
        let (extents, alignment): (&[&'static str], u32) = match shape {
            OperandShape::Scalar => (&[], (element.storage_bits() / 8) as u32),
            OperandShape::Row => (&d[2..], WIDE),
            OperandShape::Column => (&d[..2], WIDE),
            OperandShape::Matrix => (&d, WIDE),
        };
        Role { alignment, ..Role::tensor(&format!("x{position}"), element, extents) }
    }

    /// The field of the kernel's `Pointers`: a named member, or an element of `operands`.
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
    /// The interface as JSON for a library's metadata, escaped for a C string.
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

/// The interface as templates see it.
#[derive(Serialize)]
struct View<'a> {
    extents: &'a [&'static str],
    operands: Vec<RoleView<'a>>,
    scalars: &'a [&'static str],
    outputs: Vec<RoleView<'a>>,
    /// The members of `Pointers`; absent ones are null.
    named_operands: Vec<&'a str>,
    named_scalars: Vec<&'a str>,
    numbered_operands: usize,
    /// True if a row kernel writes a tensor that has elements even if there are no rows.
    writes_empty: bool,
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

/// The members of `Pointers` in every kernel that multiplies. Shared host code names each of them.
const PRODUCT_OPERANDS: [&str; 5] = ["a", "sfa", "b", "sfb", "c"];
/// The members in kernels of groups of rows: the ends of the groups, and an alpha for each.
const OF_GROUPS: [&str; 2] = ["offsets", "alphas"];
/// The member in kernels whose scales of A have whole tiles for each group.
const SFA_ENDS: &str = "sfa_ends";
const PRODUCT_SCALARS: [&str; 2] = ["alpha", "beta"];

impl Serialize for Interface {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let multiplies = self.extents.contains(&"N");
        let is_shared = |role: &Role| role.extents.as_ref().is_some_and(|extents| !extents.contains(&"L"));
        let named: Vec<&str> =
            self.operands.iter().filter(|role| role.number().is_none()).map(|role| &*role.name).collect();
        let mut of_product = PRODUCT_OPERANDS.to_vec();
        if named.contains(&OF_GROUPS[0]) {
            of_product.extend(OF_GROUPS);
        }
        of_product.extend(named.contains(&SFA_ENDS).then_some(SFA_ENDS));
        View {
            extents: &self.extents,
            operands: views(&self.operands),
            scalars: &self.scalars,
            outputs: views(&self.outputs),
            named_operands: if multiplies { of_product } else { named },
            named_scalars: if multiplies { PRODUCT_SCALARS.to_vec() } else { self.scalars.clone() },
            numbered_operands: self.operands.iter().filter(|role| role.number().is_some()).count(),
            writes_empty: !multiplies && self.extents.contains(&"L") && self.outputs.iter().any(is_shared),
            metadata: self.metadata(),
        }
        .serialize(serializer)
    }
}
