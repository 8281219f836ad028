"""What the cards say in words: one `About` a dataset. No figure is in here: a card's figures come from its build."""

from dataclasses import dataclass

import NanoDAPFAM
import Poetry50KRetrieval


@dataclass(frozen=True)
class About:
    title: str
    summary: str
    metadata: dict[str, object]  # the card's YAML, but for what is counted
    upstream: str
    fields: dict[str, dict[str, str]]  # config -> field -> what it holds
    construction: tuple[str, ...]
    labels: dict[int, str]
    licence: str
    citation: str


QRELS_FIELDS = {"query-id": "a query of `queries`", "corpus-id": "a document of `corpus`"}
CANDIDATE_FIELDS = {"query-id": "a query of `queries`", "corpus-ids": "documents of `corpus`, the best first"}

POETRY = About(
    title="Poetry50KRetrieval",
    summary=(
        "Find the pages of poetry that a short topic is about. The documents are single pages of scanned books as "
        "optical character recognition read them, with all its mistakes; the topics are a word or two, such as `war` "
        "or `mothers day`; relevance is graded. It measures how a retriever bridges the gap between an abstract topic "
        "and verse that seldom names it."
    ),
    metadata={
        "pretty_name": "Poetry 50K Retrieval",
        "language": ["en"],
        "license": "other",
        "license_name": "not-specified-upstream",
        "license_link": "https://ciir.cs.umass.edu/downloads/poetry/",
        "task_categories": ["text-retrieval", "text-ranking"],
        "task_ids": ["document-retrieval"],
        "annotations_creators": ["crowdsourced", "expert-generated"],
        "language_creators": ["found"],
        "multilinguality": ["monolingual"],
        "source_datasets": ["extended|other-poetry-50k"],
        "tags": ["information-retrieval", "mteb", "beir", "poetry", "ocr", "graded-relevance"],
    },
    upstream=(
        "The texts and judgments are John Foley's [Poetry 50K](https://ciir.cs.umass.edu/downloads/poetry/), made for "
        "his dissertation at the CIIR, University of Massachusetts Amherst. The books were scanned by the Internet "
        "Archive; the judgments were crowdsourced on Mechanical Turk and adjudicated."
    ),
    fields={
        "corpus": {
            "id": "`book/page`, unique",
            "text": "the page as it was recognised: tabs are spaces, line ends are kept",
            "book": "the Internet Archive's identifier of the book",
            "page": "the page's number in the book",
            "score": "how sure the upstream's classifier was that the page is poetry",
            "n_duplicates": "how many other pages were found to be the same text",
            "duplicates": "their ids as a JSON list",
        },
        "queries": {"id": "the topic as the judgments name it", "text": "the topic with its underscores as spaces"},
        "qrels_max": QRELS_FIELDS | {"score": "the label, where annotators differ the higher one"},
        "qrels_min": QRELS_FIELDS | {"score": "the label, where annotators differ the lower one"},
        "bm25": CANDIDATE_FIELDS,
        "harrier_oss_v1_270m": CANDIDATE_FIELDS,
        "reranking_hybrid": CANDIDATE_FIELDS,
    },
    construction=(
        f"`{Poetry50KRetrieval.CORPUS_FILE}` is read page by page. A page's id is its book and its number; tabs become "
        "spaces; nothing else of the text is changed.",
        "The topics of both judgment files, sorted, are the queries. Upstream has no other text for them.",
        "The upstream's label for pages that are not poetry or cannot be judged becomes 0.",
        "A judgment on a page that the corpus does not have, because deduplication folded it into another, is dropped.",
    ),
    labels={
        2: "highly relevant",
        1: "relevant, or partly",
        0: "not relevant, or not poetry, or not to be judged",
    },
    licence=(
        "The upstream names no licence, hence `other`: cite the dissertation. The scans are the Internet Archive's and "
        "keep its terms of access. The loading script is Apache-2.0."
    ),
    citation=Poetry50KRetrieval.CITATION,
)

