"""What tests of integrations share: a detector of texts that needs no network and no torch."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT
from tiny import WORDS, labelled_texts

from outscope import ClasswiseNNKDetector, TextDetector

INSIDE = "pay my bill now please"
OUTSIDE = "how tall is a mountain"


def needs(module):
    """The module, or a skip that says why."""
    return pytest.importorskip(module, reason=f"{module} is not installed", exc_type=ImportError)


def static_encoder(folder):
    """Write a static encoder with a random vector for each of a few dozen words."""
    needs("model2vec")
    import numpy as np
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[UNK]", *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(0).normal(size=(len(vocabulary), 16)).astype(np.float32)
    StaticModel(vectors, tokenizer).save_pretrained(folder)
    return str(folder)


def fitted(folder):
    """A detector of three classes of texts, and the folder it is saved in."""
    texts, labels = labelled_texts(90)
    made = ClasswiseNNKDetector(random_state=0)
    detector = TextDetector(static_encoder(folder / "static"), made, holdout=30, cache=False)
    detector.fit(texts, labels).save(folder / "model")
    return detector, str(folder / "model")


def examples():
    """The Python examples of docs/integrations.md by their headings."""
    parts = re.split(r"^## ", (ROOT / "docs" / "integrations.md").read_text(), flags=re.M)[1:]
    blocks = {part.split("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.S) for part in parts}
    return {name: "\n".join(found) for name, found in blocks.items() if found}
