//! Text that is safe to show on a terminal.
//!
//! Invariant: what comes out holds no control character but newline, tab and
//! carriage return, no bidirectional override, and is valid UTF-8, however the
//! input was cut into pieces.

use std::fmt::Write as _;

/// A character that a terminal would act on or that would reorder a line.
fn is_hazardous(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t' | '\r'))
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with hazardous characters as `\x1b` or `\u{202e}`.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_hazardous(c) {
            safe.push(c);
        } else if u32::from(c) < 0x100 {
            // Writing to a string does not fail.
            let _ = write!(safe, "\\x{:02x}", u32::from(c));
        } else {
            let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
        }
    }
    safe
}

/// Like [`escape`], and on one line.
pub(crate) fn escape_line(text: &str) -> String {
    escape(text).replace('\n', "\\n").replace('\r', "\\r")
}

/// What becomes of bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// `\xff`.
    Escape,
    /// U+FFFD.
    Replace,
}

/// Decodes a stream of bytes piece by piece; a character that was cut waits
/// for its rest.
#[derive(Debug)]
pub(crate) struct Decoder {
    invalid: Invalid,
    /// The start of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new(invalid: Invalid) -> Self {
        Self { invalid, pending: Vec::new() }
    }

    /// The text that `bytes` completes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_cut_character(invalid) {
                self.pending = invalid.to_vec();
            } else {
                self.invalid(invalid, &mut text);
            }
        }
        text
    }

    /// What is left when the stream ends.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = String::new();
        let pending = std::mem::take(&mut self.pending);
        self.invalid(&pending, &mut text);
        text
    }

    fn invalid(&self, bytes: &[u8], text: &mut String) {
        match self.invalid {
            Invalid::Replace if !bytes.is_empty() => text.push(char::REPLACEMENT_CHARACTER),
            Invalid::Replace => {}
            Invalid::Escape => {
                for byte in bytes {
                    let _ = write!(text, "\\x{byte:02x}");
                }
            }
        }
    }
}

/// Whether more bytes could make these a character.
fn is_cut_character(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_sent_no_escape_sequence() {
        assert_eq!(escape("a\tb\r\n"), "a\tb\r\n");
        assert_eq!(escape("\x1b]52;c;aGk=\x07"), "\\x1b]52;c;aGk=\\x07");
        assert_eq!(escape("\u{9b}31m\x7f"), "\\x9b31m\\x7f");
        assert_eq!(escape("\u{202e}x"), "\\u{202e}x");
        assert_eq!(escape_line("a\nb"), "a\\nb");
    }

    #[test]
    fn pieces_make_the_same_text_as_the_whole() {
        let bytes = "a€😀\u{fffd}".as_bytes().iter().copied().chain([0xff, b'z', 0xe2, 0x82]);
        let bytes: Vec<u8> = bytes.collect();
        for cut in 0..=bytes.len() {
            for second in cut..=bytes.len() {
                let mut decoder = Decoder::new(Invalid::Replace);
                let mut text = decoder.push(&bytes[..cut]);
                text += &decoder.push(&bytes[cut..second]);
                text += &decoder.push(&bytes[second..]);
                text += &decoder.finish();
                assert_eq!(text, String::from_utf8_lossy(&bytes), "{cut} {second}");
            }
        }
        let mut decoder = Decoder::new(Invalid::Escape);
        assert_eq!(decoder.push(b"\xff\xe2") + &decoder.finish(), "\\xff\\xe2");
    }
}
