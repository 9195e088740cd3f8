//! Finds cycles among the modules of a crate, read from its sources.
//!
//! A module depends on another if it names an item that the other defines. Re-exports are resolved to the
//! defining module. Siblings are compared, each with everything below it: a child may name items of its parent,
//! as nesting implies. Modules and functions compiled for tests alone are left out. Methods are not followed,
//! because finding their definitions takes types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Ident, Item, Lit, Meta, UseTree};

/// A path as it is written, such as `super::plan::Plan`.
type Segments = Vec<String>;

/// The longest chain of re-exports that is followed.
const DEEPEST: usize = 16;

/// The modules of one crate; the first is its root.
#[derive(Default)]
pub struct Crate {
    modules: Vec<Module>,
}

#[derive(Default)]
struct Module {
    /// The path, without `crate`.
    path: Segments,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The names of the items that the module defines.
    items: BTreeSet<String>,
    names: Names,
}

/// The paths in a module.
#[derive(Default)]
struct Names {
    /// Imports: the name in this module, and the path.
    imports: Vec<(String, Segments)>,
    globs: Vec<Segments>,
    others: BTreeSet<Segments>,
}

impl Crate {
    /// Reads a crate from its root file.
    ///
    /// # Errors
    /// Returns the file that cannot be read or parsed, with the reason.
    pub fn read(root: &Path) -> Result<Crate, String> {
        let mut it = Crate::default();
        it.read_file(Vec::new(), None, root, root.parent().unwrap_or(Path::new(".")))?;
        Ok(it)
    }

    /// Reads a module from its file; `below` is the folder of its children.
    fn read_file(
        &mut self,
        path: Segments,
        parent: Option<usize>,
        file: &Path,
        below: &Path,
    ) -> Result<usize, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.add(path, parent, &parsed.items, below)
    }

    fn add(
        &mut self,
        path: Segments,
        parent: Option<usize>,
        items: &[Item],
        below: &Path,
    ) -> Result<usize, String> {
        let number = self.modules.len();
        self.modules.push(Module { path: path.clone(), parent, ..Module::default() });
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let Item::Mod(module) = item else {
                self.modules[number].items.extend(defined(item).map(Ident::to_string));
                self.modules[number].names.visit_item(item);
                continue;
            };
            let name = module.ident.to_string();
            let of_child = [path.as_slice(), std::slice::from_ref(&name)].concat();
            let below_child = below.join(&name);
            let child = match &module.content {
                Some((_, items)) => self.add(of_child, Some(number), items, &below_child)?,
                None => {
                    let file = file_of(below, &name, &module.attrs);
                    self.read_file(of_child, Some(number), &file, &below_child)?
                }
            };
            self.modules[number].children.insert(name, child);
        }
        Ok(number)
    }

    /// Returns every cycle among siblings: their paths, and for each step of the cycle one use that causes it.
    pub fn cycles(&self) -> Vec<String> {
        /// The siblings that a sibling names, each with one example.
        type Uses = BTreeMap<String, BTreeMap<String, String>>;
        let mut levels: BTreeMap<Segments, Uses> = BTreeMap::new();
        for (number, module) in self.modules.iter().enumerate() {
            let Names { imports, globs, others } = &module.names;
            for path in imports.iter().map(|(_, path)| path).chain(globs).chain(others) {
                let Some(target) = self.resolve(number, path, 0) else { continue };
                let (from, to) = (&module.path, &self.modules[target].path);
                let shared = from.iter().zip(to).take_while(|(from, to)| from == to).count();
                if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                    let uses = levels.entry(from[..shared].to_vec()).or_default();
                    let example = format!("{} uses {}", from.join("::"), path.join("::"));
                    uses.entry(user.clone()).or_default().entry(used.clone()).or_insert(example);
                }
            }
        }
        levels.iter().flat_map(|(parent, uses)| cycles_among(parent, uses)).collect()
    }

    /// Returns the module that defines the item of a path; `None` for other crates and local names.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            _ if depth > DEEPEST => None,
            "crate" => self.find(0, rest, depth),
            "self" => self.find(from, rest, depth),
            "super" => {
                let parent = self.modules[from].parent?;
                match rest.first() {
                    Some(next) if next == "super" => self.resolve(parent, rest, depth + 1),
                    _ => self.find(parent, rest, depth),
                }
            }
            _ => self.find(from, path, depth),
        }
    }

    /// Resolves like [`resolve`](Self::resolve) a path that begins with a name of the module; an empty one is the
    /// module itself.
    fn find(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let Some((first, rest)) = path.split_first() else { return Some(module) };
        let it = &self.modules[module];
        if let Some(child) = it.children.get(first) {
            return self.find(*child, rest, depth);
        }
        if it.items.contains(first) {
            return Some(module);
        }
        let imported = it.names.imports.iter().filter(|(name, target)| name == first && target != path);
        let by_name = imported.map(|(_, target)| [target, rest].concat());
        let by_glob = it.names.globs.iter().map(|glob| [glob, path].concat());
        by_name.chain(by_glob).find_map(|whole| self.resolve(module, &whole, depth + 1))
    }
}

