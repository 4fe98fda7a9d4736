//! Puts checkpoints into a compiled template, and makes sure that nothing in a template's reach
//! takes more than limits.rs allows: operators, filters, methods and printing.
//!
//! What a template gives a name is admitted first, so values are bounded wherever they are used;
//! an expression, whose length is bounded, can add to them only what it holds itself.
use std::collections::{BTreeMap, HashSet};

use minijinja::machinery::{parse, tokenize, CodeGenerator, Instruction, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{escape_formatter, filters, tests, Environment, Error, Output, State, Value};

use crate::limits::{admit, admit_items, admit_text, charge, refuse, settled};
use crate::operators::{add, concat, mul};

const MAX_SOURCE: usize = 1 << 20; // bytes
const MAX_OPERATORS: usize = 500; // in one tag: each may nest the expression one level deeper
const MAX_ELIFS: usize = 500; // each nests as an else
const MAX_CONSTANT: usize = 4 << 20; // bytes of what is computed when a template is compiled

// Filters of our own, under names that no template can spell.
const ADMITTED: &str = "=admitted";
const NAMED: &str = "=named";
const OWNED: &str = "=owned";
const RESULT: &str = "=result";
const SETTLED: &str = "=settled";
const ITERATED: &str = "=iterated";
const ADD: &str = "=add";
const MUL: &str = "=mul";
const CONCAT: &str = "=concat";

/// A template's instructions, and those of its blocks.
pub struct Code<'a> {
    pub main: Instructions<'a>,
    pub blocks: BTreeMap<&'a str, Instructions<'a>>,
}

pub fn compile<'a>(
    name: &'a str,
    source: &'a str,
    syntax: SyntaxConfig,
) -> Result<Code<'a>, Error> {
    if source.len() > MAX_SOURCE {
        let size = source.len();
        return refuse(format!(
            "it has {size} bytes, the limit is {MAX_SOURCE}: is it a chat template?"
        ));
    }
    check_nesting(source, syntax.clone())?;
    let tree = parse(source, name, syntax)?;
    let mut code = CodeGenerator::new(name, source);
    code.compile_stmt(&tree);
    let (main, blocks) = code.finish();
    let blocks = blocks.into_iter();
    let guarded = blocks.map(|(block, code)| Ok((block, with_checkpoints(name, source, code)?)));
    Ok(Code {
        blocks: guarded.collect::<Result<_, Error>>()?,
        main: with_checkpoints(name, source, main)?,
    })
}

/// Refuses sources whose tree would be too deep to walk, or whose constants are too large.
fn check_nesting(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let (mut operators, mut elifs, mut constants) = (0, 0, 0usize);
    let (mut repeats, mut factor, mut bytes) = (false, 1usize, 0usize);
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        match token {
            Token::VariableStart | Token::BlockStart => {
                (operators, repeats, factor, bytes) = (0, false, 1, 0);
            }
            Token::VariableEnd | Token::BlockEnd => {
                if repeats {
                    constants = constants.saturating_add(bytes.saturating_mul(factor));
                }
            }
            Token::TemplateData(_) | Token::Comma | Token::Colon | Token::Assign => {}
            Token::Str(text) => bytes += text.len() + 1,
            Token::String(text) => bytes += text.len() + 1,
            Token::Int(n) => factor = factor.saturating_mul(n.max(1) as usize),
            Token::Int128(_) => factor = usize::MAX,
            Token::Float(_) => {}
            Token::Ident(name) => match name {
                "elif" => elifs += 1,
                "not" | "and" | "or" | "if" | "else" | "is" | "in" => operators += 1,
                _ => {}
            },
            operator => {
                repeats |= matches!(operator, Token::Mul);
                bytes += 1;
                operators += 1;
            }
        }
        if operators > MAX_OPERATORS || elifs > MAX_ELIFS || constants > MAX_CONSTANT {
            let line = span.start_line;
            return refuse(if operators > MAX_OPERATORS {
                format!("a tag has more than {MAX_OPERATORS} operators (line {line})")
            } else if elifs > MAX_ELIFS {
                format!("it has more than {MAX_ELIFS} elif (line {line})")
            } else {
                format!("it repeats a constant to more than {MAX_CONSTANT} bytes (line {line})")
            });
        }
    }
    Ok(())
}

fn call(filter: &'static str, arguments: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(filter, Some(arguments), !0)
}

