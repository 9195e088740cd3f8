//! Rewrites a kernel: replaces its header and instructions, and inserts the library.

use super::edit::Edit;
use super::error::{PtxText, RewriteError, RewriteProblem};
use super::header::header;
use super::library::Library;
use super::replace::{enter, is_try_cancel, is_try_wait, replace};
use super::statement::{Instruction, Module, Statement, StatementKind};
use super::synchronize::SINCE;
use super::vocabulary::{check_directive, check_function};

/// The targets of the kernels that are rewritten.
const SOURCES: [&str; 2] = ["sm_100a", "sm_103a"];

/// The target of the rewritten kernel, and of the library.
const TARGET: &str = "sm_90a";

/// The functions of the CUDA device runtime that a kernel may declare.
const RUNTIME: [&str; 4] = ["vprintf", "__assertfail", "malloc", "free"];

/// The declarations after which code may begin.
const DECLARATIONS: [&str; 5] = [".reg", ".local", ".shared", ".param", ".const"];

/// Rewrites the PTX of an sm_100a or sm_103a kernel for sm_90a.
///
/// `library` is PTX for sm_90a, of the same version, with the device functions that replace missing instructions.
/// It is inserted after the kernel's header. Each replaced instruction becomes a scope `{ .. }` that quotes it in
/// a comment. Every other byte of the kernel stays the same.
///
/// # Errors
/// Returns the first statement that the rewriter does not know, in the library or the kernel.
pub fn rewrite(kernel: &str, library: &str) -> Result<String, RewriteError> {
    let library = Library::parse(library, TARGET)?;
    let module = Module::parse(PtxText::Kernel, kernel)?;
    let header = header(&module)?;
    let [version, target, ..] = module.statements.as_slice() else {
        return Err(module.error_at_end(RewriteProblem::Header));
    };
    if header.version != library.version {
        return Err(module.error(version, RewriteProblem::Version(library.version.to_owned())));
    }
    if !SOURCES.contains(&header.target) {
        return Err(module.error(target, RewriteProblem::Target(header.target.to_owned())));
    }
    let mut rewriter = Rewriter { library: &library, edits: Vec::new(), depth: 0, body: None };
    rewriter.edits.push(Edit { range: target.range(), text: format!(".target {TARGET}") });
    let text = format!("\n\n{}\n", library.text.trim());
    rewriter.edits.push(Edit { range: header.range.end..header.range.end, text });
    for statement in &module.statements[header.statements..] {
        rewriter.statement(statement).map_err(|problem| module.error(statement, problem))?;
    }
    match rewriter.body {
        None => Ok(Edit::apply(kernel, rewriter.edits)),
        Some(_) => Err(module.error_at_end(RewriteProblem::Structure)),
    }
}

/// The body of a function that is being read.
struct Body {
    entry: bool,
    /// The byte offset after the register declarations, where code may be inserted.
    start: usize,
    /// No statement but declarations was read yet.
    declares: bool,
    /// It waits on a barrier.
    waits: bool,
    /// It cancels launches of other CTAs.
    cancels: bool,
}

/// The state between two statements of a kernel.
struct Rewriter<'l, 'a> {
    library: &'l Library<'a>,
    edits: Vec<Edit>,
    /// The number of open braces.
    depth: usize,
    /// The function whose header was read; its body ends with the last brace.
    body: Option<Body>,
}

impl Rewriter<'_, '_> {
    fn statement(&mut self, statement: &Statement<'_>) -> Result<(), RewriteProblem> {
        match &statement.kind {
            StatementKind::Version(_) | StatementKind::Target(_) | StatementKind::AddressSize(_) => {
                Err(RewriteProblem::Header)
            }
            StatementKind::Open => self.open(statement),
            StatementKind::Close => self.close(),
            StatementKind::Function { .. } if self.body.is_some() => Err(RewriteProblem::Structure),
            StatementKind::Function { entry, name, declared } => {
                check_function(statement.dotted())?;
                if *declared {
                    return self.declaration(statement, name);
                }
                self.body =
                    Some(Body { entry: *entry, start: 0, declares: true, waits: false, cancels: false });
                Ok(())
            }
            StatementKind::Directive(name) => {
                check_directive(name, statement.dotted())?;
                if let Some(body) = self.body.as_mut()
                    && body.declares
                    && DECLARATIONS.contains(name)
                {
                    body.start = statement.range().end;
                }
                Ok(())
            }
            StatementKind::Label | StatementKind::Empty => self.code().map(|_| ()),
            StatementKind::Instruction(instruction) => self.instruction(statement, instruction),
        }
    }

    fn open(&mut self, statement: &Statement<'_>) -> Result<(), RewriteProblem> {
        let body = self.body.as_mut().ok_or(RewriteProblem::Structure)?;
        match self.depth {
            0 => body.start = statement.range().end,
            _ => body.declares = false,
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), RewriteProblem> {
        self.depth = self.depth.checked_sub(1).ok_or(RewriteProblem::Structure)?;
        if self.depth > 0 {
            return Ok(());
        }
        let Some(body) = self.body.take() else {
            return Err(RewriteProblem::Structure);
        };
        let mut text = String::new();
        if body.waits {
            text.push_str(&format!("\n\t.reg .b64 {SINCE};\n\tmov.b64 {SINCE}, 0;"));
        }
        if body.cancels {
            let enter = enter();
            self.require(enter.callee)?;
            text.push_str(&format!("\n\t{}", enter.text));
        }
        if !text.is_empty() {
            self.edits.push(Edit { range: body.start..body.start, text });
        }
        Ok(())
    }

    /// Removes the declaration of an external function that the library defines.
    fn declaration(&mut self, statement: &Statement<'_>, name: &str) -> Result<(), RewriteProblem> {
        let external = statement.tokens.iter().any(|token| token.text == ".extern");
        if external && self.library.functions.contains(name) {
            self.edits.push(Edit { range: statement.range(), text: String::new() });
        } else if external && !RUNTIME.contains(&name) {
            return Err(RewriteProblem::Undefined(name.to_owned()));
        }
        Ok(())
    }

    /// Returns the body of a statement that is code.
    fn code(&mut self) -> Result<&mut Body, RewriteProblem> {
        let body = self.body.as_mut().filter(|_| self.depth > 0).ok_or(RewriteProblem::Structure)?;
        body.declares = false;
        Ok(body)
    }

    fn instruction(
        &mut self,
        statement: &Statement<'_>,
        instruction: &Instruction<'_>,
    ) -> Result<(), RewriteProblem> {
        let body = self.code()?;
        body.waits |= is_try_wait(instruction);
        if is_try_cancel(instruction) {
            // A function cannot make its caller return.
            if !body.entry {
                return Err(RewriteProblem::Form(format!("{} outside of a kernel", instruction.opcode)));
            }
            body.cancels = true;
        }
        if let Some(replacement) = replace(instruction, &statement.quote())? {
            self.require(replacement.callee)?;
            self.edits.push(Edit { range: statement.range(), text: replacement.text });
        }
        Ok(())
    }

    /// Checks that the library defines a function.
    fn require(&self, callee: Option<&str>) -> Result<(), RewriteProblem> {
        match callee {
            Some(name) if !self.library.functions.contains(name) => {
                Err(RewriteProblem::Undefined(name.to_owned()))
            }
            _ => Ok(()),
        }
    }
}
