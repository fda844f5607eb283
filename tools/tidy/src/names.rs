//! One type name has one meaning in a crate.

use std::collections::BTreeMap;
use std::io;

use syn::{Ident, Item};

use crate::krate::{Krate, read_package};
use crate::{Finding, Tree, members};

/// Each component has a `Config` that builds it, used as `component::Config`.
const OF_EACH_COMPONENT: &str = "Config";

/// Finds type names that a crate defines in more than one place.
pub fn ambiguous_names(tree: &Tree) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for folder in members(tree) {
        for krate in read_package(&tree.root, &folder)? {
            for (name, places) in repeated(&krate) {
                findings.push(format!(
                    "{}: `{name}` is defined again in {}",
                    places[0],
                    places[1..].join(", ")
                ));
            }
        }
    }
    Ok(findings)
}

/// The type names with more than one definition, each with its places.
fn repeated(krate: &Krate) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in &krate.modules {
        collect(&module.syntax.items, &module.file, &mut places);
    }
    places.retain(|name, places| places.len() > 1 && name != OF_EACH_COMPONENT);
    places
}

fn collect(items: &[Item], file: &str, places: &mut BTreeMap<String, Vec<String>>) {
    for item in items {
        if let Item::Mod(module) = item {
            if let Some((_, inner)) = &module.content {
                collect(inner, file, places);
            }
        } else if let Some(name) = type_name(item) {
            let place = format!("{file}:{}", name.span().start().line);
            places.entry(name.to_string()).or_default().push(place);
        }
    }
}

fn type_name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Enum(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::TraitAlias(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::krate::Module;

    fn places_of(texts: &[(&str, &str)]) -> Vec<String> {
        let modules = texts
            .iter()
            .map(|(path, text)| Module::of_text(path, text))
            .collect();
        let krate = Krate {
            name: String::new(),
            modules,
        };
        repeated(&krate).into_values().flatten().collect()
    }

    #[test]
    fn a_name_with_two_meanings_is_found() {
        let found = places_of(&[
            ("a", "struct X; trait Y {}"),
            ("b", "enum X {}\nmod tests { type Y = u8; }"),
        ]);
        assert_eq!(
            found,
            ["src/a.rs:1", "src/b.rs:1", "src/a.rs:1", "src/b.rs:2"]
        );
    }

    #[test]
    fn types_of_functions_and_impls_are_not_counted() {
        let text = "struct X; impl T for X { type Y = u8; } fn f() { struct Y; }";
        assert_eq!(
            places_of(&[("a", text), ("b", "impl T for Z { type Y = u8; }")]),
            [""; 0]
        );
    }
}
