//! The values of one call in the order of a kernel's C interface.

use std::ffi::c_void;
use std::ptr;

use fourfold_ir::Value;
use fourfold_scheduler::Plan;

use crate::kernel::{Addresses, Metadata};

/// The values of one call, each list in the order in which the kernel describes its roles.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    /// Tensors read.
    pub(super) operands: Vec<(String, Value)>,
    /// f32 scalars read.
    pub(super) scalars: Vec<(String, Value)>,
    /// Role names of the outputs.
    outputs: Vec<String>,
    /// Values written.
    pub(super) written: Vec<Value>,
}

impl Roles {
    /// Binds the values of a plan to the roles of a kernel.
    ///
    /// # Errors
    /// The role that one of the two lacks.
    pub(super) fn bind(plan: &Plan, metadata: &Metadata) -> Result<Roles, String> {
        let planned = plan.roles();
        let names = |roles: &[crate::kernel::Role]| roles.iter().map(|role| role.role.clone()).collect();
        let outputs = ordered("output", planned.outputs, names(&metadata.outputs))?;
        Ok(Roles {
            operands: ordered("operand", planned.operands, names(&metadata.operands))?,
            scalars: ordered("scalar", planned.scalars, metadata.scalars.clone())?,
            written: outputs.iter().map(|(_, value)| *value).collect(),
            outputs: outputs.into_iter().map(|(role, _)| role).collect(),
        })
    }

    /// The values of a plan without a kernel, in the plan's order.
    pub(super) fn of(plan: &Plan) -> Roles {
        let fourfold_scheduler::Roles { operands, scalars, outputs } = plan.roles();
        let (outputs, written) = outputs.into_iter().unzip();
        Roles { operands, scalars, outputs, written }
    }

    /// The values that the kernel reads. A value read in two roles appears twice.
    pub(super) fn reads(&self) -> impl Iterator<Item = Value> + '_ {
        self.operands.iter().chain(&self.scalars).map(|(_, value)| *value)
    }

    /// Every value with its role: operands, scalars, outputs.
    pub(super) fn named(&self) -> impl Iterator<Item = (String, Value)> + '_ {
        let outputs = self.outputs.iter().cloned().zip(self.written.iter().copied());
        self.operands.iter().chain(&self.scalars).cloned().chain(outputs)
    }

    /// The kernel's addresses, given each value's; `None` if one is missing, or if there are more than the interface
    /// supports.
    pub(super) fn addresses(&self, address: impl Fn(Value) -> Option<u64>) -> Option<Addresses> {
        let read = |values: &[(String, Value)]| -> Option<Vec<*const c_void>> {
            values.iter().map(|(_, value)| Some(pointer(address(*value)?).cast_const())).collect()
        };
        let outputs: Option<Vec<_>> =
            self.written.iter().map(|value| Some(pointer(address(*value)?))).collect();
        Addresses::new(&read(&self.operands)?, &read(&self.scalars)?, &outputs?)
    }
}

/// Sorts planned values into the kernel's role order. Both must have the same roles.
fn ordered(
    what: &str,
    mut planned: Vec<(String, Value)>,
    roles: Vec<String>,
) -> Result<Vec<(String, Value)>, String> {
    let mut found: Vec<(String, Value)> = Vec::with_capacity(roles.len());
    for role in roles {
        match planned.iter().position(|(name, _)| *name == role) {
            Some(position) => found.push(planned.remove(position)),
            None if found.iter().any(|(name, _)| *name == role) => {
                return Err(format!("the kernel has the {what} `{role}` twice"));
            }
            None => return Err(format!("the kernel has the {what} `{role}`, but the plan does not")),
        }
    }
    match planned.first() {
        None => Ok(found),
        Some((role, _)) => Err(format!("the plan has the {what} `{role}`, but the kernel does not")),
    }
}

/// Converts a device address for the kernel interface. The host never dereferences it.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}
