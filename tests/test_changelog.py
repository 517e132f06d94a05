"""The changelog is made of fragments: one file per issue and kind, one sentence on each line."""

import re
import runpy

import pytest

from tests.source import ROOT, is_one_sentence

NAME = re.compile(r"[1-9]\d*\.(feature|fix|breaking)\.md")
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "changelog"), run_name="changelog")
FRAGMENTS = sorted(file for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md")


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.name)
def test_a_fragment_is_a_sentence_a_line_under_its_issue_and_kind(fragment):
    assert NAME.fullmatch(fragment.name), "its name is <issue>.<feature|fix|breaking>.md"
    lines = fragment.read_text().splitlines()
    assert lines
    assert [line for line in lines if not is_one_sentence(line)] == []


def test_the_changelog_is_what_the_script_writes():
    assert (ROOT / "CHANGELOG.md").read_text() == SCRIPT["changelog"](), "run scripts/changelog"


def test_the_changelog_has_every_entry_once_under_its_kind():
    written = SCRIPT["changelog"]()
    for fragment in FRAGMENTS:
        issue, kind, _ = fragment.name.split(".")
        section = written.partition(f"### {SCRIPT['KINDS'][kind]}\n")[2].partition("\n### ")[0]
        for line in fragment.read_text().splitlines():
            assert written.count(f"* {line} (#{issue})\n") == section.count(f"* {line} (#{issue})\n") == 1


def test_entries_stand_by_kind_and_newest_first():
    written = SCRIPT["changelog"]()
    assert re.findall(r"^### (.*)$", written, re.MULTILINE) == ["Breaking changes", "Features", "Fixes"]
    for section in written.split("\n### ")[1:]:
        issues = [int(issue) for issue in re.findall(r"\(#(\d+)\)$", section, re.MULTILINE)]
        assert issues == sorted(issues, reverse=True) and len(set(issues)) > 1
