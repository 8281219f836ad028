"""The rules of design.md read a second time, in plain Python and with nothing of the scripts: what tests compare with.

Also the upstream formats and the sidecar format, written by hand.
"""

import gzip
import hashlib
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq

SPLITS = [
    f"NanoDAPFAM{scope}{query_view}To{corpus_view}"
    for scope in ("All", "In", "Out")
    for query_view in ("TitlAbsClm", "TitlAbs")
    for corpus_view in ("FullText", "TitlAbsClm", "TitlAbs")
]
VIEWS = {
    "TitlAbs": ["title_en", "abstract_en"],
    "TitlAbsClm": ["title_en", "abstract_en", "claims_text"],
    "FullText": ["title_en", "abstract_en", "claims_text", "description_en"],
}
DOMAINS = {"All": ["IN", "OUT"], "In": ["IN"], "Out": ["OUT"]}
CORPUS_GZ = "poetry50k.dedup.jsonl.gz"
CANDIDATES = ["bm25", "harrier_oss_v1_270m", "reranking_hybrid"]


def poetry(folder):
    """{config: rows} of the upstream files in a folder."""
    with gzip.open(folder / CORPUS_GZ, "rt", encoding="utf-8", newline="\n") as lines:
        corpus = [page_row(json.loads(line)) for line in lines]
    in_corpus = {page["id"] for page in corpus}
    lines = {name: (folder / f"mturk.{name}.qrel").read_text("utf-8").splitlines() for name in ("max", "min")}
    judgments = {name: [line.split() for line in lines[name]] for name in lines}
    topics = sorted({topic for name in judgments for topic, _, _, _ in judgments[name]})
    qrels = {
        f"qrels_{name}": [
            {"query-id": topic, "corpus-id": page, "score": max(0.0, float(label))}
            for topic, _, page, label in judgments[name]
            if page in in_corpus
        ]
        for name in judgments
    }
    return {"corpus": corpus, "queries": [{"id": t, "text": t.replace("_", " ")} for t in topics], **qrels}


def page_row(record):
    duplicates = []
    for duplicate in record.get("duplicates", []):
        if isinstance(duplicate, dict):
            duplicate = [duplicate["book"], duplicate["page"]]
        duplicates.append(duplicate if isinstance(duplicate, str) else f"{duplicate[0]}/{duplicate[1]}")
    return {
        "id": f"{record['book']}/{record['page']}",
        "text": record["text"].replace("\t", " "),
        "book": record["book"],
        "page": record["page"],
        "score": record["score"],
        "n_duplicates": len(duplicates),
        "duplicates": json.dumps(duplicates),
    }


def dapfam(folder, split):
    """{config: rows} of one split of the upstream files in a folder."""
    scope, query_view, corpus_view = re.fullmatch("NanoDAPFAM(All|In|Out)(.+)To(.+)", split).groups()
    cited_by = {}
    for relation in pq.read_table(folder / "qrels_all.parquet").to_pylist():
        if relation["relevance_score"] > 0 and relation["domain_rel"] in DOMAINS[scope]:
            cited = cited_by.setdefault(relation["query_id"], [])
            if relation["relevant_id"] not in cited:
                cited.append(relation["relevant_id"])

    queries, query_texts = [], set()
    for record in pq.read_table(folder / "queries.parquet").to_pylist():
        text = "\n".join(record[name] for name in VIEWS[query_view] if record[name])
        if record["query_id"] in cited_by and text not in query_texts:
            query_texts.add(text)
            queries.append({"_id": record["query_id"], "text": text})
    queries = queries[:200]

    positives = {document for query in queries for document in cited_by[query["_id"]]}
    source = pq.read_table(folder / "corpus.parquet").to_pylist()
    corpus, kept_as, id_of_text = [], {}, {}
    for record in sorted(source, key=lambda record: record["relevant_id"] not in positives):  # a stable sort
        title, *body = (record[name] or "" for name in VIEWS[corpus_view])
        text = (title + " " + "\n".join(field for field in body if field)).strip()
        if text not in id_of_text and len(corpus) < 10_000:
            id_of_text[text] = record["relevant_id"]
            corpus.append({"_id": record["relevant_id"], "text": text})
        kept_as[record["relevant_id"]] = id_of_text.get(text)

    pairs = []
    for query in queries:
        for document in cited_by[query["_id"]]:
            pair = (query["_id"], kept_as.get(document))
            if pair[1] is not None and pair not in pairs:
                pairs.append(pair)
    qrels = [{"query-id": query, "corpus-id": document} for query, document in pairs]
    return {"corpus": corpus, "queries": queries, "qrels": qrels}