/// Returns the strongly connected siblings of a parent, each group as text.
fn cycles_among(parent: &[String], uses: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<String> {
    let reach = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(sibling) = next.pop() {
            let used = uses.get(sibling).into_iter().flat_map(BTreeMap::keys);
            next.extend(used.filter(|used| seen.insert((*used).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|sibling| (sibling, reach(sibling))).collect();
    let mut found = BTreeSet::new();
    for (sibling, reachable) in &reached {
        let is_back = |other: &&String| reached.get(*other).is_some_and(|back| back.contains(*sibling));
        let group: BTreeSet<&String> = reachable.iter().filter(is_back).collect();
        if group.len() > 1 {
            found.insert(group);
        }
    }
    let describe = |group: BTreeSet<&String>| {
        let names: Vec<&str> = group.iter().map(|name| name.as_str()).collect();
        let steps = group.iter().flat_map(|user| &uses[*user]);
        let steps =
            steps.filter(|(used, _)| group.contains(used)).map(|(_, example)| format!("  {example}\n"));
        format!("in crate::{}: {}\n{}", parent.join("::"), names.join(", "), steps.collect::<String>())
    };
    found.into_iter().map(describe).collect()
}

fn file_of(below: &Path, name: &str, attributes: &[Attribute]) -> PathBuf {
    let named = attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let plain = below.join(named.unwrap_or_else(|| format!("{name}.rs")));
    if plain.exists() { plain } else { below.join(name).join("mod.rs") }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        meta => meta.path().is_ident("test"),
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(it) => Some(&it.ident),
        Item::Enum(it) => Some(&it.ident),
        Item::Fn(it) => Some(&it.sig.ident),
        Item::Macro(it) => it.ident.as_ref(),
        Item::Static(it) => Some(&it.ident),
        Item::Struct(it) => Some(&it.ident),
        Item::Trait(it) => Some(&it.ident),
        Item::Type(it) => Some(&it.ident),
        Item::Union(it) => Some(&it.ident),
        _ => None,
    }
}

impl Names {
    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |ident: &Ident| [before, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(it) => self.import(&it.tree, &with(&it.ident)),
            UseTree::Name(it) if it.ident == "self" => {
                self.imports.extend(before.last().map(|name| (name.clone(), before.to_vec())));
            }
            UseTree::Name(it) => self.imports.push((it.ident.to_string(), with(&it.ident))),
            UseTree::Rename(it) if it.ident == "self" => {
                self.imports.push((it.rename.to_string(), before.to_vec()));
            }
            UseTree::Rename(it) => self.imports.push((it.rename.to_string(), with(&it.ident))),
            UseTree::Glob(_) => self.globs.push(before.to_vec()),
            UseTree::Group(it) => it.items.iter().for_each(|tree| self.import(tree, before)),
        }
    }

    /// Collects the paths in the arguments of a macro, which are tokens: words with `::` between them.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Segments::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.others.extend(Some(std::mem::take(&mut path)).filter(|path| !path.is_empty()));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.others.extend(Some(std::mem::take(&mut path)).filter(|path| !path.is_empty()));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        self.others.extend(Some(path).filter(|path| !path.is_empty()));
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.others.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, it: &'a syn::Macro) {
        self.read_tokens(it.tokens.clone());
        visit::visit_macro(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'a syn::ImplItemFn) {
        if !is_for_tests(&it.attrs) {
            visit::visit_impl_item_fn(self, it);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cycles of a crate with these files.
    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        Crate::read(&folder.path().join("lib.rs")).expect("the sources parse").cycles()
    }

    #[test]
    fn a_planted_cycle_is_found_however_it_is_written() {
        let b = "pub struct B; pub mod inner { pub fn g() {} }";
        for uses in [
            "use crate::a::A;",
            "use super::a::{self as other};",
            "fn f() { crate::a::A; }",
            "fn f() { assert!(matches!(1, x if crate::a::IS == x)); }",
            "use crate::A;",
            "use crate::a::*;",
            "mod deep { use crate::a::A; }",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b; pub use a::A;"),
                ("a.rs", "use crate::b::inner::g; pub struct A; pub const IS: u8 = 1;"),
                ("b.rs", &format!("{uses} {b}")),
            ];
            let found = cycles(&files);
            assert_eq!(found.len(), 1, "{uses}: {found:?}");
            assert!(found[0].starts_with("in crate::: a, b\n  a uses crate::b::inner::g\n"), "{}", found[0]);
        }
        let through = [
            ("lib.rs", "mod x;"),
            ("x/mod.rs", "mod a; mod b; mod c;"),
            ("x/a.rs", "use super::b::B; pub struct A;"),
            ("x/b.rs", "use super::c::C; pub struct B;"),
            ("x/c.rs", "fn f(_: &super::a::A) {} pub struct C;"),
        ];
        let found = cycles(&through);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("in crate::x: a, b, c\n"), "{}", found[0]);
    }

    #[test]
    fn what_is_no_cycle_is_none() {
        for b in [
            "pub struct B;",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
            "pub struct B; fn f() { let a = 1; other::a::A(a) }",
            "pub struct B; use super::Shared;",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b; pub struct Shared; fn f(_: a::A) {}"),
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b.rs", b),
            ];
            assert_eq!(cycles(&files), Vec::<String>::new(), "{b}");
        }
    }
}
