"""The embedded sample: the upstream files of both benchmarks, small, with the awkward cases of the real ones.

The text is this project's own and lies in ``sample_text/``: verse by topic in ``poetry.txt``, sentences by technical
field in ``patents.json``. Pages and families are composed from it with seeded generators, so that two writes are equal
byte by byte.
"""

import argparse
import gzip
import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tools.errors import InputError

EXAMPLE = "python -m tools sample /tmp/sample"

SAMPLE_TEXT = Path(__file__).parent / "sample_text"

# --- Poetry -----------------------------------------------------------------------------------------------------------

PAGES_A_BOOK = 10
BOOKS = {
    "versesoftheriver00hallrich": "VERSES OF THE RIVER",
    "hedgeandhearthpo00dunniala": "HEDGE AND HEARTH",
    "lanternsongsothe00pryouoft": "LANTERN SONGS AND OTHERS",
    "millroadpoems00tarrgoog": "MILL ROAD POEMS",
    "ninewindsballads00orchrich": "NINE WINDS: BALLADS",
    "apennyforferry00quillala": "A PENNY FOR THE FERRY",
    "gardenofplainwor00mossuoft": "A GARDEN OF PLAIN WORDS",
    "saltmarshlyrics00bentrich": "SALT-MARSH LYRICS",
    "ploughmanspsalte00greyiala": "THE PLOUGHMAN'S PSALTER",
    "songsofauldlang1742wick": "SONGS of the AULD LANE",
    "thetinorchestra00lowegoog": "THE TIN ORCHESTRA",
    "winterwheatverse00aldeuoft": "WINTER WHEAT",
    "schoolroomrhymes00pettrich": "SCHOOLROOM RHYMES",
    "thelongquay00harciala": "THE LONG QUAY",
    "oddsandendsinver00bellgoog": "ODDS AND ENDS IN VERSE",
    "stonewallsonnets00farruoft": "STONE WALL POEMS",
    "copperkettle00nashrich": "THE COPPER KETTLE",
    "undertheeaves00wrayiala": "UNDER THE EAVES",
    "roundelaysforrai00cobbgoog": "ROUNDELAYS FOR RAIN",
    "almanacofsmallho00yorkuoft": "ALMANAC OF SMALL HOURS",
    "thetithebarn00kerrrich": "THE TITHE BARN",
    "fourhillsandahou00vaneiala": "FOUR HILLS AND A HOUSE",
    "slateandfeather00ruddgoog": "SLATE AND FEATHER",
    "lastferrylyrics00hollrich": "THE LAST FERRY",
}
LONG_S_BOOK = "songsofauldlang1742wick"
LONG_S = "\u017f"
FOLDED_BOOKS = (
    "anthologyofverse00vari",
    "householdtreasur02comp",
    "versesoftheriver01hallgoog",
    "pocketreciter00anon",
)

Verse = dict[str, dict[str, list[str]]]  # topic -> "direct", "oblique", "decoy", "titles" -> couplets or titles


@dataclass(frozen=True)
class Recipe:
    """How pages of one kind are made: how many a topic, of which verse, and the (max, min) labels they take in turn."""

    pages: int
    verse: tuple[str, ...]
    couplets: int
    filler: str | None
    labels: tuple[tuple[int, int], ...]


# "direct" verse names its topic, "oblique" verse is about it, "decoy" verse only has the word.
RECIPES = {
    "plain": Recipe(3, ("direct", "oblique"), 5, None, ((2, 2), (2, 1), (2, 2), (2, 0), (1, 1))),
    "oblique": Recipe(2, ("oblique",), 4, None, ((2, 2), (2, 1), (1, 1))),
    "mixed": Recipe(2, ("direct", "oblique"), 2, "topic", ((1, 1), (1, 0), (2, 1), (1, -1))),
    "decoy": Recipe(1, ("decoy",), 1, "neutral", ((0, 0), (0, -1))),
}
NEUTRAL_PAGES = 16
UNREADABLE_PAGES = 9
OFF_TOPIC_JUDGMENTS = 3  # a topic

MISREAD = {"rn": "m", "th": "tli", "he": "lie", "w": "vv", "e": "c", "ll": "U"}
MISREAD_WORDS = (0.0, 0.0, 0.0, 0.03, 0.08)  # share of words, by page
SPECKS = "il1|!;:.,'^~·■"
SEPARATORS = (" ", " ", "\t", " ", "  ", " \t ", "    ")

