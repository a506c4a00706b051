"""Which text of a conversation is judged: the last user turn, or the topic it goes on with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Words of replies that name no topic of their own.
_REPLIES = """
a about absolutely again agreed ah all alright also and any awesome both but can cheers cool
correct definitely did didn't didnt do does don't done dont either else exactly fine first five
for former four go good got great hm hmm how i i'm in indeed is it it's just last latter let lets
like m maybe me mhm mm more my nah neither never nice no nope not now of off oh ok okay on one
ones other perfect please pls possibly probably really right s same second so sorry sounds still
sure t thank thanks that the them then there these third this those three thx to too tried try two
uh um ve want well what when where who why will works would yea yeah yep yes yet you yup zero
"""
REPLY_WORDS = frozenset(_REPLIES.split())
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def is_reply(text: str) -> bool:
    """Whether a turn only answers, and takes its topic from what came before.

    >>> is_reply("yes, the second one please"), is_reply("what is the capital of France?")
    (True, False)
    """
    return all(word in REPLY_WORDS or word.isdigit() for word in _WORD.findall(text.casefold()))


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(part.text for part in parts if part.type == "text" and part.text)


def judged_text(messages: Sequence[Any], turns: int) -> str | None:
    """The text to judge: the last of `turns` user turns that is no mere reply.

    If all of them are replies, the last one; None if no user turn holds any text.
    """
    said = [text_of(message.content) for message in messages if message.role == "user"]
    said = [text for text in said if text.strip()][-turns:]
    if not said:
        return None
    return next((text for text in reversed(said) if not is_reply(text)), said[-1])
