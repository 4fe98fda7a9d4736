//! Templates that try to end the process, to fill its memory or to keep it for ever.
use std::time::Instant;

use crate::chat::{Chat, Request};
use crate::limits::{Stop, HELD, PEAK};

const CONTEXT: &str = r#"{"messages": [{"role": "user", "content": "xxxxxxxxxx"}], "n": 3}"#;

fn render(source: &str, stop: Option<Stop>) -> Result<String, String> {
    let request = Request {
        num_messages: usize::MAX,
        ..Default::default()
    };
    let mut out = Chat::new(source)?.render(CONTEXT, &[request], stop)?;
    Ok(out.remove(0).text)
}

/// A template's result on a thread with a stack of 2 MiB, its peak of memory and its seconds.
fn attempt(source: String) -> (Result<String, String>, isize, f64) {
    let work = move || {
        let (start, before) = (Instant::now(), HELD.get());
        PEAK.set(before);
        let result = render(&source, None);
        let seconds = start.elapsed().as_secs_f64();
        (result, PEAK.get() - before, seconds)
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    thread.spawn(work).unwrap().join().unwrap()
}

fn refused(cases: Vec<(String, &str)>) {
    for (source, expected) in cases {
        let start: String = source.chars().take(70).collect();
        let (result, peak, seconds) = attempt(source);
        println!("{seconds:6.2} s {:4} MiB {start:?}", peak >> 20);
        assert!(peak < 64 << 20, "{start}: {peak} bytes");
        match result {
            Ok(text) => panic!("{start}: {} bytes of text", text.len()),
            Err(text) => assert!(text.contains(expected), "{start}: {text}"),
        }
    }
}

fn grow(body: &str, last: &str) -> String {
    format!(
        "{{% set ns=namespace(x=[],y=[]) %}}{{% for i in range(99999) %}}{body}{{% endfor %}}{last}"
    )
}

fn chain(before: &str, one: &str, after: &str) -> String {
    format!("{{{{ {before}{}{after} }}}}", one.repeat(200_000))
}

const DEEP: &str = "200 levels";
const STEPS: &str = "too many steps";
const TEXT: &str = "it makes a text";
const LIST: &str = "it makes a list";
const OPERATORS: &str = "more than 500 operators";

#[test]
fn values_that_are_deep_or_hold_themselves_are_refused() {
    let nested = "{% set ns.x=[ns.x] %}";
    let both = "{% set ns.x=[ns.x] %}{% set ns.y=[ns.y] %}";
    let args = "{% macro f(x, k) %}{% if k %}{{ f([[[[[[[[x]]]]]]]], k-1) }}{% else %}{{ x }}\
                {% endif %}{% endmacro %}{{ f(1, 60) }}";
    refused(vec![
        (grow(nested, "{{ ns.x }}"), DEEP),
        (grow(nested, "{{ ns.x|tojson }}"), DEEP),
        (grow(both, "{{ ns.x == ns.y }}"), DEEP),
        (
            format!("{}{{{{ x }}}}", "{% set x=[x] %}".repeat(20_000)),
            DEEP,
        ),
        (args.into(), DEEP),
        (
            "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns }}".into(),
            "a namespace holds a namespace",
        ),
        (
            "{% set ns=namespace() %}{% set l=[[ns]] %}{% set ns.x=l %}{{ l|tojson }}".into(),
            "a namespace holds a namespace",
        ),
        (
            "{% set ns=namespace() %}{% for i in [ns, 1] %}{% set ns.x=loop %}{% endfor %}".into(),
            "a namespace holds a namespace",
        ),
    ]);
}

#[test]
fn sources_that_nest_without_an_end_are_refused() {
    refused(vec![
        (chain("", "not ", "1"), OPERATORS),
        (chain("", "-", "1"), OPERATORS),
        (chain("1", "~1", ""), OPERATORS),
        (chain("1", "+1", ""), OPERATORS),
        (chain("1", "|string", ""), "the limit is 1048576"),
        (chain("a", ".a", ""), OPERATORS),
        (chain("a", "[0]", ""), OPERATORS),
        (chain("a", "()", ""), OPERATORS),
        (chain("", "(", ""), OPERATORS),
        ("{% if 1 %}".repeat(50_000), "recursion"),
        (
            format!("{{% if 0 %}}{}", "{% elif 0 %}".repeat(50_000)),
            "500 elif",
        ),
        (
            format!("{{{{ {} 1 }}}}", "1 if 1 else ".repeat(50_000)),
            OPERATORS,
        ),
        ("{{ f(*range(9)) }}".into(), "calls with *"),
        (
            "{% macro a(k) %}{{ a(k) }}{% endmacro %}{{ a(1) }}".into(),
            "recursion",
        ),
        (
            "{% block a %}{{ self.a() }}{% endblock %}".into(),
            "recursion",
        ),
        (
            "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
            "recursion",
        ),
    ]);
}

#[test]
fn loops_end() {
    let long = "{% set k=4000000 %}{% set a='x'*k %}";
    let forever = "{% macro f() %}{% do f() %}{% do f() %}{% endmacro %}{{ f() }}";
    let twice = "{% macro a(k) %}{% if k > 0 %}{{ a(k-1) }}{{ a(k-1) }}{% endif %}{% endmacro %}\
                 {{ a(60) }}";
    let each = |body: &str| format!("{long}{}", grow(body, ""));
    refused(vec![
        (grow("{% for j in range(99999) %}{% endfor %}", ""), STEPS),
        (forever.into(), "recursion"),
        (twice.into(), STEPS),
        (each("{% if a|length %}{% endif %}"), STEPS),
        (each("{% set b=a|upper %}"), STEPS),
        (each("{% set b=a[1:] %}"), STEPS),
        (each("{% if 'y' in a %}{% endif %}"), STEPS),
        (each("{% if a.find('y') %}{% endif %}"), STEPS),
        (grow("{% set ns.x=ns.x+[i] %}", ""), STEPS),
        (
            "{% set a=range(99999)|list %}{{ a|select('in', a)|list }}".into(),
            STEPS,
        ),
    ]);
}

#[test]
fn memory_has_a_limit() {
    let set = |rest: &str| format!("{{% set k=1000000 %}}{{% set a='x'*k %}}{rest}");
    let doubled = |start: &str, twice: &str| {
        format!(
            "{{% set ns=namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x={twice} %}}\
             {{% endfor %}}{{{{ ns.x|tojson }}}}"
        )
    };
    let raw = "r".repeat(100_000);
    let macros = format!(
        "{{% macro f() %}}{raw}{{% endmacro %}}{{{{ [{}0] }}}}",
        "f(),".repeat(200)
    );
    refused(vec![
        (doubled("'aaaaaaaa'", "ns.x ~ ns.x"), TEXT),
        (doubled("'aaaaaaaa'", "ns.x + ns.x"), TEXT),
        (doubled("[1,2,3,4]", "ns.x + ns.x"), LIST),
        (doubled("{'a':1}", "{'a':ns.x,'b':ns.x}"), STEPS),
        ("{{ [1]|tojson(indent=10000000000) }}".into(), TEXT),
        ("{{ [[[1]]]|tojson(indent=2000000) }}".into(), TEXT),
        ("{{ 'a\\nb'|indent(9999999999) }}".into(), TEXT),
        ("{{ 'a\\nb'|indent(width=9999999999) }}".into(), TEXT),
        ("{{ '{:>9999999999}'.format('x') }}".into(), TEXT),
        ("{{ '%9999999999s'|format('x') }}".into(), TEXT),
        (set("{{ a.replace('', a)|length }}"), TEXT),
        (set("{{ a|replace('x', a)|length }}"), TEXT),
        (set("{{ ([1]*1000)|join(a)|length }}"), TEXT),
        (set("{{ a.join([1]*1000)|length }}"), TEXT),
        (set(&format!("{{{{ {}a }}}}", "a~".repeat(400))), TEXT),
        (set("{{ '{0}{0}{0}{0}{0}'.format(a) }}"), TEXT),
        (set("{{ a|list }}"), LIST),
        (set("{{ a.split('x') }}"), LIST),
        (
            "{{ [1,2]|batch(99999999999,'x')|list|length }}".into(),
            LIST,
        ),
        (
            "{{ range(10000000000)|list|length }}".into(),
            "too many elements",
        ),
        ("{{ 'a' * 3000000000 }}".into(), "repeats a constant"),
        ("{{ 'a' * 9000 * 9000 }}".into(), "repeats a constant"),
        (
            "{{ ([1] * 100000000)[99999999] }}".into(),
            "repeats a constant",
        ),
        (set("{{ messages[0].content * (k * n) }}"), TEXT),
        (set("{{ messages * (k * n) }}"), LIST),
        (
            format!("{{% set x %}}{}{{% endset %}}", grow(&raw, "")),
            "MiB of memory",
        ),
        (macros, "MiB of memory"),
        (
            format!("{{% block a %}}{raw}{{{{ self.a() }}}}{{{{ self.a() }}}}{{% endblock %}}"),
            "",
        ),
        (
            "{{ strftime_now(messages[0].content * 200) }}".into(),
            "1000 bytes",
        ),
        ("{{ ['a']|map('=join')|list }}".into(), "unknown"),
        ("{{ ['a']|sum(start='') }}".into(), "not texts"),
    ]);
}

#[test]
fn checkpoints_change_no_result() {
    let each =
        "{% for x in [3, 1, 2] if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}";
    for (source, expected) in [
        ("{{ 1 + 2 }} {{ n + 1.5 }} {{ true + n }} {{ n * 2.0 }} {{ n * n }}", "3 4.5 4 6.0 9"),
        ("{{ 'a' + 'b' }}{{ n * 'ab' }}{{ 'ab' * n }}{{ 1 ~ [2] ~ none }}", "ababababababab1[2]None"),
        ("{{ [1] + [2] }} {{ (1, 2) + (3,) }} {{ [n] * 2 }} {{ [] * n }}", "[1, 2] (1, 2, 3) [3, 3] []"),
        ("{{ 1 < n < 9 }} {{ n == (3 if true else 'z') }} {{ 'user' in messages[0].role }}", "True True True"),
        ("{{ messages[0].items()|list|length }} {{ range(9)[2:4] }} {{ 'hello'[1:3] }}", "2 [2, 3] el"),
        (each, "1:3 2:2 "),
        ("{% macro f(a, b=2) %}{{ a + b }}{% endmacro %}{{ f(1) }}{{ f(1, b=5) }}", "36"),
        ("{% set a, b = 1, 2 %}{% with c = a + b %}{{ c }}{% endwith %}", "3"),
        ("{% block a %}{{ n }}{% endblock %}{% filter upper %}x{{ n }}{% endfilter %}", "3X3"),
        ("{% for i in [[1, [2]]] recursive %}{% if i is sequence %}{{ loop(i) }}{% else %}{{ i }}\
          {% endif %}{% endfor %}", "12"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}\
          {% endif %}{{ i }}{% endfor %}", "023"),
    ] {
        assert_eq!(render(source, None).as_deref(), Ok(expected), "{source}");
    }
    for (source, expected) in [
        (
            "{{ 'a' + n }}",
            "tried to use + operator on unsupported types string and number",
        ),
        (
            "\n{{ nothing + 1 }}",
            "types undefined and number (line 2 of the template)",
        ),
        (
            "{{ 'a' * 'b' }}",
            "strings can only be multiplied with integers",
        ),
    ] {
        assert!(
            render(source, None).unwrap_err().contains(expected),
            "{source}"
        );
    }
}

#[test]
fn a_rendering_can_be_interrupted() {
    extern "C" fn asked(count: *mut std::ffi::c_void) -> bool {
        // SAFETY: the argument below.
        let count = unsafe { &mut *count.cast::<usize>() };
        *count += 1;
        *count == 3
    }
    let mut count = 0usize;
    let stop = Stop {
        asked,
        argument: (&raw mut count).cast(),
    };
    let source = grow("{% for j in range(99999) %}{% endfor %}", "");
    assert!(render(&source, Some(stop))
        .unwrap_err()
        .contains("interrupted"));
    assert_eq!(count, 3);
}
