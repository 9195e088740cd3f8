//! Counts over the programs of a kit: kernel sources, segments and refused ops.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use fourfold::Planned;
use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::{KernelSpec, specify, target};
use fourfold::ir::{Capabilities, ElementType, Entity, Op, OpKind, Program, text};
use fourfold::scheduler::{Segment, SegmentKind, Tier};

/// The plans of a set of programs, counted.
#[derive(Debug, Default)]
pub struct KitCounts {
    /// The number of programs.
    pub programs: usize,
    /// Programs with two or more segments of the device tier.
    pub with_two_device: usize,
    /// Programs with two or more segments of either tier.
    pub with_two: usize,
    /// Programs whose device or kernel segments read results of others.
    pub chained: usize,
    /// The number of segments by kind of plan.
    pub segments: BTreeMap<&'static str, usize>,
    /// A source's hash, by specification. Equal specifications have equal sources.
    specs: HashMap<KernelSpec, String>,
    /// Ops outside the device, with their reason and the program's text.
    pub refused: Vec<String>,
}

impl KitCounts {
    /// Adds a planned program.
    pub fn add(&mut self, planned: &Planned, capabilities: &Capabilities) {
        let (program, partition) = (planned.program(), planned.partition());
        self.programs += 1;
        let plans = || partition.plans().map(|(_, plan)| plan);
        self.with_two_device += usize::from(plans().filter(|plan| plan.tier() == Tier::Device).count() > 1);
        self.with_two += usize::from(plans().count() > 1);
        let module = program.module();
        let reads = |(position, segment): (usize, &Segment)| {
            let makers = segment.inputs.iter().filter_map(|value| module.defining_op(*value));
            makers.map(|op| partition.decisions[op.index()].segment).any(|maker| maker != position)
        };
        self.chained += usize::from(partition.segments.iter().enumerate().any(reads));
        for plan in plans() {
            *self.segments.entry(plan.kind_name()).or_default() += 1;
            let target = target(&partition.target);
            let spec = target.and_then(|it| specify(program, plan, it, CutlassVersion::PINNED, None));
            if let Some((spec, _)) = spec {
                self.specs.entry(spec).or_insert_with_key(|spec| spec.emit().hash);
            }
        }
        for segment in &partition.segments {
            if !matches!(segment.kind, SegmentKind::Fallback) {
                continue;
            }
            for op in segment.ops.iter().filter(|op| unlisted(program, **op, capabilities).is_none()) {
                let rejection = &partition.decisions[op.index()].rejection;
                let why =
                    rejection.as_ref().map_or(String::new(), |it| format!("{}: {}", it.code, it.message));
                self.refused.push(format!("{}: {why}", text::print_op(module, *op)));
            }
        }
    }

    /// The number of distinct kernel sources.
    pub fn sources(&self) -> usize {
        self.specs.values().collect::<HashSet<_>>().len()
    }

    /// The names and signatures of the kernels, sorted.
    pub fn kernels(&self) -> Vec<String> {
        let mut kernels: Vec<String> =
            self.specs.keys().map(|spec| format!("{}: {}", spec.name(), spec.signature())).collect();
        kernels.sort();
        kernels
    }
}

impl fmt::Display for KitCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KitCounts { programs, with_two_device, with_two, chained, .. } = self;
        writeln!(f, "{programs} programs, {} distinct kernel sources", self.sources())?;
        writeln!(f, "{with_two_device} programs with two or more device segments")?;
        writeln!(
            f,
            "{with_two} with two or more segments of either tier, {chained} whose segments read others"
        )?;
        let segments: Vec<String> =
            self.segments.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        writeln!(f, "segments: {}", segments.join(", "))?;
        write!(f, "products of the library: {}", self.segments.get("mma").copied().unwrap_or(0))
    }
}

/// Returns the first element type of an op that the capabilities of its kind do not list. `None` if they list all of
/// them, so that the op must run on the device.
pub fn unlisted(program: &Program, op: Op, capabilities: &Capabilities) -> Option<ElementType> {
    let module = program.module();
    let operation = &module.ops[op];
    let values = operation.operands.iter().chain(&operation.results);
    let mut elements = values.map(|value| module.ty(*value).element);
    let device = &capabilities.device;
    let first = || module.ty(operation.results[0]).element;
    match &operation.kind {
        OpKind::Mma => {
            let [a, b] = [0, 1].map(|index| module.ty(operation.operands[index]).element);
            let types = [a, b, first()];
            let is_listed = device.mma.as_ref().is_some_and(|mma| mma.elements.contains(&types));
            (!is_listed).then_some(a)
        }
        OpKind::ScaledMma(_) => {
            let format = program.facts().matmul(op)?.format;
            let rule = capabilities.format(format);
            let is_listed = rule.is_some_and(|rule| rule.output(first()).is_some());
            (!is_listed).then_some(first())
        }
        OpKind::Transpose { .. }
        | OpKind::Broadcast
        | OpKind::Slice { .. }
        | OpKind::Pad { .. }
        | OpKind::Concat { .. }
        | OpKind::Choose { .. }
        | OpKind::Gather { .. }
        | OpKind::Reshape
        | OpKind::SwizzleScales
        | OpKind::PaddedEnds { .. }
        | OpKind::GroupScales
        | OpKind::GroupRows { .. }
        | OpKind::ScatterAdd
        | OpKind::TopK { .. } => {
            let listed = device.moves.as_ref().map_or(&[][..], |moves| &moves.elements[..]);
            elements.find(|element| !listed.contains(element))
        }
        _ => {
            let listed = device.rows.as_ref().map_or(&[][..], |rows| &rows.elements[..]);
            elements.find(|element| !listed.contains(element))
        }
    }
}
