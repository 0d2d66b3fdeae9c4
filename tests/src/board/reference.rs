//! The attacks of another runtime's suite, as properties, and what answers them.

use super::Row;
use crate::harness::Capability;

/// What answers an attack of the reference.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Attacks here; the worst of their states counts.
    By(&'static [&'static str]),
    /// Nothing yet: this is not there.
    Waiting(Capability),
}

/// One attack of the reference.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Its name there.
    pub name: &'static str,
    /// What holds, whatever the implementation.
    pub property: &'static str,
    /// What answers it.
    pub answer: Answer,
}

const fn by(name: &'static str, property: &'static str, ids: &'static [&'static str]) -> Reference {
    Reference { name, property, answer: Answer::By(ids) }
}

const fn waits(name: &'static str, property: &'static str, capability: Capability) -> Reference {
    Reference { name, property, answer: Answer::Waiting(capability) }
}

use Capability::{Browser, Secrets, Skills, SubAgents, ToolServers};

/// All of them.
#[rustfmt::skip]
pub const REFERENCE: &[Reference] = &[
    by("ssrf-metadata-by-ip", "a request to the address of cloud metadata does not go out", &["N-07"]),
    by("ssrf-metadata-by-name", "a name that leads to cloud metadata is not connected to", &["N-07b"]),
    by("ssrf-metadata-obfuscated", "a number that a resolver would take for that address is no host", &["N-02"]),
    by("ssrf-metadata-ipv6-mapped", "that address inside one of IPv6 is the same address", &["N-04", "N-05"]),
    by("ssrf-idna-confusion", "a host that two versions of a standard spell in two ways is judged as it is sent", &["N-22"]),
    by("ssrf-dns-rebinding", "a name that answers differently the second time is judged by the address that is dialled", &["N-08b"]),
    by("egress-non-http-scheme", "only http and https are requests", &["N-13c"]),
    by("scope-lookalike-domain", "a host whose name ends like the allowed one is another host", &["N-19"]),
    by("scope-ip-literal", "an address in place of the allowed name is not that name", &["N-01"]),
    by("scope-redirect-escape", "an allowed site does not lead a request to one that is not allowed", &["N-13c"]),
    by("ssrf-redirect-to-metadata", "a public site does not lead a request to cloud metadata", &["N-13c", "N-13d"]),
    by("scope-abuse-in-scope-channel", "data that the program may read does not leave in the query of an allowed request", &["N-25b"]),
    by("credential-replayed-on-redirect", "a credential does not follow a redirect to another origin", &["N-13b"]),
    by("grant-survives-revocation", "a grant that was taken back covers nothing", &["S-08g"]),
    by("grant-crosses-hosts", "a grant for one host is none for another", &["S-08e"]),
    by("grant-covers-irreversible", "what cannot be undone is asked about each time", &["S-08f"]),
    waits("grant-covers-code-mounting", "a grant to mount one tool server is none for another", ToolServers),
    waits("grant-covers-a-mounted-tool-surface", "a grant to mount a tool server is none for its tools", ToolServers),
    by("unattended-gated-action", "what needs an approver is denied where there is none", &["S-08i"]),
    by("host-grant-covers-any-path", "a grant for one path of a host is none for another", &["S-08e"]),
    waits("spawn-grant-covers-wider-child", "a grant for a narrow child is none for a wider one", SubAgents),
    waits("secret-into-audit-log", "a secret that was used is not in the log or in the caller's own values", Secrets),
    waits("secret-into-failure-record", "a call that fails does not put its secret into the error", Secrets),
    waits("secret-in-agent-traceback", "a secret is not in a traceback", Secrets),
    waits("secret-echoed-by-its-own-server", "a tool server that returns its own secret does not show it", ToolServers),
    waits("bound-secret-to-another-host", "a secret goes only to the host it is bound to, whoever approves", Secrets),
    waits("secret-fill-after-redirect", "a page that changes its host between question and keystroke gets no secret", Browser),
    by("scoped-data-exfil", "a request to a host that nobody allowed carries nothing there", &["N-19", "N-35"]),
    waits("secret-via-exception-attribute", "a secret is not in an attribute of an exception, encoded otherwise", Secrets),
    waits("secret-re-encoded-in-response", "a server that sends a secret back in another encoding does not show it", Secrets),
    by("unapproved-data-exfil", "without a policy no request carries data anywhere", &["N-34"]),
    by("audit-edit-one-entry", "a record that was changed is told from an honest one", &["H-19d"]),
    by("audit-delete-the-tail", "a log without its last records is told from a whole one", &["H-19"]),
    by("audit-forge-the-whole-log", "a log that is consistent and was written by somebody else is not taken for an honest one", &["H-19h"]),
    by("audit-remove-the-anchor", "a log whose witness was removed is not called intact", &["H-19i"]),
    waits("child-reaches-off-scope", "a child reaches no host that its parent may not", SubAgents),
    waits("child-delegates-further", "a child that may not start children starts none", SubAgents),
    waits("child-uses-ungranted-capability", "a child uses no capability it was not given", SubAgents),
    waits("child-scope-wider-than-parent", "a child with more than its parent is not started", SubAgents),
    by("provider-key-from-agent-code", "a key in the environment of the host is not read by code", &["W-23", "W-23b"]),
    waits("mcp-server-off-scope", "a tool server on a host that is not allowed is not mounted", ToolServers),
    waits("mcp-endpoint-rebinds", "a mounted host that later leads to metadata is judged at each request", ToolServers),
    waits("mcp-grant-covers-another-tool", "a grant for one tool of a server is none for another", ToolServers),
    waits("mcp-grant-stops-at-destructive", "a grant for one tool is none for one that declares itself destructive", ToolServers),
    waits("mcp-grant-survives-annotation-swap", "a grant for a tool does not hold once its description changed", ToolServers),
    waits("browser-subresource-off-scope", "a page loads nothing from a host that is not allowed", Browser),
    waits("browser-websocket-unvetted", "a page opens no socket to a host that is not allowed", Browser),
    waits("skill-fires-in-a-confined-later-session", "a skill is bound by the rules of the session that uses it", Skills),
    waits("skill-spends-an-old-approval", "a skill does not spend an approval of the session that made it", Skills),
    waits("skill-shadows-a-core-tool", "a skill does not take the name of a tool", Skills),
    waits("skill-planted-through-the-file-lane", "a skill is not made by writing a file", Skills),
    waits("skill-text-approved-unseen", "the text of a skill is shown whole to whoever approves it", Skills),
    waits("skill-marks-itself-verified", "a skill that was never run is not recorded as one that works", Skills),
];

/// What is wrong with the table itself.
pub(super) fn problems(rows: &[Row]) -> Vec<String> {
    let known = |id: &str| rows.iter().any(|row| row.id == id);
    let unknown = REFERENCE.iter().flat_map(|attack| match attack.answer {
        Answer::By(ids) => ids.iter().copied().filter(|id| !known(id)).collect::<Vec<_>>(),
        Answer::Waiting(_) => Vec::new(),
    });
    unknown.map(|id| format!("{id} answers an attack of the reference, and is none")).collect()
}
