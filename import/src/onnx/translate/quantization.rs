//! Quantization and dequantization, of the standard and of TensorRT.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, ReduceKind, ScaleLayout, ScaleRounding, Shape,
    TensorType, Value,
};
use rten_onnx::onnx::DataType;

use super::super::model::Node;
use super::super::problem::Problem;
use super::super::stored::element_of;
use super::state::{Dequantized, Item, Translator};

/// The largest magnitude of NVFP4 with the global scale 1: 6 · 448.
const NVFP4_RANGE: f64 = 2688.0;

impl Translator<'_> {
    /// The element type that the graph gives a tensor.
    pub(super) fn element_of_item(&self, node: &Node, item: &Item) -> Result<ElementType, Problem> {
        let element = match item {
            Item::Value(value) => Some(self.ty(*value).element),
            Item::Integers(integers) => Some(integers.element),
            Item::Stored(at) => element_of(self.model.stored[*at].ty),
            Item::Scaled { factor, .. } => Some(self.element_of_item(node, factor)?),
            Item::Dequantized(matrix) => Some(matrix.element),
        };
        match element {
            Some(element) => Ok(element),
            None => self.refuse(node, "the type of an input has no equivalent"),
        }
    }

    /// The shape of a tensor.
    pub(super) fn shape_of(&self, item: &Item) -> Shape {
        match item {
            Item::Value(value) => self.shape(*value),
            Item::Integers(integers) => integers.dims.iter().map(|dim| Dim::fixed(*dim)).collect(),
            Item::Stored(at) => self.model.stored[*at].dims.iter().map(|dim| Dim::fixed(*dim)).collect(),
            Item::Scaled { codes, .. } => self.shape_of(codes),
            Item::Dequantized(matrix) => {
                let mut shape = self.shape(matrix.codes);
                let rank = shape.len();
                if matrix.transposed {
                    shape.swap(rank - 1, rank - 2);
                }
                shape
            }
        }
    }

    /// A per-tensor scale as an f32 scalar.
    pub(super) fn factor(&mut self, node: &Node, position: usize, item: &Item) -> Result<Value, Problem> {
        let hint = node.input(position).unwrap_or("scale").to_owned();
        let value = match item {
            Item::Stored(at) => self.param(*at, None)?,
            other => self.value_of(&hint, other)?,
        };
        let ty = self.ty(value);
        if !ty.is_scalar() || !ty.element.is_arithmetic() {
            return self.refuse(node, format!("input {position} is not one number of type f32, f16 or bf16"));
        }
        let value = if ty.rank() > 1 { self.reshaped(&hint, value, Vec::new()) } else { value };
        Ok(self.converted(&hint, value, ElementType::F32))
    }

    pub(super) fn axis(&self, node: &Node, axis: i64, rank: usize) -> Result<usize, Problem> {
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_start).ok().filter(|axis| *axis < rank) {
            Some(axis) => Ok(axis),
            None => self.refuse(node, format!("a tensor of rank {rank} has no axis {axis}")),
        }
    }

    /// The block size of a quantizer of TensorRT, which quantizes along the last axis.
    fn block_along_last(&self, node: &Node, rank: usize) -> Result<u32, Problem> {
        let axis = self.axis(node, node.int("axis").unwrap_or(-1), rank)?;
        if axis + 1 != rank || rank < 2 {
            return self.refuse(node, "it does not quantize along the last axis of a matrix");
        }
        match node.int("block_size") {
            Some(block @ (16 | 32)) => Ok(block as u32),
            block => self.refuse(node, format!("its block size is {block:?}, not 16 or 32")),
        }
    }

    fn quantize(
        &mut self,
        node: &Node,
        operands: &[Value],
        block: u32,
        scale_rounding: Option<ScaleRounding>,
        element: ElementType,
    ) -> Result<[Value; 2], Problem> {
        let shape = self.shape(operands[0]);
        let mut blocks = shape.clone();
        let Some(count) = shape.last().and_then(|last| last.divided_by(u64::from(block))) else {
            return self.refuse(node, format!("the last extent is no multiple of the block size {block}"));
        };
        blocks[shape.len() - 1] = count;
        let scale = if scale_rounding.is_some() { ElementType::F8E8M0FNU } else { ElementType::F8E4M3FN };
        let hint = Translator::hint(node);
        let codes = self.names.like(&format!("{hint}.codes"));
        let scales = self.names.like(&format!("{hint}.scales"));
        let kind = OpKind::block_quantize(block, scale_rounding);
        let results = self.out.op(
            kind,
            operands,
            &[
                (&codes, TensorType::new(shape, element)),
                (&scales, TensorType::scales(blocks, scale, ScaleLayout::Linear)),
            ],
        );
        Ok([results[0], results[1]])
    }

    /// Quantizes to NVFP4, with block scales of each call.
    pub(super) fn fp4_dynamic_quantize(&mut self, node: &Node) -> Result<(), Problem> {
        let x = self.float(node, 0)?;
        let block = self.block_along_last(node, self.ty(x).rank())?;
        let scale = node.int("scale_type").unwrap_or(i64::from(DataType::FLOAT8E4M3FN.0));
        if block != 16 || scale != i64::from(DataType::FLOAT8E4M3FN.0) {
            return self.refuse(node, "only blocks of 16 with FLOAT8E4M3FN scales are NVFP4");
        }
        let item = self.item(node, 1)?;
        let number = self.known_number(&item)?.map(f64::to_bits);
        // Linears with one input quantize it alike.
        let known = number.and_then(|number| self.quantized.get(&(x, number)).copied());
        let [codes, scales] = match known {
            Some(results) => results,
            None => {
                let global = self.factor(node, 1, &item)?;
                self.quantize(node, &[x, global], block, None, ElementType::F4E2M1FN)?
            }
        };
        if let Some(number) = number {
            self.quantized.insert((x, number), [codes, scales]);
        }
        self.set(node, 0, Item::Value(codes));
        self.set(node, 1, Item::Value(scales));
        Ok(())
    }

    /// Quantizes to MXFP8. The scale is the least power of two that keeps the block in range.
    pub(super) fn mxfp8_dynamic_quantize(&mut self, node: &Node) -> Result<(), Problem> {
        let x = self.float(node, 0)?;
        let block = self.block_along_last(node, self.ty(x).rank())?;
        let output = node.int("output_dtype").unwrap_or(i64::from(DataType::FLOAT8E4M3FN.0));
        if block != 32 || output != i64::from(DataType::FLOAT8E4M3FN.0) {
            return self.refuse(node, "only blocks of 32 of FLOAT8E4M3FN codes are MXFP8");
        }
        let rounding = Some(ScaleRounding::Ceil);
        let [codes, scales] = self.quantize(node, &[x], block, rounding, ElementType::F8E4M3FN)?;
        self.set(node, 0, Item::Value(codes));
        self.set(node, 1, Item::Value(scales));
        Ok(())
    }

    pub(super) fn mxfp8_dequantize(&mut self, node: &Node) -> Result<(), Problem> {
        let codes = self.item(node, 0)?;
        let rank = self.shape_of(&codes).len();
        let block = self.block_along_last(node, rank)?;
        let element = self.output_element(node, ElementType::F32)?;
        let scales = self.item(node, 1)?;
        match self.matrix(&codes, &scales, block, element)? {
            Some(matrix) => self.set(node, 0, Item::Dequantized(matrix)),
            None => return self.refuse(node, "its inputs are no FP8 codes with one 8-bit scale per block"),
        }
        Ok(())
    }

    /// Quantizes a weight to NVFP4 and back, with a global scale of amax / 2688.
    pub(super) fn fp4_qdq(&mut self, node: &Node) -> Result<(), Problem> {
        let hint = Translator::hint(node);
        let w = self.float(node, 0)?;
        let element = self.ty(w).element;
        let block = self.block_along_last(node, self.ty(w).rank())?;
        if block != 16 {
            return self.refuse(node, "only blocks of 16 are NVFP4");
        }
        let w = self.converted(&format!("{hint}.f32"), w, ElementType::F32);
        let axes = (0..self.ty(w).rank() as u32).collect();
        let scalar = TensorType::new(Vec::new(), ElementType::F32);
        let amax = OpKind::Reduce { kind: ReduceKind::Amax, axes, keep_dims: false };
        let amax = self.step(&format!("{hint}.amax"), amax, &[w], scalar.clone());
        let range = self.constant(&format!("{hint}.range"), NVFP4_RANGE, ElementType::F32);
        let kind = OpKind::Binary(BinaryKind::Div);
        let global = self.step(&format!("{hint}.global"), kind, &[amax, range], scalar);
        let [codes, scales] = self.quantize(node, &[w, global], block, None, ElementType::F4E2M1FN)?;
        let global = Some(global);
        self.set(
            node,
            0,
            Item::Dequantized(Dequantized { codes, scales, global, block, element, transposed: false }),
        );
        Ok(())
    }

    fn output_element(&self, node: &Node, default: ElementType) -> Result<ElementType, Problem> {
        let Some(ty) = node.int("output_dtype").filter(|ty| *ty != 0) else { return Ok(default) };
        let known = i32::try_from(ty).ok().and_then(|ty| element_of(DataType(ty)));
        match known {
            Some(element) => Ok(element),
            None => self.refuse(node, format!("the type {ty} has no equivalent")),
        }
    }

    /// Codes with one 8-bit scale per block of the last axis. `None` for other tensors.
    fn matrix(
        &mut self,
        codes: &Item,
        scales: &Item,
        block: u32,
        element: ElementType,
    ) -> Result<Option<Dequantized>, Problem> {
        let (shape, scale_shape) = (self.shape_of(codes), self.shape_of(scales));
        let blocks = shape.last().and_then(|last| last.divided_by(u64::from(block)));
        let fits = shape.len() >= 2
            && shape.len() == scale_shape.len()
            && shape[..shape.len() - 1] == scale_shape[..scale_shape.len() - 1]
            && blocks.as_ref() == scale_shape.last();
        if !fits {
            return Ok(None);
        }
        let is_data = |element: ElementType| element.is_block_data();
        let codes = match codes {
            Item::Value(value) if is_data(self.ty(*value).element) => *value,
            Item::Stored(at) if element_of(self.model.stored[*at].ty).is_some_and(is_data) => {
                self.param(*at, None)?
            }
            _ => return Ok(None),
        };
        let scales = match scales {
            Item::Value(value) if self.ty(*value).layout == Some(ScaleLayout::Linear) => *value,
            Item::Stored(at) => {
                let stored = &self.model.stored[*at];
                let scale = match stored.ty {
                    DataType::FLOAT8E4M3FN => ElementType::F8E4M3FN,
                    DataType::FLOAT8E8M0 | DataType::UINT8 => ElementType::F8E8M0FNU,
                    _ => return Ok(None),
                };
                self.param(*at, Some((scale, Some(ScaleLayout::Linear), stored.dims.clone())))?
            }
            _ => return Ok(None),
        };
        // E4M3 scales belong to FP4 codes only.
        let (data, scale) = (self.ty(codes).element, self.ty(scales).element);
        if data != ElementType::F4E2M1FN && scale == ElementType::F8E4M3FN {
            return Ok(None);
        }
        Ok(Some(Dequantized { codes, scales, global: None, block, element, transposed: false }))
    }

    /// Requires that a zero point is zero, as it is for floats.
    fn require_no_zero_point(&self, node: &Node) -> Result<(), Problem> {
        let Some(name) = node.input(2) else { return Ok(()) };
        let Some(stored) = self.model.stored(name) else {
            return self.refuse(node, "its zero point is computed");
        };
        let bytes = stored.read(&self.model.files).map_err(|reason| self.failed(reason))?;
        match bytes.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => self.refuse(node, "its zero point is not zero"),
        }
    }

    pub(super) fn dequantize_linear(&mut self, node: &Node) -> Result<(), Problem> {
        self.require_no_zero_point(node)?;
        let (codes, scale) = (self.item(node, 0)?, self.item(node, 1)?);
        let element = self.element_of_item(node, &codes)?;
        if !element.is_block_data() {
            return self
                .refuse(node, format!("it dequantizes {element}; only FP4 and FP8 have an equivalent"));
        }
        let shape = self.shape_of(&codes);
        let block = node.int("block_size").unwrap_or(0);
        let scale_count = fourfold_ir::dim_product(&self.shape_of(&scale)).and_then(|count| count.as_fixed());
        if block == 0 && scale_count == Some(1) {
            self.set(node, 0, Item::Scaled { codes: Box::new(codes), factor: Box::new(scale) });
            return Ok(());
        }
        let axis = self.axis(node, node.int("axis").unwrap_or(1), shape.len())?;
        if axis + 1 == shape.len() && matches!(block, 16 | 32) {
            let block = block as u32;
            let (scales, factor) = match &scale {
                Item::Scaled { codes, factor } => ((**codes).clone(), Some((**factor).clone())),
                other => (other.clone(), None),
            };
            let default = match &factor {
                Some(factor) => self.element_of_item(node, factor)?,
                None => ElementType::F32,
            };
            let element = self.output_element(node, default)?;
            if let Some(matrix) = self.matrix(&codes, &scales, block, element)? {
                let global = match &factor {
                    Some(factor) => Some(self.factor(node, 1, factor)?),
                    None => None,
                };
                self.set(node, 0, Item::Dequantized(Dequantized { global, ..matrix }));
                return Ok(());
            }
        }
        let codes = self.value(node, 0)?;
        let scale = self.float(node, 1)?;
        let default = self.ty(scale).element;
        let element = self.output_element(node, default)?;
        let hint = Translator::hint(node);
        let values = self.converted(&format!("{hint}.codes"), codes, default);
        let value = self.per_block(node, values, scale, axis, BinaryKind::Mul)?;
        let value = self.converted(&hint, value, element);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// Quantizes with given scales: the written-out form, because block_quantize computes its own.
    pub(super) fn quantize_linear(&mut self, node: &Node) -> Result<(), Problem> {
        self.require_no_zero_point(node)?;
        if node.int("saturate") == Some(0) {
            return self.refuse(node, "saturate is 0, but conversions saturate");
        }
        let zero_point =
            node.input(2).and_then(|name| self.model.stored(name)).and_then(|stored| element_of(stored.ty));
        let Some(element) = (match node.int("output_dtype").filter(|ty| *ty != 0) {
            Some(_) => Some(self.output_element(node, ElementType::F32)?),
            None => zero_point,
        }) else {
            return self.refuse(node, "it quantizes to UINT8, which has no equivalent");
        };
        if !element.is_block_data() {
            return self
                .refuse(node, format!("it quantizes to {element}; only FP4 and FP8 have an equivalent"));
        }
        let x = self.float(node, 0)?;
        let scale = self.float(node, 1)?;
        let rank = self.ty(x).rank();
        let hint = Translator::hint(node);
        let scaled = match self.ty(scale).is_scalar() && node.int("block_size").unwrap_or(0) == 0 {
            true => {
                let scale = self.reshaped(&hint, scale, Vec::new());
                self.pair(node, &format!("{hint}.scaled"), BinaryKind::Div, x, scale)?
            }
            false => {
                let axis = self.axis(node, node.int("axis").unwrap_or(1), rank)?;
                self.per_block(node, x, scale, axis, BinaryKind::Div)?
            }
        };
        let value = self.converted(&hint, scaled, element);
        self.set(node, 0, Item::Value(value));
        Ok(())
    }

    /// Multiplies or divides by one scale per block of an axis, or per index of it.
    fn per_block(
        &mut self,
        node: &Node,
        x: Value,
        scale: Value,
        axis: usize,
        kind: BinaryKind,
    ) -> Result<Value, Problem> {
        let hint = format!("{}.scaled", Translator::hint(node));
        let (shape, scale_shape) = (self.shape(x), self.shape(scale));
        let block = node.int("block_size").unwrap_or(0);
        if block == 0 {
            let [count] = &scale_shape[..] else {
                return self.refuse(node, "its scale is neither one number nor one per index of an axis");
            };
            let mut spread = vec![Dim::fixed(1); shape.len()];
            spread[axis] = count.clone();
            let scale = self.reshaped(&hint, scale, spread);
            return self.pair(node, &hint, kind, x, scale);
        }
        let size = u64::try_from(block).unwrap_or(0);
        let Some(blocks) = shape[axis].divided_by(size) else {
            if let Some(padded) =
                shape[axis].as_fixed().and_then(|extent| extent.checked_next_multiple_of(size))
            {
                let whole = self.resized(&hint, x, axis, padded);
                let scaled = self.per_block(node, whole, scale, axis, kind)?;
                return Ok(self.resized(&hint, scaled, axis, shape[axis].as_fixed().unwrap_or(0)));
            }
            return self
                .refuse(node, format!("the block size {block} does not divide the extent of axis {axis}"));
        };
        let mut expected = shape.clone();
        expected[axis] = blocks.clone();
        if scale_shape != expected {
            return self.refuse(node, "its scales do not have the shape of its blocks");
        }
        let (mut split, mut spread) = (shape.clone(), expected);
        split[axis] = blocks;
        split.insert(axis + 1, Dim::fixed(size));
        spread.insert(axis + 1, Dim::fixed(1));
        let x = self.reshaped(&hint, x, split);
        let scale = self.reshaped(&hint, scale, spread);
        let scaled = self.pair(node, &hint, kind, x, scale)?;
        Ok(self.reshaped(&hint, scaled, shape))
    }

    /// A constant tensor of one repeated number.
    pub(super) fn filled(&mut self, hint: &str, number: f64, ty: TensorType) -> Value {
        self.step(hint, OpKind::Constant(ConstantValue::Splat(number)), &[], ty)
    }
}
