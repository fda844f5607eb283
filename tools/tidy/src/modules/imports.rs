use std::collections::BTreeMap;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree};

use super::Imports;
use crate::krate::{Krate, Module, is_cfg_test};

/// The uses of one top module in another, in code that is not test code.
pub(crate) fn imports(krate: &Krate) -> Imports {
    let Some(root) = krate.modules.first() else {
        return Imports::new();
    };
    let names = root_names(root);
    let mut imports = Imports::new();
    for module in krate.modules.iter().filter(|module| !module.test) {
        if module.path.is_empty() {
            continue;
        }
        let mut paths = Paths {
            names: &names,
            file: &module.file,
            path: module.path.clone(),
            imports: &mut imports,
        };
        paths.visit_file(&module.syntax);
    }
    imports
}

/// What `crate::name` stands for: a top module, or a name that the root takes
/// from one.
fn root_names(root: &Module) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for item in &root.syntax.items {
        match item {
            Item::Mod(module) => {
                names.insert(module.ident.to_string(), module.ident.to_string());
            }
            Item::Use(import) => {
                for path in flatten(&import.tree) {
                    let inner: Vec<&UsedName> = path
                        .iter()
                        .skip_while(|part| part.text == "crate" || part.text == "self")
                        .collect();
                    if let [top, .., last] = inner[..] {
                        names.insert(last.visible.clone(), top.text.clone());
                    }
                }
            }
            _ => {}
        }
    }
    // A name of a library's item is not one of a top module.
    let tops: Vec<String> = names
        .iter()
        .filter(|(name, top)| name == top)
        .map(|(name, _)| name.clone())
        .collect();
    names.retain(|_, top| tops.contains(top));
    names
}

/// One segment of a used path.
struct UsedName {
    text: String,
    /// The name that the path gives to it.
    visible: String,
    line: usize,
}

impl UsedName {
    fn new(ident: &Ident) -> Self {
        Self {
            text: ident.to_string(),
            visible: ident.to_string(),
            line: ident.span().start().line,
        }
    }
}

/// The paths of a `use`, one for each name.
fn flatten(tree: &UseTree) -> Vec<Vec<UsedName>> {
    match tree {
        UseTree::Path(path) => {
            let mut paths = flatten(&path.tree);
            for rest in &mut paths {
                rest.insert(0, UsedName::new(&path.ident));
            }
            paths
        }
        UseTree::Name(name) => vec![vec![UsedName::new(&name.ident)]],
        UseTree::Rename(name) => vec![vec![UsedName {
            visible: name.rename.to_string(),
            ..UsedName::new(&name.ident)
        }]],
        UseTree::Group(group) => group.items.iter().flat_map(flatten).collect(),
        UseTree::Glob(_) => vec![Vec::new()],
    }
}

/// Collects what a file uses of other top modules.
struct Paths<'a> {
    names: &'a BTreeMap<String, String>,
    file: &'a str,
    /// The module that is being visited.
    path: Vec<String>,
    imports: &'a mut Imports,
}

impl Paths<'_> {
    fn record(&mut self, path: &[UsedName]) {
        let Some(first) = path.first() else { return };
        let ups = path.iter().take_while(|part| part.text == "super").count();
        let rest = match first.text.as_str() {
            "crate" => &path[1..],
            "super" if ups >= self.path.len() => &path[ups..],
            _ => return,
        };
        let Some(target) = rest.first().and_then(|part| self.names.get(&part.text)) else {
            return;
        };
        if *target != self.path[0] {
            let pair = (self.path[0].clone(), target.clone());
            let place = format!("{}:{}", self.file, rest[0].line);
            self.imports.entry(pair).or_insert(place);
        }
    }

    /// Paths in the tokens of a macro's call or definition.
    fn record_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<UsedName> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.record(&std::mem::take(&mut path));
                    }
                    path.push(UsedName::new(&ident));
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    if colons == 2 {
                        self.record_group(&path, group.stream());
                        path.clear();
                    } else {
                        self.record_tokens(group.stream());
                    }
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        self.record(&path);
    }

    /// `crate::{a, b::c}` in the tokens of a macro.
    fn record_group(&mut self, prefix: &[UsedName], tokens: TokenStream) {
        for token in tokens {
            if let TokenTree::Ident(ident) = token {
                let mut path: Vec<UsedName> = prefix
                    .iter()
                    .map(|part| UsedName {
                        text: part.text.clone(),
                        visible: part.visible.clone(),
                        line: part.line,
                    })
                    .collect();
                path.push(UsedName::new(&ident));
                self.record(&path);
            }
        }
    }
}

/// Visits items that are not `#[cfg(test)]`.
macro_rules! skip_tests {
    ($($visit:ident: $item:ident,)*) => {
        $(fn $visit(&mut self, item: &'ast syn::$item) {
            if !is_cfg_test(&item.attrs) {
                visit::$visit(self, item);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_cfg_test(&module.attrs) {
            self.path.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.path.pop();
        }
    }

    skip_tests! {
        visit_item_const: ItemConst,
        visit_item_enum: ItemEnum,
        visit_item_fn: ItemFn,
        visit_item_impl: ItemImpl,
        visit_item_struct: ItemStruct,
        visit_item_trait: ItemTrait,
        visit_impl_item_const: ImplItemConst,
        visit_impl_item_fn: ImplItemFn,
        visit_trait_item_fn: TraitItemFn,
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        if !is_cfg_test(&import.attrs) {
            for path in flatten(&import.tree) {
                self.record(&path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<UsedName> = path
            .segments
            .iter()
            .map(|segment| UsedName::new(&segment.ident))
            .collect();
        self.record(&parts);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.record_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "mod a; mod b; mod c; pub use c::Thing; use std::fmt;";

    fn imports_of(path: &str, text: &str) -> Vec<String> {
        let krate = Krate {
            name: "src/lib.rs".to_owned(),
            modules: vec![Module::of_text("", ROOT), Module::of_text(path, text)],
        };
        imports(&krate)
            .into_iter()
            .map(|((from, to), place)| format!("{from} {to} {place}"))
            .collect()
    }

    #[test]
    fn finds_imports_in_each_form() {
        let forms = [
            "\nuse crate::b::X;",
            "\nuse crate::{b::{X, Y}};",
            "\nuse super::b;",
            "\nfn f() { crate::b::f(); }",
            "\nfn f() { g::<crate::b::X>(); }",
            "\nfn f() { info!(x = crate::b::X); }",
            "\nfn f() { m! { use crate::{b::X}; } }",
            "\nmod inner { use super::super::b::X; }",
        ];
        for form in forms {
            assert_eq!(imports_of("a", form), ["a b src/a.rs:2"], "{form}");
        }
    }

    #[test]
    fn finds_what_the_root_takes_from_a_module() {
        assert_eq!(imports_of("a", "use crate::Thing;"), ["a c src/a.rs:1"]);
    }

    #[test]
    fn counts_from_the_depth_of_the_file() {
        assert_eq!(imports_of("a/x", "use super::b;"), [""; 0]);
        assert_eq!(
            imports_of("a/x", "use super::super::b;"),
            ["a b src/a/x.rs:1"]
        );
    }

    #[test]
    fn ignores_tests_libraries_and_the_module_itself() {
        let text = "use crate::a::X; use std::fmt; use crate::fmt; use b::X;\
            #[cfg(test)] mod tests { use crate::b; } #[cfg(test)] use crate::b;";
        assert_eq!(imports_of("a", text), [""; 0]);
    }
}