DUPLICATE_FORMS = (
    lambda book, page: f"{book}/{page}",
    lambda book, page: [book, page],
    lambda book, page: {"book": book, "page": page},
)


@dataclass
class Page:
    """A page before it is bound: its text, its (max, min) labels by topic, and the (book, page) ids folded into it."""

    text: str
    labels: dict[str, tuple[int, int]] = field(default_factory=dict)
    folded: list[tuple[str, int]] = field(default_factory=list)
    folded_labels: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_verse(path: Path) -> Verse:
    """Verse by topic and kind from blocks of lines under ``[topic kind]`` headings."""
    verse: Verse = {}
    for section in re.split(r"^\[", path.read_text("utf-8"), flags=re.M)[1:]:
        heading, _, body = section.partition("]\n")
        topic, kind = heading.split()
        verse.setdefault(topic, {})[kind] = body.strip().split("\n\n")
    for kinds in verse.values():
        if "titles" in kinds:
            kinds["titles"] = kinds["titles"][0].splitlines()
    return verse


def compose_pages(verse: Verse, rng: random.Random) -> list[Page]:
    """All pages with their own labels, in no book yet."""
    topics = sorted(set(verse) - {"neutral", "prose"})
    pages = [page for topic in topics for kind in RECIPES for page in compose_topic(verse, topics, topic, kind, rng)]
    neutral = verse["neutral"]
    pages += [
        Page(typeset(rng.choice(neutral["titles"]), rng.sample(neutral["verse"], 5))) for _ in range(NEUTRAL_PAGES)
    ]
    pages += [
        Page(blot(typeset("", rng.sample(neutral["verse"], 3)), rng), {topic: (-1, -1)})
        for topic in rng.sample(topics, UNREADABLE_PAGES)
    ]
    pages += [
        Page("NOTES\n\n" + "\n\n".join(verse["prose"]["lines"]), {"reading": (-1, -1), "education": (0, -1)}),
        Page(index_of_first_lines(verse), {"reading": (0, -1), "death": (-1, -1)}),
        Page(typeset("𝄞 Song with a Burden 🌹", rng.sample(neutral["verse"], 3)), {"flowers": (0, 0)}),
        Page("", {"photography": (-1, -1)}),
        Page(" \n\n"),
    ]
    return pages


def compose_topic(verse: Verse, topics: list[str], topic: str, kind: str, rng: random.Random) -> Iterator[Page]:
    """The pages of one kind on one topic; a mixed page is judged for both of its topics."""
    recipe = RECIPES[kind]
    for number in range(recipe.pages):
        couplets = rng.sample([c for name in recipe.verse for c in verse[topic][name]], recipe.couplets)
        titles = verse[topic]["titles"]
        page = Page("", {topic: recipe.labels[(topics.index(topic) + number) % len(recipe.labels)]})
        if recipe.filler == "topic":
            other = topics[(topics.index(topic) + 5 + 6 * number) % len(topics)]
            couplets += rng.sample(verse[other]["oblique"], 2)
            page.labels[other] = rng.choice(recipe.labels)
        if recipe.filler == "neutral":
            couplets += rng.sample(verse["neutral"]["verse"], 3)
            titles = verse["neutral"]["titles"]
        rng.shuffle(couplets)
        page.text = typeset(rng.choice(titles), couplets)
        yield page


def typeset(title: str, couplets: list[str]) -> str:
    """A title in capitals and the couplets, two to a stanza."""
    stanzas = ["\n".join(couplets[start : start + 2]) for start in range(0, len(couplets), 2)]
    return "\n\n".join([title.upper(), *stanzas]).lstrip("\n")


def index_of_first_lines(verse: Verse) -> str:
    """A page that was read as one line of almost 30 kB: it has the words of every topic and is no poem."""
    couplets = [c for kinds in verse.values() for name, blocks in kinds.items() if name != "titles" for c in blocks]
    lines = sorted(couplet.replace("\n", " / ") for couplet in couplets)
    return "INDEX OF FIRST LINES " + " ".join(f"{line} . . . {9 + number}" for number, line in enumerate(lines))


