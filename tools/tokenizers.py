"""Tokenizers by name.

A tokenizer is its definition in plain Python, `[stem(t) for t in words(text) if t not in stop_words]`, where `words`
lower-cases the text with `str.lower` and then splits it. Nothing else may decide what a token is: the counting kernel
of `tools.counting` derives its byte tables from `words` and is tested against `tokenize`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tools.porter import porter_stems

# Read from published/NanoDAPFAM.json, tokenizers.english_porter_stop.stopwords_removed_before_stemming.
ENGLISH_STOP_WORDS = frozenset(
    """
    a an and are as at be been being but by for from had has have he her hers him his i if in into is it its itself me
    my myself of on or our ours ourselves she so than that the their theirs them themselves then there these they this
    those to too up very was we were what when where which who whom why will with you your yours yourself yourselves
    """.split()
)

ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
UNICODE_WORD = re.compile(r"\b\w+\b")


class Tokenizer(NamedTuple):
    """`words` splits a text into lower-cased words; `stem` makes the term of a word, `stems` those of many, faster."""

    words: Callable[[str], list[str]]
    stop_words: frozenset[str]
    stem: Callable[[str], str]
    stems: Callable[[list[str]], list[str]]


def ascii_words(text: str) -> list[str]:
    return ASCII_WORD.findall(text.lower())


def unicode_words(text: str) -> list[str]:
    return UNICODE_WORD.findall(text.lower())


def whitespace_words(text: str) -> list[str]:
    return text.lower().split()


@cache
def nltk_porter() -> Callable[[str], str]:
    # NLTK takes about a second to import, and the counting kernel does without it.
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer().stem


def snowball_stems(words: list[str]) -> list[str]:
    import Stemmer

    # A PyStemmer object must not be shared between threads; making one is cheap beside a batch of words.
    return Stemmer.Stemmer("english", 0).stemWords(words)


TOKENIZERS = {
    "english_porter_stop": Tokenizer(ascii_words, ENGLISH_STOP_WORDS, lambda word: nltk_porter()(word), porter_stems),
    "stemmer:en": Tokenizer(unicode_words, frozenset(), lambda word: snowball_stems([word])[0], snowball_stems),
    "regex": Tokenizer(unicode_words, frozenset(), str, list),
    "whitespace": Tokenizer(whitespace_words, frozenset(), str, list),
}


def tokenize(text: str, tokenizer: str) -> list[str]:
    """Terms of a text in order of occurrence: the definition every faster route is held to."""
    words, stop_words, stem, _ = TOKENIZERS[tokenizer]
    return [stem(word) for word in words(text) if word not in stop_words]
