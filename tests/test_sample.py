"""The embedded sample holds what it promises. The files are read here with nothing of the project's own."""

import argparse
import gzip
import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tools import sample
from tools.errors import InputError

pytestmark = pytest.mark.once  # no use of the library

FILES = [
    "poetry/poetry50k.dedup.jsonl.gz",
    "poetry/mturk.max.qrel",
    "poetry/mturk.min.qrel",
    "dapfam/corpus.parquet",
    "dapfam/queries.parquet",
    "dapfam/qrels_all.parquet",
]
UPSTREAM = Path(__file__).parents[2] / "shared" / "upstream"
CLASSES = "classifications_ipcr_list_first_three_chars_list"
TITLE_ABSTRACT = ("title_en", "abstract_en")
EVERY_FIELD = (*TITLE_ABSTRACT, "claims_text", "description_en", CLASSES)
GRADES = {"max": {2: 149, 1: 111, 0: 107, -1: 12}, "min": {2: 62, 1: 129, 0: 105, -1: 83}}
LONG_S = "\u017f"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample")
    assert sample.write_sample(path) == [path / name for name in FILES]
    return path


@pytest.fixture(scope="module")
def pages(directory):
    with gzip.open(directory / "poetry/poetry50k.dedup.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def qrels(directory):
    return {name: read_qrels(directory / f"poetry/mturk.{name}.qrel") for name in ("max", "min")}


@pytest.fixture(scope="module")
def corpus(directory):
    return pq.read_table(directory / "dapfam/corpus.parquet").to_pylist()


@pytest.fixture(scope="module")
def queries(directory):
    return pq.read_table(directory / "dapfam/queries.parquet").to_pylist()


@pytest.fixture(scope="module")
def relations(directory):
    table = pq.read_table(directory / "dapfam/qrels_all.parquet")
    return [tuple(relation.values()) for relation in table.to_pylist()]


def read_qrels(path):
    return [tuple(line.split()) for line in path.read_text("ascii").splitlines()]


def page_id(page):
    return f"{page['book']}/{page['page']}"


def duplicate_id(duplicate):
    if isinstance(duplicate, dict):
        return page_id(duplicate)
    return duplicate if isinstance(duplicate, str) else "{}/{}".format(*duplicate)


def citations(relations):
    """query -> [(family, domain)], positives only."""
    cited = defaultdict(list)
    for query, family, score, domain in relations:
        if score > 0:
            cited[query].append((family, domain))
    return cited


def filed_alike(records, id_field, fields):
    """The groups of ids whose records are equal in the fields, where there is more than one."""
    groups = defaultdict(list)
    for record in records:
        groups[tuple(str(record[name]) for name in fields)].append(record[id_field])
    return [group for group in groups.values() if len(group) > 1]


def words(text):
    return re.findall(r"\w+", (text or "").lower())


# --- Files ------------------------------------------------------------------------------------------------------------


def test_two_writes_are_equal_to_the_byte(directory, tmp_path):
    sample.write_sample(tmp_path)
    sample.write_sample(tmp_path)  # over the files of the first
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(FILES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes(), name


@pytest.mark.parametrize("below", [".", "sub"])
def test_a_file_in_the_way_is_an_input_error(tmp_path, below):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"^[^\n]*taken[^\n]*name another folder[^\n]*$"):
        sample.write_sample(tmp_path / "taken" / below)


def test_command_prints_one_line_a_file(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    sample.add_arguments(parser)
    assert sample.run(parser.parse_args([str(tmp_path)])) == 0
    rows = [238, 379, 379, 92, 32, 245]
    assert capsys.readouterr().out.splitlines() == [
        f"{name}\t{count} rows\t{(tmp_path / name).stat().st_size} bytes"
        for name, count in zip(FILES, rows, strict=True)
    ]


def test_own_text_is_small():
    assert sum(path.stat().st_size for path in sample.SAMPLE_TEXT.iterdir()) < 150_000


@pytest.mark.skipif(not UPSTREAM.exists(), reason=f"no upstream files at {UPSTREAM}")
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".parquet")])
def test_schema_is_the_upstreams(directory, name):
    assert pq.read_schema(directory / name).equals(pq.read_schema(UPSTREAM / name))


