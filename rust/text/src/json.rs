//! `tojson` as Python's `json.dumps(x, ensure_ascii=False)`: what chat templates are written for.
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::limits::{admit_text, charge, fits, refuse, too_deep, MAX_DEPTH};

struct Style {
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// The template filter: tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false).
pub fn tojson(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(value) => Some(value),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            None => {
                let width = v.as_usize().unwrap_or(0);
                admit_text(width)?;
                " ".repeat(width)
            }
        }),
        None => None,
    };
    let mut style = Style {
        item: if indent.is_some() { "," } else { ", " }.into(),
        key: ": ".into(),
        indent,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    if let Some(both) = kwargs.get::<Option<Value>>("separators")? {
        if !both.is_none() {
            style.item = both.get_item_by_index(0)?.to_string();
            style.key = both.get_item_by_index(1)?.to_string();
        }
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    charge(0)?;
    fits(out.len())?;
    if depth > MAX_DEPTH {
        return refuse(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            bracket(out, '[', ']', &items, style, depth, |out, item| {
                write(out, item, style, depth + 1)
            })?
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            bracket(out, '{', '}', &keys, style, depth, |out, key| {
                match key.as_str() {
                    Some(text) => write_string(out, text, style),
                    None => {
                        let mut text = String::new();
                        write(&mut text, key, style, depth + 1)?;
                        write_string(out, &text, style);
                    }
                }
                out.push_str(&style.key);
                write(out, &value.get_item(key)?, style, depth + 1)
            })?
        }
        kind => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a value of kind {kind} has no JSON form"),
            ))
        }
    }
    Ok(())
}

fn bracket(
    out: &mut String,
    open: char,
    close: char,
    items: &[Value],
    style: &Style,
    depth: usize,
    mut one: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        if let Some(indent) = &style.indent {
            fits(out.len() + indent.len() * (depth + 1))?;
            out.push('\n');
            out.push_str(&indent.repeat(depth + 1));
        }
        one(out, item)?;
    }
    if let (Some(indent), false) = (&style.indent, items.is_empty()) {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if style.ensure_ascii && (c as u32) > 0x7e => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's repr of a float: shortest digits, exponent form outside [1e-4, 1e16).
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = format!("{x}");
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_look_like_pythons() {
        for (x, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345.0, "123456789012345.0"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }
}
