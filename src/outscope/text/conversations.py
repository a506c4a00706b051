"""Which text of a conversation is judged: the last user turn, with the topic it goes on with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

# Words of turns that name no topic of their own.
_REPLIES = """
a about absolutely afternoon again agreed ah all alright also and any awesome be both but can
cheers cool correct day definitely did didn't didnt do does don't done dont either else evening
exactly fine first five for former four go good got great greetings hello hey hi hm hmm how i
i'm in indeed is it it's just last latter let lets like m maybe me mhm mm more morning my nah
neither never nice no nope not now of off oh ok okay on one ones other perfect please pls
possibly probably really right s same second so sorry sounds still sure t thank thanks that the
them then there these third this those three thx to too tried try two uh um ve want well what
when where who why will works would yea yeah yep yes yet you yup zero
"""
# Words that begin a request; what follows is a topic of its own.
_REQUESTS = """
ask calculate can check compare could create define describe do draw explain find fix forget
generate get give help how i ignore imagine is list make name plan play please recommend say
search sell send should show sing solve suggest summarise summarize teach tell translate what
when where which who whose why would write
"""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
REPLY_WORDS, REQUEST_WORDS = frozenset(_REPLIES.split()), frozenset(_REQUESTS.split())
# An answer to a question of the assistant has at most this many words.
LONGEST_ANSWER = 6
# How chat models and the libraries around them name authors and parts with a text.
USERS, ASSISTANTS = ("user", "human"), ("assistant", "ai")
TEXT_PARTS = ("text", "input_text", "output_text")


def _words(text: str) -> list[str]:
    return [word.replace("’", "'") for word in _WORD.findall(text.casefold())]


def is_reply(text: str) -> bool:
    """Whether a turn only says yes, no, which one, hello or thanks.

    >>> is_reply("yes, the second one please"), is_reply("what is the capital of France?")
    (True, False)
    """
    return all(word in REPLY_WORDS or word.isdigit() for word in _words(text))


def is_answer(text: str, asked: str) -> bool:
    """Whether a turn answers what the assistant asked: a few words that request nothing.

    >>> is_answer("in front of the town hall", "Where did you leave it?")
    True
    >>> is_answer("tell me a joke", "Where did you leave it?")
    False
    """
    words = _words(text)
    own = [word for word in words if word not in REPLY_WORDS or word in REQUEST_WORDS]
    return (
        asked.rstrip().endswith("?")
        and "?" not in text
        and len(words) <= LONGEST_ANSWER
        and bool(own)
        and own[0] not in REQUEST_WORDS
    )


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(text for text in map(_text_of_part, content or ()) if text)


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    return str(_field(part, "text") or "") if _field(part, "type") in TEXT_PARTS else ""


def _field(message: Any, *names: str) -> Any:
    """The first of these fields that a dictionary or an object has."""
    for name in names:
        value = message.get(name) if isinstance(message, dict) else getattr(message, name, None)
        if value is not None:
            return value
    return None


def _user_turns(messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What the user said, turn by turn, each with what the assistant had said before."""
    asked = ""
    for message in messages:
        author, text = _field(message, "role", "type"), text_of(_field(message, "content")).strip()
        if author in ASSISTANTS:
            asked = text
        elif author in USERS:
            yield text, asked


def ends_without_text(messages: Sequence[Any]) -> bool:
    """Whether the last user turn holds no text, or there is none."""
    return not next((text for text, _ in reversed(list(_user_turns(messages)))), "")


def judged_text(messages: Sequence[Any], turns: int) -> str | None:
    """The text to judge, from the last `turns` user turns; None if no user turn holds a text.

    Messages are dictionaries or objects, as chat models and their libraries have them. A reply is
    judged as the topic before it: the last user turn with a topic of its own, else what the
    assistant said. An answer is judged together with that topic. Any other turn is a topic.
    """
    topic = judged = None
    for text, asked in [turn for turn in _user_turns(messages) if turn[0]][-turns:]:
        if is_reply(text):
            topic = topic or asked or None
            judged = topic or text
        elif topic is not None and is_answer(text, asked):
            judged = f"{topic} {text}"
        else:
            topic = judged = text
    return judged
