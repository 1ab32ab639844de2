"""What Keel puts between two turns of a response, by the chat templates of the world, against transformers' renderings.

    multi_turn_oracle_test.py PROGRAM

PROGRAM is tests/turns/turn_text_cases. A conversation whose last message is a tool's, or a second one of a user's, is rendered by
transformers with an answer opened. What Keel puts there must be the end of that text, and what stands before it must end where the
model's own turn did: with the token that ends one, or, of a template that writes none, with the turn. And what a template writes of an
assistant's calls is read as these calls.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import chat_templates_test as world

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
import byte_level

SKIPPED = 77
MARKS = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<end_of_turn>", "<|end|>", "<|eot|>", "<|return|>", "<|call|>", "<|endoftext|>",
         "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<eos>", "<|tool_call_end|>", "[e~[", "<|message_end|>", "<|turn_end|>",
         "<|user|>", "<|observation|>", "<|EOT|>", "<|im_sep|>", "<SPECIAL_12>", "<|end_of_role|>", "<extra_id_1>", "<|endofturn|>"]  # fmt: skip
ANSWER, SAID, ASKED = "what the model said", ["12 °C\nand wind", "{\"t\": 1}"], "And then?\nSay <b>more</b>."
CALLS = [{"name": "get_weather", "id": "abcdefgh1"}, {"name": "now", "id": "abcdefgh2"}]


def rendered(source, messages, prompt, tools):
    return world.expected(source, {"messages": messages, "tools": tools, "add_generation_prompt": prompt, "extra": dict(world.TOKENS)}).get("text")


def end_of_answer(source):
    """The mark that the template writes behind an answer, which is then that of the model; "": it writes none of those known."""
    text = rendered(source, [world.user("x"), world.assistant(ANSWER), world.user("y")], False, None)
    if text is None or ANSWER not in text:
        return None
    behind = text.rpartition(ANSWER)[2].rpartition("y")[0]
    found = [(behind.index(mark), mark) for mark in MARKS if mark in behind]
    return min(found)[1] if found else ""


def cases(sources):
    for name, source in sorted(sources.items()):
        mark = end_of_answer(source)
        if mark is None:
            continue
        common = {"name": name, "mark": mark, "source": source, "extra": dict(world.TOKENS), "stops": [256 + MARKS.index(mark)] if mark else []}
        yield {**common, "tools": None, "told": True, "texts": [ASKED],
               "messages": [world.user("x"), world.assistant(ANSWER), world.user(ASKED)]}  # fmt: skip
        for count in (1, 2):
            calls = [world.call(c["name"], {}, c["id"]) for c in CALLS[:count]]
            results = [{"role": "tool", "name": c["name"], "tool_call_id": c["id"], "content": text} for c, text in zip(CALLS[:count], SAID)]
            yield {**common, "tools": world.TOOLS, "calls": CALLS[:count], "texts": SAID[:count],
                   "messages": [world.user("x"), world.assistant("", tool_calls=calls), *results]}  # fmt: skip


def is_shown(case):
    """Whether transformers shows all that is said."""
    whole = rendered(case["source"], case["messages"], True, case["tools"])
    return whole is not None and all(text in whole for text in case["texts"])


def wrong_with(case, said):
    """What is wrong with what Keel said; None: nothing."""
    whole = rendered(case["source"], case["messages"], True, case["tools"])
    if whole is None:
        return None  # transformers refuses the conversation; Keel may show another one
    if not whole.endswith(said):
        return "it is no end of transformers' text"
    before = whole[: len(whole) - len(said)]
    if case.get("told"):
        end = before.rpartition(ANSWER)[2]
        if end.count(case["mark"]) != 1 or not end.endswith(case["mark"]) if case["mark"] else end:
            return f"the model's turn would end with {before[-60:]!r}"
        return None if case["texts"][0] in said else "the user's text is not there"
    if case["mark"] and said.lstrip().startswith(case["mark"]):
        return f"the token that ends a turn is given: {said[:60]!r}"
    return None if all(text in said or json.dumps(text, ensure_ascii=False)[1:-1] in said for text in case["texts"]) else "a tool's text is not there"


WRITTEN = [("get_weather", {"place": "Köln", "days": 2, "detail": {"wind": True}, "tags": ["a", "b c"]}), ("get_weather", {"place": "12"}), ("now", {})]


def written(sources):
    """Turns of calls as templates write them."""
    for name, source in sorted(sources.items()):
        for calls in ([call] for call in WRITTEN):
            for as_text in (False, True):  # some templates take arguments as JSON alone
                made = [world.call(tool, json.dumps(a) if as_text else a, "abcdefgh1") for tool, a in calls]
                text = rendered(source, [world.user("x"), world.assistant("", tool_calls=made)], False, world.TOOLS)
                if text is not None:
                    break
            for prompt in (True, False):
                asked = rendered(source, [world.user("x")], prompt, world.TOOLS)
                if asked is None or text is None or not text.startswith(asked) or calls[0][0] not in text[len(asked):]:
                    continue
                turn = text[len(asked):].strip()
                for mark in MARKS:  # what ends a turn is not of its text
                    turn = turn.removesuffix(mark)
                yield {"name": name, "source": source, "tools": world.TOOLS, "turn": turn, "calls": calls}
                break


def read_back(case, answer):
    """What is wrong with what Keel read; None: nothing."""
    found = [(call["name"], call["arguments"]) for call in answer["calls"]]
    return None if found == case["calls"] else f"read {answer['calls']} of {case['turn'][:300]!r}"


def run(folder, todo):
    lines = "".join(json.dumps({k: v for k, v in case.items() if k != "messages"}) + "\n" for case in todo)
    done = subprocess.run([sys.argv[1], folder], input=lines.encode(), capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
    if len(answers) != len(todo):
        sys.exit(f"{len(todo)} cases, {len(answers)} answers")
    return answers


def main():
    sources = world.templates(pathlib.Path(os.environ.get("KEEL_TEMPLATE_CACHE", "build/template-packages")))
    if sources is None:
        print("SKIPPED: the packages with templates cannot be had")
        return SKIPPED
    todo = list(cases(sources))
    with tempfile.TemporaryDirectory(prefix="keel-turns-") as folder:
        byte_level.write_tokenizer(pathlib.Path(folder), dict.fromkeys(MARKS, True), "</s>")
        answers = run(folder, todo)
        turns = list(written(sources))
        read = run(folder, turns)
    wrong, shown = [], {True: set(), False: set()}
    for case, answer in zip(todo, answers):
        told = bool(case.get("told"))
        if "error" in answer:
            if is_shown(case):
                wrong.append((case, "Keel refuses it", answer["error"]))
            continue
        shown[told].add(case["name"])
        problem = wrong_with(case, answer["text"])
        if problem:
            wrong.append((case, problem, answer["text"]))
    print(f"of {len(sources)} templates {len(shown[True])} show a user who speaks again and {len(shown[False])} what tools said; {len(wrong)} cases differ")
    for case, problem, text in wrong[:20]:
        print("---", case["name"], "told" if case.get("told") else len(case["calls"]), problem, repr(text)[:300])
    known = [(case, answer) for case, answer in zip(turns, read) if answer["calls"] is not None]
    misread = [(case["name"], problem) for case, answer in known if (problem := read_back(case, answer))]
    print(f"calls of {len({case['name'] for case, _ in known})} templates are of a known format; {len(misread)} of {len(known)} turns are read otherwise")
    for name, problem in misread[:20]:
        print("---", name, problem)
    if "-v" in sys.argv:
        for case, answer in zip(todo, answers):
            if "error" in answer:
                print("refused", case["name"], "told" if case.get("told") else len(case["calls"]), answer["error"][:200])
    return 1 if wrong or misread or len(known) < 60 or len(shown[True]) < 100 or len(shown[False]) < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