# --- Poetry -----------------------------------------------------------------------------------------------------------


def test_pages(pages):
    assert len(pages) == len({page_id(page) for page in pages}) == 238
    assert {tuple(page) for page in pages} == {
        ("book", "page", "score", "text", "duplicates"),
        ("book", "page", "score", "text"),
    }
    assert {tuple(type(page[name]) for name in ("book", "page", "score", "text")) for page in pages} == {
        (str, int, float, str)
    }


@pytest.mark.parametrize(
    ("position", "book", "page", "score", "duplicates", "length", "lines"),
    [
        (0, "versesoftheriver00hallrich", 20, 0.5237, None, 239, ["20\tVERSES\tOF\tTHE\tRIVER", ""]),
        (9, "versesoftheriver00hallrich", 56, 0.8659, [], 423,
         ["56\tVERSES\tOF\tTHE\tRIVER", "", "RAIN\tON\tTHE\tPANE", "",
          "Alas\tfor\tthe\tsummer,\talas\tfor\tthe\tlane,"]),
        (-1, "lastferrylyrics00hollrich", 67, 0.5897, [], 399,
         ["HUSBAND\tAND\tWIFE", "", "I\tknow\tby\tyour\tfootstep\tthe\tday\tyou\thave\thad,"]),
    ],
)  # fmt: skip
def test_first_tenth_and_last_page(pages, position, book, page, score, duplicates, length, lines):
    record = pages[position]
    assert (record["book"], record["page"], record["score"], record.get("duplicates")) == (
        book,
        page,
        score,
        duplicates,
    )
    assert len(record["text"]) == length
    assert record["text"].split("\n")[: len(lines)] == lines


@pytest.mark.parametrize("name", ["max", "min"])
def test_qrels(qrels, name):
    rows = qrels[name]
    assert len(rows) == 379
    assert [rows[0], rows[9], rows[-1]] == [
        ("ancestors", "0", "almanacofsmallho00yorkuoft/44", "2"),
        ("ancestors", "0", "songsofauldlang1742wick/26", "0"),
        ("wedding", "0", "versesoftheriver01hallgoog/533", "2"),
    ]
    assert Counter(int(label) for *_, label in rows) == GRADES[name]


def test_both_qrels_judge_the_same_pairs_and_max_is_no_lower(qrels):
    assert [row[:3] for row in qrels["max"]] == [row[:3] for row in qrels["min"]]
    assert len({row[:3] for row in qrels["max"]}) == 379
    assert all(int(high[3]) >= int(low[3]) for high, low in zip(qrels["max"], qrels["min"], strict=True))


def test_topics_are_the_published_ones(qrels):
    topics = {topic for topic, *_ in qrels["max"]}
    assert len(topics) == 26
    assert {"ancestors", "mothers_day", "jabberwocky", "wedding"} < topics
    published = UPSTREAM.parent / "published" / "Poetry50KRetrieval.json"
    if not published.exists():
        pytest.skip(f"no published figures at {published}")
    assert sorted(topics) == json.loads(published.read_text())["topics"]


def test_every_topic_has_good_pages_in_the_corpus(pages, qrels):
    corpus_ids = {page_id(page) for page in pages}
    good = Counter(topic for topic, _, page, label in qrels["max"] if label == "2" and page in corpus_ids)
    assert len(good) == 26
    assert min(good.values()) >= 3


def test_qrel_lines_have_tabs_and_runs_of_spaces(directory):
    text = (directory / "poetry/mturk.min.qrel").read_text("ascii")
    assert "\t0\t" in text
    assert "  0  " in text
    assert " \t 0 \t " in text


def test_duplicates_come_in_every_form(pages):
    forms = Counter(
        "absent"
        if "duplicates" not in page
        else type(page["duplicates"][0]).__name__
        if page["duplicates"]
        else "empty"
        for page in pages
    )
    assert forms == {"empty": 114, "absent": 45, "str": 31, "dict": 25, "list": 23}


def test_judged_pages_that_were_folded_away(pages, qrels):
    corpus_ids = {page_id(page) for page in pages}
    duplicate_ids = {duplicate_id(duplicate) for page in pages for duplicate in page.get("duplicates", ())}
    assert not corpus_ids & duplicate_ids
    gone = {(topic, page) for topic, _, page, _ in qrels["max"]} - {
        (topic, page) for topic, _, page, _ in qrels["max"] if page in corpus_ids
    }
    assert len(gone) == 26
    assert {page for _, page in gone} <= duplicate_ids


