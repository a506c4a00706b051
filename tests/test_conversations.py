"""Which text of a conversation counts: the rule, and how often it is right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from outscope import TextDetector
from outscope.demo import corpus
from outscope.serve.shapes import Message
from outscope.text.conversations import ends_without_text, judged_text


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


def test_messages_of_any_library_are_read():
    """Dictionaries and objects, roles or types, parts of the chat and the responses interface."""
    asked = {"role": "assistant", "content": [{"type": "output_text", "text": "Which part?"}]}
    own = {"role": "user", "content": [{"type": "input_text", "text": "my bike"}, "is broken"]}
    called = {"type": "function_call_output", "output": "broken"}
    said = SimpleNamespace(type="human", content="the saddle")
    assert judged_text([own, called, asked, said], 2) == "my bike\nis broken the saddle"
    answered = SimpleNamespace(type="ai", content="Is it about your bike?")
    assert judged_text([answered, {"type": "human", "content": "yes"}], 2) == answered.content


def test_a_last_turn_without_text_is_noticed():
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    own = {"role": "user", "content": "my bike"}
    assert [ends_without_text(said) for said in ([], [own, picture], [picture, own])] == [
        True,
        True,
        False,
    ]


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
