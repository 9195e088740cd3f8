//! The metadata of a stand-in kernel, as the generator would write it for a plan.

use fourfold_executor::Kernel;
use fourfold_executor::kernel::Role;
use fourfold_ir::{OperandShape, Program};
use fourfold_scheduler::{OutputKind, Plan};

use super::stand_in::kernel;

/// A signature, and the roles of a call in the order in which the kernel takes them.
#[derive(Clone, Debug)]
pub struct Interface {
    pub signature: String,
    pub extents: Vec<String>,
    pub operands: Vec<Role>,
    pub scalars: Vec<String>,
    pub outputs: Vec<Role>,
}

const D: Option<&[&str]> = Some(&["L", "M", "N"]);

fn beside_d(shape: OperandShape) -> Option<&'static [&'static str]> {
    match shape {
        OperandShape::Scalar => Some(&[]),
        OperandShape::Row => Some(&["N"]),
        OperandShape::Column => Some(&["L", "M"]),
        OperandShape::Matrix => D,
    }
}

/// A tensor of a call. Without extents, the kernel reports its size in bytes.
pub fn role(name: &str, element: &str, extents: Option<&[&str]>) -> Role {
    let extents = extents.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    Role { role: name.to_owned(), element: element.to_owned(), extents }
}

impl Interface {
    /// The interface of a plan's kernel.
    pub fn of(program: &Program, plan: &Plan) -> Interface {
        let planned = plan.scaled_mma().expect("the stand-in multiplies");
        let roles = plan.roles();
        let mut read = planned.operands.iter().map(|operand| beside_d(operand.shape));
        let operand_extents = |name: &str| match name {
            "a" => Some(&["L", "M", "K"][..]),
            "b" => Some(&["L", "N", "K"][..]),
            "sfa" | "sfb" => None,
            "c" => D,
            _ => read.next().expect("the rest is what the epilogue reads"),
        };
        let output_extents = planned.outputs.iter().flat_map(|output| match output.kind {
            OutputKind::Value { .. } => vec![D],
            OutputKind::Quantized { .. } => vec![D, None],
            OutputKind::Reduced { shape, .. } => vec![beside_d(shape)],
        });
        let element = |value| program.module().ty(value).element.to_string();
        let extents_of: Vec<_> =
            roles.operands.iter().map(|(name, _)| name.as_str()).map(operand_extents).collect();
        let described = |roles: &[(String, _)], extents: Vec<_>| {
            assert_eq!(roles.len(), extents.len());
            roles
                .iter()
                .zip(extents)
                .map(|((name, value), extents)| role(name, &element(*value), extents))
                .collect()
        };
        Interface {
            signature: plan.signature(program),
            extents: ["L", "M", "N", "K"].map(str::to_owned).to_vec(),
            operands: described(&roles.operands, extents_of),
            scalars: roles.scalars.iter().map(|(name, _)| name.clone()).collect(),
            outputs: described(&roles.outputs, output_extents.collect()),
        }
    }

    /// The same roles with another signature.
    pub fn signed(&self, signature: &str) -> Interface {
        Interface { signature: signature.to_owned(), ..self.clone() }
    }

    /// The roles as members of a JSON object, in the order that the stand-in expects.
    pub fn roles(&self) -> String {
        let Interface { extents, operands, scalars, outputs, .. } = self;
        let json = |list: serde_json::Result<String>| list.unwrap();
        format!(
            "\"extents\":{},\"operands\":{},\"scalars\":{},\"outputs\":{}",
            json(serde_json::to_string(extents)),
            json(serde_json::to_string(operands)),
            json(serde_json::to_string(scalars)),
            json(serde_json::to_string(outputs))
        )
    }

    /// The stand-in kernel of this interface, compiled with these definitions.
    pub fn kernel(&self, defines: &[&str]) -> Kernel {
        kernel(&self.signature, &self.roles(), defines)
    }
}
