//! Regions as ONNX files, which `fourfold-import` reads, and which EPContext nodes hold.
//!
//! Inputs are called `i0`, `i1`, …, outputs `o0`, `o1`, … in the order of the fused node; other values have numbers.
//! Nodes have their position in front of their name, which makes it unique.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use crate::api::{Api, Extent, Type, slice};
use crate::error::ProviderError;
use crate::graph::{Attribute, Graph, Node, element};

/// Larger weights are holes in a file that is only asked about.
const MIN_HOLE: u64 = 4096;
/// ONNX's number of the type FLOAT8E8M0, for which ONNX Runtime has another one.
const ONNX_FLOAT8E8M0: i32 = 24;

/// The nodes of a region, with the values that cross its border.
pub struct Region<'g> {
    pub graph: &'g Graph,
    /// Positions of nodes, ascending.
    pub nodes: &'g [usize],
    pub inputs: &'g [String],
    pub outputs: &'g [String],
}

/// A part of a file.
enum Piece {
    Bytes(Vec<u8>),
    /// The bytes of an initializer, which live as long as the graph.
    Weight(*const u8, usize),
    /// Bytes that nobody reads.
    Hole(u64),
}

/// A protobuf message.
#[derive(Default)]
pub struct Message {
    pieces: Vec<Piece>,
    length: u64,
}

/// The position that the name of a node of a file begins with.
pub fn position(name: &str) -> Option<usize> {
    name.split(' ').next()?.parse().ok()
}

/// Writes a region as a model. With `holes`, large weights are left out.
///
/// # Safety
/// The graph is live, and stays so as long as the message is used.
pub unsafe fn model(api: Api, region: &Region<'_>, holes: bool) -> Result<Message, ProviderError> {
    let graph = region.graph;
    let mut names = Names::new(region);
    let mut body = Message::default();
    let mut constants: Vec<(&str, bool)> = Vec::new();
    for at in region.nodes {
        let node = &graph.nodes[*at];
        body.message(1, names.node(*at, node));
        for (position, input) in node.inputs.iter().enumerate() {
            // Zero points are checked by their values.
            let is_weight = !(position == 2 && node.op.ends_with("quantizeLinear"));
            if graph.is_constant(input) {
                match constants.iter_mut().find(|(name, _)| name == input) {
                    Some((_, all)) => *all &= is_weight,
                    None => constants.push((input, is_weight)),
                }
            }
        }
    }
    body.text(2, "region");
    for (name, is_weight) in constants {
        // SAFETY: the caller vouches for the graph.
        let Some((ty, data)) = (unsafe { graph.constant(api, name)? }) else { continue };
        body.message(5, tensor(&names.of(name), &ty, data, holes && is_weight)?);
    }
    for (field, values) in [(11, region.inputs), (12, region.outputs)] {
        for name in values {
            let ty = graph.values.get(name).and_then(|value| value.ty.as_ref());
            let ty = ty.ok_or_else(|| unknown(name, "it is no tensor"))?;
            body.message(field, value_info(&names.of(name), ty));
        }
    }
    let mut model = Message::default();
    model.int(1, graph.ir_version);
    model.text(2, "fourfold");
    model.message(7, body);
    for (domain, version) in &graph.opsets {
        let mut opset = Message::default();
        opset.text(1, domain);
        opset.int(2, *version);
        model.message(8, opset);
    }
    Ok(model)
}

fn unknown(name: &str, reason: &str) -> ProviderError {
    ProviderError::Region { node: format!("value `{name}`"), message: reason.to_owned() }
}

/// The names of values in a file.
struct Names<'r> {
    ends: HashMap<&'r str, String>,
    others: HashMap<String, String>,
}

