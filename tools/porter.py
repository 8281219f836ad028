"""Porter's stemmer for a batch of words, exactly as NLTK's `PorterStemmer()` stems them.

M. Porter, "An algorithm for suffix stripping", Program 14.3 (1980), 130-137, in the default mode of `nltk.stem.porter`
(irregular forms; four-letter -ies and -ied; y -> i after a consonant only; -alli before the other rules of step 2;
-bli, -fulli and -logi; *o for words of two letters). NLTK needs 20 to 30 microseconds a word, which would be most of
the time of a corpus with many distinct words; this needs one. Tests hold the two equal.
"""

from __future__ import annotations

import numpy as np
from numba import njit

IRREGULAR = {
    "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "innings": "inning", "outings": "outing",
    "cannings": "canning",
} | {word: word for word in "sky news inning outing canning howe proceed exceed succeed".split()}  # fmt: skip

# What must hold of the rest of the word for a rule to apply; m is Porter's measure.
ALWAYS, M_POSITIVE, M_ABOVE_1, M_ABOVE_1_AFTER_S_OR_T, M_POSITIVE_WITH_L = range(5)

# Suffix and replacement, per step. The first suffix that matches decides, whether or not its condition holds.
STEP_1A = [(rule, ALWAYS) for rule in "sses:ss ies:i ss:ss s:".split()]
STEP_2 = [
    (rule, M_POSITIVE)
    for rule in """ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous
    ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble
    fulli:ful""".split()
] + [("logi:log", M_POSITIVE_WITH_L)]
STEP_3 = [(rule, M_POSITIVE) for rule in "icate:ic ative: alize:al iciti:ic ical:ic ful: ness:".split()]
STEP_4 = [
    (rule, M_ABOVE_1_AFTER_S_OR_T if rule == "ion:" else M_ABOVE_1)
    for rule in """al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive:
    ize:""".split()
]

RULES = [(*rule.split(":"), condition) for rule, condition in STEP_1A + STEP_2 + STEP_3 + STEP_4]
STEP_ENDS = np.cumsum([0, len(STEP_1A), len(STEP_2), len(STEP_3), len(STEP_4)])
SUFFIXES = np.array([list(suffix.encode().ljust(8, b"\0")) for suffix, _, _ in RULES], np.uint8)
SUFFIX_SIZES = np.array([len(suffix) for suffix, _, _ in RULES])
REPLACEMENTS = np.array([list(replacement.encode().ljust(8, b"\0")) for _, replacement, _ in RULES], np.uint8)
REPLACEMENT_SIZES = np.array([len(replacement) for _, replacement, _ in RULES])
CONDITIONS = np.array([condition for _, _, condition in RULES])

A, B, D, E, G, I, L, N, S, T, W, X, Y, Z = (np.uint8(ord(letter)) for letter in "abdegilnstwxyz")  # noqa: E741
O, U = np.uint8(ord("o")), np.uint8(ord("u"))  # noqa: E741


@njit(nogil=True, cache=True)
def _measure(word, size):
    """Porter's m (vowel-consonant transitions), whether the word ends in a consonant, whether it has a vowel."""
    m = 0
    consonant = False
    vowel_seen = False
    for i in range(size):
        letter = word[i]
        previous = consonant
        consonant = i == 0 or not previous if letter == Y else letter not in (A, E, I, O, U)
        if i > 0 and consonant and not previous:
            m += 1
        vowel_seen |= not consonant
    return m, consonant, vowel_seen


@njit(nogil=True, cache=True)
def _ends_cvc(word, size):
    """Porter's *o: consonant, vowel, consonant other than w, x, y; for NLTK also a word of vowel, consonant."""
    if size < 2 or not _measure(word, size)[1] or _measure(word, size - 1)[1]:
        return False
    if size == 2:
        return True
    last = word[size - 1]
    return _measure(word, size - 2)[1] and last != W and last != X and last != Y


