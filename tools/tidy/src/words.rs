//! The project's vocabulary: words that another word of `docs/glossary.md`, or
//! of the field, replaces.

mod list;

use self::list::{TOLERATED, WORDS};
use crate::allow_list::not_tolerated;
use crate::{Finding, Source, Tree};

/// A word or phrase that is not used.
struct Word {
    /// The phrase in lower case, words separated by spaces. Identifiers match
    /// in each notation: `left alone` is `left_alone`, `LeftAlone`, too.
    phrase: &'static str,
    /// What to write instead.
    instead: &'static str,
    /// Longer phrases in which the phrase is legitimate.
    except: &'static [&'static str],
}

/// The file that lists the phrases.
const LISTS: &str = "tools/tidy/src/words";

/// Files that people write, in which words matter.
const ENDINGS: [&str; 10] = [
    ".rs",
    ".py",
    ".sh",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".sql",
    "openapi.json",
    "Makefile",
];

/// Finds phrases that are not used in this project.
pub fn replaced_words(tree: &Tree) -> Vec<Finding> {
    not_tolerated(all(tree), TOLERATED)
}

/// Lists the uses of replaced words below a folder, tolerated ones included.
pub fn list_words(tree: &Tree, folder: &str) -> String {
    let mut text = String::new();
    for finding in all(tree) {
        if finding.starts_with(folder) {
            text.push_str(&finding);
            text.push('\n');
        }
    }
    text
}

fn all(tree: &Tree) -> Vec<Finding> {
    tree.with_ending(&ENDINGS)
        .filter(|source| !source.path.starts_with(LISTS))
        .flat_map(check)
        .collect()
}

fn check(source: &Source) -> Vec<Finding> {
    let tokens = tokens(&source.text);
    let mut findings = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        for word in WORDS {
            if matches(&tokens[index..], word.phrase) && !is_excepted(&tokens, index, word) {
                findings.push(format!(
                    "{}:{}: `{}`: use {}",
                    source.path, token.line, word.phrase, word.instead
                ));
            }
        }
    }
    findings
}

/// A word of a text, or a part of an identifier.
struct Token {
    word: String,
    line: usize,
    /// Whether it continues the phrase of the word before: nothing but blanks,
    /// `_`, `-` and the marks of comments stand between the two.
    continues: bool,
}

/// Whether the tokens begin with a phrase.
fn matches(tokens: &[Token], phrase: &str) -> bool {
    let mut rest = tokens.iter();
    phrase.split(' ').enumerate().all(|(index, word)| {
        rest.next()
            .is_some_and(|token| token.word == word && (index == 0 || token.continues))
    })
}

/// Whether the phrase at `index` is a part of a longer one that is legitimate.
fn is_excepted(tokens: &[Token], index: usize, word: &Word) -> bool {
    word.except.iter().any(|longer| {
        let words = longer.split(' ').count();
        (index.saturating_sub(words)..=index)
            .any(|start| start + words > index && matches(&tokens[start..], longer))
    })
}

/// Splits a text into lower-case words; identifiers at `_` and before capitals.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut word = String::new();
        let mut between = String::new();
        let mut last = ' ';
        for c in line.chars().chain(['\n']) {
            let new_part = c.is_ascii_uppercase() && last.is_ascii_lowercase();
            if (!c.is_alphanumeric() || new_part) && !word.is_empty() {
                tokens.push(Token {
                    continues: between.chars().all(is_joint),
                    word: std::mem::take(&mut word),
                    line: number + 1,
                });
                between.clear();
            }
            if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
            } else {
                between.push(c);
            }
            last = c;
        }
    }
    tokens
}

fn is_joint(c: char) -> bool {
    c.is_whitespace() || "_-/!#*".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let source = Source {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        };
        check(&source)
            .iter()
            .map(|finding| finding.split(':').nth(1).unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn finds_phrases_in_each_notation() {
        for text in [
            "it is left alone",
            "fn left_alone()",
            "struct LeftAlone;",
            "Left alone, it heals",
            "`x.left_alone`",
        ] {
            assert_eq!(found(text), [1], "{text}");
        }
        assert_eq!(found("ok\n/// a backend that is left\n/// alone"), [2]);
        assert_eq!(found("-- left\n-- alone"), [1]);
    }

    #[test]
    fn does_not_join_sentences_or_parts_of_words() {
        assert_eq!(found("on the left. Alone"), [0; 0]);
        assert_eq!(found("cleft alone"), [0; 0]);
        assert_eq!(found("rivalry, arrival, placeholder"), [0; 0]);
    }

    #[test]
    fn keeps_what_libraries_call_so() {
        assert_eq!(
            found("no poisoning to unwrap; PoisonError; holderIdentity"),
            [0; 0]
        );
        assert_eq!(found("poisoned: a rival of it"), [1, 1]);
    }

    #[test]
    fn each_finding_names_the_replacement() {
        let source = Source {
            path: "a.md".to_owned(),
            text: "the dearest one".to_owned(),
        };
        assert_eq!(check(&source), ["a.md:1: `dearest`: use most expensive"]);
    }
}
