import itertools
import random
from collections import Counter

import pyarrow as pa
import pytest
from nltk.stem.porter import PorterStemmer

from tools.counting import count_corpus, count_queries
from tools.porter import IRREGULAR, RULES, porter_stems
from tools.tokenizers import TOKENIZERS, tokenize

pytestmark = pytest.mark.once  # no use of the library

# Characters that lower-case to several or to ASCII, look at their neighbours, join, combine, count or separate.
HOSTILE = [
    *"aAbzZiIkKsSxy019_",
    *" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\0\x7f.,:;'`^-/",
    *"İKſΣσςßẞÅéÉñıŉǰΐﬁ",
    *"\u0301\u0307\u0345\u200c\u200d\u200b\u2009\u2019\u201c\u2014\u3000\ufeff\u00ad",
    *"٣²½Ⅷ中文ー日本カ가ไทยनि",
    *"𝐀𐐀😀🇫🧑\U000e0001",
]


def hostile_texts(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(HOSTILE, k=rng.choice([0, 1, 2, 3, 8, 30, 200]))) for _ in range(n)]


def count_in_python(texts: list[str], vocabulary: list[str], tokenizer: str) -> list[tuple[int, list]]:
    ids = {term: i for i, term in enumerate(vocabulary)}
    tokens = [tokenize(text, tokenizer) for text in texts]
    return [(len(terms), sorted(Counter(ids[t] for t in terms if t in ids).items())) for terms in tokens]


def count_in_kernel(array, vocabulary: list[str], tokenizer: str) -> list[tuple[int, list]]:
    lengths, indptr, terms, counts = count_corpus([lambda: [array]], vocabulary, tokenizer)
    pairs = list(zip(terms.tolist(), counts.tolist(), strict=True))
    return [(length, pairs[a:b]) for length, a, b in zip(lengths.tolist(), indptr, indptr[1:], strict=False)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("seed", range(4))
def test_counts_of_hostile_unicode_equal_the_definition(tokenizer, seed):
    texts = hostile_texts(seed, 1500)
    every_term = sorted({term for text in texts for term in tokenize(text, tokenizer)})
    for vocabulary in (every_term, every_term[::3]):
        expected = count_in_python(texts, vocabulary, tokenizer)
        assert count_in_kernel(pa.array(texts), vocabulary, tokenizer) == expected
    assert count_queries(texts, tokenizer)[0] == every_term


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_code_points_between_letters_equals_the_definition(tokenizer):
    code_points = [*range(0x2200), *range(0x2200, 0xD800, 29), *range(0xE000, 0x110000, 29)]
    texts = [f"a{chr(c)}b {chr(c)}" for c in code_points]
    vocabulary = ["a", "b", "ai", "akb", "i", "k"]
    assert count_in_kernel(pa.array(texts), vocabulary, tokenizer) == count_in_python(texts, vocabulary, tokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "text", "terms"),
    [
        ("english_porter_stop", "The RELATIONAL model’s skies", ["relat", "model", "s", "sky"]),
        ("english_porter_stop", "aKb aİb", ["akb", "ai", "b"]),
        ("english_porter_stop", "snake_case naïve 3D", ["snake", "case", "na", "ve", "3d"]),
        ("stemmer:en", "The cities’ naïve running_dogs", ["the", "citi", "naïv", "running_dog"]),
        ("regex", "ΟΔΟΣ a.Σ Σ.a e\u0301", ["οδος", "a", "ς", "σ", "a", "e"]),
        ("whitespace", "It's\u3000A\x1cdog.\0 ", ["it's", "a", "dog.\0"]),
    ],
)
def test_terms_of_a_text(tokenizer, text, terms):
    assert tokenize(text, tokenizer) == terms


def test_stop_words_go_before_stemming():
    # "being" is a stop word; "beings" is none, though its stem is "be".
    assert tokenize("being beings", "english_porter_stop") == [PorterStemmer().stem("beings")]


def test_porter_stems_equal_nltk():
    rng = random.Random(1)
    endings = [rule[0] for rule in RULES] + "ed ing eed ied y e ll ly s ies er alli".split()
    words = {"".join(letters) for n in (1, 2, 3) for letters in itertools.product("aeyblstx", repeat=n)}
    words |= {word + ending for word in sorted(words)[::3] for ending in endings}
    for _ in range(30_000):
        words.add("".join(rng.choices("aeiouybltsxwz3n", k=rng.randint(1, 5))) + "".join(rng.choices(endings, k=2)))
    words = sorted(words | set(IRREGULAR) | {"y" * 50, "0", "1990s"})
    stem = PorterStemmer().stem
    assert porter_stems(words) == [stem(word) for word in words]
    assert PorterStemmer().pool == IRREGULAR
