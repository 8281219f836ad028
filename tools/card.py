"""A staged repository's README.md: what was built in, Markdown with its YAML block out. No file is read or written.

Every figure is computed from the build. Text that comes from data, such as a model's name in a recipe, is escaped: it
can end neither a table cell nor a line, nor be taken for Markdown or HTML.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import datasets
import numpy as np
import xxhash
import yaml

import NanoDAPFAM
import Poetry50KRetrieval
from NanoDAPFAM import BUILT_BY
from tools.card_text import ABOUT, INSERTED, POLICIES, SCOPES, VIEWS
from tools.collection import BUILDERS, QRELS_CONFIGS
from tools.stage_parquet import Part

FEATURES = {"Poetry50KRetrieval": Poetry50KRetrieval.FEATURES, "NanoDAPFAM": dict(NanoDAPFAM.FEATURES)}
# MTEB reads `corpus`, `queries` and `qrels`, or the same with a prefix, and wants a score. What the card's own configs
# lack is added under other names: another view of the same files, or a config of its own.
MTEB_QRELS = "mteb-qrels"
FEATURES["NanoDAPFAM"][MTEB_QRELS] = NanoDAPFAM.FEATURES["qrels"] | {"score": datasets.Value("float64")}
ALIASES = {
    "Poetry50KRetrieval": {"qrels": "qrels_max"},
    "NanoDAPFAM": {"mteb-corpus": "corpus", "mteb-queries": "queries"},
}
PICTURES = {"recall": "assets/recall.svg", "labels": "assets/labels.svg", "lengths": "assets/lengths.svg"}
SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10_000_000: "1M<n<10M"}
SHOWN = ("nDCG@10", "recall@100")


@dataclass(frozen=True)
class Candidates:
    """A split's candidate lists of one config."""

    recipe: dict
    lengths: tuple[int, int]  # of the shortest and of the longest list
    measures: dict[str, dict[str, float]]  # qrels config -> measure -> mean over the queries
    recall: dict[str, np.ndarray]  # qrels config -> recall at 1, 2, 3 … candidates


@dataclass(frozen=True)
class Split:
    """What was found in a split's judgments and candidate lists."""

    name: str
    labels: dict[str, dict[int, int]]  # qrels config -> label -> number of judgments
    candidates: dict[str, Candidates]  # config -> its lists, where they are built


@dataclass(frozen=True)
class Build:
    """A dataset as it was staged; `topics` and `upstream`, counts of the upstream files in words, are poetry's."""

    dataset: str
    repository: str
    official: bool  # of the official upstream, not of files that a `data_dir` named
    parts: list[Part]
    splits: list[Split]
    topics: list[str]
    upstream: dict[str, int]

    def of_config(self, config: str) -> list[Part]:
        return [part for part in self.parts if part.config == config]

    def rows(self, config: str, split: str) -> int:
        return sum(part.rows for part in self.of_config(config) if part.split == split)

    @property
    def configs(self) -> list[str]:
        """The dataset's own configs that are staged, in the builder's order."""
        staged = {part.config for part in self.parts} - {MTEB_QRELS}
        return [config for config in FEATURES[self.dataset] if config in staged]

    @property
    def candidate_configs(self) -> list[str]:
        return [config for config in self.configs if config in BUILT_BY]


# ---- Text from data ----


def escape(text: object) -> str:
    """Data as text of one line that Markdown and HTML leave as it is, in a table too."""
    line = " ".join(str(text).split())
    return re.sub(r"[^\w .,:;/()+=%@-]|_", lambda found: f"&#{ord(found[0])};", line)


def code(text: object) -> str:
    """Data as code: in backticks where it is plain, else in an element that holds anything escaped."""
    plain = re.fullmatch(r"[\w.,:/+=@ -]*[\w]", str(text))
    return f"`{text}`" if plain and "\n" not in str(text) else f"<code>{escape(text)}</code>"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a column whose cells are all numbers is aligned to the right. Cells are Markdown."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    numeric = [all(re.fullmatch(r"[\d.,–]+( in all)?", cell) for cell in column) for column in zip(*cells, strict=True)]
    rules = ["---:" if right else "---" for right in numeric or [False] * len(header)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rules, *cells))


