//! The catalogue of an embedder's tools.
//!
//! Invariant: a name means one tool; a set does not change once a broker has
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fumehood_guest_abi::{ToolName, ToolSummary, encode};
use serde_json::json;

use crate::tools::index::Index;
use crate::tools::{Tool, ToolSetupError, capped};

/// Most tools of one set.
pub const MAX_TOOLS: usize = 100_000;
/// Longest description that a search shows, in bytes.
const MAX_SUMMARY_BYTES: usize = 200;

/// Tools by name. Cloning shares the tools.
#[derive(Clone, Debug, Default)]
pub struct ToolSet {
    tools: Vec<Arc<Tool>>,
    by_name: BTreeMap<Arc<str>, u32>,
    index: Index,
    list: OnceLock<Arc<[u8]>>,
}

impl ToolSet {
    /// No tools.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// [`ToolSetupError`] if another has its name or the set is full.
    pub fn add(&mut self, tool: impl Into<Arc<Tool>>) -> Result<(), ToolSetupError> {
        let tool = tool.into();
        if self.by_name.contains_key(tool.name()) {
            return Err(ToolSetupError::Duplicate { name: tool.name().to_owned() });
        }
        let number = u32::try_from(self.tools.len()).map_err(|_| ToolSetupError::TooMany)?;
        if self.tools.len() >= MAX_TOOLS {
            return Err(ToolSetupError::TooMany);
        }
        self.index.add(number, &tool);
        self.by_name.insert(tool.shared_name(), number);
        self.tools.push(tool);
        self.list = OnceLock::new();
        Ok(())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The tool of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_name.get(name).and_then(|number| self.tools.get(*number as usize))
    }

    /// Every tool, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.by_name.values().filter_map(|number| self.tools.get(*number as usize))
    }

    /// Tools that have words of the query, or words that begin with them, in
    /// name or description; best first, at most `limit` and
    /// [`crate::MAX_SEARCH_RESULTS`].
    #[must_use]
    pub fn search(&self, query: &str, limit: usize) -> Vec<ToolSummary> {
        let found = self.index.search(&self.tools, query, limit);
        let tools = found.into_iter().filter_map(|number| self.tools.get(number as usize));
        let summary = |tool: &Arc<Tool>| ToolSummary {
            name: tool.name().to_owned(),
            description: first_sentence(tool.description()),
        };
        tools.map(summary).collect()
    }

    /// JSON text with `name`, `description` and `parameters` (the schema) of a
    /// tool.
    #[must_use]
    pub fn describe(&self, name: &str) -> Option<String> {
        let tool = self.get(name)?;
        let description = json!({
            "name": tool.name(),
            "description": tool.description(),
            "parameters": tool.schema(),
        });
        Some(description.to_string())
    }

    /// The record of `op::TOOL_LIST`, made once.
    pub(crate) fn list(&self) -> &Arc<[u8]> {
        self.list.get_or_init(|| {
            let name = |tool: &Arc<Tool>| ToolName {
                name: tool.name().to_owned(),
                parameters: tool.parameters().to_vec(),
            };
            let names: Vec<ToolName> = self.iter().map(name).collect();
            // Encoding plain names cannot fail.
            encode(&names).unwrap_or_default().into()
        })
    }
}

fn first_sentence(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
    capped(format_args!("{sentence}"), MAX_SUMMARY_BYTES)
}
