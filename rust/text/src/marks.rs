//! The places of a conversation's messages in its rendering, by marks that are taken out again: one
//! where a loop (or a `set`) takes a message up, some within each content and the list of tools.
//! A place is certain when it holds the message's own content and nothing of another message.
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::Value;
use serde_json::Value as Json;

use crate::chat::Rendering;

/// A turn whose place the marks do not show.
pub const UNCERTAIN: (usize, usize) = (usize::MAX, usize::MAX);

/// A message that knows its index, so that a loop over it can be noticed.
#[derive(Debug)]
struct Message {
    index: usize,
    marker: char,
    fields: Value,
}

impl Object for Message {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.fields.as_object().and_then(|o| o.get_value(key))
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(
            self.fields
                .try_iter()
                .map(|i| i.collect())
                .unwrap_or_default(),
        )
    }
}

pub fn noticed(messages: Vec<Value>, marker: char) -> Vec<Value> {
    let wrap = |(index, fields)| {
        Value::from_object(Message {
            index,
            marker,
            fields,
        })
    };
    messages.into_iter().enumerate().map(wrap).collect()
}

/// The mark of `value`, which is empty unless it is a message.
pub fn mark(value: &Value) -> String {
    value
        .downcast_object_ref::<Message>()
        .map_or(String::new(), |m| format!("{}m{};", m.marker, m.index))
}

/// A role that no template calls the user's, the assistant's or the system's: a tool's.
pub fn is_result(message: &Json) -> bool {
    !matches!(
        message["role"].as_str(),
        Some("system" | "developer" | "user" | "assistant")
    )
}

/// Puts marks into the contents of the messages and into what names and describes the tools.
pub fn tag(context: &mut Json, marker: char) {
    let list = |value: Option<&mut Json>| match value {
        Some(Json::Array(items)) => std::mem::take(items),
        _ => Vec::new(),
    };
    let mut messages = list(context.get_mut("messages"));
    for (index, message) in messages.iter_mut().enumerate() {
        let mark = format!("{marker}k{index};");
        let blank = is_result(message);
        match message.get_mut("content") {
            Some(Json::Array(parts)) => {
                for part in parts {
                    if let Some(Json::String(text)) = part.get_mut("text") {
                        tag_text(text, &mark, blank);
                    }
                }
            }
            Some(content) => tag_value(content, &mark, blank),
            None => {}
        }
    }
    let mut tools = list(context.get_mut("tools"));
    for tool in &mut tools {
        tag_tool(tool, &format!("{marker}t;"));
    }
    for (name, items) in [("messages", messages), ("tools", tools)] {
        if let Some(Json::Array(place)) = context.get_mut(name) {
            *place = items;
        }
    }
}

/// Within each text and each key of `value`.
fn tag_value(value: &mut Json, mark: &str, blank: bool) {
    match value {
        Json::String(text) => tag_text(text, mark, blank),
        Json::Array(items) => items
            .iter_mut()
            .for_each(|item| tag_value(item, mark, blank)),
        Json::Object(fields) => {
            let tagged = |(mut key, mut item): (String, Json)| {
                tag_text(&mut key, mark, blank);
                tag_value(&mut item, mark, blank);
                (key, item)
            };
            *fields = std::mem::take(fields).into_iter().map(tagged).collect();
        }
        _ => {}
    }
}

/// Within each name and description, which templates seldom compare.
fn tag_tool(value: &mut Json, mark: &str) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(|item| tag_tool(item, mark)),
        Json::Object(fields) => {
            for (key, item) in fields {
                match item {
                    Json::String(text) if key == "name" || key == "description" => {
                        tag_text(text, mark, false)
                    }
                    _ => tag_tool(item, mark),
                }
            }
        }
        _ => {}
    }
}

/// In the middle of what follows the last tag or line end, where templates seldom look. `blank`: a
/// text of blanks is marked, too.
fn tag_text(text: &mut String, mark: &str, blank: bool) {
    let end = text.trim_end().len();
    let mut begin = text[..end].rfind(['>', '\n']).map_or(0, |at| at + 1);
    if begin == end {
        begin = 0;
    }
    begin += text[begin..end].len() - text[begin..end].trim_start().len();
    if begin == end {
        if blank {
            text.push_str(mark);
        }
        return;
    }
    let middle = (begin..=begin + (end - begin) / 2)
        .rev()
        .find(|&at| text.is_char_boundary(at));
    text.insert_str(middle.unwrap_or(begin), mark);
}

/// The bytes at which the marks of one message, or of its content, stood.
#[derive(Clone, Default)]
struct Seen {
    marks: Vec<usize>,
    contents: Vec<usize>,
}

/// Takes the marks out of `text` and notes where they stood. `has_content[i]`: message i was tagged.
pub fn unmark(text: &str, marker: char, has_content: &[bool]) -> Rendering {
    let mut out = Rendering::default();
    let mut seen = vec![Seen::default(); has_content.len()];
    let mut open = Vec::new();
    let mut pieces = text.split(marker);
    out.text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (tag, rest) = piece.split_once(';').unwrap_or((piece, ""));
        let (kind, index) = tag.split_at(tag.len().min(1));
        let message = index.parse().ok().and_then(|i: usize| seen.get_mut(i));
        match (kind, message) {
            ("o", _) => open.push(out.text.len()),
            ("c", _) => {
                let block = open.pop().map(|start| (start, out.text.len()));
                out.generated.extend(block);
            }
            ("t", _) => out.tools.push(out.text.len()),
            ("m", Some(message)) => message.marks.push(out.text.len()),
            ("k", Some(message)) => message.contents.push(out.text.len()),
            _ => {}
        }
        out.text.push_str(rest);
    }
    out.turns = turns(&seen, &out.tools, has_content, out.text.len());
    out
}

/// A message begins at the last of its marks before its content and before the next message, and
/// ends where that one begins.
fn turns(seen: &[Seen], tools: &[usize], has_content: &[bool], size: usize) -> Vec<(usize, usize)> {
    let mut out = vec![UNCERTAIN; seen.len()];
    let mut end = size;
    for (i, message) in seen.iter().enumerate().rev() {
        let content = message.contents.iter().rfind(|&&at| at <= end);
        let most = end.min(content.copied().unwrap_or(end));
        if let Some(&begin) = message.marks.iter().rfind(|&&at| at <= most) {
            out[i] = (begin, end);
            end = begin;
        }
    }
    // Taken up in several places since the message before: by a search within a message, say.
    let is_ambiguous = |i: usize| {
        let before = (i > 0 && out[i - 1] != UNCERTAIN).then(|| out[i - 1].0);
        let mut places = (seen[i].marks.iter())
            .filter(|&&at| before.map_or(true, |before| at > before) && at <= out[i].1);
        places
            .next()
            .is_some_and(|first| places.any(|at| at != first))
    };
    let is_certain = |i: usize| {
        let (begin, end) = out[i];
        let holds = |places: &[usize]| places.iter().any(|&at| begin <= at && at < end);
        let mut others = seen.iter().enumerate().filter(|(j, _)| *j != i);
        holds(&seen[i].contents) == has_content[i]
            && !others.any(|(_, other)| holds(&other.contents))
            && !holds(tools)
            && begin < end
            && (i == 0 || out[i - 1].0 < begin)
            && !is_ambiguous(i)
            && (i + 1 == out.len() || (out[i + 1] != UNCERTAIN && !is_ambiguous(i + 1)))
    };
    (0..out.len())
        .map(|i| if is_certain(i) { out[i] } else { UNCERTAIN })
        .collect()
}