def spread(values: Iterable[int]) -> str:
    """One number, or the smallest and the largest."""
    values = sorted(set(values))
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,}–{values[-1]:,}"


# ---- YAML ----


def front_matter(build: Build) -> dict[str, object]:
    """The card's YAML: what the Hub searches by, which files are a config's, and what they hold."""
    documents = sum(part.rows for part in build.of_config("corpus"))
    size = next((name for limit, name in SIZES.items() if documents < limit), "n>10M")
    sources = {config: config for config in FEATURES[build.dataset] if build.of_config(config)}
    sources |= ALIASES[build.dataset]
    return {
        **ABOUT[build.dataset].metadata,
        "size_categories": [size],
        "configs": [config_files(build, config, source) for config, source in sources.items()],
        "dataset_info": [config_info(build, config, source) for config, source in sources.items()],
    }


def config_files(build: Build, config: str, source: str) -> dict[str, object]:
    parts = build.of_config(source)
    files = [{"split": part.split, "path": f"{source}/{part.split}-*"} for part in parts]
    default = {"default": True} if config == BUILDERS[build.dataset].DEFAULT_CONFIG_NAME else {}
    # `datasets` caches a local folder's rows by what its card says: without this, until a size changes.
    content = xxhash.xxh3_128("".join(part.digest for part in parts).encode()).hexdigest()
    return {"config_name": config, "description": f"content {content}", "data_files": files, **default}


def config_info(build: Build, config: str, source: str) -> dict[str, object]:
    parts = build.of_config(source)
    return {
        "config_name": config,
        "features": [feature(name, kind) for name, kind in FEATURES[build.dataset][source].items()],
        "splits": [{"name": part.split, "num_bytes": part.num_bytes, "num_examples": part.rows} for part in parts],
        "download_size": sum(part.download_size for part in parts),
        "dataset_size": sum(part.num_bytes for part in parts),
    }


def feature(name: str, kind: object) -> dict[str, str]:
    """A field's YAML. A list is called `sequence`, which every version knows; before 4, `list` means something else."""
    return {"name": name, "dtype": kind.dtype} if isinstance(kind, datasets.Value) else list_feature(name, kind)


def list_feature(name: str, kind: object) -> dict[str, str]:
    return {"name": name, "sequence": kind.feature.dtype}


# ---- Sections ----


def render(build: Build) -> str:
    """README.md."""
    block = yaml.safe_dump(front_matter(build), sort_keys=False, allow_unicode=True, width=1000)
    about = ABOUT[build.dataset]
    sections = [
        f"# {about.title}\n\n{about.summary}\n\n{about.upstream}",
        counts_section(build),
        labels_section(build) if about.labels else splits_section(build),
        lengths_section(build),
        fields_section(build),
        loading_section(build),
        construction_section(build),
        candidates_section(build) if build.candidate_configs else "",
        f"## Licence\n\n{about.licence}",
        f"## Citation\n\n```bibtex\n{about.citation}```",
    ]
    return f"---\n{block}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def counts_section(build: Build) -> str:
    rows = [
        (
            f"`{config}`" + (" (default)" if config == BUILDERS[build.dataset].DEFAULT_CONFIG_NAME else ""),
            len(parts),
            spread(part.rows for part in parts),
            sum(part.rows for part in parts),
            megabytes(sum(part.download_size for part in parts)),
        )
        for config in build.configs
        for parts in [build.of_config(config)]
    ]
    return "## Counts\n\n" + table(("Config", "Splits", "Rows a split", "Rows", "Parquet, MB"), rows)


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}" if size >= 50_000 else f"{size / 1e6:.3f}"


