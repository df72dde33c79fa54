"""Writes the synthetic data of the English text jobs, always with the same bytes.

    python jobs/make_synthetic.py             # writes jobs/<job>/synthetic.{csv,jsonl}
    python jobs/make_synthetic.py --check     # writes nothing; exit code 1 when a file differs

Nobody wrote these posts. They are clauses that rules combine, around nine criteria worded after those of DSM-5 for a
depressive episode. They say nothing about how people write or feel, and nothing learned from them may be used on people.
They give a search something to find: whether a criterion is met depends on negation, on the person and on the criterion,
not on one word. One label in thirty is wrong, so that no model reaches 1.0.
Standard library only.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import sys
from pathlib import Path

JOBS = Path(__file__).parent
WRONG_LABELS = 1 / 30

# criterion -> (clauses that meet it, clauses of the same matter that do not)
CRITERIA: dict[str, tuple[list[str], list[str]]] = {
    "depressed mood": (
        [
            "I feel sad {often}",
            "I feel empty {often}",
            "I am close to tears {often}",
            "everything looks grey to me {often}",
            "a heavy sadness sits on me {often}",
        ],
        ["my mood is bright {often}", "I am in good spirits {often}", "I laughed a lot {often}"],
    ),
    "loss of interest": (
        [
            "I have given up {hobby}",
            "{hobby} means nothing to me now",
            "I used to love {hobby} and cannot be bothered",
            "nothing draws me to {hobby} any more",
            "even {hobby} leaves me cold",
        ],
        ["I look forward to {hobby}", "{hobby} still makes me happy", "I took up {hobby} again with pleasure"],
    ),
    "appetite or weight change": (
        [
            "I skip {meal} without noticing",
            "food tastes of nothing, even {meal}",
            "I lost {number} kilos without a diet",
            "I eat far too much at {meal}",
            "I have to force myself through {meal}",
        ],
        [
            "I cooked and enjoyed {meal}",
            "my weight has been steady for {number} months",
            "I was hungry for {meal} and ate well",
        ],
    ),
    "sleep trouble": (
        [
            "I lie awake until {hour}",
            "I wake at {hour} and stay awake",
            "I barely sleep {often}",
            "I sleep past {hour} and am still sleepy",
            "falling asleep takes me until {hour}",
        ],
        ["I sleep through until {hour}", "I go to bed rested at {hour}", "I sleep soundly {often}"],
    ),
    "restless or slowed": (
        [
            "I pace the {place} {often}",
            "I cannot sit still in the {place}",
            "I move as if under water {often}",
            "my hands fidget {often}",
            "others say that I speak and walk slowly {often}",
        ],
        ["I sat calmly in the {place}", "I move about the {place} with ease", "I read quietly in the {place} {often}"],
    ),
    "loss of energy": (
        [
            "I am worn out {often}",
            "crossing the {place} tires me",
            "I have no strength left after {meal}",
            "a small task drains me {often}",
            "my body feels heavy as lead {often}",
        ],
        ["I have plenty of energy {often}", "I ran around the {place} and felt fresh", "I feel strong {often}"],
    ),
    "worthlessness or guilt": (
        [
            "I feel like a burden {often}",
            "I blame myself for {blame}",
            "I feel guilty about {blame}",
            "I think that I am worth nothing {often}",
            "I cannot forgive myself for {blame}",
        ],
        ["I am proud of how I handled {blame}", "I know that {blame} was not my fault", "I feel valued {often}"],
    ),
    "trouble concentrating": (
        [
            "I read the same page {number} times",
            "my thoughts drift off {often}",
            "I cannot decide on {meal}",
            "I lose the thread in talks {often}",
            "I forget what I came to the {place} for",
        ],
        ["I finished {number} chapters in one go", "my mind is clear {often}", "I decided quickly about {meal}"],
    ),
    "thoughts of death": (
        [
            "I think about death {often}",
            "life does not seem worth the effort {often}",
            "I wonder {often} whether I want to go on",
            "dark thoughts about the end come {often}",
            "I wish {often} that I could simply disappear",
        ],
        [
            "I want to live and see the {place} again",
            "I am glad to be alive {often}",
            "I make plans for the next {number} years",
        ],
    ),
}
FILLERS: dict[str, list[str]] = {
    "often": ["every day", "most days", "all week", "these days", "since spring", "in the evening", "at work"],
    "hobby": ["painting", "football", "the choir", "gardening", "my guitar", "hiking", "chess"],
    "meal": ["breakfast", "lunch", "dinner", "supper", "the weekly shop"],
    "number": ["two", "three", "four", "five", "six"],
    "hour": ["two", "three", "four", "five", "six", "noon"],
    "place": ["kitchen", "office", "garden", "hall", "park"],
    "blame": ["the divorce", "the move", "that mistake", "the argument", "the lost job"],
}
MEETS = [
    "{c}",
    "{c}",
    "lately {c}",
    "for weeks now {c}",
    "to be honest, {c}",
    "I should admit that {c}",
    "my friends have noticed that {c}",
]
DENIES = [
    "it is not true that {c}",
    "I would not say that {c}",
    "nobody could claim that {c}",
    "it is over that {c}",
    "my neighbour says of himself: {c}",
]
NEUTRAL = [
    "the bus was late again",
    "the weather has been mild in the {place}",
    "my cousin visited for {number} days",
    "we repainted the {place}",
    "I moved here {number} years ago",
    "the dog slept through {meal}",
    "my appointment is in {number} weeks",
    "the team won at football",
    "thanks for reading this",
]
JOINTS = [", and ", ", but ", " while "]


def fill(draw: random.Random, template: str) -> str:
    """Return a template with a random word for each {slot}."""
    return template.format_map({slot: draw.choice(words) for slot, words in FILLERS.items()})


def clause(draw: random.Random, criterion: str, met: bool) -> tuple[str, str]:
    """Return a clause about a criterion, and the part of it that is the evidence, "" if the criterion is not met."""
    meets, opposite = CRITERIA[criterion]
    if met:
        core = fill(draw, draw.choice(meets))
        return draw.choice(MEETS).replace("{c}", core), core
    if draw.random() < 0.5:
        return draw.choice(DENIES).replace("{c}", fill(draw, draw.choice(meets))), ""
    return draw.choice(MEETS).replace("{c}", fill(draw, draw.choice(opposite))), ""


def sentence(text: str) -> str:
    """Return a text as a sentence."""
    return text[0].upper() + text[1:] + "."


def pairs(count: int, seed: int) -> str:
    """Return CSV of (post, criterion, label): a sentence of one or two clauses, and a criterion."""
    draw = random.Random(seed)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["post", "criterion", "label", "source"])
    rows: set[tuple[str, str]] = set()
    while len(rows) < count:
        criterion_name = draw.choice(list(CRITERIA))
        label = int(draw.random() < 0.45)
        clause_criterion = criterion_name
        if not label and draw.random() < 0.5:  # an easy negative: another criterion is met
            clause_criterion = draw.choice([name for name in CRITERIA if name != criterion_name])
        text, _ = clause(draw, clause_criterion, met=bool(label) or clause_criterion != criterion_name)
        if draw.random() < 0.4:
            parts = [text, fill(draw, draw.choice(NEUTRAL))]
            draw.shuffle(parts)
            text = draw.choice(JOINTS).join(parts)
        if (text, criterion_name) in rows:
            continue
        rows.add((text, criterion_name))
        is_wrong = draw.random() < WRONG_LABELS
        table.writerow([sentence(text), criterion_name, 1 - label if is_wrong else label, "synthetic"])
    return out.getvalue()


def posts(count: int, seed: int) -> str:
    """Return JSONL of (post, criterion, label, spans): two or three sentences, with the evidence as [start, end) offsets."""
    draw = random.Random(seed)
    lines: dict[str, str] = {}
    while len(lines) < count:
        criterion_name = draw.choice(list(CRITERIA))
        label = int(draw.random() < 0.6)
        other = draw.choice([name for name in CRITERIA if name != criterion_name])
        parts = [clause(draw, criterion_name, met=bool(label))]
        if not label and draw.random() >= 0.5:  # half of the negatives do not mention the criterion at all
            parts.clear()
        parts.append((clause(draw, other, met=draw.random() < 0.7)[0], ""))
        if draw.random() < 0.2:
            parts.append((fill(draw, draw.choice(NEUTRAL)), ""))
        draw.shuffle(parts)
        post, spans = "", []
        for text, evidence in parts:
            if post:
                post += " "
            if evidence:
                start = len(post) + text.index(evidence)
                spans.append([start, start + len(evidence)])
            post += sentence(text)
        if spans and draw.random() < WRONG_LABELS:  # as if the annotator had overlooked it
            label, spans = 0, []
        row = {"post": post, "criterion": criterion_name, "label": label, "spans": spans, "source": "synthetic"}
        lines.setdefault(post + criterion_name, json.dumps(row))
    return "".join(line + "\n" for line in lines.values())


def notes(count: int, seed: int) -> str:
    """Return JSONL of (text, label): two or three sentences, one of which meets the criterion that is the label."""
    draw = random.Random(seed)
    lines: dict[str, str] = {}
    while len(lines) < count:
        label = draw.choice(list(CRITERIA))
        other = draw.choice([name for name in CRITERIA if name != label])
        parts = [clause(draw, label, met=True)[0], fill(draw, draw.choice(NEUTRAL))]
        if draw.random() < 0.4:
            parts.append(clause(draw, other, met=False)[0])
        draw.shuffle(parts)
        text = " ".join(map(sentence, parts))
        final_label = label if draw.random() > WRONG_LABELS else other
        lines.setdefault(text, json.dumps({"text": text, "label": final_label, "source": "synthetic"}))
    return "".join(line + "\n" for line in lines.values())


def instructions(count: int, seed: int) -> str:
    """Return JSONL of (prompt, completion): a note as in `notes`, and the name of its criterion."""
    rows = [json.loads(line) for line in notes(count, seed).splitlines()]
    lines = [{"prompt": row["text"], "completion": row["label"], "source": row["source"]} for row in rows]
    return "".join(json.dumps(line) + "\n" for line in lines)


def files() -> dict[Path, str]:
    """Return the text of each file that this script writes."""
    return {
        JOBS / "criteria" / "synthetic.csv": pairs(1500, seed=1),
        JOBS / "evidence" / "synthetic.jsonl": posts(800, seed=2),
        JOBS / "share" / "synthetic.jsonl": posts(800, seed=3),
        JOBS / "joint" / "synthetic.jsonl": posts(600, seed=4),
        JOBS / "finetune" / "synthetic.jsonl": notes(1500, seed=5),
        JOBS / "lora" / "synthetic.jsonl": instructions(1200, seed=6),
    }


def main() -> int:
    """Write the files, or check them. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files that are there")
    check = parser.parse_args().check
    stale = [path for path, text in files().items() if not path.is_file() or path.read_bytes() != text.encode()]
    for path in stale:
        if check:
            print(f"{path} is not what {Path(__file__).name} makes; run it without --check")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(files()[path].encode())
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
