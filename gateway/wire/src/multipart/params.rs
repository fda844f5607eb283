//! A header field value with parameters: `value; name=token; name="quoted"`.

use memchr::memchr;

/// One parameter. The value is the text between the quotes, or the token;
/// nothing is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Param<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Param<'_> {
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// An iterator over the parameters. It ends after the first `Err`: the value
/// violates the grammar, or is ambiguous between parsers.
#[derive(Debug, Clone)]
pub(super) struct Params<'a> {
    rest: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AmbiguousParam;

/// The value without its parameters, and the parameters.
pub(super) fn split(value: &[u8]) -> (&[u8], Params<'_>) {
    let end = memchr(b';', value).unwrap_or(value.len());
    let (first, rest) = value.split_at(end);
    (first.trim_ascii(), Params { rest })
}

impl<'a> Params<'a> {
    /// The next parameter of a non-empty rest; `None` after a final semicolon.
    fn param(&mut self) -> Result<Option<Param<'a>>, AmbiguousParam> {
        let rest = self.rest.strip_prefix(b";").ok_or(AmbiguousParam)?;
        let rest = rest.trim_ascii_start();
        if rest.is_empty() {
            self.rest = rest;
            return Ok(None);
        }
        let (name, rest) = token(rest)?;
        let rest = rest.strip_prefix(b"=").ok_or(AmbiguousParam)?;
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(inner) => {
                let (value, rest) = quoted(inner)?;
                (value, rest.trim_ascii_start())
            }
            // Some parsers include a space after a token in the token.
            None => token(rest)?,
        };
        self.rest = rest;
        Ok(Some(Param { name, value }))
    }
}

impl<'a> Iterator for Params<'a> {
    type Item = Result<Param<'a>, AmbiguousParam>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let param = self.param();
        if param.is_err() {
            self.rest = &[];
        }
        param.transpose()
    }
}

fn token(text: &[u8]) -> Result<(&[u8], &[u8]), AmbiguousParam> {
    let len = text.iter().take_while(|byte| is_token(**byte)).count();
    if len == 0 {
        return Err(AmbiguousParam);
    }
    Ok(text.split_at(len))
}

/// The text up to the closing quote, and the text after it. Whether a backslash
/// escapes the next quote depends on the parser, so such a quote is rejected.
fn quoted(text: &[u8]) -> Result<(&[u8], &[u8]), AmbiguousParam> {
    let quote = memchr(b'"', text).ok_or(AmbiguousParam)?;
    let (inner, rest) = text.split_at(quote);
    let escaped = !crate::json::backslashes(inner).is_multiple_of(2);
    match rest.split_first() {
        Some((_, rest)) if !escaped => Ok((inner, rest)),
        _ => Err(AmbiguousParam),
    }
}

/// The characters of an RFC 9110 token.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
