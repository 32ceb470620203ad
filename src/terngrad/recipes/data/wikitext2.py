"""WikiText-2 (Merity et al., 2016): good articles of Wikipedia, two million words, split into words already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from terngrad.recipes.data.cache import Layout

LAYOUT = Layout(
    "WikiText-2",
    "wikitext-2",
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    'No address that can be relied on is known. Look for the word-level archive "wikitext-2-v1", which has them in a '
    "folder wikitext-2; not the raw, character-level one.",
)
UNKNOWN = "<unk>"  # what the text has for rare words
END = "<eos>"  # of every line


@dataclass(frozen=True)
class Text:
    """The splits as numbers of words, and how many words there are: those of the training split."""

    train: Tensor
    valid: Tensor
    num_words: int


def load_wikitext2(root: Path) -> Text:
    """The test split must be there, since it belongs to the dataset, but nothing is chosen or measured by it."""
    folder = LAYOUT.complete(root)
    train, valid = (read_words(folder / f"wiki.{split}.tokens") for split in ("train", "valid"))
    numbers = {word: number for number, word in enumerate(dict.fromkeys([UNKNOWN, END, *train]))}
    return Text(encode(train, numbers), encode(valid, numbers), len(numbers))


def read_words(path: Path) -> list[str]:
    return [word for line in path.read_text(encoding="utf-8").splitlines() for word in (*line.split(), END)]


def encode(words: list[str], numbers: dict[str, int]) -> Tensor:
    unknown = numbers[UNKNOWN]
    return torch.tensor([numbers.get(word, unknown) for word in words], dtype=torch.int32)
