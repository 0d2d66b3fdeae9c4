//! Where one cell ends, as it is typed or read line by line.
//!
//! Why not the guest's parser: the question comes with every line, also while
//! a cell runs, and a wrong answer only means one more empty line.
//!
//! Invariant: a cell that is complete never ends inside a string, a bracket or
//! a line that goes on.

/// What is open at the end of some source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Open {
    /// The quote of a string that may span lines.
    string: Option<u8>,
    brackets: u32,
    /// The last line ends in a backslash.
    continued: bool,
    /// The first line of the cell opened a block, or decorates one.
    block: bool,
}

/// Looks at a whole text, character by character.
fn open(text: &str) -> Open {
    let mut open = Open::default();
    let bytes = text.as_bytes();
    // The last character of the present logical line that is not white space.
    let mut last = b' ';
    let mut starts_line = true;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        if let Some(quote) = open.string {
            let end = [quote; 3];
            if byte == b'\\' {
                at += 1;
            } else if rest.starts_with(&end) {
                open.string = None;
                at += 2;
            }
            at += 1;
            continue;
        }
        open.continued = false;
        match byte {
            b'#' => {
                at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                continue;
            }
            b'\n' => {
                if open.brackets == 0 {
                    open.block |= last == b':';
                    last = b' ';
                    starts_line = true;
                }
                at += 1;
                continue;
            }
            b'\\' if matches!(rest.get(1), None | Some(b'\n')) => {
                open.continued = rest.get(1).is_none() || rest.len() == 2;
                at += 2;
                continue;
            }
            b'"' | b'\'' => {
                if rest.starts_with(&[byte; 3]) {
                    open.string = Some(byte);
                    at += 2;
                } else {
                    at += short_string(rest);
                }
            }
            b'(' | b'[' | b'{' => open.brackets = open.brackets.saturating_add(1),
            b')' | b']' | b'}' => open.brackets = open.brackets.saturating_sub(1),
            b'@' if starts_line => open.block = true,
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            last = byte;
            starts_line = false;
        }
        at += 1;
    }
    open.block |= last == b':' && open.brackets == 0;
    open
}

/// How far the end of a string on one line is from its first quote.
fn short_string(rest: &[u8]) -> usize {
    let quote = rest.first().copied();
    let mut at = 1;
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'\\' => at += 1,
            b'\n' => return at - 1,
            _ if Some(byte) == quote => return at,
            _ => {}
        }
        at += 1;
    }
    rest.len().saturating_sub(1)
}

/// Whether a text that was typed is a whole cell. A block ends with an empty
/// line.
pub(super) fn is_complete(text: &str) -> bool {
    let open = open(text);
    if open.string.is_some() || open.brackets != 0 || open.continued {
        return false;
    }
    let last = text.rsplit('\n').next().unwrap_or_default();
    !open.block || (text.contains('\n') && last.trim().is_empty())
}

/// Whether `line` cannot belong to the cell `text`, which was read from a file
/// or a pipe: a block ends there also without an empty line.
pub(super) fn starts_another(text: &str, line: &str) -> bool {
    let open = open(text);
    if text.trim().is_empty() || open.string.is_some() || open.brackets != 0 || open.continued {
        return false;
    }
    let goes_on = ["elif", "else", "except", "finally"].iter().any(|word| {
        line.strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    let indented = line.starts_with([' ', '\t', '#']) || line.trim().is_empty();
    let decorates = text.trim_end().rsplit('\n').next().is_some_and(|last| last.starts_with('@'));
    !indented && !goes_on && !decorates
}

/// The name with dots that ends at the cursor, and where it starts.
pub(super) fn name_before(line: &str, position: usize) -> (usize, &str) {
    let before = line.get(..position).unwrap_or(line);
    let start = before
        .char_indices()
        .rev()
        .take_while(|(_, c)| c.is_alphanumeric() || matches!(c, '_' | '.' | '%'))
        .last()
        .map_or(before.len(), |(at, _)| at);
    (start, before.get(start..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_complete_when_nothing_is_open() {
        for whole in [
            "1 + 1",
            "x = 'it''s'",
            "s = \"a ( b\"",
            "s = '# no comment'",
            "x = [1,\n 2]",
            "def f():\n    return 1\n",
            "@cache\ndef f(): pass\n",
            "if x: y",
            "s = '''a\nb'''",
            "x = 1 \\\n + 2",
            "d = {1: 2}",
            "x[1:]",
            "# only a comment:",
            "s = r'a\\'",
            "",
        ] {
            assert!(is_complete(whole), "{whole:?}");
        }
        for part in [
            "x = (1,",
            "def f():",
            "def f():\n    return 1",
            "if x: # why\n    y",
            "@cache",
            "@cache\ndef f(): pass",
            "s = '''a",
            "s = '''a\n'",
            "x = 1 \\",
            "for a in (1,\n 2):",
            "class C:\n    def f(self):\n        '''\n",
        ] {
            assert!(!is_complete(part), "{part:?}");
        }
    }

    #[test]
    fn a_block_in_a_file_ends_where_the_next_statement_starts() {
        let block = "if x:\n    y";
        for line in ["z = 1", "def f():", "elsewhere = 1"] {
            assert!(starts_another(block, line), "{line}");
        }
        for line in ["    z", "else:", "elif y:", "except ValueError:", "finally:", "", "# x"] {
            assert!(!starts_another(block, line), "{line}");
        }
        assert!(!starts_another("@cache", "def f():"));
        assert!(!starts_another("x = (", "1)"));
        assert!(!starts_another("s = '''", "text"));
    }

    #[test]
    fn the_name_before_the_cursor_is_found() {
        assert_eq!(name_before("print(os.pa", 11), (6, "os.pa"));
        assert_eq!(name_before("a = ", 4), (4, ""));
        assert_eq!(name_before("%und", 4), (0, "%und"));
        assert_eq!(name_before("größe + gr", 12), (10, "gr"));
    }
}
