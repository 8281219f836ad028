"""dataset_infos.json rewritten from a build: one dataset's part, the rest byte for byte as it was."""

import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reading
from conftest import ROOT

from tools.__main__ import main
from tools.infos import INFOS, format_infos, num_bytes

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLITS = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMOutTitlAbsToTitlAbs"]


def bytes_of(value):
    """Of one value, as the published sizes count: 4 an offset, 8 a number."""
    if isinstance(value, str):
        return 4 + len(value.encode())
    return 4 + sum(map(bytes_of, value)) if isinstance(value, list) else 8


def size(rows):
    return sum(bytes_of(value) for row in rows for value in row.values())


def parts(text):
    """{key: the entry's text} of the file."""
    entries = re.split(r'^ "([^"]+)": ', text, flags=re.M)[1:]
    return {
        key: entry.strip().rstrip("}").rstrip(",\n") for key, entry in zip(entries[::2], entries[1::2], strict=True)
    }


def infos(dataset, data_dir, out, *options):
    return main(
        [
            "infos",
            dataset,
            "--data-dir",
            str(data_dir),
            "--sidecars",
            str(out.parent / "none"),
            "--out",
            str(out),
            *options,
        ]
    )


def test_bytes_of_the_published_shapes():
    """The sizes on the card, of ids of 19 characters: 500 candidates, 100.03 on average, and pairs."""
    query_ids = ["q" * 19] * 200
    lists = pa.table({"query-id": query_ids, "corpus-ids": [["d" * 19] * 500] * 200})
    assert num_bytes(lists) == lists.nbytes == 2_305_400
    fused = pa.table({"query-id": query_ids, "corpus-ids": [["d" * 19] * 101] * 6 + [["d" * 19] * 100] * 194})
    assert num_bytes(fused) == 465_538
    pairs = pa.table({"query-id": ["q" * 19] * 3989, "corpus-id": ["d" * 19] * 3989})
    assert num_bytes(pairs) == 183_494
    chunked = pa.concat_tables([lists.slice(0, 7), lists.slice(7)])
    assert num_bytes(chunked) == 2_305_400
    numbers = pa.table({"text": ["é", "", None], "page": [1, 2, 3], "score": [0.5, None, 1.0]})
    assert num_bytes(numbers) == 2 + 3 * 4 + 3 * 8 + 3 * 8
    assert num_bytes(lists.slice(0, 0)) == 0


def test_published_sizes_have_that_form():
    """A pair of ids of 19 characters is 46 bytes; a fused list 27 and 23 a candidate."""
    known = json.loads(INFOS.read_text("utf-8"))
    published = json.loads((ROOT / "tools/published.json").read_text("utf-8"))[DAPFAM]["splits"]
    assert list(published) == list(known[f"{DAPFAM}/qrels"]["splits"]) == reading.SPLITS
    for split, figures in published.items():
        qrels, queries, documents, hybrid = (
            known[f"{DAPFAM}/{config}"]["splits"][split]
            for config in ("qrels", "queries", "corpus", "reranking_hybrid")
        )
        assert qrels["num_bytes"] == 46 * qrels["num_examples"]
        for table, mean in ((queries, "query_chars_mean"), (documents, "document_chars_mean")):
            characters = table["num_bytes"] / table["num_examples"] - 27
            assert figures[mean] <= characters < 1.01 * figures[mean]  # some characters are two bytes or three
        candidates = figures["candidates"]["measured"]["reranking_hybrid"]["candidates_per_row"]
        assert hybrid["num_bytes"] == round(200 * (27 + 23 * candidates))


