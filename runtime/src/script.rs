//! What is run: source text and everything that belongs to one run of it.

use std::sync::Arc;

use fumehood_guest_abi::Mode;
use fumehood_host_fns::{OutputSink, Stream};

use crate::inputs::{self, InputsError};
use crate::listener::Receive;

/// One program or cell and its inputs.
#[derive(Clone)]
pub struct Script {
    pub(crate) source: Vec<u8>,
    pub(crate) filename: String,
    pub(crate) mode: Mode,
    pub(crate) args: Vec<String>,
    pub(crate) stdin: Arc<[u8]>,
    pub(crate) inputs_json: Option<Vec<u8>>,
    pub(crate) import_path: Vec<String>,
    pub(crate) output: Output,
}

/// Who gets output while the code runs.
#[derive(Clone)]
pub(crate) enum Output {
    Nobody,
    /// On a thread of its own.
    Listener(Arc<Receive>),
    /// On the guest's thread.
    Sink(Arc<dyn OutputSink>),
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script")
            .field("filename", &self.filename)
            .field("mode", &self.mode)
            .field("source_bytes", &self.source.len())
            .finish_non_exhaustive()
    }
}

impl Script {
    /// A program: `__name__` is `"__main__"` and there is no value.
    #[must_use]
    pub fn new(source: impl Into<Vec<u8>>) -> Self {
        Self {
            source: source.into(),
            filename: "<script>".to_owned(),
            mode: Mode::Script,
            args: Vec::new(),
            stdin: Arc::from([]),
            inputs_json: None,
            import_path: Vec::new(),
            output: Output::Nobody,
        }
    }

    /// The source text.
    #[must_use]
    pub fn source_bytes(&self) -> &[u8] {
        &self.source
    }

    /// The name that the guest sees.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.filename
    }

    /// A cell: the value of a last expression is returned.
    #[must_use]
    pub fn cell(source: impl Into<Vec<u8>>) -> Self {
        Self { mode: Mode::Cell, filename: "<cell>".to_owned(), ..Self::new(source) }
    }

    /// The name in tracebacks, `__file__` and `sys.argv[0]`: a guest path or a
    /// name in angle brackets. Never a host path.
    #[must_use]
    pub fn filename(mut self, name: impl Into<String>) -> Self {
        self.filename = name.into();
        self
    }

    /// `sys.argv` after the program name.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// What the program reads from standard input; empty unless given.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into().into();
        self
    }

    /// A JSON object as text, whose members become globals before the code
    /// runs. The code gets them in this order and with every digit.
    ///
    /// # Errors
    /// [`InputsError`] if the text is something else.
    pub fn inputs_json(mut self, text: impl Into<Vec<u8>>) -> Result<Self, InputsError> {
        let text = text.into();
        inputs::check(&text)?;
        self.inputs_json = Some(text);
        Ok(self)
    }

    /// A JSON object whose members become globals before the code runs.
    #[must_use]
    pub fn inputs(mut self, inputs: &serde_json::Map<String, serde_json::Value>) -> Self {
        self.inputs_json = serde_json::to_vec(inputs).ok();
        self
    }

    /// A guest directory in front of `sys.path`, so that a script finds its
    /// siblings. May be given more than once.
    #[must_use]
    pub fn import_from(mut self, directory: impl Into<String>) -> Self {
        self.import_path.push(directory.into());
        self
    }

    /// Receives output while the code runs, on a thread of its own and in order.
    ///
    /// A receiver that is slow is waited for inside the run's time limits: when
    /// they are over before everything was received, the outcome is a timeout,
    /// within a moment of the deadline, and what was not received is in
    /// [`Outcome::stdout`](crate::Outcome::stdout) and `stderr` alone.
    #[must_use]
    pub fn on_output(mut self, receive: impl Fn(Stream, &[u8]) + Send + Sync + 'static) -> Self {
        self.output = Output::Listener(Arc::new(receive));
        self
    }

    /// Receives output on the guest's thread, between the audit records of what
    /// the guest does before and after it. The sink must not block: while it
    /// does, the run does not stop at its deadline.
    #[must_use]
    pub fn output_sink(mut self, sink: Arc<dyn OutputSink>) -> Self {
        self.output = Output::Sink(sink);
        self
    }
}

impl From<&str> for Script {
    fn from(source: &str) -> Self {
        Self::cell(source)
    }
}

impl From<String> for Script {
    fn from(source: String) -> Self {
        Self::cell(source)
    }
}
