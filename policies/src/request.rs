//! Canonical requests.
//!
//! What: the request types that policy decides on.
//! Why: a value of type [`Canonical`] is the proof that the only parser of its
//! resource made it; decision and action both read it.
//!
//! Invariant: [`Canonical`] has no public constructor of its own.
//!
//! A parser makes one:
//!
//! ```
//! use fumehood_policies::{Canonical, EnvRequest, FsAction, FsRequest, GuestPath, ToolRequest};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file: Canonical<FsRequest> = FsRequest::canonical(FsAction::Read, GuestPath::root());
//! let variable: Canonical<EnvRequest> = EnvRequest::parse("HOME")?;
//! let tool: Canonical<ToolRequest> = ToolRequest::parse("search", b"{}", 100)?;
//! # Ok(())
//! # }
//! ```
//!
//! Nothing else does:
//!
//! ```compile_fail
//! use fumehood_policies::{Canonical, FsAction, FsRequest, GuestPath};
//! let request = FsRequest { action: FsAction::Read, path: GuestPath::root() };
//! let forged = Canonical { request }; // the field is private
//! ```
//!
//! ```compile_fail
//! use fumehood_policies::{Canonical, EnvRequest};
//! let forged: Canonical<EnvRequest> = Canonical::new(todo!()); // not public
//! ```
//!
//! ```compile_fail
//! use fumehood_policies::{Canonical, ToolRequest};
//! let forged: Canonical<ToolRequest> = "search".into(); // only `parse` makes one
//! ```
//!
//! ```compile_fail
//! use fumehood_policies::ToolRequest;
//! let request = ToolRequest { name: "search".into(), arguments: todo!(), bytes: 0 }; // private fields
//! ```

use crate::path::GuestPath;

/// A request that a canonicaliser of this crate made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical<R> {
    request: R,
}

impl<R> Canonical<R> {
    /// For the canonicalisers of this crate.
    pub(crate) fn new(request: R) -> Self {
        Self { request }
    }

    /// The request.
    pub fn get(&self) -> &R {
        &self.request
    }
}

/// What is to be done with a file system object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsAction {
    /// Look at type, size and times.
    Metadata,
    /// List a directory.
    List,
    /// Read the target of a symbolic link.
    ReadLink,
    /// Open an existing file for reading.
    Read,
    /// Open an existing file for writing.
    Write {
        /// Whether it can be read through the same descriptor.
        reads: bool,
    },
    /// Open an existing file and cut it to nothing.
    Truncate {
        /// Whether it can be read through the same descriptor.
        reads: bool,
    },
    /// Open a file for writing, or make it.
    Create {
        /// Whether it can be read through the same descriptor.
        reads: bool,
    },
    /// Make a directory.
    CreateDirectory,
    /// Remove a file or symbolic link.
    Remove,
    /// Remove an empty directory.
    RemoveDirectory,
    /// Move to another path, replacing what is there.
    Rename {
        /// The new path.
        to: GuestPath,
    },
    /// Give a file a second name.
    Link {
        /// The new path.
        to: GuestPath,
    },
    /// Make a symbolic link.
    Symlink,
    /// Change access and modification times.
    SetTimes,
}

impl FsAction {
    /// The operation's stable name in audit records and denials.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Metadata => "fs.metadata",
            Self::List => "fs.list",
            Self::ReadLink => "fs.read_link",
            Self::Read => "fs.read",
            Self::Write { .. } => "fs.write",
            Self::Truncate { .. } => "fs.truncate",
            Self::Create { .. } => "fs.create",
            Self::CreateDirectory => "fs.create_directory",
            Self::Remove => "fs.remove",
            Self::RemoveDirectory => "fs.remove_directory",
            Self::Rename { .. } => "fs.rename",
            Self::Link { .. } => "fs.link",
            Self::Symlink => "fs.symlink",
            Self::SetTimes => "fs.set_times",
        }
    }

    /// Whether the action changes anything.
    #[must_use]
    pub fn mutates(&self) -> bool {
        !matches!(self, Self::Metadata | Self::List | Self::ReadLink | Self::Read)
    }

    /// Whether the action only looks: it is decided each time and recorded in
    /// one summed record.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        matches!(self, Self::Metadata | Self::List | Self::ReadLink)
    }

    /// The second path of a rename or a link.
    #[must_use]
    pub fn second_path(&self) -> Option<&GuestPath> {
        match self {
            Self::Rename { to } | Self::Link { to } => Some(to),
            _ => None,
        }
    }
}

/// One request to the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsRequest {
    /// What to do.
    pub action: FsAction,
    /// With which object.
    pub path: GuestPath,
}

impl FsRequest {
    /// Canonicalises; both paths are canonical by their type.
    #[must_use]
    pub fn canonical(action: FsAction, path: GuestPath) -> Canonical<Self> {
        Canonical { request: Self { action, path } }
    }
}
