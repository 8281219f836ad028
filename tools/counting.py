"""Count query terms in a corpus.

The queries are known before the corpus is read, so only their terms are counted, along with each document's length.
A batch of documents goes through two loops: `_intern_tokens` scans the UTF-8 bytes once and replaces every token by
the number of its surface form, and `_tally` turns those numbers into term counts. Between the two, surface forms that
had not been met before are tokenized and stemmed, once each.

Why this is the same as `tokenizers.tokenize`: a character whose own tokens are none (`words(c) == []`) separates, for
every tokenizer in the table, so the tokens of a text are those of the runs between such characters. A run is a surface
form, and what it counts as is decided by the tokenizer itself, whether it holds one token (nearly always), none, or
several ('aİb' is 'ai', 'b'); an ASCII form is one to all of them, itself. Bytes outside the Basic Multilingual Plane
never separate in the scan and so are left to the tokenizer too. `str.lower` depends on a character's neighbours in one
case only, the final sigma, and there it looks past separators; text with a capital sigma is lower-cased whole
beforehand, which changes nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from scipy.sparse import csr_matrix

from tools.errors import InputError
from tools.tokenizers import TOKENIZERS, Tokenizer

CHUNK_BYTES = 1 << 22  # text scanned at a time
# What a table of surface forms may hold before it is started afresh; meeting a form again costs a few microseconds.
FORMS_KEPT = 1 << 20
FORM_BYTES_KEPT = 1 << 26
FIRST_SLOTS = 1 << 15

SEPARATOR, MULTIBYTE = -1, -2
CAPITAL_SIGMA = "Σ"
# Fowler-Noll-Vo's constants, but eight letters at a time, and slots taken from the upper, well mixed half.
HASH_OFFSET, HASH_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)
HALF, BYTE = np.uint64(32), np.uint64(8)

TextArray = pa.StringArray | pa.LargeStringArray
Partition = Callable[[], Iterable[TextArray]]


class Counts(NamedTuple):
    """Term counts of n documents in CSR form, terms ascending within a document."""

    lengths: np.ndarray  # int32[n], tokens of each document, known or not, stop words excluded
    indptr: np.ndarray  # int64[n + 1]
    terms: np.ndarray  # int32[nnz], positions in the vocabulary
    counts: np.ndarray  # int32[nnz]


@dataclass
class FormTable:
    """Surface forms met so far, in an open-addressing table, and the terms each one counts as.

    Form f is `letters[starts[f]:starts[f + 1]]`; it adds `lengths[f]` tokens and the terms
    `terms[term_starts[f]:term_starts[f + 1]]`. A slot holds a form's number, or -1, and that form's hash.
    """

    tokenizer: Tokenizer
    term_ids: dict[str, int]
    n_forms: int
    slots: np.ndarray
    hashes: np.ndarray
    letters: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    term_starts: np.ndarray
    terms: np.ndarray


def empty_form_table(tokenizer: Tokenizer, term_ids: dict[str, int]) -> FormTable:
    capacity = FIRST_SLOTS // 2
    return FormTable(
        tokenizer,
        term_ids,
        n_forms=0,
        slots=np.full(FIRST_SLOTS, -1, np.int32),
        hashes=np.zeros(FIRST_SLOTS, np.uint64),
        letters=np.empty(2 * CHUNK_BYTES, np.uint8),
        starts=np.zeros(capacity + 1, np.int64),
        lengths=np.zeros(capacity, np.int32),
        term_starts=np.zeros(capacity + 1, np.int64),
        terms=np.empty(capacity, np.int32),
    )


@cache
def character_classes(words: Callable[[str], list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """What the scan needs to know of a tokenizer: int16[256] by byte, bool[65536] by code point.

    By byte: the lower-case ASCII byte, SEPARATOR, or MULTIBYTE where two or three bytes make a code point to look up.
    Every other byte above 127 stands for itself, part of a surface form. By code point: whether it separates.
    """
    separates = np.array([not 0xD800 <= c <= 0xDFFF and not words(chr(c)) for c in range(0x10000)])
    by_byte = np.arange(256, dtype=np.int16)
    by_byte[:128] = [SEPARATOR if separates[c] else ord(chr(c).lower()) for c in range(128)]
    by_byte[0xC2:0xF0] = MULTIBYTE
    return by_byte, separates


@njit(nogil=True, cache=True)
def _letter(byte, by_byte):
    return byte if by_byte[byte] < 0 else np.uint8(by_byte[byte])


@njit(nogil=True, cache=True)
def _separator_width(text, i, end, separates):
    """Bytes of the separator that starts at the MULTIBYTE byte `text[i]`, or 0 if that is no separator."""
    if text[i] < 0xE0:
        # Cut short is not UTF-8; that is left to the tokenizer to refuse.
        return 2 if i + 1 < end and separates[(text[i] & 0x1F) << 6 | (text[i + 1] & 0x3F)] else 0
    if i + 2 >= end:
        return 0
    return 3 if separates[(text[i] & 0x0F) << 12 | (text[i + 1] & 0x3F) << 6 | (text[i + 2] & 0x3F)] else 0


@njit(nogil=True, cache=True)
def _intern_tokens(text, offsets, by_byte, separates, slots, hashes, letters, starts, position, tokens, token_ends):
    """Write the surface form number of every token of the documents `text[offsets[d]:offsets[d + 1]]`.

    `position` is (document, byte, tokens written, forms known), to start from and, on return, reached: the scan
    returns before the last document's end when half of `slots` is taken, and goes on from there once they are more.
    """
    document, i, n_tokens, n_forms = position
    mask = len(slots) - 1
    tail = starts[n_forms]
    while document < len(offsets) - 1:
        end = offsets[document + 1]
        while i < end:
            code = by_byte[text[i]]
            if code == SEPARATOR:
                i += 1
                continue
            if code == MULTIBYTE:
                width = _separator_width(text, i, end, separates)
                if width > 0:
                    i += width
                    continue
            # A token starts here. Its last eight letters are in `eight`; every eighth letter mixes them into `digest`.
            first = i
            eight = np.uint64(0)
            digest = HASH_OFFSET
            while True:
                if code == MULTIBYTE:
                    code = np.int16(text[i])
                eight = eight << BYTE | np.uint64(code)
                i += 1
                if (i - first) & 7 == 0:
                    digest = (digest ^ eight) * HASH_PRIME
                if i == end:
                    break
                code = by_byte[text[i]]
                if code == SEPARATOR or (code == MULTIBYTE and _separator_width(text, i, end, separates) > 0):
                    break
            digest = (digest ^ eight) * HASH_PRIME
            size = i - first
            slot = np.int64(digest >> HALF) & mask
            form = slots[slot]
            while form >= 0:
                start = starts[form]
                if hashes[slot] == digest and starts[form + 1] - start == size:
                    if size < 8:  # the hash of up to seven letters is one to one
                        break
                    k = 0
                    while k < size and letters[start + k] == _letter(text[first + k], by_byte):
                        k += 1
                    if k == size:
                        break
                slot = (slot + 1) & mask
                form = slots[slot]
            if form < 0:
                if 2 * n_forms >= len(slots):
                    position[0], position[1], position[2], position[3] = document, first, n_tokens, n_forms
                    return
                for k in range(size):
                    letters[tail + k] = _letter(text[first + k], by_byte)
                form = n_forms
                slots[slot] = form
                hashes[slot] = digest
                n_forms += 1
                tail += size
                starts[n_forms] = tail
            tokens[n_tokens] = form
            n_tokens += 1
        token_ends[document] = n_tokens
        document += 1
        i = end
    position[0], position[1], position[2], position[3] = document, i, n_tokens, n_forms


@njit(nogil=True, cache=True)
def _reinsert(slots, hashes, more_slots, more_hashes):
    mask = len(more_slots) - 1
    for old in range(len(slots)):
        if slots[old] >= 0:
            slot = np.int64(hashes[old] >> HALF) & mask
            while more_slots[slot] >= 0:
                slot = (slot + 1) & mask
            more_slots[slot] = slots[old]
            more_hashes[slot] = hashes[old]


@njit(nogil=True, cache=True)
def _tally(tokens, token_ends, form_lengths, term_starts, form_terms, latest, lengths, indptr, terms, counts):
    """Count the terms of each document, in order of first occurrence; `latest` is scratch, -1 for every term."""
    n = 0
    t = 0
    for document in range(len(token_ends)):
        first = n
        length = 0
        while t < token_ends[document]:
            form = tokens[t]
            length += form_lengths[form]
            for j in range(term_starts[form], term_starts[form + 1]):
                term = form_terms[j]
                if latest[term] < first:
                    latest[term] = n
                    terms[n] = term
                    counts[n] = 1
                    n += 1
                else:
                    counts[latest[term]] += 1
            t += 1
        lengths[document] = length
        indptr[document + 1] = n


def _extended(array: np.ndarray, size: int) -> np.ndarray:
    extended = np.empty(size, array.dtype)
    extended[: len(array)] = array
    return extended


def _double(table: FormTable) -> None:
    slots = np.full(2 * len(table.slots), -1, np.int32)
    hashes = np.zeros(len(slots), np.uint64)
    _reinsert(table.slots, table.hashes, slots, hashes)
    table.slots, table.hashes = slots, hashes
    capacity = len(slots) // 2
    table.starts = _extended(table.starts, capacity + 1)
    table.lengths = _extended(table.lengths, capacity)
    table.term_starts = _extended(table.term_starts, capacity + 1)


def _resolve(table: FormTable, n_forms: int) -> None:
    """Tokenize the forms from `table.n_forms` up to `n_forms` and write down what they count as."""
    first = table.n_forms
    if n_forms == first:
        return
    starts = (table.starts[first : n_forms + 1] - table.starts[first]).tolist()
    letters = table.letters[table.starts[first] : table.starts[n_forms]].tobytes()
    stop_words = table.tokenizer.stop_words
    if letters.isascii():  # one word each, to every tokenizer: the scan has lower-cased it and ended it at separators
        text = letters.decode()
        forms = [text[start:end] for start, end in pairwise(starts)]
        is_term = [form not in stop_words for form in forms]
        lengths, words = np.array(is_term, np.int32), list(compress(forms, is_term))
    else:
        words_of_forms = [
            [word for word in table.tokenizer.words(letters[start:end].decode()) if word not in stop_words]
            for start, end in pairwise(starts)
        ]
        lengths = np.array([len(words) for words in words_of_forms], np.int32)
        words = list(chain.from_iterable(words_of_forms))
    stems = table.tokenizer.stems(words)
    ids = np.array([table.term_ids.get(stem, -1) for stem in stems], np.int32)
    n_terms = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[ids >= 0], minlength=len(lengths))
    known = table.term_starts[first]
    table.term_starts[first + 1 : n_forms + 1] = known + np.cumsum(n_terms)
    if table.term_starts[n_forms] > len(table.terms):
        table.terms = _extended(table.terms, int(2 * table.term_starts[n_forms]))
    table.terms[known : table.term_starts[n_forms]] = ids[ids >= 0]
    table.lengths[first:n_forms] = lengths
    table.n_forms = n_forms


def _buffers(texts: TextArray) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 bytes and int64 offsets of a text array, not copied where they need not be."""
    _, offsets, values = texts.buffers()
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if offsets is None or len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets, width, len(texts) + 1, texts.offset * np.dtype(width).itemsize).astype(np.int64)
    text = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    text.flags.writeable = False  # one type for the compiled loops, whoever owns the buffer
    return text, offsets


