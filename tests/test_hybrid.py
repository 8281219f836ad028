"""Fusion worked out by hand, and the command on lists that were written by hand."""

import random
from fractions import Fraction
from itertools import permutations

import pytest

from tools.__main__ import main
from tools.collection import Collection
from tools.hybrid import fuse, safeguard
from tools.sidecar import Sidecar, read_sidecar, recipe, write_sidecar

POETRY = "Poetry50KRetrieval"
SPLIT = "NanoDAPFAMAllTitlAbsToTitlAbs"


def at_ranks(**ranks):
    """A list with each named document at its rank, and between them documents that no other list has."""
    places = {rank: document_id for document_id, rank in ranks.items()}
    return [places.get(rank, f"only in {ranks} {rank}") for rank in range(1, max(places) + 1)]


def test_scores_are_sums_of_reciprocal_ranks_from_1():
    fused = fuse([["a", "b", "c"], ["b", "d"]])
    assert fused == [
        ("b", float(Fraction(1, 102) + Fraction(1, 101))),
        ("a", 1 / 101),
        ("d", 1 / 102),
        ("c", 1 / 103),
    ]
    assert fuse([["a", "b"], ["b"]], rrf_k=0)[0] == ("b", 1.5)


def test_equal_ranks_in_another_order_tie_and_ids_decide():
    fused = fuse([["b", "a", "d"], ["a", "b", "c"]])
    assert [document_id for document_id, _ in fused] == ["a", "b", "c", "d"]
    assert fused[0][1] == fused[1][1] and fused[2][1] == fused[3][1]
    # Floats added as they come give two sums here.
    for ranks in permutations((1, 2, 60)):
        fused = dict(fuse([at_ranks(x=rank) for rank in ranks]))
        assert fused["x"] == float(sum(Fraction(1, 100 + rank) for rank in ranks))


def test_equal_scores_are_ordered_by_best_source_rank():
    # 1/105 + 1/140 = 1/120 + 1/120, which floats do not see; "a" would come first by id.
    assert Fraction(1, 105) + Fraction(1, 140) == Fraction(2, 120)
    fused = fuse([at_ranks(b=5, a=20), at_ranks(a=20, b=40)], top_k=1000)
    scores = dict(fused)
    order = [document_id for document_id, _ in fused]
    assert scores["a"] == scores["b"] == 1 / 60
    assert order.index("b") < order.index("a")


def test_no_more_than_top_k_and_no_more_than_there_are():
    ranked = [f"d{number:03}" for number in range(150)]
    assert [document_id for document_id, _ in fuse([ranked, ranked])] == ranked[:100]
    assert len(fuse([ranked[:30], ranked[20:40]])) == 40
    assert fuse([[], []]) == []


def test_safeguard_appends_the_drawn_positive():
    candidates = [f"d{number}" for number in range(100)]
    positives = ["p9", "p10", "p1"]
    drawn = random.Random("20260524\0test\0war\0positive_safeguard").choice(["p1", "p10", "p9"])
    assert safeguard(candidates, positives, "test", "war", 20260524) == [*candidates, drawn]
    assert safeguard(candidates, reversed(positives), "test", "war", 20260524)[100] == drawn
    assert safeguard(candidates, ["p1", "d99"], "test", "war", 20260524) == candidates
    assert safeguard(candidates, [], "test", "war", 20260524) == candidates


def test_safeguard_depends_on_seed_split_and_query():
    positives = [f"p{number}" for number in range(1000)]
    keys = [("test", "war", 1), ("test", "war", 2), ("test", "love", 1), ("other", "war", 1)]
    assert len({tuple(safeguard([], positives, *key)) for key in keys}) == 4


def write_source(collection, config, lists, **parameters):
    scores = [[1 / rank for rank in range(1, len(ranked) + 1)] for ranked in lists]
    query_ids = collection.queries["id"].to_pylist()
    made_by = recipe(collection, config, {"made": "by hand", **parameters})
    write_sidecar(collection.sidecar_path(config), Sidecar(query_ids, lists, scores, made_by))


@pytest.fixture
def poetry(sample, tmp_path):
    return Collection(POETRY, "test", str(sample / "poetry"), str(tmp_path))


def command(collection, *options):
    places = ["--data-dir", collection.data_dir, "--sidecars", collection.sidecar_dir, "--splits", collection.split]
    return main(["hybrid", collection.dataset, *places, *options])