/// The code for one instruction: checkpoints before it, itself or ours, checkpoints after it.
fn guarded<'a>(one: Instruction<'a>, after_constant: bool) -> Result<Vec<Instruction<'a>>, Error> {
    Ok(match one {
        Instruction::Add => vec![call(ADD, 2)],
        Instruction::Mul => vec![call(MUL, 2)],
        Instruction::StringConcat => vec![call(CONCAT, 2)],
        Instruction::StoreLocal(_) => vec![call(NAMED, 1), one],
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, call(OWNED, 1), Instruction::Swap, one]
        }
        // A comparison takes as long as the smaller side is large.
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
            if !after_constant =>
        {
            vec![call(ADMITTED, 1), one]
        }
        Instruction::PushLoop(_) => vec![call(ITERATED, 1), one],
        Instruction::Slice => vec![one, call(SETTLED, 1)],
        Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => vec![one, call(RESULT, 1)],
        Instruction::CallBlock(_) => vec![
            Instruction::LoadConst(Value::UNDEFINED),
            call(RESULT, 1),
            Instruction::DiscardTop,
            one,
        ],
        Instruction::UnpackLists(_) => return refuse("it calls with *, which is not available"),
        _ => vec![one],
    })
}

fn with_checkpoints<'a>(
    name: &'a str,
    source: &'a str,
    code: Instructions<'a>,
) -> Result<Instructions<'a>, Error> {
    let mut is_target = HashSet::new();
    let old = || (0..).map_while(|at| code.get(at).cloned().map(|one| (at, one)));
    for (_, mut one) in old() {
        is_target.extend(target(&mut one).map(|at| *at));
    }
    let mut out = Instructions::new(name, source);
    let (mut moved, mut last) = (Vec::new(), 0u32);
    let mut after_constant = false;
    for (at, one) in old() {
        let is_constant = matches!(one, Instruction::LoadConst(_));
        moved.push(last);
        for instruction in guarded(one, after_constant && !is_target.contains(&at))? {
            last = 1 + match code.get_line(at) {
                Some(line) => out.add_with_line(instruction, line as u16),
                None => out.add(instruction),
            };
        }
        after_constant = is_constant;
    }
    moved.push(last);
    for at in 0..last {
        if let Some(target) = out.get_mut(at).and_then(target) {
            *target = moved[*target as usize];
        }
    }
    Ok(out)
}

fn target<'a>(one: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match one {
        Instruction::Iterate(at)
        | Instruction::Jump(at)
        | Instruction::JumpIfFalse(at)
        | Instruction::JumpIfFalseOrPop(at)
        | Instruction::JumpIfTrueOrPop(at)
        | Instruction::BuildMacro(_, at, _) => Some(at),
        _ => None,
    }
}

/// Puts guards around everything that the environment offers to templates.
pub fn install(environment: &mut Environment<'static>) {
    environment.add_filter(ADMITTED, |value: Value| admit(&value, true).map(|()| value));
    environment.add_filter(NAMED, named);
    environment.add_filter(OWNED, |value: Value| {
        let value = settled(value)?;
        admit(&value, false).map(|()| value)
    });
    environment.add_filter(RESULT, |value: Value| charged(&value).map(|()| value));
    environment.add_filter(SETTLED, |value: Value| {
        charged(&value)?;
        settled(value)
    });
    environment.add_filter(ITERATED, |value: Value| match value.is_none() {
        true => refuse("none is not iterable"), // an undefined value is, in jinja2, too
        false => Ok(value),
    });
    environment.add_filter(ADD, add);
    environment.add_filter(MUL, mul);
    environment.add_filter(CONCAT, concat);
    environment.set_formatter(print);
    environment.add_test(
        "in",
        |state: &mut State, value: &Value, container: &Value| {
            admit(container, true)?;
            tests::is_in(state, value, container)
        },
    );
    for name in ["pprint", "tojson"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    macro_rules! guard {
        ($walk:literal: $($name:ident $(as $alias:literal)?),*) => {$(
            environment.add_filter(concat!("=", stringify!($name)), filters::$name);
            for alias in [stringify!($name) $(, $alias)?] {
                environment.add_filter(alias, |state: &mut State, arguments: Rest<ValueOrKwargs>| {
                    let arguments = arguments.into_values();
                    if $walk {
                        for value in arguments.iter() {
                            admit(value, true)?;
                        }
                        admit_call(stringify!($name), &arguments)?;
                    }
                    charged(arguments.first().unwrap_or(&Value::UNDEFINED))?;
                    let result = state.apply_filter(concat!("=", stringify!($name)), &arguments)?;
                    charge(0)?;
                    settled(result)
                });
            }
        )*};
    }
    guard!(false: length as "count", default as "d", first, last, abs, int, float, round, bool,
        attr, safe);
    guard!(true: escape as "e", lower, upper, title, capitalize, replace, dictsort, items, reverse,
        join, split, lines, min, max, sort, list, string, batch, slice, sum, indent, select, reject,
        selectattr, rejectattr, map, groupby, unique, chain, zip, format);
    // A line end at the end of the text stays, as in jinja2.
    environment.add_filter("=lines_indented", filters::indent);
    environment.add_filter(
        "=indent",
        |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let mut arguments = arguments.into_values();
            if let Some(text) = arguments.first_mut() {
                *text = Value::from(format!("{text}\n"));
            }
            state.apply_filter("=lines_indented", &arguments)
        },
    );
}

