"""Pages of the site that are made when it is built, as a hook of mkdocs (`mkdocs.yml`).

    reference/cards/<group>.md              what `train.py list <name>` prints of each component
    reference/{keys,commands,api}.md        other keys, help of the commands, documented functions
    evidence/<name>.md                      text and results of notebooks/evidence/<name>.ipynb
    evidence/tables/<paper>-<table>.md      rows, published numbers, commands, and the report if any
    files/<path>.md                         files outside docs/ that a page links to; of a notebook
                                            its text, code and results

Links of docs/**/*.md are those of the repository (`../src/…`); in the site they lead to `files/…`.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import html
import io
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from chimera.cli.main import COMMANDS, main
from chimera.config import tables as experiments
from chimera.config.groups import ZOO, find, groups, is_part
from chimera.model.catalog import rows as catalogue
from chimera.model.component_page import component_page
from chimera.report.formatting import markdown as escaped

ROOT = Path(__file__).resolve().parents[1]
DOCS, NOTEBOOKS = ROOT / "docs", ROOT / "notebooks" / "evidence"
#: A link of Markdown, or a picture: text before the address, address, anchor.
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")
#: Code, in which nothing is a link.
CODE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$|`[^`\n]+`", re.S | re.M)
#: A diagram, and the label of a node in it.
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)
NODE = re.compile(r'\w+\(?[\[(]"(.*?)"[\])]')
#: A report's list of runs, and how it is shown.
RUNS = re.compile(r"^### Runs\n(.*?)(?=^### )", re.S | re.M)
FOLDED = r'### Runs\n<details markdown="1"><summary>all of them</summary>\n\1</details>\n\n'
#: What reports escape and Python-Markdown does not know as escaped.
ESCAPED = re.compile(r"\\([<$~&])")
#: Of source files, which would stand before the pages in the results of a search.
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
TIMES = "<!-- times of tables -->"
CARDS, TABLES = "reference/cards", "evidence/tables"
#: Modules whose functions and classes are documented.
API = ("api.library", "api.layers", "api.graft", "contract", "contract_gguf", "errors")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_config(config: Any) -> None:
    """Give the page of each table a place in the navigation, below its paper."""
    sections = [part for part in config["nav"] if isinstance(part, dict)]
    evidence = next(part["Evidence"] for part in sections if "Evidence" in part)
    papers: dict[str, list[str]] = {}
    for path in sorted([*experiments.tables(), *experiments.computed_tables()]):
        papers.setdefault(path.partition("/")[0], []).append(
            f"{TABLES}/{path.replace('/', '-')}.md"
        )
    index = f"{TABLES}/index.md"
    below = [{paper: pages} for paper, pages in papers.items()]
    evidence[evidence.index(index)] = {"Tables": [index, *below]}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are in no file of docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    pages: dict[str, str | bytes] = {**cards(), **reference(), **tables(), **evidence()}
    texts = {name: content for name, content in pages.items() if isinstance(content, str)}
    linked = set()
    for name, text in [*texts.items(), *_written(Path(config["docs_dir"]))]:
        linked |= {path for path, _ in outside(text, _source(name))}
    for path in sorted(linked):
        name = page_of(path)
        if not name.startswith("files/"):
            continue
        if path.suffix in (".png", ".svg"):
            pages[name] = path.read_bytes()
        elif path.suffix == ".ipynb":
            pages |= notebook(path, name.removesuffix(".md"), with_code=True)
        elif name not in pages:
            pages[name] = shown(path)
    for name, content in pages.items():
        beside = name.startswith("files/")
        level = InclusionLevel.NOT_IN_NAV if beside else InclusionLevel.UNDEFINED
        files.append(File.generated(config, name, content=content, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to files outside docs/ to their pages, and fill in the times of tables."""
    name = page.file.src_uri
    if TIMES in markdown:
        markdown = markdown.replace(TIMES, times())
    markdown = led(DIAGRAM.sub(lambda found: boxes(found[1]), markdown), name)
    parts = re.split(f"({CODE.pattern})", markdown, flags=CODE.flags)
    for i in range(0, len(parts), 2):  # the others are code
        parts[i] = ESCAPED.sub(lambda found: html.escape(found[1]), parts[i])
    return "".join(parts)


def on_post_build(config: Any) -> None:
    """Write the index of the search also as a script, for a site that is opened from a folder."""
    file = Path(config["site_dir"]) / "search" / "search_index.json"
    script = f"var __index = {file.read_text(encoding='utf-8')}"
    file.with_suffix(".js").write_text(script, encoding="utf-8")


def boxes(diagram: str) -> str:
    """A diagram of mermaid as boxes of HTML, in the order of its lines, which is the flow's."""
    parts = ['<div class="diagram">']
    for line in diagram.splitlines():
        if group := re.match(r'\s*subgraph \w+\["(.*)"\]', line):
            parts.append(f'<div class="box">{group[1]}')
        elif line.strip() == "end":
            parts.append("</div>")
        else:
            parts += [f"<div>{label}</div>" for label in NODE.findall(line)]
    return "\n".join([*parts, "</div>"])


