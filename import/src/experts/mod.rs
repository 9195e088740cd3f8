//! Mixtures of experts: feed-forward blocks with a router and several experts, each of which computes some rows.

mod program;
mod stack;

use std::collections::BTreeSet;

use fourfold_ir::{ElementType, UnaryKind};
use serde_json::Value;

use crate::below;
use crate::checkpoint::Checkpoint;
use crate::fields::stored;
use crate::groups::ByName;
use crate::imported::{LeftOut, LeftOutCode};
use crate::linear::{Linear, Stored};
use crate::settings;
pub(crate) use program::program;
use stack::Stack;

/// The steepness of the sigmoid of gpt-oss.
const STEEPNESS: f64 = 1.702;

/// The limit of gpt-oss where the configuration states none.
const LIMIT: f64 = 7.0;

/// The endings of the names of stacked tensors of gpt-oss, after the name of the projection.
const STACKED: [&str; 7] =
    ["", "_blocks", "_scales", "_bias", "_weight_scale", "_weight_scale_2", "_input_scale"];

/// A mixture of experts of a known architecture.
#[derive(Debug)]
pub(crate) struct Experts<'a> {
    /// The path of the module.
    pub(crate) name: String,
    /// The path of the router.
    pub(crate) router_module: String,
    router: Router<'a>,
    routing: Routing,
    /// The number of experts.
    count: u64,
    /// The number of experts of each row.
    top: u64,
    inner: Inner<'a>,
    gating: Gating,
    down: Stack<'a>,
}

/// The linear that scores experts.
#[derive(Debug)]
enum Router<'a> {
    Plain { weight: Box<Stored>, bias: Option<Box<Stored>> },
    Quantized(&'a Linear),
}

/// The weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Routing {
    /// Softmax over all scores, then the greatest.
    Softmax {
        /// True if the weights of a row are divided by their sum.
        is_normalized: bool,
    },
    /// The greatest scores, then softmax over these.
    Chosen,
}

/// The projections before the function.
#[derive(Debug)]
enum Inner<'a> {
    Separate {
        gate: Stack<'a>,
        up: Stack<'a>,
    },
    /// Rows of gate and up alternate.
    Interleaved(Stack<'a>),
}

/// The function of gate and up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gating {
    /// f(gate) · up.
    Product(UnaryKind),
    /// g · sigmoid(1.702 g) · (u + 1), where g is gate up to the limit, and u is up within it.
    Clamped { limit: f64 },
}

/// Finds the mixtures of experts of a model, and those that have no program. `input` is the type of x.
pub(crate) fn find<'a>(
    linears: &ByName<'a>,
    checkpoint: &Checkpoint,
    input: ElementType,
) -> (Vec<Experts<'a>>, Vec<LeftOut>) {
    let block_of = |name: &&'a str| name.split_once(".experts.").map(|(block, _)| block);
    let blocks: BTreeSet<&str> = linears.keys().filter_map(block_of).collect();
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for name in blocks {
        match (Reader { linears, checkpoint, name, input }).read() {
            Ok(experts) => found.push(experts),
            Err(reason) => {
                let message = format!("no mixture of experts is built: {reason}");
                let name = name.to_owned();
                left_out.push(LeftOut { name, code: LeftOutCode::UnsupportedBlock, message });
            }
        }
    }
    (found, left_out)
}

/// Reads a mixture of experts.
struct Reader<'a, 'b> {
    linears: &'b ByName<'a>,
    checkpoint: &'b Checkpoint,
    /// The path of the block.
    name: &'b str,
    input: ElementType,
}

