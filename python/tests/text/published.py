"""Published chat templates, which scripts/setup.sh fetches, and the chats that tests render."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / ".venv" / "templates"


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, identifier, **arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": identifier, "type": "function", "function": function}


def tool(name, argument):
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": "Which."}},
        "required": [argument],
    }
    function = {"name": name, "description": f"Returns the {name}.", "parameters": schema}
    return {"type": "function", "function": function}


def parts(text):
    return [{"type": "text", "text": text}]


TOOLS = [tool("weather", "city"), tool("time", "zone")]
WEATHER, TIME = call("weather", "abcdefgh1", city="Ulm"), call("time", "abcdefgh2", zone="CET")
RESULT = say("tool", "21 degrees", name="weather", tool_call_id="abcdefgh1")
COLOUR, SUM = say("user", "What is red?"), say("user", "And 2 + 2?")
CHATS = {
    "one turn": [COLOUR, say("assistant", "A colour.")],
    "system and two turns": [
        say("system", "Be brief."),
        COLOUR,
        say("assistant", "A colour."),
        SUM,
        say("assistant", "It is 4."),
    ],
    "three turns": [
        COLOUR,
        say("assistant", "A colour."),
        SUM,
        say("assistant", "It is 4."),
        say("user", "Bye"),
        say("assistant", "See you!"),
    ],
    "a call and its result": [
        say("user", "Is it warm in Ulm?"),
        say("assistant", "", tool_calls=[WEATHER]),
        RESULT,
        say("assistant", "Yes, it is."),
    ],
    "two calls in one message": [
        say("user", "Warm in Ulm, and late?"),
        say("assistant", "I look.", tool_calls=[WEATHER, TIME]),
        RESULT,
        say("tool", "9 pm", name="time", tool_call_id="abcdefgh2"),
        say("assistant", "Warm, and late."),
    ],
    "reasoning_content": [
        COLOUR,
        say("assistant", "A colour.", reasoning_content="Red is seen."),
        SUM,
        say("assistant", "It is 4.", reasoning_content="Two and two."),
    ],
    "content as parts": [say("user", parts("What is red?")), say("assistant", parts("A colour."))],
}


def templates():
    """{name: source}, each source once."""
    out = {}
    for file in sorted(FOLDER.glob("*/*.jinja")):
        source = file.read_text(encoding="utf-8")
        if source not in out.values():
            out[f"{file.parent.name}/{file.stem}"] = source
    return out