def _written(docs: Path) -> list[tuple[str, str]]:
    return [
        (file.relative_to(docs).as_posix(), file.read_text(encoding="utf-8"))
        for file in sorted(docs.rglob("*.md"))
    ]


def _source(name: str) -> Path:
    """The file of the repository whose links a page has."""
    if name.startswith(f"{TABLES}/") and name != f"{TABLES}/index.md":
        paper, _, table = name.removeprefix(f"{TABLES}/").removesuffix(".md").partition("-")
        return report(f"{paper}/{table}")
    if name.startswith("evidence/") and not (DOCS / name).is_file():
        return NOTEBOOKS / name.removeprefix("evidence/").replace(".md", ".ipynb")
    if name.startswith("files/"):
        return ROOT / name.removeprefix("files/").removesuffix(".md")
    return ROOT / "docs" / name


def outside(text: str, source: Path) -> list[tuple[Path, str]]:
    """Files that a text links to and the addresses that it has for them; not from docs/ into it."""
    found = []
    for match in LINK.finditer(CODE.sub("", text)):
        address = match[2]
        if ":" in address or address.startswith("/"):
            continue
        path = (source.parent / address).resolve()
        if source.is_relative_to(DOCS) and path.is_relative_to(DOCS):
            continue
        if path.is_file() and path.is_relative_to(ROOT):
            found.append((path, address))
    return found


def page_of(path: Path) -> str:
    """Page of a file."""
    inside = path.relative_to(ROOT)
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.parent == NOTEBOOKS and path.suffix == ".ipynb":
        return f"evidence/{path.stem}.md"
    if inside.parts[0] == "experiments" and inside.name == "report.md":
        return f"{TABLES}/{inside.parts[1]}-{inside.parts[2]}.md"
    if path.suffix in (".png", ".svg"):
        return f"files/{inside.as_posix()}"
    return f"files/{inside.as_posix().removesuffix('.md')}.md"


def led(text: str, name: str) -> str:
    """A page with its links to files outside docs/ changed to links to their pages."""
    source = _source(name)
    addresses = {address: page_of(path) for path, address in outside(text, source)}

    def change(match: re.Match[str]) -> str:
        address = addresses.get(match[2])
        if address is None:
            return match[0]
        there = posixpath.relpath(address, posixpath.dirname(name) or ".")
        anchor = match[3] or ""
        return f"{match[1]}{there}{anchor}{match[4]}"

    return LINK.sub(change, text)


