"""Which text of a conversation counts: the rule, and how often it is right."""

from __future__ import annotations

import pytest

from outscope import TextDetector
from outscope.demo import corpus
from outscope.serve.conversations import judged_text
from outscope.serve.shapes import Message


def turns(*texts):
    roles = ("user", "assistant")
    return [Message(role=roles[i % 2], content=text) for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        (["my bike is broken"], "my bike is broken"),
        (["my bike is broken", "which part?", "the second one"], "my bike is broken"),
        (["my bike is broken", "which part?", "yes!", "really?", "No."], "my bike is broken"),
        (["my bike is broken", "which part?", "the saddle"], "my bike is broken the saddle"),
        (["my bike is broken", "which part?", "tell me a joke"], "tell me a joke"),
        (["my bike is broken", "which part?", "who is the pope?"], "who is the pope?"),
        (["my bike is broken", "I see.", "the saddle"], "the saddle"),
        (["hello", "Is it about your bike?", "yes"], "Is it about your bike?"),
        (["yes"], "yes"),
    ],
)
def test_replies_go_on_with_the_topic(said, judged):
    assert judged_text(turns(*said), 5) == judged


def test_only_the_last_turns_count():
    said = turns("my bike is broken", "?", "yes", "?", "no", "?", "ok")
    assert judged_text(said, 4) == "my bike is broken"
    assert judged_text(said, 2) != "my bike is broken"


def test_parts_of_messages():
    parts = [{"type": "image_url"}, {"type": "text", "text": "my bike"}]
    assert judged_text([Message(role="user", content=parts)], 3) == "my bike"
    assert judged_text([Message(role="system", content="my bike")], 3) is None
    assert judged_text([Message(role="user", content=None)], 3) is None


def test_the_rule_is_right_on_the_conversations():
    rows = corpus("in_scope")
    detector = TextDetector(contamination=0.05).fit(
        [row["text"] for row in rows], [row["label"] for row in rows]
    )
    found = [row for row in corpus("conversations") if row["split"] == "test"]
    chats = [[Message(**one) for one in row["messages"]] for row in found]

    def right(texts):
        flags = detector.is_ood(texts)
        return sum(
            flag != row["in_scope"] for flag, row in zip(flags.tolist(), found, strict=True)
        ) / len(found)

    assert len(corpus("conversations")) >= 60
    with_rule = right([judged_text(chat, 5) for chat in chats])
    without = right([judged_text(chat, 1) or "" for chat in [chat[-1:] for chat in chats]])
    assert with_rule >= 0.9
    assert without < 0.75
