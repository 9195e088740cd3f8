//! The runtime and the model transform named `fourfold`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;

use fourfold::ir::{Invalid, Module, Op as FourfoldOp, Place, verify};
use fourfold::{Backend, Claim, ClaimedSegment, CompileOptions, Compiled, Options, Planned, Session};
use tract_core::internal::*;
use tract_core::transform::ModelTransform;

use crate::error::Error;
use crate::extract::{Extract, extract};
use crate::import::{Imported, import, is_leaf};
use crate::order::late;
use crate::report::{Fate, NodeReport, Reason, Report, SegmentReport, reason};
use crate::segment::Segment;

/// The name of the runtime and of the transform.
pub const NAME: &str = "fourfold";

/// The property of a rewritten model that holds its [`Report`] as text.
pub const REPORT_PROPERTY: &str = "fourfold.report";

/// Runs the block-scaled FP4 products of a model, with the ops around them, as kernels of Fourfold. Everything else
/// stays with tract's own CPU plan.
///
/// As a [`Runtime`] it declutters, rewrites and optimizes a model. As a [`ModelTransform`] it only rewrites. The one
/// registered as `fourfold` has default options: the first GPU, or the CPU fallback without one.
#[derive(Debug, Default)]
pub struct Fourfold {
    options: Option<Box<(Options, CompileOptions)>>,
}

impl Fourfold {
    /// A runtime with default options.
    pub const fn with_defaults() -> Fourfold {
        Fourfold { options: None }
    }

    /// A runtime with other options. [`Options::claim`] is not used: tract keeps all ops outside kernels.
    pub fn new(options: Options, compile: CompileOptions) -> Fourfold {
        Fourfold { options: Some(Box::new((options, compile))) }
    }

    /// Replaces each kernel segment of Fourfold's plan by one node, and returns the reasons of all nodes that stay with
    /// tract. A model without such a segment is unchanged. [`TypedModel::declutter`] should run before.
    ///
    /// # Errors
    /// [`Error::Fourfold`] when the target does not exist, the device fails, or memory runs out; [`Error::Tract`] when
    /// the model is inconsistent. The model is unchanged then. A node that cannot be translated is no error.
    pub fn rewrite(&self, model: &mut TypedModel) -> Result<Report, Error> {
        let (options, compile) = self.options.as_deref().cloned().unwrap_or_default();
        let kernels = Backend::new(&options.clone().claim(Claim::KernelsOnly))?;
        let backend = Backend::new(&options.claim(Claim::Everything))?;
        let mut plan = plan(model, &kernels).map_err(Error::Tract)?;
        let mut report = Report { target: backend.capabilities().target.clone(), ..Report::default() };
        let mut planned = Vec::with_capacity(plan.segments.len());
        for segment in &plan.segments {
            planned.push(backend.plan_module(segment.extract.module.clone())?);
        }
        let names: Vec<String> = plan.segments.iter().map(|segment| segment.name(model)).collect();
        let texts: Vec<String> = planned.iter().map(kernel_text).collect();
        let compiled = backend.compile_all(planned, &compile, &|_| {});
        let unavailable = compiled.iter().map(unavailable);
        report.segments = names
            .iter()
            .zip(unavailable)
            .map(|(name, unavailable)| SegmentReport { name: name.clone(), unavailable })
            .collect();
        let mut rewritten = model.clone();
        if !compiled.is_empty() {
            let mut sessions = Vec::with_capacity(compiled.len());
            for (compiled, segment) in compiled.iter().zip(&mut plan.segments) {
                let session = compiled.session(std::mem::take(&mut segment.extract.params))?;
                sessions.push(Arc::new(Mutex::new(session)));
            }
            patch(&mut rewritten, &plan.segments, &names, &texts, &sessions).map_err(Error::Tract)?;
        }
        report.nodes = nodes(model, &rewritten, &plan).map_err(Error::Tract)?;
        rewritten.compact().map_err(Error::Tract)?;
        rewritten.properties.insert(REPORT_PROPERTY.to_owned(), rctensor0(report.to_string()));
        *model = rewritten;
        Ok(report)
    }
}

/// The segments of a model, and the reasons of other nodes.
struct Plan {
    segments: Vec<PlannedSegment>,
    reasons: BTreeMap<usize, Reason>,
}