def expected(dataset, config, folder, splits=SPLITS):
    """{split: rows} of a base config."""
    if dataset == "Poetry50KRetrieval":
        return {"test": poetry(folder)[config]}
    return {split: dapfam(folder, split)[config] for split in splits}


def first_difference(found, right):
    """Where two {split: rows} differ first, in few words; None where they do not."""
    if list(found) != list(right):
        return f"splits {list(found)}, expected {list(right)}"
    for split in right:
        for number, (row, right_row) in enumerate(zip(found[split], right[split], strict=False)):
            if row != right_row:
                return f"{split}, row {number}: {str(row)[:500]}, expected {str(right_row)[:500]}"
        if len(found[split]) != len(right[split]):
            return f"{split}: {len(found[split])} rows, expected {len(right[split])}"
    return None


def contents(folder):
    """{path in the folder: bytes} of the files in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_poetry(folder, lines, qrels_max, qrels_min=""):
    """Poetry's three upstream files; a line is a record, or bytes that are to be in the file as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (folder / CORPUS_GZ).write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
    (folder / "mturk.max.qrel").write_text(qrels_max, "utf-8")
    (folder / "mturk.min.qrel").write_text(qrels_min, "utf-8")


def dapfam_tables(corpus, queries, relations):
    """DAPFAM's three upstream files as {name: table}: an id and up to four fields; relations in column order."""
    fields = VIEWS["FullText"]
    relation = ["query_id", "relevant_id", "relevance_score", "domain_rel"]
    tables = {}
    for name, names, rows in (
        ("corpus", ["relevant_id", *fields], corpus),
        ("queries", ["query_id", *fields], queries),
        ("qrels_all", relation, relations),
    ):
        kinds = [pa.float64() if column == "relevance_score" else pa.string() for column in names]
        padded = [(*row, *[None] * (len(names) - len(row))) for row in rows]
        tables[f"{name}.parquet"] = pa.table(
            [pa.array([row[at] for row in padded], kind) for at, kind in enumerate(kinds)], names
        )
    return tables


def write_dapfam(folder, tables, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, folder / name, **options)


def candidate_lists(queries, corpus, depth=3):
    """Some list for each query: `depth` documents, another start for each query."""
    ids = [next(iter(document.values())) for document in corpus]
    return {
        next(iter(query.values())): [ids[(at + rank) % len(ids)] for rank in range(depth)]
        for at, query in enumerate(queries)
    }


def candidate_rows(lists):
    return [{"query-id": query, "corpus-ids": ids} for query, ids in lists.items()]


def write_sidecar(root, dataset, config, split, queries, lists, changes=()):
    """`root/config/split.parquet`; `changes` replace parts of the recipe."""
    values = b"".join(b"%d:%s" % (len(value.encode()), value.encode()) for query in queries for value in query.values())
    digests = {"queries": hashlib.sha256(values).hexdigest()}
    recipe = {"dataset": dataset, "split": split, "config": config, "digests": digests, **dict(changes)}
    scores = [[1 / (1 + rank) for rank in range(len(ids))] for ids in lists.values()]
    table = pa.table({"query-id": list(lists), "corpus-ids": list(lists.values()), "scores": scores})
    path = root / config / f"{split}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"recipe": json.dumps(recipe)}), path)
    return path
