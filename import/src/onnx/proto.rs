//! The messages of an ONNX file that the importer reads, for the decoder of `rten-onnx`.
//!
//! The crate's own messages are not used, for three reasons. They decode the graph of an attribute recursively, so that
//! a small file exhausts the stack. They copy every weight. And they take no packed lists in attributes, which some
//! writers emit. Messages here never nest in themselves: a graph in an attribute is skipped, and its node is refused.

use rten_onnx::protobuf::{DecodeMessage, Field, FieldValue, Fields, ProtobufError, ReadValue};

use super::reader::{InFile, Span};

/// Values of a list: one field each, or packed in a part of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Run<T> {
    One(T),
    Packed(Span),
}

/// A message with its name in the schema.
trait Message: DecodeMessage<Types = InFile> {
    const NAME: &'static str;
}

/// Reads a message in a field of another one.
fn nested<R: ReadValue<Types = InFile>, T: Message>(field: &mut Field<'_, R>) -> Result<T, ProtobufError> {
    T::decode_fields(field.read_message(Some(T::NAME))?)
}

macro_rules! message {
    (
        $(#[$attr:meta])* $name:ident as $proto:literal { $($member:ident: $ty:ty,)* }
        |$msg:ident, $field:ident| { $($number:pat => $read:expr,)* }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(super) struct $name { $(pub(super) $member: $ty,)* }

        impl Message for $name {
            const NAME: &'static str = $proto;
        }

        impl DecodeMessage for $name {
            type Types = InFile;

            fn decode_fields<R>(mut fields: Fields<'_, R>) -> Result<$name, ProtobufError>
            where
                R: ReadValue<Types = InFile>,
            {
                let mut $msg = $name::default();
                while let Some(mut $field) = fields.next()? {
                    match $field.number() {
                        $($number => $read,)*
                        _ => $field.skip()?,
                    }
                }
                Ok($msg)
            }
        }
    };
}

message! {
    /// A model.
    Model as "ModelProto" {
        ir_version: Option<i64>,
        producer: Option<String>,
        graph: Option<Graph>,
        opsets: Vec<Opset>,
        has_functions: bool,
    }
    |msg, field| {
        1 => msg.ir_version = Some(field.get_int64()?),
        2 => msg.producer = Some(field.read_string()?),
        7 => msg.graph = Some(nested(&mut field)?),
        8 => msg.opsets.push(nested(&mut field)?),
        25 => {
            msg.has_functions = true;
            field.skip()?;
        },
    }
}

message! {
    /// The version of the operators of a domain.
    Opset as "OperatorSetIdProto" { domain: String, version: i64, }
    |msg, field| {
        1 => msg.domain = field.read_string()?,
        2 => msg.version = field.get_int64()?,
    }
}

message! {
    /// A graph.
    Graph as "GraphProto" {
        nodes: Vec<Node>,
        initializers: Vec<Tensor>,
        inputs: Vec<ValueInfo>,
        outputs: Vec<ValueInfo>,
        has_sparse: bool,
    }
    |msg, field| {
        1 => msg.nodes.push(nested(&mut field)?),
        5 => msg.initializers.push(nested(&mut field)?),
        11 => msg.inputs.push(nested(&mut field)?),
        12 => msg.outputs.push(nested(&mut field)?),
        15 => {
            msg.has_sparse = true;
            field.skip()?;
        },
    }
}

message! {
    /// A node.
    Node as "NodeProto" {
        inputs: Vec<String>,
        outputs: Vec<String>,
        name: String,
        op: String,
        domain: String,
        attributes: Vec<Attribute>,
    }
    |msg, field| {
        1 => msg.inputs.push(field.read_string()?),
        2 => msg.outputs.push(field.read_string()?),
        3 => msg.name = field.read_string()?,
        4 => msg.op = field.read_string()?,
        5 => msg.attributes.push(nested(&mut field)?),
        7 => msg.domain = field.read_string()?,
    }
}

message! {
    /// An attribute.
    Attribute as "AttributeProto" {
        name: String,
        float: Option<f32>,
        int: Option<i64>,
        string: Option<Span>,
        tensor: Option<Box<Tensor>>,
        floats: Vec<Run<f32>>,
        ints: Vec<Run<i64>>,
        has_graph: bool,
        is_reference: bool,
        kind: i32,
    }
    |msg, field| {
        1 => msg.name = field.read_string()?,
        2 => msg.float = Some(field.get_float()?),
        3 => msg.int = Some(field.get_int64()?),
        4 => msg.string = Some(field.read_bytes()?),
        5 => msg.tensor = Some(Box::new(nested(&mut field)?)),
        6 | 11 => {
            msg.has_graph = true;
            field.skip()?;
        },
        7 => {
            let run = run(&mut field, |field| field.get_float())?;
            msg.floats.push(run);
        },
        8 => {
            let run = run(&mut field, |field| field.get_int64())?;
            msg.ints.push(run);
        },
        20 => msg.kind = field.get_int32()?,
        21 => {
            msg.is_reference = true;
            field.skip()?;
        },
    }
}

message! {
    /// A stored tensor.
    Tensor as "TensorProto" {
        dims: Vec<Run<i64>>,
        data_type: i32,
        has_segment: bool,
        float_data: Vec<Run<f32>>,
        int32_data: Vec<Run<i32>>,
        int64_data: Vec<Run<i64>>,
        double_data: Vec<Run<i64>>,
        has_other_data: bool,
        name: String,
        raw_data: Option<Span>,
        external: Vec<Entry>,
        location: i32,
    }
    |msg, field| {
        1 => {
            let run = run(&mut field, |field| field.get_int64())?;
            msg.dims.push(run);
        },
        2 => msg.data_type = field.get_int32()?,
        3 => {
            msg.has_segment = true;
            field.skip()?;
        },
        4 => {
            let run = run(&mut field, |field| field.get_float())?;
            msg.float_data.push(run);
        },
        5 => {
            let run = run(&mut field, |field| field.get_int32())?;
            msg.int32_data.push(run);
        },
        6 | 11 => {
            msg.has_other_data = true;
            field.skip()?;
        },
        7 => {
            let run = run(&mut field, |field| field.get_int64())?;
            msg.int64_data.push(run);
        },
        8 => msg.name = field.read_string()?,
        9 => msg.raw_data = Some(field.read_bytes()?),
        10 => {
            // An unpacked double has the wire type of `fixed64`.
            let run = run(&mut field, |field| match field.value() {
                FieldValue::I64(bits) => Ok(bits),
                _ => field.get_int64(),
            })?;
            msg.double_data.push(run);
        },
        13 => msg.external.push(nested(&mut field)?),
        14 => msg.location = field.get_int32()?,
    }
}

message! {
    /// A key and its value.
    Entry as "StringStringEntryProto" { key: String, value: String, }
    |msg, field| {
        1 => msg.key = field.read_string()?,
        2 => msg.value = field.read_string()?,
    }
}

message! {
    /// The name and type of an input or output.
    ValueInfo as "ValueInfoProto" { name: String, ty: Option<Type>, }
    |msg, field| {
        1 => msg.name = field.read_string()?,
        2 => msg.ty = Some(nested(&mut field)?),
    }
}

message! {
    /// The type of a value; `tensor` is absent for sequences, maps and optional values.
    Type as "TypeProto" { tensor: Option<TensorType>, }
    |msg, field| {
        1 => msg.tensor = Some(nested(&mut field)?),
    }
}

message! {
    /// The type of a tensor.
    TensorType as "TypeProto.Tensor" { element: i32, shape: Option<Shape>, }
    |msg, field| {
        1 => msg.element = field.get_int32()?,
        2 => msg.shape = Some(nested(&mut field)?),
    }
}

message! {
    /// The shape of a tensor.
    Shape as "TensorShapeProto" { dims: Vec<Extent>, }
    |msg, field| {
        1 => msg.dims.push(nested(&mut field)?),
    }
}

message! {
    /// An extent: a number, a name, or neither.
    Extent as "TensorShapeProto.Dimension" { value: Option<i64>, param: Option<String>, }
    |msg, field| {
        1 => msg.value = Some(field.get_int64()?),
        2 => msg.param = Some(field.read_string()?),
    }
}

/// Reads a value of a list, or the place of a packed list.
fn run<R: ReadValue<Types = InFile>, T>(
    field: &mut Field<'_, R>,
    one: fn(&Field<'_, R>) -> Result<T, ProtobufError>,
) -> Result<Run<T>, ProtobufError> {
    match field.value() {
        FieldValue::Len(_) => Ok(Run::Packed(field.read_bytes()?)),
        _ => Ok(Run::One(one(field)?)),
    }
}
