"""The card as text: what a reader and the Hub need, computed from the build, and no way out for text from data."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from tools import figures
from tools.card import ABOUT, Build, Candidates, Split, code, escape, front_matter, render, table
from tools.stage_parquet import Part

HOSTILE = "a|b `c` <script>alert(1)</script>\n---\n]]> <!-- # *d* _e_ [f](g) ![h](i) &amp; \\ ~~j~~ \x00\u2028"
POETRY = "Poetry50KRetrieval"


def part(config, rows, split="test"):
    files = {f"{config}/{split}-00000-of-00001.parquet": 1000 + rows}
    return Part(config, split, rows, 100 * rows, files, "0" * 64, np.arange(1, rows + 1))


def poetry(recipe=None, topics=("war",)):
    parts = [part("corpus", 2652), part("queries", 26), part("qrels_max", 971), part("qrels_min", 970)]
    candidates = {}
    if recipe:
        parts.append(part("bm25", 26))
        measures = {"qrels_max": {"nDCG@10": 0.12345, "recall@100": 0.5}, "qrels_min": {"nDCG@10": 0, "recall@100": 1}}
        recall = {name: np.linspace(0, 1, 100) for name in measures}
        candidates["bm25"] = Candidates(recipe, (99, 100), measures, recall)
    labels = {"qrels_max": {0: 300, 1: 301, 2: 370}, "qrels_min": {0: 500, 2: 470}}
    return Build(
        POETRY, "./poetry", True, parts, [Split("test", labels, candidates)], list(topics), {"judged pages": 868}
    )


def recipe(**parameters):
    return {"parameters": parameters, "counts": {"forced_positives": 1234}, "tool": "tools 1.0.0"}


def block_and_body(text):
    start, block, body = re.split(r"^---$\n", text, maxsplit=2, flags=re.M)
    assert not start
    return yaml.safe_load(block), body


def test_the_block_says_what_the_hub_asks():
    block, _ = block_and_body(render(poetry(recipe(k1=1.5))))
    assert block == front_matter(poetry(recipe(k1=1.5)))
    assert block["size_categories"] == ["1K<n<10K"] and block["license"] == "other"
    assert [config["config_name"] for config in block["configs"]] == [
        *("corpus", "queries", "qrels_max", "qrels_min", "bm25"),
        "qrels",
    ]
    assert [config["config_name"] for config in block["configs"] if config.get("default")] == ["qrels_max"]
    assert block["configs"][-1]["data_files"] == [{"split": "test", "path": "qrels_max/test-*"}]
    info = {info["config_name"]: info for info in block["dataset_info"]}
    assert info["bm25"]["features"][1] == {"name": "corpus-ids", "sequence": "string"}
    assert info["corpus"]["splits"] == [{"name": "test", "num_bytes": 265200, "num_examples": 2652}]
    assert (info["corpus"]["download_size"], info["corpus"]["dataset_size"]) == (3652, 265200)


def test_no_config_is_literally_named_default():
    """`datasets` would take it for a second default config and refuse the repository."""
    for build in (poetry(), Build("NanoDAPFAM", "me/nano", True, [], [], [], {})):
        assert "default" not in [config["config_name"] for config in front_matter(build)["configs"]]


def test_figures_are_the_builds():
    _, body = block_and_body(render(poetry(recipe(tokenizer="stemmer:en", top_k=100, force_positives=True))))
    for words in (
        "| `corpus` | 1 | 2,652 | 2,652 | 0.004 |",
        "| 2 | highly relevant | 370 | 470 |",
        "| 1 | relevant, or partly | 301 | 0 |",
        "37.3 in `qrels_max`, 37.3 in `qrels_min`",
        "| judged pages | 868 |",
        "| documents, `pages` | 2,652 | 1 | 1,326 | 1,326 | 2,519 | 2,652 |",
        "| tokenizer | `stemmer:en` |",
        "| force positives | yes |",
        "| `test` | `qrels_max` | 99–100 | 0.1235 | 0.5000 | 1,234 |",
    ):
        assert words in body
    for field in ("id", "text", "book", "page", "score", "n_duplicates", "duplicates", "query-id", "corpus-ids"):
        assert f"| `{field}` |" in body
    assert ABOUT[POETRY].citation in body


def test_nothing_is_said_of_what_is_not_built():
    text = render(poetry())
    for word in ("bm25", "harrier", "reranking", "nDCG", "recall.svg", "Candidate lists"):
        assert word not in text
    assert "harrier" not in render(poetry(recipe(k1=1.5)))


@pytest.mark.parametrize("place", ["value", "name", "topic", "tool"])
def test_text_from_data_stays_text(place):
    """No sign of Markdown or HTML is left of it, and it ends neither its line nor its cell."""
    made = recipe(model=HOSTILE) if place == "value" else recipe(**{HOSTILE: "x"}) if place == "name" else recipe(k1=1)
    made["tool"] = HOSTILE if place == "tool" else "tools 1.0.0"
    topics = [HOSTILE] if place == "topic" else ["war"]
    block, body = block_and_body(render(poetry(made, topics)))
    plain_block, plain = block_and_body(render(poetry(recipe(model="plain") if place == "value" else recipe(k1=1))))
    assert block == plain_block
    assert "<script" not in body and "[f]" not in body and "*d*" not in body and "`c`" not in body
    assert (
        body.count("\n---\n") == 0
        and "]]>" not in body
        and "<!--" not in body
        and "\x00" not in body
        and "\u2028" not in body
    )
    assert len(body.splitlines()) == len(plain.splitlines())
    cells = [line.count("|") for line in body.splitlines() if line.startswith("|")]
    assert cells == [line.count("|") for line in plain.splitlines() if line.startswith("|")]


def test_text_in_pictures_stays_text():
    """The names in them are the configs', which have no NUL; XML could not hold one."""
    name = HOSTILE.replace("\x00", "")
    for svg in (
        figures.draw_recall({name: {name: [0.1, 0.2]}}),
        figures.draw_labels({name: {0: 1}}),
        figures.draw_lengths({name: {name: np.array([1, 2])}}),
    ):
        names = {element.tag.split("}")[-1] for element in ElementTree.fromstring(svg).iter()}
        assert "text" in names and "script" not in names


