//! Rules over files.
//!
//! What: [`FsRule`] says what may be done at which paths, below what the
//! mounts already grant.
//! Why: an effect must not be had under another name. So a rename or a link
//! counts, for deny and ask, as everything that it amounts to at both of its
//! paths, a file that is opened to write and to read needs both, and a
//! directory is moved with all that may lie below it, unless the
//! rule means the same names there.
//!
//! Invariant: adding a deny rule never allows more; an ask rule never allows
//! what no approver allowed.

use std::sync::Arc;

use super::{Action, Rule, Ruled};
use crate::glob::PathGlob;
use crate::path::GuestPath;
use crate::request::{FsAction, FsRequest};

/// Stable names of the operations, as policy text writes them.
pub const FS_OPERATIONS: [&str; 14] = [
    "metadata",
    "list",
    "read_link",
    "read",
    "write",
    "truncate",
    "create",
    "create_directory",
    "remove",
    "remove_directory",
    "rename",
    "link",
    "symlink",
    "set_times",
];

/// How many of [`FS_OPERATIONS`], from the first, only look.
const READING: u32 = 4;

/// A set of file operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsOperations(u16);

impl FsOperations {
    /// No operation.
    pub const NONE: Self = Self(0);
    /// Every operation.
    pub const ALL: Self = Self((1 << 14) - 1);
    /// The group `read`: metadata, list, read_link, read.
    pub const READ: Self = Self((1 << READING) - 1);
    /// The group `write`: every operation that changes something.
    pub const WRITE: Self = Self(Self::ALL.0 & !Self::READ.0);

    /// The operation or group of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "read" => return Some(Self::READ),
            "write" => return Some(Self::WRITE),
            _ => {}
        }
        Self::single(name)
    }

    /// The single operation of that name, `read` included; none if unknown.
    pub(crate) fn named_one(name: &str) -> Self {
        Self::single(name).unwrap_or(Self::NONE)
    }

    fn single(name: &str) -> Option<Self> {
        let index = FS_OPERATIONS.iter().position(|known| *known == name)?;
        u32::try_from(index).ok().and_then(|index| 1_u16.checked_shl(index)).map(Self)
    }

    pub(crate) fn of(action: &FsAction) -> Self {
        action.name().strip_prefix("fs.").and_then(Self::single).unwrap_or(Self::NONE)
    }

    /// What must be allowed at the first path: the operation itself, and
    /// `read` where what is opened to be written can also be read.
    pub(crate) fn needed_by(action: &FsAction) -> Self {
        let own = Self::of(action);
        match action {
            FsAction::Write { reads }
            | FsAction::Truncate { reads }
            | FsAction::Create { reads }
                if *reads =>
            {
                own.with(READ)
            }
            _ => own,
        }
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without those of the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any operation is in both.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every operation of the other is in this.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FS_OPERATIONS
            .into_iter()
            .filter(move |name| Self::single(name).is_some_and(|one| self.contains(one)))
    }
}

const READ: FsOperations = FsOperations(1 << 3);
const WRITE: FsOperations = FsOperations(1 << 4);
const TRUNCATE: FsOperations = FsOperations(1 << 5);
const CREATE: FsOperations = FsOperations(1 << 6);
const REMOVE: FsOperations = FsOperations(1 << 8);

/// What the caller knows about the objects of a request. The default knows
/// nothing and is the strictest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsFacts {
    /// Whether what is renamed is a directory. Unknown counts as yes.
    pub source_is_directory: Option<bool>,
}

/// One rule over files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsRule {
    /// Unique name.
    pub id: Arc<str>,
    /// What it does.
    pub action: Action,
    /// At which paths.
    pub paths: Vec<PathGlob>,
    /// For which operations.
    pub operations: FsOperations,
    /// Line in the policy text.
    pub line: usize,
}

impl Rule for FsRule {
    fn action(&self) -> Action {
        self.action
    }
}

/// One path of a request.
struct Touch<'r> {
    path: &'r GuestPath,
    /// What happens here, under every name; deny and ask look at these.
    amounts_to: FsOperations,
    /// What must be allowed here, each.
    needs: FsOperations,
    /// Where what lies below goes to or comes from, if it comes along.
    subtree: Option<&'r GuestPath>,
}

