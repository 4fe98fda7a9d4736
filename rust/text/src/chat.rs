//! Chat templates in the environment that `transformers` gives them: trim_blocks, lstrip_blocks,
//! loop controls, Python's methods and JSON, raise_exception, strftime_now. A rendering can carry
//! the places of the generation blocks and of the messages.
use std::sync::Arc;

use minijinja::machinery::{eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{context, AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::guard::{admit_call, compile, install, Code};
use crate::json::tojson;
use crate::limits::{admit, charge, out_of_work, refuse, settled, Run, Stop};
use crate::rewrite::rewrite;

const NAME: &str = "chat_template";

pub struct Chat {
    environment: Environment<'static>,
    code: Code<'static>, // borrows from `_source`, which is dropped after it
    pub has_generation: bool,
    _source: Box<str>,
}

/// What to render of a conversation.
pub struct Request {
    pub num_messages: usize,
    pub add_generation_prompt: bool,
    pub mark: bool,
}

/// `starts[i]` is the byte at which message i begins, usize::MAX where the template did not loop
/// over it.
#[derive(Default)]
pub struct Rendering {
    pub text: String,
    pub generated: Vec<(usize, usize)>,
    pub starts: Vec<usize>,
}

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

impl Chat {
    pub fn new(source: &str) -> Result<Chat, String> {
        let rewritten = rewrite(source);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| describe(&e))?;
        install(&mut environment);
        environment.set_unknown_method_callback(method);
        environment.add_filter("tojson", tojson);
        environment.add_filter("trim", trim);
        environment.add_test("sequence", |v: &Value| {
            matches!(
                v.kind(),
                ValueKind::Seq | ValueKind::String | ValueKind::Map
            )
        });
        environment.add_test("iterable", |v: &Value| {
            v.kind() == ValueKind::String || v.try_iter().is_ok()
        });
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("__twinkle_mark", |value: &Value| {
            value
                .downcast_object_ref::<Message>()
                .map_or(String::new(), |m| format!("{}m{};", m.marker, m.index))
        });
        let source = rewritten.source.into_boxed_str();
        // SAFETY: the text stays where it is for as long as the code lives.
        let text: &'static str = unsafe { &*(&*source as *const str) };
        Ok(Chat {
            environment,
            code: compile(NAME, text, syntax).map_err(|e| describe(&e))?,
            has_generation: rewritten.has_generation,
            _source: source,
        })
    }

    /// Renders the conversation in `context`, an object with `messages` and all else that the
    /// template reads. `stop` is asked now and then.
    pub fn render(
        &self,
        context: &str,
        requests: &[Request],
        stop: Option<Stop>,
    ) -> Result<Vec<Rendering>, String> {
        let parsed: serde_json::Value = serde_json::from_str(context)
            .map_err(|e| format!("the conversation is no JSON: {e}"))?;
        let context_value = Value::from(minijinja::value::Serde(&parsed));
        let messages: Vec<Value> = context_value
            .get_attr("messages")
            .and_then(|m| m.try_iter())
            .map_err(|_| "the conversation has no messages".to_string())?
            .collect();
        let marker = ('\u{fdd0}'..='\u{fdef}')
            .find(|c| !context.contains(*c))
            .ok_or("the conversation uses every marker character from U+FDD0 to U+FDEF")?;
        let mut out = Vec::with_capacity(requests.len());
        for request in requests {
            let count = request.num_messages.min(messages.len());
            let chosen: Vec<Value> = if request.mark {
                let wrap = |(index, fields): (usize, &Value)| {
                    Value::from_object(Message {
                        index,
                        marker,
                        fields: fields.clone(),
                    })
                };
                messages[..count].iter().enumerate().map(wrap).collect()
            } else {
                messages[..count].to_vec()
            };
            let tag = |kind: &str| {
                if request.mark {
                    format!("{marker}{kind};")
                } else {
                    String::new()
                }
            };
            let root = context! {
                messages => chosen,
                add_generation_prompt => request.add_generation_prompt,
                __twinkle_open => tag("o"),
                __twinkle_close => tag("c"),
                ..context_value.clone()
            };
            let run = Run::new(context.len(), stop);
            let text = self.text(root, &run).map_err(|e| describe(&e))?;
            out.push(unmark(&text, marker, count, request.mark));
        }
        Ok(out)
    }

    fn text(&self, root: Value, run: &Run) -> Result<String, Error> {
        let mut environment = self.environment.clone(); // shares all; the fuel is its own
        environment.set_fuel(Some(run.fuel()));
        let mut text = String::new();
        run.enter(|| {
            let Code { main, blocks } = &self.code;
            let mut out = make_string_output(&mut text);
            eval(&environment, main, root, blocks, &mut out, AutoEscape::None).map(|_| ())
        })?;
        Ok(text)
    }
}

/// Takes the markers out of `text` and notes where they stood; of a message the last place counts.
fn unmark(text: &str, marker: char, count: usize, mark: bool) -> Rendering {
    let mut out = Rendering {
        starts: vec![usize::MAX; count],
        ..Default::default()
    };
    if !mark {
        out.text = text.to_string();
        return out;
    }
    let mut open = Vec::new();
    let mut pieces = text.split(marker);
    out.text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (tag, rest) = piece.split_once(';').unwrap_or((piece, ""));
        match tag.split_at(tag.len().min(1)) {
            ("o", _) => open.push(out.text.len()),
            ("c", _) => out
                .generated
                .extend(open.pop().map(|start| (start, out.text.len()))),
            (_, index) => {
                if let Some(start) = index
                    .parse()
                    .ok()
                    .and_then(|i: usize| out.starts.get_mut(i))
                {
                    *start = out.text.len();
                }
            }
        }
        out.text.push_str(rest);
    }
    out
}

