//! The text of the latest cells, so that tracebacks can show their lines.
//!
//! Invariant: at most [`MAX_SOURCES`] texts and, but for a single larger one,
//! [`MAX_BYTES`]; a session of thousands of cells does not keep them all. Looking
//! something up keeps nothing.

use rustpython_vm::builtins::PyCode;
use rustpython_vm::{PyObject, PyRef};
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
}

impl Sources {
    /// Has room for all it will keep.
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(MAX_SOURCES), bytes: 0 }
    }

    /// Adds one; gives what is kept no longer, to be dropped when nothing is
    /// borrowed.
    #[must_use]
    pub(crate) fn push(&mut self, code: PyRef<PyCode>, source: String) -> Vec<PyRef<PyCode>> {
        let mut gone = Vec::new();
        self.bytes = self.bytes.saturating_add(source.len());
        while self.kept.len() >= MAX_SOURCES || (self.bytes > MAX_BYTES && !self.kept.is_empty()) {
            if let Some((code, oldest)) = self.kept.pop_front() {
                self.bytes = self.bytes.saturating_sub(oldest.len());
                gone.push(code);
            }
        }
        self.kept.push_back((code, source));
        gone
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

fn contains(cell: &PyCode, wanted: &PyCode) -> bool {
    if !std::ptr::eq(cell.code.source_path, wanted.code.source_path) {
        return false;
    }
    let mut rest = vec![cell];
    while let Some(code) = rest.pop() {
        if std::ptr::eq(code, wanted) {
            return true;
        }
        // Not as `borrow_constant` gives them, which keeps some for good.
        let constants = code.code.constants.iter().map(|constant| -> &PyObject { constant.borrow() });
        rest.extend(constants.filter_map(|constant| {
            constant.downcast_ref::<PyCode>().map(|code| -> &PyCode { code })
        }));
    }
    false
}
