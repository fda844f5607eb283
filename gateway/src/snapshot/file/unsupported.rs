//! Settings that this program does not have: which of them may be left out, and
//! which make a file unusable.

use super::value::{MappingReader, Member};

/// Members that LiteLLM or an earlier release supports and this program does
/// not.
pub(super) struct Setting {
    names: &'static [&'static str],
    effect: Effect,
    /// What to do instead.
    instead: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Requests are served without it.
    Other,
    /// It closes or limits access: without it, the gateway would serve what
    /// was meant to be rejected.
    Restriction,
}

/// Settings without which requests are served as well.
pub(super) const fn ignored(names: &'static [&'static str], instead: &'static str) -> Setting {
    let effect = Effect::Other;
    Setting {
        names,
        effect,
        instead,
    }
}

/// Settings that restrict access. The file is refused unless they are off.
pub(super) const fn restriction(names: &'static [&'static str], instead: &'static str) -> Setting {
    let effect = Effect::Restriction;
    Setting {
        names,
        effect,
        instead,
    }
}

/// Refuses a file because of a restriction that it describes.
pub(super) fn refuse_restriction(member: &Member<'_>, instead: &str) {
    let message = format!("a restriction that this gateway cannot enforce: {instead}");
    let context = member.value.context;
    context.refuse(member.span.clone(), message);
}

impl MappingReader<'_> {
    /// Reports the remaining members that are in a table.
    pub(super) fn unsupported(&mut self, table: &[Setting]) {
        let find = |name: &str| table.iter().find(|one| one.names.contains(&name));
        for member in self.drain(|name| find(name).is_some()) {
            let Some(setting) = find(member.name) else {
                continue;
            };
            let instead = setting.instead;
            match setting.effect {
                Effect::Other => {
                    let message = format!("has no effect: {instead}");
                    let context = member.value.context;
                    context.warning(member.span, message);
                }
                Effect::Restriction if member.value.is_off() => {}
                Effect::Restriction => refuse_restriction(&member, instead),
            }
        }
    }

    /// Reports the remaining members that are prices.
    pub(super) fn ignore_prices(&mut self) {
        for price in self.drain(|name| name.contains("_cost")) {
            let message = "has no effect: prices are set in the control plane";
            price.value.context.warning(price.span, message);
        }
    }

    /// Refuses the file because of unknown members whose names are those of
    /// `known` ones with a typing error in them: the gateway could be more open
    /// than intended without them.
    pub(super) fn refuse_misspelled(&mut self, known: &[&str]) {
        for member in self.drain(|name| nearest(name, known).is_some()) {
            let known = nearest(member.name, known).unwrap_or_default();
            let message = format!("unknown field: is {known} meant?");
            member.value.context.refuse(member.span, message);
        }
    }

    /// Refuses the file because of unknown members whose names are those of
    /// restrictions.
    pub(super) fn refuse_restrictive(&mut self) {
        for member in self.drain(is_restrictive) {
            let message = "unknown field, and by its name a restriction: remove or correct it";
            if !member.value.is_off() {
                member.value.context.refuse(member.span, message);
            }
        }
    }

    /// Reports unknown members as errors of the entry, which would mean
    /// something else without them.
    pub(super) fn reject_unknown(&mut self) {
        for member in self.drain(|_| true) {
            member.value.error("unknown field: remove or correct it");
        }
    }

    /// Refuses the file because of any unknown member, which may be a
    /// restriction.
    pub(super) fn refuse_unknown(&mut self) {
        for member in self.drain(|_| true) {
            let message = "unknown field, which may be a restriction: remove or correct it";
            member.value.context.refuse(member.span, message);
        }
    }
}

/// Whether a name is that of a restriction.
fn is_restrictive(name: &str) -> bool {
    const WORDS: [&str; 34] = [
        "acl",
        "admin",
        "allow",
        "allowed",
        "auth",
        "authentication",
        "authorization",
        "block",
        "blocked",
        "budget",
        "deny",
        "denied",
        "enforce",
        "enforced",
        "forbidden",
        "guard",
        "guardrail",
        "guardrails",
        "jwt",
        "key",
        "keys",
        "limit",
        "limits",
        "max",
        "oauth",
        "oauth2",
        "permissions",
        "quota",
        "rbac",
        "require",
        "restrict",
        "restricted",
        "rpm",
        "tpm",
    ];
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    words
        .map(str::to_ascii_lowercase)
        .any(|word| WORDS.contains(&word.as_str()))
}

/// The known name that differs from an unknown one in one character, or in its
/// capitals, hyphens and underscores.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let plain = |name: &str| -> Vec<u8> {
        let bytes = name.bytes().filter(u8::is_ascii_alphanumeric);
        bytes.map(|byte| byte.to_ascii_lowercase()).collect()
    };
    let name = plain(name);
    let mut known = known.iter().copied();
    known.find(|known| is_near(&name, &plain(known)))
}

/// Whether one insertion, deletion, replacement or transposition at most is
/// between two texts.
fn is_near(one: &[u8], other: &[u8]) -> bool {
    if one.len().abs_diff(other.len()) > 1 {
        return false;
    }
    let same = |(one, other): &(&u8, &u8)| one == other;
    let before = one.iter().zip(other).take_while(same).count();
    let (one, other) = (&one[before..], &other[before..]);
    let after = one.iter().rev().zip(other.iter().rev()).take_while(same);
    let after = after.count();
    let one = &one[..one.len().saturating_sub(after)];
    let other = &other[..other.len().saturating_sub(after)];
    match (one, other) {
        ([a, b], [c, d]) => a == d && b == c,
        (one, other) => one.len() <= 1 && other.len() <= 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{is_restrictive, nearest};

    #[test]
    fn names_with_one_typing_error_are_near() {
        let known = ["auth", "general_settings", "fastllm"];
        for (name, expected) in [
            ("auht", Some("auth")),
            ("Auth", Some("auth")),
            ("auths", Some("auth")),
            ("aut", Some("auth")),
            ("general-settings", Some("general_settings")),
            ("generalsetting", Some("general_settings")),
            ("general_sittings", Some("general_settings")),
            ("fastlm", Some("fastllm")),
            ("author", None),
            ("general", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }

    #[test]
    fn names_of_restrictions_are_recognized_by_their_words() {
        for name in ["allowed_ips", "rpm-limit", "MAX_budget", "api_keys"] {
            assert!(is_restrictive(name), "{name}");
        }
        for name in ["keyboard", "maximal", "author", "alerting", ""] {
            assert!(!is_restrictive(name), "{name}");
        }
    }
}
