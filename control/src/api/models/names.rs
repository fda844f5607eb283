//! Checks of model names.

use fastllm_contract::ModelName;

use crate::api::framework::ApiError;

/// Names of models, as the gateway accepts them.
pub(crate) fn model_name(text: &str) -> Result<ModelName, ApiError> {
    if text.trim() != text {
        return Err(ApiError::invalid(
            "name",
            "a model name may not begin or end with a space",
        ));
    }
    ModelName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

/// Names that models are granted by: a grant on one with `*` would be a grant on
/// all that begin like it.
pub(crate) fn granted_name(text: &str) -> Result<ModelName, ApiError> {
    if text.contains('*') {
        return Err(ApiError::invalid("name", "a model's name may not hold *"));
    }
    model_name(text)
}
