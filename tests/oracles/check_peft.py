"""That PEFT reads adapters that Keel has exported, and merges them into what Keel has merged.

    check_peft.py BASE EXPORTED MERGED INPUT.jsonl OUT.json PACKAGE...

PACKAGE: folders of unpacked packages. OUT has the log-probabilities of each row's ids under the base with the adapters.
"""

import json
import pathlib
import sys


def tensors_of(directory):
    import safetensors.torch

    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        yield from safetensors.torch.load_file(path).items()


def main():
    base, exported, merged, rows, out, *packages = sys.argv[1:]
    sys.path[:0] = packages
    import safetensors.torch
    import torch
    from peft import PeftModel

    import models
    from generate_reference import load, score

    torch.set_num_threads(1)
    config = json.loads((pathlib.Path(exported) / "adapter_config.json").read_text())
    if pathlib.Path(config["base_model_name_or_path"]).resolve() != pathlib.Path(base).resolve():
        sys.exit(f"adapter_config.json names {config['base_model_name_or_path']}")
    model = PeftModel.from_pretrained(load(base), exported, autocast_adapter_dtype=False)
    written = safetensors.torch.load_file(pathlib.Path(exported) / "adapter_model.safetensors")
    known = {name.replace(".default", "") for name in model.state_dict() if ".lora_" in name}
    if known != set(written):
        sys.exit(f"PEFT has other tensors: {sorted(known ^ set(written))[:4]}")
    with open(rows, encoding="utf-8") as lines:
        said = [score(model, json.loads(line)["input_ids"])["logprobs"] for line in lines]
    pathlib.Path(out).write_text(json.dumps(said))
    # In the type of the files, as users merge.
    whole = models.canonical(model.get_base_model(), dict(load(base).named_parameters()))
    dtypes = {name: tensor.dtype for name, tensor in tensors_of(base)}
    model = model.merge_and_unload()
    wanted = models.canonical(model, dict(model.named_parameters()))
    for name, found in tensors_of(merged):
        in_files, name = name, models.renamed(model.config, name)
        if found.dtype != dtypes[in_files]:
            sys.exit(f"{name} is {found.dtype}")
        distance = (found.float() - wanted[name].float()).abs().max().item()
        step = 2**-8 if found.dtype == torch.bfloat16 else 2**-22
        if distance > step * wanted[name].abs().max().item():
            sys.exit(f"{name} is {distance} off")
    if all(torch.equal(whole[name], wanted[name]) for name in wanted):
        sys.exit("PEFT's adapters change nothing")


if __name__ == "__main__":
    main()