def test_awkward_page_texts(pages):
    texts = [page["text"] for page in pages]
    assert {"", "\t\n\n"} <= set(texts)
    assert max(len(line) for text in texts for line in text.split("\n")) > 20_000
    for character in ("é", "æ", "—", "“", "”", LONG_S, "🌹", "𝄞", "\t"):
        assert any(character in text for text in texts), character
    assert not any(" " in text or "\r" in text for text in texts)


def test_query_word_and_relevance_differ(pages, qrels):
    """Some good pages lack the topic's word, some bad pages have it."""
    text = {page_id(page): set(words(page["text"])) for page in pages}
    has_word = Counter(
        (label, bool(set(topic.split("_")) & text[page])) for topic, _, page, label in qrels["max"] if page in text
    )
    assert has_word["2", False] >= 26
    assert has_word["2", True] >= 26
    assert has_word["0", True] >= 15


def test_term_weights_rank_above_chance_and_below_perfection(pages, qrels):
    """Precision of the ten pages with the highest tf-idf for the topic, as a share of what the judgments allow."""
    counts = {page_id(page): Counter(words(page["text"])) for page in pages}
    pages_with = Counter(word for count in counts.values() for word in count)
    shares, chances = [], []
    for topic in sorted({topic for topic, *_ in qrels["max"]}):
        good = {page for name, _, page, label in qrels["max"] if name == topic and int(label) > 0 and page in counts}
        weights = {
            page: sum(count[word] / (1 + sum(count.values()) / 100) / pages_with[word] for word in topic.split("_"))
            for page, count in counts.items()
        }
        top = sorted(weights, key=lambda page: -weights[page])[:10]
        shares.append(len(good & set(top)) / min(10, len(good)))
        chances.append(len(good) / len(counts))
    assert 0.35 < sum(shares) / 26 < 0.9
    assert sum(chances) / 26 < 0.06


# --- DAPFAM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "position", "family", "title", "lengths", "classes"),
    [
        ("corpus", 0, "716-864-336-237-929", "bicycle disc brake with a wear indicator in the lever",
         (290, 531, 4357), ["B62"]),
        ("corpus", 9, "051-323-791-544-703", "dry powder inhaler with a breath-actuated trigger",
         (267, 905, 2586), ["A61"]),
        ("corpus", -1, "384-241-248-396-122", "speech codec with a noise suppressor ahead of the encoder",
         (280, None, 2305), ["G10", "H04"]),
        ("queries", 0, "475-945-657-458-593", "crane hoist with magnetic testing of the rope",
         (244, 484, 3206), ["G01"]),
        ("queries", 9, "794-027-283-757-719", "ceramic glaze line with digital printing of the glaze",
         (235, 747, 3727), ["B41", "C04"]),
        ("queries", -1, "832-938-390-124-383", "ceramic glaze line with digital printing of the glaze",
         (235, 200, 3727), ["B41", "C04"]),
    ],
)  # fmt: skip
def test_first_tenth_and_last_family(request, name, position, family, title, lengths, classes):
    record = list(request.getfixturevalue(name)[position].values())
    assert record[:2] == [family, title]
    assert tuple(text if text is None else len(text) for text in record[2:5]) == lengths
    assert record[5] == classes


def test_family_counts(directory, corpus, queries):
    assert len(corpus) == len({family["relevant_id"] for family in corpus}) == 92
    assert len(queries) == len({query["query_id"] for query in queries}) == 32
    assert pq.ParquetFile(directory / "dapfam/corpus.parquet").num_row_groups == 5
    ids = [family["relevant_id"] for family in corpus] + [query["query_id"] for query in queries]
    assert all(re.fullmatch(r"(\d{3}-){4}\d\d[\dX]", id) for id in ids)


def test_relations(relations):
    assert len(relations) == 245
    assert [relations[0], relations[9], relations[-1]] == [
        ("475-945-657-458-593", "257-282-888-645-473", 1.0, "OUT"),
        ("413-517-323-244-719", "244-833-943-435-036", 1.0, "IN"),
        ("832-938-390-124-383", "555-197-400-879-311", 0.0, "NC"),
    ]
    assert Counter((domain, score) for *_, score, domain in relations) == {
        ("NC", 0.0): 128,
        ("IN", 1.0): 63,
        ("OUT", 1.0): 54,
    }


