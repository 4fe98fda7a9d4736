//! Chat templates in the environment that `transformers` gives them: trim_blocks, lstrip_blocks,
//! loop controls, Python's methods and JSON, raise_exception, strftime_now. A rendering can carry
//! the places of the generation blocks and of the messages.
use minijinja::machinery::{eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, ValueKind};
use minijinja::{context, AutoEscape, Environment, Error, ErrorKind, State, Value};

use serde_json::Value as Json;

use crate::guard::{admit_call, compile, install, Code};
use crate::json::tojson;
use crate::limits::{admit, charge, now, out_of_work, refuse, settled, Run, Stop};
use crate::marks::{is_result, mark, noticed, tag, unmark, UNCERTAIN};
use crate::rewrite::rewrite;

const NAME: &str = "chat_template";

pub struct Chat {
    environment: Environment<'static>,
    code: Code<'static>, // borrows from `_source`, which is dropped after it
    pub has_generation: bool,
    _source: Box<str>,
}

/// The part of a conversation to render, and the places to find in it.
#[derive(Default)]
pub struct Request {
    pub num_messages: usize,
    pub add_generation_prompt: bool,
    pub blocks: bool, // fill `generated`
    pub turns: bool,  // fill `turns`; nothing at all where the template fails on the marks
}

/// `turns[i]` are the bytes of message i, UNCERTAIN where the marks do not show them; the marks of
/// the list of tools stood at the bytes `tools`.
#[derive(Default)]
pub struct Rendering {
    pub text: String,
    pub generated: Vec<(usize, usize)>,
    pub turns: Vec<(usize, usize)>,
    pub tools: Vec<usize>,
}

impl Chat {
    pub fn new(source: &str) -> Result<Chat, String> {
        let rewritten = rewrite(&source.replace("\r\n", "\n").replace('\r', "\n"));
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
            v.kind() == ValueKind::String || (!v.is_none() && v.try_iter().is_ok())
        });
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("__twinkle_mark", mark);
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
        let parsed: Json = serde_json::from_str(context)
            .map_err(|e| format!("the conversation is no JSON: {e}"))?;
        let marker = ('\u{fdd0}'..='\u{fdef}')
            .find(|c| !context.contains(*c))
            .ok_or("the conversation uses every marker character from U+FDD0 to U+FDEF")?;
        let now = parsed.get("__twinkle_now").and_then(|now| now.as_i64());
        let plain = Value::from(minijinja::value::Serde(&parsed));
        let mut out = Vec::with_capacity(requests.len());
        for request in requests {
            if request.turns {
                out.push(self.with_turns(&parsed, request, marker, stop)?);
                continue;
            }
            let tag = |kind: &str| match request.blocks {
                true => format!("{marker}{kind};"),
                false => String::new(),
            };
            let root = context! {
                messages => first(&plain, request.num_messages)?,
                add_generation_prompt => request.add_generation_prompt,
                __twinkle_open => tag("o"),
                __twinkle_close => tag("c"),
                ..plain.clone()
            };
            let run = Run::new(context.len(), now, stop);
            let text = self.text(root, &run).map_err(|e| describe(&e))?;
            out.push(unmark(&text, marker, &[]));
        }
        Ok(out)
    }

    /// A template may fail on the marks, or write another text because of them: the text shows it.
    fn with_turns(
        &self,
        parsed: &Json,
        request: &Request,
        marker: char,
        stop: Option<Stop>,
    ) -> Result<Rendering, String> {
        let mut tagged = parsed.clone();
        tag(&mut tagged, marker);
        let value = Value::from(minijinja::value::Serde(&tagged));
        let messages = noticed(first(&value, request.num_messages)?, marker);
        let content = |of: &Json, i: usize| of["messages"][i].get("content").cloned();
        let has_content: Vec<bool> = (0..messages.len())
            .map(|i| content(parsed, i) != content(&tagged, i))
            .collect();
        let root = context! {
            messages => messages,
            add_generation_prompt => request.add_generation_prompt,
            ..value
        };
        let now = parsed.get("__twinkle_now").and_then(|now| now.as_i64());
        let run = Run::new(tagged.to_string().len(), now, stop);
        let mut out = match self.text(root, &run) {
            Ok(text) => unmark(&text, marker, &has_content),
            Err(_) => Rendering {
                turns: vec![UNCERTAIN; has_content.len()],
                ..Default::default()
            },
        };
        // A result without a mark may stand unseen within the turn before it.
        for i in 1..has_content.len() {
            if !has_content[i] && is_result(&parsed["messages"][i]) {
                out.turns[i - 1] = UNCERTAIN;
            }
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

/// The conversation's first so many messages.
fn first(context: &Value, count: usize) -> Result<Vec<Value>, String> {
    let messages = context.get_attr("messages").and_then(|m| m.try_iter());
    let messages = messages.map_err(|_| "the conversation has no messages".to_string())?;
    Ok(messages.take(count).collect())
}

/// The text of an error, raise_exception's among them, with the template's line.
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
    let time = now()
        .and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0))
        .map_or_else(chrono::Local::now, |time| {
            time.with_timezone(&chrono::Local)
        });
    write!(out, "{}", time.format(&format)).map_err(|_| {
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

/// Methods that minijinja-contrib lacks, or does otherwise, come first.
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
