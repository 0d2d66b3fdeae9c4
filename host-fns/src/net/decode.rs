//! Bodies of responses on their way to the guest.
//!
//! Invariant: bytes are paid for before they are passed on, as they arrive and
//! as they are decompressed, whichever is more. What decompresses to more than
//! [`DECODED_RATIO`] times its length, beyond the first
//! [`DECODED_FREE_BYTES`], is not passed on.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::time::timeout;

use super::client::hyper_error;
use super::egress::EgressError;
use super::{Allowance, pipe};

/// Decompressed bytes that are passed on whatever they came from.
pub(crate) const DECODED_FREE_BYTES: u64 = 8 << 20;
/// Most decompressed bytes for each byte that came, beyond the free ones.
pub(crate) const DECODED_RATIO: u64 = 200;
/// Largest window of zstd, as a power of two; RFC 9659 has the same.
pub(crate) const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// Bytes that are decompressed at once.
const PIECE_BYTES: usize = 64 << 10;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    /// What is accepted, as `Accept-Encoding` has it.
    pub(super) const ACCEPTED: &'static str = "gzip, br, zstd";

    /// The one coding that the headers name, if it is known.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let value = values.next()?;
        if values.next().is_some() {
            return None;
        }
        match value.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            "br" => Some(Self::Brotli),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Passes a body on until it ends; returns SHA-256 of what was passed on. It is
/// taken here, beside the guest's thread and not on it.
pub(super) async fn deliver(
    body: Incoming,
    coding: Option<Coding>,
    sink: &pipe::Sender<EgressError>,
    allowance: Allowance,
    idle: Duration,
) -> Result<[u8; 32], EgressError> {
    match coding {
        None => deliver_plain(body, sink, allowance, idle).await,
        Some(coding) => deliver_decoded(body, coding, sink, allowance, idle).await,
    }
}

async fn deliver_plain(
    mut body: Incoming,
    sink: &pipe::Sender<EgressError>,
    mut allowance: Allowance,
    idle: Duration,
) -> Result<[u8; 32], EgressError> {
    let mut digest = Sha256::new();
    loop {
        let frame = timeout(idle, body.frame()).await.map_err(|_| slow())?;
        let Some(frame) = frame else { return Ok(digest.finalize().into()) };
        let frame = frame.map_err(|error| hyper_error(&error))?;
        // Trailers are not passed on.
        if let Ok(data) = frame.into_data() {
            allowance.take(data.len() as u64).map_err(|over| EgressError::Limit(over.0))?;
            digest.update(&data);
            if sink.send(data).await.is_err() {
                return Err(EgressError::Closed);
            }
        }
    }
}

async fn deliver_decoded(
    body: Incoming,
    coding: Coding,
    sink: &pipe::Sender<EgressError>,
    allowance: Allowance,
    idle: Duration,
) -> Result<[u8; 32], EgressError> {
    let mut digest = Sha256::new();
    let charge = Charge(Arc::new(Mutex::new(Charged {
        allowance,
        wire: 0,
        decoded: 0,
        paid: 0,
        failed: None,
    })));
    let wire = Wire { body, piece: Bytes::new(), charge: charge.clone() };
    let mut reader = decoder(coding, wire);
    loop {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        let read = timeout(idle, reader.read_buf(&mut piece)).await.map_err(|_| slow())?;
        let read = read.map_err(|error| charge.failure(&error))?;
        if read == 0 {
            return Ok(digest.finalize().into());
        }
        charge.decoded(read as u64)?;
        digest.update(&piece);
        if sink.send(piece.freeze()).await.is_err() {
            return Err(EgressError::Closed);
        }
    }
}

fn slow() -> EgressError {
    EgressError::Timeout("a piece of the response")
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;

fn decoder(coding: Coding, wire: Wire) -> Reader {
    match coding {
        Coding::Gzip => {
            let mut decoder = GzipDecoder::new(wire);
            decoder.multiple_members(true);
            Box::new(decoder)
        }
        Coding::Deflate => Box::new(ZlibDecoder::new(wire)),
        Coding::Brotli => Box::new(BrotliDecoder::new(wire)),
        Coding::Zstd => {
            let window = DParameter::window_log_max(MAX_ZSTD_WINDOW_LOG);
            let mut decoder = ZstdDecoder::with_params(wire, &[window]);
            decoder.multiple_members(true);
            Box::new(decoder)
        }
    }
}

struct Charged {
    allowance: Allowance,
    wire: u64,
    decoded: u64,
    paid: u64,
    failed: Option<EgressError>,
}

/// What a compressed body has cost so far. It is charged while the decoder
/// reads too: a body can be long and decompress to nothing.
#[derive(Clone)]
struct Charge(Arc<Mutex<Charged>>);

impl Charge {
    fn lock(&self) -> MutexGuard<'_, Charged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wire(&self, bytes: u64) -> Result<(), EgressError> {
        let mut charged = self.lock();
        charged.wire = charged.wire.saturating_add(bytes);
        charged.pay()
    }

    fn decoded(&self, bytes: u64) -> Result<(), EgressError> {
        let mut charged = self.lock();
        charged.decoded = charged.decoded.saturating_add(bytes);
        let most = charged.wire.saturating_mul(DECODED_RATIO).saturating_add(DECODED_FREE_BYTES);
        if charged.decoded > most {
            return Err(EgressError::Bomb);
        }
        charged.pay()
    }

    /// What an error of the decoder was.
    fn failure(&self, error: &io::Error) -> EgressError {
        self.lock().failed.take().unwrap_or_else(|| {
            tracing::debug!(%error, "a body could not be decompressed");
            EgressError::Decode
        })
    }
}

impl Charged {
    fn pay(&mut self) -> Result<(), EgressError> {
        let due = self.wire.max(self.decoded).saturating_sub(self.paid);
        self.allowance.take(due).map_err(|over| EgressError::Limit(over.0))?;
        self.paid = self.paid.saturating_add(due);
        Ok(())
    }
}

/// A body as it arrives.
struct Wire {
    body: Incoming,
    piece: Bytes,
    charge: Charge,
}

impl Wire {
    fn fail(&self, error: EgressError) -> io::Error {
        self.charge.lock().failed = Some(error);
        io::Error::other("the body ended")
    }
}

impl AsyncBufRead for Wire {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        while this.piece.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                None => break,
                Some(Err(error)) => return Poll::Ready(Err(this.fail(hyper_error(&error)))),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(error) = this.charge.wire(data.len() as u64) {
                        return Poll::Ready(Err(this.fail(error)));
                    }
                    this.piece = data;
                }
            }
        }
        Poll::Ready(Ok(&this.piece))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let piece = &mut self.get_mut().piece;
        piece.advance(amount.min(piece.len()));
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let there = ready!(self.as_mut().poll_fill_buf(context))?;
        let length = there.len().min(into.remaining());
        into.put_slice(there.get(..length).unwrap_or_default());
        self.consume(length);
        Poll::Ready(Ok(()))
    }
}