impl<'a> Reader<'a, '_> {
    fn read(&self) -> Result<Experts<'a>, String> {
        let config = &self.checkpoint.config;
        let Some(architecture) = config["model_type"].as_str() else {
            return Err("no configuration states the architecture (`model_type`)".to_owned());
        };
        let (router, routing, extent) = match architecture {
            "mixtral" => ("gate", Routing::Softmax { is_normalized: true }, "intermediate_size"),
            "qwen3_moe" => {
                let is_normalized = match &config["norm_topk_prob"] {
                    Value::Null => false,
                    Value::Bool(it) => *it,
                    other => {
                        return Err(format!("the setting `norm_topk_prob` is {other}, not true or false"));
                    }
                };
                ("gate", Routing::Softmax { is_normalized }, "moe_intermediate_size")
            }
            "gpt_oss" => ("router", Routing::Chosen, "intermediate_size"),
            _ => return Err(format!("no mixture of experts is known for the architecture `{architecture}`")),
        };
        let gating = self.gating(architecture)?;
        settings::of_experts(config)?;
        let count = self.count()?;
        let (inner, down) = self.projections(count)?;
        let first = match &inner {
            Inner::Separate { gate, .. } => gate.first(),
            Inner::Interleaved(both) => both.first(),
        };
        settings::check_extent(config, "hidden_size", first.k)?;
        settings::check_extent(config, extent, down.first().k)?;
        let router_module = format!("{}.{router}", self.name);
        let has_bias = architecture == "gpt_oss";
        let experts = Experts {
            name: self.name.to_owned(),
            router: self.router(&router_module, [count, first.k], has_bias)?,
            router_module,
            routing,
            count,
            top: self.top(count)?,
            inner,
            gating,
            down,
        };
        self.check_biases(&experts, has_bias)?;
        self.check_below(&experts)?;
        Ok(experts)
    }

    fn gating(&self, architecture: &str) -> Result<Gating, String> {
        let config = &self.checkpoint.config;
        if architecture != "gpt_oss" {
            return Ok(Gating::Product(settings::of_feed_forward(config, self.name)?));
        }
        let mut others = config.clone();
        if let Some(settings) = others.as_object_mut() {
            ["swiglu_limit", "swiglu_alpha"].into_iter().for_each(|key| drop(settings.remove(key)));
        }
        if settings::of_feed_forward(&others, self.name)? != UnaryKind::Silu {
            return Err("the function of gpt-oss is not `silu`".to_owned());
        }
        let number = |key: &str, default: f64| match &config[key] {
            Value::Null => Ok(default),
            stated => stated.as_f64().ok_or_else(|| format!("the setting `{key}` is {stated}")),
        };
        let (limit, steepness) = (number("swiglu_limit", LIMIT)?, number("swiglu_alpha", STEEPNESS)?);
        if steepness != STEEPNESS || limit <= 0.0 {
            return Err(format!("`swiglu_alpha` is {steepness} and `swiglu_limit` is {limit}"));
        }
        Ok(Gating::Clamped { limit })
    }

    /// The number of experts, which the configuration and the tensors state.
    fn count(&self) -> Result<u64, String> {
        let config = &self.checkpoint.config;
        let keys = ["num_local_experts", "num_experts"];
        let [one, other] = keys.map(|key| stated(config, key));
        let (one, other) = (one?, other?);
        if let Some((one, other)) = one.zip(other).filter(|(one, other)| one != other) {
            return Err(format!("the setting `{}` is {one}, but `{}` is {other}", keys[0], keys[1]));
        }
        let Some((key, stated)) = one.map(|it| (keys[0], it)).or(other.map(|it| (keys[1], it))) else {
            return Err(format!("no configuration states the number of experts (`{}`)", keys.join("` or `")));
        };
        let prefix = format!("{}.experts.", self.name);
        let index = |name: &str| name.strip_prefix(&prefix)?.split('.').next()?.parse::<u64>().ok();
        let modules = self.checkpoint.modules.keys().map(String::as_str);
        let found: BTreeSet<u64> = modules.chain(self.linears.keys().copied()).filter_map(index).collect();
        let has = found.len() as u64;
        if stated == 0 || has != stated {
            return Err(format!("the setting `{key}` is {stated}, but the tensors are of {has} experts"));
        }
        match (0..stated).find(|index| !found.contains(index)) {
            Some(missing) => Err(format!("expert {missing} has no tensors")),
            None => Ok(stated),
        }
    }

    fn top(&self, count: u64) -> Result<u64, String> {
        let config = &self.checkpoint.config;
        let keys = ["num_experts_per_tok", "experts_per_token"];
        let known = keys.into_iter().find(|key| !config[*key].is_null()).unwrap_or(keys[0]);
        match stated(config, known)? {
            Some(top) if (1..=count).contains(&top) => Ok(top),
            Some(top) => {
                Err(format!("the setting `{known}` is {top}, not from 1 to the number of experts, {count}"))
            }
            None => {
                Err(format!("no configuration states the experts of each row (`{}`)", keys.join("` or `")))
            }
        }
    }

    fn projections(&self, count: u64) -> Result<(Inner<'a>, Stack<'a>), String> {
        let path = |expert: u64, part: &str| format!("{}.experts.{expert}.{part}", self.name);
        let has = |part: &str| {
            let is_module = |expert| self.checkpoint.modules.contains_key(&path(expert, part));
            (0..count).any(|expert| self.linears.contains_key(&*path(expert, part)) || is_module(expert))
        };
        let stack = |part: &str| {
            let of = |expert: u64| {
                let linear = self.linears.get(&*path(expert, part)).copied();
                linear.ok_or_else(|| format!("`experts.{expert}.{part}` is not imported"))
            };
            Stack::new((0..count).map(of).collect::<Result<_, _>>()?, self.input)
        };
        if has("gate_up_proj") {
            let (both, down) = (stack("gate_up_proj")?, stack("down_proj")?);
            let fits = both.first().n == down.first().k.saturating_mul(2) && both.first().k == down.first().n;
            return if fits { Ok((Inner::Interleaved(both), down)) } else { Err(UNFIT.to_owned()) };
        }
        let names = if has("w1") { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
        let [gate, up, down] = names.map(stack);
        let (gate, up, down) = (gate?, up?, down?);
        let [of_gate, of_up, of_down] = [&gate, &up, &down].map(|stack| (stack.first().n, stack.first().k));
        if of_gate != of_up || of_gate != (of_down.1, of_down.0) {
            return Err(UNFIT.to_owned());
        }
        Ok((Inner::Separate { gate, up }, down))
    }

    fn router(&self, module: &str, [count, hidden]: [u64; 2], has_bias: bool) -> Result<Router<'a>, String> {
        let own = module.rsplit('.').next().unwrap_or(module);
        if let Some(linear) = self.linears.get(module).copied() {
            let fits = (linear.n, linear.k) == (count, hidden) && linear.bias.is_some() == has_bias;
            let message = || format!("`{own}` is no linear of {hidden} inputs and {count} experts");
            return if fits { Ok(Router::Quantized(linear)) } else { Err(message()) };
        }
        let tensors = self.checkpoint.modules.get(module);
        let plain = |field: &str, shape: &[u64]| {
            let tensor = tensors.and_then(|tensors| tensors.get(field));
            let tensor = tensor.ok_or_else(|| format!("it has no tensor `{own}.{field}`"))?;
            stored(tensor, shape).map_err(|_| {
                format!("`{own}.{field}` is {}, expected a plain tensor of {shape:?}", tensor.form())
            })
        };
        let bias = has_bias.then(|| plain("bias", &[count]).map(Box::new)).transpose()?;
        Ok(Router::Plain { weight: Box::new(plain("weight", &[count, hidden])?), bias })
    }

    fn check_biases(&self, experts: &Experts<'_>, expected: bool) -> Result<(), String> {
        let unlike = experts.stacks().into_iter().find(|stack| stack.first().bias.is_some() != expected);
        let Some(stack) = unlike else { return Ok(()) };
        let name = stack.first().name.strip_prefix(self.name).unwrap_or_default().trim_start_matches('.');
        let [found, stated] = if expected { ["no bias", "one"] } else { ["a bias", "none"] };
        Err(format!("`{name}` has {found}, but the architecture has {stated}"))
    }

    /// Fails if a tensor below the block is not used.
    fn check_below(&self, experts: &Experts<'_>) -> Result<(), String> {
        let mut others: Vec<String> =
            ["weight", "bias"].map(|field| format!("{}.{field}", experts.router_module)).to_vec();
        if !matches!(&experts.router, Router::Plain { bias: Some(_), .. }) {
            others.pop();
        }
        for part in ["gate_up_proj", "down_proj"] {
            others.extend(STACKED.map(|ending| format!("{}.experts.{part}{ending}", self.name)));
        }
        let stacks = experts.stacks();
        let linears = stacks.iter().flat_map(|stack| stack.experts().iter().copied());
        let router = match &experts.router {
            Router::Quantized(linear) => Some(*linear),
            Router::Plain { .. } => None,
        };
        let linears: Vec<&Linear> = linears.chain(router).collect();
        below::check(self.checkpoint, (self.name, self.name), linears.iter().copied(), &others)
    }
}

/// The whole number that a setting states, if there is one.
fn stated(config: &Value, key: &str) -> Result<Option<u64>, String> {
    match &config[key] {
        Value::Null => Ok(None),
        value => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| format!("the setting `{key}` is {value}, not a whole number")),
    }
}

/// The reason of extents that contradict each other.
const UNFIT: &str = "the extents of its projections do not fit";

impl<'a> Experts<'a> {
    /// Every projection.
    fn stacks(&self) -> Vec<&Stack<'a>> {
        match &self.inner {
            Inner::Separate { gate, up } => vec![gate, up, &self.down],
            Inner::Interleaved(both) => vec![both, &self.down],
        }
    }

    fn hidden(&self) -> u64 {
        self.down.first().n
    }
}
