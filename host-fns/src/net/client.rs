//! Exchanges over HTTP/1.1 and HTTP/2.
//!
//! Invariant: the order is resolve, judge, dial, encrypt, send. Redirects,
//! proxies, cookies and credentials are not this client's business, and no
//! message is made of bytes that the guest framed.

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fumehood_policies::{AddressClass, AddressGrant, DialAddress, HostName, NetRequest};
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connect::{Connector, QuickAck, Stream, Tcp, through};
use super::decode::{Coding, deliver};
use super::egress::{Egress, EgressError, Exchange, Order, OrderBody, ResponseHead};
use super::exchange::{HttpExchange, RequestBody, Sent};
use super::options::{EgressOptions, EgressSetupError, Phases, Proxy};
use super::pipe::{self, pipe};
use super::pool::{IDLE_CONNECTION, Key, Pool, Sender};
use super::resolve::{NameServers, Resolver, Unresolved};
use super::{Allowance, RequestHeaders, runtime};
use crate::pipeline::Checked;

/// Most headers of a response.
pub(crate) const MAX_RESPONSE_HEADERS: usize = 256;
/// Most bytes of the head of a response.
pub(crate) const MAX_RESPONSE_HEADER_BYTES: usize = 64 << 10;
/// Most addresses of one name that are tried.
pub(crate) const MAX_DIALS: usize = 4;

/// Largest buffer for what a server sends.
const BUFFER_BYTES: usize = 256 << 10;
/// What HTTP/2 lets a server send before it was taken.
const WINDOW_BYTES: u32 = 1 << 20;
/// Longest silence of a server over HTTP/2 before it is asked whether it is
/// there.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Longest wait for its answer.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to be ready for the next request.
const SETTLE: Duration = Duration::from_millis(200);
const AGENT: &str = concat!("fumehood/", env!("CARGO_PKG_VERSION"));

/// The egress of this crate. It keeps connections, so sandboxes that trust each
/// other with nothing should each have their own.
pub struct HttpEgress {
    shared: Arc<Shared>,
    handle: Handle,
}

struct Shared {
    phases: Phases,
    proxy: Option<Proxy>,
    own: Vec<std::net::SocketAddr>,
    resolver: Arc<dyn Resolver>,
    connector: Arc<dyn Connector>,
    tls: TlsConnector,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for HttpEgress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HttpEgress").finish_non_exhaustive()
    }
}

impl HttpEgress {
    /// Sets connections up. A proxy is connected to once, for a moment; it must
    /// not be called on a thread of an async runtime if there is one.
    ///
    /// # Errors
    /// [`EgressSetupError`] names what cannot be used.
    pub fn new(options: EgressOptions) -> Result<Self, EgressSetupError> {
        let tls = tls(&options.extra_certificates)?;
        let handle = runtime::handle().map_err(EgressSetupError::Threads)?;
        if let Some(proxy) = &options.proxy {
            let address = proxy.address;
            knock(&handle, address, options.phases.connect)
                .map_err(|source| EgressSetupError::Proxy { address, source })?;
        }
        let mut own = options.own_addresses;
        own.extend(options.proxy.as_ref().map(|proxy| proxy.address));
        let name_servers = options.name_servers;
        Ok(Self {
            shared: Arc::new(Shared {
                phases: options.phases,
                proxy: options.proxy,
                own,
                resolver: options
                    .resolver
                    .unwrap_or_else(|| Arc::new(NameServers::new(name_servers))),
                connector: options.connector.unwrap_or_else(|| Arc::new(Tcp)),
                tls,
                pool: Arc::new(Pool::new(IDLE_CONNECTION)),
            }),
            handle,
        })
    }
}

/// Whether something listens.
fn knock(handle: &Handle, at: std::net::SocketAddr, within: Duration) -> std::io::Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    handle.spawn(async move {
        let connected = timeout(within, tokio::net::TcpStream::connect(at)).await;
        let _ = sender.send(connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())));
    });
    receiver.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map(drop)
}

