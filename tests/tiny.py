"""A tiny transformer with random weights: real code paths in milliseconds."""

from __future__ import annotations

from pathlib import Path

WORDS = [
    "pay",
    "my",
    "bill",
    "now",
    "please",
    "send",
    "money",
    "to",
    "bob",
    "block",
    "the",
    "lost",
    "card",
    "what",
    "is",
    "weather",
    "how",
    "tall",
    "a",
    "mountain",
    "i",
    "want",
    "cancel",
    "order",
    "new",
    "old",
    "red",
    "blue",
    "one",
    "two",
    "three",
    "open",
    "close",
    "door",
    "window",
]


def tiny_encoder(folder: Path, *, seed: int = 0) -> Path:
    """Write a two-block BERT over a few dozen words as a sentence-transformers folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizerFast

    bare = folder.parent / f"{folder.name}-bare"
    bare.mkdir(parents=True)
    letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*marks, *dict.fromkeys(WORDS), *(c[2:] for c in letters), *letters]
    (bare / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)))
    BertTokenizerFast(str(bare / "vocab.txt")).save_pretrained(bare)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(dict.fromkeys(vocabulary)),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(bare)
    transformer = Transformer(str(bare), max_seq_length=32)
    SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu").save(
        str(folder), create_model_card=False
    )
    return folder


def labelled_texts(n: int = 48) -> tuple[list[str], list[str]]:
    """Short texts of three classes that even a tiny network can tell apart."""
    starts = {"pay": "pay my bill", "send": "send money to bob", "block": "block the lost card"}
    ends = ("now", "please", "one", "two", "three", "red", "blue", "old", "new", "open")
    texts, labels = [], []
    for i in range(n):
        label = list(starts)[i % 3]
        texts.append(f"{starts[label]} {ends[i % 10]} {ends[(i // 7) % 10]}")
        labels.append(label)
    return texts, labels