def judge_off_topic(pages: list[Page], rng: random.Random) -> None:
    """Give every topic some pages that annotators saw and found to be about something else."""
    for topic in sorted({topic for page in pages for topic in page.labels}):
        unseen = [page for page in pages if topic not in page.labels and len(page.text) > 100]
        for page in rng.sample(unseen, OFF_TOPIC_JUDGMENTS):
            page.labels[topic] = rng.choice(((0, 0), (0, 0), (0, -1)))


def fold_duplicates(pages: list[Page], rng: random.Random) -> None:
    """Fold invented pages into some pages; on the first good page of a topic the judgment lies on a folded page too."""
    numbers = iter(rng.sample(range(11, 700), 400))
    seen: set[str] = set()
    for page in pages:
        first = {topic for topic, (label, _) in page.labels.items() if label == 2} - seen
        seen |= first
        for _ in range(rng.randint(1, 3) if first else rng.choice((0, 0, 0, 0, 0, 0, 1, 2))):
            page.folded.append((rng.choice(FOLDED_BOOKS), next(numbers)))
        page.folded_labels = {topic: page.labels[topic] for topic in sorted(first)}


def misread(text: str, share: float, rng: random.Random) -> str:
    """What optical character recognition makes of a page: some letters of a share of the words taken for others."""
    return "".join(
        re.sub("|".join(MISREAD), lambda match: MISREAD[match[0]], word, count=1) if rng.random() < share else word
        for word in re.split(r"(\s+)", text)
    )


def blot(text: str, rng: random.Random) -> str:
    """A page that nobody can read."""
    return re.sub(r"\w", lambda match: rng.choice(SPECKS) if rng.random() < 0.7 else match[0], text)


def bind(pages: list[Page], rng: random.Random) -> Iterator[tuple[str, int, Page]]:
    """(book, page number, page), each page as it was read: running head, long s, misreadings, tabs between words."""
    for start, (book, head) in zip(range(0, len(pages), PAGES_A_BOOK), BOOKS.items(), strict=True):
        number = rng.randint(7, 40)
        for page in pages[start : start + PAGES_A_BOOK]:
            number += rng.randint(1, 6)
            text = page.text
            if len(text) > 100 and rng.random() < 0.7:
                text = f"{head} {number}\n\n{text}" if number % 2 else f"{number} {head}\n\n{text}"
            if book == LONG_S_BOOK:
                text = re.sub(r"s(?=\w)", LONG_S, text)
            page.text = misread(text, rng.choice(MISREAD_WORDS), rng).replace(" ", "\t")
            yield book, number, page


def page_record(position: int, book: str, number: int, page: Page, rng: random.Random) -> dict[str, Any]:
    """The upstream's JSON object; where nothing was folded ``duplicates`` is empty or, on every fourth page, absent."""
    record: dict[str, Any] = {"book": book, "page": number, "score": round(rng.uniform(0.5, 1), 4), "text": page.text}
    form = DUPLICATE_FORMS[position % len(DUPLICATE_FORMS)]
    if page.folded or position % 4:
        record["duplicates"] = [form(*folded) for folded in page.folded]
    return record


def compose_poetry() -> dict[str, bytes]:
    """The three Poetry 50K files by name."""
    rng = random.Random("poetry")
    pages = compose_pages(read_verse(SAMPLE_TEXT / "poetry.txt"), rng)
    judge_off_topic(pages, rng)
    fold_duplicates(pages, rng)
    rng.shuffle(pages)
    bound = list(bind(pages, rng))
    records = [page_record(position, *page, rng) for position, page in enumerate(bound)]
    judgments = {(topic, f"{book}/{number}"): labels for book, number, p in bound for topic, labels in p.labels.items()}
    for _, _, page in bound:
        for topic, labels in page.folded_labels.items():
            book, number = page.folded[0]
            judgments[topic, f"{book}/{number}"] = labels
    corpus = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return {
        "poetry50k.dedup.jsonl.gz": gzip_bytes(corpus.encode()),
        "mturk.max.qrel": qrel_lines(judgments, 0),
        "mturk.min.qrel": qrel_lines(judgments, 1),
    }


def qrel_lines(judgments: dict[tuple[str, str], tuple[int, int]], column: int) -> bytes:
    """TREC lines sorted by topic and page, the white space between the fields varying from line to line."""
    lines = (
        SEPARATORS[position % len(SEPARATORS)].join((topic, "0", page, str(labels[column]))) + "\n"
        for position, ((topic, page), labels) in enumerate(sorted(judgments.items()))
    )
    return "".join(lines).encode()