def shown(path: Path) -> str:
    """Page of a file: Markdown as it is, other text in a block."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # Only what the site has is a link there.
        return LINK.sub(lambda m: m[0] if ":" in m[2] else f"{m[1].lstrip('!')[1:-2]}", text)
    title = path.relative_to(ROOT).as_posix()
    return f"{UNSEARCHED}# {title}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def cards() -> dict[str, str]:
    """A page for each group of components, and their list."""
    pages = {}
    index = ["# Cards\n"]
    index.append("Equation, options, cost and partners, as `chimera list <name>` prints them.\n")
    for group in ZOO:
        index += [f"\n## {group}\n", "| name | what it is |", "| --- | --- |"]
        page = [f"# Cards of `{group}=`\n"]
        about = {row.name: row.what for row in catalogue(group)}
        for name in groups()[group]:
            line = about.get(name, "").replace("|", "\\|")
            index.append(f"| [`{group}={name}`]({group}.md#{name}) | {line} |")
            card = component_page(group, name, 92)
            page.append(f"## `{group}={name}` {{: #{name} }}\n\n````text\n{card}\n````\n")
        pages[f"{CARDS}/{group}.md"] = "\n".join(page)
    return {**pages, f"{CARDS}/index.md": "\n".join(index) + "\n"}


def reference() -> dict[str, str]:
    """Pages of all keys, all commands and the functions of the package."""
    keys = [
        "# Keys\n",
        "Every option of every group that is not a part of the model, with its keys.",
    ]
    keys.append(
        "The [cards](cards/index.md) have the parts. `chimera list <name>` prints the same.\n"
    )
    for group in (group for group in groups() if is_part(group) and group not in (*ZOO, "preset")):
        keys.append(f"\n## {group}\n")
        keys += [f"````text\n{component_page(group, name, 92)}\n````\n" for name in groups()[group]]
    helps: dict[str, list[str]] = {}
    for name in COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            main([name, "--help"])
        helps.setdefault(said.getvalue().strip(), []).append(f"chimera {name}")
    commands = ["# Commands\n"]
    commands += [f"## {', '.join(of)}\n\n````text\n{text}\n````\n" for text, of in helps.items()]
    api = "# API\n\n[Python](../guide/library.md) shows these functions in use.\n\n"
    return {
        "reference/keys.md": "\n".join(keys),
        "reference/commands.md": "\n".join(commands),
        "reference/api.md": api + "".join(f"::: chimera.{module}\n" for module in API),
    }


def evidence() -> dict[str, str | bytes]:
    """Text and results of each evidence notebook, without its code, and their pictures."""
    pages: dict[str, str | bytes] = {}
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        pages |= notebook(file, f"evidence/{file.stem}")
    return pages


def notebook(file: Path, name: str, *, with_code: bool = False) -> dict[str, str | bytes]:
    """The page `<name>.md` of a notebook, and its pictures."""
    pages: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif with_code:
            parts.append(f"````python\n{source}\n````")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(parts)}.png"
                pages[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![]({posixpath.basename(picture)})")
            elif "text/markdown" in data:
                parts.append("".join(data["text/markdown"]))
            elif text := "".join(data.get("text/plain", output.get("text", ""))):
                parts.append(f"````text\n{text.rstrip()}\n````")
    return {**pages, f"{name}.md": "\n\n".join(parts) + "\n"}


def report(table: str) -> Path:
    """The committed report of a table at the largest scale, or without runs, if there is one."""
    folder = ROOT / "experiments" / table / "results"
    files = [folder / scale / "report.md" for scale in ("medium", "small", ".")]
    return next(filter(Path.is_file, files), files[-1])


def tables() -> dict[str, str]:
    """A page for each table, and their list."""
    pages, index = {}, ["# Tables of the papers\n", "| table | title | rows | report |"]
    index.append("| --- | --- | --- | --- |")
    for path in experiments.tables():
        table = experiments.load(path)
        name = f"{table.paper}-{table.name}.md"
        done = "yes" if report(path).is_file() else ""
        index.append(f"| [`{path}`]({name}) | {table.title} | {len(table.rows)} | {done} |")
        pages[f"{TABLES}/{name}"] = _table(table)
    for path in experiments.computed_tables():
        name = f"{path.replace('/', '-')}.md"
        file = report(path)
        title = experiments.load_computed(path).title
        index.append(f"| [`{path}`]({name}) | {title} | computed | {'yes' * file.is_file()} |")
        text = file.read_text(encoding="utf-8") if file.is_file() else f"# {title}\n"
        pages[f"{TABLES}/{name}"] = text
    return {**pages, f"{TABLES}/index.md": "\n".join(index) + "\n"}


def _table(table: experiments.Table) -> str:
    group, name = table.path.split("/")
    lines = [
        f"# {table.title}\n",
        f"{table.source}. Metric `{table.metric}`, {table.better} is better.\n",
    ]
    file = report(table.path)
    lines += [escaped(table.note) + "\n"] if not file.is_file() else []  # a report has it
    lines += ["```bash", f"make table T={table.path} SCALE=small SEEDS=3"]
    lines += [f"python train.py -m +{group}={name} scale=small seed=0,1,2    # the same"]
    lines += [
        "```\n",
    ]
    columns = list(dict.fromkeys(p.column for p in table.published))
    values = {(p.row, p.column): f"{p.value:g}{p.unit and ' ' + p.unit}" for p in table.published}
    lines += ["## Rows\n", "| row | " + " | ".join(["overrides", *columns]) + " |"]
    lines += ["| --- " * (2 + len(columns)) + "|"]
    for row in table.rows:
        cells = [values.get((row.name, column), "") for column in columns]
        lines.append(
            f"| {row.title} (`{row.name}`) | {_overrides(table, row.name)} | {' | '.join(cells)} |"
        )
    if columns:
        lines.append("\nThe numbers are the paper's.\n")
    if file.is_file():
        text = re.sub(r"^#", "##", file.read_text(encoding="utf-8"), flags=re.M)
        text = text.replace(f"## {table.title}\n", "## What we measured\n", 1)
        lines.append("\n" + RUNS.sub(FOLDED, text))
    return "\n".join(lines)


def _overrides(table: experiments.Table, row: str) -> str:
    """The choices of a row."""
    text = find(f"{table.path}/{row}").read_text(encoding="utf-8")
    words = re.findall(r"^\s*- override /(\S+): (\S+)", text, re.M)
    return " ".join(f"`{group}={choice}`" for group, choice in words)


def times() -> str:
    """Measured time of each table that has a report, from its report.csv."""
    lines = [
        "| table | runs | time a run | time of the table | speed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for path in experiments.tables():
        file = report(path).with_suffix(".csv")
        if not file.is_file():
            continue
        with file.open(encoding="utf-8") as opened:
            rows = [r for r in csv.DictReader(opened) if r.get("seconds") and r.get("n")]
        timed = [(float(r["seconds"]), int(float(r["n"])), r["tokens_per_second"]) for r in rows]
        timed = [each for each in timed if each[1]]
        if not timed:
            continue
        runs, total = sum(n for _, n, _ in timed), sum(s * n for s, n, _ in timed)
        speeds = [float(v) for _, _, v in timed if v]
        speed = f"{min(speeds):,.0f} to {max(speeds):,.0f} tokens/s" if speeds else ""
        name = path.replace("/", "-")
        linked = f"[`{path}`](../{TABLES}/{name}.md)"
        lines.append(f"| {linked} | {runs} | {clock(total / runs)} | {clock(total)} | {speed} |")
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
