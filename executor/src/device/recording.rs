//! Inspection of recorded work: the kernels and memsets that a launch consists of.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUfunction, CUgraphNode, CUgraphNodeType,
    CUkernel, CUkernelNodeAttrValue, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUresult,
    CUstream,
};

use super::context::Context;
use super::driver::check;
use super::stream::Recorded;
use super::{DeviceError, Stream};

/// Recorded work, in stream order. It can be inspected, and replayed call by call; a [`Graph`](super::Graph) can be
/// launched as a whole.
#[derive(Debug)]
pub struct Recording {
    nodes: Vec<Node>,
    calls: Vec<DriverCall>,
    /// Owns the memory that `calls` point into.
    _graph: Recorded,
    context: Arc<Context>,
}

/// One recorded operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Node {
    /// A kernel launch.
    Kernel(KernelNode),
    /// A memset.
    Memset(MemsetNode),
    /// Any other operation.
    Other,
}

/// A kernel's launch configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNode {
    /// The grid, in CTAs.
    pub grid: [u32; 3],
    /// The CTA size, in threads.
    pub block: [u32; 3],
    /// The cluster size in CTAs, if the launch sets one.
    pub cluster: Option<[u32; 3]>,
    /// True for a cooperative launch.
    pub cooperative: bool,
    /// Dynamic shared memory, in bytes.
    pub shared_memory: u32,
    /// The number of kernel parameters.
    pub parameters: usize,
    /// The total size of parameters in bytes, without padding.
    pub parameter_bytes: usize,
}

/// A memset of elements of 1, 2 or 4 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemsetNode {
    /// The device address.
    pub address: u64,
    /// The element value.
    pub value: u32,
    /// The element size in bytes: 1, 2 or 4.
    pub element_bytes: u32,
    /// Elements per row.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
    /// Bytes between the starts of rows.
    pub pitch: usize,
}

/// A driver call that repeats one operation.
#[derive(Debug)]
enum DriverCall {
    Kernel {
        config: CUlaunchConfig,
        cluster: [u32; 3],
        function: CUfunction,
        parameters: *mut *mut c_void,
    },
    Bytes {
        address: u64,
        byte: u8,
        count: usize,
    },
    /// Not repeatable; skipped.
    Unknown,
}

impl Stream {
    /// Records the operations that `record` puts on this stream, without running them, for inspection.
    ///
    /// # Errors
    /// As for [`Stream::capture`].
    pub fn inspect(
        &self,
        record: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Recording, DeviceError> {
        let _current = self.context().enter()?;
        Recording::of(self.record_graph(record)?, self.shared_context())
    }
}

impl Recording {
    /// Reads a graph's nodes. The context must be current.
    fn of(graph: Recorded, context: &Arc<Context>) -> Result<Recording, DeviceError> {
        let (mut nodes, mut calls) = (Vec::new(), Vec::new());
        for node in nodes_of(&graph)? {
            let mut kind = MaybeUninit::<CUgraphNodeType>::uninit();
            // SAFETY: the node belongs to the graph; the graph and the output are live.
            check("cuGraphNodeGetType", unsafe { sys::cuGraphNodeGetType(node, kind.as_mut_ptr()) })?;
            // SAFETY: the driver has written it. It is read as an integer, since a later driver may have more kinds.
            let kind = unsafe { kind.as_ptr().cast::<u32>().read() };
            let (node, call) = if kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
                kernel(node)?
            } else if kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET as u32 {
                memset(node)?
            } else {
                (Node::Other, DriverCall::Unknown)
            };
            nodes.push(node);
            calls.push(call);
        }
        Ok(Recording { nodes, calls, _graph: graph, context: Arc::clone(context) })
    }

    /// The recorded operations.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Enqueues the recorded kernels and byte memsets on a stream again, with driver calls only: the cost of a launch
    /// without its caller's overhead. Does not wait for the device.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`], or the driver's error.
    ///
    /// # Safety
    /// As for [`Graph::launch`](super::Graph::launch).
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        if !self.context.is(stream.context()) {
            return Err(DeviceError::OtherDevice { what: "stream" });
        }
        let _current = self.context.enter()?;
        let raw: CUstream = stream.raw().cast();
        for call in &self.calls {
            match call {
                DriverCall::Kernel { config, cluster, function, parameters } => {
                    let mut attribute = cluster_attribute(*cluster);
                    let mut config = *config;
                    config.hStream = raw;
                    config.attrs = &mut attribute;
                    config.numAttrs = u32::from(*cluster != [0; 3]);
                    // SAFETY: the graph, which is ours, keeps function and parameters alive. Configuration and
                    // attribute outlive the call. The caller vouches for the kernel's effects.
                    check("cuLaunchKernelEx", unsafe {
                        sys::cuLaunchKernelEx(&config, *function, *parameters, ptr::null_mut())
                    })?;
                }
                DriverCall::Bytes { address, byte, count } => {
                    // SAFETY: the caller vouches for the memory.
                    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(*address, *byte, *count, raw) })?;
                }
                DriverCall::Unknown => {}
            }
        }
        Ok(())
    }
}

fn nodes_of(graph: &Recorded) -> Result<Vec<CUgraphNode>, DeviceError> {
    let mut count = 0;
    // SAFETY: the graph is live; without an array the driver only returns the count.
    check("cuGraphGetNodes", unsafe { sys::cuGraphGetNodes(graph.raw(), ptr::null_mut(), &mut count) })?;
    let mut nodes = vec![ptr::null_mut(); count];
    if count > 0 {
        // SAFETY: the graph is live, and the array has the given length.
        check("cuGraphGetNodes", unsafe {
            sys::cuGraphGetNodes(graph.raw(), nodes.as_mut_ptr(), &mut count)
        })?;
        nodes.truncate(count);
    }
    Ok(nodes)
}

