//! Turns a Hugging Face chat template into one that the engine knows: `{% generation %}` blocks
//! become scopes that print a marker at both ends, and every `{% for x in .. %}` body starts by
//! printing the marker of x, which is empty unless x is one of the conversation's messages. So does
//! what follows `{% set x = ..[..] %}`.
//! Whitespace control stays what it was: the first half of a replaced tag keeps its left side, the
//! last half its right side.

pub struct Rewritten {
    pub source: String,
    pub has_generation: bool,
}

pub fn rewrite(source: &str) -> Rewritten {
    let mut out = String::with_capacity(source.len() + 256);
    let mut has_generation = false;
    let mut rest = source;
    while let Some(at) = next_tag(rest) {
        out.push_str(&rest[..at]);
        let tag = &rest[at..at + tag_length(&rest[at..])];
        rest = &rest[at + tag.len()..];
        if !tag.starts_with("{%") || !tag.ends_with("%}") || tag.len() < 4 {
            out.push_str(tag);
            continue;
        }
        let inner = &tag[2..tag.len() - 2];
        let left = if inner.starts_with(['-', '+']) {
            &inner[..1]
        } else {
            ""
        };
        let inner = &inner[left.len()..];
        let right = if inner.ends_with(['-', '+']) {
            &inner[inner.len() - 1..]
        } else {
            ""
        };
        let words: Vec<&str> = inner[..inner.len() - right.len()]
            .split_whitespace()
            .collect();
        match words.as_slice() {
            ["generation"] => {
                has_generation = true;
                out.push_str(&format!(
                    "{{%{left} with %}}{{{{ __twinkle_open }}}}{{% if true %}}{{% endif {right}%}}"
                ));
            }
            ["endgeneration"] => out.push_str(&format!(
                "{{%{left} if true %}}{{{{ __twinkle_close }}}}{{% endif %}}{{% endwith {right}%}}"
            )),
            ["for", name, "in", ..] if is_name(name) => {
                out.push_str(&marked(left, inner, right, name));
            }
            ["set", ..] if item_is_set(inner).is_some() => {
                let name = item_is_set(inner).unwrap_or_default();
                out.push_str(&marked(left, inner, right, name));
            }
            ["raw"] => {
                out.push_str(tag);
                let end = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    Rewritten {
        source: out,
        has_generation,
    }
}

/// The tag, and the marker of `name` behind it.
fn marked(left: &str, inner: &str, right: &str, name: &str) -> String {
    let body = inner[..inner.len() - right.len()].trim();
    format!(
        "{{%{left} {body} %}}{{{{ __twinkle_mark({name}) }}}}{{% if true %}}{{% endif {right}%}}"
    )
}

/// x of ` set x = ..[..] `.
fn item_is_set(inner: &str) -> Option<&str> {
    let (name, value) = inner.trim_start().strip_prefix("set")?.split_once('=')?;
    let name = name.trim();
    (is_name(name) && value.contains('[')).then_some(name)
}

fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|c| c == '_' || c.is_alphanumeric())
}

fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
}

/// The length of the tag that `text` starts with, its end not sought inside strings or brackets.
fn tag_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    if bytes[1] == b'#' {
        return text.find("#}").map_or(text.len(), |at| at + 2);
    }
    let end: &[u8] = if bytes[1] == b'%' { b"%}" } else { b"}}" };
    let (mut i, mut depth, mut quote) = (2, 0usize, 0u8);
    while i < bytes.len() {
        let c = bytes[i];
        if quote != 0 {
            if c == b'\\' {
                i += 1;
            } else if c == quote {
                quote = 0;
            }
        } else if depth == 0 && bytes[i..].starts_with(end) {
            return i + 2;
        } else {
            match c {
                b'"' | b'\'' => quote = c,
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        i += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_text_comments_strings_and_raw_blocks_alone() {
        for text in [
            "plain { text }",
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{{ {'a': {'b': 1}} }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% set a = '%}' %}",
        ] {
            assert_eq!(rewrite(text).source, text);
            assert!(!rewrite(text).has_generation);
        }
    }

    #[test]
    fn keeps_the_whitespace_control_of_a_generation_tag() {
        let r = rewrite("{%- generation -%}x{%- endgeneration %}");
        assert!(r.has_generation);
        assert_eq!(
            r.source,
            "{%- with %}{{ __twinkle_open }}{% if true %}{% endif -%}x\
             {%- if true %}{{ __twinkle_close }}{% endif %}{% endwith %}"
        );
    }
}