def labels_section(build: Build) -> str:
    """The labels' histogram, and what became of the upstream's judgments."""
    histograms = label_histograms(build)
    rows = [
        (str(label), meaning, *(histogram.get(label, 0) for histogram in histograms.values()))
        for label, meaning in ABOUT[build.dataset].labels.items()
    ]
    queries = sum(part.rows for part in build.of_config("queries"))
    judged = [f"{sum(histogram.values()) / queries:.1f} in `{config}`" for config, histogram in histograms.items()]
    lines = [
        "## Relevance",
        picture("labels", "bar chart: number of judgments with each label, by qrels config"),
        table(("Label", "Meaning", *(f"`{config}`" for config in histograms)), rows),
        f"Judged pages a query, on average: {', '.join(judged)}.",
    ]
    lines.append(table(("In the upstream's judgment files", "Number"), build.upstream.items()))
    lines.append(f"The topics are {', '.join(map(code, build.topics))}.")
    return "\n\n".join(lines)


def label_histograms(build: Build) -> dict[str, dict[int, int]]:
    """Qrels config -> label -> judgments, over all splits."""
    histograms: dict[str, dict[int, int]] = {config: {} for config in QRELS_CONFIGS[build.dataset]}
    for split in build.splits:
        for config, labels in split.labels.items():
            for label, count in labels.items():
                histograms[config][label] = histograms[config].get(label, 0) + count
    return histograms


def splits_section(build: Build) -> str:
    """What a split's name says, and what it holds."""
    first = build.splits[0].name
    rows = [
        (
            f"`{split.name}`",
            SCOPES[NanoDAPFAM.SPLITS[split.name].scope],
            *(build.rows(config, split.name) for config in ("queries", "corpus", "qrels")),
        )
        for split in build.splits
    ]
    return "\n\n".join(
        (
            "## Splits",
            "A split's name is `NanoDAPFAM`, which citations count, what a query's text is made of, `To`, and what a "
            "document's text is made of:",
            table(("Text", "Made of"), [(f"`{view}`", fields) for view, fields in VIEWS.items()]),
            f"Without `Nano` and with `Retrieval` it is the name of the task in MTEB that the split is a sample of: "
            f"`{first}` is of `{first.removeprefix('Nano')}Retrieval`.",
            table(("Split", "Citations", "Queries", "Corpus", "Qrels"), rows),
        )
    )


def views(build: Build) -> dict[str, dict[str, np.ndarray]]:
    """`documents` and `queries` -> name of what the texts are made of -> characters of each text."""
    found: dict[str, dict[str, list[np.ndarray]]] = {"documents": {}, "queries": {}}
    for what, config in (("documents", "corpus"), ("queries", "queries")):
        for part in build.of_config(config):
            view = "pages" if what == "documents" else "topics"
            if build.dataset == "NanoDAPFAM":
                split = NanoDAPFAM.SPLITS[part.split]
                view = split.corpus_view if what == "documents" else split.query_view
            found[what].setdefault(view, []).append(part.lengths)
    order = list(reversed(NanoDAPFAM.VIEWS))
    return {
        what: {
            view: np.concatenate(named[view])
            for view in sorted(named, key=lambda view: -order.index(view) if view in order else 0)
        }
        for what, named in found.items()
    }


def lengths_section(build: Build) -> str:
    rows = [
        (f"{what}, `{view}`", len(lengths), *(f"{value:,.0f}" for value in summary(lengths)))
        for what, named in views(build).items()
        for view, lengths in named.items()
    ]
    header = ("Characters of", "Texts", "Shortest", "Median", "Mean", "95 % up to", "Longest")
    shown = picture("lengths", "histograms: how long the texts of documents and of queries are, in characters")
    return "\n\n".join(("## Text lengths", shown, table(header, rows)))


def summary(lengths: np.ndarray) -> list[float]:
    """Minimum, median, mean, 95th percentile, maximum; zeros where there are no texts."""
    if not len(lengths):
        return [0.0] * 5
    return [lengths.min(), np.median(lengths), lengths.mean(), np.percentile(lengths, 95), lengths.max()]


