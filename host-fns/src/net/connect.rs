//! Making connections.
//!
//! Invariant: what is connected to is a [`DialAddress`]; through a proxy, the
//! proxy is asked for that address.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fumehood_policies::DialAddress;
use http::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Proxy;
use super::egress::EgressError;

/// What a connection attempt is.
pub type Connecting<'c> = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send + 'c>>;

/// Makes connections.
pub trait Connector: Send + Sync {
    /// Connects to exactly this address.
    fn connect(&self, address: DialAddress) -> Connecting<'_>;
}

/// The system's own connections.
pub(super) struct Tcp;

impl Connector for Tcp {
    fn connect(&self, address: DialAddress) -> Connecting<'_> {
        Box::pin(async move {
            let stream = TcpStream::connect(address.get()).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }
}

/// A connection of whatever kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that acknowledges what it was sent at once.
///
/// A server that sends head and body apart waits for the head to be
/// acknowledged (RFC 896), which the system puts off for 40 ms on a connection
/// that is used again (RFC 1122); each answer would take as long.
pub(super) struct QuickAck(pub(super) TcpStream);

impl QuickAck {
    #[cfg(target_os = "linux")]
    fn acknowledge(&self) {
        // It lasts until the next delay, so it is said again after each read.
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.0, true);
    }

    #[cfg(not(target_os = "linux"))]
    fn acknowledge(&self) {}
}

impl AsyncRead for QuickAck {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.0).poll_read(context, into);
        // A read that fills its buffer left more behind, which follows at once.
        let some = into.filled().len() > before;
        if read.is_ready() && some && into.remaining() != 0 {
            self.acknowledge();
        }
        read
    }
}

impl AsyncWrite for QuickAck {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

/// Asks a proxy for a connection to an address.
pub(super) async fn through(
    proxy: &Proxy,
    address: DialAddress,
) -> Result<Box<dyn Stream>, EgressError> {
    let failed = |_| EgressError::Proxy;
    let stream = TcpStream::connect(proxy.address).await.map_err(failed)?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake::<_, Empty<Bytes>>(TokioIo::new(QuickAck(stream)))
            .await
            .map_err(|_| EgressError::Proxy)?;
    tokio::spawn(connection.with_upgrades());
    let authority = address.to_string();
    let mut request = http::Request::connect(authority.as_str())
        .header(HOST, authority.as_str())
        .body(Empty::new())
        .map_err(|_| EgressError::Internal)?;
    if let Some(text) = &proxy.authorization {
        let mut value = HeaderValue::from_str(text).map_err(|_| EgressError::Proxy)?;
        value.set_sensitive(true);
        request.headers_mut().insert(PROXY_AUTHORIZATION, value);
    }
    let response = sender.send_request(request).await.map_err(|_| EgressError::Proxy)?;
    if !response.status().is_success() {
        return Err(EgressError::Proxy);
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|_| EgressError::Proxy)?;
    Ok(Box::new(TokioIo::new(upgraded)))
}
