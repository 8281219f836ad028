"""Checks of a build: plain values in, a `Check` out, with nothing read or written.

Structural checks hold for any upstream; checks of published figures compare what was measured with a table of figures
of the same shape; `compare_rows` compares two copies of one table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PASS, FAIL, NOT_BUILT = "pass", "FAIL", "not built"
SHOWN = 3  # of the rows that fail a check
CELL = 48  # characters of a value that a table shows

# How far a measured value may be from the published one; any other must be equal. Means were published to four
# decimals. Measures depend on the order of ties and, for bm25, on the single precision of bm25s's scores.
TOLERANCES = {"query_chars_mean": 5e-5, "document_chars_mean": 5e-5}
TOLERANCES |= dict.fromkeys(("ndcg_at_10", "hit_at_10", "recall_at_100"), 0.002)
TOLERANCES["candidates_per_row"] = 1e-9


@dataclass(frozen=True)
class Check:
    """One line of the report; `details` say where it fails, or what else a reader should know."""

    name: str
    expected: object
    found: object
    result: str
    details: tuple[str, ...] = ()


def compare(name: str, expected: object, found: object, details: Iterable[str] = ()) -> Check:
    """Passes if both are equal."""
    return Check(name, expected, found, PASS if expected == found else FAIL, tuple(details))


def all_but(name: str, total: int, exceptions: Iterable[str], details: Iterable[str] = ()) -> Check:
    """Passes if there are no exceptions; counts the others, names the first few."""
    exceptions = list(exceptions)
    return compare(name, total, total - len(exceptions), [*map(repr, exceptions[:SHOWN]), *details])


# ---- Published figures ----


def check_figures(name: str, published: Mapping[str, object], measured: Mapping[str, object]) -> list[Check]:
    """A check for each published figure; one that was not measured is not built."""
    return [check_figure(f"{name} {key}", key, figure, measured.get(key)) for key, figure in published.items()]


def check_figure(name: str, key: str, published: object, measured: object) -> Check:
    if measured is None:
        return Check(name, published, None, NOT_BUILT)
    tolerance = TOLERANCES.get(key)
    equal = published == measured if tolerance is None else abs(published - measured) <= tolerance
    return Check(name, published, measured, PASS if equal else FAIL)


def recipe_kind(recipes: Mapping[str, Mapping[str, dict]], config: str, parameters: Mapping[str, object]) -> str | None:
    """Which of the published recipes the parameters are of, or None; parameters that were not published may differ."""

    def agree(wanted: Mapping[str, object], found: Mapping[str, object], of_kind: Mapping[str, dict]) -> bool:
        found = dict(found)
        sources = found.pop("sources", {})
        if sorted(sources) != sorted(wanted.get("sources", ())):
            return False
        return all(found.get(key) == value for key, value in wanted.items() if key != "sources") and all(
            agree(of_kind[source], made["parameters"], of_kind) for source, made in sources.items()
        )

    for kind, of_kind in recipes.items():
        if config in of_kind and agree(of_kind[config], parameters, of_kind):
            return kind
    return None


# ---- Structure ----


def check_ids(name: str, ids: Sequence[str]) -> Check:
    """Ids are there and differ."""
    seen: set[str] = {""}
    exceptions = [row_id for row_id in ids if row_id in seen or seen.add(row_id)]
    return all_but(f"{name} ids unique, not empty", len(ids), exceptions)


def check_limit(name: str, limit: int, available: int, found: int) -> Check:
    """As many rows as the rule takes: all there are, up to the limit."""
    return compare(f"{name} rows, at most {limit}", min(limit, available), found)


def check_qrels(
    name: str, judgments: Sequence[tuple[str, str, float]], query_ids: Sequence[str], corpus_ids: set[str]
) -> list[Check]:
    """Every judgment (query id, document id, grade) is of a query and of a document that exist, and is there once."""
    queries, seen = set(query_ids), set()
    pairs = [(query_id, document_id) for query_id, document_id, _ in judgments]
    repeated = [" ".join(pair) for pair in pairs if pair in seen or seen.add(pair)]
    uncovered = [d for _, d, grade in judgments if grade > 0 and d not in corpus_ids]
    return [
        all_but(f"{name} query ids known", len(pairs), (q for q, _ in pairs if q not in queries)),
        all_but(f"{name} corpus ids known", len(pairs), (d for _, d in pairs if d not in corpus_ids)),
        all_but(f"{name} positives in the corpus", sum(grade > 0 for *_, grade in judgments), uncovered),
        all_but(f"{name} pairs unique", len(pairs), repeated),
    ]


def check_same_pairs(
    name: str, judgments: Sequence[tuple[str, str, float]], right: Mapping[tuple[str, str], float]
) -> Check:
    """The judgments are those that the upstream has, (query id, document id) -> grade: none lost, added or regraded."""
    found = {(query_id, document_id): grade for query_id, document_id, grade in judgments}
    other = [pair for pair in {**right, **found} if found.get(pair) != right.get(pair)]
    details = [f"{' '.join(pair)}: {found.get(pair)}, upstream {right.get(pair)}" for pair in other[:SHOWN]]
    return Check(f"{name} as upstream", len(right), len(found), FAIL if other else PASS, tuple(details))


def check_positives(name: str, query_ids: Sequence[str], positives: Mapping[str, Sequence[str]]) -> Check:
    """Every query has a positive."""
    return all_but(f"{name} with a positive", len(query_ids), (q for q in query_ids if not positives.get(q)))


def check_lists(
    name: str,
    lists: Mapping[str, tuple[Sequence[str], Sequence[float]]],
    query_ids: Sequence[str],
    corpus_ids: set[str],
) -> list[Check]:
    """Candidate lists, query id -> (document ids, scores), are a ranking of the corpus for every query, in order."""
    misplaced = [f"{f} for {q}" for q, f in zip_longest(query_ids, lists, fillvalue="nothing") if q != f]
    ranked = {query_id: document_ids for query_id, (document_ids, _) in lists.items()}
    unordered = [
        query_id
        for query_id, (document_ids, scores) in lists.items()
        if len(scores) != len(document_ids) or any(not high >= low for high, low in pairwise(scores))
    ]
    repeated = (q for q, document_ids in ranked.items() if len(set(document_ids)) < len(document_ids))
    unknown = (q for q, document_ids in ranked.items() if not corpus_ids.issuperset(document_ids))
    return [
        compare(f"{name} queries in order", len(query_ids), len(query_ids) - len(misplaced), misplaced[:SHOWN]),
        all_but(f"{name} candidates unique", len(lists), repeated),
        all_but(f"{name} candidates in the corpus", len(lists), unknown),
        all_but(f"{name} scores descending", len(lists), unordered),
    ]


def check_lengths(
    name: str, lists: Mapping[str, Sequence[str]], parameters: Mapping[str, object], documents: int
) -> list[Check]:
    """Lists are as long as their recipe says; nothing where it does not say.

    A fused list has top_k documents, or all that its sources have, and one more where a positive was appended.
    """
    if "top_k" not in parameters:
        return []
    longest = shortest = min(parameters["top_k"], documents)
    if "sources" in parameters:
        deepest = max((made["parameters"].get("top_k", 0) for made in parameters["sources"].values()), default=0)
        longest, shortest = longest + 1, min(longest, deepest)
    other = [f"{query_id}: {len(ids)}" for query_id, ids in lists.items() if not shortest <= len(ids) <= longest]
    length = str(longest) if longest == shortest else f"{shortest} to {longest}"
    return [all_but(f"{name} lists of {length}", len(lists), other)]


def check_forced(name: str, lists: Mapping[str, Sequence[str]], positives: Mapping[str, Sequence[str]]) -> Check:
    """Every positive is a candidate, or every candidate is a positive."""
    missed = [
        query_id
        for query_id, ids in lists.items()
        if not set(positives.get(query_id, ())) <= set(ids) and not set(ids) <= set(positives[query_id])
    ]
    return all_but(f"{name} positives forced in", len(lists), missed)


def check_recipe(name: str, recipe: Mapping, wanted: Mapping) -> list[Check]:
    """A recipe is of this config and split and of the rows at hand; another tool version is said, and no failure."""
    made_for, here = (
        "/".join(str(made.get(key)) for key in ("dataset", "config", "split")) for made in (recipe, wanted)
    )
    tool = f"made by {recipe.get('tool')}, this is {wanted['tool']}"
    digests = recipe["digests"]
    fresh = [what for what, digest in wanted["digests"].items() if digests.get(what) == digest]
    return [
        compare(f"{name} made for", here, made_for, [tool] if recipe.get("tool") != wanted["tool"] else []),
        compare(f"{name} made of the present", ", ".join(wanted["digests"]), ", ".join(fresh) or "none"),
    ]


def check_equal_lists(name: str, found: Mapping[str, object], right: Mapping[str, object]) -> Check:
    """Lists (query id -> any value) are what recomputing them gives."""
    return all_but(name, len(right), (query_id for query_id in right if found.get(query_id) != right[query_id]))


# ---- Two copies of one table ----


def compare_rows(name: str, ours: pa.Table, theirs: Iterable[pa.Table], keys: Sequence[str]) -> Check:
    """Whether another copy, a stream of small tables, has the same rows by key as `ours`, which may be memory-mapped.

    Besides our keys no more is held than one small table of theirs and our rows of the same keys. Another order and
    columns that only the other copy has are said, and no failure.
    """
    row_of = {key: row for row, key in enumerate(zip(*(ours[key].to_pylist() for key in keys), strict=True))}
    met = np.zeros(len(ours), bool)
    extra, differing, counts = [], [], {"extra": 0, "differing": 0}
    out_of_order, last, columns = None, -1, set()
    for table in theirs:
        columns |= set(table.column_names)
        lacking = [column for column in ours.column_names if column not in table.column_names]
        if lacking:
            message = f"it has no column {lacking[0]!r}, but {', '.join(table.column_names)}"
            return Check(name, f"{len(ours)} rows", "other columns", FAIL, (message,))
        try:
            table = table.select(ours.column_names).cast(pa.schema(list(ours.schema)))
        except (pa.ArrowException, ValueError) as error:
            return Check(name, f"{len(ours)} rows", "other types", FAIL, (str(error).splitlines()[0],))
        matched = []
        for their_row, key in enumerate(zip(*(table[key].to_pylist() for key in keys), strict=True)):
            row = row_of.get(key)
            if row is None or met[row]:
                counts["extra"] += 1
                extra += [f"extra: {' '.join(map(str, key))}"] if counts["extra"] <= SHOWN else []
                continue
            met[row] = True
            out_of_order = out_of_order or (key if row < last else None)
            last = row
            matched.append((row, their_row))
        for row, their_row, column in differing_rows(ours, table, matched):
            counts["differing"] += 1
            if counts["differing"] <= SHOWN:
                key = " ".join(str(ours[key][row].as_py()) for key in keys)
                where = first_difference(ours[column][row].as_py(), table[column][their_row].as_py())
                differing.append(f"differing: {key}: {column} {where}")
    missing = [" ".join(str(ours[key][int(row)].as_py()) for key in keys) for row in np.flatnonzero(~met)[:SHOWN]]
    counts["missing"] = int((~met).sum())
    details = [f"missing: {key}" for key in missing] + extra + differing
    if out_of_order:
        details.append(f"in another order there, first seen at {' '.join(map(str, out_of_order))}; not a failure")
    if more := sorted(columns - set(ours.column_names)):
        details.append(f"more columns there: {', '.join(more)}; not a failure")
    same = int(met.sum()) - counts["differing"]
    found = ", ".join([f"{same} rows", *(f"{counts[what]} {what}" for what in sorted(counts) if counts[what])])
    return compare(name, f"{len(ours)} rows", found, details)


def differing_rows(
    ours: pa.Table, theirs: pa.Table, matched: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """Of the pairs of rows (ours, theirs), those that differ, with the first column that does."""
    if not matched:
        return
    ours, theirs = rows_at(ours, [row for row, _ in matched]), rows_at(theirs, [row for _, row in matched])
    first: dict[int, str] = {}
    for column in ours.column_names:
        for pair in np.flatnonzero(unequal(ours[column], theirs[column])):
            first.setdefault(int(pair), column)
    for pair in sorted(first):
        yield *matched[pair], first[pair]


def rows_at(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """The rows in that order, without copying: slices of consecutive rows, which `take` would copy whole chunks for."""
    rows = np.asarray(rows)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return pa.concat_tables([table.slice(int(run[0]), len(run)) for run in runs])


def unequal(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> np.ndarray:
    """Row by row, bool; two nulls are equal."""
    if pa.types.is_nested(ours.type):
        return np.array([a != b for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True)], bool)
    values_differ = pc.fill_null(pc.not_equal(ours, theirs), False)
    return pc.or_(values_differ, pc.xor(pc.is_null(ours), pc.is_null(theirs))).to_numpy()


def first_difference(ours: object, theirs: object) -> str:
    """Where two values of a column differ."""
    if isinstance(ours, (str, list)) and isinstance(theirs, (str, list)):
        pairs = zip_longest(ours, theirs)
        position = next(position for position, (a, b) in enumerate(pairs) if a != b)
        ours, theirs = ours[position : position + SHOWN * 8], theirs[position : position + SHOWN * 8]
        ours, theirs = (value[:1] if isinstance(value, list) else value for value in (ours, theirs))
        return f"from position {position}: {ours!r} here, {theirs!r} there"
    return f"{ours!r} here, {theirs!r} there"


# ---- The report ----


def shown(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(shown, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def format_checks(checks: Sequence[Check]) -> str:
    """An aligned table, a line a check, then the details and how many failed."""
    header = ("check", "expected", "found", "result")
    rows = [(check.name, *(shorten(shown(v)) for v in (check.expected, check.found)), check.result) for check in checks]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)]
    details = [f"{check.name}: {detail}" for check in checks for detail in check.details]
    totals = ", ".join(f"{sum(c.result == result for c in checks)} {result}" for result in (PASS, FAIL, NOT_BUILT))
    return "\n".join([*lines, *([""] if details else []), *details, "", totals])


def shorten(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