def fields_section(build: Build) -> str:
    """The fields of every config, once for configs that have the same."""
    groups: dict[tuple, list[str]] = {}
    for config in build.configs:
        fields = tuple(
            (f"`{name}`", type_name(FEATURES[build.dataset][config][name]), meaning)
            for name, meaning in ABOUT[build.dataset].fields[config].items()
        )
        groups.setdefault(fields, []).append(config)
    sections = [
        f"### {', '.join(f'`{config}`' for config in configs)}\n\n{table(('Field', 'Type', 'What it holds'), fields)}"
        for fields, configs in groups.items()
    ]
    return "\n\n".join(("## Configs and fields", *sections, mteb_note(build)))


def type_name(kind: object) -> str:
    return kind.dtype if isinstance(kind, datasets.Value) else f"list of {kind.feature.dtype}"


def mteb_note(build: Build) -> str:
    names = [f"`{alias}` (the files of `{source}`)" for alias, source in ALIASES[build.dataset].items()]
    if build.of_config(MTEB_QRELS):
        names.append(f"`{MTEB_QRELS}` (`qrels` with a score of 1)")
    return f"For MTEB, which asks for certain names and for a score, there are also {', '.join(names)}."


def loading_section(build: Build) -> str:
    """The calls a user types: this repository, its first split, and the judgments as a dictionary."""
    qrels = QRELS_CONFIGS[build.dataset][0]
    names = {"corpus": "corpus", "queries": "queries", "qrels": qrels} | {
        config: config for config in build.candidate_configs[:1]
    }
    calls = "\n".join(f'{name} = load_dataset(repository, "{config}", split=split)' for name, config in names.items())
    grade = 'row["score"]' if "score" in FEATURES[build.dataset][qrels] else "1"
    root = "{repository}" if build.repository.startswith(".") else "hf://datasets/{repository}"
    one_split = f"""
`load_dataset` prepares all splits of a config, whichever it returns. For one split alone, stream it or name its files:

```python
stream = load_dataset(repository, "corpus", split=split, streaming=True)
files = {{split: f"{root}/corpus/{{split}}-*.parquet"}}
corpus = load_dataset("parquet", data_files=files, split=split)
```
"""
    return f"""## How to load

The files are plain Parquet: `datasets` from 2.19 on loads them, and so does whatever else reads Parquet.

```python
from datasets import load_dataset

repository, split = "{build.repository}", "{build.splits[0].name}"
{calls}

judged = {{}}  # query id -> document id -> relevance
for row in qrels:
    judged.setdefault(row["query-id"], {{}})[row["corpus-id"]] = {grade}
```
{one_split if len(build.splits) > 1 else ""}
`script/{build.dataset}.py` is the loading script that builds these rows from the upstream files, for `datasets` up to
3.6: `load_dataset("script/{build.dataset}.py", "corpus", trust_remote_code=True)`."""


def construction_section(build: Build) -> str:
    steps = [f"{number}. {step}" for number, step in enumerate(ABOUT[build.dataset].construction, 1)]
    if not build.official:
        steps.append(
            "\nThis copy was built from files that its maker named with `data_dir`, which were not compared with the "
            "official upstream."
        )
    return "## Construction\n\n" + "\n".join(steps)


def candidates_section(build: Build) -> str:
    """How each config's lists were made, by their recipes, and how well they rank."""
    sections = [
        "## Candidate lists",
        "First-stage rankings to compare with, and lists for a reranker to start from, made as their recipes say.",
        picture("recall", "curves: recall at k over the number of candidates k, by candidate config"),
        *(candidate_section(build, config) for config in build.candidate_configs),
        "Measures are trec_eval's, nDCG with the label as its gain; a query whose judgments are all 0 counts as 0, and "
        "a candidate without a score as not retrieved.",
    ]
    return "\n\n".join(sections)