/// What the template said, with its line; raise_exception's text comes as it is.
fn describe(error: &Error) -> String {
    let mut text = match error.detail() {
        _ if error.kind() == ErrorKind::OutOfFuel => out_of_work().to_string(),
        Some(detail) => detail.to_string(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text += &format!(" (line {line} of the template)");
    }
    text
}

fn strftime_now(format: String) -> Result<String, Error> {
    use std::fmt::Write;
    if format.len() > 1000 {
        return refuse("strftime_now reads at most 1000 bytes");
    }
    let mut out = String::new();
    write!(out, "{}", chrono::Local::now().format(&format)).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now cannot read {format:?}"),
        )
    })?;
    Ok(out)
}

/// Python's str.isspace: Unicode white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn trim(value: &Value) -> Result<String, Error> {
    admit(value, true)?;
    Ok(value.to_string().trim_matches(is_space).to_string())
}

/// Methods of Python's values, within the limits.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    charge(value.as_str().map_or(0, |text| text.len() / 16))?;
    for value in args {
        admit(value, true)?;
    }
    let mut all = vec![value.clone()];
    all.extend_from_slice(args);
    if name == "join" {
        all.reverse(); // the filter takes the list first
    }
    admit_call(name, &all)?;
    let result = settled(python_method(state, value, name, args)?)?;
    charge(0).map(|()| result)
}

/// What minijinja-contrib lacks, or does otherwise, comes first.
fn python_method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match (name, args.len()) {
            ("strip", 0) => return Ok(Value::from(text.trim_matches(is_space))),
            ("lstrip", 0) => return Ok(Value::from(text.trim_start_matches(is_space))),
            ("rstrip", 0) => return Ok(Value::from(text.trim_end_matches(is_space))),
            ("removeprefix", 1) => {
                let (part,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(part).unwrap_or(text)));
            }
            ("removesuffix", 1) => {
                let (part,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(part).unwrap_or(text)));
            }
            ("partition", 1) => {
                let (part,): (&str,) = from_args(args)?;
                return Ok(match text.split_once(part) {
                    Some((head, tail)) => [head, part, tail].into_iter().map(Value::from).collect(),
                    None => [text, "", ""].into_iter().map(Value::from).collect(),
                });
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}