@njit(nogil=True, cache=True)
def _strip(word, size, first_rule, last_rule):
    """Apply the rule of one step to `word[:size]` in place and return the new size."""
    for rule in range(first_rule, last_rule):
        rest = size - SUFFIX_SIZES[rule]
        if rest < 0:
            continue
        matches = True
        for i in range(SUFFIX_SIZES[rule]):
            if word[rest + i] != SUFFIXES[rule, i]:
                matches = False
                break
        if not matches:
            continue
        condition = CONDITIONS[rule]
        if condition == M_POSITIVE:
            applies = _measure(word, rest)[0] > 0
        elif condition == M_POSITIVE_WITH_L:
            applies = _measure(word, rest + 1)[0] > 0
        elif condition == ALWAYS:
            applies = True
        else:
            applies = _measure(word, rest)[0] > 1
            if condition == M_ABOVE_1_AFTER_S_OR_T:
                applies = applies and (word[rest - 1] == S or word[rest - 1] == T)
        if not applies:
            return size
        for i in range(REPLACEMENT_SIZES[rule]):
            word[rest + i] = REPLACEMENTS[rule, i]
        return rest + REPLACEMENT_SIZES[rule]
    return size


@njit(nogil=True, cache=True)
def _step_1b(word, size):
    ends_ed = size >= 2 and word[size - 2] == E and word[size - 1] == D
    if ends_ed and size >= 3 and word[size - 3] == I:
        return size - 1 if size == 4 else size - 2
    if ends_ed and size >= 3 and word[size - 3] == E:
        return size - 1 if _measure(word, size - 3)[0] > 0 else size
    if ends_ed:
        rest = size - 2
    elif size >= 3 and word[size - 3] == I and word[size - 2] == N and word[size - 1] == G:
        rest = size - 3
    else:
        return size
    m, consonant, vowel_seen = _measure(word, rest)
    if not vowel_seen:
        return size
    last = word[rest - 1]
    before = word[rest - 2] if rest >= 2 else np.uint8(0)
    if (before == A and last == T) or (before == B and last == L) or (before == I and last == Z):
        word[rest] = E
        return rest + 1
    if last == before and consonant:
        return rest if last in (L, S, Z) else rest - 1
    if m == 1 and _ends_cvc(word, rest):
        word[rest] = E
        return rest + 1
    return rest


@njit(nogil=True, cache=True)
def _stem_in_place(letters, starts, sizes):
    for k in range(len(starts) - 1):
        word = letters[starts[k] : starts[k + 1]]
        size = len(word)
        if size > 2:
            if size == 4 and word[1] == I and word[2] == E and word[3] == S:
                size = 3
            else:
                size = _strip(word, size, STEP_ENDS[0], STEP_ENDS[1])
            size = _step_1b(word, size)
            if size > 2 and word[size - 1] == Y and _measure(word, size - 1)[1]:
                word[size - 1] = I
            if (
                size >= 4
                and word[size - 4] == A and word[size - 3] == L and word[size - 2] == L and word[size - 1] == I
                and _measure(word, size - 4)[0] > 0
            ):  # fmt: skip
                size -= 2
            for step in range(1, 4):
                size = _strip(word, size, STEP_ENDS[step], STEP_ENDS[step + 1])
            if size > 0 and word[size - 1] == E:
                m = _measure(word, size - 1)[0]
                if m > 1 or (m == 1 and not _ends_cvc(word, size - 1)):
                    size -= 1
            if size > 1 and word[size - 1] == L and word[size - 2] == L and _measure(word, size - 1)[0] > 1:
                size -= 1
        sizes[k] = size


def porter_stems(words: list[str]) -> list[str]:
    """Stems of lower-case ASCII words ([a-z0-9]+)."""
    letters = np.frombuffer(bytearray("".join(words).encode("ascii")), np.uint8)
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in words], out=starts[1:])
    sizes = np.empty(len(words), np.int64)
    _stem_in_place(letters, starts, sizes)
    stems = letters.tobytes().decode("ascii")
    return [
        IRREGULAR.get(word) or stems[start : start + size]
        for word, start, size in zip(words, starts.tolist(), sizes.tolist(), strict=False)
    ]