struct PlannedSegment {
    nodes: BTreeSet<usize>,
    extract: Extract,
}

impl PlannedSegment {
    fn name(&self, model: &TypedModel) -> String {
        let last = self.nodes.last().map_or("segment", |id| model.node(*id).name.as_str());
        format!("{last}.fourfold")
    }
}

/// Translates and partitions the model. Repeats this without the nodes that the verifier refuses, or that a segment
/// cannot hold.
fn plan(model: &TypedModel, backend: &Backend) -> TractResult<Plan> {
    let mut refused = BTreeMap::new();
    loop {
        let mut imported = import(model, &refused)?;
        if imported.nodes.is_empty() || imported.module.outputs.is_empty() {
            return Ok(Plan { segments: Vec::new(), reasons: imported.kept });
        }
        let module = std::mem::replace(&mut imported.module, Module::new("model"));
        let program = match verify(module) {
            Ok(program) => program,
            Err(invalid) => {
                refuse_invalid(&invalid, &imported, &mut refused);
                continue;
            }
        };
        imported.module = program.module().clone();
        let planned = backend.plan(program);
        let claims = planned.claimed();
        let groups: Vec<BTreeSet<usize>> = claims.iter().map(|claim| nodes_of(&imported, claim)).collect();
        let before = refused.len();
        for id in late(model, &groups) {
            let message = "an op of tract lies between it and the rest of its segment";
            refused.insert(id, Reason::new(reason::BEHIND_HOST_OP, message));
        }
        if refused.len() == before {
            return Ok(choose(imported, &planned, &claims, groups));
        }
    }
}

/// Refuses the nodes of the ops in error, or of the ops that read an input in error.
fn refuse_invalid(invalid: &Invalid, imported: &Imported, refused: &mut BTreeMap<usize, Reason>) {
    let before = refused.len();
    let ops = || invalid.module.ops.iter();
    for error in &invalid.errors {
        let reason = Reason::new(reason::INVALID, error.kind.to_string());
        let at: Vec<FourfoldOp> = match error.place {
            Place::Op(op) => vec![op],
            Place::Input(index) => {
                let value = invalid.module.inputs[index];
                ops().filter(|(_, op)| op.operands.contains(&value)).map(|(op, _)| op).collect()
            }
            Place::Module | Place::Output(_) => Vec::new(),
        };
        for op in at {
            let results = &invalid.module.ops[op].results;
            // A change of scale layout stands for no node: its readers do.
            let readers =
                ops().filter(|(_, reader)| results.iter().any(|result| reader.operands.contains(result)));
            let own = imported.nodes.get(&op).copied();
            let nodes = match own {
                Some(id) => vec![id],
                None => readers.filter_map(|(reader, _)| imported.nodes.get(&reader).copied()).collect(),
            };
            refused.extend(nodes.into_iter().map(|id| (id, reason.clone())));
        }
    }
    if refused.len() == before {
        let message = invalid.errors.first().map_or_else(String::new, |error| error.kind.to_string());
        let reason = Reason::new(reason::INVALID, message);
        refused.extend(imported.nodes.values().map(|id| (*id, reason.clone())));
    }
}

fn nodes_of(imported: &Imported, claim: &ClaimedSegment) -> BTreeSet<usize> {
    claim.ops.iter().filter_map(|op| imported.nodes.get(op).copied()).collect()
}

fn choose(
    imported: Imported,
    planned: &Planned,
    claims: &[ClaimedSegment],
    groups: Vec<BTreeSet<usize>>,
) -> Plan {
    let claimed: HashSet<FourfoldOp> = claims.iter().flat_map(|claim| claim.ops.iter().copied()).collect();
    let mut reasons = imported.kept.clone();
    for (op, id) in &imported.nodes {
        let rejection = planned.partition().decisions.get(fourfold::ir::Entity::index(*op));
        if let Some(rejection) = rejection.and_then(|decision| decision.rejection.as_ref()) {
            reasons.insert(*id, Reason::new(rejection.code.as_str(), rejection.message.clone()));
        }
    }
    let mut segments = Vec::new();
    for (claim, nodes) in claims.iter().zip(groups) {
        match extract(&imported, claim, &claimed) {
            Some(extract) => segments.push(PlannedSegment { nodes, extract }),
            None => {
                let constant = Reason::new(reason::CONSTANT, "all its operands are constants");
                reasons.extend(nodes.into_iter().map(|id| (id, constant.clone())));
            }
        }
    }
    Plan { segments, reasons }
}

