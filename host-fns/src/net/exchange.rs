//! The two ends of an exchange: what the guest polls, and what the connection
//! reads.
//!
//! Invariant: dropping the guest's end before the body has ended ends the task
//! that carries it; a streamed body has the length that was announced, or the
//! request fails.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::egress::{EgressError, Exchange, ResponseHead};
use super::pipe::{self, Taken};

/// The guest's side of an exchange.
pub(super) struct HttpExchange {
    pub(super) head: Option<oneshot::Receiver<Result<ResponseHead, EgressError>>>,
    pub(super) source: pipe::Receiver<EgressError>,
    pub(super) upload: Option<pipe::Sender<EgressError>>,
    pub(super) ended: bool,
    pub(super) digest: Arc<OnceLock<[u8; 32]>>,
    pub(super) task: AbortHandle,
}

impl Exchange for HttpExchange {
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<ResponseHead, EgressError>> {
        let Some(head) = &mut self.head else { return Poll::Ready(Err(EgressError::Internal)) };
        let answer = std::task::ready!(Pin::new(head).poll(context));
        self.head = None;
        Poll::Ready(answer.unwrap_or(Err(EgressError::Internal)))
    }

    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<Option<Bytes>, EgressError>> {
        Poll::Ready(match std::task::ready!(self.source.poll_take(context, most)) {
            Taken::Bytes(bytes) => Ok(Some(bytes)),
            Taken::End => {
                self.ended = true;
                Ok(None)
            }
            Taken::Failed(error) => Err(error),
            Taken::Abandoned => Err(EgressError::Internal),
        })
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match &self.upload {
            Some(upload) => upload.poll_ready(context).map(|ready| ready.is_ok()),
            None => Poll::Ready(false),
        }
    }

    fn write(&mut self, piece: Bytes) {
        if let Some(upload) = &self.upload {
            upload.push(piece);
        }
    }

    fn end(&mut self) {
        if let Some(upload) = self.upload.take() {
            upload.finish(Ok(()));
        }
    }

    fn digest(&self) -> Option<[u8; 32]> {
        self.digest.get().copied()
    }
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        if !self.ended {
            self.task.abort();
        }
    }
}

/// Bytes of a whole body that the connection gets at once, so that it is known
/// how far it has come.
const PIECE_BYTES: usize = 64 << 10;

/// How far a body has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pieces: u64,
    pub(super) all: bool,
}

/// Where a body comes from.
enum Source {
    Whole(Option<Bytes>),
    Pieces { receiver: pipe::Receiver<EgressError>, left: Option<u64> },
}

/// The body of a request as the connection reads it.
pub(super) struct RequestBody {
    source: Source,
    sent: Option<watch::Sender<Sent>>,
}

impl RequestBody {
    pub(super) fn whole(bytes: Option<Bytes>) -> Self {
        Self { source: Source::Whole(bytes), sent: None }
    }

    pub(super) fn pieces(receiver: pipe::Receiver<EgressError>, length: Option<u64>) -> Self {
        Self { source: Source::Pieces { receiver, left: length }, sent: None }
    }

    /// The same body again, if all of it is there.
    pub(super) fn again(&self) -> Option<Self> {
        match &self.source {
            Source::Whole(bytes) => Some(Self::whole(bytes.clone())),
            Source::Pieces { .. } => None,
        }
    }

    /// Tells from now on how far it has come; when the connection has let go of
    /// it, the other end is closed.
    pub(super) fn watched(&mut self) -> watch::Receiver<Sent> {
        let all = self.is_end_stream();
        let (sender, receiver) = watch::channel(Sent { pieces: 0, all });
        self.sent = Some(sender);
        receiver
    }

    fn tell(&self, is_piece: bool, all: bool) {
        if let Some(sent) = &self.sent {
            sent.send_modify(|sent| {
                sent.pieces = sent.pieces.saturating_add(u64::from(is_piece));
                sent.all |= all;
            });
        }
    }
}

impl Source {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, EgressError>>> {
        Poll::Ready(match self {
            Self::Whole(bytes) => {
                let piece = bytes.as_mut().map(|rest| rest.split_to(rest.len().min(PIECE_BYTES)));
                piece.filter(|piece| !piece.is_empty()).map(Ok)
            }
            Self::Pieces { receiver, left } => {
                match std::task::ready!(receiver.poll_take(context, pipe::PIPE_BYTES)) {
                    Taken::Bytes(bytes) => {
                        if let Some(left) = left {
                            let Some(rest) = left.checked_sub(bytes.len() as u64) else {
                                return Poll::Ready(Some(Err(EgressError::Length)));
                            };
                            *left = rest;
                        }
                        Some(Ok(bytes))
                    }
                    Taken::End if left.is_some_and(|left| left != 0) => {
                        Some(Err(EgressError::Length))
                    }
                    Taken::End => None,
                    Taken::Failed(error) => Some(Err(error)),
                    // The guest gave the request up.
                    Taken::Abandoned => Some(Err(EgressError::Length)),
                }
            }
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        let this = self.get_mut();
        let piece = std::task::ready!(this.source.poll(context));
        this.tell(piece.is_some(), piece.is_none() || this.is_end_stream());
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Source::Pieces { left, .. } => *left == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Source::Pieces { left: Some(left), .. } => SizeHint::with_exact(*left),
            Source::Pieces { left: None, .. } => SizeHint::default(),
        }
    }
}
