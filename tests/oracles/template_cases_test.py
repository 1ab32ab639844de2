"""Random chat templates, rendered by transformers and by Keel: the same bytes and the same masks, or both refuse.

    template_cases_test.py PROGRAM [FIRST COUNT]

PROGRAM is tests/model/chat_template/chat_template_cases; FIRST and COUNT are seeds of make_template_cases.py. By default a few
that are always the same; with KEEL_NIGHTLY=1 as many as KEEL_SEEDS says, others every day. What differs is printed with its
seed, which `make_template_cases.py SEED 1 --source` writes again.
"""

import os
import sys
import time
import warnings

from chat_templates_test import expected, run
from make_template_cases import case

SEEDS = 400
SEEDS_A_NIGHT = 20000
SECONDS_A_DAY = 86400
AT_ONCE = 500
# What Keel refuses by name and transformers runs: texts of functions and iterators, which say where they lie in memory, integers
# beyond 64 bits, complex numbers, characters beyond ASCII in a few methods; a slice of a number, an error in jinja but where its optimizer saw a constant;
# what goes over more than its limit of steps.
REFUSED = ("is not supported", "beyond 64 bits", "has no text to print", "too large", "too long", "beyond ASCII", "the width is", "is complex", "has no slices", "too many steps")


def differs(case, got):
    """What transformers says where Keel says something else; None where they agree, "" where Keel refuses by name."""
    if any(word in got.get("error", "") for word in REFUSED):
        return ""
    want = expected(case["source"], case["request"])
    if " at 0x" in want.get("text", ""):
        return ""
    same = got.get("text") == want.get("text") and got.get("assistant") == want.get("assistant")
    return None if same else want


def main():
    program = sys.argv[1]
    first, count = 0, SEEDS
    if len(sys.argv) > 3:
        first, count = int(sys.argv[2]), int(sys.argv[3])
    elif os.environ.get("KEEL_NIGHTLY") == "1":
        first, count = int(time.time()) // SECONDS_A_DAY * 100_000, int(os.environ.get("KEEL_SEEDS", SEEDS_A_NIGHT))
    warnings.simplefilter("ignore")
    os.environ["TZ"] = "UTC"
    time.tzset()
    wrong, skipped, ran = 0, 0, 0
    for begin in range(first, first + count, AT_ONCE):
        cases = [case(seed) for seed in range(begin, min(begin + AT_ONCE, first + count))]
        for one, got in zip(cases, run(program, cases), strict=True):
            want = differs(one, got)
            skipped += want == ""
            ran += "text" in got
            if want:
                wrong += 1
                print(f"--- seed {one['template']}\n{one['source']}\n  transformers: {want!r}\n  keel:         {got!r}", flush=True)
    print(f"{count} templates from seed {first} on: {ran} run to their end, {skipped} not compared, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
