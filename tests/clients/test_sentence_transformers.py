"""sentence-transformers' NanoBEIR evaluators, bi-encoder and cross-encoder, on a staged NanoDAPFAM split."""

import json

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.cross_encoder.evaluation import CrossEncoderNanoBEIREvaluator
from sentence_transformers.cross_encoder.evaluation import nano_beir as cross_encoder_table
from sentence_transformers.sentence_transformer.evaluation import NanoBEIREvaluator
from sentence_transformers.sentence_transformer.evaluation import nano_beir as bi_encoder_table
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

RERANKED = 20  # documents a query, from the top of bm25


@pytest.fixture
def staged(stage):
    return stage("NanoDAPFAM")


@pytest.fixture
def name(staged):
    """The split's name to the evaluators, which take the names of their tables and find a split as Nano + the value."""
    short = staged.split.removeprefix("Nano")
    tables = [module.DATASET_NAME_TO_HUMAN_READABLE for module in (bi_encoder_table, cross_encoder_table)]
    for table in tables:
        table[short.lower()] = short
    yield short
    for table in tables:
        del table[short.lower()]


@pytest.fixture(scope="session")
def cross_encoder(model_folder, tmp_path_factory):
    """A cross-encoder of one small layer, with random weights so large that its scores lie well apart."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("cross_encoder")
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    size = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig.from_pretrained(model_folder, num_labels=1, initializer_range=0.2, **size)
    BertForSequenceClassification(config).save_pretrained(folder)
    return CrossEncoder(str(folder), max_length=256)


def test_bi_encoder_reports_the_ndcg_of_evaluate(staged, name, model_folder, tmp_path):
    evaluator = NanoBEIREvaluator([name], dataset_id=str(staged.folder), write_csv=False, write_predictions=True)
    results = evaluator(SentenceTransformer(str(model_folder)), output_path=str(tmp_path))
    reported = results[f"{staged.split}_cosine_ndcg@10"]
    assert reported == results["NanoBEIR_mean_cosine_ndcg@10"] > 0

    predictions = tmp_path / f"Information-Retrieval_evaluation_{staged.split}_predictions_cosine.jsonl"
    run = {}
    for line in predictions.read_text("utf-8").splitlines():
        ranked = json.loads(line)
        run[ranked["query_id"]] = {hit["corpus_id"]: -rank for rank, hit in enumerate(ranked["results"])}
    assert sorted(run) == sorted(staged.collection(staged.split).qrels())
    assert reported == pytest.approx(staged.evaluate_run(run, tmp_path / "bi_encoder.run"), abs=1e-4)
    if staged.has_model_lists:
        assert reported == pytest.approx(staged.evaluate("--config", "minilm"), abs=1e-4)


def test_cross_encoder_reports_the_ndcg_of_evaluate(staged, name, cross_encoder, tmp_path):
    """Of the bm25 lists as they are, and of the cross-encoder's run, which has every positive in it."""
    evaluator = CrossEncoderNanoBEIREvaluator(
        [name], dataset_id=str(staged.folder), rerank_k=RERANKED, write_csv=False, batch_size=256
    )
    results = evaluator(cross_encoder)
    assert results[f"{staged.split}_R{RERANKED}_base_ndcg@10"] == pytest.approx(
        staged.evaluate("--config", "bm25"), abs=1e-4
    )

    collection = staged.collection(staged.split)
    queries, corpus = (
        dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
        for table in (collection.queries, collection.corpus)
    )
    positives = collection.positives()
    run = {}
    for row in collection.table("bm25").to_pylist():
        query_id = row["query-id"]
        documents = dict.fromkeys([*positives[query_id], *row["corpus-ids"][:RERANKED]])
        pairs = [[queries[query_id], corpus[document_id]] for document_id in documents]
        scores = cross_encoder.predict(pairs, batch_size=256, show_progress_bar=False)
        run[query_id] = dict(zip(documents, scores.tolist(), strict=True))
    assert results[f"{staged.split}_R{RERANKED}_ndcg@10"] == pytest.approx(
        staged.evaluate_run(run, tmp_path / "cross_encoder.run"), abs=1e-4
    )
