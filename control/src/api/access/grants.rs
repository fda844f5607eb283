//! Checks of what a role can grant.

use fastllm_contract::ModelName;

use crate::api::framework::ApiError;

/// Checks that a permission exists and can be granted on the resource.
pub(crate) fn permission(verb: &str, resource: &str) -> Result<(), ApiError> {
    let prefix = match verb {
        "usage:read" | "key:create" | "key:revoke" | "config:write" | "password:set" => {
            return if resource == "*" {
                Ok(())
            } else {
                Err(ApiError::invalid(
                    "resource",
                    format!("{verb} can be granted on * only"),
                ))
            };
        }
        "model:invoke" => "model/",
        "mcp:invoke" => "mcp/",
        "agent:invoke" => "agent/",
        _ => {
            return Err(ApiError::invalid(
                "verb",
                "verb must be one of usage:read, key:create, key:revoke, config:write, \
                 password:set, model:invoke, mcp:invoke, agent:invoke",
            ));
        }
    };
    let rest = resource.strip_prefix(prefix).unwrap_or_default();
    let stars = rest.trim_end_matches('*').contains('*') || rest.ends_with("**");
    if rest.is_empty() || stars || rest.len() > ModelName::MAX_BYTES {
        return Err(ApiError::invalid(
            "resource",
            format!("resource must be {prefix}NAME, {prefix}PREFIX* or {prefix}*"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_a_closed_list() {
        for (verb, resource) in [
            ("usage:read", "*"),
            ("model:invoke", "model/*"),
            ("model:invoke", "model/Qwen/Qwen3*"),
            ("mcp:invoke", "mcp/files"),
        ] {
            assert!(permission(verb, resource).is_ok(), "{verb} {resource}");
        }
        for (verb, resource) in [
            ("usage:read", "model/*"),
            ("model:invoke", "*"),
            ("model:invoke", "model/"),
            ("model:invoke", "model/a*b"),
            ("model:invoke", "mcp/x"),
            ("model:delete", "*"),
        ] {
            assert!(permission(verb, resource).is_err(), "{verb} {resource}");
        }
    }
}