def test_domain_follows_the_classes(corpus, queries, relations):
    classes = {family["relevant_id"]: set(family[CLASSES]) for family in corpus}
    classes |= {query["query_id"]: set(query[CLASSES]) for query in queries}
    for query, family, _, domain in relations:
        if domain != "NC" and family in classes:
            assert domain == ("IN" if classes[query] & classes[family] else "OUT")


def test_queries_cite_inside_outside_both_or_nothing(queries, relations):
    cited = citations(relations)
    kinds = Counter(frozenset(domain for _, domain in cited[query["query_id"]]) for query in queries)
    assert kinds == {frozenset(("IN", "OUT")): 15, frozenset(("IN",)): 6, frozenset(("OUT",)): 6, frozenset(): 5}
    sizes = [len(families) for families in cited.values() if families]
    assert (min(sizes), max(sizes)) == (1, 7)


def test_no_family_is_both_cited_and_sampled(relations):
    cited = {(query, family) for query, family, _, domain in relations if domain != "NC"}
    assert not cited & {(query, family) for query, family, _, domain in relations if domain == "NC"}


def test_empty_abstracts_and_claims(corpus, queries):
    assert Counter(family["abstract_en"] for family in corpus if not family["abstract_en"]) == {None: 3, "": 2}
    assert [query["abstract_en"] for query in queries if not query["abstract_en"]] == [None, ""]
    assert sum(family["claims_text"] is None for family in corpus) == 4
    assert sum(query["claims_text"] is None for query in queries) == 1
    assert all(family["title_en"] and family["description_en"] for family in corpus + queries)


def test_families_filed_twice(corpus, relations):
    alike = filed_alike(corpus, "relevant_id", EVERY_FIELD)
    amended = [pair for pair in filed_alike(corpus, "relevant_id", TITLE_ABSTRACT) if pair not in alike]
    assert (len(alike), len(amended)) == (1, 1)
    first, second = alike[0]
    cited = [{family for family, _ in families} for families in citations(relations).values()]
    assert sum({first, second} <= families for families in cited) == 1
    assert sum(second in families and first not in families for families in cited) >= 1
    first, second = amended[0]
    assert not any(first in families for families in cited)
    assert sum(second in families for families in cited) >= 2


def test_queries_asked_twice(queries, relations):
    same_title_abstract = filed_alike(queries, "query_id", TITLE_ABSTRACT)
    same_claims_too = filed_alike(queries, "query_id", (*TITLE_ABSTRACT, "claims_text"))
    assert (len(same_title_abstract), len(same_claims_too)) == (2, 1)
    assert all(citations(relations)[query] for pair in same_title_abstract for query in pair)


def test_citations_of_nothing_and_twice(corpus, relations):
    corpus_ids = {family["relevant_id"] for family in corpus}
    missing = [relation for relation in relations if relation[1] not in corpus_ids]
    assert [relation[2:] for relation in missing] == [(1.0, "IN")]
    assert len(citations(relations)[missing[0][0]]) > 1
    assert sorted(Counter(relations).values())[-2:] == [1, 2]


def test_text_is_lower_case_with_symbols(corpus, queries):
    texts = [family[name] or "" for family in corpus + queries for name in EVERY_FIELD[:-1]]
    assert all(text == text.lower() for text in texts)
    for character in "µ°\u00d7±\u2212\u03b1δλφ":
        assert any(character in text for text in texts), character


def test_lengths(corpus):
    claims = [len(family["claims_text"]) for family in corpus if family["claims_text"]]
    assert (min(claims) > 300, max(claims) < 2_000) == (True, True)
    descriptions = sorted((family["description_en"] for family in corpus), key=len)
    assert len(descriptions[0]) > 1_000
    assert len(descriptions[-3]) < 6_000
    assert 25_000 < len(descriptions[-2]) < 35_000
    assert "\n" not in descriptions[-2]
    assert math.isclose(len(descriptions[-1]), 200_000, rel_tol=0.1)
