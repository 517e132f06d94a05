"""The changelog is made of fragments: one file per change, one sentence each."""

import re

import pytest

from tests.source import ROOT, is_one_sentence

NAME = re.compile(r"[1-9]\d*\.(feature|fix|breaking)\.md")
FRAGMENTS = sorted(file for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md")


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.name)
def test_a_fragment_is_one_sentence_under_its_issue_and_kind(fragment):
    assert NAME.fullmatch(fragment.name), "its name is <issue>.<feature|fix|breaking>.md"
    assert is_one_sentence(" ".join(fragment.read_text().split()))