impl<'r> Names<'r> {
    fn new(region: &Region<'r>) -> Names<'r> {
        let inputs = region.inputs.iter().enumerate().map(|(at, name)| (name.as_str(), format!("i{at}")));
        let outputs = region.outputs.iter().enumerate().map(|(at, name)| (name.as_str(), format!("o{at}")));
        Names { ends: inputs.chain(outputs).collect(), others: HashMap::new() }
    }

    fn of(&mut self, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        if let Some(name) = self.ends.get(name) {
            return name.clone();
        }
        let next = self.others.len();
        self.others.entry(name.to_owned()).or_insert_with(|| format!("v{next}")).clone()
    }

    fn node(&mut self, at: usize, node: &Node) -> Message {
        let mut message = Message::default();
        for input in &node.inputs {
            message.text(1, &self.of(input));
        }
        for output in &node.outputs {
            message.text(2, &self.of(output));
        }
        let name =
            if node.name.is_empty() { node.outputs.first().map_or("", String::as_str) } else { &node.name };
        message.text(3, &format!("{at} {name}"));
        message.text(4, &node.op);
        for (name, value) in &node.attributes {
            message.message(5, attribute(name, value));
        }
        message.text(7, &node.domain);
        message
    }
}

fn attribute(name: &str, value: &Attribute) -> Message {
    let mut message = Message::default();
    message.text(1, name);
    let kind = match value {
        Attribute::Float(value) => {
            message.float(2, *value);
            1
        }
        Attribute::Int(value) => {
            message.int(3, *value);
            2
        }
        Attribute::Text(value) => {
            message.bytes(4, value);
            3
        }
        Attribute::Floats(values) => {
            values.iter().for_each(|value| message.float(7, *value));
            6
        }
        Attribute::Ints(values) => {
            values.iter().for_each(|value| message.int(8, *value));
            7
        }
        // A kind that the importer refuses, if the operator's meaning depends on the attribute.
        Attribute::Other => 0,
    };
    message.int(20, kind);
    message
}

fn tensor(name: &str, ty: &Type, data: *const u8, hole: bool) -> Result<Message, ProviderError> {
    let fixed: Option<Vec<u64>> = ty
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Fixed(extent) => Some(*extent),
            Extent::Named(_) => None,
        })
        .collect();
    let shape = fixed.ok_or_else(|| unknown(name, "a constant has a symbolic shape"))?;
    let mut message = Message::default();
    for extent in &shape {
        message.int(1, i64::try_from(*extent).unwrap_or(i64::MAX));
    }
    message.int(2, i64::from(onnx_element(ty.element)));
    message.text(8, name);
    let bits = element::bits(ty.element)
        .ok_or_else(|| unknown(name, "a constant has a type that no program has"))?;
    let size = shape.iter().try_fold(bits, |size, extent| size.checked_mul(*extent));
    let size = size.ok_or_else(|| unknown(name, "a constant is too large"))?.div_ceil(8);
    let has_holes = element::is_float(ty.element) || bits == 8 || bits == 4;
    match hole && size > MIN_HOLE && has_holes {
        true => message.piece(9, Piece::Hole(size), size),
        false => {
            let length = usize::try_from(size).map_err(|_| unknown(name, "a constant is too large"))?;
            message.piece(9, Piece::Weight(data, length), size);
        }
    }
    Ok(message)
}

fn value_info(name: &str, ty: &Type) -> Message {
    let mut shape = Message::default();
    for extent in &ty.shape {
        let mut dim = Message::default();
        match extent {
            Extent::Fixed(extent) => dim.int(1, i64::try_from(*extent).unwrap_or(i64::MAX)),
            Extent::Named(name) if name.is_empty() => {}
            Extent::Named(name) => dim.text(2, name),
        }
        shape.message(1, dim);
    }
    let (mut tensor, mut kind, mut info) = (Message::default(), Message::default(), Message::default());
    tensor.int(1, i64::from(onnx_element(ty.element)));
    tensor.message(2, shape);
    kind.message(1, tensor);
    info.text(1, name);
    info.message(2, kind);
    info
}

fn onnx_element(element: i32) -> i32 {
    if element == element::FLOAT8E8M0 { ONNX_FLOAT8E8M0 } else { element }
}

impl Message {
    /// Writes the message to a file.
    ///
    /// # Safety
    /// The graph of its weights is live.
    pub unsafe fn write(&self, file: &mut File) -> io::Result<()> {
        let mut writer = BufWriter::new(&mut *file);
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => writer.write_all(bytes)?,
                // SAFETY: the caller vouches for the graph, which owns bytes of this length.
                Piece::Weight(data, length) => writer.write_all(unsafe { slice(*data, *length) })?,
                Piece::Hole(length) => {
                    writer.seek(SeekFrom::Current(i64::try_from(*length).unwrap_or(i64::MAX)))?;
                }
            }
        }
        writer.flush()?;
        drop(writer);
        file.set_len(self.length)
    }

    fn tag(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.raw(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.raw(&[value as u8]);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
    }

    fn int(&mut self, field: u64, value: i64) {
        self.tag(field, 0);
        self.varint(value as u64);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.tag(field, 5);
        self.raw(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.raw(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn piece(&mut self, field: u64, piece: Piece, length: u64) {
        self.tag(field, 2);
        self.varint(length);
        self.length += length;
        self.pieces.push(piece);
    }

    fn message(&mut self, field: u64, message: Message) {
        self.tag(field, 2);
        self.varint(message.length);
        for piece in message.pieces {
            match piece {
                Piece::Bytes(bytes) => self.raw(&bytes),
                Piece::Weight(_, length) => {
                    self.length += length as u64;
                    self.pieces.push(piece);
                }
                Piece::Hole(length) => {
                    self.length += length;
                    self.pieces.push(piece);
                }
            }
        }
    }
}