# --- DAPFAM -----------------------------------------------------------------------------------------------------------

TEXT_FIELDS = ("title_en", "abstract_en", "claims_text", "description_en")
CLASSES = "classifications_ipcr_list_first_three_chars_list"
FAMILY_FIELDS = [
    *((name, pa.string()) for name in TEXT_FIELDS),
    (CLASSES, pa.list_(pa.field("element", pa.string()))),
]
CORPUS_SCHEMA = pa.schema([("relevant_id", pa.string()), *FAMILY_FIELDS])
QUERIES_SCHEMA = pa.schema([("query_id", pa.string()), *FAMILY_FIELDS])
RELATIONS_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("relevant_id", pa.string()),
        ("relevance_score", pa.float64()),
        ("domain_rel", pa.string()),
    ]
)
CORPUS_ROW_GROUP = 20

# The two aspects of a field that a family is about; the first gives its classes. Each field has all ten families.
ASPECT_PAIRS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4), (2, 5), (3, 0))
QUERY_FAMILIES = (0, 4, 8)  # of the ten; the third in every other field only
# What the queries cite, in turn.
CITES = ({"IN", "OUT"}, {"IN", "OUT"}, {"IN"}, {"IN", "OUT"}, {"OUT"}, {"IN", "OUT"}, set())
MOST_CITED = 5
NOT_CITED = 4
EXAMPLES = (1, 30)  # test reports in a description

# Awkward families, by position in the shuffled corpus or in the queries.
CORPUS_GAPS = {
    4: {"abstract_en": None},
    13: {"abstract_en": ""},
    27: {"abstract_en": None, "claims_text": None},
    44: {"abstract_en": ""},
    58: {"claims_text": None},
    71: {"claims_text": None},
    80: {"abstract_en": None},
}
QUERY_GAPS = {3: {"abstract_en": None}, 11: {"abstract_en": ""}, 17: {"claims_text": None}}
LONGEST_DESCRIPTION = 35  # about 200 kB
LONGEST_LINE = 62  # about 30 kB without a line break
SAME_QUERY = 8  # asked again word by word under another id
SAME_QUERY_NEW_CLAIMS = 9  # asked again with its first claim only
REPEATED_RELATION = 1  # a query that cites one family in two rows
CITES_MISSING = 7  # a query that also cites a family that is not in the corpus


@dataclass
class Family:
    """One patent family: where its text comes from, and its upstream record without the id."""

    id: str
    device: str
    aspects: tuple[int, int]
    record: dict[str, Any]


class Relation(NamedTuple):
    """A row of qrels_all.parquet."""

    query_id: str
    relevant_id: str
    relevance_score: float
    domain_rel: str


def compose_family(patents: dict[str, Any], technical_field: dict[str, Any], number: int, rng: random.Random) -> Family:
    """The family of one technical field with the given number, 0 to 9, all text in lower case."""
    first, second = ASPECT_PAIRS[number]
    aspect, other = technical_field["aspects"][first], technical_field["aspects"][second]
    words = {
        **technical_field,
        **aspect,
        **{f"other_{name}": text for name, text in other.items()},
        "bare": aspect["name"].removeprefix("a ").removeprefix("an "),
        "other_bare": other["name"].removeprefix("a ").removeprefix("an "),
    }
    wording = number // 6
    description = [paragraph.format(**words) for paragraph in patents["description"]]
    description += compose_examples(patents, technical_field, rng.randint(*EXAMPLES), rng)
    return Family(
        lens_id(rng),
        technical_field["device"],
        (first, second),
        {
            "title_en": patents["titles"][wording].format(**words),
            "abstract_en": patents["abstracts"][wording].format(**words),
            "claims_text": compose_claims(patents, words, rng),
            "description_en": "\n\n".join(description),
            CLASSES: list(aspect["ipc"]),
        },
    )


def compose_claims(patents: dict[str, Any], words: dict[str, Any], rng: random.Random) -> str:
    """One independent claim and two to seven that depend on an earlier one."""
    claims = [patents["first_claim"].format(**words)]
    for template in rng.sample(patents["dependent_claims"], rng.randint(2, len(patents["dependent_claims"]))):
        part = rng.randrange(len(words["parts"]) - 1)
        limitation = template.format(
            part=words["parts"][part],
            next_part=words["parts"][part + 1],
            material=rng.choice(words["materials"]),
            d=rng.randint(1, 9),
            **{name: words[name] for name in ("other_name", "other_feature")},
        )
        claims.append(f"{len(claims) + 1}. the {words['device']} of claim {rng.randint(1, len(claims))}, {limitation}.")
    return "\n".join(claims)


