//! Prepares the library: device functions in PTX for sm_90a, which are inserted into each rewritten kernel.

use std::collections::BTreeSet;

use super::edit::Edit;
use super::error::{PtxText, RewriteError, RewriteProblem};
use super::header::header;
use super::replace::check;
use super::statement::{Module, Statement, StatementKind};
use super::vocabulary::{check_directive, check_function};

/// The linkage words that the library's functions lose: nothing outside of the kernel's text links with them. The host
/// looks up variables in global memory.
const EXPORTED: [&str; 2] = [".visible", ".weak"];

const GLOBAL: &str = ".global";

/// A library without header and exports.
pub(super) struct Library<'a> {
    /// The PTX version.
    pub version: &'a str,
    /// The text to insert.
    pub text: String,
    /// The functions that it defines.
    pub functions: BTreeSet<&'a str>,
}

impl<'a> Library<'a> {
    /// Parses and checks a library.
    pub fn parse(text: &'a str, target: &str) -> Result<Library<'a>, RewriteError> {
        let module = Module::parse(PtxText::Library, text)?;
        let header = header(&module)?;
        let mut edits = vec![Edit { range: header.range.clone(), text: String::new() }];
        if header.target != target {
            let problem = RewriteProblem::Target(header.target.to_owned());
            return Err(module.error(&module.statements[1], problem));
        }
        let mut functions = BTreeSet::new();
        let mut depth = 0_usize;
        for statement in &module.statements[header.statements..] {
            check_statement(statement, &mut depth).map_err(|problem| module.error(statement, problem))?;
            if let StatementKind::Function { name, declared: false, .. } = statement.kind {
                functions.insert(name);
            }
            if depth == 0 && !statement.dotted().any(|word| word == GLOBAL) {
                edits.extend(exports(&module, statement));
            }
        }
        if depth > 0 {
            return Err(module.error_at_end(RewriteProblem::Structure));
        }
        Ok(Library { version: header.version, text: Edit::apply(text, edits), functions })
    }
}

fn check_statement(statement: &Statement<'_>, depth: &mut usize) -> Result<(), RewriteProblem> {
    match &statement.kind {
        StatementKind::Version(_) | StatementKind::Target(_) | StatementKind::AddressSize(_) => {
            Err(RewriteProblem::Header)
        }
        StatementKind::Open => {
            *depth += 1;
            Ok(())
        }
        StatementKind::Close => {
            *depth = depth.checked_sub(1).ok_or(RewriteProblem::Structure)?;
            Ok(())
        }
        StatementKind::Function { entry: true, .. } => Err(RewriteProblem::Directive(".entry".to_owned())),
        StatementKind::Function { .. } if *depth > 0 => Err(RewriteProblem::Structure),
        StatementKind::Function { .. } => check_function(statement.dotted()),
        StatementKind::Directive(name) => check_directive(name, statement.dotted()),
        StatementKind::Instruction(_) | StatementKind::Label | StatementKind::Empty if *depth == 0 => {
            Err(RewriteProblem::Structure)
        }
        StatementKind::Instruction(instruction) => check(instruction),
        StatementKind::Label | StatementKind::Empty => Ok(()),
    }
}

/// Returns the edits that remove the exporting words of a declaration, each with the blanks after it.
fn exports<'m>(module: &'m Module<'_>, statement: &'m Statement<'_>) -> impl Iterator<Item = Edit> + 'm {
    let leading = statement.tokens.windows(2).take_while(|pair| pair[0].is_dotted());
    leading.filter(|pair| EXPORTED.contains(&pair[0].text)).map(|pair| {
        let gap = module.text.get(pair[0].end()..pair[1].offset).unwrap_or_default();
        let end = if gap.trim().is_empty() { pair[1].offset } else { pair[0].end() };
        Edit { range: pair[0].offset..end, text: String::new() }
    })
}
