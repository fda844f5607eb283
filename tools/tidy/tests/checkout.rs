//! The checkout conforms to its own rules.

use fastllm_tidy::{
    Tree, ambiguous_names, banned, banned_shapes, forbidden_dependencies, long_subjects,
    missing_paths, module_cycles, oversized, replaced_words, stale_versions,
};

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn files_are_within_their_size() {
    assert_none(&oversized(&Tree::of_this_checkout().unwrap()));
}

#[test]
fn crates_have_allowed_dependencies_only() {
    assert_none(&forbidden_dependencies(&Tree::of_this_checkout().unwrap()));
}

#[test]
fn nothing_banned_is_used() {
    let tree = Tree::of_this_checkout().unwrap();
    assert!(tree.sources.len() > 20, "the tree was read");
    assert_none(&banned(&tree));
}

#[test]
fn manifests_name_this_version() {
    assert_none(&stale_versions(&Tree::of_this_checkout().unwrap()));
}

#[test]
fn top_modules_have_no_import_cycles() {
    assert_none(&module_cycles(&Tree::of_this_checkout().unwrap()).unwrap());
}

#[test]
fn type_names_are_unambiguous() {
    assert_none(&ambiguous_names(&Tree::of_this_checkout().unwrap()).unwrap());
}

#[test]
fn shapes_are_plain() {
    assert_none(&banned_shapes(&Tree::of_this_checkout().unwrap()).unwrap());
}

#[test]
fn words_are_those_of_the_glossary() {
    assert_none(&replaced_words(&Tree::of_this_checkout().unwrap()));
}

#[test]
fn named_paths_exist() {
    assert_none(&missing_paths(&Tree::of_this_checkout().unwrap()));
}

#[test]
fn commit_subjects_are_short() {
    assert_none(&long_subjects(&Tree::of_this_checkout().unwrap()));
}
