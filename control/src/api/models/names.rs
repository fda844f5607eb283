//! Checks of model names.

use fastllm_contract::ModelName;

use crate::api::framework::ApiError;

/// Checks a model name as gateways do.
pub(crate) fn model_name(text: &str) -> Result<ModelName, ApiError> {
    if text.trim() != text {
        return Err(ApiError::invalid(
            "name",
            "a model name must not begin or end with a space",
        ));
    }
    ModelName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

/// Checks a name by which a model is granted: a `*` in it would extend the grant to
/// all names with the same beginning.
pub(crate) fn granted_name(field: &'static str, text: String) -> Result<String, ApiError> {
    if text.contains('*') {
        return Err(ApiError::invalid(
            field,
            "a model's name must not contain *",
        ));
    }
    upstream_model(field, text)
}

/// The upstream's name of a model.
pub(crate) fn upstream_model(field: &'static str, text: String) -> Result<String, ApiError> {
    model_name(&text).map_err(|error| error.with_field(field))?;
    Ok(text)
}
