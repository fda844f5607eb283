//! Shapes of Rust code that the style bans: errors that print their source,
//! results without an error, tuples as parameters.

use std::io;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Fields, FnArg, GenericArgument, ItemImpl, Meta, PathArguments, PathSegment,
    Signature, Type, Variant,
};

use crate::allow_list::{Tolerated, not_tolerated};
use crate::krate::{is_cfg_test, read_package};
use crate::{Finding, Tree, members};

/// Files in which such shapes are tolerated.
const TOLERATED: &[Tolerated] = &[];

/// Finds shapes that the style bans. Tuples as parameters are allowed in tests.
pub fn banned_shapes(tree: &Tree) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for folder in members(tree) {
        for krate in read_package(&tree.root, &folder)? {
            for module in &krate.modules {
                findings.extend(check(&module.file, &module.syntax, module.test));
            }
        }
    }
    findings.sort();
    findings.dedup();
    Ok(not_tolerated(findings, TOLERATED))
}

fn check(file: &str, syntax: &syn::File, test: bool) -> Vec<Finding> {
    let mut shapes = Shapes {
        file,
        test,
        trait_impl: false,
        findings: Vec::new(),
    };
    shapes.visit_file(syntax);
    shapes.findings
}

struct Shapes<'a> {
    file: &'a str,
    test: bool,
    /// Whether the visited functions have the signatures of a trait.
    trait_impl: bool,
    findings: Vec<Finding>,
}

impl Shapes<'_> {
    fn report(&mut self, at: &impl Spanned, what: &str) {
        let line = at.span().start().line;
        self.findings.push(format!("{}:{line}: {what}", self.file));
    }

    fn check_error(&mut self, attributes: &[Attribute], fields: &Fields) {
        let Some((attribute, text)) = error_text(attributes) else {
            return;
        };
        let sources: Vec<String> = fields
            .iter()
            .enumerate()
            .filter(|(_, field)| {
                let marked = |name| field.attrs.iter().any(|mark| mark.path().is_ident(name));
                let named = field.ident.as_ref().is_some_and(|name| name == "source");
                marked("source") || marked("from") || named
            })
            .map(|(index, field)| match &field.ident {
                Some(name) => name.to_string(),
                None => index.to_string(),
            })
            .collect();
        if sources.iter().any(|source| text.mentions(source)) {
            self.report(attribute, "the error's text repeats its source");
        }
    }
}

/// The arguments of `#[error(…)]`.
struct ErrorText {
    format: String,
    arguments: Vec<String>,
}

impl ErrorText {
    fn mentions(&self, field: &str) -> bool {
        let braced = [format!("{{{field}}}"), format!("{{{field}:")];
        braced.iter().any(|part| self.format.contains(part))
            || self.arguments.iter().any(|argument| argument == field)
    }
}

/// The text of `#[error("…")]`. Other forms repeat nothing.
fn error_text(attributes: &[Attribute]) -> Option<(&Attribute, ErrorText)> {
    let attribute = attributes
        .iter()
        .find(|mark| mark.path().is_ident("error"))?;
    let Meta::List(list) = &attribute.meta else {
        return None;
    };
    let mut tokens = list.tokens.clone().into_iter();
    let Some(TokenTree::Literal(format)) = tokens.next() else {
        return None;
    };
    let mut arguments = Vec::new();
    collect_words(tokens.collect(), &mut arguments);
    let text = ErrorText {
        format: format.to_string(),
        arguments,
    };
    Some((attribute, text))
}

fn collect_words(tokens: TokenStream, words: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_words(group.stream(), words),
            TokenTree::Punct(_) => {}
            word => words.push(word.to_string()),
        }
    }
}

fn is_tuple(parameter: &Type) -> bool {
    match parameter {
        Type::Tuple(tuple) => tuple.elems.len() > 1,
        Type::Reference(reference) => is_tuple(&reference.elem),
        _ => false,
    }
}

fn is_unit_error(segment: &PathSegment) -> bool {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return false;
    };
    segment.ident == "Result"
        && matches!(
            arguments.args.iter().nth(1),
            Some(GenericArgument::Type(Type::Tuple(unit))) if unit.elems.is_empty()
        )
}

impl<'ast> Visit<'ast> for Shapes<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let outer = self.test;
        self.test |= is_cfg_test(&module.attrs);
        visit::visit_item_mod(self, module);
        self.test = outer;
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        self.trait_impl = block.trait_.is_some();
        visit::visit_item_impl(self, block);
        self.trait_impl = false;
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        for input in &signature.inputs {
            if let FnArg::Typed(parameter) = input
                && is_tuple(&parameter.ty)
                && !self.trait_impl
                && !self.test
            {
                self.report(
                    parameter,
                    "a tuple as parameter; name its parts in a struct",
                );
            }
        }
        visit::visit_signature(self, signature);
    }

    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        if is_unit_error(segment) {
            self.report(segment, "`()` as error; use an error type, or Option");
        }
        visit::visit_path_segment(self, segment);
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.check_error(&variant.attrs, &variant.fields);
        visit::visit_variant(self, variant);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check_error(&item.attrs, &item.fields);
        visit::visit_item_struct(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        check("a.rs", &syn::parse_file(text).unwrap(), false)
    }

    #[test]
    fn an_error_that_prints_its_source_is_found() {
        for variant in [
            "#[error(\"a: {source}\")] A { source: E }",
            "#[error(\"a: {source:#}\")] A { #[source] source: E }",
            "#[error(\"a: {inner}\")] A { #[source] inner: E }",
            "#[error(\"a: {0}\")] A(#[from] E)",
            "#[error(\"a: {1}\")] A(u8, #[source] E)",
            "#[error(\"a: {}\", .0)] A(#[source] E)",
            "#[error(\"a: {}\", source)] A { source: E }",
        ] {
            assert_eq!(
                lines(&format!("enum X {{ {variant} }}")),
                ["a.rs:1: the error's text repeats its source"],
                "{variant}"
            );
        }
        assert_eq!(lines("#[error(\"{0}\")] struct X(#[from] E);").len(), 1);
    }

    #[test]
    fn other_error_texts_are_fine() {
        for variant in [
            "#[error(\"cannot read {path}\")] A { path: P, source: E }",
            "#[error(\"{0} is wrong\")] A(u8, #[source] E)",
            "#[error(transparent)] A(#[from] E)",
            "#[error(\"a: {0}\")] A(String)",
        ] {
            assert_eq!(
                lines(&format!("enum X {{ {variant} }}")),
                [""; 0],
                "{variant}"
            );
        }
    }

    #[test]
    fn a_result_without_an_error_is_found() {
        assert_eq!(lines("fn f() -> Result<bool, ()> {}").len(), 1);
        assert_eq!(lines("type R<T> = std::result::Result<T, ()>;").len(), 1);
        assert_eq!(lines("fn f() -> Result<(), E> {}"), [""; 0]);
    }

    #[test]
    fn a_tuple_as_parameter_is_found() {
        assert_eq!(lines("fn f((a, b): (u8, u8)) {}").len(), 1);
        assert_eq!(lines("impl X { fn f(&self, x: &(u8, u8)) {} }").len(), 1);
        for fine in [
            "fn f(x: ()) {}",
            "fn f(x: &[(u8, u8)]) {}",
            "fn f() { v.map(|(a, b)| a); }",
            "impl T for X { fn f(x: (u8, u8)) {} }",
            "#[cfg(test)] mod tests { fn f(x: (u8, u8)) {} }",
        ] {
            assert_eq!(lines(fine), [""; 0], "{fine}");
        }
    }
}
