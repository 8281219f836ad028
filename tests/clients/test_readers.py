"""polars, DuckDB and pandas read every staged config's files and find the builders' rows."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from clients.conftest import SPLITS

CONFIGS = {  # dataset -> staged folders -> the builder's config
    "Poetry50KRetrieval": ["corpus", "queries", "qrels_max", "qrels_min", "bm25", "reranking_hybrid"],
    "NanoDAPFAM": ["corpus", "queries", "qrels", "bm25", "reranking_hybrid"],
}


def read_with_polars(files):
    return pl.read_parquet(files).to_dicts()


def read_with_duckdb(files):
    read = duckdb.read_parquet(files)
    return [dict(zip(read.columns, row, strict=True)) for row in read.fetchall()]


def read_with_pandas(files):
    frame = pd.concat([pd.read_parquet(file) for file in files])
    lists = {name: frame[name].map(list) for name in frame if isinstance(frame[name].iloc[0], np.ndarray)}
    return frame.assign(**lists).to_dict("records")


@pytest.mark.parametrize("dataset", CONFIGS)
@pytest.mark.parametrize("read", [read_with_polars, read_with_duckdb, read_with_pandas])
def test_every_config_has_the_rows_of_the_builders(stage, dataset, read):
    staged = stage(dataset)
    for split in SPLITS[dataset]:
        collection = staged.collection(split)
        for config in CONFIGS[dataset]:
            rows = read(files_of(staged, config, split))
            assert rows == collection.table(config).to_pylist(), (split, config)


@pytest.mark.parametrize("read", [read_with_polars, read_with_duckdb, read_with_pandas])
def test_the_qrels_for_mteb_are_the_qrels_with_a_score(stage, read):
    staged = stage("NanoDAPFAM")
    for split in SPLITS["NanoDAPFAM"]:
        rows = read(files_of(staged, "mteb-qrels", split))
        assert rows == [row | {"score": 1} for row in staged.collection(split).table("qrels").to_pylist()]


@pytest.mark.parametrize("dataset", CONFIGS)
def test_no_other_folder_holds_rows(stage, dataset):
    extra = ["mteb-qrels"] if dataset == "NanoDAPFAM" else []
    found = {file.parent.name for file in stage(dataset).folder.rglob("*.parquet")}
    assert found == {*CONFIGS[dataset], *extra}


def files_of(staged, config, split):
    files = sorted(map(str, (staged.folder / config).glob(f"{split}-*.parquet")))
    assert files, f"{staged.folder}/{config}: no files of {split}"
    return files
