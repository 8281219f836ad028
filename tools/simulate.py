"""Synthetic upstreams of the published size, in the upstreams' formats: what runs at full scale are made on.

Every count and text length follows ``PUBLISHED``. The text is drawn: word-like strings with the frequencies of a
language, real function words at the head, and in each document a second, small distribution over the words of its
subject, which a query shares with its positives. So stop lists, stemmers, compression and BM25 all have what they have
with real text, and nothing of any real text is in it.

Blocks of rows are composed by threads (NumPy, Arrow and zlib release the lock), each with a generator of its own,
and written in order: equal seeds make equal files whatever the number of cores, and memory holds a few blocks.
"""

import argparse
import os
import random
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice, pairwise
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from NanoDAPFAM import CORPUS_FILE as FAMILIES_FILE
from NanoDAPFAM import QUERIES_FILE, RELATIONS_FILE
from Poetry50KRetrieval import CORPUS_FILE as PAGES_FILE
from Poetry50KRetrieval import QRELS_FILES
from tools.errors import InputError
from tools.files import write_whole

EXAMPLE = "python -m tools simulate /tmp/full --scale 0.1"

# What is known of the upstreams at their published size; counts shrink with the scale, text lengths do not.
PUBLISHED = {
    "poetry": {
        "scanned_pages": 847_985,  # of which `pages` are left after deduplication
        "pages": 570_930,
        "judgments": 1347,
        "judged_pages": 1326,
        "judged_pages_in_corpus": 1149,
        "labels": {"max": {-1: 124, 0: 83, 1: 353, 2: 787}, "min": {-1: 247, 0: 338, 1: 508, 2: 254}},
        "topics": (
            "ancestors buddhism dance death doubt easter education ethnicity flowers friendship funny graduation haiku "
            "inspiration jabberwocky love mothers_day photography reading relationships religion satire sorrow teacher "
            "war wedding"
        ).split(),
    },
    "dapfam": {
        "documents": 45_336,
        "queries": 1247,
        "positives_out": 5193,
        "queries_with_out_positive": 905,
        "positives_a_query": (9, 20),  # 9 is one query's, within the first 200; 24,929 in all
        "unique_texts": {"TitlAbs": 45_207, "TitlAbsClm": 45_330, "FullText": 45_331},
        "unique_query_texts": {"TitlAbs": 1246, "TitlAbsClm": 1247},
        # Characters of title, space, text: shortest, mean, longest. Queries: of the split published, the first 200.
        "chars": {
            "TitlAbs": (43, 780.8881462855126, 10_557),
            "TitlAbsClm": (200, 7180.785777307217, 221_708),
            "FullText": (875, 68285.36589024175, 3_481_279),
        },
        "query_chars": {"TitlAbs": (140, 775.985, 1998), "TitlAbsClm": (1175, 8339.47, 52_928)},
    },
}
POETRY_FILES = (PAGES_FILE, *QRELS_FILES.values())
DAPFAM_FILES = (FAMILIES_FILE, QUERIES_FILE, RELATIONS_FILE)
LEAST_SCALE, MOST_SCALE = 0.001, 4.0
BYTES_A_PAGE, BYTES_A_FAMILY = 880, 32_300  # on disk, as measured, and a tenth more


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def apportion(total: int, shape: np.ndarray, low: int, high: int | np.ndarray) -> np.ndarray:
    """Whole numbers from `low` to `high` with the sum `total`, otherwise proportional to `shape`; inf: `high`."""
    least, most = 1e-9, 1e9
    for _ in range(64):
        factor = (least * most) ** 0.5
        if np.clip(factor * shape, low, high).astype(np.int64).sum() <= total:
            least = factor
        else:
            most = factor
    numbers = np.clip(least * shape, low, high).astype(np.int64)
    while (missing := total - numbers.sum()) > 0:
        room = np.flatnonzero((numbers < high) & (shape > 0))
        numbers[room[:: max(1, len(room) // missing)][:missing]] += 1
    return numbers


def generator(seed: int, *place: int) -> np.random.Generator:
    """The random numbers of one block of one file: they do not depend on what else is drawn, or when."""
    return np.random.Generator(np.random.SFC64([seed, *place]))


POETRY_PLAN, POETRY_TEXT, DAPFAM_PLAN, CORPUS_TEXT, QUERY_TEXT = range(5)  # what is drawn, before the block's number

Chars = dict[str, np.ndarray]  # field or view -> characters of each row's text


class Written(NamedTuple):
    """A file that is done."""

    path: Path
    rows: int
    chars: Chars


# --- Words ------------------------------------------------------------------------------------------------------------

WORDS = 200_000
EXPONENT, OFFSET = 1.1, 2.7  # Zipf-Mandelbrot: the frequency of rank r is (r + offset) ** -exponent
QUANTILES = 1 << 20  # a word is drawn by one look into a table of so many; it is 4 MB, which a cache holds
FUNCTION_WORDS = (
    "the of and to in a is that for it as was with be by on not he i this are or his from at which but have an had "
    "they you were their one all we can her has there been if more when will would who so no my she its me into what "
    "up our them than then him these some could other only may said such your any also two after first where those "
    "upon each most over very must being both itself between under about through same while should how whose without "
    "before"
).split()
TOPIC_WORDS = (  # from the most to the least frequent
    "day love death war doubt reading flowers sorrow religion education dance teacher friendship wedding funny easter "
    "ancestors mothers inspiration relationships graduation satire photography ethnicity buddhism haiku jabberwocky"
).split()
TOPIC_RANKS = (150, 60_000)  # they stand at equal ratios between these
ONSETS = "b br c ch cl d dr f fl g gr h j l m n p pl pr qu r s sc sh sl sp st str t th tr v w".split()
VOWELS = "a a a e e e e i i i o o o u u ai ea ee ou oa".split()
CODAS = [*8 * [""], *"n n r r l s t m d ck nd nt st ng rm x".split()]
ALL_SYLLABLES = [onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS]
SYLLABLES = {0: 1, 700: 2, 40_000: 3}  # rank -> syllables from there on
MARKED = {  # every so many words beyond the head are written with something that tokenizers have to decide on
    61: lambda word, rank: str(rank // 61),
    97: lambda word, rank: f"{word}-{word[:3]}ing",
    401: lambda word, rank: word.replace("e", "é") if "e" in word else f"{rank // 401}°",
    499: lambda word, rank: f"{word}’s",
    701: lambda word, rank: f"“{word}”",
    907: lambda word, rank: f'"{word}"',
    997: lambda word, rank: f"{rank // 997}µm",
}
SUBJECT_WORDS = 40  # words a subject has, the first the weightiest
SUBJECT_RANKS = (300, 40_000)
# 128 places for the 40 words, so that drawing a place draws a word with a frequency of about 1 / (its rank + 3).
PLACES = np.repeat(np.arange(SUBJECT_WORDS), apportion(128, 1 / (np.arange(SUBJECT_WORDS) + 4.0), 1, 128))


@cache
def vocabulary() -> list[str]:
    """WORDS distinct strings, the most frequent first: the language, which is the same for all seeds."""
    rng = random.Random("vocabulary")
    ranks = np.geomspace(*TOPIC_RANKS, len(TOPIC_WORDS)).astype(int)
    fixed = {**dict(enumerate(FUNCTION_WORDS)), **dict(zip(ranks.tolist(), TOPIC_WORDS, strict=True))}
    taken, words, syllables = set(fixed.values()), [], 1
    for rank in range(WORDS):
        syllables = SYLLABLES.get(rank, syllables)
        word = fixed.get(rank)
        while word is None:
            word = "".join(rng.choices(ALL_SYLLABLES, k=syllables))
            for every, mark in MARKED.items():
                if rank % every == 0:
                    word = mark(word, rank)
                    break
            if word in taken:
                word = None
        taken.add(word)
        words.append(word)
    return words


@dataclass(frozen=True)
class Lexicon:
    """What words are drawn from: for each rank its spellings (`forms` of them, one after the other)."""

    spellings: pa.StringArray
    forms: int
    quantiles: np.ndarray

    @cached_property
    def mean_chars(self) -> float:
        """Characters of a word drawn from the language, with what follows it."""
        lengths = pc.utf8_length(self.spellings).to_numpy()
        return float(lengths[self.quantiles * self.forms].mean())

    def draw(
        self, rng: np.random.Generator, counts: np.ndarray, places: np.ndarray, share: np.ndarray | float
    ) -> np.ndarray:
        """Ranks of the words of texts, one text after the other.

        `counts`: words a text; `places`: (texts, 128) ranks of its subject's words; `share`: of its words that are
        drawn from its subject and not from the language.
        """
        bits = rng.integers(0, 1 << 32, counts.sum(), dtype=np.uint32)
        ranks = self.quantiles[bits >> 12]  # 20 bits for the word, 12 for where it is drawn from
        threshold = np.broadcast_to(share * 4096, counts.shape).astype(np.uint16)
        topical = np.flatnonzero((bits & 4095).astype(np.uint16) < np.repeat(threshold, counts))
        text = np.searchsorted(np.cumsum(counts), topical, side="right")
        ranks[topical] = places.reshape(-1)[text * places.shape[1] + (bits[topical] >> 12) % places.shape[1]]
        return ranks

    def spell(self, ranks: np.ndarray, forms: np.ndarray) -> tuple[memoryview, np.ndarray]:
        """UTF-8 of the words in these forms, and where each begins; one more offset at the end."""
        chosen = pc.take(self.spellings, pa.array(ranks * np.int32(self.forms) + forms), boundscheck=False)
        _, offsets, text = chosen.buffers()
        return memoryview(text), np.frombuffer(offsets, np.int32, len(ranks) + 1)


@cache
def build_lexicon(spell: Callable[[str], list[str]]) -> Lexicon:
    """The vocabulary in the forms that `spell` gives each word."""
    weights = (np.arange(WORDS) + 1 + OFFSET) ** -EXPONENT
    cumulated = np.cumsum(weights / weights.sum())
    quantiles = np.minimum(np.searchsorted(cumulated, (np.arange(QUANTILES) + 0.5) / QUANTILES), WORDS - 1)
    spellings = [form for word in vocabulary() for form in spell(word)]
    return Lexicon(pa.array(spellings), len(spellings) // WORDS, quantiles.astype(np.int32))


def any_words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Ranks of words that can say what a text is about: neither the head nor the far tail, log-uniform."""
    return np.exp(rng.uniform(*np.log(SUBJECT_RANKS), shape)).astype(np.int32)


def mix_words(rng: np.random.Generator, subject: np.ndarray, own: np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Places of texts (texts, 128): of each text's 40 words a share `closeness` is its subject's, the rest its own."""
    words = np.where(rng.random(own.shape) < closeness[:, None], subject, own)
    return rng.permuted(words, axis=1)[:, PLACES]


def word_counts(rng: np.random.Generator, count: int, mean: float, spread: float, low: int, high: int) -> np.ndarray:
    """Log-normal numbers of words."""
    return np.clip(rng.lognormal(np.log(mean) - spread**2 / 2, spread, count), low, high).astype(np.int64)


# --- Poetry -----------------------------------------------------------------------------------------------------------

PAGES_A_BLOCK = 2000  # 4 MB of JSON: enough for numpy and deflate to run at their speed
PAGES_A_BOOK = 11.4  # 50,000 books
WORDS_A_PAGE = {"mean": 246.0, "spread": 0.6, "low": 12, "high": 3000}  # 1.8 kB, and with the subjects 439 MiB of gzip
WORDS_A_LINE = (5, 10)
LINES_A_STANZA = 4
GZIP_LEVEL = 6  # gzip's own default, as the published size has it: half the time is spent here, and it is affordable
THEMES = 400  # subjects of pages that nobody asked for
THEME_CLOSENESS, TOPIC_CLOSENESS = 0.5, {2: 0.5, 1: 0.25, 0: 0.1, -1: 0.05}  # by the larger label
POETRY_SHARE = 0.3
UNJUDGED = 0.002  # share of pages on a topic that were never judged
TOPIC_REPEATS = 3  # of a subject's 40 words so many are the topic itself
LIBRARIES = ("uoft", "rich", "goog", "iala")
TAB, COMMA_TAB, LINE, COMMA_LINE, STANZA, CAPITAL, CAPITAL_COMMA, LAST = range(8)  # the forms of a word


def spell_verse(word: str) -> list[str]:
    """A word with what can follow it on a page, as JSON has it, in the order of the forms."""
    word = word.replace('"', '\\"')
    capital = word.capitalize()
    plain = [word + end for end in (r"\t", r",\t", r"\n", r",\n", r".\n\n")]
    return [*plain, rf"{capital}\t", rf"{capital},\t", f"{word}."]


class Judgment(NamedTuple):
    topic: str
    page: str
    max: int
    min: int


@dataclass(frozen=True)
class Pages:
    """All that is settled about the pages before a word is drawn. `folded` are the pages in others' `duplicates`."""

    seed: int
    books: np.ndarray  # page -> number of its book
    numbers: np.ndarray  # page -> its page number
    holders: np.ndarray  # folded page -> the page that stands for it, ascending
    subjects: np.ndarray  # (topics and themes, 40) ranks
    about: np.ndarray  # (pages, 2) the subjects of a page: both the same, or two topics
    closeness: np.ndarray  # page -> share of its words that are its subject's
    judgments: list[Judgment]


def letters(number: int) -> str:
    return "".join(chr(97 + number // 26**power % 26) for power in range(4))


def book_name(number: int) -> str:
    """A name in the Internet Archive's form: title, volume, author, library. The four author letters are the number."""
    words = vocabulary()[400 + number % 1733] + vocabulary()[300 + number % 397]
    title = "".join(filter("abcdefghijklmnopqrstuvwxyz".__contains__, words))[:16]
    return f"{title}{number % 3:02d}{letters(number)}{LIBRARIES[number % len(LIBRARIES)]}"


def folded_page(number: int, first_book: int) -> tuple[int, int]:
    """(book, page number) of a page that deduplication took out; such books come after all others."""
    return first_book + number // 11, 5 + number % 11 * 7


def pair_labels(rng: np.random.Generator, count: int) -> np.ndarray:
    """(judgments, 2): the larger and the smaller label of each judgment, their counts in the published proportion.

    Both columns are sorted before they are joined: the larger label is then nowhere the smaller one.
    """
    columns = []
    for published in PUBLISHED["poetry"]["labels"].values():
        counts = apportion(count, np.array(list(published.values()), float), 0, count)
        columns.append(np.repeat(list(published), counts))
    return rng.permutation(np.stack(columns, axis=1))


def bind_pages(rng: np.random.Generator, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Page -> its book, page -> its number there; both ascend."""
    begins = rng.random(pages) < 1 / PAGES_A_BOOK
    begins[0] = True
    books, steps = np.cumsum(begins) - 1, np.cumsum(rng.integers(1, 6, pages))
    return books, steps - steps[begins][books] + rng.integers(5, 30, books[-1] + 1)[books]


def topic_subjects(rng: np.random.Generator, topics: list[str]) -> np.ndarray:
    """(topics and themes, 40) ranks. Of a topic's words the first are the topic itself."""
    subjects = any_words(rng, len(topics) + THEMES, SUBJECT_WORDS)
    for number, topic in enumerate(topics):
        ranks = [vocabulary().index(word) for word in topic.split("_")]
        subjects[number, :TOPIC_REPEATS] = np.resize(ranks, TOPIC_REPEATS)
    return subjects


def plan_pages(seed: int, scale: float) -> Pages:
    """Where pages are bound, which are folded, judged and on what."""
    published, rng = PUBLISHED["poetry"], generator(seed, POETRY_PLAN)
    topics = published["topics"]
    pages, folded = (
        scaled(count, scale) for count in (published["pages"], published["scanned_pages"] - published["pages"])
    )
    books, numbers = bind_pages(rng, pages)
    holders = np.sort(rng.integers(0, pages, folded))

    # As many judgments as there are topics twice at least. The first are of pages in the corpus, one of each; a few of
    # these pages are judged for a second topic; the last are of folded pages.
    judged_scale = max(scale, 2 * len(topics) / published["judgments"])
    judgments = scaled(published["judgments"], judged_scale)
    lost = scaled(published["judged_pages"] - published["judged_pages_in_corpus"], judged_scale)
    twice = scaled(published["judgments"] - published["judged_pages"], judged_scale)
    once = judgments - lost - twice
    judged, lost_pages = rng.choice(pages, once, replace=False), rng.choice(folded, lost, replace=False)
    topic = rng.permutation(np.arange(once) % len(topics))
    second = (topic[:twice] + rng.integers(1, len(topics), twice)) % len(topics)
    labels = pair_labels(rng, judgments)
    about = len(topics) + rng.integers(0, THEMES, pages)
    unjudged = rng.random(pages) < UNJUDGED
    about[unjudged] = rng.integers(0, len(topics), unjudged.sum())
    about = np.stack([about, about], axis=1)
    about[judged], about[judged[:twice], 1] = topic[:, None], second
    closeness = np.full(pages, THEME_CLOSENESS)
    closeness[judged] = [TOPIC_CLOSENESS[label] for label in labels[:once, 0].tolist()]

    ids = [f"{book_name(books[page])}/{numbers[page]}" for page in np.concatenate([judged, judged[:twice]])]
    for page in lost_pages.tolist():
        book, number = folded_page(page, books[-1] + 1)
        ids.append(f"{book_name(book)}/{number}")
    every_topic = np.concatenate([topic, second, rng.permutation(np.arange(lost) % len(topics))])
    rows = zip((topics[number] for number in every_topic), ids, *labels.T.tolist(), strict=True)
    judgments = sorted(Judgment(*row) for row in rows)
    return Pages(seed, books, numbers, holders, topic_subjects(rng, topics), about, closeness, judgments)


class Block(NamedTuple):
    """Some pages as JSON lines, the same deflated, and the characters of each page's text."""

    lines: bytes
    deflated: bytes
    chars: list[int]


def compose_pages(pages: Pages, lexicon: Lexicon, block: int) -> Block:
    """The pages of one block."""
    rng = generator(pages.seed, POETRY_TEXT, block)
    rows = np.arange(block * PAGES_A_BLOCK, min((block + 1) * PAGES_A_BLOCK, len(pages.books)))
    counts = word_counts(rng, len(rows), **WORDS_A_PAGE)
    halves = (np.arange(SUBJECT_WORDS) % 2 == 0)[None, :]
    first, second = (pages.subjects[pages.about[rows, column]] for column in (0, 1))
    subject = np.where(halves, first, second)
    places = mix_words(rng, subject, any_words(rng, len(rows), SUBJECT_WORDS), pages.closeness[rows])
    ranks = lexicon.draw(rng, counts, places, POETRY_SHARE)
    text, offsets = lexicon.spell(ranks, verse_forms(rng, counts))
    begins = offsets[np.concatenate([[0], np.cumsum(counts)])].tolist()
    folded = np.searchsorted(pages.holders, [rows[0], rows[-1] + 1])
    duplicates: dict[int, list[str]] = {}
    for number in range(*folded.tolist()):
        book, page = folded_page(number, pages.books[-1] + 1)
        duplicates.setdefault(int(pages.holders[number]), []).append(f'"{book_name(book)}/{page}"')
    scores = (0.5 + 0.5 * rng.beta(4, 1.5, len(rows))).round(4).tolist()
    lines, chars = [], []
    for row, score, book, number, (begin, end) in zip(
        rows.tolist(), scores, pages.books[rows].tolist(), pages.numbers[rows].tolist(), pairwise(begins), strict=True
    ):
        body = str(text[begin:end], "utf-8")
        chars.append(len(body) - body.count("\\"))  # each escape is one character, written as two
        lines.append(
            f'{{"book": "{book_name(book)}", "page": {number}, "score": {score}, "text": "{body}", '
            f'"duplicates": [{", ".join(duplicates.get(row, ()))}]}}\n'
        )
    data = "".join(lines).encode()
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return Block(data, deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH), chars)


def verse_forms(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """The form of each word: lines of about equal length, a capital at their beginning, a stanza every four."""
    begins = np.cumsum(counts) - counts
    position = np.arange(counts.sum(), dtype=np.int32) - np.repeat(begins.astype(np.int32), counts)
    length = np.repeat(rng.integers(*WORDS_A_LINE, len(counts), dtype=np.int32), counts)
    line, place = np.divmod(position, length)
    comma = rng.integers(0, 256, len(position), dtype=np.uint8)
    forms = np.where(comma < 20, COMMA_TAB, TAB).astype(np.int32)
    forms[place == 0] += CAPITAL
    last = place == length - 1
    forms[last] = np.where(line[last] % LINES_A_STANZA == LINES_A_STANZA - 1, STANZA, LINE + (comma[last] & 1))
    forms[begins + counts - 1] = LAST
    return forms


def write_pages(path: Path, pages: Pages, lexicon: Lexicon) -> list[int]:
    """Writes the corpus as one gzip member of blocks that were deflated apart; the characters of each page."""
    chars, checksum, size = [], 0, 0
    with open(path, "wb") as file:
        file.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")  # no name and no time, so that equal pages make equal files
        blocks = range(-(-len(pages.books) // PAGES_A_BLOCK))
        for block in in_order(lambda number: compose_pages(pages, lexicon, number), blocks, PAGES_FILE):
            file.write(block.deflated)
            checksum, size = zlib.crc32(block.lines, checksum), size + len(block.lines)
            chars += block.chars
        file.write(b"\x03\0" + checksum.to_bytes(4, "little") + (size % (1 << 32)).to_bytes(4, "little"))
    return chars


def write_poetry(folder: Path, seed: int, scale: float) -> Iterator[Written]:
    """Writes the three files, the corpus first: a folder without qrels is not taken for a whole one."""
    pages = plan_pages(seed, scale)
    lexicon, chars = build_lexicon(spell_verse), []
    write_whole(folder / PAGES_FILE, lambda path: chars.extend(write_pages(path, pages, lexicon)))
    yield Written(folder / PAGES_FILE, len(pages.books), {"text": np.array(chars)})
    for grade, name in zip(("max", "min"), QRELS_FILES.values(), strict=True):
        lines = "".join(
            f"{judgment.topic} 0 {judgment.page} {getattr(judgment, grade)}\n" for judgment in pages.judgments
        )
        write_whole(folder / name, lambda path, lines=lines: path.write_text(lines, "utf-8"))
        yield Written(folder / name, len(pages.judgments), {})


# --- DAPFAM -----------------------------------------------------------------------------------------------------------

FAMILIES_A_BLOCK = 50  # 3.4 MB of text
BLOCKS_A_ROW_GROUP = 20  # 1,000 rows a group: what the datasets library, and so the Hub, writes if not asked otherwise
ROWS_A_GROUP = FAMILIES_A_BLOCK * BLOCKS_A_ROW_GROUP
CLASSES = "classifications_ipcr_list_first_three_chars_list"
SPREAD = {"TitlAbs": 0.35, "claims_text": 0.6, "description_en": 0.9}  # sigma: what their published medians imply
TITLE_CHARS = {"mean": 65.0, "spread": 0.4, "low": 15, "high": 200}
LEAST_ABSTRACT = 20  # a shorter one is none: the title takes the characters
FIELD_VIEWS = {  # field -> the shortest view that it is in
    "title_en": "TitlAbs",
    "abstract_en": "TitlAbs",
    "claims_text": "TitlAbsClm",
    "description_en": "FullText",
}
SHARES = {"title_en": 0.55, "abstract_en": 0.35, "claims_text": 0.35, "description_en": 0.35}
FIELDS = 48  # technical fields, each with an IPC class
FIELD_WORDS = 500
OWN_WORDS = 16  # of a family's 40 words so many come from anywhere, the others from its technical field
# Beta distributions of how much of a query's subject a family has: some citations share much of it, many little.
CLOSENESS = {"IN": (0.6, 5.0), "OUT": (0.4, 10.0), "not cited": (0.8, 8.0)}
NOT_CITED = 20  # NC relations a query
SAME_FAMILIES = 50  # of the duplicate texts so many are two positives of one query: the published qrels lose 8 in 200
NANO_QUERIES = 200
ENDINGS = [" ", ", ", ". ", ";\n", ".\n\n"]
SPACE = 0
ENDING_FORMS = np.repeat(np.arange(len(ENDINGS), dtype=np.int32), (226, 16, 9, 3, 2))  # of 256 words


def spell_prose(word: str) -> list[str]:
    """A word with what can follow it in a patent, in the order of ENDINGS."""
    return [word + ending for ending in ENDINGS]


def family_schema(id_name: str) -> pa.Schema:
    """The columns of corpus.parquet and queries.parquet, which differ in the name of the first."""
    return pa.schema(
        [*((name, pa.string()) for name in (id_name, *SHARES)), (CLASSES, pa.list_(pa.field("element", pa.string())))]
    )


RELATIONS_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("relevant_id", pa.string()),
        ("relevance_score", pa.float64()),
        ("domain_rel", pa.string()),
    ]
)


@dataclass(frozen=True)
class Families:
    """What is settled about the families of one file before a word is drawn."""

    seed: int
    place: int  # of their random numbers
    ids: list[str]
    chars: dict[str, np.ndarray]  # field -> characters of each family's text; 0: it has none
    copied: dict[str, np.ndarray]  # field -> family whose text stands there: itself, or another of its row group
    subjects: np.ndarray  # family -> the query whose subject it shares
    closeness: np.ndarray  # family -> how much of it
    fields: np.ndarray  # family -> its technical field


class Relation(NamedTuple):
    query: int
    document: int
    score: float
    domain: str


@dataclass(frozen=True)
class Dapfam:
    """All that is settled before a word is drawn, with the words that tell technical fields and queries apart."""

    corpus: Families
    queries: Families
    relations: list[Relation]
    field_words: np.ndarray  # (fields, 500) ranks
    query_words: np.ndarray  # (queries, 40) ranks


def length_quantiles(count: int, published_count: int, low: int, mean: float, high: int, spread: float) -> np.ndarray:
    """Ascending log-normal lengths with the mean and, where `count` is the published one, the published extremes."""
    normal = NormalDist(0, spread)
    shape = np.exp([normal.inv_cdf((number + 0.5) / published_count) for number in range(published_count)])
    shape[0], shape[-1] = 0, np.inf
    lengths = np.sort(apportion(round(mean * published_count), shape, low, high))
    return lengths[((np.arange(count) + 0.5) * published_count / count).astype(int)]


def field_bounds(chars: dict[str, tuple[int, float, int]]) -> list[np.ndarray]:
    """(shortest, mean, longest) of title and abstract together, of claims and of description, from the views'."""
    views = [np.array(bounds) for bounds in chars.values()]
    return [views[0], *(longer - shorter - 1 for shorter, longer in pairwise(views))]


def plan_lengths(rng: np.random.Generator, count: int, published_count: int, bounds: list[np.ndarray]) -> Chars:
    """Field -> characters. The shortest and the longest family are so in every field, so views are as published."""
    order = rng.permutation(count)
    lengths = {}
    for (name, spread), (low, mean, high) in zip(SPREAD.items(), bounds, strict=True):
        quantiles = length_quantiles(count, published_count, round(low), mean, round(high), spread)
        quantiles[1:-1] = rng.permutation(quantiles[1:-1])
        lengths[name] = quantiles[order]
    both = lengths.pop("TitlAbs")
    title = np.minimum(word_counts(rng, count, **TITLE_CHARS), both)
    title = np.where(both - title - 1 < LEAST_ABSTRACT, both, title)
    return {"title_en": title, "abstract_en": np.maximum(both - title - 1, 0), **lengths}


def lens_ids(rng: np.random.Generator, count: int) -> list[str]:
    """Distinct ids in the form of The Lens: five groups of three digits, of which the last may be X."""
    ids: dict[str, None] = {}
    while len(ids) < count:
        digits = f"{rng.integers(10**14):014d}{'0123456789X'[rng.integers(11)]}"
        ids["-".join(digits[start : start + 3] for start in range(0, 15, 3))] = None
    return list(ids)


def class_code(field: int) -> str:
    return f"{'ABCDEFGH'[field % 8]}{1 + field // 8 * 7:02d}"


def plan_citations(rng: np.random.Generator, queries: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """How many positives each query has, and how many of them are OUT."""
    published = PUBLISHED["dapfam"]
    fewest, most = published["positives_a_query"]
    cited = np.full(queries, most)
    cited[rng.integers(min(queries, NANO_QUERIES))] = fewest
    asked = rng.permutation(queries)[: scaled(published["queries_with_out_positive"], scale)]
    total = max(len(asked), min(scaled(published["positives_out"], scale), cited.sum() - 1))
    out = np.zeros(queries, np.int64)
    out[asked] = apportion(total, rng.exponential(size=len(asked)), 1, cited[asked])
    return cited, out


def pairs_alike(keys: Iterable[tuple[int, tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    """Disjoint pairs of documents that have the same key."""
    waiting: dict[tuple[int, int], int] = {}
    for document, key in keys:
        if key in waiting:
            yield waiting.pop(key), document
        else:
            waiting[key] = document


def plan_copies(rng: np.random.Generator, scale: float, owner: np.ndarray, free: np.ndarray) -> dict[str, np.ndarray]:
    """Field -> the document whose text each document has there: with few exceptions its own.

    `owner`: the query that cites a document, or -1; `free`: the documents that may copy or be copied. A copy lies in
    the row group of its original. Some copies are positives of their original's query, with claims of their own; of
    the others, which nobody cites, some copy claims and description too.
    """
    published, count = PUBLISHED["dapfam"], len(owner)
    copies = {
        view: scaled(published["documents"] - unique, scale) for view, unique in published["unique_texts"].items()
    }
    cited = max(0, min(scaled(SAME_FAMILIES, scale), copies["TitlAbs"] - copies["TitlAbsClm"]))
    groups = np.arange(count) // ROWS_A_GROUP
    pairs: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for pair in pairs_alike((document, (owner[document], groups[document])) for document in rng.permutation(free)):
        pairs[bool(owner[pair[0]] >= 0)].append(pair)
    chosen = pairs[False][: copies["TitlAbs"] - cited] + pairs[True][:cited]
    copied = {}
    for name, view in FIELD_VIEWS.items():
        copied[name] = np.arange(count)
        for original, copy in chosen[: copies[view]]:
            copied[name][copy] = original
    return copied


def plan_dapfam(seed: int, scale: float) -> Dapfam:
    """Who cites whom and in which domain, what each family is about, how long it is, and what is filed twice."""
    published, rng = PUBLISHED["dapfam"], generator(seed, DAPFAM_PLAN)
    documents, queries = scaled(published["documents"], scale), scaled(published["queries"], scale)
    cited, out = plan_citations(rng, queries, scale)
    citing = np.repeat(np.arange(queries), cited)  # relation -> query; then its document, no other query's
    cited_documents = rng.permutation(documents)[: len(citing)]
    nth = np.arange(len(citing)) - np.repeat(np.cumsum(cited) - cited, cited)
    is_out = nth < out[citing]
    owner = np.full(documents, -1)
    owner[cited_documents] = citing

    subject = np.where(owner < 0, rng.integers(0, queries, documents), owner)
    query_fields = rng.integers(0, FIELDS, queries)
    fields, closeness = query_fields[subject], rng.beta(*CLOSENESS["not cited"], documents)
    closeness[cited_documents] = rng.beta(*CLOSENESS["IN"], len(citing))
    outside = cited_documents[is_out]
    closeness[outside] = rng.beta(*CLOSENESS["OUT"], len(outside))
    fields[outside] = (fields[outside] + rng.integers(1, FIELDS, len(outside))) % FIELDS

    relations = relate(rng, owner, cited_documents, citing, is_out)
    ids = lens_ids(rng, documents + queries)
    chars = plan_lengths(rng, documents, published["documents"], field_bounds(published["chars"]))
    copied = plan_copies(rng, scale, owner, np.setdiff1d(np.arange(documents), extremes(chars)))
    corpus = Families(seed, CORPUS_TEXT, ids[:documents], chars, copied, subject, closeness, fields)
    asked = plan_queries(rng, seed, ids[documents:], query_fields)
    field_words = any_words(rng, FIELDS, FIELD_WORDS)
    return Dapfam(corpus, asked, relations, field_words, own_words(rng, field_words, query_fields))


def plan_queries(rng: np.random.Generator, seed: int, ids: list[str], fields: np.ndarray) -> Families:
    """The query families; one of the first has another's title and abstract, with claims of its own."""
    published, itself = PUBLISHED["dapfam"], np.arange(len(ids))
    bounds = [*field_bounds(published["query_chars"]), field_bounds(published["chars"])[-1]]
    chars = plan_lengths(rng, len(ids), published["queries"], bounds)
    copied = {name: itself.copy() for name in FIELD_VIEWS}
    free = np.setdiff1d(itself[:NANO_QUERIES], extremes(chars))
    if len(free) > 1:
        original, copy = rng.choice(free, 2, replace=False)
        copied["title_en"][copy] = copied["abstract_en"][copy] = original
    return Families(seed, QUERY_TEXT, ids, chars, copied, itself, np.ones(len(ids)), fields)


def extremes(chars: Chars) -> list[int]:
    """The shortest and the longest family, which neither copy nor are copied."""
    return [int(np.argmin(chars["claims_text"])), int(np.argmax(chars["claims_text"]))]


def relate(
    rng: np.random.Generator, owner: np.ndarray, cited: np.ndarray, citing: np.ndarray, is_out: np.ndarray
) -> list[Relation]:
    """Relations by query: its positives in any order, then as many families as NOT_CITED that it does not cite."""
    relations = []
    for query in range(citing[-1] + 1):
        positives = rng.permutation(np.flatnonzero(citing == query))
        relations += [Relation(query, cited[row], 1.0, "OUT" if is_out[row] else "IN") for row in positives]
        others = rng.permutation(len(owner))
        others = others[owner[others] != query][:NOT_CITED]
        relations += [Relation(query, document, 0.0, "NC") for document in others]
    return relations


def own_words(rng: np.random.Generator, field_words: np.ndarray, fields: np.ndarray) -> np.ndarray:
    """(families, 40) ranks: words of each family's technical field, and some from anywhere."""
    words = field_words[fields[:, None], rng.integers(0, FIELD_WORDS, (len(fields), SUBJECT_WORDS))]
    words[:, :OWN_WORDS] = any_words(rng, len(fields), OWN_WORDS)
    return words


def compose_families(families: Families, dapfam: Dapfam, lexicon: Lexicon, block: int) -> dict[str, pa.Array]:
    """The columns of one block's families, before copies; ids are not among them."""
    rng = generator(families.seed, families.place, block)
    rows = np.arange(block * FAMILIES_A_BLOCK, min((block + 1) * FAMILIES_A_BLOCK, len(families.ids)))
    own = own_words(rng, dapfam.field_words, families.fields[rows])
    places = mix_words(rng, dapfam.query_words[families.subjects[rows]], own, families.closeness[rows])
    chars = np.concatenate([families.chars[name][rows] for name in SHARES])  # all titles, then all abstracts, ...
    counts = (chars / lexicon.mean_chars * 1.02).astype(np.int64) + 8  # a little more than needed: each is cut
    share = np.repeat(list(SHARES.values()), len(rows))
    ranks = lexicon.draw(rng, counts, np.tile(places, (len(SHARES), 1)), share)
    forms = ENDING_FORMS[rng.integers(0, 256, len(ranks), dtype=np.uint8)]
    forms[: counts[: len(rows)].sum()] = SPACE
    text, offsets = lexicon.spell(ranks, forms)
    begins = offsets[np.concatenate([[0], np.cumsum(counts)])].tolist()
    texts = [
        cut(str(text[begin:end], "utf-8"), length, "s" if number < len(rows) else ".")
        for number, (length, (begin, end)) in enumerate(zip(chars.tolist(), pairwise(begins), strict=True))
    ]
    return {
        name: pa.array(texts[number * len(rows) : (number + 1) * len(rows)], pa.string())
        for number, name in enumerate(SHARES)
    }


def cut(text: str, length: int, end: str) -> str | None:
    """`text` at exactly that length, with that end; none if there is nothing to be."""
    while len(text) < length:
        text += text
    return text[: length - 1] + end if length else None


def row_group(families: Families, schema: pa.Schema, start: int, blocks: list[dict[str, pa.Array]]) -> pa.Table:
    """The families from `start` on that the blocks hold, with copied texts in their places."""
    columns = {}
    for name in SHARES:
        columns[name] = pa.concat_arrays([block.pop(name) for block in blocks])
        sources = families.copied[name][start : start + len(columns[name])] - start
        if (sources != np.arange(len(sources))).any():
            columns[name] = columns[name].take(pa.array(sources))
    rows = slice(start, start + len(columns["title_en"]))
    columns[schema.names[0]] = pa.array(families.ids[rows])
    columns[CLASSES] = pa.array([[class_code(field)] for field in families.fields[rows]], schema.field(CLASSES).type)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def write_families(path: Path, id_name: str, families: Families, dapfam: Dapfam, lexicon: Lexicon) -> Chars:
    """Writes corpus.parquet or queries.parquet, a row group at a time; the characters of each field and view."""
    schema = family_schema(id_name)
    blocks = range(-(-len(families.ids) // FAMILIES_A_BLOCK))
    composed = in_order(lambda block: compose_families(families, dapfam, lexicon, block), blocks, f"{id_name} texts")
    chars: dict[str, list[np.ndarray]] = {name: [] for name in SHARES}
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, len(families.ids), ROWS_A_GROUP):
            group = row_group(families, schema, start, list(islice(composed, BLOCKS_A_ROW_GROUP)))
            for name, lengths in chars.items():
                lengths.append(pc.fill_null(pc.utf8_length(group[name]), 0).to_numpy())
            writer.write_table(group, row_group_size=ROWS_A_GROUP)
    return with_views({name: np.concatenate(lengths) for name, lengths in chars.items()})


def with_views(chars: Chars) -> Chars:
    """The characters of the fields, and of the texts that the builder makes of them."""
    total, views = chars["title_en"], {}
    for name, view in FIELD_VIEWS.items():
        if name != "title_en":
            total = total + np.where(chars[name] > 0, chars[name] + 1, 0)
            views[view] = total
    return {**chars, **views}


def write_dapfam(folder: Path, seed: int, scale: float) -> Iterator[Written]:
    """Writes the three files, the corpus first: a folder without relations is not taken for a whole one."""
    dapfam, lexicon = plan_dapfam(seed, scale), build_lexicon(spell_prose)
    for name, id_name, families in (
        (FAMILIES_FILE, "relevant_id", dapfam.corpus),
        (QUERIES_FILE, "query_id", dapfam.queries),
    ):
        chars: Chars = {}

        def write(path: Path, id_name=id_name, families=families, chars=chars) -> None:
            chars.update(write_families(path, id_name, families, dapfam, lexicon))

        write_whole(folder / name, write)
        yield Written(folder / name, len(families.ids), chars)
    rows = [
        (dapfam.queries.ids[relation.query], dapfam.corpus.ids[relation.document], relation.score, relation.domain)
        for relation in dapfam.relations
    ]
    relations = pa.table(list(zip(*rows, strict=True)), schema=RELATIONS_SCHEMA)
    write_whole(folder / RELATIONS_FILE, lambda path: pq.write_table(relations, path, compression="zstd"))
    yield Written(folder / RELATIONS_FILE, len(rows), {})


# --- Files ------------------------------------------------------------------------------------------------------------

Composed = TypeVar("Composed")
MOST_THREADS = 4  # memory grows with them: 0.8 GB with two, 0.9 GB with four


def in_order(compose: Callable[[int], Composed], blocks: range, name: str) -> Iterator[Composed]:
    """`compose` of every block, in order; threads are ahead of the reader by a few blocks and no more."""
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    progress = tqdm(total=len(blocks), desc=name, unit="block", disable=None)
    with ThreadPoolExecutor(threads) as pool, progress:
        waiting: deque[Future[Composed]] = deque()
        for block in blocks:
            waiting.append(pool.submit(compose, block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
                progress.update()
        while waiting:
            yield waiting.popleft().result()
            progress.update()


def check_space(directory: Path, scale: float, replaced: int) -> None:
    """InputError unless the disk has room for the files; `replaced` bytes will be free by then."""
    needed = scale * (PUBLISHED["poetry"]["pages"] * BYTES_A_PAGE + PUBLISHED["dapfam"]["documents"] * BYTES_A_FAMILY)
    existing = next(folder for folder in (directory, *directory.parents) if folder.exists())
    free = shutil.disk_usage(existing).free + replaced
    if free < needed:
        raise InputError(
            f"{directory}: {needed / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free; name a folder on another disk, or "
            f"take a smaller --scale (up to {scale * free / needed:.2g})"
        )


def simulate(directory: str | os.PathLike, scale: float = 1.0, seed: int = 0) -> Iterator[Written]:
    """Writes ``directory/poetry`` and ``directory/dapfam`` and yields each file as it is done.

    Files of an earlier run are taken away first, so that an interrupted run never leaves a mixture. Raises InputError
    for a scale out of range, a negative seed or too little disk.
    """
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise InputError(f"--scale {scale:g}: not between {LEAST_SCALE:g} and {MOST_SCALE:g}")
    if seed < 0:
        raise InputError(f"--seed {seed}: is negative; name a whole number from 0")
    directory = Path(directory).absolute()
    folders = {directory / "poetry": POETRY_FILES, directory / "dapfam": DAPFAM_FILES}
    old = [folder / name for folder, names in folders.items() for name in names if (folder / name).is_file()]
    check_space(directory, scale, sum(path.stat().st_size for path in old))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for path in old:
        path.unlink()
    yield from write_poetry(directory / "poetry", seed, scale)
    yield from write_dapfam(directory / "dapfam", seed, scale)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="folder for poetry/ and dapfam/; files there are replaced")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="share of the published size; default: 1")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another text; default: 0")


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and prints a line for each, and one for each of its fields: characters a text."""
    row = "{:<32} {:>8} {:>14}  {:<14} {:>7} {:>10} {:>9}"
    for number, written in enumerate(simulate(arguments.directory, arguments.scale, arguments.seed)):
        if number == 0:
            print(row.format("file", "rows", "bytes", "characters of", "min", "mean", "max"))
        name = f"{written.path.parent.name}/{written.path.name}"
        lines = [(field, chars.min(), f"{chars.mean():.1f}", chars.max()) for field, chars in written.chars.items()]
        first, *others = lines or [("", "", "", "")]
        print(row.format(name, written.rows, written.path.stat().st_size, *first).rstrip())
        for line in others:
            print(row.format("", "", "", *line))
    return 0
