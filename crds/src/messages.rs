//! The messages of the rules, in the schema and in `validate`.

pub(crate) const IMAGE: &str = "must be an image reference without spaces and, except for the \
    registry and the tag, without capitals, such as registry.example.com/team/fastllm-proxy:1.0, \
    of at most 255 characters and a digest";
pub(crate) const PULL_SECRETS: &str = "must contain at most 32 distinct names of Secrets";
pub(crate) const SECRET_NAME: &str = "the name of the Secret must have 1 to 253 characters and \
    consist of lowercase letters, digits and hyphens, in parts that are separated by single dots \
    and begin and end with a letter or digit";
pub(crate) const SECRET_KEY: &str = "the key in the Secret must have 1 to 253 characters, which \
    are letters, digits, hyphens, underscores and dots, and must not be \".\" or begin with \"..\"";
pub(crate) const ACCOUNT_NAME: &str = "must have 1 to 128 bytes, and must not begin or end with \
    a space or contain control characters such as line breaks";
pub(crate) const REPLICAS: &str = "must be between 0 and 10000";
pub(crate) const LOG_LEVEL: &str =
    "must have 1 to 1024 characters, which are visible ASCII characters and spaces";
pub(crate) const RESOURCE_NAMES: &str = "names must be cpu, memory, ephemeral-storage, or an \
    extended resource such as example.com/device";
pub(crate) const AMOUNTS: &str =
    "amounts must be quantities that are not negative, such as 500m or 2Gi";
pub(crate) const WHOLE_NUMBERS: &str = "amounts of extended resources must be whole numbers";
pub(crate) const WITHIN_LIMITS: &str = "requests must not exceed limits";
pub(crate) const EXTENDED_LIMITS: &str =
    "a request of an extended resource requires a limit with the same amount";