def candidate_section(build: Build, config: str) -> str:
    splits = {split.name: split.candidates[config] for split in build.splits if config in split.candidates}
    recipes = [candidates.recipe for candidates in splits.values()]
    command = BUILT_BY[config]
    tools = ", ".join(sorted({code(recipe.get("tool")) for recipe in recipes}))
    parameters = recipe_rows([recipe["parameters"] for recipe in recipes], build.candidate_configs)
    header, key = INSERTED.get(command, ("", ""))
    several = len(QRELS_CONFIGS[build.dataset]) > 1
    rows = [
        (
            f"`{name}`",
            *([f"`{qrels}`"] if several else []),
            spread(candidates.lengths),
            *(f"{measures[measure]:.4f}" for measure in SHOWN),
            *([int(candidates.recipe["counts"].get(key, 0))] if key else []),
        )
        for name, candidates in splits.items()
        for qrels, measures in candidates.measures.items()
    ]
    if len(splits) > 1:
        rows.append(mean_row(list(splits.values()), key))
    columns = ("Split", *(["Qrels"] if several else []), "Candidates a query", *SHOWN, *([header] if key else []))
    return "\n\n".join(
        (
            f"### `{config}`",
            POLICIES[command],
            table(("Parameter", "Value"), [*parameters, ("made by", tools)]),
            table(columns, rows),
        )
    )


def mean_row(lists: Sequence[Candidates], inserted: str) -> tuple[object, ...]:
    """The last row of NanoDAPFAM's tables: the splits' means, and what was inserted in all of them."""
    (qrels,) = lists[0].measures
    return (
        f"mean of {len(lists)}",
        spread(length for candidates in lists for length in candidates.lengths),
        *(f"{np.mean([candidates.measures[qrels][measure] for candidates in lists]):.4f}" for measure in SHOWN),
        *([f"{sum(int(one.recipe['counts'].get(inserted, 0)) for one in lists):,} in all"] if inserted else []),
    )


def recipe_rows(recipes: Sequence[Mapping[str, object]], staged: Sequence[str]) -> list[tuple[str, str]]:
    """Name and value of every parameter, as Markdown; sources that are not staged with their parameters."""
    values: dict[str, list[object]] = {}
    for recipe in recipes:
        for name, value in recipe.items():
            if name == "sources" and isinstance(value, dict):
                values.setdefault(name, []).append(", ".join(value))
                for source, made in value.items():
                    for key, of_source in made.get("parameters", {}).items() if source not in staged else ():
                        values.setdefault(f"{source}: {key}", []).append(of_source)
            else:
                values.setdefault(name, []).append(value)
    return [(escape(name.replace("_", " ")), recipe_value(found)) for name, found in values.items()]


def recipe_value(values: Sequence[object]) -> str:
    """A parameter's value, or where it differs between splits the values it has, or the range of numbers."""
    if all(type(value) is int for value in values) and len(set(values)) > 1:
        return spread(values)
    shown = {None: "none", True: "yes", False: "no"}
    words = [shown[value] if value is None or isinstance(value, bool) else code(value) for value in values]
    return ", ".join(dict.fromkeys(words))


def picture(name: str, alternative: str) -> str:
    return f"![{alternative}]({PICTURES[name]})"


def recall_panels(build: Build) -> dict[str, dict[str, np.ndarray]]:
    """Panels of the recall picture: poetry's by qrels, NanoDAPFAM's by scope. A curve is the mean over the splits."""
    panels: dict[str, dict[str, list[np.ndarray]]] = {}
    for split in build.splits:
        for config, candidates in split.candidates.items():
            for qrels, recall in candidates.recall.items():
                title = qrels
                if build.dataset == "NanoDAPFAM":
                    title = SCOPES[NanoDAPFAM.SPLITS[split.name].scope]
                panels.setdefault(title, {}).setdefault(config, []).append(recall)
    return {title: {config: mean_curve(found) for config, found in curves.items()} for title, curves in panels.items()}


def mean_curve(curves: Sequence[np.ndarray]) -> np.ndarray:
    """The mean at each k; a curve that ends before the longest one stays at its last value."""
    longest = max(map(len, curves))
    return np.mean([np.pad(curve, (0, longest - len(curve)), "edge") for curve in curves], axis=0)
