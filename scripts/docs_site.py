"""A hook of MkDocs and an extension of Griffe: pages from outside docs, examples as code, and the fields of Structs."""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
STRUCT = re.compile(r"\bStruct\b")
CODE = {".py": "python", ".toml": "toml", ".yml": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add to the site each file of the project that a page links to, and those that these link to."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    while pages:
        page = pages.pop()
        for target in _targets(page):
            if target.is_file() and not _in_docs(target) and files.get_file_from_path(_uri(target)) is None:
                file = _file(target, config)
                files.append(file)
                if target.suffix == ".md":
                    pages.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their targets are on the site; a folder of the project has no page, so its name remains."""
    source = _source(page.file)
    if source is None:
        return markdown
    up = "../" * page.file.src_uri.count("/")

    def lead(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.exists():
            return link[0]  # code that looks like a link; or a broken link, which MkDocs tells
        if target.is_dir():
            return link[1]
        return f"[{link[1]}]({up}{_uri(target)}{link[3] or ''})"

    return LINK.sub(lead, markdown)


class Docstrings(griffe.Extension):
    """Fence the examples of docstrings, which Markdown would take for quotations, and tell the fields of Structs."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the fields of a Struct, of which Griffe makes no signature."""
        fields = [field for name, field in cls.attributes.items() if field.annotation and not name.startswith("_")]
        if cls.docstring is not None and fields and any(STRUCT.search(str(base)) for base in cls.bases):
            told = "\n".join(f"* `{_declared(field)}`" for field in fields)
            cls.docstring.value += f"\n\nFields:\n\n{told}"


def _declared(field: griffe.Attribute) -> str:
    default = "" if field.value is None else f" = {field.value}"
    return f"{field.name}: {field.annotation}{default}"


def _file(target: Path, config: Any) -> File:
    """Return `target` as a page, if it is text to read, else as a file to download."""
    if target.suffix not in CODE:
        return File.generated(config, _uri(target), abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)
    shown = f"# {target.relative_to(ROOT)}\n\n````{CODE[target.suffix]}\n{target.read_text()}````\n"
    return File.generated(config, _uri(target), content=shown, inclusion=InclusionLevel.NOT_IN_NAV)


def _uri(target: Path) -> str:
    """Return where `target` is on the site, before MkDocs makes a page of it."""
    base = ROOT / "docs" if _in_docs(target) else ROOT
    uri = target.relative_to(base).as_posix()
    return f"{uri}.md" if target.suffix in CODE else uri


def _in_docs(target: Path) -> bool:
    return target.is_relative_to(ROOT / "docs")


def _source(file: File) -> Path | None:
    """Return where the text of a page is from, if it is a Markdown file of the project."""
    return Path(file.abs_src_path).resolve() if file.abs_src_path else None


def _targets(file: File) -> list[Path]:
    source = _source(file)
    if source is None:
        return []
    return [(source.parent / link[2]).resolve() for link in LINK.finditer(source.read_text())]
