//! Builds ONNX files.

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};

/// The declaration of a tensor. An extent is a number or a name.
pub(crate) fn value(name: &str, ty: DataType, dims: &[Result<i64, &str>]) -> ValueInfoProto {
    let of = |dim: &Result<i64, &str>| Dimension {
        dim_value: dim.ok(),
        dim_param: dim.err().filter(|name| !name.is_empty()).map(str::to_owned),
    };
    let shape = TensorShapeProto { dim: dims.iter().map(of).collect() };
    let tensor = TypeProtoTensor { elem_type: Some(ty), shape: Some(shape) };
    let ty = TypeProto { tensor_type: Some(tensor), sequence: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty) }
}

/// A node with an operator of the standard.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    from_domain("", op, inputs, outputs, &[])
}

/// A node with an operator of a domain.
pub(crate) fn from_domain(
    domain: &str,
    op: &str,
    inputs: &[&str],
    outputs: &[&str],
    attributes: &[(&str, i64)],
) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    NodeProto {
        domain: Some(domain.to_owned()).filter(|domain| !domain.is_empty()),
        op_type: Some(op.to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        attribute: attributes.iter().map(|(name, value)| integer(name, *value)).collect(),
        ..NodeProto::default()
    }
}

/// An attribute with one integer.
fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    }
}

/// A constant.
pub(crate) fn tensor(name: &str, ty: DataType, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(ty),
        dims: dims.to_vec(),
        raw_data: Some(std::cell::RefCell::new(bytes.to_vec())),
        ..TensorProto::default()
    }
}

/// A model with one input and one output.
pub(crate) fn model_of(
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    input: ValueInfoProto,
    output: ValueInfoProto,
) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        initializer: initializers,
        input: vec![input],
        output: vec![output],
        value_info: Vec::new(),
    };
    ModelProto {
        ir_version: Some(11),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(23) }],
        ..ModelProto::default()
    }
}

/// A sequence of numbers that depends on the seed only.
#[allow(dead_code, reason = "some tests draw no numbers")]
pub(crate) struct Numbers(pub(crate) u64);

#[allow(dead_code, reason = "some tests draw no numbers")]
impl Numbers {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