fn kernel(node: CUgraphNode) -> Result<(Node, DriverCall), DeviceError> {
    // SAFETY: all zero is null and 0.
    let mut found: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the node is a kernel's, and the output is live.
    check("cuGraphKernelNodeGetParams", unsafe { sys::cuGraphKernelNodeGetParams_v2(node, &mut found) })?;
    let mut function = found.func;
    if function.is_null() {
        // SAFETY: a node without a function has a kernel, which this resolves in the current context.
        check("cuKernelGetFunction", unsafe { sys::cuKernelGetFunction(&mut function, found.kern) })?;
    }
    let (parameters, parameter_bytes) = match parameters_of(function) {
        // A library's kernel may stand for its function in launches, but not in this query.
        Err(_) => parameters_of_kernel(function.cast())?,
        found => found?,
    };
    // SAFETY: the members are those of these attributes, and whatever they hold is a number.
    let (cluster, cooperative) = unsafe {
        let cluster = attribute(node, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?.clusterDim;
        let cooperative = attribute(node, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?.cooperative;
        ([cluster.x, cluster.y, cluster.z], cooperative != 0)
    };
    let config = CUlaunchConfig {
        gridDimX: found.gridDimX,
        gridDimY: found.gridDimY,
        gridDimZ: found.gridDimZ,
        blockDimX: found.blockDimX,
        blockDimY: found.blockDimY,
        blockDimZ: found.blockDimZ,
        sharedMemBytes: found.sharedMemBytes,
        hStream: ptr::null_mut(),
        attrs: ptr::null_mut(),
        numAttrs: 0,
    };
    let described = KernelNode {
        grid: [found.gridDimX, found.gridDimY, found.gridDimZ],
        block: [found.blockDimX, found.blockDimY, found.blockDimZ],
        cluster: (cluster != [0; 3]).then_some(cluster),
        cooperative,
        shared_memory: found.sharedMemBytes,
        parameters,
        parameter_bytes,
    };
    let again = !cooperative && !found.kernelParams.is_null();
    let call = match again {
        true => DriverCall::Kernel { config, cluster, function, parameters: found.kernelParams },
        false => DriverCall::Unknown,
    };
    Ok((Node::Kernel(described), call))
}

fn parameters_of(function: CUfunction) -> Result<(usize, usize), DeviceError> {
    // SAFETY: the function and the outputs are live.
    count_parameters("cuFuncGetParamInfo", |index, offset, size| unsafe {
        sys::cuFuncGetParamInfo(function, index, offset, size)
    })
}

fn parameters_of_kernel(kernel: CUkernel) -> Result<(usize, usize), DeviceError> {
    // SAFETY: the kernel and the outputs are live.
    count_parameters("cuKernelGetParamInfo", |index, offset, size| unsafe {
        sys::cuKernelGetParamInfo(kernel, index, offset, size)
    })
}

/// The number and total size of parameters.
fn count_parameters(
    call: &'static str,
    get: impl Fn(usize, &mut usize, &mut usize) -> CUresult,
) -> Result<(usize, usize), DeviceError> {
    let (mut count, mut bytes) = (0, 0);
    loop {
        let (mut offset, mut size) = (0, 0);
        match get(count, &mut offset, &mut size) {
            // Past the last parameter.
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok((count, bytes)),
            result => check(call, result)?,
        }
        count += 1;
        bytes += size;
    }
}

/// A launch attribute; all zeros if the node has none.
fn attribute(node: CUgraphNode, id: CUlaunchAttributeID) -> Result<CUkernelNodeAttrValue, DeviceError> {
    // SAFETY: the union is made of numbers, all of which may be 0.
    let mut value: CUkernelNodeAttrValue = unsafe { std::mem::zeroed() };
    // SAFETY: the node is a kernel's, and the output is live.
    match unsafe { sys::cuGraphKernelNodeGetAttribute(node, id, &mut value) } {
        // SAFETY: as above.
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(unsafe { std::mem::zeroed() }),
        result => check("cuGraphKernelNodeGetAttribute", result).map(|()| value),
    }
}

fn cluster_attribute(cluster: [u32; 3]) -> CUlaunchAttribute {
    // SAFETY: all zeros is the ignored attribute.
    let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let [x, y, z] = cluster;
    attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
    attribute
}

fn memset(node: CUgraphNode) -> Result<(Node, DriverCall), DeviceError> {
    // SAFETY: all zero is address 0 and no elements.
    let mut found: CUDA_MEMSET_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the node is a memset's, and the output is live.
    check("cuGraphMemsetNodeGetParams", unsafe { sys::cuGraphMemsetNodeGetParams(node, &mut found) })?;
    let described = MemsetNode {
        address: found.dst,
        value: found.value,
        element_bytes: found.elementSize,
        width: found.width,
        height: found.height,
        pitch: found.pitch,
    };
    let call = match described.bytes() {
        Some((byte, count)) => DriverCall::Bytes { address: found.dst, byte, count },
        None => DriverCall::Unknown,
    };
    Ok((Node::Memset(described), call))
}

impl MemsetNode {
    /// The byte value and count, if all bytes are equal and contiguous.
    pub fn bytes(&self) -> Option<(u8, usize)> {
        let size = self.element_bytes as usize;
        let bytes = self.value.to_le_bytes();
        let same = (1..=bytes.len()).contains(&size) && bytes[..size].iter().all(|byte| *byte == bytes[0]);
        let row = self.width * size;
        (same && (self.height == 1 || self.pitch == row)).then(|| (bytes[0], row * self.height))
    }
}