def compose_examples(
    patents: dict[str, Any], technical_field: dict[str, Any], count: int, rng: random.Random
) -> list[str]:
    """Test reports with numbers of their own."""
    return [
        patents["example"].format(
            number=number,
            test=rng.choice(technical_field["tests"]).format(
                a=rng.randint(100, 900), b=rng.randint(20, 90), c=rng.randint(10, 60), d=rng.randint(1, 9)
            ),
        )
        for number in range(1, count + 1)
    ]


def lens_id(rng: random.Random) -> str:
    """An id in the form of The Lens: five groups of three digits, of which the last may be X."""
    digits = "".join(rng.choice("0123456789") for _ in range(14)) + rng.choice("0123456789X")
    return "-".join(digits[start : start + 3] for start in range(0, 15, 3))


def compose_families(patents: dict[str, Any], rng: random.Random) -> tuple[list[Family], list[Family]]:
    """(corpus, queries) before anything is filed twice."""
    corpus, queries = [], []
    for position, technical_field in enumerate(patents["fields"]):
        asked = QUERY_FAMILIES[: 3 - position % 2]
        for number in range(len(ASPECT_PAIRS)):
            family = compose_family(patents, technical_field, number, rng)
            (queries if number in asked else corpus).append(family)
    rng.shuffle(corpus)
    rng.shuffle(queries)
    return corpus, queries


def refile(family: Family, rng: random.Random, **changed: Any) -> Family:
    """The same family under a second id, apart from the fields named."""
    return Family(lens_id(rng), family.device, family.aspects, {**family.record, **changed})


def add_long_texts(patents: dict[str, Any], corpus: list[Family], rng: random.Random) -> None:
    """Give one family a description of some 200 kB, and another one of some 30 kB without a line break."""
    fields = {technical_field["device"]: technical_field for technical_field in patents["fields"]}
    for position, count, line_break in ((LONGEST_DESCRIPTION, 2200, "\n\n"), (LONGEST_LINE, 300, " ")):
        family = corpus[position]
        examples = compose_examples(patents, fields[family.device], count, rng)
        family.record["description_en"] = line_break.join([family.record["description_en"], *examples])
        if line_break == " ":
            family.record["description_en"] = " ".join(family.record["description_en"].split())


def domain_relation(query: Family, family: Family) -> str:
    """IN if the two share a class, otherwise OUT."""
    return "IN" if set(query.record[CLASSES]) & set(family.record[CLASSES]) else "OUT"


def cite(patents: dict[str, Any], queries: list[Family], corpus: list[Family], rng: random.Random) -> list[Relation]:
    """Relations by query: families that share an aspect, one of a kindred field, then sampled families not cited."""
    kin = {technical_field["device"]: technical_field["kin"] for technical_field in patents["fields"]}
    relations = []
    for position, query in enumerate(queries):
        related = [f for f in corpus if f.device == query.device and set(f.aspects) & set(query.aspects)]
        related = rng.sample(related, min(MOST_CITED, len(related)))
        related.append(rng.choice([family for family in corpus if family.device == kin[query.device]]))
        wanted = CITES[position % len(CITES)]
        cited = [family for family in related if domain_relation(query, family) in wanted]
        relations += [Relation(query.id, family.id, 1.0, domain_relation(query, family)) for family in cited]
        others = [family for family in corpus if family not in related]
        relations += [Relation(query.id, family.id, 0.0, "NC") for family in rng.sample(others, NOT_CITED)]
    return relations


def cite_second_filing(relations: list[Relation], first: Family, second: Family, *, both: bool) -> list[Relation]:
    """Point the citations of a family at its second filing; with ``both`` the first query to cite it cites either."""
    changed = []
    for relation in relations:
        if relation.relevant_id == first.id and relation.relevance_score:
            if both:
                changed.append(relation)
                both = False
            relation = relation._replace(relevant_id=second.id)
        changed.append(relation)
    return changed