fn touches<'r>(request: &'r FsRequest, facts: FsFacts) -> impl Iterator<Item = Touch<'r>> {
    let own = FsOperations::of(&request.action);
    let path = &request.path;
    let (source, target) = match &request.action {
        FsAction::Rename { to } => {
            let directory = facts.source_is_directory != Some(false);
            let arrives = own.with(CREATE).with(WRITE).with(TRUNCATE).with(REMOVE);
            (
                // Under its new path everything can be done with it.
                Touch {
                    path,
                    amounts_to: FsOperations::ALL,
                    needs: own.with(READ),
                    subtree: directory.then_some(to),
                },
                Some(Touch {
                    path: to,
                    amounts_to: arrives,
                    needs: own,
                    subtree: directory.then_some(path),
                }),
            )
        }
        FsAction::Link { to } => (
            Touch { path, amounts_to: FsOperations::ALL, needs: own.with(READ), subtree: None },
            Some(Touch { path: to, amounts_to: own.with(CREATE), needs: own, subtree: None }),
        ),
        FsAction::Create { .. } | FsAction::Truncate { .. } | FsAction::Write { .. } => {
            let needs = FsOperations::needed_by(&request.action);
            let amounts_to = needs.with(WRITE).with(TRUNCATE);
            (Touch { path, amounts_to, needs, subtree: None }, None)
        }
        FsAction::Symlink => {
            (Touch { path, amounts_to: own.with(CREATE), needs: own, subtree: None }, None)
        }
        _ => (Touch { path, amounts_to: own, needs: own, subtree: None }, None),
    };
    std::iter::once(source).chain(target)
}

impl FsRule {
    /// Whether a deny or ask rule speaks about a path of a request.
    fn restricts(&self, touch: &Touch<'_>) -> bool {
        self.action != Action::Allow
            && self.operations.intersects(touch.amounts_to)
            && self.paths.iter().any(|glob| {
                let extent = glob.extent(touch.path.components());
                // What matches at the old place and at the new one alike is as
                // restricted there as it was here.
                let moved =
                    |other: &GuestPath| glob.extent(other.components()).progress != extent.progress;
                extent.here || (extent.some_below && touch.subtree.is_some_and(moved))
            })
    }

    /// Whether the rule says anything about a request.
    pub(crate) fn speaks_about(&self, request: &FsRequest, facts: FsFacts) -> bool {
        touches(request, facts).any(|touch| {
            let allows = self.action != Action::Deny
                && self.operations.intersects(touch.needs)
                && self.grants(touch.path).0;
            allows || self.restricts(&touch)
        })
    }

    /// Whether an allow rule grants one operation at the path, and whether
    /// also at everything below.
    fn grants(&self, path: &GuestPath) -> (bool, bool) {
        self.paths.iter().fold((false, false), |(here, below), glob| {
            let extent = glob.extent(path.components());
            (here || extent.here, below || extent.all_below)
        })
    }
}

/// The rules of one section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FsRules {
    rules: Arc<[FsRule]>,
}