fn tls(extra: &[u8]) -> Result<TlsConnector, EgressSetupError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if !extra.is_empty() {
        let mut found = false;
        for certificate in CertificateDer::pem_slice_iter(extra) {
            let certificate = certificate.map_err(|_| EgressSetupError::Certificates)?;
            roots.add(certificate).map_err(|_| EgressSetupError::Certificates)?;
            found = true;
        }
        if !found {
            return Err(EgressSetupError::Certificates);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(EgressSetupError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Egress for HttpEgress {
    fn start(&self, checked: &Checked<'_, NetRequest>, order: Order) -> Box<dyn Exchange> {
        let Order { headers, body, download, decode, timeout } = order;
        let (head_sender, head) = oneshot::channel();
        let (sink, source) = pipe();
        let (body, upload) = match body {
            OrderBody::None => (RequestBody::whole(None), None),
            OrderBody::Bytes(bytes) => (RequestBody::whole(Some(bytes)), None),
            OrderBody::Stream(length) => {
                let (sender, receiver) = pipe();
                (RequestBody::pieces(receiver, length), Some(sender))
            }
        };
        let digest = Arc::default();
        let job = Job {
            shared: Arc::clone(&self.shared),
            request: checked.get().clone(),
            grant: checked.obligations().addresses(),
            headers,
            decode,
            phases: self.shared.phases.within(timeout),
            digest: Arc::clone(&digest),
        };
        let task = self.handle.spawn(job.run(body, download, head_sender, sink));
        Box::new(HttpExchange {
            head: Some(head),
            source,
            upload,
            ended: false,
            digest,
            task: task.abort_handle(),
        })
    }

    fn forget(&self) {
        self.shared.pool.forget();
    }
}

/// One exchange on its task.
struct Job {
    shared: Arc<Shared>,
    request: NetRequest,
    grant: AddressGrant,
    headers: RequestHeaders,
    decode: bool,
    phases: Phases,
    digest: Arc<OnceLock<[u8; 32]>>,
}

type HeadSender = oneshot::Sender<Result<ResponseHead, EgressError>>;

impl Job {
    async fn run(
        self,
        body: RequestBody,
        download: Allowance,
        head: HeadSender,
        sink: pipe::Sender<EgressError>,
    ) {
        let mut head = Some(head);
        let done =
            timeout(self.phases.total, self.exchange(body, download, &mut head, &sink)).await;
        let ended = done.unwrap_or(Err(EgressError::Timeout("the whole exchange")));
        if let Err(EgressError::Timeout(_) | EgressError::Closed | EgressError::Protocol(_)) =
            &ended
        {
            // Nothing may come over its connection any more.
            self.shared.pool.discard(&Key::new(&self.request, self.grant));
        }
        if let (Err(error), Some(head)) = (&ended, head.take()) {
            let _ = head.send(Err(error.clone()));
        }
        sink.finish(ended);
    }

    async fn exchange(
        &self,
        body: RequestBody,
        download: Allowance,
        head: &mut Option<HeadSender>,
        sink: &pipe::Sender<EgressError>,
    ) -> Result<(), EgressError> {
        let pool = &self.shared.pool;
        let generation = pool.generation();
        let key = Key::new(&self.request, self.grant);
        let (response, sender) = self.answered(&key, body).await?;
        let reason = response
            .extensions()
            .get::<hyper::ext::ReasonPhrase>()
            .map(|reason| reason.as_bytes().iter().map(|byte| char::from(*byte)).collect());
        let (parts, incoming) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(EgressError::Protocol("a change of protocol that nobody asked for"));
        }
        if parts.headers.len() > MAX_RESPONSE_HEADERS {
            return Err(EgressError::Protocol("more headers than are accepted"));
        }
        let coding = if self.decode && !incoming.is_end_stream() {
            Coding::of(&parts.headers)
        } else {
            None
        };
        let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let announced = announced.and_then(|text| text.parse().ok());
        if let (Some(length), false) = (announced, self.request.method == "HEAD") {
            download.fits(length).map_err(|over| EgressError::Limit(over.0))?;
        }
        let begun = ResponseHead {
            status: parts.status,
            reason: reason.unwrap_or_default(),
            version: parts.version,
            headers: parts.headers,
            decoded: coding.is_some(),
        };
        if let Some(head) = head.take() {
            let _ = head.send(Ok(begun));
        }
        let digest = deliver(incoming, coding, sink, download, self.phases.idle).await?;
        let _ = self.digest.set(digest);
        let ready = match sender {
            Sender::One(mut sender) => {
                let settled = std::future::poll_fn(|context| sender.poll_ready(context));
                let settled = timeout(SETTLE, settled).await;
                matches!(settled, Ok(Ok(()))).then_some(Sender::One(sender))
            }
            two @ Sender::Two(_) => Some(two),
        };
        if let Some(sender) = ready {
            pool.keep(key, sender, generation);
        }
        Ok(())
    }

    /// Sends the request and waits for its head; once more on a new connection
    /// if a kept one turned out to be closed before anything was answered.
    async fn answered(
        &self,
        key: &Key,
        body: RequestBody,
    ) -> Result<(Response<Incoming>, Sender), EgressError> {
        if let Some(kept) = self.shared.pool.take(key) {
            let again = body.again();
            match self.send(kept, body).await {
                Ok(answered) => return Ok(answered),
                Err(Unsent::Request(body)) => {
                    return self.send(self.connect().await?, body).await.map_err(Unsent::error);
                }
                Err(Unsent::Error(EgressError::Closed)) if self.is_repeatable() => {
                    let body = again.ok_or(EgressError::Closed)?;
                    return self.send(self.connect().await?, body).await.map_err(Unsent::error);
                }
                Err(Unsent::Error(error)) => return Err(error),
            }
        }
        let sender = self.connect().await?;
        if let Sender::Two(two) = &sender {
            // Others that start in the meantime share it.
            let generation = self.shared.pool.generation();
            self.shared.pool.keep(key.clone(), Sender::Two(two.clone()), generation);
        }
        self.send(sender, body).await.map_err(Unsent::error)
    }

    fn is_repeatable(&self) -> bool {
        matches!(self.request.method, "GET" | "HEAD" | "OPTIONS")
    }

    async fn send(
        &self,
        mut sender: Sender,
        mut body: RequestBody,
    ) -> Result<(Response<Incoming>, Sender), Unsent> {
        let two = matches!(sender, Sender::Two(_));
        let upload = body.watched();
        let message = self.message(two, body).map_err(Unsent::Error)?;
        let sent = async {
            match &mut sender {
                Sender::One(sender) => sender.try_send_request(message).await,
                Sender::Two(sender) => sender.try_send_request(message).await,
            }
        };
        match self.head(sent, upload).await.map_err(Unsent::Error)? {
            Ok(response) => Ok((response, sender)),
            Err(mut failed) => Err(match failed.take_message() {
                Some(message) => Unsent::Request(message.into_body()),
                None => Unsent::Error(hyper_error(failed.error())),
            }),
        }
    }

    /// Waits for the head of the response: for each piece of the request's body
    /// as long as a piece may take, and from its end on as long as the head may.
    async fn head<T>(
        &self,
        sent: impl Future<Output = T>,
        mut upload: watch::Receiver<Sent>,
    ) -> Result<T, EgressError> {
        let mut sent = std::pin::pin!(sent);
        let mut all = upload.borrow_and_update().all;
        loop {
            let (most, what) = if all {
                (self.phases.head, "the response")
            } else {
                (self.phases.idle, "a piece of the request")
            };
            tokio::select! {
                biased;
                answered = &mut sent => return Ok(answered),
                moved = upload.changed(), if !all => {
                    all = moved.is_err() || upload.borrow_and_update().all;
                }
                () = tokio::time::sleep(most) => return Err(EgressError::Timeout(what)),
            }
        }
    }

    fn message(&self, two: bool, body: RequestBody) -> Result<Request<RequestBody>, EgressError> {
        let path = self.request.path_and_query();
        let authority = self.request.authority();
        let target = if two { format!("https://{authority}{path}") } else { path };
        let version = if two { Version::HTTP_2 } else { Version::HTTP_11 };
        let mut message = Request::builder()
            .method(self.request.method)
            .uri(target)
            .version(version)
            .body(body)
            .map_err(|_| EgressError::Protocol("nothing: this URL cannot be sent"))?;
        let headers = message.headers_mut();
        if !two {
            let host = HeaderValue::from_str(&authority).map_err(|_| EgressError::Internal)?;
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let mut own = self.headers.get().clone();
        if self.decode {
            own.remove(ACCEPT_ENCODING);
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(Coding::ACCEPTED));
        }
        if own.contains_key(USER_AGENT) {
            headers.remove(USER_AGENT);
        }
        for (name, value) in &own {
            headers.append(name.clone(), value.clone());
        }
        Ok(message)
    }

    async fn connect(&self) -> Result<Sender, EgressError> {
        let addresses = self.addresses().await?;
        let slow = |_| EgressError::Timeout("connecting");
        let stream = timeout(self.phases.connect, self.dial(&addresses)).await.map_err(slow)??;
        if !self.request.https {
            return one(stream).await;
        }
        let name = match &self.request.host {
            HostName::Address(address) => ServerName::IpAddress((*address).into()),
            name @ HostName::Name(_) => {
                ServerName::try_from(name.to_string()).map_err(|_| EgressError::Internal)?
            }
        };
        let handshake = timeout(self.phases.tls, self.shared.tls.connect(name, stream)).await;
        let encrypted = handshake
            .map_err(|_| EgressError::Timeout("the handshake of TLS"))?
            .map_err(|error| EgressError::Tls(tls_error(&error)))?;
        if encrypted.get_ref().1.alpn_protocol() == Some(b"h2") {
            two(encrypted).await
        } else {
            one(encrypted).await
        }
    }

    /// Every address that the request may be taken to.
    async fn addresses(&self) -> Result<Vec<DialAddress>, EgressError> {
        let answers: Vec<IpAddr> = match &self.request.host {
            HostName::Address(address) => vec![*address],
            name @ HostName::Name(_) => {
                let lookup = self.shared.resolver.resolve(name);
                let found = timeout(self.phases.resolve, lookup).await;
                found.map_err(|_| EgressError::Timeout("looking the name up"))?.map_err(
                    |unresolved| match unresolved {
                        Unresolved::NoAddress => EgressError::Name,
                        Unresolved::Failed => EgressError::Lookup,
                    },
                )?
            }
        };
        let mut admitted = Vec::new();
        let mut refused = EgressError::Name;
        for answer in answers {
            match DialAddress::admit(&self.request, self.grant, answer) {
                Ok(address) if self.is_own(address) => refused = EgressError::Own,
                Ok(address) => admitted.push(address),
                Err(why) => {
                    tracing::debug!(address = %why.address, class = why.class.name(), "an answer was refused");
                    refused = EgressError::Address(why.class);
                }
            }
        }
        admitted.truncate(MAX_DIALS);
        if admitted.is_empty() { Err(refused) } else { Ok(admitted) }
    }

    fn is_own(&self, address: DialAddress) -> bool {
        let address = address.get();
        self.shared.own.iter().any(|own| {
            own.port() == address.port()
                && (own.ip() == address.ip()
                    || (own.ip().is_unspecified()
                        && AddressClass::of(address.ip()) != AddressClass::Public))
        })
    }

    async fn dial(&self, addresses: &[DialAddress]) -> Result<Box<dyn Stream>, EgressError> {
        let count = u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let each = self.phases.connect.checked_div(count).unwrap_or_default();
        let mut last = EgressError::Connect;
        for address in addresses {
            let attempt = async {
                match &self.shared.proxy {
                    Some(proxy) => through(proxy, *address).await,
                    None => match self.shared.connector.connect(*address).await {
                        Ok(stream) => Ok(Box::new(QuickAck(stream)) as Box<dyn Stream>),
                        Err(error) => {
                            tracing::debug!(%address, %error, "a connection was not made");
                            Err(EgressError::Connect)
                        }
                    },
                }
            };
            match timeout(each, attempt).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = EgressError::Timeout("connecting"),
            }
        }
        Err(last)
    }
}

/// Why a request was not answered.
enum Unsent {
    /// Nothing of it was sent; its body.
    Request(RequestBody),
    Error(EgressError),
}

impl Unsent {
    fn error(self) -> EgressError {
        match self {
            Self::Request(_) => EgressError::Closed,
            Self::Error(error) => error,
        }
    }
}

async fn one(stream: impl Stream + 'static) -> Result<Sender, EgressError> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(MAX_RESPONSE_HEADERS)
        .max_header_size(MAX_RESPONSE_HEADER_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| hyper_error(&error))?;
    tokio::spawn(connection);
    Ok(Sender::One(sender))
}

async fn two(stream: impl Stream + 'static) -> Result<Sender, EgressError> {
    let header_bytes = u32::try_from(MAX_RESPONSE_HEADER_BYTES).unwrap_or(u32::MAX);
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .max_header_list_size(header_bytes)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES.saturating_mul(2))
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| hyper_error(&error))?;
    tokio::spawn(connection);
    Ok(Sender::Two(sender))
}

/// What went wrong with TLS, in the words of the library and no more.
fn tls_error(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or_else(|| "the connection ended".to_owned(), ToString::to_string)
}

/// What an error of the connection was.
pub(super) fn hyper_error(error: &hyper::Error) -> EgressError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(own) = cause.downcast_ref::<EgressError>() {
            return own.clone();
        }
        source = cause.source();
    }
    if error.is_parse() {
        EgressError::Protocol("what is no HTTP, or a head that is too large")
    } else {
        EgressError::Closed
    }
}
