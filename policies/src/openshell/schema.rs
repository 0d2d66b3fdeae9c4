//! The fields of OpenShell's policy, version 1.
//!
//! Invariant: every field that is known there is named here, so that one that
//! cannot be honoured is told apart from a typing error.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

/// A value with its place in the text.
pub(super) type At<T> = Spanned<T>;
/// A field that is known there and means nothing here.
pub(super) type Refused = Option<Spanned<IgnoredAny>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) version: At<u64>,
    pub(super) filesystem_policy: Option<Filesystem>,
    pub(super) landlock: Option<Landlock>,
    pub(super) process: Refused,
    #[serde(default)]
    pub(super) network_policies: BTreeMap<String, At<NetworkRule>>,
    pub(super) network_middlewares: Refused,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filesystem {
    pub(super) include_workdir: Option<At<bool>>,
    #[serde(default)]
    pub(super) read_only: Vec<At<String>>,
    #[serde(default)]
    pub(super) read_write: Vec<At<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Landlock {
    pub(super) compatibility: Option<At<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkRule {
    pub(super) name: Option<String>,
    pub(super) endpoints: Vec<At<Endpoint>>,
    pub(super) binaries: Option<At<Vec<Binary>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Binary {
    Text(String),
    Path(BinaryPath),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BinaryPath {
    #[serde(alias = "glob")]
    pub(super) path: String,
}

impl Binary {
    pub(super) fn pattern(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Path(path) => &path.path,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    pub(super) host: At<String>,
    pub(super) port: Option<At<u64>>,
    pub(super) ports: Option<At<Vec<u64>>>,
    pub(super) protocol: Option<At<String>>,
    pub(super) path: Option<At<String>>,
    pub(super) enforcement: Option<At<String>>,
    pub(super) access: Option<At<String>>,
    pub(super) rules: Option<At<Vec<At<AllowRule>>>>,
    pub(super) deny_rules: Option<At<Vec<At<Request>>>>,
    pub(super) tls: Option<At<String>>,
    pub(super) allowed_ips: Refused,
    pub(super) allow_encoded_slash: Option<At<bool>>,
    pub(super) websocket_credential_rewrite: Option<At<bool>>,
    pub(super) request_body_credential_rewrite: Option<At<bool>>,
    pub(super) allow_uninspected_credentials: Option<At<bool>>,
    pub(super) credential_signing: Refused,
    pub(super) signing_service: Refused,
    pub(super) signing_region: Refused,
    pub(super) credential_binding: Refused,
    pub(super) graphql_body_cap: Refused,
    pub(super) json_rpc_body_cap: Refused,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AllowRule {
    pub(super) allow: Request,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    pub(super) method: Option<At<String>>,
    pub(super) path: Option<At<String>>,
    pub(super) query: Refused,
    pub(super) operation_type: Refused,
    pub(super) operation_name: Refused,
    pub(super) fields: Refused,
    pub(super) tool: Refused,
}
