//! Image references.

/// Maximum length of a reference without its digest.
const MAX_NAME: usize = 255;

/// Maximum length of a tag.
const MAX_TAG: usize = 128;

/// Whether a container runtime accepts a reference: an optional registry, a path,
/// and an optional tag and digest.
pub(super) fn is_image(reference: &str) -> bool {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    let mut components = path.split('/');
    let first = components.next().unwrap_or_default();
    let rest: Vec<_> = components.collect();
    let registry = !rest.is_empty() && is_registry(first);
    name.len() <= MAX_NAME
        && (registry || is_component(first))
        && rest.iter().all(|component| is_component(component))
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// Whether a text is a host with a dot or a port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|p| p.is_empty() || !p.bytes().all(|b| b.is_ascii_digit())) {
        return false;
    }
    if let Some(address) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        let allowed = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty() && address.bytes().all(allowed);
    }
    let is_label = |label: &str| {
        let alphanumeric = |c: char| c.is_ascii_alphanumeric();
        label.starts_with(alphanumeric)
            && label.ends_with(alphanumeric)
            && label.chars().all(|c| alphanumeric(c) || c == '-')
    };
    (port.is_some() || host.contains('.')) && host.split('.').all(is_label)
}

/// Whether a text consists of lowercase letters and digits, separated by `.`, `_`,
/// `__` or hyphens.
fn is_component(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |run: &str| matches!(run, "" | "." | "_" | "__") || run.chars().all(|c| c == '-');
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.split(alphanumeric).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= MAX_TAG
        && text.starts_with(word)
        && text.chars().all(|c| word(c) || matches!(c, '-' | '.'))
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, digits)) = text.split_once(':') else {
        return false;
    };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    digits.len() == length && digits.bytes().all(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::is_image;

    #[test]
    fn references_of_the_usual_forms_are_valid() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for image in [
            "fastllm",
            "fastllm/fastllm-proxy:0.1.0",
            "localhost:5000/fastllm",
            "fastllm:latest",
            "registry.example.com/team/a__b.c---d:V_1.0-rc",
            "Registry.Example.com:443/a",
            "[fd00::1]:5000/a/b",
            &format!("a.b/c@{digest}"),
            &format!("a:5/c:1@{digest}"),
            "a.b/c",
        ] {
            assert!(is_image(image), "{image}");
        }
    }

    #[test]
    fn references_that_no_runtime_accepts_are_invalid() {
        for image in [
            "",
            " ",
            "fastllm proxy",
            "fastllm:1 ",
            "FastLLM/proxy",
            "fastllm/Proxy:1",
            "fastllm:1\n",
            "fastllm:",
            "fastllm:-1",
            "fastllm@sha256:1",
            "fastllm@md5:00",
            "/fastllm",
            "fastllm/",
            "a//b",
            "a..b/c",
            "a___b",
            "a._b",
            "a:x/b",
            "[x]/b",
            "https://a/b",
            "ä",
            &"a".repeat(256),
        ] {
            assert!(!is_image(image), "{image}");
        }
    }
}
