use std::fs;

use crate::{Finding, Tree};

const IMAGES: [&str; 2] = ["fastllm/fastllm-proxy:", "fastllm/fastllm-operator:"];

/// Finds manifests and pages that name an image of another version than the
/// workspace's.
pub fn stale_versions(tree: &Tree) -> Vec<Finding> {
    let Some(version) = workspace_version(tree) else {
        return vec!["Cargo.toml:1: no version in workspace.package".to_owned()];
    };
    tree.with_ending(&[".yaml", ".md"])
        .flat_map(|source| {
            let numbered = source.text.lines().enumerate();
            numbered.filter_map(|(index, line)| {
                let named = named_version(line)?;
                (named != version).then(|| {
                    format!(
                        "{}:{}: image {named}, but this is {version}",
                        source.path,
                        index + 1
                    )
                })
            })
        })
        .collect()
}

fn workspace_version(tree: &Tree) -> Option<String> {
    let manifest: toml::Table = fs::read_to_string(tree.root.join("Cargo.toml"))
        .ok()?
        .parse()
        .ok()?;
    let version = manifest.get("workspace")?.get("package")?.get("version")?;
    version.as_str().map(str::to_owned)
}

/// The version of the image that a line names; none for `<…>`.
fn named_version(line: &str) -> Option<&str> {
    let rest = IMAGES.iter().find_map(|image| line.split_once(image))?.1;
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || ".-".contains(c)))
        .unwrap_or(rest.len());
    Some(&rest[..end]).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::named_version;

    #[test]
    fn the_version_of_an_image_is_read() {
        let line = "  image: fastllm/fastllm-operator:0.2.0-rc1 # comment";
        assert_eq!(named_version(line), Some("0.2.0-rc1"));
        assert_eq!(named_version("`fastllm/fastllm-proxy:<version>`"), None);
        assert_eq!(named_version("image: nginx:1"), None);
    }
}
