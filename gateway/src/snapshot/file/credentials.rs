//! `credential_list`: members of `litellm_params` that entries share by name.

use std::collections::HashMap;

use super::value::{MappingReader, Value};

/// The credentials of the file, by name.
pub(super) struct Credentials<'a>(HashMap<&'a str, Value<'a>>);

impl<'a> Credentials<'a> {
    pub(super) fn read(fields: &mut MappingReader<'a>) -> Self {
        let mut by_name = HashMap::new();
        for credential in fields.list("credential_list") {
            let read = |fields: &mut MappingReader<'a>| {
                let name = fields.required("credential_name");
                let values = fields.required("credential_values");
                // It describes the credential only.
                let _info = fields.take("credential_info");
                Some((name?.text()?, values?))
            };
            let read = || credential.fields(read).flatten();
            let Some((name, values)) = credential.context.entry(read) else {
                continue;
            };
            if by_name.insert(name, values).is_some() {
                credential.error("an earlier credential has the same name");
            }
        }
        Self(by_name)
    }

    /// Adds the members of the credential that an entry names.
    pub(super) fn supplement(&self, params: &mut MappingReader<'a>) {
        let Some(value) = params.take("litellm_credential_name") else {
            return;
        };
        match value.text().and_then(|name| self.0.get(name)) {
            Some(values) => params.supplement(values),
            None => value.error("no entry of credential_list has this name"),
        }
    }
}
