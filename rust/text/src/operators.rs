//! The operators that make texts and lists, in the engine's words, within the limits.
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use crate::limits::{admit, admit_items, admit_text, refuse, settled};

pub fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    admit_text(printed(a)? + printed(b)?)?;
    Ok(Value::from(format!("{a}{b}")))
}

/// Bytes of a text; of another value none, but it can be printed.
fn printed(value: &Value) -> Result<usize, Error> {
    match value.as_str() {
        Some(text) => Ok(text.len()),
        None => admit(value, true).map(|()| 0),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn number(value: &Value) -> Option<i128> {
    i128::try_from(value.clone()).ok()
}

fn float(value: &Value) -> Option<f64> {
    match (f64::try_from(value.clone()), number(value)) {
        (Ok(x), _) => Some(x),
        (_, n) => n.map(|n| n as f64),
    }
}

/// `a + b` of numbers, or the engine's words for what cannot be computed.
fn arithmetic(
    (a, sign, b): (&Value, char, &Value),
    of_integers: fn(i128, i128) -> Option<i128>,
    of_floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_float = |v: &Value| v.kind() == ValueKind::Number && !v.is_integer();
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if is_number(a) && is_number(b) {
        if is_float(a) || is_float(b) {
            if let (Some(a), Some(b)) = (float(a), float(b)) {
                return Ok(Value::from(of_floats(a, b)));
            }
        } else if let (Some(x), Some(y)) = (number(a), number(b)) {
            return match of_integers(x, y) {
                Some(n) => Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)),
                None => refuse(format!("unable to calculate {a} {sign} {b}")),
            };
        }
    }
    let (a, b) = (a.kind(), b.kind());
    refuse(format!(
        "tried to use {sign} operator on unsupported types {a} and {b}"
    ))
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        admit_text(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        let mut items = Vec::new();
        for list in [a, b] {
            admit_items(items.len() + list.len().unwrap_or(0))?;
            for item in list.try_iter()?.checked() {
                items.push(item?);
            }
        }
        return Ok(list_like(a, items));
    }
    arithmetic((a, '+', b), i128::checked_add, |a, b| a + b)
}

fn list_like(one: &Value, items: Vec<Value>) -> Value {
    if one.is_tuple() {
        Value::from(Tuple::from(items))
    } else {
        Value::from(items)
    }
}

pub fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let times = |value: &Value, what: &str| match value.as_usize() {
        Some(n) => Ok(n),
        None => refuse(format!("{what} can only be multiplied with integers")),
    };
    for (one, other) in [(a, b), (b, a)] {
        if let Some(text) = one.as_str() {
            let n = times(other, "strings")?;
            admit_text(text.len().saturating_mul(n))?;
            return Ok(Value::from(text.repeat(n)));
        }
    }
    for (one, other) in [(a, b), (b, a)] {
        if is_list(one) {
            let n = times(other, "sequences and iterables")?;
            let list = settled(one.clone())?;
            let length = list.len().unwrap_or(0);
            admit_items(length.saturating_mul(n))?;
            let mut items = Vec::with_capacity(length * n);
            for _ in 0..if length == 0 { 0 } else { n } {
                items.extend(list.try_iter()?);
            }
            return Ok(list_like(one, items));
        }
    }
    arithmetic((a, '*', b), i128::checked_mul, |a, b| a * b)
}
