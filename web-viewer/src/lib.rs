//! The web viewer: HTTP API, MCP and the page that shows a session.
//!
//! Invariant: the server never listens where a stranger can reach it without a
//! token; [`ListenAddress`] cannot hold such a place. Guest output is shown as
//! text only.
//!
//! This build has the address type only; there is no server yet.

use std::net::SocketAddr;

/// Where the server may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(SocketAddr);

/// The address was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Not `ADDRESS:PORT`.
    #[error("`{0}` is not an address with a port; write one such as 127.0.0.1:8080")]
    Malformed(String),
    /// Reachable from other machines, and no token was given.
    #[error("{0} can be reached from other machines; give a token or listen on 127.0.0.1")]
    TokenRequired(SocketAddr),
}

impl ListenAddress {
    /// Parses `text`; a place outside the loopback range needs a token.
    ///
    /// # Errors
    /// [`ListenError`] says what is wrong with the address.
    pub fn parse(text: &str, has_token: bool) -> Result<Self, ListenError> {
        let address: SocketAddr =
            text.parse().map_err(|_| ListenError::Malformed(text.to_owned()))?;
        if address.ip().to_canonical().is_loopback() || has_token {
            Ok(Self(address))
        } else {
            Err(ListenError::TokenRequired(address))
        }
    }

    /// The socket address.
    #[must_use]
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_listens_without_a_token() {
        assert!(ListenAddress::parse("127.0.0.1:80", false).is_ok());
        assert!(ListenAddress::parse("[::1]:80", false).is_ok());
        for open in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[::ffff:10.0.0.1]:80"] {
            assert!(matches!(
                ListenAddress::parse(open, false),
                Err(ListenError::TokenRequired(_))
            ));
            assert!(ListenAddress::parse(open, true).is_ok());
        }
        assert!(matches!(ListenAddress::parse("localhost", true), Err(ListenError::Malformed(_))));
    }
}