def test_escaping():
    assert escape("a b-c.d/e") == "a b-c.d/e"
    assert escape("x | y\n`z`") == "x &#124; y &#96;z&#96;"
    assert code("microsoft/harrier-oss-v1-270m") == "`microsoft/harrier-oss-v1-270m`"
    assert code("a`b") == "<code>a&#96;b</code>"
    assert code("") == "<code></code>"
    assert code("plain\n") == "<code>plain</code>"


def test_tables_align_numbers_to_the_right():
    assert table(("name", "n"), [("a", 1234), ("b", 5)]).splitlines() == [
        "| name | n |",
        "| --- | ---: |",
        "| a | 1,234 |",
        "| b | 5 |",
    ]
    assert table(("name", "n"), []).splitlines() == ["| name | n |", "| --- | --- |"]


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_pictures_have_contrast_in_both_schemes(scheme):
    ground = figures.COLOURS["ground"][scheme]
    for name, colours in figures.COLOURS.items():
        if name not in ("ground", "grid"):
            assert contrast(colours[scheme], ground) >= 4.5, name


def test_pictures():
    pictures = [
        figures.draw_recall({"all": {"bm25": [0.1, 0.2, 0.4], "lsa": [0.2]}, "other": {"bm25": [0.0]}}),
        figures.draw_labels({"qrels_max": {0: 3, 1: 4, 2: 1234}, "qrels_min": {0: 5}}),
        figures.draw_lengths({"documents": {"pages": np.array([0, 3, 5000])}, "queries": {"topics": np.array([3, 7])}}),
        figures.draw_lengths({"documents": {"pages": np.zeros(0, int)}}),
    ]
    known = {colours[0] for colours in figures.COLOURS.values()}
    for svg in pictures:
        head, style, drawing = re.split(r"<style>(.*?)</style>", svg, maxsplit=1, flags=re.S)
        assert "prefers-color-scheme: dark" in style and "<text" in drawing
        assert set(re.findall(r"#[0-9a-f]{6}", head + drawing)) <= known, (
            "a colour that has no rule for the dark scheme"
        )
        assert not re.search(r"\d{4}-\d\d-\d\d|Matplotlib v", svg)
    assert ">1,234<" in pictures[1]
    assert pictures[1] == figures.draw_labels({"qrels_max": {0: 3, 1: 4, 2: 1234}, "qrels_min": {0: 5}})