def test_a_split_whose_sources_miss_the_positives(poetry, capsys):
    ids, positives = poetry.corpus["id"].to_pylist(), poetry.positives()
    query_ids = poetry.queries["id"].to_pylist()
    misses = {query_id: [i for i in ids if i not in positives[query_id]][:120] for query_id in query_ids}
    first = query_ids[0]
    found = [positives[first][-1], *misses[first]]  # the first query's lists have a positive, the others' have none
    write_source(poetry, "bm25", [found, *(misses[query_id] for query_id in query_ids[1:])])
    write_source(poetry, "harrier_oss_v1_270m", [found, *(misses[query_id][::-1] for query_id in query_ids[1:])])

    assert command(poetry) == 0
    path = poetry.sidecar_path("reranking_hybrid")
    assert capsys.readouterr().out == f"{path}: {len(query_ids)} rows, {len(query_ids) - 1} safeguards\n"
    hybrid = read_sidecar(path)
    assert hybrid.recipe["counts"] == {"rows": len(query_ids), "safeguards": len(query_ids) - 1}
    assert hybrid.query_ids == query_ids
    assert hybrid.corpus_ids[0] == found[:100]
    for query_id, candidates, scores in list(zip(query_ids, hybrid.corpus_ids, hybrid.scores, strict=True))[1:]:
        # Reversed lists: rank r and 121 - r, so the ends, r = 1 and 120, score highest; each pair ties, the id decides.
        by_hand = [pair for i in range(50) for pair in sorted((misses[query_id][i], misses[query_id][119 - i]))]
        drawn = random.Random(f"20260524\0test\0{query_id}\0positive_safeguard").choice(sorted(positives[query_id]))
        assert candidates == [*by_hand, drawn]
        assert scores[0] == float(Fraction(1, 101) + Fraction(1, 220)) and scores[100] == 0.0
        assert scores == sorted(scores, reverse=True)

    assert command(poetry) == 0
    assert "is there already" in capsys.readouterr().out


def test_a_corpus_smaller_than_100(sample, tmp_path):
    collection = Collection("NanoDAPFAM", SPLIT, str(sample / "dapfam"), str(tmp_path))
    ids = collection.corpus["id"].to_pylist()
    assert len(ids) < 100
    write_source(collection, "bm25", [ids] * len(collection.queries))
    write_source(collection, "lsa", [ids] * len(collection.queries))
    assert command(collection, "--sources", "bm25", "lsa") == 0
    hybrid = read_sidecar(collection.sidecar_path("reranking_hybrid"))
    assert hybrid.corpus_ids == [ids] * len(collection.queries)
    assert hybrid.recipe["counts"]["safeguards"] == 0
    assert list(hybrid.recipe["parameters"]["sources"]) == ["bm25", "lsa"]


def test_the_sources_that_a_hybrid_cannot_be_made_of(poetry, tmp_path, capsys):
    lists = [poetry.corpus["id"].to_pylist()[:10]] * len(poetry.queries)

    def refused(*options):
        assert command(poetry, *options) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("python -m tools hybrid: ")
        assert not (tmp_path / "reranking_hybrid").exists()
        return err

    bm25, harrier = poetry.sidecar_path("bm25"), poetry.sidecar_path("harrier_oss_v1_270m")
    places = f"{POETRY} --data-dir {poetry.data_dir} --sidecars {tmp_path}"
    assert f"{bm25}: no candidate lists there; build them with: python -m tools bm25 {places}\n" in refused()
    write_source(poetry, "bm25", lists)
    assert f"{harrier}: no candidate lists there; build them with: python -m tools dense {places}\n" in refused()

    made_for_bm25 = read_sidecar(bm25)
    write_sidecar(harrier, made_for_bm25)
    assert f"{harrier}: made for {POETRY}/bm25/test, not for {POETRY}/harrier_oss_v1_270m/test" in refused()

    stale = made_for_bm25.recipe | {"digests": poetry.digests | {"corpus": "0" * 64}}
    write_sidecar(bm25, Sidecar(made_for_bm25.query_ids, lists, made_for_bm25.scores, stale))
    assert f"{bm25}: stale, made with other corpus; build it again: python -m tools bm25 {places} --overw" in refused()

    twice = [["d1", "d1", *ranked[2:]] for ranked in lists]
    write_sidecar(bm25, Sidecar(made_for_bm25.query_ids, twice, made_for_bm25.scores, made_for_bm25.recipe))
    assert f"{bm25}: not a sidecar (ValueError); build it again with --overwrite: python -m tools bm25" in refused()

    (tmp_path / "bm25" / "test.parquet").write_bytes(b"PAR1 and no more")
    assert f"{bm25}: not a sidecar" in refused()

    assert "--sources bm25 bm25" in refused("--sources", "bm25", "bm25")
    assert "--config bm25" in refused("--config", "bm25", "--sources", "lsa")
    assert "--config corpus" in refused("--config", "corpus", "--sources", "lsa")
    assert "--config ../up" in refused("--config", "../up", "--sources", "lsa").replace("'", "")
    assert "--top-k 0" in refused("--top-k", "0")


def test_a_rebuilt_source_makes_the_hybrid_stale(poetry, capsys):
    ids = poetry.corpus["id"].to_pylist()
    lists = [ids[:10]] * len(poetry.queries)
    write_source(poetry, "bm25", lists)
    write_source(poetry, "lsa", lists)
    sources = ("--sources", "bm25", "lsa")
    assert command(poetry, *sources) == 0

    write_source(poetry, "lsa", [ids[1:11]] * len(poetry.queries))  # other lists
    assert command(poetry, *sources) == 2
    assert "exists, made with other parameters; replace it with --overwrite" in capsys.readouterr().err
    assert command(poetry, *sources, "--overwrite") == 0

    write_source(poetry, "lsa", [ids[1:11]] * len(poetry.queries), top_k=10)  # the same lists, made in another way
    assert command(poetry, *sources) == 2
    assert command(poetry, "--sources", "lsa", "bm25", "--overwrite") == 0
    assert command(poetry, *sources) == 0  # the order of the sources makes no difference
