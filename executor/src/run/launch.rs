//! One call with its addresses, ready to be put on a stream: a generated kernel or a library call.

use std::sync::Arc;

use fourfold_ir::Value;

use super::call::{Call, Product, Work};
use super::machine::PRODUCT;
use super::roles::{Roles, pointer};
use crate::blas::Matmul;
use crate::device::{DeviceError, Stream};
use crate::kernel::{Prepared, Status};

/// A call with its addresses. It is not dropped while a launch is in flight.
#[derive(Debug)]
pub(super) enum Launch {
    /// A generated kernel.
    Kernel(Prepared),
    /// A product of the vendor's library.
    Product {
        matmul: Arc<Matmul>,
        /// A, B and D.
        values: [Value; 3],
        addresses: [u64; 3],
        workspace: u64,
    },
}

/// The reason that a call cannot be prepared or changed.
pub(super) enum Unready {
    /// A value has no address, or the call launches nothing.
    Missing,
    /// The kernel refuses.
    Refused(Status),
}

impl Launch {
    /// Prepares a call with a workspace at an address, which is 0 without one.
    ///
    /// # Safety
    /// As for [`Kernel::prepare`](crate::kernel::Kernel::prepare), which also covers the addresses of a library call.
    pub(super) unsafe fn of(
        call: &Call<'_>,
        address: impl Fn(Value) -> Option<u64>,
        workspace: u64,
        stream: &Stream,
    ) -> Result<Launch, Unready> {
        match &call.work {
            Work::Kernel { kernel, device, extents } => {
                let addresses = call.roles.addresses(address).ok_or(Unready::Missing)?;
                let bytes = usize::try_from(call.workspace).unwrap_or(usize::MAX);
                // SAFETY: the caller vouches for all of it.
                let prepared = unsafe {
                    kernel.prepare(device, extents, &addresses, pointer(workspace), bytes, stream.raw())
                };
                prepared.map(Launch::Kernel).map_err(Unready::Refused)
            }
            Work::Product(product) => {
                let Product { matmul, a, b, d, .. } = &**product;
                let values = [*a, *b, *d];
                let addresses = addresses_of(values, address)?;
                Ok(Launch::Product { matmul: Arc::clone(matmul), values, addresses, workspace })
            }
            Work::Nothing { .. } | Work::Fallback { .. } => Err(Unready::Missing),
        }
    }

    /// Replaces the addresses.
    ///
    /// # Safety
    /// As for [`Launch::of`]. Launches in flight keep the old addresses.
    pub(super) unsafe fn update(
        &mut self,
        roles: &Roles,
        address: impl Fn(Value) -> Option<u64>,
    ) -> Result<(), Unready> {
        match self {
            Launch::Kernel(prepared) => {
                let addresses = roles.addresses(address).ok_or(Unready::Missing)?;
                // SAFETY: the caller vouches for the addresses.
                unsafe { prepared.update_addresses(&addresses) }.map_err(Unready::Refused)
            }
            Launch::Product { values, addresses, .. } => {
                *addresses = addresses_of(*values, address)?;
                Ok(())
            }
        }
    }

    /// Enqueues the call. Neither allocates nor waits.
    ///
    /// # Safety
    /// As for [`Prepared::launch`].
    pub(super) unsafe fn launch(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        match self {
            // SAFETY: the caller vouches for it.
            Launch::Kernel(prepared) => unsafe { prepared.launch(stream.raw()) }
                .map_err(|status| stream.fault().unwrap_or(DeviceError::Launch { status })),
            Launch::Product { matmul, addresses: [a, b, d], workspace, .. } => {
                // SAFETY: as above.
                unsafe { matmul.launch(stream, *a, *b, *d, *workspace) }
            }
        }
    }
}

impl Launch {
    /// True if a launch may end with a fault, such as one that the emulation finds.
    pub(super) fn finds_faults(&self) -> bool {
        match self {
            Launch::Kernel(prepared) => prepared.kernel().finds_faults(),
            Launch::Product { .. } => false,
        }
    }

    /// The kernel's name.
    pub(super) fn kernel_name(&self) -> String {
        match self {
            Launch::Kernel(prepared) => prepared.kernel().metadata().kernel.clone(),
            Launch::Product { .. } => PRODUCT.to_owned(),
        }
    }

    /// The first fault of ended launches since the last query. Results of launches with a fault are wrong.
    ///
    /// # Safety
    /// The context of the launches must be current, and none may be running. The workspace must still be valid.
    pub(super) unsafe fn fault(&mut self) -> Option<Status> {
        let Launch::Kernel(prepared) = self else { return None };
        // SAFETY: the caller vouches for it.
        unsafe { prepared.fault() }
    }
}

fn addresses_of(values: [Value; 3], address: impl Fn(Value) -> Option<u64>) -> Result<[u64; 3], Unready> {
    let [a, b, d] = values.map(address);
    Ok([a.ok_or(Unready::Missing)?, b.ok_or(Unready::Missing)?, d.ok_or(Unready::Missing)?])
}