/// A checkpoint that counts the length of a text.
fn charged(value: &Value) -> Result<(), Error> {
    charge(value.as_str().map_or(0, |text| text.len() / 64))
}

/// A checkpoint for a name's value. Texts, numbers and flags, as most are, take no time.
fn named(value: Value) -> Result<Value, Error> {
    let value = settled(value)?;
    admit(&value, true).map(|()| value)
}

fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    admit(value, true)?;
    escape_formatter(out, state, value)
}

/// A filter's or a method's call, the value first: what it makes of admitted arguments is no larger
/// than they are but for a small factor, or is admitted here.
pub fn admit_call(name: &str, arguments: &[Value]) -> Result<(), Error> {
    let text = |at: usize| arguments.get(at).and_then(Value::as_str);
    let option = |at: usize, key: &str| match arguments.get(at) {
        Some(value) if !value.is_kwargs() => Some(value.clone()),
        _ => (arguments.last()?.get_attr(key).ok()).filter(|value| !value.is_undefined()),
    };
    let size = |value: Option<Value>| value.and_then(|v| v.as_usize());
    match (name, text(0)) {
        ("replace", Some(all)) => {
            let (old, new) = (text(1).unwrap_or(""), text(2).unwrap_or(""));
            let most = all.len() / old.len().max(1) + 1;
            if new.len() > old.len() && admit_text(most.saturating_mul(new.len())).is_err() {
                admit_text(all.len() + all.matches(old).count().saturating_mul(new.len()))?;
            }
        }
        ("indent", Some(all)) => {
            let lines = all.matches('\n').count() + 1;
            admit_text(lines.saturating_mul(size(option(1, "width")).unwrap_or(4)))?;
        }
        ("format", Some(all)) => admit_format(all, &arguments[1..])?,
        ("split", Some(all)) => admit_items(match text(1) {
            Some(by) => all.matches(by).count(),
            None => all.split_whitespace().count(),
        })?,
        ("lines" | "splitlines", Some(all)) => admit_items(all.matches('\n').count())?,
        ("join", None) => {
            let by = option(1, "d").and_then(|v| v.as_str().map(str::len));
            let items = arguments.first().and_then(Value::len).unwrap_or(0);
            admit_text(items.saturating_mul(by.unwrap_or(0)))?;
        }
        ("batch" | "slice", _) => admit_items(size(option(1, "count")).unwrap_or(0))?,
        ("sum", _) if option(2, "start").is_some_and(|v| v.as_str().is_some()) => {
            return refuse("sum adds numbers and lists, not texts: use join")
        }
        ("map", _) if text(1).is_some_and(|filter| filter.trim().starts_with('=')) => {
            return refuse(format!("filter {} is unknown", text(1).unwrap_or_default()))
        }
        _ => {}
    }
    let makes_list = matches!(
        name,
        "list" | "sort" | "unique" | "map" | "select" | "reject" | "join" | "chain" | "zip"
    );
    match text(0) {
        Some(all) if makes_list => admit_items(all.len()),
        _ => Ok(()),
    }
}

/// Widths, and a value that is printed more than once, can make a format's result large.
fn admit_format(format: &str, values: &[Value]) -> Result<(), Error> {
    let runs = format.split(|c: char| !c.is_ascii_digit());
    let widths = runs
        .filter(|run| !run.is_empty())
        .map(|run| run.parse().unwrap_or(usize::MAX));
    let places = format.matches(['%', '{']).count();
    let length = |v: &Value| v.as_str().map_or_else(|| v.to_string().len(), str::len);
    let longest = values.iter().map(length).max().unwrap_or(0);
    admit_text(widths.fold(places.saturating_mul(longest), usize::saturating_add))
}
