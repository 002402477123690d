# SPDX-License-Identifier: GPL-3.0-or-later
"""Cut text into sentences by rules, without a model that would have to be fetched."""

from __future__ import annotations

import re

CLOSING = r"""["'\u201d\u2019\u00bb)\]]*"""
OPENING = r"""["'\u201c\u2018\u00ab(\[\u00bf\u00a1]*"""
# An end of a sentence: its mark, closing quotes and brackets, white space, and what can begin one; the full
# stops of Chinese and Japanese, which need no space; or an empty line.
END = re.compile(
    rf"(?P<mark>[.!?\u2026]+){CLOSING}\s+(?={OPENING}[^\W_a-z\u00e0-\u00f6\u00f8-\u00ff])"
    r"|[\u3002\uff01\uff1f]+[\"'\u201d\u2019\u300d\u300f\uff09]*\s*"
    r"|\n\s*\n\s*"
)
LAST_WORD = re.compile(r"""[^\s(\["'\u201c\u2018]+$""")
# Words that end in a full stop within a sentence, in lower case.
WORDS = """
adj adm al apr approx assn assoc aug av ave bldg blvd brig bros c ca capt cf cmdr co col corp cpl dec dept
dr ed eds e.g eg esp est etc ex feb fig figs fr ft gen gov hon i.e ie inc jan jr jul jun lt ltd maj mar
mass messrs mlle mme mr mrs ms mt nov no nos nr oct op p pp ph.d pl prof pt pvt rep reps rev sec sen sens
sep sept sgt sr st supt univ viz vol vols vs
"""
ABBREVIATIONS = frozenset(WORDS.split())


def sentences(text: str) -> list[str]:
    """Cut a text into sentences.

    Returns:
        The sentences without the white space between them; none for a text of white space.
    """
    found = []
    begin = 0
    for match in END.finditer(text):
        if match["mark"] == "." and _abbreviated(text, begin, match.start()):
            continue
        found.append(text[begin : match.end()].strip())
        begin = match.end()
    found.append(text[begin:].strip())
    return [sentence for sentence in found if sentence]


def _abbreviated(text: str, begin: int, stop: int) -> bool:
    """Return whether a full stop belongs to the word before it."""
    word = LAST_WORD.search(text, max(begin, stop - 16), stop)
    if word is None:
        return False
    letters = word.group()
    return letters.lower() in ABBREVIATIONS or (len(letters) == 1 and letters.isupper() and letters != "I")
