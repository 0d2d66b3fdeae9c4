//! Names of images that cannot mean another image tomorrow.

use std::fmt;

/// Why a text names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` does not name one image for ever; give its ID (sha256:… with 64 digits) or its digest (name@sha256:…)"
)]
pub struct ImageError(
    /// The text, escaped and cut.
    String,
);

/// An image by its ID or by its digest, never by a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageId {
    text: String,
}

impl ImageId {
    /// Reads `sha256:…` or `name@sha256:…`.
    ///
    /// # Errors
    /// [`ImageError`] for a tag, a short ID or anything else.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let refused = || ImageError(text.chars().take(120).flat_map(char::escape_debug).collect());
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (Some(name), digest),
            None => (None, text),
        };
        let hex = digest.strip_prefix("sha256:").ok_or_else(refused)?;
        let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if hex.len() != 64 || !hex.bytes().all(digits) {
            return Err(refused());
        }
        let plain = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"./_-:".contains(&byte)
        };
        let named = name.is_none_or(|name| {
            (1..=255).contains(&name.len())
                && name.bytes().all(plain)
                && !name.starts_with(['/', '-', '.'])
        });
        if named { Ok(Self { text: text.to_owned() }) } else { Err(refused()) }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an image that an engine has is this one.
    pub(super) fn is(&self, id: Option<&str>, digests: &[String]) -> bool {
        match self.text.split_once('@') {
            None => id == Some(&self.text),
            Some((_, digest)) => digests
                .iter()
                .any(|known| known.split_once('@').is_some_and(|(_, known)| known == digest)),
        }
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_one_image_is_taken() {
        let hex = "0123456789abcdef".repeat(4);
        for good in [format!("sha256:{hex}"), format!("registry.test:5000/a/b@sha256:{hex}")] {
            assert_eq!(ImageId::parse(&good).unwrap().as_str(), good);
        }
        for bad in [
            String::new(),
            "python:3.11".to_owned(),
            "evil/img:latest".to_owned(),
            hex.clone(),
            format!("sha256:{}", &hex[..12]),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}0"),
            format!("@sha256:{hex}"),
            format!("../x@sha256:{hex}"),
            format!("a b@sha256:{hex}"),
            format!("a@sha256:{hex}/../../create?x=1"),
        ] {
            assert!(ImageId::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_image_is_known_by_what_was_asked_for() {
        let (one, two) = ("a".repeat(64), "b".repeat(64));
        let id = ImageId::parse(&format!("sha256:{one}")).unwrap();
        assert!(id.is(Some(&format!("sha256:{one}")), &[]));
        assert!(!id.is(Some(&format!("sha256:{two}")), &[format!("x@sha256:{one}")]));
        let digest = ImageId::parse(&format!("x@sha256:{one}")).unwrap();
        assert!(digest.is(Some(&format!("sha256:{two}")), &[format!("x@sha256:{one}")]));
        assert!(!digest.is(Some(&format!("sha256:{one}")), &[format!("x@sha256:{two}")]));
    }
}
