"""Makes the tiny Hugging Face models of the tests, and what PyTorch and transformers compute with them.

    make_model_fixtures.py OUT

For each model of models.py:

    OUT/<model>/hf/                     config.json and safetensors
    OUT/<model>/reference.safetensors   input_ids, targets [T], cu_seqlens [4] (int32); logits [T, V];
                                        grad.<name>, step3.<name>, exp_avg.<name>, exp_avg_sq.<name>
    OUT/<model>/reference.json          loss; losses, grad_norms (three each); rounding (see below)
    OUT/<model>/prompts.jsonl           token ids to continue and to score ...
    OUT/<model>/generate.json, score.json   ... with the answers (see generate_reference.py)
    OUT/<model>/keys.*                  one model a family: keys of config.json changed in turn (key_changes.py)

Three sequences are packed into T = 58 tokens. The reference runs each by itself, so nothing about
packing, masks or positions is shared with the code under test. The loss is the mean over the targets
that are not -100; `grad` is its gradient, before clipping. `step3` and the moments are those after
three AdamW steps on this batch: lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decay 0.1 of the matrices
alone, gradients clipped to norm 1. `losses` and `grad_norms` (before clipping) belong to these steps.
The batch is one on which these steps are the same to 1e-6 in float32, float32 with another attention, and
float64, wherever the first gradient is above 1e-5.
Where a family's files fuse matrices, the reference has their parts (models.FUSED).
Tied models have the sum of both gradients under model.embed_tokens.weight, and no lm_head.weight.

All is float32 with eager attention. `rounding` is its largest absolute distance from the same in
float64: the scale for tolerances.

Nothing is done when OUT/done shows that these scripts have already run with these library versions.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import sys

SCRIPTS = ["make_model_fixtures.py", "reference_values.py", "models.py", "generate_reference.py", "key_changes.py"]
LIBRARIES = ["torch", "transformers", "safetensors", "numpy"]


def fingerprint():
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    for script in SCRIPTS:
        digest.update((pathlib.Path(__file__).parent / script).read_bytes())
    return digest.hexdigest() + "\n"


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: make_model_fixtures.py OUT")
    out = pathlib.Path(sys.argv[1])
    done = out / "done"
    if done.exists() and done.read_text() == fingerprint():
        print(f"{out} is up to date")
        return
    done.unlink(missing_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import reference_values  # here, since importing torch takes longer than finding nothing to do

    reference_values.make_all(out)
    done.write_text(fingerprint())


if __name__ == "__main__":
    main()
