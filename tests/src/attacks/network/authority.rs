//! An authority that vouches for the servers of attacks, and for nothing else.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// # Errors
    /// The reason.
    pub(super) fn new() -> std::io::Result<Self> {
        let other = std::io::Error::other;
        let mut params = CertificateParams::new(Vec::new()).map_err(other)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(other)?;
        CertifiedIssuer::self_signed(params, key).map(Self).map_err(other)
    }

    pub(super) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Settings of a server with a certificate for `name`.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn server(&self, name: &str, protocol: &[u8]) -> std::io::Result<ServerConfig> {
        let other = std::io::Error::other::<rcgen::Error>;
        let key = KeyPair::generate().map_err(other)?;
        let params = CertificateParams::new(vec![name.to_owned()]).map_err(other)?;
        let certificate = params.signed_by(&key, &self.0).map_err(other)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(std::io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(std::io::Error::other)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}
