//! Which value goes where in a call of a kernel.

use std::ffi::c_void;
use std::ptr;

use fourfold_ir::Value;
use fourfold_scheduler::KernelPlan;

use crate::kernel::{MAX_OPERANDS, MAX_OUTPUTS, Pointers};

/// Which value goes where.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    pub(super) a: Value,
    pub(super) sfa: Value,
    pub(super) b: Value,
    pub(super) sfb: Value,
    pub(super) c: Option<Value>,
    pub(super) alpha: Option<Value>,
    pub(super) beta: Option<Value>,
    /// What the epilogue reads, in the order of the plan.
    epilogue: Vec<Value>,
    /// What the kernel writes, in the order of the plan.
    pub(super) written: Vec<Value>,
}

impl Roles {
    pub(super) fn of(plan: &KernelPlan) -> Roles {
        Roles {
            a: plan.a,
            sfa: plan.sfa,
            b: plan.b,
            sfb: plan.sfb,
            c: plan.c,
            alpha: plan.alpha,
            beta: plan.beta,
            epilogue: plan.operands.iter().map(|operand| operand.value).collect(),
            written: plan.written().collect(),
        }
    }

    /// What the kernel reads. A value that it reads twice is there twice.
    pub(super) fn operands(&self) -> impl Iterator<Item = Value> + '_ {
        [Some(self.a), Some(self.sfa), Some(self.b), Some(self.sfb), self.c, self.alpha, self.beta]
            .into_iter()
            .flatten()
            .chain(self.epilogue.iter().copied())
    }

    /// Each with what it is to the kernel: what it reads, then what it writes.
    pub(super) fn named(&self) -> impl Iterator<Item = (String, Value)> + '_ {
        let fixed = [("a", self.a), ("sfa", self.sfa), ("b", self.b), ("sfb", self.sfb)].map(Some);
        let optional = [("c", self.c), ("alpha", self.alpha), ("beta", self.beta)];
        let optional = optional.map(|(role, value)| Some((role, value?)));
        let numbered = |role: &'static str, values: &'_ [Value]| {
            let named = values.iter().enumerate().map(|(index, value)| (format!("{role} {index}"), *value));
            named.collect::<Vec<_>>()
        };
        fixed
            .into_iter()
            .chain(optional)
            .flatten()
            .map(|(role, value)| (role.to_owned(), value))
            .chain(numbered("operand", &self.epilogue))
            .chain(numbered("output", &self.written))
    }

    /// Whether the kernels' interface has room for all of them.
    pub(super) fn fit(&self) -> bool {
        self.epilogue.len() <= MAX_OPERANDS && self.written.len() <= MAX_OUTPUTS
    }

    /// The addresses for the kernel, given that of each value; `None` for a value that has none, or more values than the
    /// interface has room for.
    pub(super) fn pointers(&self, address: impl Fn(Value) -> Option<u64>) -> Option<Pointers> {
        let optional = |value: Option<Value>| match value {
            Some(value) => address(value).map(pointer),
            None => Some(ptr::null_mut()),
        };
        let mut operands = [ptr::null(); MAX_OPERANDS];
        for (index, value) in self.epilogue.iter().enumerate() {
            *operands.get_mut(index)? = pointer(address(*value)?).cast_const();
        }
        let mut outputs = [ptr::null_mut(); MAX_OUTPUTS];
        for (index, value) in self.written.iter().enumerate() {
            *outputs.get_mut(index)? = pointer(address(*value)?);
        }
        Some(Pointers {
            a: pointer(address(self.a)?),
            sfa: pointer(address(self.sfa)?),
            b: pointer(address(self.b)?),
            sfb: pointer(address(self.sfb)?),
            c: optional(self.c)?,
            alpha: optional(self.alpha)?.cast(),
            beta: optional(self.beta)?.cast(),
            operands,
            operand_count: self.epilogue.len() as u32,
            outputs,
            output_count: self.written.len() as u32,
        })
    }
}

/// A device address as the kernels' interface has it. The host never follows it.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}