def _chunks(texts: TextArray) -> Iterator[TextArray]:
    """Slices of about CHUNK_BYTES, at least one document each."""
    _, offsets = _buffers(texts)
    first = 0
    while first < len(texts):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, side="right")) - 1)
        yield texts.slice(first, last - first)
        first = last


def _count_chunk(texts: TextArray, table: FormTable) -> Counts:
    by_byte, separates = character_classes(table.tokenizer.words)
    text, offsets = _buffers(texts)
    if not separates[ord(CAPITAL_SIGMA)]:
        lead, trail = CAPITAL_SIGMA.encode()
        scanned = text[offsets[0] : offsets[-1]]
        at = np.flatnonzero(scanned[:-1] == lead)
        if (scanned[at + 1] == trail).any():
            text, offsets = _buffers(pa.array([t.lower() for t in texts.to_pylist()], pa.large_string()))

    n = len(texts)
    n_bytes = int(offsets[-1] - offsets[0])
    tokens = np.empty(n_bytes // 2 + n, np.int32)
    token_ends = np.empty(n, np.int64)
    used = int(table.starts[table.n_forms])
    if used + n_bytes > len(table.letters):
        table.letters = _extended(table.letters, 2 * (used + n_bytes))
    position = np.array([0, offsets[0], 0, table.n_forms])
    while True:
        _intern_tokens(
            text, offsets, by_byte, separates, table.slots, table.hashes, table.letters, table.starts,
            position, tokens, token_ends,
        )  # fmt: skip
        if position[0] == n:
            break
        _double(table)
    _resolve(table, int(position[3]))

    tokens = tokens[: position[2]]
    most = int((table.term_starts[1:] - table.term_starts[:-1])[tokens].sum())
    lengths, indptr = np.empty(n, np.int32), np.zeros(n + 1, np.int64)
    terms, counts = np.empty(most, np.int32), np.empty(most, np.int32)
    latest = np.full(len(table.term_ids), -1, np.int64)
    _tally(tokens, token_ends, table.lengths, table.term_starts, table.terms, latest, lengths, indptr, terms, counts)
    # To columns and back sorts every row, in linear time.
    rows = csr_matrix((counts[: indptr[-1]], terms[: indptr[-1]], indptr), (n, len(table.term_ids))).tocsc().tocsr()
    return Counts(lengths, rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)


def _concatenate(counted: Sequence[Counts]) -> Counts:
    if not counted:
        return Counts(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    ends = np.cumsum([counts.indptr[-1] for counts in counted])
    indptr = [counts.indptr[1:] + end - counts.indptr[-1] for counts, end in zip(counted, ends, strict=True)]
    return Counts(
        np.concatenate([counts.lengths for counts in counted]),
        np.concatenate([np.zeros(1, np.int64), *indptr]),
        np.concatenate([counts.terms for counts in counted]),
        np.concatenate([counts.counts for counts in counted]),
    )


def count_texts(arrays: Iterable[TextArray], table: FormTable) -> Counts:
    """Count the terms of `table` in text arrays of any size; a null counts as an empty document."""
    counted = []
    for texts in arrays:
        if texts.type not in (pa.string(), pa.large_string()):
            texts = texts.cast(pa.large_string())
        if texts.null_count:
            texts = texts.fill_null("")
        for chunk in _chunks(texts):
            counted.append(_count_chunk(chunk, table))
            if table.n_forms > FORMS_KEPT or table.starts[table.n_forms] > FORM_BYTES_KEPT:
                vars(table).update(vars(empty_form_table(table.tokenizer, table.term_ids)))
    return _concatenate(counted)


def count_queries(queries: Sequence[str], tokenizer: str) -> tuple[list[str], Counts]:
    """Vocabulary of the queries, sorted, and how often each query holds each of its terms."""
    words, stop_words, _, stems = TOKENIZERS[tokenizer]
    vocabulary = sorted(set(stems(list({word for query in queries for word in words(query)} - stop_words))))
    return vocabulary, count_corpus([lambda: [pa.array(queries, pa.large_string())]], vocabulary, tokenizer)


_kept = threading.local()


def _count_partition(partition: Partition, vocabulary: Sequence[str], tokenizer: str) -> Counts:
    """Count one partition, with the form table the same run left in this thread, if it did."""
    run = (tokenizer, tuple(vocabulary))
    if getattr(_kept, "run", None) != run:
        term_ids = {term: i for i, term in enumerate(vocabulary)}
        _kept.run, _kept.table = None, empty_form_table(TOKENIZERS[tokenizer], term_ids)
    table, _kept.run = _kept.table, None  # a partition that fails leaves no half-written table behind
    counts = count_texts(partition(), table)
    _kept.run, _kept.table = run, table
    return counts


def count_corpus(
    partitions: Iterable[Partition],
    vocabulary: Sequence[str],
    tokenizer: str,
    executor: Executor | None = None,
    in_flight: int | None = None,
) -> Counts:
    """Count the vocabulary's terms in a corpus, document order kept.

    A partition is a picklable callable without arguments that returns the text arrays of a stretch of the corpus. With
    an executor (processes, threads, or a Dask client's `get_executor()`), at most `in_flight` partitions (default 4)
    are submitted and not yet gathered, and `partitions` is read no further ahead than that; twice the number of workers
    keeps them busy. The result does not depend on how, or by how many workers, it was counted. Raises InputError if a
    worker process dies.
    """
    if executor is None:
        return _concatenate([_count_partition(partition, vocabulary, tokenizer) for partition in partitions])
    counted: list[Counts] = []
    pending: deque = deque()
    try:
        for partition in partitions:
            if len(pending) == (in_flight or 4):
                counted.append(pending.popleft().result())
            pending.append(executor.submit(_count_partition, partition, vocabulary, tokenizer))
        while pending:
            counted.append(pending.popleft().result())
    except BrokenExecutor as error:
        raise InputError(
            f"a worker died while counting partition {len(counted)}; if memory ran out, use fewer workers"
        ) from error
    finally:
        for future in pending:
            future.cancel()
    return _concatenate(counted)