DAPFAM = About(
    title="NanoDAPFAM",
    summary=(
        "Find the patent families that a patent family cites, small enough to be run in minutes. Each split is a "
        "benchmark of its own, with its own corpus, queries and judgments: the splits differ in what a query's text "
        "and a document's text are made of, from title and abstract to the full description, and in whether a citation "
        "within or across technical domains counts. Documents run to book length, which makes this a test of "
        "long-context retrieval as well."
    ),
    metadata={
        "pretty_name": "NanoDAPFAM",
        "language": ["en"],
        "license": "cc-by-nc-sa-4.0",
        "task_categories": ["text-retrieval", "text-ranking"],
        "task_ids": ["document-retrieval"],
        "annotations_creators": ["found"],
        "language_creators": ["found"],
        "multilinguality": ["monolingual"],
        "source_datasets": ["datalyes/DAPFAM_patent"],
        "tags": ["information-retrieval", "mteb", "beir", "nano", "patents", "prior-art-search", "long-context"],
    },
    upstream=(
        "The families and their citations are [DAPFAM](https://huggingface.co/datasets/datalyes/DAPFAM_patent), "
        "introduced in [arXiv:2506.22141](https://arxiv.org/abs/2506.22141) and evaluated in full by "
        "[MTEB](https://github.com/embeddings-benchmark/mteb). The layout is that of "
        "[NanoBEIR](https://huggingface.co/datasets/sentence-transformers/NanoBEIR-en), so what reads that reads this."
    ),
    fields={
        "corpus": {"_id": "the family's Lens id, unique in its split", "text": "the document: the split's view of it"},
        "queries": {"_id": "the family's Lens id", "text": "the query: the split's view of it"},
        "qrels": QRELS_FIELDS | {"corpus-id": "a family of `corpus` that it cites: every row is a positive"},
        "bm25": CANDIDATE_FIELDS,
        "harrier_oss_v1_270m": CANDIDATE_FIELDS,
        "reranking_hybrid": CANDIDATE_FIELDS,
    },
    construction=(
        "Positives are the relations with a score above 0; where a split is of one domain only, those marked with it. "
        "The first occurrence of a pair counts.",
        f"Queries come in source order, at most {NanoDAPFAM.QUERIES}: families that have a positive, with a text that "
        "no earlier query has. The text is the view's fields that are not empty, joined by line ends.",
        f"The corpus has at most {NanoDAPFAM.DOCUMENTS:,} documents: first all positives of those queries, then others "
        "in source order until it is full. The text is the title, a space, and the other fields joined by line ends, "
        "which is what MTEB feeds an encoder.",
        "A document whose whole text is there already is left out; a judgment on it moves to the one that stayed, and "
        "a pair that then occurs twice is kept once.",
    ),
    labels={},
    licence=(
        "CC-BY-NC-SA-4.0, as upstream: name the authors, no commercial use, share alike. The loading script is "
        "Apache-2.0."
    ),
    citation=NanoDAPFAM.CITATION,
)

ABOUT = {"Poetry50KRetrieval": POETRY, "NanoDAPFAM": DAPFAM}

SCOPES = {"All": "all citations", "In": "same domain", "Out": "other domains"}
VIEWS = {
    "TitlAbs": "title, abstract",
    "TitlAbsClm": "title, abstract, claims",
    "FullText": "title, abstract, claims, description",
}

POLICIES = {  # command that builds the lists -> how
    "bm25": (
        "The best documents of the split's own corpus by BM25, equal scores in corpus order. Where positives are "
        "forced, each one that the ranking missed takes the place of the last candidate that is not a positive; ids "
        "stay unique. Such a list suits a reranker, which can then find every positive; as a ranking it flatters BM25 "
        "beyond the ranks it was forced into."
    ),
    "dense": (
        "The best documents of the split's own corpus by cosine similarity of their embeddings with the query's. "
        "Nothing is forced."
    ),
    "hybrid": (
        "The sources' lists by reciprocal rank fusion: a document scores the sum of 1 / (rrf k + rank) over the lists "
        "that have it; ties go to the better rank, then by id. If no candidate is a positive, one positive, drawn by "
        "the seed, the split and the query's id, is appended as a safeguard; it has no score and is not counted in the "
        "measures."
    ),
}
INSERTED = {"bm25": ("Forced positives", "forced_positives"), "hybrid": ("Safeguards", "safeguards")}