def add_awkward_relations(relations: list[Relation], queries: list[Family], missing: str) -> list[Relation]:
    """Repeat one query's first citation after its last row, and let another cite a family that does not exist."""
    changed = []
    for query in queries:
        rows = [relation for relation in relations if relation.query_id == query.id]
        if query is queries[REPEATED_RELATION]:
            rows.append(rows[0])
        if query is queries[CITES_MISSING]:
            rows.insert(1, Relation(query.id, missing, 1.0, "IN"))
        changed += rows
    return changed


def compose_dapfam() -> dict[str, bytes]:
    """The three DAPFAM files by name."""
    rng = random.Random("dapfam")
    patents = json.loads((SAMPLE_TEXT / "patents.json").read_text("utf-8"))
    corpus, queries = compose_families(patents, rng)
    add_long_texts(patents, corpus, rng)
    for families, gaps in ((corpus, CORPUS_GAPS), (queries, QUERY_GAPS)):
        for position, empty in gaps.items():
            families[position].record.update(empty)
    first_claim = queries[SAME_QUERY_NEW_CLAIMS].record["claims_text"].splitlines()[0]
    queries += [refile(queries[SAME_QUERY], rng), refile(queries[SAME_QUERY_NEW_CLAIMS], rng, claims_text=first_claim)]
    relations = cite(patents, queries, corpus, rng)
    alike, amended = most_cited(relations, corpus)[:2]
    alike_again, amended_again = refile(alike, rng), refile(amended, rng, claims_text=None)
    corpus += [alike_again, amended_again]
    relations = cite_second_filing(relations, alike, alike_again, both=True)
    relations = cite_second_filing(relations, amended, amended_again, both=False)
    relations = add_awkward_relations(relations, queries, lens_id(rng))
    return {
        "corpus.parquet": family_table(CORPUS_SCHEMA, corpus, CORPUS_ROW_GROUP),
        "queries.parquet": family_table(QUERIES_SCHEMA, queries),
        "qrels_all.parquet": parquet_bytes(pa.table(list(zip(*relations, strict=True)), schema=RELATIONS_SCHEMA)),
    }


def most_cited(relations: list[Relation], corpus: list[Family]) -> list[Family]:
    """The families that have an abstract, those with the most citations first."""
    cited = Counter(relation.relevant_id for relation in relations if relation.relevance_score)
    return sorted((family for family in corpus if family.record["abstract_en"]), key=lambda family: -cited[family.id])


def family_table(schema: pa.Schema, families: list[Family], row_group: int | None = None) -> bytes:
    """The families as Parquet, the id in the schema's first column."""
    records = [{schema.names[0]: family.id, **family.record} for family in families]
    return parquet_bytes(pa.Table.from_pylist(records, schema=schema), row_group)


# --- Files ------------------------------------------------------------------------------------------------------------


def parquet_bytes(table: pa.Table, row_group: int | None = None) -> bytes:
    """A Parquet file as the upstream writes it: Zstandard, ``row_group`` rows a group."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=row_group, compression="zstd")
    return sink.getvalue().to_pybytes()


def gzip_bytes(data: bytes) -> bytes:
    """Gzip without name or time in the header, so that equal data makes equal files."""
    sink = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=sink, mode="wb", mtime=0) as compressed:
        compressed.write(data)
    return sink.getvalue()


def write_renamed(path: Path, data: bytes) -> None:
    """Write to a temporary name beside ``path``, flush it to the disk, and rename: no reader sees half a file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_sample(directory: str | os.PathLike) -> list[Path]:
    """Write ``directory/poetry`` and ``directory/dapfam`` in the upstreams' formats; return the six paths.

    Raises InputError if ``directory`` is a file or cannot be written.
    """
    files = {
        Path(directory, folder, name): data
        for folder, compose in (("poetry", compose_poetry), ("dapfam", compose_dapfam))
        for name, data in compose().items()
    }
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_renamed(path, data)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror}); name another folder") from error
    return list(files)


def count_rows(path: Path) -> int:
    """Rows of a Parquet file, lines of any other."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).metadata.num_rows
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        return sum(1 for _ in file)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The one argument: where to write."""
    parser.add_argument("directory", metavar="DIR", help="folder to write poetry/ and dapfam/ into; made if need be")


def run(args: argparse.Namespace) -> int:
    """Write the sample and print one line a file: path under DIR, rows, bytes."""
    for path in write_sample(args.directory):
        print(f"{path.relative_to(args.directory)}\t{count_rows(path)} rows\t{path.stat().st_size} bytes")
    return 0