impl FsRules {
    pub(crate) fn new(rules: &[FsRule]) -> Self {
        let mut rules = rules.to_vec();
        rules.sort();
        Self { rules: rules.into() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FsRule> {
        self.rules.iter()
    }

    /// What the rules say. With no allow rule they only take away; with one,
    /// what neither an allow nor an ask rule names is denied.
    pub(crate) fn decide(&self, request: &FsRequest, facts: FsFacts) -> Ruled {
        if self.rules.is_empty() {
            return Ruled::Silent;
        }
        let restricting = self
            .rules
            .iter()
            .filter(|rule| touches(request, facts).any(|touch| rule.restricts(&touch)));
        let restricted = super::strongest(restricting);
        let spoken = |rule: &FsRule| Ruled::Rule(rule.action, Arc::clone(&rule.id));
        let lists = self.rules.iter().any(|rule| rule.action == Action::Allow);
        match restricted {
            Some(rule) if rule.action == Action::Deny || !lists => return spoken(rule),
            None if !lists => return Ruled::Silent,
            _ => {}
        }
        // An ask rule lists what it names; what it only restricts stays denied
        // if nothing lists it.
        let mut named = restricted;
        for touch in touches(request, facts) {
            let mut here = FsOperations::NONE;
            let mut below = FsOperations::NONE;
            for rule in self.rules.iter().filter(|rule| {
                rule.action != Action::Deny && rule.operations.intersects(touch.needs)
            }) {
                let (grants_here, grants_below) = rule.grants(touch.path);
                if grants_here {
                    here = here.with(rule.operations);
                    named.get_or_insert(rule);
                }
                if grants_below {
                    below = below.with(rule.operations);
                }
            }
            if !here.contains(touch.needs)
                || (touch.subtree.is_some() && !below.contains(touch.needs))
            {
                return Ruled::Unlisted;
            }
        }
        named.map_or(Ruled::Unlisted, spoken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(raw: &str) -> GuestPath {
        GuestPath::parse(&GuestPath::root(), raw.as_bytes()).unwrap().path
    }

    fn rule(id: &str, action: Action, paths: &[&str], operations: &[&str]) -> FsRule {
        FsRule {
            id: Arc::from(id),
            action,
            paths: paths.iter().map(|text| PathGlob::parse(text).unwrap()).collect(),
            operations: if operations.is_empty() {
                FsOperations::ALL
            } else {
                operations.iter().fold(FsOperations::NONE, |all, name| {
                    all.with(FsOperations::named(name).unwrap())
                })
            },
            line: 1,
        }
    }

    fn decide(rules: &[FsRule], action: FsAction, at: &str, directory: Option<bool>) -> Ruled {
        let request = FsRequest::canonical(action, path(at));
        FsRules::new(rules).decide(request.get(), FsFacts { source_is_directory: directory })
    }

    fn rename(to: &str) -> FsAction {
        FsAction::Rename { to: path(to) }
    }

    #[test]
    fn names_agree_with_actions() {
        let named: Vec<&str> =
            all_actions().iter().map(|action| action.name().strip_prefix("fs.").unwrap()).collect();
        assert_eq!(named, FS_OPERATIONS);
        for action in all_actions() {
            assert_eq!(
                FsOperations::WRITE.contains(FsOperations::of(&action)),
                action.mutates(),
                "{}",
                action.name()
            );
        }
    }

    fn all_actions() -> Vec<FsAction> {
        vec![
            FsAction::Metadata,
            FsAction::List,
            FsAction::ReadLink,
            FsAction::Read,
            FsAction::Write { reads: false },
            FsAction::Truncate { reads: false },
            FsAction::Create { reads: false },
            FsAction::CreateDirectory,
            FsAction::Remove,
            FsAction::RemoveDirectory,
            rename("/x"),
            FsAction::Link { to: path("/x") },
            FsAction::Symlink,
            FsAction::SetTimes,
        ]
    }

    #[test]
    fn only_deny_rules_leave_the_rest_to_the_mounts() {
        let rules = [rule("env", Action::Deny, &["/**/.env"], &[])];
        assert_eq!(
            decide(&rules, FsAction::Read, "/a/.env", None),
            Ruled::Rule(Action::Deny, "env".into())
        );
        assert_eq!(decide(&rules, FsAction::Read, "/a/b", None), Ruled::Silent);
    }

    #[test]
    fn an_allow_rule_makes_a_list() {
        let rules = [rule("data", Action::Allow, &["/data/**"], &["read"])];
        assert_eq!(
            decide(&rules, FsAction::Read, "/data/x", None),
            Ruled::Rule(Action::Allow, "data".into())
        );
        assert_eq!(
            decide(&rules, FsAction::Create { reads: false }, "/data/x", None),
            Ruled::Unlisted
        );
        assert_eq!(decide(&rules, FsAction::Read, "/other", None), Ruled::Unlisted);
    }

    #[test]
    fn an_ask_rule_lists_only_what_it_names() {
        let rules = [
            rule("a", Action::Allow, &["/a/**"], &[]),
            rule("b", Action::Ask, &["/b/**"], &["read"]),
        ];
        assert_eq!(
            decide(&rules, FsAction::Read, "/b/x", None),
            Ruled::Rule(Action::Ask, "b".into())
        );
        assert_eq!(decide(&rules, FsAction::Remove, "/b/x", None), Ruled::Unlisted);
        assert_eq!(decide(&rules, rename("/a/x"), "/b/x", Some(false)), Ruled::Unlisted);
        assert_eq!(
            decide(&rules[1..], rename("/a/x"), "/b/x", Some(false)),
            Ruled::Rule(Action::Ask, "b".into())
        );
    }

    #[test]
    fn an_effect_cannot_be_had_under_another_name() {
        let read = [rule("secret", Action::Deny, &["/s/k"], &["read"])];
        let denied = Ruled::Rule(Action::Deny, "secret".into());
        assert_eq!(decide(&read, rename("/t"), "/s/k", Some(false)), denied);
        assert_eq!(decide(&read, FsAction::Link { to: path("/t") }, "/s/k", None), denied);
        assert_eq!(decide(&read, rename("/t"), "/s", Some(true)), denied, "the directory above");
        assert_eq!(
            decide(&read, rename("/t"), "/s", None),
            denied,
            "unknown counts as a directory"
        );
        assert_eq!(decide(&read, rename("/t"), "/s", Some(false)), Ruled::Silent);
        let write = [rule("secret", Action::Deny, &["/s/k"], &["create"])];
        assert_eq!(decide(&write, rename("/s/k"), "/t", Some(false)), denied);
        assert_eq!(decide(&write, rename("/s"), "/t", Some(true)), denied, "it may hold a k");
        assert_eq!(decide(&write, FsAction::Symlink, "/s/k", None), denied);
        let anywhere = [rule("secret", Action::Deny, &["/**/.ssh/**"], &[])];
        assert_eq!(
            decide(&anywhere, rename("/b"), "/a", Some(true)),
            Ruled::Silent,
            "a .ssh in it stays one"
        );
        assert_eq!(decide(&anywhere, rename("/b"), "/a/.ssh", Some(true)), denied);
        assert_eq!(decide(&anywhere, rename("/a/.ssh"), "/b", Some(true)), denied);
        let write = [rule("secret", Action::Deny, &["/s/k"], &["truncate"])];
        assert_eq!(decide(&write, FsAction::Create { reads: false }, "/s/k", None), denied);
        let opened = |reads| {
            [FsAction::Write { reads }, FsAction::Truncate { reads }, FsAction::Create { reads }]
        };
        for action in opened(true) {
            assert_eq!(decide(&read, action, "/s/k", None), denied, "written and read");
        }
        for action in opened(false) {
            assert_eq!(decide(&read, action, "/s/k", None), Ruled::Silent, "only written");
        }
        let drop_box = [rule("drop", Action::Allow, &["/in/**"], &["write"])];
        for action in opened(true) {
            assert_eq!(decide(&drop_box, action, "/in/x", None), Ruled::Unlisted);
        }
        for action in opened(false) {
            let allowed = Ruled::Rule(Action::Allow, "drop".into());
            assert_eq!(decide(&drop_box, action, "/in/x", None), allowed);
        }
    }

    #[test]
    fn a_directory_moves_only_where_all_of_it_is_allowed() {
        let rules = [
            rule("public", Action::Allow, &["/w/pub/**"], &[]),
            rule("top", Action::Allow, &["/w/*"], &[]),
        ];
        assert_eq!(decide(&rules, rename("/w/pub/p"), "/w/private", None), Ruled::Unlisted);
        assert_eq!(
            decide(&rules, rename("/w/pub/p"), "/w/file", Some(false)),
            Ruled::Rule(Action::Allow, "top".into())
        );
        assert_eq!(
            decide(&rules, rename("/w/pub/b"), "/w/pub/a", None),
            Ruled::Rule(Action::Allow, "public".into())
        );
        let rules = [
            rule("drop", Action::Allow, &["/in/**"], &["write"]),
            rule("out", Action::Allow, &["/out/**"], &[]),
        ];
        assert_eq!(
            decide(&rules, rename("/out/x"), "/in/x", Some(false)),
            Ruled::Unlisted,
            "it could be read there"
        );
    }

    fn rank(ruled: &Ruled) -> u8 {
        match ruled {
            Ruled::Silent | Ruled::Rule(Action::Allow, _) => 0,
            Ruled::Rule(Action::Ask, _) => 1,
            Ruled::Unlisted | Ruled::Rule(Action::Deny, _) => 2,
        }
    }

    fn any_rule() -> impl Strategy<Value = FsRule> {
        let action = prop_oneof![Just(Action::Allow), Just(Action::Ask), Just(Action::Deny)];
        (action, "(/(a|b|\\*|\\*\\*)){1,3}", 1..(1_u16 << 14), "[a-z]{6}").prop_map(
            |(action, glob, operations, id)| FsRule {
                id: id.into(),
                action,
                paths: vec![PathGlob::parse(&glob).unwrap()],
                operations: FsOperations(operations),
                line: 1,
            },
        )
    }

    proptest! {
        #[test]
        fn deny_wins_and_order_is_irrelevant(
            rules in proptest::collection::vec(any_rule(), 0..5),
            extra in any_rule(),
            at in "(/[ab]){1,3}",
            to in "(/[ab]){1,3}",
            which in 0_usize..14,
            directory in any::<Option<bool>>(),
        ) {
            let action = match which {
                10 => rename(&to),
                11 => FsAction::Link { to: path(&to) },
                other => all_actions().remove(other),
            };
            let before = decide(&rules, action.clone(), &at, directory);
            let mut reversed = rules.clone();
            reversed.reverse();
            prop_assert_eq!(&before, &decide(&reversed, action.clone(), &at, directory));
            let known = decide(&rules, action.clone(), &at, Some(false));
            prop_assert!(rank(&decide(&rules, action.clone(), &at, None)) >= rank(&known), "unknown is the strictest");
            let mut more = rules.clone();
            more.push(FsRule { action: Action::Deny, ..extra.clone() });
            let after = decide(&more, action.clone(), &at, directory);
            prop_assert!(rank(&after) >= rank(&before), "a deny never allows more");
            let denied = [FsRule { action: Action::Deny, ..extra }];
            if rank(&decide(&denied, action, &at, directory)) == 2 {
                prop_assert_eq!(rank(&after), 2, "deny wins");
            }
        }
    }
}
