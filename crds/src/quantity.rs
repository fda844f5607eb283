//! Quantities of the Kubernetes API, such as `500m` or `2Gi`.

/// The value of a quantity in billionths; `None` if the text is not a quantity or
/// is out of range.
#[must_use]
pub fn quantity_nanos(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .filter(|exponent| !exponent.is_empty() && *exponent != "i");
    let (scale, divisor) = match (suffix, exponent) {
        (_, Some(exponent)) => decimal(exponent.parse().ok()?)?,
        ("", _) => (1_000_000_000, 1),
        ("n", _) => (1, 1),
        ("u", _) => (1_000, 1),
        ("m", _) => (1_000_000, 1),
        ("k", _) => (1_000_000_000_000, 1),
        _ => (large(suffix)?.checked_mul(1_000_000_000)?, 1),
    };
    let places = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits.checked_mul(scale)? / divisor / places)
}

/// Scale and divisor of a decimal exponent.
fn decimal(exponent: i32) -> Option<(i128, i128)> {
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 {
        (1_000_000_000, power)
    } else {
        (power.checked_mul(1_000_000_000)?, 1)
    })
}

fn large(suffix: &str) -> Option<i128> {
    let power = |letter: &str| u32::try_from(1 + "KMGTPE".find(letter)?).ok();
    let (letter, base) = match suffix.strip_suffix('i') {
        Some(letter) => (letter, 1024_i128),
        None => (suffix, 1000),
    };
    let known = letter.len() == 1 && suffix != "K";
    base.checked_pow(power(letter).filter(|_| known)?)
}

#[cfg(test)]
mod tests {
    use super::quantity_nanos;

    #[test]
    fn equal_quantities_have_equal_values() {
        for (one, other) in [
            ("500m", "0.5"),
            ("1", "1000m"),
            ("+1", "1e0"),
            ("1Gi", "1024Mi"),
            ("1k", "1e3"),
            ("1E", "1e18"),
            ("5e-1", "500m"),
            ("1536Mi", "1.5Gi"),
            ("1.", "1"),
            (".5", "500m"),
            ("-1", "-1000m"),
        ] {
            assert!(quantity_nanos(one).is_some(), "{one}");
            assert_eq!(quantity_nanos(one), quantity_nanos(other), "{one} {other}");
        }
    }

    #[test]
    fn other_texts_are_not_quantities() {
        for text in [
            "", "x", "1x", "1.2.3", "--1", "1 Gi", "1K", "1Gii", "i", "1i", "1MG", "e3",
        ] {
            assert_eq!(quantity_nanos(text), None, "{text}");
        }
    }
}
