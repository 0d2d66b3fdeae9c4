//! The text of the latest cells, so that tracebacks can show their lines.
//!
//! Invariant: the latest text is kept, and of those before it the ones whose code
//! somebody else holds (a function, a frame), at most [`MAX_SOURCES`] and, but
//! for a single larger one, [`MAX_BYTES`]. Looking something up keeps nothing.

use rustpython_vm::builtins::PyCode;
use rustpython_vm::{AsObject as _, Py, PyObject, PyRef};
use std::borrow::Borrow as _;
use std::collections::VecDeque;

/// Texts that are kept.
const MAX_SOURCES: usize = 256;
/// Bytes of all texts together.
const MAX_BYTES: usize = 1 << 20;

/// Texts with the code that was made of them, the latest last. What is held
/// keeps its address, so that no other code is taken for it.
pub(crate) struct Sources {
    kept: VecDeque<(PyRef<PyCode>, String)>,
    bytes: usize,
    /// The next one that is looked at.
    at: usize,
}

impl Sources {
    /// Has room for all it will keep.
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(MAX_SOURCES), bytes: 0, at: 0 }
    }

    /// Adds one; gives what is kept no longer, to be dropped when nothing is
    /// borrowed. Looks at the one before it and at one more of the others.
    #[must_use]
    pub(crate) fn push(&mut self, code: PyRef<PyCode>, source: String) -> Vec<PyRef<PyCode>> {
        let mut gone = Vec::new();
        let last = self.kept.len().saturating_sub(1);
        self.at = if self.at < last { self.at } else { 0 };
        for index in [last, self.at] {
            if self.kept.get(index).is_some_and(|(code, _)| !is_held(code)) {
                gone.extend(self.remove(index));
            }
        }
        self.at = self.at.saturating_add(1);
        self.bytes = self.bytes.saturating_add(source.len());
        while self.kept.len() >= MAX_SOURCES || (self.bytes > MAX_BYTES && !self.kept.is_empty()) {
            gone.extend(self.remove(0));
        }
        self.kept.push_back((code, source));
        gone
    }

    fn remove(&mut self, index: usize) -> Option<PyRef<PyCode>> {
        let (code, source) = self.kept.remove(index)?;
        self.bytes = self.bytes.saturating_sub(source.len());
        Some(code)
    }

    /// The text that code was made of: a cell's, or that of a function in it.
    pub(crate) fn get(&self, code: &PyCode) -> Option<&str> {
        let found = self.kept.iter().rev().find(|(cell, _)| contains(cell, code));
        found.map(|(_, source)| source.as_str())
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }
}

/// Codes that are constants of this one.
fn inner(code: &PyCode) -> impl Iterator<Item = &Py<PyCode>> {
    // Not as `borrow_constant` gives them, which keeps some for good.
    let constants = code.code.constants.iter().map(|constant| -> &PyObject { constant.borrow() });
    constants.filter_map(|constant| constant.downcast_ref::<PyCode>())
}

/// Whether anything but these texts and the code around it holds a code.
fn is_held(cell: &Py<PyCode>) -> bool {
    let mut rest = vec![cell];
    while let Some(code) = rest.pop() {
        if code.as_object().strong_count() > 1 {
            return true;
        }
        rest.extend(inner(code));
    }
    false
}

fn contains(cell: &PyCode, wanted: &PyCode) -> bool {
    if !std::ptr::eq(cell.code.source_path, wanted.code.source_path) {
        return false;
    }
    let mut rest = vec![cell];
    while let Some(code) = rest.pop() {
        if std::ptr::eq(code, wanted) {
            return true;
        }
        rest.extend(inner(code).map(|code| -> &PyCode { code }));
    }
    false
}
