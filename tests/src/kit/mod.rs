//! Random programs over a small kit of parts, for a device: many programs, few kernels.
//!
//! A part is a few ops, such as a norm, a transposition or a product. Kernels are independent of extents, so programs
//! with the same parts share them. Wiring must not create others. So a row part reads inputs, moves and products, which
//! its kernel does not absorb, and each value is read by at most one row part. A symbolic extent, or a number of columns
//! above 256, selects another kernel, so only parts that allow it have one.

mod counts;
mod draft;
mod moves;
mod products;
mod rows;

use fourfold::ir::Program;
use fourfold::ir::sample::{Recipe, Rule};

pub use counts::{KitCounts, unlisted};
use draft::Draft;

use crate::random::Random;

/// The number of programs that run on a GPU.
pub const GPU_PROGRAMS: u64 = 1_000;

/// The maximum number of kernel sources of all programs.
pub const MOST_SOURCES: usize = 40;

/// A program of the kit.
#[derive(Clone, Debug)]
pub struct KitProgram {
    /// The text, with a `; sample:` line for each recipe.
    pub text: String,
    /// The inputs to run it on.
    pub recipes: Vec<Recipe>,
}

/// The extents of the symbol M.
const ROWS: [u64; 16] = [0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 17, 31, 33, 37, 64, 130];

/// Returns the program of a seed, of one to six parts and the moves between them.
pub fn kit_program(seed: u64) -> KitProgram {
    let mut random = Random::new(seed);
    let recipe = |seed: u64, random: &mut Random| {
        let rule = if random.percent(25) { Rule::Exact } else { Rule::Normal };
        Recipe { rule, seed, symbols: vec![("M".to_owned(), random.pick(&ROWS))] }
    };
    let mut recipes = vec![recipe(seed, &mut random)];
    if random.percent(25) {
        recipes.push(recipe(seed ^ 0x5EED, &mut random));
    }
    let mut draft = Draft::new(random);
    for _ in 0..=draft.random.below(6) {
        draft.part();
    }
    let (body, uses_rows) = draft.finish();
    if !uses_rows {
        recipes.iter_mut().for_each(|recipe| recipe.symbols.clear());
    }
    let samples: String = recipes.iter().map(sample).collect();
    KitProgram { text: format!("fir 1\n{samples}{body}"), recipes }
}

impl KitProgram {
    /// The verified program.
    ///
    /// # Panics
    /// Panics if the kit made an invalid one.
    pub fn program(&self) -> Program {
        match fourfold::ir::load(&self.text) {
            Ok((program, _)) => program,
            Err(errors) => panic!("the kit made an invalid program: {}\n{}", errors[0].message, self.text),
        }
    }
}

fn sample(recipe: &Recipe) -> String {
    let symbols = recipe.symbols.iter().map(|(name, extent)| format!(" {name}={extent}"));
    format!("; sample: {} seed={}{}\n", recipe.rule.name(), recipe.seed, symbols.collect::<String>())
}

impl Draft {
    fn part(&mut self) {
        match self.random.below(100) {
            0..=44 => self.row_part(),
            45..=64 => {
                self.move_part();
            }
            65..=79 => {
                self.mma_part();
            }
            80..=94 => self.scaled_mma_part(),
            _ => self.view_part(),
        }
    }
}
