"""Records the key names that the tables of `keel config import-verl` and `import-trl` must answer: only names, from unpacked wheels.

    pip download --no-deps verl==0.9.1 trl==1.16.0 && unzip each into a folder of its name
    python3 record_keys.py --verl verl --trl trl --transformers .venv/lib/python3.11/site-packages

writes verl_keys.txt (each leaf of the generated trainer files) and trl_keys.txt ("sft learning_rate": each argument of a command) beside
this file. With --program it compares the defaults of verl's files with those that the program knows instead.
"""

import argparse
import ast
import pathlib

import yaml

HERE = pathlib.Path(__file__).parent
CLASSES = {
    "sft": ["SFTConfig", "ModelConfig", "ScriptArguments"],
    "dpo": ["DPOConfig", "ModelConfig", "ScriptArguments"],
    "grpo": ["GRPOConfig", "ModelConfig", "ScriptArguments", "GRPOScriptArguments"],
}


def leaves(node, path=""):
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from leaves(value, f"{path}.{name}" if path else name)
    else:
        yield path


def verl_keys(root):
    found = set()
    for path in sorted((root / "verl" / "trainer" / "config").glob("_generated_*_trainer.yaml")):
        found |= set(leaves(yaml.safe_load(path.read_text())))
    return sorted(found)


def dataclasses(roots):
    """{class: (bases, its annotated fields)} of all modules."""
    found = {}
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    fields = [
                        part.target.id
                        for part in node.body
                        if isinstance(part, ast.AnnAssign)
                        and isinstance(part.target, ast.Name)
                        and "init=False" not in ast.unparse(part).replace(" ", "")
                        and "ClassVar" not in ast.unparse(part.annotation)
                        and not part.target.id.startswith("_")
                    ]
                    found.setdefault(node.name, ([ast.unparse(base).split(".")[-1] for base in node.bases], fields))
    return found


def fields(name, classes):
    bases, own = classes.get(name, ([], []))
    return set(own).union(*(fields(base, classes) for base in bases))


def trl_keys(trl, transformers):
    classes = dataclasses([trl / "trl" / "trainer", trl / "trl" / "scripts", transformers / "transformers" / "training_args.py"])
    found = set()
    for method, names in CLASSES.items():
        for name in names:
            assert name in classes, name
            found |= {f"{method} {field}" for field in fields(name, classes)}
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=pathlib.Path, required=True)
    parser.add_argument("--trl", type=pathlib.Path, required=True)
    parser.add_argument("--transformers", type=pathlib.Path, required=True, help="the folder that has transformers/")
    options = parser.parse_args()
    (HERE / "verl_keys.txt").write_text("".join(key + "\n" for key in verl_keys(options.verl)))
    (HERE / "trl_keys.txt").write_text("".join(key + "\n" for key in trl_keys(options.trl, options.transformers)))


main()