def test_poetry_is_rewritten_and_the_other_part_is_not(sample, tmp_path, capsys):
    """By the real command."""
    before, out = INFOS.read_text("utf-8"), tmp_path / "infos.json"
    command = [sys.executable, "-m", "tools", "infos", POETRY, "--data-dir", str(sample / "poetry"), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert INFOS.read_text("utf-8") == before
    upstream = reading.poetry(sample / "poetry")
    lines = [
        f"{POETRY}/{config}: 1 of 1 splits changed: {len(rows)} rows, {size(rows)} bytes"
        for config, rows in upstream.items()
    ]
    lines += [f"{POETRY}/{config}: not built, stays as it is" for config in reading.CANDIDATES]
    assert done.stdout.splitlines() == lines

    old, new = parts(before), parts(out.read_text("utf-8"))
    assert list(new) == list(old) and len(old) == 13
    changed = {f"{POETRY}/{config}" for config in upstream}
    assert {key for key in old if old[key] != new[key]} == changed
    written = json.loads(out.read_text("utf-8"))
    for config, rows in upstream.items():
        entry = written[f"{POETRY}/{config}"]
        assert entry["features"] == json.loads(before)[f"{POETRY}/{config}"]["features"]
        assert list(entry) == ["features", "splits", "dataset_size"]
        assert entry["splits"] == {"test": {"name": "test", "num_bytes": size(rows), "num_examples": len(rows)}}
        assert list(entry["splits"]["test"]) == ["name", "num_bytes", "num_examples"]
        assert entry["dataset_size"] == size(rows)


def test_splits_at_hand_are_rewritten_and_the_others_stay(sample, tmp_path, capsys):
    before, out = json.loads(INFOS.read_text("utf-8")), tmp_path / "infos.json"
    assert infos(DAPFAM, sample / "dapfam", out, "--splits", *SPLITS) == 0
    assert f"{DAPFAM}/queries: 2 of 18 splits changed" in capsys.readouterr().out
    written = json.loads(out.read_text("utf-8"))
    for config in ("corpus", "queries", "qrels"):
        old, new = before[f"{DAPFAM}/{config}"], written[f"{DAPFAM}/{config}"]
        right = {split: reading.dapfam(sample / "dapfam", split)[config] for split in SPLITS}
        assert list(new["splits"]) == reading.SPLITS
        for split in reading.SPLITS:
            expected = old["splits"][split]
            if split in SPLITS:
                expected = {"name": split, "num_bytes": size(right[split]), "num_examples": len(right[split])}
            assert new["splits"][split] == expected
        assert new["dataset_size"] == sum(split["num_bytes"] for split in new["splits"].values())
    assert [written[f"{DAPFAM}/{config}"] for config in reading.CANDIDATES] == [
        before[f"{DAPFAM}/{config}"] for config in reading.CANDIDATES
    ]
    text = out.read_text("utf-8")
    assert infos(DAPFAM, sample / "dapfam", out, "--splits", *SPLITS) == 0
    assert f"{DAPFAM}/queries: as before, 18 splits" in capsys.readouterr().out
    assert out.read_text("utf-8") == text == format_infos(written)


def test_candidate_lists_that_are_built(sample, tmp_path, capsys):
    out, lists = tmp_path / "infos.json", tmp_path / "lists"
    place = [POETRY, "--data-dir", str(sample / "poetry"), "--sidecars", str(lists)]
    assert main(["bm25", *place, "--top-k", "7"]) == 0
    assert main(["infos", *place, "--out", str(out)]) == 0
    written = json.loads(out.read_text("utf-8"))
    lists_table = pq.read_table(lists / "bm25/test.parquet")
    ids = lists_table.select(["query-id", "corpus-ids"]).to_pylist()
    entry = written[f"{POETRY}/bm25"]
    assert entry["splits"]["test"] == {"name": "test", "num_bytes": size(ids), "num_examples": 26}
    assert entry["features"] == json.loads(INFOS.read_text("utf-8"))[f"{POETRY}/bm25"]["features"]

    recipe = json.loads(lists_table.schema.metadata[b"recipe"])
    recipe["digests"]["corpus"] = "0" * 64
    pq.write_table(lists_table.replace_schema_metadata({"recipe": json.dumps(recipe)}), lists / "bm25/test.parquet")
    text = out.read_text("utf-8")
    capsys.readouterr()
    assert main(["infos", *place, "--out", str(out)]) == 2
    assert "stale, made with other corpus" in capsys.readouterr().err and out.read_text("utf-8") == text


@pytest.mark.parametrize("text", ["{", "[]\n", json.dumps({"a": 1})])
def test_a_file_in_another_form_is_left_alone(sample, tmp_path, capsys, text):
    out = tmp_path / "infos.json"
    out.write_text(text, "utf-8")
    assert infos(POETRY, sample / "poetry", out) == 2
    assert capsys.readouterr().err.startswith(f"python -m tools infos: {out}: not ")
    assert out.read_text("utf-8") == text