/// The name of the kernel in Fourfold's reports.
fn kernel_text(planned: &Planned) -> String {
    let labels =
        planned.partition().kernels().flat_map(|(segment, _)| &planned.partition().segments[segment].ops);
    let module = planned.program().module();
    labels.map(|op| module.ops[*op].kind.mnemonic()).collect::<Vec<_>>().join("+")
}

/// The reason that a segment's kernel cannot run here.
fn unavailable(compiled: &Compiled) -> Option<(String, String)> {
    let partition = compiled.planned().partition();
    let mut kernels = partition.kernels();
    let reason = kernels.find_map(|(segment, _)| compiled.unavailable(segment))?;
    Some((reason.code.to_owned(), reason.message.clone()))
}

/// Puts one node in place of each segment.
fn patch(
    model: &mut TypedModel,
    segments: &[PlannedSegment],
    names: &[String],
    kernels: &[String],
    sessions: &[Arc<Mutex<Session>>],
) -> TractResult<()> {
    let mut patch = TypedModelPatch::new("fourfold segments");
    let mut wires: HashMap<OutletId, OutletId> = HashMap::new();
    for (number, segment) in segments.iter().enumerate() {
        let Extract { inputs, outputs, symbols, .. } = &segment.extract;
        let mut taps = tvec!();
        for (_, outlet, _) in inputs {
            let tap = match wires.get(outlet) {
                Some(wire) => *wire,
                None => patch.tap_model(model, *outlet)?,
            };
            wires.insert(*outlet, tap);
            taps.push(tap);
        }
        let mut facts = Vec::with_capacity(outputs.len());
        for (outlet, form) in outputs {
            let fact = model.outlet_fact(*outlet)?;
            facts.push((*form, fact.datum_type.fact(fact.shape.to_tvec())));
        }
        let op = Segment {
            session: Arc::clone(&sessions[number]),
            kernel: kernels[number].clone(),
            inputs: inputs.iter().map(|(name, _, form)| (name.clone(), *form)).collect(),
            outputs: facts,
            symbols: symbols.clone(),
        };
        let results = patch.wire_node(names[number].clone(), op, &taps)?;
        for ((outlet, _), result) in outputs.iter().zip(results) {
            patch.shunt_outside(model, *outlet, result)?;
            wires.insert(*outlet, result);
        }
    }
    patch.apply(model)
}

/// The fate of each node of the model.
fn nodes(model: &TypedModel, rewritten: &TypedModel, plan: &Plan) -> TractResult<Vec<NodeReport>> {
    let live: HashSet<usize> = rewritten.eval_order()?.into_iter().collect();
    let mut reports = Vec::new();
    for id in model.eval_order()? {
        let node = model.node(id);
        if is_leaf(node) {
            continue;
        }
        let fate = match plan.segments.iter().position(|segment| segment.nodes.contains(&id)) {
            Some(segment) => Fate::Segment(segment),
            None if !live.contains(&id) => Fate::Absorbed,
            None => {
                let unknown = || Reason::new(reason::UNSUPPORTED_OP, "it is not in the plan");
                Fate::Kept(plan.reasons.get(&id).cloned().unwrap_or_else(unknown))
            }
        };
        reports.push(NodeReport { name: node.name.clone(), op: node.op.name().into_owned(), fate });
    }
    Ok(reports)
}

impl ModelTransform for Fourfold {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    fn transform(&self, model: &mut TypedModel) -> TractResult<()> {
        self.rewrite(model)?;
        Ok(())
    }
}

impl Runtime for Fourfold {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    fn check(&self) -> TractResult<()> {
        Ok(())
    }

    fn prepare_with_options(
        &self,
        mut model: TypedModel,
        options: &RunOptions,
    ) -> TractResult<Box<dyn Runnable>> {
        model.declutter()?;
        self.rewrite(&mut model)?;
        model.optimize()?;
        Ok(Box::new(TypedSimplePlan::new_with_options(model, options)?))
    }
}

register_runtime!(Fourfold = Fourfold::with_defaults());
register_simple_model_transform!("fourfold", Fourfold::with_defaults());
